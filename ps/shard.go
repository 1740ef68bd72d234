package ps

import (
	"cmp"
	"fmt"
	"slices"

	"star"
	"star/internal/exactsum"
	"star/internal/kernel"
	"star/internal/poison"
	"star/ps/rule"
	"star/transport/wire"
)

// Memory provides a Shard's vectors. All have the length of the shard.
type Memory interface {
	// Writable returns a vector for the next version of the parameters: params
	// itself if nothing reads it, else a spare one with undefined contents. In
	// the latter case params, from which the next version is computed, must
	// stay unchanged until Written.
	Writable(params []float32) []float32

	// Written reports that the next version is complete.
	Written()

	// Free takes back the vector of a gradient that was used or dropped.
	Free(vec []float32)
}

// EventKind is a kind of Event.
type EventKind uint8

const (
	// Updated: send Params of Version to Workers. It also follows a firing that
	// only drops gradients or only releases workers.
	Updated EventKind = iota + 1

	// Summed: the coordinator wants Squares of firing Seq, and the shard waits
	// for the norm of the whole direction (Apply).
	Summed

	// SaveDue: save Params of Version as Save asks. While the caller saves
	// something that updates change (the optimiser's state), it holds the
	// shard.
	SaveDue

	// Turned: the gradients of Workers[0] began to point against all others, or
	// ceased to, as Turn says. Only after Watch.
	Turned
)

// Event is something that a Shard did and that others must learn of.
type Event struct {
	Kind EventKind
	// Seq is the number of the firing.
	Seq     int64
	Version int64
	// Params is the shard's own and must not be written to.
	Params []float32
	// Workers and Squares are valid until the next call of Next.
	Workers []star.Worker
	Squares *exactsum.Squares
	Save    wire.Save

	// Dot and Ref are what a Rule that is a Scorer returned for the direction
	// of Summed. Ref is valid until the next call of Next, and nil with other
	// rules.
	Dot float64
	Ref *exactsum.Squares

	// Report says that the firing asked for Sum2, the sum of squares of the
	// direction.
	Report bool
	Sum2   float64

	Turn poison.Turn // for Turned
}

// Shard is the state machine of one range of the parameters.
//
//	Push, Fire, Apply, Save ──► queue ──► Next: Updated | Summed | SaveDue | Turned
//
//	firing:     queued ──Next──► done
//	NormFirst:  queued ──Next: Summed──► waits for the norm ──Apply, Next──► done
//	gradient:   stored ──Fire──► named ──Next: used or dropped──► freed
//	                   └─Forget─────────────────────────────────► freed
//
// Invariants:
//
//   - Firings are executed in order of their numbers, one for each call of Next.
//   - Parameters change only in Next. So between two events the caller can register a reader of
//     Params.
//   - A gradient that a queued firing names stays stored until that firing is executed.
//   - Version counts the firings that have gradients, applied or not.
//
// It does no I/O and uses no clock. One goroutine uses it.
//
// Errors are mistakes of the sender. After an error of Push the gradient is the
// caller's and the shard is unchanged. After an error of Fire or Apply this
// shard and the coordinator disagree about the past, and the shard is unusable.
type Shard struct {
	n    int
	rule rule.Rule
	// The optional interfaces that rule implements; else nil.
	fused    rule.Fused
	settler  rule.Settler
	meter    rule.Measurer
	witness  rule.Witness
	salvage  rule.Salvager
	personal rule.Personal
	descent  *rule.Descent // inside rule; makes outer steps

	// owed: call Settle with gradients before anything else.
	owed bool
	mem  Memory
	// params is nil until the shard is ready.
	params  []float32
	version int64

	// pending is by worker, oldest first.
	pending [][]pending
	// perWorker is how many gradients of one worker may be stored; 0 means 1.
	perWorker int

	// queue[head:] has the firings to execute.
	queue []firing
	head  int
	// last is the Seq of the last firing accepted, done that of the last one
	// completed.
	last int64
	done int64
	// target is the version after all accepted firings.
	target int64

	// saves are the requested checkpoints. held: Next does nothing (Hold).
	saves []wire.Save
	held  bool

	// parts are those of the gradients that the last firings took, by worker.
	parts []rule.Part

	// gradients are those of the firing in hand.
	gradients []rule.Gradient
	workers   []star.Worker
	squares   exactsum.Squares

	// angles is nil if directions are not compared.
	angles  *poison.Angles
	compare []poison.Gradient
	// turns are still to be reported.
	turns []poison.Turn
}

