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

// Memory is where a Shard's vectors come from and go to. All have the length of
// the shard.
type Memory interface {
	// Writable returns a vector that the next version of the parameters may be
	// written to: params itself if nobody is reading it, else a spare one with
	// any contents. Then params, which the next version is made of, stays as it
	// is until Written.
	Writable(params []float32) []float32

	// Written says that the next version is complete.
	Written()

	// Free takes back the vector of a gradient that is used up or dropped.
	Free(vec []float32)
}

// EventKind says what happened in a Shard.
type EventKind uint8

const (
	// Updated: Params of Version are to be sent to Workers. It also follows a
	// firing that only drops gradients or only releases workers.
	Updated EventKind = iota + 1

	// Summed: the coordinator wants Squares of the firing Seq, and the shard
	// waits for the norm of the whole.
	Summed

	// SaveDue: Params of Version are to be saved as Save asks. Whoever
	// saves something that updates change (the optimiser's state) holds the
	// shard meanwhile.
	SaveDue

	// Turned: the gradients of Workers[0] point against all others from now on, as Turn says, or no more.
	// Only after Watch.
	Turned
)

// Event is something a Shard did that others must learn of.
type Event struct {
	Kind    EventKind
	Seq     int64 // the firing
	Version int64
	Params  []float32         // the shard's own: not to be written to
	Workers []star.Worker     // valid until the next call of Next
	Squares *exactsum.Squares // valid until the next call of Next
	Save    wire.Save

	// With a Rule that is a Scorer, Summed has what it says of the direction: valid until
	// the next call of Next. Else Ref is nil.
	Dot float64
	Ref *exactsum.Squares

	// Report says that the firing asked for the sum of squares of the direction, which
	// is Sum2.
	Report bool
	Sum2   float64

	Turn poison.Turn // of Turned
}

// Shard is the state machine of one range of the parameters.
//
//	Push, Fire, Apply, Save ──► queue ──► Next: Updated | Summed | SaveDue
//
// Firings happen in order of their numbers, one for each call of Next, and
// nothing happens outside of Next. So between two events the caller has time to
// note that somebody reads Params. It does no I/O and knows no clock; it is used by one goroutine.
//
// Errors are mistakes of the sender. After an error of Push the gradient is the
// caller's and the shard is as before. An error of Fire or Apply means that
// this shard and the coordinator disagree about the past: the shard is of no
// further use.
type Shard struct {
	n       int
	rule    rule.Rule
	fused   rule.Fused    // rule, if it is one
	settler rule.Settler  // rule, if it is one
	owed    bool          // Settle, with gradients: before anything else is done
	meter   rule.Measurer // rule, if it is one
	witness rule.Witness  // rule, if it is one
	salvage rule.Salvager // rule, if it is one

	personal rule.Personal // rule, if it is one
	mem      Memory
	params   []float32 // nil: not ready
	version  int64

	pending [][]pending // by worker, oldest first
	many    int         // gradients of one worker that may be stored; 0: 1

	queue  []firing // queue[head:] is to be done
	head   int
	last   int64 // Seq of the last firing accepted
	done   int64 // Seq of the last firing completed
	target int64 // version after all accepted firings

	saves []wire.Save
	held  bool

	gradients []rule.Gradient // of the firing in hand
	workers   []star.Worker
	squares   exactsum.Squares

	angles  *poison.Angles // nil: directions are not compared
	compare []poison.Gradient
	turns   []poison.Turn // to be told
}

type pending struct {
	rule.Gradient
	named bool // a queued firing uses or drops it
}

// firing is an accepted Fire with what has become of it.
type firing struct {
	wire.Fire
	dir    []float32 // the combined direction, with NormFirst
	normed bool
	norm   float64
	factor float32 // of the direction; 0: it is not applied
}

// NewShard makes a shard of n elements, at least one. It is not ready until Load.
func NewShard(n int, r rule.Rule, mem Memory) *Shard {
	if n < 1 {
		panic("ps: a shard of no elements")
	}
	fused, _ := r.(rule.Fused)
	settler, _ := r.(rule.Settler)
	meter, _ := r.(rule.Measurer)
	witness, _ := r.(rule.Witness)
	salvage, _ := r.(rule.Salvager)
	personal, _ := r.(rule.Personal)
	return &Shard{n: n, rule: r, fused: fused, settler: settler, meter: meter, witness: witness, salvage: salvage, personal: personal, mem: mem}
}

// Watch has the shard compare the directions of gradients that are applied together and are of one
// version.
func (s *Shard) Watch() { s.angles = new(poison.Angles) }

// Load gives the shard its parameters. It keeps params.
func (s *Shard) Load(params []float32, version int64) {
	if s.params != nil {
		panic("ps: shard loaded twice")
	}
	if len(params) != s.n {
		panic("ps: shard loaded with a vector of another length")
	}
	s.params, s.version, s.target = params, version, version
}

