package coord

import (
	"fmt"
	"slices"

	"star"
	"star/modes"
	"star/transport"
)

// Scale says what c is in the update rule w ← w − η·Σ cᵢ·gᵢ (docs/modes.md).
type Scale string

const (
	// ScaleRound is bᵢ/B, with B the samples of one full round of all workers:
	// 1/N with equal shares. A gradient counts the same in every mode.
	ScaleRound Scale = "n"

	// ScaleFiring is bᵢ/Σb of the gradients of the same update: their mean.
	ScaleFiring Scale = "firing"

	// ScaleDamped is ScaleRound divided by 1 + staleness in updates.
	ScaleDamped Scale = "damped"
)

// Valid reports whether s is one of the scales; the empty one means ScaleRound.
func (s Scale) Valid() bool {
	return s == "" || s == ScaleRound || s == ScaleFiring || s == ScaleDamped
}

// ledger turns what workers and shards report into Fires and Releases: it owns
// the Barrier, the cursor of the sample stream and the account of every worker.
// It is pure: no I/O, no clock, no goroutine. Only the coordinator's goroutine
// uses it.
//
//	        release                arrive + K × stored             firing
//	parked ─────────► computing ───────────────────────► waiting ─────────► computing
//	   ▲                                                    │    no samples left
//	   └────────────────────────────────────────────────────┘
type ledger struct {
	plan    modes.Plan
	barrier *modes.Barrier
	shards  int
	batch   int // samples of one worker in one iteration, where the plan has no shares
	scale   Scale
	norm    bool // Fires ask for the norm first

	cursor int64  // next position of the sample stream
	limit  int64  // end of the stream
	redo   []Span // behind the cursor, but to be handed out again: their worker is gone
	used   int64  // samples of gradients that were applied
	waste  int64  // samples of gradients that were dropped
	seq    int64

	accounts  []account
	staleness map[int64]int64 // updates between read and applied, over all gradients

	out []order // reused
}

// account is what the ledger knows of one worker.
type account struct {
	live    bool // a member of the job
	counted bool // the barrier counts on it
	parked  bool // has no batch: waits for the end
	arrived bool // its Arrive for the present step is in
	waiting bool // its gradient is complete and not yet fired
	step    int64
	basis   int64
	start   int64
	count   int // samples of the present batch
	stored  []bool
	nstored int
}

// order is one consequence: a Fire for every shard (if it has a Seq), then the
// Releases that follow from it.
type order struct {
	fire     transport.Fire
	releases []transport.Release
}

func newLedger(plan modes.Plan, workers, shards, batch int, limit int64) *ledger {
	l := &ledger{
		plan:      plan,
		barrier:   modes.NewBarrier(plan, workers, 0),
		shards:    shards,
		batch:     batch,
		limit:     limit,
		accounts:  make([]account, workers),
		staleness: map[int64]int64{},
	}
	for i := range l.accounts {
		l.accounts[i] = account{live: true, counted: true, parked: true, stored: make([]bool, shards)}
	}
	return l
}

// resume goes on where a checkpoint left off. Before begin.
func (l *ledger) resume(p Progress) {
	l.cursor, l.used = p.Cursor, p.Samples
	l.redo = slices.Clone(p.Redo)
	l.barrier = modes.NewBarrier(l.plan, len(l.accounts), p.Version)
}

