package pilot

import (
	"math/rand/v2"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/baseline"
	"star/runlog"
	"star/sim"
	"star/train/optim"
)

// both has a simulated job piloted as the simulator does, and tells the pilot of real jobs what a coordinator would.
type both struct {
	*sim.Baseline
	t       *testing.T
	real    *Baseline
	samples int64
	plan    string
	asked   []string // by the real one
	changes int
}

func (b *both) tell(at time.Duration, e runlog.Entry) {
	for _, r := range b.real.Tell(runlog.Line{T: at, Entry: e}) {
		if r.Change != nil {
			b.asked = append(b.asked, r.Change.Plan.String()+": "+r.Change.Why)
		}
	}
}

func (b *both) Observe(r star.Record) {
	b.tell(r.At, runlog.Record{Record: r})
	b.Baseline.Observe(r)
}

func (b *both) Fired(at time.Duration, version int64, gs []sim.Gradient, o sim.Outcome) {
	e := runlog.Fire{Version: version}
	for _, g := range gs {
		e.Workers = append(e.Workers, g.Worker)
		b.samples += int64(g.Samples)
	}
	e.Samples = b.samples
	b.tell(at, e)
	b.Baseline.Fired(at, version, gs, o)
}

func (b *both) Decide(at time.Duration) (modes.Plan, string, bool) {
	p, why, change := b.Baseline.Decide(at)
	switch {
	case change != (len(b.asked) > 0):
		b.t.Errorf("at %v the simulator says %v: %s, the pilot of real jobs %q", at, change, why, b.asked)
	case change:
		if got := p.String() + ": " + why; len(b.asked) != 1 || b.asked[0] != got {
			b.t.Errorf("at %v the simulator wants %s, the pilot of real jobs %q", at, got, b.asked)
		}
		b.changes++
		b.tell(at, runlog.Plan{Plan: p.String(), From: b.plan, After: 1})
		b.plan = p.String()
	}
	b.asked = nil
	return p, why, change
}

// A baseline decides in the simulator what it decides in a real job that measures the same.
func TestSimulatorDecidesTheSame(t *testing.T) {
	const n, batch, length = 4, 32, 40_000
	for _, text := range []string{"lb-bsp", "lb-bsp:predictor=last,change=0", "lb-bsp:device=gpu", "sync-switch", "sync-switch:switch=0.5,online=greedy",
		"sync-switch:switch=0.5,online=elastic", "post-local-sgd", "dropcompute", "lgc:warmup=3"} {
		t.Run(text, func(t *testing.T) {
			spec, err := baseline.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			job := baseline.Job{Workers: n, Batch: batch}
			made := func() baseline.Made {
				m, err := spec.Make(job)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			r := rand.New(rand.NewPCG(1, 2))
			times := sim.Steady{Iteration: make([]time.Duration, n), Fixed: 0.1}
			for w := range times.Iteration {
				times.Iteration[w] = time.Duration(100+r.IntN(100)) * time.Millisecond
			}
			slow := make([][]sim.Episode, n)
			slow[n-1] = []sim.Episode{{From: 5 * time.Second, To: 25 * time.Second, Factor: 3}}
			c := sim.Config{Times: sim.Troubled{Times: sim.Varied{Times: times, Sigma: 0.1}, Episodes: slow}, Learner: sim.NewQuadratic(8, 5, 0.1, 0.1, 1),
				Batch: batch, Samples: length, Limit: time.Minute}
			m := made()
			if err := c.Play(m, optim.Config{}); err != nil {
				t.Fatal(err)
			}
			b := &both{Baseline: sim.NewBaseline(made(), length), t: t, real: NewBaseline(m.Scheme, m.Plan), plan: m.Plan.String()}
			b.tell(0, runlog.Train{Limit: length})
			c.Pilot = b
			res, err := sim.Run(c)
			if err != nil {
				t.Fatal(err)
			}
			if b.changes == 0 || b.changes != len(res.Switches) {
				t.Errorf("%d decisions, %d changes of plan", b.changes, len(res.Switches))
			}
		})
	}
}
