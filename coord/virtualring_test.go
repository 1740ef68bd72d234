package coord

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"star"
	"star/allreduce"
	"star/coord/session"
	"star/modes"
	"star/sim"
	"star/transport/wire"
)

// pool plays the workers of a ring on fake time, in one goroutine: they compute as long as times says, in parts if the
// plan has them (with a queue: until it is empty), exchange when all members are ready, which takes as long as a model
// says, and add what riders have sent by then.
type pool struct {
	w     *world
	times sim.Times
	took  func(members int) time.Duration
	does  chan func()
	ws    []*pooled
	left  int

	abandoned int // rings that were abandoned, each counted by every worker that was told
}

type pooled struct {
	m           *session.Member
	rank        star.Worker
	queue       []session.Order
	ring        wire.Ring
	version     int64
	state       string // idle, forms, computes, waits, adds
	rel         wire.Release
	step, ticks int64
	done, life  int
	closed      bool
	brought     map[star.Worker]wire.Release
}

const poolBytes = 1 << 20

func newPool(w *world, times sim.Times, n int) *pool {
	model := allreduce.DefaultModel()
	p := &pool{w: w, times: times, does: make(chan func(), 1024), left: n, took: func(n int) time.Duration {
		return time.Duration(model.Seconds(model.Choose(n, poolBytes), n, poolBytes) * 1e9)
	}}
	var joined sync.WaitGroup
	joined.Add(n)
	for rank := range n {
		x := &pooled{rank: star.Worker(rank), state: "idle", brought: map[star.Worker]wire.Release{}}
		p.ws = append(p.ws, x)
		w.wg.Go(func() {
			h, e := hello(rank), enrolment
			h.Addr, e.Rule = fmt.Sprintf("meet%d,door%d", rank, rank), "sgd"
			m, err := w.join(h, e)
			x.m = m
			joined.Done()
			if err != nil {
				w.t.Errorf("worker %d: %v", rank, err)
				p.does <- func() { p.left-- }
				return
			}
			m.Beat()
			session.Say(m, wire.Joined{Worker: x.rank}, nil)
			for over := false; !over; {
				o, err := m.Order()
				if err != nil {
					w.t.Errorf("worker %d: %v", rank, err)
				}
				over = err != nil || o.Kind == wire.KindRelease && o.Release.Action == wire.Stop
				last := over
				p.does <- func() {
					if last {
						p.left--
						m.Close()
						return
					}
					p.hears(x, o)
				}
			}
		})
	}
	w.wg.Go(func() {
		joined.Wait()
		for p.left > 0 {
			(<-p.does)()
			for _, x := range p.ws {
				p.goOn(x)
			}
		}
	})
	return p
}

func (p *pool) hears(x *pooled, o session.Order) {
	switch {
	case o.Kind == wire.KindClose:
		if x.rel.Version == o.Close.Version && (x.state == "computes" || x.state == "waits") {
			x.closed = true
			p.exchange(x.ring, x.rel.Version)
		}
	case o.Kind == wire.KindRing && o.Ring.Now:
		x.queue, x.state, x.brought = []session.Order{o}, "idle", map[star.Worker]wire.Release{}
		x.life++
		p.abandoned++
	default:
		x.queue = append(x.queue, o)
	}
}

func (p *pool) goOn(x *pooled) {
	for x.state == "idle" && len(x.queue) > 0 {
		o := x.queue[0]
		x.queue = x.queue[1:]
		switch member := slices.Contains(x.ring.Members, x.rank); {
		case o.Kind == wire.KindRing:
			if x.ring = o.Ring; slices.Contains(x.ring.Members, x.rank) {
				x.state = "forms"
				p.form(x.ring)
			}
		case o.Release.Action == wire.Finish:
			session.Say(x.m, wire.EvalResult{Worker: x.rank, Eval: o.Release.Eval, Version: x.version, Count: 1}, nil)
		case !member && o.Release.Start == x.rel.Start && x.done > 0:
			p.bring(x) // the same gradient, to another parent
		default:
			x.rel, x.done, x.closed, x.state = o.Release, 0, false, "computes"
			x.life++
			p.compute(x)
		}
	}
}

