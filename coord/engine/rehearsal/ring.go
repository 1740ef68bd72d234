// Package rehearsal runs jobs of all-reduce with models of their members: the parameters of a model are the
// list of the samples that were applied to them. An [engine.Ring] decides, as it does for a coordinator. The
// caller chooses what happens next among the possible acts: a test in any order, star-chaos --simulate in
// virtual time. Violations of the invariants are reported at once and at the end:
//
//   - Every member of a version has applied the same samples, in the same order.
//   - A version has the samples that the engine counts in it, under every coordinator.
//   - At the end each sample of the stream was applied once, or counts as dropped.
//   - The job does not stop while members and samples are left.
//
// It is pure: no clock, goroutine or randomness. Each choice is asked for ([Config.Draw]).
package rehearsal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/transport/wire"
)

// Config is the settings of a job.
type Config struct {
	engine.Config

	// Draw chooses a number from low to high, both included. what is for messages only.
	Draw func(low, high int, what string) int

	// Deadly: members die of what they compute, so samples that have killed two are put aside.
	Deadly bool

	// Broken reports a violated invariant, and Lost that no member is left that has the parameters. Neither
	// may return.
	Broken func(format string, a ...any)
	Lost   func(why string)
}

// Ring is a running job. Messages between two processes keep their order, as on a connection; all other
// messages may overtake each other.
type Ring struct {
	Config
	Engine  *engine.Ring
	members []*member // by rank

	// By generation and version: what each member puts into the round.
	put map[[2]int64]map[star.Worker][]engine.Span
	// By generation and version: the number of fragments, and the one that is exchanged.
	parts map[[2]int64][2]int
	// By generation: the member that its members get the parameters from.
	formed  map[int64]*member
	lists   map[int64]string // by generation: members and riders, as first announced
	counted map[int64]string // by version: the samples that the engine counts in it
	deaths  bool
	closes  bool // rounds may have been closed, so that samples may have been dropped
	faulty  bool // the engine was told of a failed ring, and has not answered
	term    int64
}

// member is the model of a worker, which may be a rider.
type member struct {
	id         star.Worker
	alive      bool
	in         []any // from the coordinator, in order
	out        []any // for the coordinator
	ring       wire.Ring
	inRing     bool // else it is a rider, or new
	forming    bool // waits for the others to form its ring
	broken     bool // its ring has failed
	version    int64
	history    [][]engine.Span // by version: what was applied. A member of version -1 has none
	release    *wire.Release   // of its round
	riderBatch *wire.Release   // its gradient is computed
	step       int64
	batch      engine.Span              // with Turns: the batch that it has begun
	ahead      wire.Piece               // with fragments: the batch of its next round, which it has computed
	begun      int64                    // its version at that time; the same for all turns of the batch
	brought    map[star.Worker]*brought // by rider
	tallies    []wire.Tally             // of its last versions
	metadata   []byte                   // of its last release

	shut   []wire.Close // on their way
	closed wire.Close   // the last one that arrived
	joined wire.Close   // of its round
	told   bool         // it has reported what it has computed in its round
	have   int          // samples of it
	late   []engine.Span
}

// released is a release as a worker receives it.
type released struct {
	wire.Release
	metadata []byte
}

// brought is a rider's gradient at its parent.
type brought struct {
	span       *engine.Span // not carried yet
	generation int64
	seen       int64 // the start of the last one
}

// gone is the end of a connection, as the coordinator sees it.
type gone struct{}

// NewRing begins a job. Ranks of c.Absent can join later.
func NewRing(c Config) *Ring {
	s := &Ring{Config: c, Engine: engine.NewRing(c.Config), put: map[[2]int64]map[star.Worker][]engine.Span{}, parts: map[[2]int64][2]int{}, formed: map[int64]*member{},
		lists: map[int64]string{}, counted: map[int64]string{}, closes: c.Plan.Micro > 0}
	for w := range c.Workers {
		s.members = append(s.members, &member{id: star.Worker(w), alive: !slices.Contains(c.Absent, star.Worker(w)), brought: map[star.Worker]*brought{}})
	}
	s.do(s.Engine.Begin(nil))
	return s
}

