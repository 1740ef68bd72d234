package chaos

import (
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/engine/rehearsal"
	"star/modes"
)

// rehearsedRings are the modes of rings; the seed selects one. In the last three the first members close the rounds.
var rehearsedRings = []string{"ssgd", "ring-minus=3", "groups=0-1+2,3", "ssgd queue=2", "ssgd local=2 outer=nesterov", "ssgd local=4 outer=nesterov fragments=2", "backup=1 micro=3 cap=1h", "x=2 micro=3 cap=1h", "ssgd micro=3 cap=1h"}

// RehearsableRings are the promises that a rehearsal of a ring checks.
var RehearsableRings = []string{
	"one lineage of versions: every member has applied what a version counts, and a new coordinator does not change it",
	"all members have added up the same, in the same order",
	"every sample once: none is lost at the end, none is counted twice; where rounds are closed, none is applied twice",
	"all members get the same description of a ring, and are released with the version that they have",
	"no stall: every member reaches the end, with the parameters",
}

// exchanges is the mean time that members of a ring need for a vector.
const exchanges = 3 * time.Millisecond

// arena is a rehearsal of an all-reduce. coord/engine/rehearsal has its members and lists the possible events; arena
// draws their times, together with the schedule of faults. Way 0 is that of the coordinator, way 1+w those that worker
// w has opened to others, as for a real job (docs/chaos.md).
type arena struct {
	Rehearsal
	*clock
	ring    *rehearsal.Ring
	pending map[act]bool
	frozen  []time.Duration // by worker: stopped until then
	silent  []time.Duration // by way: no message passes until then
	slow    []time.Duration // by way: messages take longer until then
	factor  []float64
	back    []bool // by worker: another worker will take its rank

	plan   modes.Plan // of the job; while others are in force
	closes bool       // it has rounds that are closed: its coordinator has no successor
	failed int64      // the version at which an exchange failed last
}

// act is one of rehearsal.Act.
type act struct {
	worker star.Worker
	kind   rehearsal.Kind
}

func newArena(r Rehearsal, c *clock) *arena {
	return &arena{Rehearsal: r, clock: c, pending: map[act]bool{}, failed: -1, back: make([]bool, r.Workers), frozen: make([]time.Duration, r.Workers),
		silent: make([]time.Duration, 1+r.Workers), slow: make([]time.Duration, 1+r.Workers), factor: make([]float64, 1+r.Workers)}
}

func (w *arena) begin() {
	w.plan = w.mode(pick(w.rnd, rehearsedRings))
	w.closes = w.plan.Micro > 0
	c := engine.Config{Plan: w.plan, Workers: w.Workers, Batch: rehearsedBatch, Limit: w.Steps * int64(w.Workers) * rehearsedBatch * int64(max(1, w.plan.Steps(0, rehearsedBatch))),
		Ring: new(engine.RingConfig), MaxParams: 1 << 20}
	if late := w.rnd.IntN(2 * w.Workers); late < w.Workers { // half of the jobs begin without one worker
		c.Absent = []star.Worker{star.Worker(late)}
		w.comeBack(star.Worker(late))
	}
	w.ring = rehearsal.NewRing(rehearsal.Config{Config: c, Broken: broken,
		Draw: func(low, high int, _ string) int { return low + w.rnd.IntN(high-low+1) },
		Lost: func(why string) { broken("%s", why) }})
}

func (w *arena) version() int64 { return w.ring.Engine.View().Version }

func (w *arena) over() bool { return w.ring.Over() && len(w.ring.Acts()) == 0 }

func (w *arena) stuck() { w.compare() }

func (w *arena) compare() { w.ring.Check() }

// next schedules possible events, and the return of workers that have left.
func (w *arena) next() {
	for _, a := range w.ring.Acts() {
		if k := (act{a.Worker, a.Kind}); !w.pending[k] {
			w.pending[k] = true
			w.at(w.now+w.takes(k), func() { w.do(k) })
		}
	}
	for i := range star.Worker(w.Workers) {
		if !w.ring.Alive(i) && !w.back[i] {
			w.comeBack(i)
		}
	}
}