// pending is a stored gradient.
type pending struct {
	rule.Gradient
	// named: a queued firing uses or drops it.
	named bool
}

// firing is an accepted Fire and its progress.
type firing struct {
	wire.Fire
	// outer is the outer step that it makes; zero: none.
	outer rule.Outer
	// dir is the combined direction, with NormFirst.
	dir []float32
	// normed: Apply has given the norm, which is norm.
	normed bool
	norm   float64
	// factor multiplies the direction; 0: it is not applied.
	factor float32
}

// NewShard makes a shard of n elements, at least one. It is not ready until
// Load.
func NewShard(n int, r rule.Rule, mem Memory) *Shard {
	if n < 1 {
		panic("ps: a shard without elements")
	}
	fused, _ := r.(rule.Fused)
	settler, _ := r.(rule.Settler)
	meter, _ := r.(rule.Measurer)
	witness, _ := r.(rule.Witness)
	salvage, _ := r.(rule.Salvager)
	personal, _ := r.(rule.Personal)
	return &Shard{n: n, rule: r, fused: fused, settler: settler, descent: rule.Inner(r), meter: meter, witness: witness, salvage: salvage, personal: personal, mem: mem}
}

// Watch makes the shard compare the directions of gradients of one version that
// are applied together.
func (s *Shard) Watch() { s.angles = new(poison.Angles) }

// Load gives the shard its parameters. It keeps params. It may be called once.
func (s *Shard) Load(params []float32, version int64) {
	if s.params != nil {
		panic("ps: shard loaded twice")
	}
	if len(params) != s.n {
		panic("ps: the parameters are not as long as the shard")
	}
	s.params, s.version, s.target = params, version, version
}

// LoadAt is Load for a shard from another server, which has executed the
// firings up to seq.
func (s *Shard) LoadAt(params []float32, version, seq int64) {
	s.Load(params, version)
	s.last, s.done = seq, seq
}

// Done returns the number of the last completed firing.
func (s *Shard) Done() int64 { return s.done }

// Idle reports whether no firing and no checkpoint is queued.
func (s *Shard) Idle() bool { return s.head == len(s.queue) && len(s.saves) == 0 }

// Waiting returns the stored gradients, by worker. Their vectors are the
// shard's.
func (s *Shard) Waiting() []rule.Gradient {
	var gs []rule.Gradient
	for _, ps := range s.pending {
		for _, p := range ps {
			gs = append(gs, p.Gradient)
		}
	}
	return gs
}

// Ready reports whether the shard has its parameters.
func (s *Shard) Ready() bool { return s.params != nil }

// Version is the number of updates that made Params.
func (s *Shard) Version() int64 { return s.version }

// Params returns the current vector, nil before Load. It is borrowed: the next
// update writes to it unless Memory returns another one.
func (s *Shard) Params() []float32 { return s.params }

// Store sets how many gradients of one worker may be stored, for plans in which
// a worker continues at once (modes.Group.Again). Call it before the first
// Push.
func (s *Shard) Store(perWorker int) { s.perWorker = perWorker }