// Kind is the kind of an act.
type Kind int

// Kinds of acts. The coordinator reads a message of a worker, or notices that a worker is gone; a worker learns
// that its round is closed, processes a message and computes, or completes an exchange with others; the
// coordinator repairs a failed ring.
const (
	Hear Kind = iota
	Miss
	Heed
	Work
	Exchange
	Mend
)

// Act is a possible next event.
type Act struct {
	Worker star.Worker
	Kind   Kind
	Do     func()
}

// Acts lists what can happen now. If it is empty, nothing happens without an external event.
func (s *Ring) Acts() []Act {
	var can []Act
	for _, w := range s.members {
		add := func(k Kind, do func()) { can = append(can, Act{w.id, k, do}) }
		if len(w.out) > 0 {
			k := Hear
			if _, ok := w.out[0].(gone); ok {
				k = Miss
			}
			add(k, func() { s.hear(w) })
		}
		if !w.alive {
			continue
		}
		w.interrupt()
		if len(w.shut) > 0 {
			add(Heed, func() { w.closed, w.shut = w.shut[0], w.shut[1:] })
		}
		if w.release != nil {
			_, in := s.put[w.round()][w.id]
			switch {
			case in:
			case w.release.Micro > 0 && !w.told:
				add(Work, func() { s.tell(w) })
			case w.release.Micro > 0 && w.over():
				add(Exchange, func() { s.join(w) })
			case w.release.Part > 0:
				add(Work, func() { s.take(w) })
			}
		}
		if s.ready(w) {
			add(Exchange, func() { s.end(w) })
		}
		if w.release == nil && !w.forming && len(w.in) > 0 {
			add(Work, func() { s.read(w) })
		}
	}
	if s.faulty {
		can = append(can, Act{-1, Mend, s.mend})
	}
	return can
}

// do delivers what the engine has ready.
func (s *Ring) do(os []engine.Ready) {
	for _, o := range os {
		s.count(&o)
		for _, r := range o.Rings {
			list := fmt.Sprint(r.Msg.Members, r.Msg.Riders)
			if was := cmp.Or(s.lists[r.Msg.Generation], list); was != list {
				s.Broken("ring %d is %s for one and %s for another", r.Msg.Generation, was, list)
			}
			s.lists[r.Msg.Generation] = list
			s.tellMember(r.Worker, r.Msg)
		}
		for _, r := range o.Releases {
			s.tellMember(r.Worker, released{r, s.Engine.Metadata(s.term)})
		}
		for _, m := range o.Closes {
			s.members[m.Worker].shut = append(s.members[m.Worker].shut, m.Msg)
		}
		if e := o.Evict; e != nil {
			s.evict(star.Worker(e.Rank))
		}
	}
}

func (s *Ring) tellMember(w star.Worker, m any) { s.members[w].in = append(s.members[w].in, m) }

// count records the samples that the engine counts in a version. They must be the same under every coordinator.
func (s *Ring) count(o *engine.Ready) {
	if o.Fire.Seq == 0 {
		return
	}
	spans := slices.Clone(o.Pieces)
	for i := 0; i < len(o.More); i += 3 {
		spans = append(spans, engine.Span{Start: o.More[i+1], Count: int(o.More[i+2])})
	}
	now := samples(spans)
	if was, ok := s.counted[o.Fire.Version]; ok && was != now {
		s.Broken("two lineages: version %d was of samples %s, and is of %s now", o.Fire.Version, was, now)
	}
	s.counted[o.Fire.Version] = now
}

// samples lists spans in the order of the stream.
func samples(spans []engine.Span) string {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b engine.Span) int { return cmp.Compare(a.Start, b.Start) })
	return fmt.Sprint(spans)
}

