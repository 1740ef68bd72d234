package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"star/sim"
	"star/train"
	"star/train/data"
	"star/train/net"
	"star/train/optim"
)

// TTAConfig says what TTA measures.
type TTAConfig struct {
	Model, Dataset string
	Methods        []string // modes, and auto
	Rates          []float64
	Seeds          int
	Workers, Batch int
	Slow           float64 // factor of the time of the last worker
	Target         float64 // accuracy
	Rounds         int     // the run is given up after so many rounds of samples
	Tests          int     // samples of an evaluation

	// Progress, if not nil, is told of each run.
	Progress func(r TTAResult)
}

// TTAResult is one run. Its JSON is an interface: see docs/operations.md.
type TTAResult struct {
	Scenario  string   `json:"scenario"`
	Bound     float64  `json:"bound"`
	Task      string   `json:"task"`
	Arch      string   `json:"arch"`
	Method    string   `json:"method"`
	Seed      uint64   `json:"seed"`
	Rate      float64  `json:"lr"`
	Target    float64  `json:"target"`
	TTA       *float64 `json:"tta_s"` // null: not reached
	Reached   bool     `json:"reached"`
	Accuracy  float64  `json:"final_accuracy"`
	Updates   int64    `json:"updates"`
	Samples   int64    `json:"samples"`
	Staleness float64  `json:"staleness"`
	Switches  int      `json:"switches"`
}

// TTA measures the virtual time that methods need to an accuracy, in real training on a cluster whose last worker is slow: every
// iteration takes 600 ms, a tenth of which no batch size changes, and varies by 10 %. Each method has the learning rate, of
// cfg.Rates, with which it is fastest at seed 0, which does not count among the results.
func TTA(ctx context.Context, cfg TTAConfig) ([]TTAResult, error) {
	trainSet, testSet, err := data.Open(cfg.Dataset, data.Options{})
	if err != nil {
		return nil, err
	}
	var results []TTAResult
	for _, method := range cfg.Methods {
		var best *TTAResult
		for _, rate := range cfg.Rates {
			r, err := ttaRun(ctx, cfg, trainSet, testSet, method, rate, 0)
			if err != nil {
				return nil, err
			}
			if best == nil || r.before(best) {
				best = &r
			}
		}
		for seed := 1; seed <= cfg.Seeds; seed++ {
			r, err := ttaRun(ctx, cfg, trainSet, testSet, method, best.Rate, uint64(seed))
			if err != nil {
				return nil, err
			}
			if cfg.Progress != nil {
				cfg.Progress(r)
			}
			results = append(results, r)
		}
	}
	return results, nil
}

// before says whether r is the better run: sooner there, or if neither is there, more accurate.
func (r TTAResult) before(s *TTAResult) bool {
	if r.Reached && s.Reached {
		return *r.TTA < *s.TTA
	}
	return r.Reached && !s.Reached || r.Reached == s.Reached && r.Accuracy > s.Accuracy
}