// Push stores a gradient of the whole shard. It keeps g.Vec until the firing
// that names it is executed. Unless Store allows more, a worker can have one
// gradient stored that no firing names: it waits for parameters before it
// computes the next one.
func (s *Shard) Push(g rule.Gradient) error {
	if s.params == nil {
		return fmt.Errorf("ps: worker %d pushed a gradient before the shard had parameters", g.Worker)
	}
	if len(g.Vec) != s.n {
		return fmt.Errorf("ps: worker %d pushed a gradient of %d elements to a shard of %d", g.Worker, len(g.Vec), s.n)
	}
	if g.Worker < 0 {
		return fmt.Errorf("ps: a gradient of worker %d, which is not a rank", g.Worker)
	}
	for int(g.Worker) >= len(s.pending) {
		s.pending = append(s.pending, nil)
	}
	p := &s.pending[g.Worker]
	// Count those that no firing names. Where a copy of the shard is behind the
	// others, one that a queued firing names may still be stored.
	waiting := 0
	for _, q := range *p {
		if !q.named {
			waiting++
		}
	}
	if k := len(*p); waiting >= max(1, s.perWorker) || k > 0 && g.Step <= (*p)[k-1].Step {
		return fmt.Errorf("ps: worker %d pushed step %d while its step %d is still waiting for a firing",
			g.Worker, g.Step, (*p)[k-1].Step)
	}
	*p = append(*p, pending{Gradient: g})
	return nil
}

// Pending returns the step of the last stored gradient of w; ok is false if
// none is stored.
func (s *Shard) Pending(w star.Worker) (step int64, ok bool) {
	if w < 0 || int(w) >= len(s.pending) || len(s.pending[w]) == 0 {
		return 0, false
	}
	return s.pending[w][len(s.pending[w])-1].Step, true
}

// find returns the stored gradient of a worker's step, or nil.
func (s *Shard) find(w star.Worker, step int64) *pending {
	if w < 0 || int(w) >= len(s.pending) {
		return nil
	}
	for i := range s.pending[w] {
		if p := &s.pending[w][i]; p.Step == step {
			return p
		}
	}
	return nil
}

// remove deletes the gradient of a worker's step from the store.
func (s *Shard) remove(w star.Worker, step int64) {
	s.pending[w] = slices.DeleteFunc(s.pending[w], func(p pending) bool { return p.Step == step })
}

// Forget drops the stored gradients of w, except those that a queued firing
// names.
//
// Do not call it because a worker's connection ended: the coordinator may have
// fired that gradient before it knew, and the other shards will apply it.
func (s *Shard) Forget(w star.Worker) {
	if w < 0 || int(w) >= len(s.pending) {
		return
	}
	s.pending[w] = slices.DeleteFunc(s.pending[w], func(p pending) bool {
		if !p.named {
			s.mem.Free(p.Vec)
		}
		return !p.named
	})
}

// Fire accepts a firing. It copies f. Every gradient that f uses must be stored
// here. One that f drops need not be: its worker may have died while pushing
// it.
func (s *Shard) Fire(f *wire.Fire) error {
	if s.params == nil {
		return fmt.Errorf("ps: firing %d came before the parameters", f.Seq)
	}
	if f.Seq != s.last+1 {
		return fmt.Errorf("ps: firing %d came after firing %d", f.Seq, s.last)
	}
	// A firing without gradients makes no version.
	want := s.target
	if len(f.Gradients) > 0 {
		want++
	}
	if r, ok := s.rule.(rule.Strider); f.Local > 0 && (!ok || !r.Strides() || f.NormFirst) {
		return fmt.Errorf("ps: firing %d combines %d local steps of workers, which the rule of this shard (%T) cannot", f.Seq, f.Local, s.rule)
	}
	outer, err := s.outward(f)
	if err != nil {
		return err
	}
	if f.Version != want {
		return fmt.Errorf("ps: firing %d of %d gradients makes version %d, expected %d",
			f.Seq, len(f.Gradients), f.Version, want)
	}
	for _, g := range f.Gradients {
		p := s.find(g.Worker, g.Step)
		step, ok := s.Pending(g.Worker)
		switch {
		case !ok:
			return fmt.Errorf("ps: firing %d names step %d of worker %d, which is not stored here", f.Seq, g.Step, g.Worker)
		case p == nil:
			return fmt.Errorf("ps: firing %d names step %d of worker %d, but step %d is stored here", f.Seq, g.Step, g.Worker, step)
		case p.named:
			return fmt.Errorf("ps: firing %d names step %d of worker %d, which a firing has named already", f.Seq, g.Step, g.Worker)
		case p.Of.Parts > 0 && outer.Kind != rule.OuterNesterov:
			return fmt.Errorf("ps: firing %d names step %d of worker %d, which is part of a distance, for an update with outer=%v; only nesterov takes parts", f.Seq, g.Step, g.Worker, outer)
		}
		p.named = true
	}
	for _, g := range f.Dropped {
		if p := s.find(g.Worker, g.Step); p != nil && !p.named {
			p.named = true
		}
	}
	q := s.enqueue()
	q.Seq, q.Version, q.Samples, q.NormFirst, q.Report, q.Local = f.Seq, f.Version, f.Samples, f.NormFirst, f.Report, f.Local
	q.outer = outer
	q.Gradients = append(q.Gradients[:0], f.Gradients...)
	q.Dropped = append(q.Dropped[:0], f.Dropped...)
	q.Quiet = append(q.Quiet[:0], f.Quiet...)
	q.dir, q.normed, q.norm, q.factor = nil, false, -1, 1
	slices.SortStableFunc(q.Gradients, func(a, b wire.Gradient) int { return cmp.Compare(a.Worker, b.Worker) })
	s.last, s.target = f.Seq, f.Version
	return nil
}