// LoadAt is Load for a shard that comes from elsewhere, where it has had the firings up to
// seq.
func (s *Shard) LoadAt(params []float32, version, seq int64) {
	s.Load(params, version)
	s.last, s.done = seq, seq
}

// Done is the number of the last firing that is completed.
func (s *Shard) Done() int64 { return s.done }

// Idle says whether nothing is to be done: no firing, no checkpoint.
func (s *Shard) Idle() bool { return s.head == len(s.queue) && len(s.saves) == 0 }

// Waiting lists the gradients that are stored, by worker. Their vectors are the shard's.
func (s *Shard) Waiting() []rule.Gradient {
	var gs []rule.Gradient
	for _, ps := range s.pending {
		for _, p := range ps {
			gs = append(gs, p.Gradient)
		}
	}
	return gs
}

// Ready says whether the shard has its parameters.
func (s *Shard) Ready() bool { return s.params != nil }

// Version is the version of Params: how many updates made it.
func (s *Shard) Version() int64 { return s.version }

// Params is the vector as it is now, nil before Load. It is borrowed: the next
// update writes to it unless Memory says otherwise.
func (s *Shard) Params() []float32 { return s.params }

// Store lets each worker have so many gradients stored, for plans in which it goes on at once (modes.Group.Again). Before the first Push.
func (s *Shard) Store(many int) { s.many = many }

// Push stores a whole slice. It keeps g.Vec until the firing that names it is carried out. A
// worker can have one gradient stored that no firing names, unless Store says otherwise: it waits for parameters before it
// computes the next one.
func (s *Shard) Push(g rule.Gradient) error {
	if s.params == nil {
		return fmt.Errorf("ps: worker %d pushed a gradient before there were parameters", g.Worker)
	}
	if len(g.Vec) != s.n {
		return fmt.Errorf("ps: worker %d pushed %d elements to a shard of %d", g.Worker, len(g.Vec), s.n)
	}
	if g.Worker < 0 {
		return fmt.Errorf("ps: a gradient of worker %d", g.Worker)
	}
	for int(g.Worker) >= len(s.pending) {
		s.pending = append(s.pending, nil)
	}
	p := &s.pending[g.Worker]
	waiting := 0 // for a firing; one that a queued firing names may still be there where a copy of the shard is behind the others
	for _, q := range *p {
		if !q.named {
			waiting++
		}
	}
	if k := len(*p); waiting >= max(1, s.many) || k > 0 && g.Step <= (*p)[k-1].Step {
		return fmt.Errorf("ps: worker %d pushed step %d while its step %d is still waiting for a firing",
			g.Worker, g.Step, (*p)[k-1].Step)
	}
	*p = append(*p, pending{Gradient: g})
	return nil
}

// Pending says whether a gradient of w is stored, and of which step: the last one, if there are several.
func (s *Shard) Pending(w star.Worker) (step int64, ok bool) {
	if w < 0 || int(w) >= len(s.pending) || len(s.pending[w]) == 0 {
		return 0, false
	}
	return s.pending[w][len(s.pending[w])-1].Step, true
}

// find is the stored gradient of a worker's step; nil: there is none.
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

// remove takes p, which find has found, out of store.
func (s *Shard) remove(w star.Worker, step int64) {
	s.pending[w] = slices.DeleteFunc(s.pending[w], func(p pending) bool { return p.Step == step })
}

