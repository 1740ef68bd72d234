package coord

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"star"
	"star/coord/advice"
	"star/modes"
	"star/runlog"
	"star/sim"
	"star/transport/wire"
)

// atVersion changes the plan after an update. It pilots real jobs, on fake time or not, and simulated ones.
type atVersion struct {
	plans map[int64]modes.Plan
	now   int64
}

func (p *atVersion) Tell(l runlog.Line) []advice.Remark {
	if f, ok := l.Entry.(runlog.Fire); ok && len(f.Workers) > 0 {
		if q, ok := p.plans[f.Version]; ok {
			return []advice.Remark{{Change: &advice.Change{Plan: q, Why: "it is time", Predicted: math.NaN()}}}
		}
	}
	return nil
}

func (p *atVersion) Observe(star.Record)                                             {}
func (p *atVersion) Fired(_ time.Duration, v int64, _ []sim.Gradient, _ sim.Outcome) { p.now = v }

func (p *atVersion) Decide(time.Duration) (modes.Plan, string, bool) {
	q, ok := p.plans[p.now]
	p.now = -1
	return q, "it is time", ok
}

// fired is an update and its time.
type fired struct {
	at      time.Duration
	version int64
	workers []int
}

func (f fired) String() string {
	return fmt.Sprintf("%v: version %d of %v", f.at, f.version, f.workers)
}

// noted is a Learner that records the workers of applied gradients, and the times.
type noted struct {
	*atVersion
	fires []fired
}

func (n *noted) Fired(at time.Duration, v int64, gs []sim.Gradient, o sim.Outcome) {
	f := fired{at: at, version: v}
	for _, g := range gs {
		f.workers = append(f.workers, int(g.Worker))
	}
	slices.Sort(f.workers)
	n.fires = append(n.fires, f)
	n.atVersion.Fired(at, v, gs, o)
}

// uneven workers have different times, to the nanosecond.
type uneven struct{ n int }

func (u uneven) Workers() int { return u.n }
func (u uneven) Spend(w star.Worker, step int64, _ time.Duration, load float64) sim.Spent {
	if load == 0 {
		return sim.Spent{Compute: 1}
	}
	r := rand.New(rand.NewPCG(uint64(w), uint64(step)))
	return sim.Spent{Compute: time.Duration((1 + float64(w)*0.3 + r.Float64()) * 1e8)}
}

// still is a Learner that does nothing.
type still struct{}

func (still) Begin(int, int)                           {}
func (still) Release(star.Worker, int)                 {}
func (still) Update(int64, []sim.Gradient) sim.Outcome { return sim.Outcome{} }

// The coordinator, with its goroutines, connections and fake time, and the simulator fire the same workers at the same
// nanosecond.
func TestSimulatorFiresTheSame(t *testing.T) {
	const n, steps, batch = 4, 60, 4
	parse := func(text string) modes.Plan {
		p, err := modes.Parse(text, n)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, test := range []struct {
		plan    string
		changes map[int64]modes.Plan
	}{
		{"ssgd", nil},
		{"asgd", nil},
		{"x=3", nil},
		{"backup=1", nil},
		{"ssp=1", nil},
		{"groups=0,1/2,3", nil},
		{"groups=0-2+3", nil},
		{"ssgd", map[int64]modes.Plan{5: parse("x=2"), 20: parse("groups=0,2/1,3"), 35: parse("groups=0,1 held=2,3"), 50: parse("asgd"), 90: parse("ssgd")}},
	} {
		t.Run(fmt.Sprint(test.plan, len(test.changes)), func(t *testing.T) {
			times := uneven{n}
			var virtual [2]*noted // by the Barrier alone, and by the engine
			for i := range virtual {
				virtual[i] = &noted{atVersion: &atVersion{plans: test.changes}}
				if _, err := sim.Run(sim.Config{Times: times, Plan: parse(test.plan), Engine: i == 1, Pilot: virtual[i], Learner: still{}, Batch: batch, Limit: time.Minute}); err != nil {
					t.Fatal(err)
				}
			}
			play(t, Config{MaxWorkers: n, Steps: steps, Plan: parse(test.plan), Pilot: &atVersion{plans: test.changes}}, func(w *world) {
				w.server(0, 2, false)
				for rank := range n {
					w.worker(rank, func(f *fakeWorker) {
						f.dies = func(phase string, _ wire.Release) bool {
							if phase == "released" {
								f.pace = times.Spend(f.rank, f.step, 0, 1).Compute
							}
							return false
						}
					})
				}
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				begun := w.lines("train")[0]["t"].(float64)
				var real []fired
				for _, l := range w.lines("fire") {
					f := fired{at: time.Duration(math.Round((l["t"].(float64) - begun) * 1e9)), version: int64(l["version"].(float64))}
					for _, v := range l["workers"].([]any) {
						f.workers = append(f.workers, int(v.(float64)))
					}
					slices.Sort(f.workers)
					if len(f.workers) > 0 {
						real = append(real, f)
					}
				}
				real = real[:len(real)*3/4] // towards the end there are no batches for all workers
				if len(real) < 40 {
					t.Fatalf("%d updates are too few to compare", len(real))
				}
				for i, f := range real {
					for _, v := range virtual {
						if v := v.fires[i]; v.String() != f.String() {
							t.Fatalf("update %d: the coordinator at %v, the simulator at %v", i, f, v)
						}
					}
				}
			})
		})
	}
}
