package worker

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/session"
	"star/job"
	"star/job/process"
	"star/modes/baseline"
	"star/ps"
	"star/ps/rule"
	"star/train"
	"star/train/data"
	"star/train/optim"
	"star/transport/wire"
	"star/worker/inject"
)

// DiLoCo's outer step: θ = 1 with workers at 0.8 and 0.6 becomes 0.601 (Nesterov 0.9, rate 0.7).
func TestOuterStep(t *testing.T) {
	o, err := optim.New(process.Outer(baseline.Outer{Rate: 0.7, Momentum: 0.9}), 1)
	if err != nil {
		t.Fatal(err)
	}
	theta := []float32{1}
	o.Step(theta, []float32{(1-0.8)/2 + (1-0.6)/2}, 0.7)
	if math.Abs(float64(theta[0])-0.601) > 1e-6 {
		t.Errorf("θ is %v, want 0.601", theta[0])
	}
}

// pointModel has one parameter.
type pointModel struct{ train.Model }

func (pointModel) Params() []float32          { return []float32{1} }
func (pointModel) Layout() []train.TensorSpec { return nil }

// A worker keeps the parameters of a gradient that its own steps may follow where the exchange takes half of its time,
// and until they begin.
func TestKeepsTheStepThatItsOwnFollow(t *testing.T) {
	long := star.Record{Samples: 8, Compute: 4, Push: 1, Transit: 1, Pull: 1, Wait: 1}
	short := star.Record{Samples: 8, Compute: 5, Push: 1, Transit: 1, Pull: 1, Wait: 1}
	full, half := long, long
	full.Telemetry.Set(star.HostCPU, 0.9)
	half.Telemetry.Set(star.HostCPU, 0.5)
	for _, c := range []struct {
		name             string
		local            int
		last             star.Record
		shards, baseline bool
		steps            int
		kept             int64
	}{
		{"a gradient that they may follow", 1, long, true, false, 0, 8},
		{"the first", 1, star.Record{}, true, false, 0, 8},
		{"a short exchange", 1, short, true, false, 0, 0},
		{"a full host", 1, full, true, false, 0, 0},
		{"a host with free processors", 1, half, true, false, 0, 8},
		{"a gradient", 0, long, true, false, 0, 0},
		{"its own steps", 2, long, true, false, 2, 7},
		{"a baseline's step", 1, long, true, true, 1, 7},
		{"a step in a ring", 1, long, false, false, 1, 7},
	} {
		w := worker{model: pointModel{}, solos: solos{before: []float32{1}, kept: 7}}
		if c.shards {
			w.link = new(ps.Link)
		}
		if c.baseline {
			w.local = new(rule.Solo)
		}
		rel := wire.Release{Local: c.local, Version: 8}
		if got := w.ownSteps(rel); got != c.steps {
			t.Errorf("%s: %d steps, want %d", c.name, got, c.steps)
		}
		w.keep(rel, c.last)
		if w.before == nil {
			w.kept = 0
		}
		if w.kept != c.kept {
			t.Errorf("%s: kept the parameters of version %d, want %d", c.name, w.kept, c.kept)
		}
	}
}