// way is the way that an act needs; -1: none.
func (k act) way() int {
	switch k.kind {
	case rehearsal.Hear, rehearsal.Heed:
		return 0
	case rehearsal.Exchange:
		return 1 + int(k.worker)
	default:
		return -1
	}
}

// takes is the duration of an act.
func (w *arena) takes(k act) time.Duration {
	mean := typicalDelay
	switch k.kind {
	case rehearsal.Work:
		mean = computes
	case rehearsal.Exchange:
		mean = exchanges
	case rehearsal.Miss, rehearsal.Mend:
		return noticed
	}
	if i := k.way(); i >= 0 && w.now < w.slow[i] {
		mean = time.Duration(float64(mean) * w.factor[i])
	}
	return w.after(mean)
}

// do executes an act if it is still possible and its way is open.
func (w *arena) do(k act) {
	until := time.Duration(0)
	if k.kind != rehearsal.Hear && k.kind != rehearsal.Miss && k.kind != rehearsal.Mend {
		until = w.frozen[k.worker]
	}
	if i := k.way(); i >= 0 {
		until = max(until, w.silent[i])
	}
	if w.now < until {
		w.at(until+w.after(typicalDelay), func() { w.do(k) })
		return
	}
	delete(w.pending, k)
	acts := w.ring.Acts()
	if i := slices.IndexFunc(acts, func(a rehearsal.Act) bool { return a.Worker == k.worker && a.Kind == k.kind }); i >= 0 {
		acts[i].Do()
	}
}

// comeBack starts another worker at a rank once its previous worker has nothing in flight.
func (w *arena) comeBack(i star.Worker) {
	w.back[i] = true
	var try func()
	try = func() {
		if !w.ring.Come(i) {
			w.at(w.now+again, try)
			return
		}
		w.back[i] = false
	}
	w.at(w.now+w.after(returns), try)
}

// fail makes the exchange of a worker fail, unless no round was made since the last failure: a ring that fails
// repeatedly ends the job.
func (w *arena) fail(i int) {
	if k := star.Worker(i); w.ring.Busy(k) && w.version() != w.failed {
		w.failed = w.version()
		suspect := w.rnd.IntN(w.Workers+1) - 1
		if suspect == i {
			suspect = -1
		}
		w.ring.Fail(k, suspect)
	}
}

// suffer inflicts a fault.
func (w *arena) suffer(f Fault) {
	if w.ring.Over() {
		return
	}
	switch f.Kind {
	case Kill, Term:
		if k := star.Worker(f.Target); w.ring.Alive(k) && w.ring.Spare(k) {
			w.ring.Kill(k)
		}
	case Pause:
		w.frozen[f.Target] = w.now + f.For
	case StopAndGo:
		for at := time.Duration(0); at < f.For; at += time.Second {
			w.at(w.now+at, func() { w.frozen[f.Target] = w.now + 800*time.Millisecond })
		}
	case Cut, Corrupt:
		if f.Target == 0 { // a worker that loses its coordinator returns as a new one
			w.suffer(Fault{Kind: Kill, Target: w.rnd.IntN(w.Workers)})
		} else {
			w.fail(f.Target - 1)
		}
	case Silence:
		w.silent[f.Target] = w.now + f.For
		if f.Target > 0 {
			w.at(w.now+givenUp, func() {
				if w.now < w.silent[f.Target] {
					w.fail(f.Target - 1)
				}
			})
		}
	case SlowLink:
		w.slow[f.Target], w.factor[f.Target] = w.now+f.For, 1e6/float64(f.Rate)
	case Server, Takeover:
		if !w.closes {
			w.ring.TakeOver()
		}
	case Mode:
		// A worker that dies while another ring takes over may be the only member with the parameters.
		if !w.ring.Whole() {
			return
		}
		other := pick(w.rnd, rehearsedRings[:5])
		if w.closes {
			other = pick(w.rnd, rehearsedRings)
		}
		w.ring.Install(w.mode(other))
		var restore func()
		restore = func() {
			if !w.ring.Whole() {
				w.at(w.now+again, restore)
				return
			}
			w.ring.Install(w.plan)
		}
		w.at(w.now+f.For, restore)
	}
}