func (p *pool) form(r wire.Ring) {
	version := int64(0)
	for _, w := range r.Members {
		if x := p.ws[w]; x.state != "forms" || x.ring.Generation != r.Generation {
			return
		}
		version = max(version, p.ws[w].version)
	}
	for _, w := range r.Members {
		p.ws[w].state, p.ws[w].version = "idle", version
		session.Say(p.ws[w].m, wire.Formed{Worker: w, Generation: r.Generation, Version: version}, nil)
	}
}

func (p *pool) compute(x *pooled) {
	if x.rel.Count == 0 {
		p.computed(x)
		return
	}
	whole := p.times.Spend(x.rank, x.ticks, 0, float64(x.rel.Count)/4).Compute
	x.ticks++
	life, ends := x.life, partEnds(x.rel)
	var next func()
	next = func() {
		end := ends[0]
		ends = ends[1:]
		time.AfterFunc(time.Duration(float64(whole)*float64(end-x.done)/float64(x.rel.Count)), func() {
			p.does <- func() {
				if x.life != life {
					return
				}
				if x.done = end; len(ends) == 0 || x.closed {
					p.computed(x)
					return
				}
				if x.rel.Part > 0 {
					session.Say(x.m, wire.Computed{Worker: x.rank, Generation: x.ring.Generation, Version: x.rel.Version, Samples: x.done}, nil)
				}
				next()
			}
		})
	}
	next()
}

// partEnds are how many samples a worker has after each part of what it was released with.
func partEnds(rel wire.Release) (ends []int) {
	if rel.Part == 0 {
		k := max(1, min(rel.Micro, rel.Count)) // parts end at i·n/k
		for i := range k {
			ends = append(ends, (i+1)*rel.Count/k)
		}
		return ends
	}
	done := 0
	for _, s := range append([]wire.Piece{{Start: rel.Start, Count: rel.Count}}, rel.More...) {
		for at := rel.Part; at < s.Count; at += rel.Part {
			ends = append(ends, done+at)
		}
		done += s.Count
		ends = append(ends, done)
	}
	return ends
}

func (p *pool) computed(x *pooled) {
	if !slices.Contains(x.ring.Members, x.rank) {
		x.state = "idle"
		session.Say(x.m, wire.Arrive{Record: star.Record{Worker: x.rank, Step: x.step, Basis: x.rel.Version, Samples: x.done, Loss: 1}}, nil)
		x.step++
		p.bring(x)
		return
	}
	x.state = "waits"
	if tell := x.ring.Tell; tell > 0 && x.rel.Micro == 0 && x.rel.Part == 0 {
		life := x.life
		time.AfterFunc(tell, func() {
			p.does <- func() {
				if x.life == life && x.state == "waits" {
					session.Say(x.m, wire.Computed{Worker: x.rank, Generation: x.ring.Generation, Version: x.rel.Version, Samples: x.done}, nil)
				}
			}
		})
	}
	if x.rel.Micro > 0 {
		session.Say(x.m, wire.Computed{Worker: x.rank, Generation: x.ring.Generation, Version: x.rel.Version, Samples: x.done}, nil)
	}
	p.exchange(x.ring, x.rel.Version)
}

func (p *pool) bring(x *pooled) {
	for _, r := range x.ring.Riders {
		if r.Worker == x.rank {
			p.ws[r.Parent].brought[x.rank] = x.rel
		}
	}
}