// hear has the coordinator process the next message of a worker.
func (s *Ring) hear(w *member) {
	m := w.out[0]
	w.out = w.out[1:]
	var os []engine.Ready
	var err error
	switch m := m.(type) {
	case gone:
		if s.Deadly {
			s.Engine.Blame(w.id, true, "")
		}
		os = s.Engine.Leave(w.id)
	case wire.Formed:
		os, err = s.Engine.Formed(m)
	case wire.Tally:
		os, err = s.Engine.Tally(m)
	case wire.Computed:
		os, err = s.Engine.Computed(m)
	case wire.Fault:
		_, os, err = s.Engine.Fault(m)
		s.faulty = true
	case star.Record:
		_, os, err = s.Engine.Arrive(m, false)
	}
	s.fails(err, "worker %d says %+v", w.id, m)
	s.do(os)
}

// fails checks an error of the engine: the members obey the protocol, so only a LostError is possible, and only
// if no member has the parameters.
func (s *Ring) fails(err error, format string, a ...any) {
	var lost *engine.LostError
	switch {
	case err == nil:
	case !errors.As(err, &lost):
		s.Broken("the engine takes it for a mistake that "+format+": %v", append(a, err)...)
	default:
		for _, o := range s.members {
			if o.alive && !o.forming && o.version >= s.Engine.View().Version {
				s.Broken("worker %d has version %d: %v", o.id, o.version, err)
			}
		}
		s.Lost(err.Error())
	}
}

func (s *Ring) mend() {
	s.faulty = false
	os, err := s.Engine.Tick()
	s.fails(err, "time passes")
	s.do(os)
}

// evict removes a worker that others cannot reach.
func (s *Ring) evict(w star.Worker) {
	m := s.members[w]
	m.alive, m.out = false, nil
	s.deaths = true
	s.do(slices.Clone(s.Engine.Leave(w)))
	s.faulty = true // it may have been all that was wrong, or not
}

// Alive reports whether a worker is alive.
func (s *Ring) Alive(w star.Worker) bool { return s.members[w].alive }

// Busy reports whether a worker is in a round or forms a ring, so that an exchange can fail.
func (s *Ring) Busy(w star.Worker) bool {
	m := s.members[w]
	return m.alive && (m.release != nil || m.forming)
}

// Spare reports whether a worker may die without loss: another one has the newest parameters and keeps them.
// It is never true where a plan wants a ring of one member.
func (s *Ring) Spare(w star.Worker) bool {
	for _, o := range s.members {
		if o.id != w && o.alive && o.version >= s.Engine.View().Version && o.stays() {
			return true
		}
	}
	return false
}

// Whole reports whether the coordinator has noticed every death.
func (s *Ring) Whole() bool {
	return !slices.ContainsFunc(s.members, func(m *member) bool { return !m.alive && len(m.out) > 0 })
}

// Kill ends a worker. Its last messages may be lost.
func (s *Ring) Kill(w star.Worker) {
	m := s.members[w]
	m.alive, s.deaths = false, true
	m.out = append(m.out[:s.Draw(0, len(m.out), "heard")], gone{})
}

// Fail ends a worker's exchange. suspect is the worker that it reports as unreachable; -1: none.
func (s *Ring) Fail(w star.Worker, suspect int) {
	m := s.members[w]
	m.release, m.forming, m.broken = nil, false, true
	m.out = append(m.out, wire.Fault{Worker: w, Generation: m.ring.Generation, Suspect: suspect, Reason: "no byte has moved"})
}

// Come has a new worker without parameters take a rank. false: the rank is in use, or something of its last
// owner is still under way.
func (s *Ring) Come(w star.Worker) bool {
	m := s.members[w]
	if m.alive || len(m.out) > 0 || s.Engine.Worker(w).Live || s.Engine.Lingers(w) {
		return false
	}
	os := s.Engine.Join(w, true)
	s.members[w] = &member{id: w, alive: true, version: -1, step: s.Engine.Worker(w).Step, brought: map[star.Worker]*brought{}}
	s.do(os)
	return true
}

// Install changes the plan.
func (s *Ring) Install(p modes.Plan) {
	s.closes = s.closes || p.Micro > 0
	s.do(s.Engine.Install(p))
}

// Late has a member miss a deadline.
func (s *Ring) Late(w star.Worker) { s.Engine.Late(w) }

