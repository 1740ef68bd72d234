package coord

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"star"
	"star/coord/session"
	"star/modes"
	"star/sim"
	"star/transport/wire"
)

// trainInParts is train for a plan with a queue: the pace is that of an equal share.
func (f *fakeWorker) trainInParts() error {
	orders := make(chan session.Order, 16)
	var stopped atomic.Int64
	go func() {
		defer close(orders)
		for {
			o, err := f.m.Order()
			switch {
			case err != nil:
				return
			case o.Kind == wire.KindCancel:
				stopped.Store(o.Cancel.Step + 1)
			default:
				orders <- o
			}
		}
	}()
	for o := range orders {
		r := o.Release
		if o.Kind != wire.KindRelease {
			continue
		}
		if r.Action == wire.Stop || f.ask("released", r) {
			return nil
		}
		if r.Action != wire.Continue {
			n := (r.To - r.From) / 1000
			session.Say(f.m, wire.EvalResult{Worker: f.rank, Eval: r.Eval, Version: r.Version, LossSum: float64(n), Correct: n / 2, Count: n}, nil)
		}
		if r.Action == wire.Finish {
			continue
		}
		q := queuer{spans: []Span{{Start: r.Start, Count: r.Count}}}
		for _, p := range r.More {
			q.spans = append(q.spans, Span(p))
		}
		for done := 0; done < q.whole(); q.done = done {
			if done > 0 {
				if stopped.Load() > f.step {
					break
				}
				if f.ask("part", r) {
					return nil
				}
				if err := session.Say(f.m, wire.Computed{Worker: f.rank, Version: r.Version, Samples: done}, nil); err != nil {
					return err
				}
			}
			k := q.whole()
			if r.Part > 0 { // of one run of the stream
				end := 0
				for _, s := range q.spans {
					if end += s.Count; end > done {
						break
					}
				}
				k = min(r.Part, end-done)
			}
			time.Sleep(max(1, time.Duration(float64(f.pace)*float64(k)/float64(f.w.c.cfg.Batch))))
			done += k
		}
		f.w.stored(f.rank, f.step)
		if f.ask("pushed", r) {
			return nil
		}
		if err := session.Say(f.m, wire.Arrive{Record: star.Record{Worker: f.rank, Step: f.step, Basis: r.Version, Samples: q.done, Loss: 1}}, nil); err != nil {
			return err
		}
		f.step++
		f.used = append(f.used, q.first(q.done)...)
	}
	return nil
}

// once checks that every sample up to the limit is in one update of the run log.
func (w *world) once(limit int) {
	w.t.Helper()
	seen := make([]int, limit)
	held := map[int][]Span{}
	for _, l := range w.log("record", "fire") {
		if l["type"] == "record" {
			n := int(l["samples"].(float64))
			spans := []Span{}
			if more, ok := l["more"].([]any); ok {
				for i := 0; i < len(more); i += 2 {
					s := Span{Start: int64(more[i].(float64)), Count: int(more[i+1].(float64))}
					spans = append(spans, s)
					n -= s.Count
				}
			}
			held[int(l["worker"].(float64))] = append(spans, Span{Start: int64(l["start"].(float64)), Count: n})
			continue
		}
		for _, v := range l["workers"].([]any) {
			for _, s := range held[int(v.(float64))] {
				for k := range s.Count {
					seen[int(s.Start)+k]++
				}
			}
		}
	}
	for i, k := range seen {
		if k != 1 {
			w.t.Fatalf("sample %d of %d is in %d updates", i, limit, k)
		}
	}
}

// Whatever a worker does when it dies, the others compute the parts it had taken, and no sample is lost or used twice.
// Another one replaces it.
func TestQueueDeaths(t *testing.T) {
	plan, _ := modes.Parse("ssgd queue=4", 3)
	for _, phase := range []string{"released", "part", "pushed"} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprint(phase, again), func(t *testing.T) {
				play(t, Config{MaxWorkers: 3, Plan: plan, Steps: 20, EvalEvery: 5}, func(w *world) {
					w.server(0, 2, false)
					var dead *fakeWorker
					for i := range 3 {
						f := w.worker(i, func(f *fakeWorker) {
							f.parts, f.pace = true, f.pace*time.Duration(1+i)
							if i == 1 {
								f.dies = func(at string, _ wire.Release) bool { return at == phase && f.step == 4 }
							}
						})
						if i == 1 {
							dead = f
						}
					}
					if again {
						<-dead.gone
						time.Sleep(time.Second)
						w.worker(1, func(f *fakeWorker) { f.parts = true })
					}
					w.finished(time.Hour)
					if w.err != nil {
						t.Fatal(w.err)
					}
					w.accounted(240)
					w.once(240)
					if w.result.Wasted != 0 {
						t.Errorf("%d samples wasted", w.result.Wasted)
					}
				})
			})
		}
	}
}

// The coordinator and the simulator take the same parts at the same nanosecond, through changes of plan.
func TestSimulatorQueuesTheSame(t *testing.T) {
	const n, steps, batch = 4, 80, 4
	parse := func(text string) modes.Plan {
		p, err := modes.Parse(text, n)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	changes := map[int64]modes.Plan{20: parse("ssgd queue=4"), 40: parse("ssgd queue=1"), 50: parse("ssgd queue=2")}
	times := uneven{n}
	virtual := &noted{atVersion: &atVersion{plans: changes}}
	if _, err := sim.Run(sim.Config{Times: times, Plan: parse("ssgd queue=2"), Engine: true, Pilot: virtual, Learner: still{}, Batch: batch, Limit: time.Minute}); err != nil {
		t.Fatal(err)
	}
	play(t, Config{MaxWorkers: n, Steps: steps, Plan: parse("ssgd queue=2"), Pilot: &atVersion{plans: changes}}, func(w *world) {
		w.server(0, 2, false)
		for rank := range n {
			w.worker(rank, func(f *fakeWorker) {
				f.parts = true
				f.dies = func(phase string, r wire.Release) bool {
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
		w.once(n * steps * batch)
		begun := w.lines("train")[0]["t"].(float64)
		fires := w.lines("fire")
		if fires = fires[:len(fires)*3/4]; len(fires) < 55 {
			t.Fatalf("%d updates are too few to compare", len(fires))
		}
		for i, l := range fires {
			f := fired{at: time.Duration(math.Round((l["t"].(float64) - begun) * 1e9)), version: int64(l["version"].(float64))}
			if v := virtual.fires[i]; v.at != f.at || v.version != f.version {
				t.Fatalf("update %d: the coordinator at %v, the simulator at %v", i, f, v)
			}
		}
	})
}

// queuer is a worker that takes parts.
type queuer struct {
	spans []Span // its lease
	done  int
}

func (q *queuer) whole() (n int) {
	for _, s := range q.spans {
		n += s.Count
	}
	return n
}

// first are the first n samples of its lease.
func (q *queuer) first(n int) (out []Span) {
	for _, s := range q.spans {
		if k := min(n, s.Count); k > 0 {
			out = append(out, Span{Start: s.Start, Count: k})
			n -= k
		}
	}
	return out
}