func (p *pool) exchange(r wire.Ring, version int64) {
	for _, w := range r.Members {
		x := p.ws[w]
		if x.state != "waits" || x.rel.Version != version || x.rel.Micro > 0 && !x.closed {
			return
		}
	}
	var carried []wire.Gradient
	var drawn []int // from the queue, by member
	for _, w := range r.Members {
		x := p.ws[w]
		x.state = "adds"
		if x.rel.Part > 0 {
			drawn = append(drawn, x.done)
		}
		for _, rider := range r.Riders {
			if rel, ok := x.brought[rider.Worker]; ok {
				carried = append(carried, wire.Gradient{Worker: rider.Worker, Step: rel.Start, Weight: float32(rel.Count) / float32(r.Of)})
				delete(x.brought, rider.Worker)
			}
		}
	}
	time.AfterFunc(p.took(len(r.Members)), func() {
		p.does <- func() {
			for _, w := range r.Members {
				x := p.ws[w]
				x.state, x.version = "idle", version+1
				if x.done > 0 {
					session.Say(x.m, wire.Arrive{Record: star.Record{Worker: w, Step: x.step, Basis: version, Samples: x.done, Loss: 1}}, nil)
					x.step++
				}
				session.Say(x.m, wire.Tally{Worker: w, Generation: r.Generation, Version: x.version, Carried: carried, Samples: drawn}, nil)
			}
		}
	})
}

// The coordinator of a ring, with its goroutines, connections and fake time, and the simulator make the same versions
// of the same workers' gradients at the same nanosecond: with riders, closed rounds, queues and changes of plan.
func TestSimulatorMakesTheSameRounds(t *testing.T) {
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
		{"ring-minus=3", nil},
		{"groups=0-1+2,3", nil},
		{"backup=1 micro=4 cap=1h", nil},
		{"x=2 micro=2 cap=1h", nil},
		{"ssgd queue=4", nil},
		{"ring-minus=3", map[int64]modes.Plan{5: parse("ssgd queue=2"), 14: parse("ssgd queue=3 shares=5,3,3,5"), 23: parse("ring-minus=1,2"), 28: parse("ssgd queue=4"), 37: parse("ssgd")}},
		{"ssgd", map[int64]modes.Plan{5: parse("ring-minus=3"), 12: parse("ring-minus=0,3"), 20: parse("ssgd"), 27: parse("backup=1 micro=4 cap=1h"), 35: parse("ring-minus=2")}},
	} {
		t.Run(fmt.Sprint(test.plan, len(test.changes)), func(t *testing.T) {
			times := uneven{n}
			virtual := &noted{atVersion: &atVersion{plans: test.changes}}
			if _, err := sim.Run(sim.Config{Times: times, Plan: parse(test.plan), Pilot: virtual, Learner: still{}, Batch: batch, Bytes: poolBytes, Ring: new(sim.Ring), Engine: true, Limit: time.Minute}); err != nil {
				t.Fatal(err)
			}
			play(t, Config{MaxWorkers: n, Steps: steps, Plan: parse(test.plan), Pilot: &atVersion{plans: test.changes}, Ring: &RingConfig{Rule: "sgd"}}, func(w *world) {
				w.server(0, 0, false)
				p := newPool(w, times, n)
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				if p.abandoned > 0 {
					t.Errorf("workers were told %d times that a ring has failed", p.abandoned)
				}
				var real []fired
				begun := w.lines("train")[0]["t"].(float64)
				for _, l := range w.lines("fire") {
					f := fired{at: time.Duration(math.Round((l["t"].(float64) - begun) * 1e9)), version: int64(l["version"].(float64))}
					for _, v := range l["workers"].([]any) {
						f.workers = append(f.workers, int(v.(float64)))
					}
					slices.Sort(f.workers)
					real = append(real, f)
				}
				real = real[:len(real)*3/4] // towards the end there are no batches for all workers
				if len(real) < 30 {
					t.Fatalf("%d updates are too few to compare", len(real))
				}
				for i, f := range real {
					if v := virtual.fires[i]; v.String() != f.String() {
						t.Fatalf("update %d: the coordinator at %v, the simulator at %v", i, f, v)
					}
				}
			})
		})
	}
}