// Forget drops the stored gradients of w, but those that a queued firing names.
//
// The end of a worker's connection is no reason to call it: the coordinator may
// have fired that gradient before it knew, and the other shards will apply it.
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
// here; one that it drops need not be (its worker may have died in the middle
// of pushing it).
func (s *Shard) Fire(f *wire.Fire) error {
	if s.params == nil {
		return fmt.Errorf("ps: firing %d came before the parameters", f.Seq)
	}
	if f.Seq != s.last+1 {
		return fmt.Errorf("ps: firing %d came after firing %d", f.Seq, s.last)
	}
	want := s.target
	if len(f.Gradients) > 0 {
		want++
	}
	if r, ok := s.rule.(rule.Strider); f.Local > 0 && (!ok || !r.Strides() || f.NormFirst) {
		return fmt.Errorf("ps: firing %d is of %d steps that workers have made by themselves, of which the rule of this shard (%T) makes no update", f.Seq, f.Local, s.rule)
	}
	if f.Version != want {
		return fmt.Errorf("ps: firing %d of %d gradients makes version %d, but %d is due",
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
			return fmt.Errorf("ps: firing %d names step %d of worker %d a second time", f.Seq, g.Step, g.Worker)
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
	q.Gradients = append(q.Gradients[:0], f.Gradients...)
	q.Dropped = append(q.Dropped[:0], f.Dropped...)
	q.Quiet = append(q.Quiet[:0], f.Quiet...)
	q.dir, q.normed, q.norm, q.factor = nil, false, -1, 1
	slices.SortStableFunc(q.Gradients, func(a, b wire.Gradient) int { return cmp.Compare(a.Worker, b.Worker) })
	s.last, s.target = f.Seq, f.Version
	return nil
}

// enqueue returns a place at the end of the queue. Its slices are reused.
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

// Model is what w is sent in the place of Params after an update with a gradient of it: valid until the next call of Next. Nil: Params.
func (s *Shard) Model(w star.Worker) []float32 {
	if s.personal == nil {
		return nil
	}
	return s.personal.Model(w)
}

// Read says that w is sent the parameters as they are now, other than by a firing.
func (s *Shard) Read(w star.Worker) {
	if s.witness != nil && s.params != nil {
		s.witness.Sent(w, s.params)
	}
}

// Apply gives the norm of the whole direction to a firing with NormFirst, and what the direction
// is multiplied by before it is applied. With 0 the parameters stay as they are, and are a new version all the same.
// Where others have summed the direction too, it may come before this shard has; then there is no Summed.
func (s *Shard) Apply(seq int64, norm, factor float64) error {
	for i := range s.queue[s.head:] {
		if f := &s.queue[s.head+i]; f.Seq == seq && f.NormFirst && !f.normed {
			f.normed, f.norm, f.factor = true, norm*factor, float32(factor)
			return nil
		}
	}
	return fmt.Errorf("ps: a norm for firing %d, which is not waiting for one (completed: %d)", seq, s.done)
}

// Summed is the firing that waits for its norm: the last Summed was of it. It reports false when none does.
func (s *Shard) Summed() (seq int64, ok bool) {
	if s.head == len(s.queue) || s.queue[s.head].dir == nil || s.queue[s.head].normed {
		return 0, false
	}
	return s.queue[s.head].Seq, true
}

// Save asks for a SaveDue after the firing sv.Seq.
func (s *Shard) Save(sv wire.Save) error {
	if sv.Seq < s.done || s.params == nil {
		return fmt.Errorf("ps: checkpoint %s is of firing %d, but %d firings are done", sv.ID, sv.Seq, s.done)
	}
	s.saves = append(s.saves, sv)
	return nil
}

// Hold stops Next until Resume: somebody reads what updates would change.
func (s *Shard) Hold() { s.held = true }

// Resume ends a Hold.
func (s *Shard) Resume() { s.held = false }

// Next does the next thing that is due and says what others must learn of it;
// false: nothing is due.
func (s *Shard) Next() (Event, bool) {
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
	switch {
	case len(f.Gradients) == 0:
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
	case !f.NormFirst, f.dir == nil && f.normed:
		f.dir = s.combine(f)
	case f.dir == nil:
		f.dir = s.combine(f)
		s.squares = exactsum.Squares{}
		s.squares.Add(f.dir)
		ev := Event{Kind: Summed, Seq: f.Seq, Squares: &s.squares}
		if scorer, ok := s.rule.(rule.Scorer); ok {
			ev.Dot, ev.Ref = scorer.Score(f.dir)
		}
		return ev, true
	case !f.normed:
		return Event{}, false
	}
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

// combine takes the firing's gradients out of store and frees all vectors but
// the one that holds the result.
func (s *Shard) combine(f *firing) []float32 {
	s.take(f)
	dir := s.rule.Combine(s.params, s.version, s.gradients)
	s.free(dir)
	return dir
}

// take takes the firing's gradients out of store.
func (s *Shard) take(f *firing) {
	s.gradients = s.gradients[:0]
	for _, g := range f.Gradients {
		p := s.find(g.Worker, g.Step).Gradient
		p.Weight = g.Weight
		s.gradients = append(s.gradients, p)
		s.remove(g.Worker, g.Step)
	}
	if s.angles != nil && len(s.gradients) > 2 {
		s.look()
	}
	s.leaveOut()
}

// look compares the directions of the gradients of the newest version among those in hand.
func (s *Shard) look() {
	newest := s.gradients[0].Basis
	for _, g := range s.gradients {
		newest = max(newest, g.Basis)
	}
	s.compare = s.compare[:0]
	for _, g := range s.gradients {
		if g.Basis == newest {
			s.compare = append(s.compare, poison.Gradient{Worker: int(g.Worker), Vec: g.Vec, Void: g.Weight == 0})
		}
	}
	s.turns = append(s.turns, s.angles.Observe(s.compare)...)
}

// leaveOut takes gradients of weight 0 out of what is combined: what is not finite would be NaN even so. If
// there is no other, one remains, which is made zero: the update is made all the same.
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

// free frees the vectors of what was taken, but not keep.
func (s *Shard) free(keep []float32) {
	for i, g := range s.gradients {
		if keep == nil || &g.Vec[0] != &keep[0] {
			s.mem.Free(g.Vec)
		}
		s.gradients[i].Vec = nil
	}
}