// outward returns the rule of the outer step of a firing; zero: the
// firing makes another update.
func (s *Shard) outward(f *wire.Fire) (o rule.Outer, err error) {
	if f.Outer == "" {
		return o, nil
	}
	if o, err = rule.ParseOuter(f.Outer); err != nil {
		return o, fmt.Errorf("ps: the outer step of firing %d: %w", f.Seq, err)
	}
	if s.descent == nil || s.personal != nil || f.NormFirst || o.Kind == rule.OuterMean {
		return o, fmt.Errorf("ps: firing %d makes the outer step %s, which the rule of this shard (%T) cannot", f.Seq, f.Outer, s.rule)
	}
	return o, nil
}

// enqueue returns a place at the end of the queue. It reuses its slices.
func (s *Shard) enqueue() *firing {
	if s.head == len(s.queue) {
		s.head, s.queue = 0, s.queue[:0]
	}
	if len(s.queue) < cap(s.queue) {
		s.queue = s.queue[:len(s.queue)+1]
	} else {
		s.queue = append(s.queue, firing{})
	}
	return &s.queue[len(s.queue)-1]
}

// Model returns what w is sent instead of Params after an update with its
// gradient, valid until the next call of Next; nil: Params.
func (s *Shard) Model(w star.Worker) []float32 {
	switch {
	case s.personal != nil:
		return s.personal.Model(w)
	case s.descent != nil:
		return s.descent.OuterModel(w)
	}
	return nil
}

// PartOf returns the part of the parameters that w exchanged with its last gradient that a firing took.
func (s *Shard) PartOf(w star.Worker) rule.Part {
	if int(w) >= len(s.parts) {
		return rule.Part{}
	}
	return s.parts[w]
}

// exchanged notes the part that a gradient is of.
func (s *Shard) exchanged(g *rule.Gradient) {
	for int(g.Worker) >= len(s.parts) {
		s.parts = append(s.parts, rule.Part{})
	}
	s.parts[g.Worker] = g.Of
}

// Read tells the rule that w is sent the current parameters other than by a
// firing.
func (s *Shard) Read(w star.Worker) {
	if s.witness != nil && s.params != nil {
		s.witness.Sent(w, s.params)
	}
}

// Apply gives a firing with NormFirst the norm of the whole direction and the
// factor by which the direction is multiplied. With factor 0 the parameters
// stay unchanged and still become a new version. It may come before this shard
// has summed the direction, if other shards have; then there is no Summed.
func (s *Shard) Apply(seq int64, norm, factor float64) error {
	for i := range s.queue[s.head:] {
		if f := &s.queue[s.head+i]; f.Seq == seq && f.NormFirst && !f.normed {
			f.normed, f.norm, f.factor = true, norm*factor, float32(factor)
			return nil
		}
	}
	return fmt.Errorf("ps: a norm came for firing %d, which does not wait for one (last completed: %d)", seq, s.done)
}

// Summed returns the firing that waits for its norm, which is that of the last
// Summed; ok is false if none does.
func (s *Shard) Summed() (seq int64, ok bool) {
	if s.head == len(s.queue) || s.queue[s.head].dir == nil || s.queue[s.head].normed {
		return 0, false
	}
	return s.queue[s.head].Seq, true
}

