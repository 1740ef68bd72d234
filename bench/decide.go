package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
)

// DecideConfig configures Decide.
type DecideConfig struct {
	Workers []int
	Runs    int // decisions of each number of workers
}

// DecideResult is the time of one decision.
type DecideResult struct {
	Workers int     `json:"workers"`
	Runs    int     `json:"runs"`
	Median  float64 `json:"median_s"`
	P90     float64 `json:"p90_s"`
	Max     float64 `json:"max_s"`
	Plan    string  `json:"plan"` // the chosen plan
}

// Decide measures the time of a decision of --mode auto: auto.Controller.Decide, with the last 32 iterations of every
// worker, and each candidate priced by simulation in the barrier. One worker in sixteen takes twice as long, all times
// vary by 5 %, and each decision has a new iteration of every worker.
func Decide(ctx context.Context, cfg DecideConfig) ([]DecideResult, error) {
	if cfg.Runs < 1 {
		return nil, fmt.Errorf("bench: %d decisions: at least 1 is needed", cfg.Runs)
	}
	var results []DecideResult
	for _, n := range cfg.Workers {
		c, err := auto.New(auto.Config{Workers: n, Batch: 128}, modes.SSGD(n))
		if err != nil {
			return nil, err
		}
		c.Noise(480)
		var all []star.Worker
		for w := range n {
			all = append(all, star.Worker(w))
		}
		rnd := rand.New(rand.NewPCG(1, uint64(n)))
		step, at := int64(0), time.Duration(0)
		round := func() {
			for w := range n {
				t := (600 + float64(w*37%101)) * (1 + 0.05*rnd.NormFloat64())
				if w%16 == 7 {
					t *= 2
				}
				d := time.Duration(max(t, 100) * float64(time.Millisecond))
				c.Observe(star.Record{Worker: star.Worker(w), Step: step, Basis: step, At: at + d, Compute: d, Samples: 128})
			}
			step, at = step+1, at+2*time.Second
			c.Fired(at, all, 128*n)
		}
		for range 40 {
			round()
		}
		var took []float64
		for range cfg.Runs {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			round()
			begin := time.Now()
			c.Decide(at)
			took = append(took, time.Since(begin).Seconds())
		}
		slices.Sort(took)
		of := func(q float64) float64 { return took[int(q*float64(len(took)-1)+0.5)] }
		results = append(results, DecideResult{Workers: n, Runs: cfg.Runs, Median: of(.5), P90: of(.9), Max: of(1), Plan: c.Plan().String()})
	}
	return results, nil
}