// A worker that trains by itself has one velocity, so with dana it is Nesterov's: what the optimiser of that name does
// alone is a plain step.
func TestLocalStepsOfDANA(t *testing.T) {
	worker := worker{model: pointModel{}, member: &session.Member{}}
	err := worker.byBaseline(&job.Job{Batch: 8, Rule: job.Rule{Baseline: "local-sgd:steps=4", Optimizer: optim.DANA, LR: 0.1, Momentum: 0.9}}, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	o, err := worker.local.Make()
	if err != nil {
		t.Fatal(err)
	}
	w := []float32{0}
	for range 2 {
		o.Step(w, []float32{1}, 0.1)
	}
	if want := -0.1 * (1.9 + 1 + 0.9*1.9); math.Abs(float64(w[0])-want) > 1e-6 {
		t.Errorf("two steps go to %v, Nesterov's to %v", w[0], want)
	}
}

// Each local step is as slow as a mini-batch; the pieces of a gradient are one mini-batch together, and its data come
// once.
func TestInjectionsOfPieces(t *testing.T) {
	trainSet, _, err := data.Open("digits:n=64,test=8", data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const takes = 10 * time.Millisecond
	for name, c := range map[string]struct {
		slow    string
		local   bool
		compute time.Duration
		load    time.Duration
	}{
		"local steps":                 {"0:+50ms", true, 3 * (takes + 50*time.Millisecond), 0},
		"pieces":                      {"0:+50ms", false, 3*takes + 50*time.Millisecond, 0},
		"local steps of a factor":     {"0:4x", true, 12 * takes, 0},
		"local steps with late data":  {"0:data=40ms", true, 3 * takes, 120 * time.Millisecond},
		"pieces with late data":       {"0:data=40ms", false, 3 * takes, 40 * time.Millisecond},
		"local steps without slowing": {"1:4x", true, 3 * takes, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, err := inject.Parse(c.slow)
				if err != nil {
					t.Fatal(err)
				}
				in, err := inject.New(inject.Config{Worker: 0, Workers: 2, Slows: []inject.Slow{slow}})
				if err != nil {
					t.Fatal(err)
				}
				w := &worker{job: &job.Job{Batch: 8}, slow: in, member: &session.Member{}, model: pointModel{}, grad: []float32{0}}
				w.sum, w.loader = []float32{0}, data.NewLoader(trainSet, data.Stream{Seed: 1})
				defer w.loader.Close()
				w.grads = func(context.Context, []float32, train.Batch) (float64, error) { time.Sleep(takes); return 0.5, nil }
				w.finite = func([]float32) (float64, int) { return 1, -1 }
				var local *rule.Solo
				if c.local {
					local = &rule.Solo{Make: func() (rule.Optimizer, error) { return optim.New(optim.Config{Name: optim.SGD}, 1) }, Schedule: rule.Constant(0.1)}
					if err := local.Begin(w.model.Params()); err != nil {
						t.Fatal(err)
					}
				}
				rec, done, begun := new(star.Record), new(piecework), time.Now()
				for i := range 3 {
					if err := w.piece(t.Context(), rule.Piece{Start: int64(8 * i), Count: 8}, nil, local, rec, done); err != nil {
						t.Fatal(err)
					}
				}
				if rec.Compute != c.compute || rec.Load != c.load || time.Since(begun) != c.compute+c.load || rec.Injected != c.compute-3*takes {
					t.Errorf("load %v, compute %v of which %v are injected, in all %v; want %v, %v", rec.Load, rec.Compute, rec.Injected, time.Since(begun), c.load, c.compute)
				}
			})
		})
	}
}

// Steps of the worker's own are by what the job says, and by its settings where it says nothing; what no optimiser is,
// is named.
func TestOwnStepsAreTheJobs(t *testing.T) {
	job := &job.Job{Batch: 8, Rule: job.Rule{Baseline: "local-sgd:steps=4", Optimizer: optim.SGD, LR: 0.1}}
	for _, c := range []struct {
		told, err string
		rate      float64
	}{
		{"", "", 0.1},
		{`{"name":"sgd","lr":0.5}`, "", 0.5},
		{`{"name":"sgd","lr":0}`, "", 0},
		{`{"name":"newton"}`, "cannot read the job's optimizer as sent by the coordinator: ", 0},
		{`sgd`, "cannot read the job's optimizer as sent by the coordinator: ", 0},
	} {
		w := worker{model: pointModel{}, member: &session.Member{Welcome: wire.Welcome{Optimizer: c.told}}}
		switch err := w.byBaseline(job, 2, 1); {
		case (err != nil) != (c.err != "") || err != nil && !strings.HasPrefix(err.Error(), c.err):
			t.Errorf("%q: %v", c.told, err)
		case err == nil && w.local.Schedule.At(0) != c.rate:
			t.Errorf("%q: a learning rate of %v, want %v", c.told, w.local.Schedule.At(0), c.rate)
		}
	}
}