// Save requests a SaveDue after firing sv.Seq.
func (s *Shard) Save(sv wire.Save) error {
	if sv.Seq < s.done || s.params == nil {
		return fmt.Errorf("ps: checkpoint %s is of firing %d, but %d firings are done", sv.ID, sv.Seq, s.done)
	}
	s.saves = append(s.saves, sv)
	return nil
}

// Hold stops Next until Resume, while the caller reads what updates would
// change.
func (s *Shard) Hold() { s.held = true }

// Resume ends a Hold.
func (s *Shard) Resume() { s.held = false }

// Next executes the next thing that is due and returns its event. It returns
// false if nothing is due.
func (s *Shard) Next() (Event, bool) {
	// The last firing was announced before its rule had finished: finish it.
	if s.owed {
		s.settler.Settle(s.gradients)
		s.free(nil)
		s.owed = false
	}
	if len(s.turns) > 0 {
		t := s.turns[0]
		s.turns = s.turns[1:]
		s.workers = append(s.workers[:0], star.Worker(t.Worker))
		return Event{Kind: Turned, Seq: s.done, Version: s.version, Workers: s.workers, Turn: t}, true
	}
	if s.held || s.params == nil {
		return Event{}, false
	}
	// A checkpoint is due before the next firing changes the parameters.
	for i, sv := range s.saves {
		if sv.Seq <= s.done {
			s.saves = append(s.saves[:i], s.saves[i+1:]...)
			return Event{Kind: SaveDue, Seq: s.done, Version: s.version, Params: s.params, Save: sv}, true
		}
	}
	if s.head == len(s.queue) {
		return Event{}, false
	}
	f := &s.queue[s.head]
	if s.meter != nil {
		s.meter.Measure(f.Report)
	}
	if s.descent != nil && len(f.Gradients) > 0 && f.outer.Kind == rule.OuterMean {
		s.descent.Inward()
	}
	switch {
	case len(f.Gradients) == 0:
	// The outer step of workers that made local steps.
	case f.outer.Kind != rule.OuterMean:
		s.take(f)
		next := s.mem.Writable(s.params)
		if &next[0] != &s.params[0] {
			copy(next, s.params)
		}
		s.descent.Outward(next, s.version, s.gradients, f.outer)
		s.params = next
		s.mem.Written()
		s.free(nil)
	// Workers made the update by local steps; the rule combines them.
	case f.Local > 0:
		s.take(f)
		next := s.mem.Writable(s.params)
		if &next[0] != &s.params[0] {
			copy(next, s.params)
		}
		s.rule.(rule.Strider).Stride(next, s.gradients, f.Local, f.Samples)
		s.params = next
		s.mem.Written()
		s.free(nil)
	// The rule writes the next version in one pass over memory.
	case !f.NormFirst && s.fused != nil:
		s.take(f)
		next := s.mem.Writable(s.params)
		if s.owed = s.settler != nil && s.settler.Ahead(next, s.params, s.version, s.gradients, f.Samples); !s.owed {
			s.fused.Update(next, s.params, s.version, s.gradients, f.Samples)
		}
		s.params = next
		s.mem.Written()
		if !s.owed {
			s.free(nil)
		}
	// The norm is not needed, or is known already.
	case !f.NormFirst, f.dir == nil && f.normed:
		f.dir = s.combine(f)
	// The norm of the whole is needed first: report this shard's squares and
	// wait.
	case f.dir == nil:
		f.dir = s.combine(f)
		s.squares = exactsum.Squares{}
		s.squares.Add(f.dir)
		ev := Event{Kind: Summed, Seq: f.Seq, Squares: &s.squares}
		if scorer, ok := s.rule.(rule.Scorer); ok {
			ev.Dot, ev.Ref = scorer.Score(f.dir)
		}
		return ev, true
	// The norm has not come yet.
	case !f.normed:
		return Event{}, false
	}
	// The update was rejected as a whole. Its version exists all the same.
	if f.dir != nil && f.factor == 0 {
		s.mem.Free(f.dir)
		f.dir = nil
	}
	if f.dir != nil {
		kernel.Scale(f.factor, f.dir)
		next := s.mem.Writable(s.params)
		if &next[0] != &s.params[0] {
			copy(next, s.params)
		}
		s.params = next
		s.mem.Written()
		s.rule.Step(s.params, f.dir, f.Samples, f.norm)
		s.mem.Free(f.dir)
		f.dir = nil
	}
	for _, g := range f.Dropped {
		if p := s.find(g.Worker, g.Step); p != nil && p.named {
			late := p.Gradient
			s.exchanged(&late)
			if s.salvage != nil && late.Sum2-late.Sum2 == 0 {
				late.Weight = g.Weight
				s.salvage.Late(f.Version, late)
			}
			s.mem.Free(late.Vec)
			s.remove(g.Worker, g.Step)
		}
	}
	s.version, s.done = f.Version, f.Seq
	s.head++
	s.workers = s.workers[:0]
	// Every worker with a gradient in the firing is released, unless it is
	// Quiet.
	for _, gs := range [2][]wire.Gradient{f.Gradients, f.Dropped} {
		for _, g := range gs {
			if !slices.Contains(f.Quiet, g.Worker) && (len(s.workers) == 0 || s.workers[len(s.workers)-1] != g.Worker) {
				s.workers = append(s.workers, g.Worker)
			}
		}
	}
	for _, w := range s.workers {
		if s.Model(w) == nil {
			s.Read(w)
		}
	}
	ev := Event{Kind: Updated, Seq: f.Seq, Version: s.version, Params: s.params, Workers: s.workers}
	if f.Report && s.meter != nil && len(f.Gradients) > 0 {
		ev.Report, ev.Sum2 = true, s.meter.Sum2()
	}
	return ev, true
}