// TakeOver replaces the coordinator: all messages under way are lost, in both directions, and only what the
// workers have is known.
func (s *Ring) TakeOver() {
	var m *engine.RingMetadata
	for _, w := range s.members {
		w.in, w.out, w.shut = nil, nil, nil
		if !w.alive || w.metadata == nil {
			continue
		}
		k, err := engine.ParseRingMetadata(w.metadata, s.Workers)
		if err != nil {
			s.Broken("%v: %s", err, w.metadata)
		}
		if k.After(m) {
			m = k
		}
	}
	if m == nil {
		m = engine.Unreleased(engine.Progress{}, s.Workers)
	}
	s.term++
	c := s.Config.Config
	c.Plan, c.Limit, c.After, c.Absent = s.Engine.View().Plan, s.Engine.View().Limit, &m.Snapshot, nil
	of := *c.Ring
	of.Generation = engine.GenerationsOf(s.term)
	c.Ring = &of
	var t engine.Told
	newest := int64(0)
	for w, x := range s.members {
		if !x.alive {
			c.Absent = append(c.Absent, star.Worker(w))
			continue
		}
		x.ring, x.inRing, x.forming, x.broken, x.release, x.riderBatch, x.late, x.told = wire.Ring{}, false, false, false, nil, nil, nil, false
		if newest = max(newest, x.version); x.version >= m.Version {
			t.With = append(t.With, x.id)
			t.Tallies = append(t.Tallies, x.tallies...)
		}
	}
	if len(t.With) == 0 {
		s.Lost("no remaining member has the parameters")
	}
	for v := range s.counted { // the workers that had it are gone
		if v > newest {
			delete(s.counted, v)
		}
	}
	s.faulty = false
	s.Engine = engine.NewRing(c)
	s.do(s.Engine.Begin(&t))
}

// Over reports whether nothing is under way or left.
func (s *Ring) Over() bool { return s.Engine.Drained() && !s.Engine.View().Unfinished() }

// Check verifies the invariants of a job in which nothing can happen any more.
func (s *Ring) Check() {
	st := s.Engine.View()
	in := st.Members
	if !s.Engine.Drained() {
		s.Broken("the job hangs at version %d, with %d of %d samples: it waits for %v", st.Version, st.Used, st.Limit, s.Engine.Lacking())
	}
	aside := map[int64]bool{}
	for _, a := range s.Engine.View().Aside {
		for i := range a.Count {
			aside[a.Start+int64(i)] = true
		}
	}
	if st.Used+st.Waste != st.Limit || st.Waste != int64(len(aside)) && !s.closes {
		s.Broken("the coordinator counts %d samples, and %d dropped; want %d", st.Used, st.Waste, st.Limit)
	}
	for _, id := range in {
		w := s.members[id]
		if w.version != st.Version {
			s.Broken("worker %d has version %d, the coordinator counts %d; ring %+v, forming %v, broken %v, next orders %v", id, w.version, st.Version, w.ring, w.forming, w.broken, w.in)
		}
		count, applied := make([]int, st.Limit), int64(0)
		for v, spans := range w.history {
			if got, want := samples(spans), s.counted[int64(v)+1]; got != want {
				s.Broken("worker %d has applied samples %s in version %d, the coordinator counts %s", id, got, v+1, want)
			}
			for _, span := range spans {
				for i := range span.Count {
					count[span.Start+int64(i)]++
				}
			}
			if was := s.members[in[0]].history[v]; !slices.Equal(spans, was) {
				s.Broken("worker %d has added up %v in version %d, worker %d %v", id, spans, v+1, in[0], was)
			}
		}
		for i, k := range count {
			applied += int64(k)
			if k > 1 || k < 1 && !s.closes && !aside[int64(i)] || k > 0 && aside[int64(i)] {
				s.Broken("worker %d has applied sample %d %d times: %v", id, i, k, w.history)
			}
		}
		if applied != st.Used {
			s.Broken("worker %d has applied %d samples, the coordinator counts %d", id, applied, st.Used)
		}
	}
}