// progress is what a checkpoint at the present version must remember: batches
// that are out, and not in this version, are to be handed out again.
func (l *ledger) progress() Progress {
	p := Progress{Version: l.barrier.Version(), Samples: l.used, Cursor: l.cursor, Redo: slices.Clone(l.redo)}
	for i := range l.accounts {
		if a := &l.accounts[i]; a.live && !a.parked {
			p.Redo = append(p.Redo, Span{a.start, a.count})
		}
	}
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// begin releases every worker with the parameters of the given version.
func (l *ledger) begin() []order {
	l.out = l.out[:0]
	var rs []transport.Release
	for w := range l.accounts {
		if !l.accounts[w].live {
			continue
		}
		if r, ok := l.release(star.Worker(w), l.barrier.Version()); ok {
			r.Pull = l.shards > 0
			rs = append(rs, r)
		}
	}
	l.out = append(l.out, order{releases: rs})
	l.idle()
	return l.out
}

// release hands worker w its next batch. It reports false when the stream is
// used up, and parks the worker.
func (l *ledger) release(w star.Worker, version int64) (transport.Release, bool) {
	a := &l.accounts[w]
	a.arrived, a.waiting, a.nstored = false, false, 0
	clear(a.stored)
	a.basis = version
	next, ok := l.take(l.plan.Share(w, l.batch))
	if !ok {
		a.parked = true
		return transport.Release{}, false
	}
	a.parked = false
	a.start, a.count = next.Start, next.Count
	return transport.Release{Worker: w, Version: version, Start: a.start, Count: a.count}, true
}

// take is the next piece of the stream, of at most n samples.
func (l *ledger) take(n int) (Span, bool) {
	if len(l.redo) > 0 {
		s := &l.redo[0]
		got := Span{s.Start, min(n, s.Count)}
		s.Start, s.Count = s.Start+int64(got.Count), s.Count-got.Count
		if s.Count == 0 {
			l.redo = l.redo[1:]
		}
		return got, true
	}
	n = int(min(int64(n), l.limit-l.cursor))
	if n <= 0 {
		return Span{}, false
	}
	got := Span{l.cursor, n}
	l.cursor += int64(n)
	return got, true
}

// wake gives parked workers what is to be done again.
func (l *ledger) wake() {
	var o order
	for w := range l.accounts {
		a := &l.accounts[w]
		if len(l.redo) == 0 {
			break
		}
		if !a.live || !a.parked {
			continue
		}
		l.barrier.Join(star.Worker(w))
		a.counted = true
		r, _ := l.release(star.Worker(w), l.barrier.Version())
		r.Pull = l.shards > 0
		o.releases = append(o.releases, r)
	}
	if len(o.releases) > 0 {
		l.out = append(l.out, o)
	}
}

// idle takes parked workers out of the barrier, so that nobody waits for them.
func (l *ledger) idle() {
	for again := true; again; {
		again = false
		for w := range l.accounts {
			if a := &l.accounts[w]; a.parked && a.counted {
				a.counted = false
				l.fire(l.barrier.Leave(star.Worker(w))) // may park others
				again = true
			}
		}
	}
}

// arrive notes that worker w says it has pushed the gradient of a step.
func (l *ledger) arrive(w star.Worker, step int64, samples int) ([]order, error) {
	a := &l.accounts[w]
	switch {
	case !a.live || a.parked:
		return nil, fmt.Errorf("worker %d sent a gradient without having been released", w)
	case a.arrived:
		return nil, fmt.Errorf("worker %d sent step %d although its step %d is not released yet", w, step, a.step)
	case step != a.step:
		return nil, fmt.Errorf("worker %d sent step %d, expected step %d", w, step, a.step)
	case samples != a.count:
		return nil, fmt.Errorf("worker %d sent a gradient over %d samples, expected %d", w, samples, a.count)
	}
	a.arrived = true
	return l.complete(w), nil
}

// store notes that a shard holds the gradient of worker w's step.
func (l *ledger) store(shard int, w star.Worker, step int64) ([]order, error) {
	if shard < 0 || shard >= l.shards {
		return nil, fmt.Errorf("stored by shard %d, of %d", shard, l.shards)
	}
	if int(w) < 0 || int(w) >= len(l.accounts) {
		return nil, fmt.Errorf("shard %d stored a gradient of worker %d, of %d", shard, w, len(l.accounts))
	}
	a := &l.accounts[w]
	if !a.live || step != a.step || a.stored[shard] {
		return nil, nil // of a worker that is gone, or of one that came back
	}
	a.stored[shard] = true
	a.nstored++
	return l.complete(w), nil
}

// complete tells the barrier when a gradient has arrived: the worker says so
// and every shard holds it.
func (l *ledger) complete(w star.Worker) []order {
	l.out = l.out[:0]
	a := &l.accounts[w]
	if !a.arrived || a.nstored < l.shards || a.waiting {
		return nil
	}
	a.waiting = true
	l.fire(l.barrier.Arrive(w))
	l.idle()
	return l.out
}

// leave forgets a worker. What it had not finished others will do.
func (l *ledger) leave(w star.Worker) []order {
	l.out = l.out[:0]
	a := &l.accounts[w]
	if !a.live {
		return nil
	}
	a.live = false
	if !a.parked {
		l.redo = append(l.redo, Span{a.start, a.count})
	}
	if a.waiting { // every shard holds it: have it thrown away
		l.seq++
		l.out = append(l.out, order{fire: transport.Fire{
			Seq: l.seq, Version: l.barrier.Version(), Samples: l.used,
			Dropped: []transport.Gradient{{Worker: w, Step: a.step}},
			Quiet:   []star.Worker{w},
		}})
	}
	a.parked, a.arrived, a.waiting = true, false, false
	l.idle()
	l.wake()
	return l.out
}

// install changes the plan. Nobody who waits is stranded.
func (l *ledger) install(p modes.Plan) []order {
	l.out = l.out[:0]
	l.plan = p
	l.fire(l.barrier.Install(p))
	l.idle()
	return l.out
}

// round is the samples of one iteration of all live workers: B of the rule.
// Workers that only wait for the end count, those that are gone do not.
func (l *ledger) round() int64 {
	var b int64
	for w := range l.accounts {
		if l.accounts[w].live {
			b += int64(l.plan.Share(star.Worker(w), l.batch))
		}
	}
	return b
}

func (l *ledger) fire(fs []modes.Firing) {
	for _, f := range fs {
		l.seq++
		o := order{fire: transport.Fire{Seq: l.seq, Version: f.Version, Samples: l.used, NormFirst: l.norm && len(f.Workers) > 0}}
		var total int64
		for _, w := range f.Workers {
			total += int64(l.accounts[w].count)
		}
		for _, w := range f.Workers {
			a := &l.accounts[w]
			stale := f.Version - 1 - a.basis
			l.staleness[stale]++
			o.fire.Gradients = append(o.fire.Gradients, transport.Gradient{
				Worker: w, Step: a.step, Weight: l.weight(a.count, total, stale),
			})
		}
		// Shards add gradients in this order. Sorted, so that the bits do not
		// depend on who came first.
		slices.SortFunc(o.fire.Gradients, func(a, b transport.Gradient) int { return int(a.Worker - b.Worker) })
		for _, w := range f.Dropped {
			o.fire.Dropped = append(o.fire.Dropped, transport.Gradient{Worker: w, Step: l.accounts[w].step})
			l.waste += int64(l.accounts[w].count)
		}
		l.used += total
		for _, ws := range [2][]star.Worker{f.Workers, f.Dropped} {
			for _, w := range ws {
				l.accounts[w].step++
				if r, ok := l.release(w, f.Version); ok {
					o.releases = append(o.releases, r)
				} else {
					o.fire.Quiet = append(o.fire.Quiet, w)
				}
			}
		}
		l.out = append(l.out, o)
	}
}

func (l *ledger) weight(samples int, firing, stale int64) float32 {
	switch l.scale {
	case ScaleFiring:
		return float32(float64(samples) / float64(firing))
	case ScaleDamped:
		return float32(float64(samples) / float64(l.round()) / float64(1+max(stale, 0)))
	default:
		return float32(float64(samples) / float64(l.round()))
	}
}

// drained reports whether every live worker is parked: no gradient is on the way.
func (l *ledger) drained() bool {
	for i := range l.accounts {
		if a := &l.accounts[i]; a.live && !a.parked {
			return false
		}
	}
	return true
}

// live counts the members.
func (l *ledger) live() int {
	n := 0
	for i := range l.accounts {
		if l.accounts[i].live {
			n++
		}
	}
	return n
}

// computing lists the workers that have a batch and whose gradient is not complete.
func (l *ledger) computing() []star.Worker {
	var ws []star.Worker
	for i := range l.accounts {
		if a := &l.accounts[i]; a.live && !a.parked && !a.waiting {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}