// combine takes the firing's gradients out of the store and frees all vectors
// except the result.
func (s *Shard) combine(f *firing) []float32 {
	s.take(f)
	dir := s.rule.Combine(s.params, s.version, s.gradients)
	s.free(dir)
	return dir
}

// take moves the firing's gradients from the store to s.gradients.
func (s *Shard) take(f *firing) {
	s.gradients = s.gradients[:0]
	for _, g := range f.Gradients {
		p := s.find(g.Worker, g.Step).Gradient
		p.Weight = g.Weight
		s.exchanged(&p)
		s.gradients = append(s.gradients, p)
		s.remove(g.Worker, g.Step)
	}
	if s.angles != nil && len(s.gradients) > 2 {
		s.look()
	}
	s.leaveOut()
}

// look compares the directions of the gradients in hand that have the newest
// basis and are of the same part.
func (s *Shard) look() {
	newest, of := s.gradients[0].Basis, s.gradients[0].Of
	for _, g := range s.gradients {
		if g.Basis > newest {
			newest, of = g.Basis, g.Of
		}
	}
	s.compare = s.compare[:0]
	for _, g := range s.gradients {
		if g.Basis == newest && g.Of == of {
			from, to := g.Of.Range(s.n)
			s.compare = append(s.compare, poison.Gradient{Worker: int(g.Worker), Vec: g.Vec[from:to], Void: g.Weight == 0})
		}
	}
	s.turns = append(s.turns, s.angles.Observe(s.compare)...)
}

// leaveOut removes gradients of weight 0, since a value that is not finite
// times 0 is NaN. If all have weight 0, one remains and is cleared, so that the
// update is still made.
func (s *Shard) leaveOut() {
	kept := s.gradients[:0]
	for i, g := range s.gradients {
		switch {
		case g.Weight != 0:
			kept = append(kept, g)
		case i == len(s.gradients)-1 && len(kept) == 0:
			clear(g.Vec)
			kept = append(kept, g)
		default:
			s.mem.Free(g.Vec)
		}
	}
	s.gradients = kept
}

// free frees the vectors of s.gradients, except keep.
func (s *Shard) free(keep []float32) {
	for i, g := range s.gradients {
		if keep == nil || &g.Vec[0] != &keep[0] {
			s.mem.Free(g.Vec)
		}
		s.gradients[i].Vec = nil
	}
}