func ttaRun(ctx context.Context, cfg TTAConfig, trainSet, testSet data.Dataset, method string, rate float64, seed uint64) (TTAResult, error) {
	n := cfg.Workers
	steady := sim.Steady{Iteration: make([]time.Duration, n), Fixed: 0.1}
	for w := range steady.Iteration {
		steady.Iteration[w] = 600 * time.Millisecond
	}
	steady.Iteration[n-1] = time.Duration(cfg.Slow * float64(600*time.Millisecond))
	times := sim.Varied{Times: steady, Sigma: 0.1, Seed: seed}
	bound, err := sim.Bound(times, 200)
	if err != nil {
		return TTAResult{}, err
	}
	spec, err := net.Parse(cfg.Model)
	if err != nil {
		return TTAResult{}, err
	}
	spec.Input, spec.Batch, spec.Seed = trainSet.Input(), cfg.Batch, seed
	model, err := net.Build(spec)
	if err != nil {
		return TTAResult{}, err
	}
	defer model.Close()
	if len(model.Buffers()) > 0 {
		return TTAResult{}, fmt.Errorf("bench: %s has running statistics, which each worker keeps for itself; take a model without batch normalisation", cfg.Model)
	}
	task := &netTask{ctx: ctx, model: model, set: trainSet, stream: data.Stream{Seed: seed, N: trainSet.Len()}}
	if err := task.tests(testSet, cfg.Tests); err != nil {
		return TTAResult{}, err
	}
	learner := &sim.Trained{Task: task, Every: 4 * n * cfg.Batch}
	c := sim.Config{
		Times: times, Learner: learner, Batch: cfg.Batch, Latency: time.Millisecond, Target: cfg.Target,
		Limit: time.Duration(float64(cfg.Rounds) * cfg.Slow * float64(600*time.Millisecond)),
	}
	c.Samples = int64(cfg.Rounds * n * cfg.Batch)
	if err := c.Use(method, optim.Config{LR: rate}); err != nil {
		return TTAResult{}, err
	}
	out := TTAResult{
		Scenario: fmt.Sprintf("%d workers, one takes %g times as long", n, cfg.Slow), Bound: bound, Task: cfg.Model + "/" + cfg.Dataset, Arch: "ps",
		Method: method, Seed: seed, Rate: rate, Target: cfg.Target,
	}
	res, err := sim.Run(c)
	if errors.Is(err, sim.ErrDiverged) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.Reached, out.Accuracy = res.Reached, learner.Accuracy()
	out.Updates, out.Samples, out.Staleness, out.Switches = res.Updates, res.Samples, res.Staleness, len(res.Switches)
	if res.Reached {
		s := res.Time.Seconds()
		out.TTA = &s
	}
	return out, nil
}

// netTask is a model with its data, as sim.Task.
type netTask struct {
	ctx     context.Context
	model   train.Model
	set     data.Dataset
	stream  data.Stream
	indices []int
	batch   train.Batch
	test    train.Batch
}

// tests has the first n samples of the set judged, or all.
func (t *netTask) tests(set data.Dataset, n int) error {
	for i := range min(n, set.Len()) {
		t.indices = append(t.indices, i)
	}
	return set.Fill(&t.test, t.indices)
}

func (t *netTask) Params() []float32 { return append([]float32(nil), t.model.Params()...) }

func (t *netTask) Gradient(dst, params []float32, from int64, samples int) error {
	t.indices = t.stream.Indices(t.indices, from, samples)
	if err := t.set.Fill(&t.batch, t.indices); err != nil {
		return err
	}
	copy(t.model.Params(), params)
	_, err := t.model.Grad(t.ctx, dst, t.batch)
	return err
}

func (t *netTask) Accuracy(params []float32) (float64, error) {
	copy(t.model.Params(), params)
	r, err := t.model.Eval(t.ctx, t.test)
	if err != nil || r.Count == 0 {
		return 0, err
	}
	return float64(r.Correct) / float64(r.Count), nil
}

// Interval is the mean of xs and half the width of its 95 % confidence interval, by Student's t; the half is NaN of fewer than two.
func Interval(xs []float64) (mean, half float64) {
	n := float64(len(xs))
	for _, x := range xs {
		mean += x / n
	}
	if n < 2 {
		return mean, math.NaN()
	}
	var v float64
	for _, x := range xs {
		v += (x - mean) * (x - mean) / (n - 1)
	}
	// Quantile 0.975 for 1 to 9 degrees of freedom; beyond, by Cornish and Fisher (1938), off by less than 0.001.
	table := []float64{12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622}
	var q float64
	if d := n - 1; int(d) <= len(table) {
		q = table[int(d)-1]
	} else {
		const z = 1.959964
		z3, z5, z7 := z*z*z, math.Pow(z, 5), math.Pow(z, 7)
		q = z + (z3+z)/(4*d) + (5*z5+16*z3+3*z)/(96*d*d) + (3*z7+19*z5+17*z3-15*z)/(384*d*d*d)
	}
	return mean, q * math.Sqrt(v/n)
}
