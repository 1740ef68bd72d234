package bench

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"star/modes"
	"star/modes/auto"
	"star/sim"
)

// ScaleConfig says what Scale measures.
type ScaleConfig struct {
	Workers    []int
	Modes      []string // as --mode names them, also x=half, groups=half and auto
	Iterations int      // of each worker, on average
	Events     int      // most gradients of a row; 0: no limit
}

// ScaleResult is what simulating one cluster takes.
type ScaleResult struct {
	Workers   int     `json:"workers"`
	Mode      string  `json:"mode"`
	Gradients int64   `json:"gradients"` // simulated, whether applied or dropped
	Updates   int64   `json:"updates"`
	Seconds   float64 `json:"wall_s"`
	CPU       float64 `json:"cpu_s"`          // processor time, also of collecting garbage
	Gradient  float64 `json:"s_per_gradient"` // of it
	Allocated float64 `json:"allocated_bytes_per_gradient"`
	Memory    uint64  `json:"memory_bytes"` // that the process has of the system, at the end of the row
}

// Scale measures what package sim costs as clusters grow: with the progress model, and machines that differ by up to a
// third from each other and by 10 % from iteration to iteration.
func Scale(ctx context.Context, cfg ScaleConfig) ([]ScaleResult, error) {
	if cfg.Iterations < 1 {
		return nil, fmt.Errorf("bench: %d iterations: at least 1 is needed", cfg.Iterations)
	}
	var results []ScaleResult
	for _, n := range cfg.Workers {
		for _, mode := range cfg.Modes {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			r, err := scaleOne(n, mode, cfg)
			if err != nil {
				return nil, err
			}
			results = append(results, r)
		}
	}
	return results, nil
}

func scaleOne(n int, mode string, cfg ScaleConfig) (ScaleResult, error) {
	if n < 2 {
		return ScaleResult{}, fmt.Errorf("bench: a cluster of %d workers: at least 2 are needed", n)
	}
	const batch, pause = 32, time.Millisecond
	steady := sim.Steady{Iteration: make([]time.Duration, n)}
	rate := 0.0 // of all workers, in gradients a second
	for i := range steady.Iteration {
		steady.Iteration[i] = time.Duration(100+i%37) * time.Millisecond
		rate += 1 / (steady.Iteration[i] + pause).Seconds()
	}
	total := n * cfg.Iterations
	if cfg.Events > 0 {
		total = min(total, cfg.Events)
	}
	c := sim.Config{
		Times: sim.Varied{Times: steady, Sigma: 0.1, Seed: 1}, Plan: modes.SSGD(n), Batch: batch, Latency: pause,
		Learner: &until{left: total, Tally: sim.Tally{Noise: 1000, Kappa: 0.05}}, Target: 1,
	}
	var err error
	switch mode {
	case "auto":
		c.Pilot, err = sim.NewAuto(auto.Config{Workers: n, Batch: batch}, c.Plan)
	case "x=half":
		c.Plan = modes.XOrder(n, n/2)
	case "groups=half":
		c.Plan, err = modes.Parse(fmt.Sprintf("groups=0-%d/%d-%d", n/2-1, n/2, n-1), n)
	default:
		c.Plan, err = modes.Parse(mode, n)
	}
	if err != nil {
		return ScaleResult{}, err
	}
	// What groups and dropping do to the pace is not known beforehand; a row that would go on for ever ends here.
	c.Limit = 20 * time.Duration(float64(total)/rate*float64(time.Second))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin, cpu := time.Now(), cpuTime()
	res, err := sim.Run(c)
	took := time.Since(begin).Seconds()
	cpu = cmp.Or(cpuTime()-cpu, took)
	if err != nil {
		return ScaleResult{}, err
	}
	runtime.ReadMemStats(&after)
	gradients := res.Gradients + res.Dropped
	each := float64(cmp.Or(gradients, 1))
	return ScaleResult{
		Workers: n, Mode: mode, Gradients: gradients, Updates: res.Updates, Seconds: took, CPU: cpu, Gradient: cpu / each,
		Allocated: float64(after.TotalAlloc-before.TotalAlloc) / each, Memory: after.Sys,
	}, nil
}

// until is a Tally that reaches a progress of 1 with the given number of gradients.
type until struct {
	sim.Tally
	left int
}

func (u *until) Update(version int64, gs []sim.Gradient) sim.Outcome {
	u.Tally.Update(version, gs)
	if u.left -= len(gs); u.left <= 0 {
		return sim.Outcome{Progress: 1}
	}
	return sim.Outcome{}
}
