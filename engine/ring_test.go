package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/transport/wire"
)

// sea is a job of all-reduce whose workers are models of themselves: their
// parameters are the list of what was applied to them. Everything that can happen
// happens in any order: messages are delivered, rounds end on one worker and not yet on
// another, workers die.
type sea struct {
	t  *rapid.T
	r  *Ring
	ws []*swimmer

	rounds map[[2]int64]map[star.Worker][]Span // by generation and round: what each member put in
	formed map[int64]*swimmer                  // by generation: whose parameters its members have taken
	lists  map[int64]string                    // by generation: its members, as the first one was told
	deaths bool
	joins  int
	closes bool // plans with rounds that are closed
	queues bool // plans with a queue
	term   int64
}

type swimmer struct {
	id         star.Worker
	alive      bool
	in         []any // orders of the coordinator, in order
	out        []any // what the coordinator will hear
	ring       wire.Ring
	member     bool
	forming    bool // has joined the ring of its generation, which is not formed for it
	broken     bool
	version    int64 // -1: has no state
	history    []Span
	release    *wire.Release // of the round it is in
	riderBatch *wire.Release // whose gradient is computed
	step       int64
	seats      map[star.Worker]*berth
	tallies    []wire.Tally // of the last versions it has
	metadata   []byte       // of the last release

	shut   []wire.Close // that it will hear
	closed wire.Close   // that it has heard last
	joined wire.Close   // of its round
	told   bool         // has said what it has computed in its round
	have   int          // samples of it
	late   []Span       // of the round before, which was closed without it
}

// lease is what the worker may compute in its round, with a queue.
func (w *swimmer) lease() []Span {
	out := []Span{{w.release.Start, w.release.Count}}
	for _, p := range w.release.More {
		out = append(out, Span(p))
	}
	return out
}

// takes computes a part of the lease, says so, and goes into the exchange when there is no other, or the worker was told to stop.
func (s *sea) takes(w *swimmer) {
	whole := 0
	for _, s := range w.lease() {
		whole += s.Count
	}
	w.have = min(w.have+w.release.Part, whole)
	if w.have < whole && !w.around(w.closed) {
		w.out = append(w.out, wire.Computed{Worker: w.id, Generation: w.ring.Generation, Version: w.version, Samples: w.have})
		return
	}
	key := [2]int64{w.ring.Generation, w.version}
	if s.rounds[key] == nil {
		s.rounds[key] = map[star.Worker][]Span{}
	}
	s.rounds[key][w.id], _ = cut(w.lease(), w.have)
}

// around says whether a Close is of the worker's round.
func (w *swimmer) around(m wire.Close) bool {
	return w.release != nil && m.Generation == w.ring.Generation && m.Version == w.release.Version && len(m.First) > 0
}

// tell says what the worker has computed: all, or a part where it has heard that others do not wait.
func (s *sea) tell(w *swimmer) {
	w.told, w.have = true, w.release.Count
	if w.around(w.closed) && w.have > 1 {
		w.have = rapid.IntRange(1, w.have).Draw(s.t, "parts")
	}
	w.out = append(w.out, wire.Computed{Worker: w.id, Generation: w.ring.Generation, Version: w.version, Samples: w.have})
}

// join puts what the worker has into a round that is closed.
func (s *sea) join(w *swimmer) {
	key := [2]int64{w.ring.Generation, w.version}
	if s.rounds[key] == nil {
		s.rounds[key] = map[star.Worker][]Span{}
	}
	w.joined = w.closed
	spans := []Span{}
	if slices.Contains(w.closed.First, w.id) {
		spans = append(spans, Span{w.release.Start, w.have})
	}
	if slices.Contains(w.closed.Late, w.id) {
		if len(w.late) == 0 {
			s.t.Fatalf("worker %d has nothing late: %+v", w.id, w.closed)
		}
		if !s.r.halts { // else it corrects the direction, and is in no update
			spans = append(spans, w.late...)
		}
	}
	s.rounds[key][w.id] = spans
	w.late = nil
	if !slices.Contains(w.closed.First, w.id) && w.have > 0 {
		w.late = []Span{{w.release.Start, w.have}}
	}
}

// released is a release as a worker gets it.
type released struct {
	wire.Release
	metadata []byte
}

// berth is what a parent has of a rider.
type berth struct {
	span       *Span
	generation int64 // of span and seen
	seen       int64
}

type gone struct{}

func (s *sea) issue(orders []Ready) {
	for _, o := range orders {
		for _, r := range o.Rings {
			if list := fmt.Sprint(r.Msg.Members, r.Msg.Riders); s.lists[r.Msg.Generation] == "" {
				s.lists[r.Msg.Generation] = list
			} else if s.lists[r.Msg.Generation] != list {
				s.t.Fatalf("generation %d is %s for one and %s for another", r.Msg.Generation, s.lists[r.Msg.Generation], list)
			}
			s.ws[r.Worker].in = append(s.ws[r.Worker].in, r.Msg)
		}
		for _, r := range o.Releases {
			s.ws[r.Worker].in = append(s.ws[r.Worker].in, released{r, s.r.Metadata(s.term)})
		}
		for _, m := range o.Closes {
			s.ws[m.Worker].shut = append(s.ws[m.Worker].shut, m.Msg)
		}
	}
}

// interrupted drops what a ring that must be formed at once makes void.
func (w *swimmer) interrupted() {
	for i := len(w.in) - 1; i >= 0; i-- {
		if m, ok := w.in[i].(wire.Ring); ok && m.Now && m.Generation > w.ring.Generation {
			w.in = w.in[i:]
			if w.release != nil || w.forming {
				w.release, w.forming, w.broken = nil, false, true
			}
			return
		}
	}
}

// read has a worker take up its next order.
func (s *sea) read(w *swimmer) {
	m := w.in[0]
	w.in = w.in[1:]
	if ring, ok := m.(wire.Ring); ok {
		if w.broken && !ring.Now || ring.Generation <= w.ring.Generation {
			return
		}
		old := w.ring
		w.ring, w.broken, w.late = ring, false, nil
		for id, b := range w.seats {
			if b.generation < ring.Generation {
				delete(w.seats, id)
			}
		}
		was := w.member
		w.member = slices.Contains(ring.Members, w.id)
		if w.member {
			w.riderBatch = nil
			if w.forming = !was || ring.Now || !slices.Equal(old.Members, ring.Members); !w.forming {
				w.out = append(w.out, wire.Formed{Worker: w.id, Generation: ring.Generation, Version: w.version})
			}
		} else {
			w.version = -1
		}
		return
	}
	w.metadata = m.(released).metadata
	rel := m.(released).Release
	switch {
	case w.broken:
	case w.member:
		if rel.Version != w.version {
			s.t.Fatalf("worker %d is released with version %d and has %d", w.id, rel.Version, w.version)
		}
		if rel.Micro > 0 || rel.Part > 0 {
			w.release, w.told, w.have = &rel, false, 0
			return
		}
		key := [2]int64{w.ring.Generation, rel.Version}
		if s.rounds[key] == nil {
			s.rounds[key] = map[star.Worker][]Span{}
		}
		var spans []Span
		if rel.Count > 0 {
			spans = append(spans, Span{rel.Start, rel.Count})
		}
		for id, b := range w.seats {
			if b.span != nil && b.generation == w.ring.Generation && rapid.Bool().Draw(s.t, "carries") {
				spans = append(spans, Span{b.span.Start, -int(id) - 1}, *b.span) // who, then what
				b.span = nil
			}
		}
		s.rounds[key][w.id] = spans
		w.release = &rel
	default:
		w.ride(s, rel)
	}
}

// ride computes a rider's gradient, if its parent is there, and sends it.
func (w *swimmer) ride(s *sea, rel wire.Release) {
	var parent *swimmer
	for _, r := range w.ring.Riders {
		if r.Worker == w.id {
			parent = s.ws[r.Parent]
		}
	}
	if parent == nil || !parent.alive {
		return // another ring will come
	}
	if w.riderBatch == nil || w.riderBatch.Start != rel.Start {
		w.riderBatch = &rel
		w.out = append(w.out, star.Record{Worker: w.id, Step: w.step, Basis: rel.Version, Samples: rel.Count})
		w.step++
	}
	if b := parent.seats[w.id]; w.ring.Generation >= parent.ring.Generation &&
		(b == nil || b.seen != rel.Start || b.generation != w.ring.Generation) {
		parent.seats[w.id] = &berth{&Span{rel.Start, rel.Count}, w.ring.Generation, rel.Start}
	}
}

// ready says whether a worker's collective operation can end for it.
func (s *sea) ready(w *swimmer) bool {
	if w.release != nil {
		return len(s.rounds[[2]int64{w.ring.Generation, w.release.Version}]) == len(w.ring.Members)
	}
	if !w.forming {
		return false
	}
	if s.formed[w.ring.Generation] != nil {
		return true
	}
	for _, m := range w.ring.Members {
		if o := s.ws[m]; !o.alive || !o.forming || o.ring.Generation != w.ring.Generation {
			return false
		}
	}
	return true
}

// end ends it.
func (s *sea) end(w *swimmer) {
	if w.forming {
		root := s.formed[w.ring.Generation]
		if root == nil {
			best := slices.MaxFunc(w.ring.Members, func(a, b star.Worker) int { return int(s.ws[a].version - s.ws[b].version) })
			c := *s.ws[best]
			c.history, c.tallies = slices.Clone(c.history), slices.Clone(c.tallies)
			root = &c
			s.formed[w.ring.Generation] = root
		}
		if root.version < 0 && !s.deaths {
			s.t.Fatalf("ring %d has nobody with the parameters, and nobody has died: %+v", w.ring.Generation, w.ring)
		}
		if root.version < 0 {
			s.t.Skip("nobody is left who has the parameters")
		}
		if w.ring.From >= 0 && root.version != w.ring.From {
			s.t.Fatalf("ring %d was to begin at version %d; its members have %d", w.ring.Generation, w.ring.From, root.version)
		}
		if w.version < root.version {
			for _, t := range root.tallies {
				t.Worker = w.id
				w.out = append(w.out, t)
			}
			w.version, w.history, w.tallies = root.version, slices.Clone(root.history), slices.Clone(root.tallies)
			w.metadata = NewerMetadata(w.metadata, root.metadata)
		}
		w.forming = false
		w.out = append(w.out, wire.Formed{Worker: w.id, Generation: w.ring.Generation, Version: w.version})
		return
	}
	in := s.rounds[[2]int64{w.ring.Generation, w.release.Version}]
	t := wire.Tally{Worker: w.id, Generation: w.ring.Generation, Version: w.version + 1}
	samples := w.release.Count
	if w.release.Part > 0 {
		samples = w.have
		for _, m := range w.ring.Members {
			n := 0
			for _, s := range in[m] {
				n += s.Count
			}
			t.Samples = append(t.Samples, n)
		}
	}
	if w.release.Micro > 0 {
		total := int64(0)
		for _, spans := range in {
			for _, span := range spans {
				total += int64(span.Count)
			}
		}
		if samples = w.have; total != w.joined.Total {
			s.t.Fatalf("a round of %d samples was said to have %d: %v", total, w.joined.Total, in)
		}
	}
	for _, m := range w.ring.Members {
		var rider star.Worker = -1
		for _, span := range in[m] {
			if span.Count < 0 {
				rider = star.Worker(-span.Count - 1)
				continue
			}
			if rider >= 0 {
				t.Carried = append(t.Carried, wire.Gradient{Worker: rider, Step: span.Start, Weight: float32(float64(span.Count) / float64(w.ring.Of))})
				rider = -1
			}
			w.history = append(w.history, span)
		}
	}
	w.out = append(w.out, star.Record{Worker: w.id, Step: w.step, Basis: w.version, Samples: samples}, t)
	w.tallies = append(w.tallies[max(0, len(w.tallies)+1-RingAhead):], t)
	w.step++
	w.version++
	w.release = nil
}

// hear has the coordinator take up what a worker said.
func (s *sea) hear(w *swimmer) {
	m := w.out[0]
	w.out = w.out[1:]
	var orders []Ready
	var err error
	switch m := m.(type) {
	case gone:
		orders = s.r.Leave(w.id)
	case wire.Formed:
		orders, err = s.r.form(w.id, m.Generation, m.Version)
	case wire.Tally:
		orders, err = s.r.Tally(m)
	case wire.Computed:
		orders, err = s.r.Computed(m)
	case wire.Fault:
		s.r.failed(w.id, m.Generation, m.Suspect, m.Reason)
	case star.Record:
		err = s.r.arrive(m)
	}
	if _, ok := err.(*LostError); ok {
		for _, o := range s.ws {
			if o.alive && !o.forming && o.version >= s.r.version {
				s.t.Fatalf("worker %d has version %d: %v", o.id, o.version, err)
			}
		}
		s.t.Skip("nobody is left who has the parameters")
	}
	if err != nil {
		s.t.Fatalf("worker %d says %+v: %v", w.id, m, err)
	}
	s.issue(orders)
}

func (s *sea) change() {
	n := len(s.ws)
	if s.closes && rapid.Bool().Draw(s.t, "closes") {
		s.issue(s.r.Install(s.partial()))
		return
	}
	if s.queues && rapid.Bool().Draw(s.t, "queues") {
		s.issue(s.r.Install(s.queue()))
		return
	}
	var riders []star.Worker
	for w := range star.Worker(n) {
		if rapid.Bool().Draw(s.t, "rides") && len(riders) < n-1 {
			riders = append(riders, w)
		}
	}
	s.issue(s.r.Install(modes.Ring(n, riders...)))
}

// queue is a plan with a queue.
func (s *sea) queue() modes.Plan {
	p := modes.SSGD(len(s.ws))
	p.Queue = rapid.IntRange(1, 3).Draw(s.t, "parts")
	return p
}

// partial is a plan whose rounds are closed.
func (s *sea) partial() modes.Plan {
	n := len(s.ws)
	p := modes.XOrder(n, rapid.IntRange(1, n).Draw(s.t, "quorum"))
	p.Groups[0].DropLate = rapid.Bool().Draw(s.t, "drops")
	p.Micro, p.ComputeDeadline = 3, time.Hour
	return p
}

// come has somebody new take a rank that nobody has, if there is one whose last owner has left nothing behind.
func (s *sea) come() {
	for _, w := range s.ws {
		if w.alive || len(w.out) > 0 || s.r.states[w.id].live || s.r.Lingers(w.id) {
			continue
		}
		s.ws[w.id] = &swimmer{id: w.id, alive: true, version: -1, step: s.r.states[w.id].step + 1, seats: map[star.Worker]*berth{}}
		s.joins++
		s.issue(s.r.Join(w.id, true))
		return
	}
}

// takeOver has another coordinator in the place of this one: what was on its way is lost, in both directions, and all that is known is what workers have.
func (s *sea) takeOver() {
	n := len(s.ws)
	var m *RingMetadata
	for _, w := range s.ws {
		w.in, w.out, w.shut = nil, nil, nil
		if !w.alive || w.metadata == nil {
			continue
		}
		k, err := ParseRingMetadata(w.metadata, n)
		if err != nil {
			s.t.Fatalf("%v: %s", err, w.metadata)
		}
		if k.After(m) {
			m = k
		}
	}
	if m == nil {
		m = Unreleased(Progress{}, n)
	}
	s.term++
	c := Config{Plan: s.r.plan, Workers: n, Batch: 3, Limit: s.r.limit, MaxParams: 1 << 30, After: &m.Snapshot, Ring: &RingConfig{Generation: GenerationsOf(s.term)}}
	var t Told
	for w, x := range s.ws {
		if !x.alive {
			c.Absent = append(c.Absent, star.Worker(w))
			continue
		}
		x.ring, x.member, x.forming, x.broken, x.release, x.riderBatch, x.late, x.told = wire.Ring{}, false, false, false, nil, nil, nil, false
		if x.version >= m.Version {
			t.With = append(t.With, x.id)
			t.Tallies = append(t.Tallies, x.tallies...)
		}
	}
	if len(t.With) == 0 {
		s.t.Skip("nobody is left who has the parameters")
	}
	s.r = NewRing(c)
	s.issue(s.r.Resume(t))
}

// alive counts those who are.
func (s *sea) alive() (n int) {
	for _, w := range s.ws {
		if w.alive {
			n++
		}
	}
	return n
}

// step does one thing out of all that can be done; false: there is nothing.
func (s *sea) step() bool {
	var can []func()
	for _, w := range s.ws {
		if len(w.out) > 0 {
			can = append(can, func() { s.hear(w) })
		}
		if !w.alive {
			continue
		}
		w.interrupted()
		if len(w.shut) > 0 {
			can = append(can, func() { w.closed, w.shut = w.shut[0], w.shut[1:] })
		}
		if w.release != nil && w.release.Micro > 0 {
			_, in := s.rounds[[2]int64{w.ring.Generation, w.release.Version}][w.id]
			switch {
			case !w.told:
				can = append(can, func() { s.tell(w) })
			case !in && w.around(w.closed):
				can = append(can, func() { s.join(w) })
			}
		}
		if w.release != nil && w.release.Part > 0 {
			if _, in := s.rounds[[2]int64{w.ring.Generation, w.release.Version}][w.id]; !in {
				can = append(can, func() { s.takes(w) })
			}
		}
		if s.ready(w) {
			can = append(can, func() { s.end(w) })
		}
		if w.release == nil && !w.forming && len(w.in) > 0 {
			can = append(can, func() { s.read(w) })
		}
	}
	if s.r.fault != "" {
		can = append(can, func() {
			orders, evict, err := s.r.mend()
			if err != nil || evict >= 0 {
				s.t.Fatalf("mend: %v, worker %d", err, evict)
			}
			s.issue(orders)
		})
	}
	if len(can) == 0 {
		return false
	}
	rapid.SampledFrom(can).Draw(s.t, "what")()
	return true
}

// Whatever happens in whatever order: no sample is lost or applied twice, all
// members have applied the same, and the coordinator knows it.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "workers")
		limit := int64(rapid.IntRange(0, 150).Draw(t, "limit"))
		plan := modes.SSGD(n)
		s := &sea{t: t, rounds: map[[2]int64]map[star.Worker][]Span{}, formed: map[int64]*swimmer{}, lists: map[int64]string{}}
		if k := rapid.IntRange(0, n-1).Draw(t, "riders"); k > 0 {
			var riders []star.Worker
			for w := range k {
				riders = append(riders, star.Worker(n-1-w))
			}
			plan = modes.Ring(n, riders...)
		}
		for w := range n {
			s.ws = append(s.ws, &swimmer{id: star.Worker(w), alive: true, seats: map[star.Worker]*berth{}})
		}
		if s.closes = rapid.Bool().Draw(t, "closed rounds"); s.closes {
			plan = s.partial()
		} else if s.queues = rapid.Bool().Draw(t, "queues"); s.queues {
			plan = s.queue()
		}
		c := Config{Plan: plan, Workers: n, Batch: 3, Limit: limit, Ring: new(RingConfig), MaxParams: 1 << 30}
		for w := range star.Worker(n) {
			if s.alive() > 1 && rapid.IntRange(0, 3).Draw(t, "comes later") == 0 {
				s.ws[w].alive = false
				c.Absent = append(c.Absent, w)
			}
		}
		s.r = NewRing(c)
		s.issue(s.r.Begin())
		joins := rapid.IntRange(0, 4).Draw(t, "joins")
		kills, changes, faults := rapid.IntRange(0, n-1).Draw(t, "kills"), rapid.IntRange(0, 4).Draw(t, "changes"), rapid.IntRange(0, 2).Draw(t, "faults")
		takes := 0
		if !s.closes {
			takes = rapid.IntRange(0, 3).Draw(t, "takes")
		}
		for steps := 0; ; steps++ {
			if steps > 20_000 {
				t.Fatal("the job never ends")
			}
			switch x := rapid.IntRange(0, 30).Draw(t, "event"); {
			case x == 0 && kills > 0:
				if w := s.ws[rapid.IntRange(0, n-1).Draw(t, "victim")]; w.alive && s.alive() > 1 {
					kills--
					w.alive, s.deaths = false, true
					w.out = append(w.out[:rapid.IntRange(0, len(w.out)).Draw(t, "heard")], gone{})
				}
			case x == 3 && s.joins < joins:
				s.come()
			case x == 4 && takes > 0:
				takes--
				s.takeOver()
			case x == 1 && changes > 0:
				changes--
				s.change()
			case x == 2 && faults > 0:
				if w := s.ws[rapid.IntRange(0, n-1).Draw(t, "faulty")]; w.alive && w.release != nil {
					faults--
					w.release, w.broken = nil, true
					w.out = append(w.out, wire.Fault{Worker: w.id, Generation: w.ring.Generation, Suspect: -1, Reason: "some reason"})
				}
			default:
				if !s.step() {
					s.check(limit)
					return
				}
			}
		}
	})
}

// check looks at a job in which nothing can happen any more.
func (s *sea) check(limit int64) {
	if !s.r.Drained() {
		s.t.Fatalf("the job hangs: rounds %+v, batches of riders %v, forming %v, waiting for %v", s.r.rounds, s.r.riderBatches, s.r.forming, s.r.Lacking())
	}
	if s.r.used+s.r.waste != limit || s.r.waste != 0 && !s.closes {
		s.t.Fatalf("the coordinator counts %d samples, and %d dropped; want %d", s.r.used, s.r.waste, limit)
	}
	for _, m := range s.r.now.members {
		w := s.ws[m]
		if w.version != s.r.version {
			s.t.Fatalf("worker %d has version %d, the coordinator counts %d; ring %+v, forming %v, broken %v, next orders %v; the coordinator: %+v",
				m, w.version, s.r.version, w.ring, w.forming, w.broken, w.in, s.r.now)
		}
		if !slices.Equal(w.history, s.ws[s.r.now.members[0]].history) {
			s.t.Fatalf("worker %d has applied %v, worker %d %v", m, w.history, s.r.now.members[0], s.ws[s.r.now.members[0]].history)
		}
		count := make([]int, limit)
		for _, span := range w.history {
			for i := range span.Count {
				count[span.Start+int64(i)]++
			}
		}
		applied := int64(0)
		for i, k := range count {
			applied += int64(k)
			if k > 1 || k < 1 && !s.closes {
				s.t.Fatalf("worker %d has applied sample %d %d times: %v", m, i, k, w.history)
			}
		}
		if applied != s.r.used {
			s.t.Fatalf("worker %d has applied %d samples, the coordinator counts %d", m, applied, s.r.used)
		}
	}
}

// With one round ahead nobody waits: members are released for round r+1 before round r
// is complete, in order of rank, with the samples of a full ring's rounds.
func TestRingGrants(t *testing.T) {
	l := newShards(modes.Ring(4, 3), 4, 0, 10, 100)
	r := newRing(l, wire.Ring{Wait: 5, MaxStale: 7})
	var got []string
	show := func(orders []Ready) string {
		got = got[:0]
		for _, o := range orders {
			if o.Fire.Seq > 0 {
				got = append(got, fmt.Sprintf("v%d:%d", o.Fire.Version, o.Used))
			}
			for _, m := range o.Rings {
				got = append(got, fmt.Sprintf("ring%d→%d", m.Msg.Generation, m.Worker))
			}
			for _, m := range o.Releases {
				got = append(got, fmt.Sprintf("%d@%d:%d+%d/%d", m.Worker, m.Version, m.Start, m.Count, m.Total))
			}
		}
		return strings.Join(got, " ")
	}
	made := func(w star.Worker, version int64, carried ...wire.Gradient) string {
		orders, err := r.Tally(wire.Tally{Worker: w, Generation: 1, Version: version, Carried: carried})
		if err != nil {
			t.Fatal(err)
		}
		return show(orders)
	}
	for _, c := range []struct{ got, want string }{
		{show(r.Begin()), "ring1→0 ring1→1 ring1→2 0@0:0+10/30 1@0:10+10/30 2@0:20+10/30 ring1→3 3@0:30+10/0 0@1:40+10/30 1@1:50+10/30 2@1:60+10/30"},
		{made(0, 1), ""},
		{made(2, 1), ""},
		{made(0, 2), ""},
		{made(1, 1), "v1:30 0@2:70+10/30 1@2:80+10/30 2@2:90+10/30"},
		{show(r.Install(modes.SSGD(4))), "ring2→0 ring2→1 ring2→2 ring2→3"},
		{made(1, 2), ""},
		{made(2, 2, wire.Gradient{Worker: 3, Step: 30}), "v2:70"}, // the rider's too; nothing is left to hand out
		{made(0, 3), ""},
		{made(1, 3), ""},
		{made(2, 3), "v3:100"},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
	if !r.Drained() || r.staleness[1] != 1 || r.staleness[0] != 9 {
		t.Errorf("drained: %v, staleness %v", r.Drained(), r.staleness)
	}
}

// A rider may have got a later version than that it was released with: how stale its gradient is is told by who has carried it, or by its record, whichever comes
// first. Neither makes it staler than its release, nor younger than the round.
func TestHowStaleRidersAre(t *testing.T) {
	for name, c := range map[string]struct {
		record, again int64 // bases of records before and after the round; -1: none
		behind        []int // of the round that makes version 4
		want          int64
	}{
		"nobody says":                     {-1, -1, nil, 3},
		"who has carried it":              {-1, -1, []int{2}, 1},
		"another member":                  {-1, -1, []int{0}, 3},
		"its record":                      {2, -1, nil, 1},
		"both":                            {2, 2, []int{2}, 1},
		"a version that was given up":     {9, -1, nil, 0},
		"older than its release":          {-1, -1, []int{9}, 3},
		"as old as the round":             {3, -1, []int{1}, 0},
		"the record of the next gradient": {-1, 3, []int{4}, 3},
	} {
		l := newShards(modes.Ring(3, 2), 3, 0, 10, 1000)
		r := newRing(l, wire.Ring{})
		r.Begin()
		rides := func(basis int64) {
			if e := r.riderBatches[2]; basis >= 0 {
				r.arrive(star.Record{Worker: 2, Step: r.states[2].step, Basis: basis, Samples: e.Count})
			}
		}
		for v := int64(1); v <= 3; v++ {
			made(t, r, v, 0, 1)
		}
		rides(c.record)
		var last []Ready
		for w, behind := range [][]int{c.behind, nil} { // who has carried it speaks first, and is remembered
			o, err := r.Tally(wire.Tally{Worker: star.Worker(w), Generation: 1, Version: 4, Carried: []wire.Gradient{{Worker: 2, Step: r.riderBatches[2].Start}}, Behind: behind})
			if err != nil {
				t.Fatal(name, err)
			}
			last = slices.Clone(o)
		}
		rides(c.again)
		if got := last[0].Stale; !slices.Equal(got, []int64{0, 0, c.want}) || r.staleness[c.want] == 0 {
			t.Errorf("%s: staleness %v of %d gradients, counted %v; want %d for the rider", name, got, len(got), r.staleness, c.want)
		}
	}
	r, _ := ridden(t)
	m := wire.Tally{Generation: 1, Version: 2, Carried: []wire.Gradient{{Worker: 2, Step: r.riderBatches[2].Start}}, Behind: []int{1, 1}}
	if _, err := r.Tally(m); err == nil || !strings.Contains(err.Error(), "of 2 gradients of riders how stale they are, and has carried 1") {
		t.Errorf("of two gradients where it has carried one: %v", err)
	}
}

// A rider whose parent changes is told to send its gradient again, unless it was carried; one
// that becomes a member, and one that is gone, have their batches handed out again.
func TestRidersKeepTheirBatches(t *testing.T) {
	l := newShards(modes.Ring(5, 2, 3, 4), 5, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin()
	batch := func(w star.Worker) int64 { return r.riderBatches[w].Start }
	two, three, four := batch(2), batch(3), batch(4)
	r.Install(modes.Ring(5, 0, 2, 3)) // 4 joins the ring, 0 leaves it
	var orders []Ready
	for v := int64(1); v <= 2; v++ {
		for w := range star.Worker(2) {
			m := wire.Tally{Worker: w, Generation: 1, Version: v}
			if v == 2 {
				m.Carried = []wire.Gradient{{Worker: 2, Step: two}, {Worker: 3, Step: two}} // 3 has no such batch
			}
			var err error
			if orders, err = r.Tally(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[star.Worker]wire.Release{}
	for _, o := range orders {
		for _, rel := range o.Releases {
			if r.now.rides(rel.Worker) {
				got[rel.Worker] = rel
			}
		}
	}
	if got[3].Start != three || !got[3].Pull || got[2].Start == two || got[2].Count != 10 || got[0].Count != 10 {
		t.Errorf("riders are released with %+v; want 3 at %d again, and new batches for 0 and 2", got, three)
	}
	if got[2].Start != four && got[0].Start != four {
		t.Errorf("the batch of 4, at %d, was not handed out again: %+v", four, got)
	}
}

// Rounds of a queue are whole ones, the last perhaps not, whatever was handed out beforehand: an optimiser with a memory goes on as far after a round of few samples as after another.
func TestRingQueueEnds(t *testing.T) {
	const n, batch, limit = 4, 8, 20*32 + 5
	plan, err := modes.Parse("ssgd queue=4", n)
	if err != nil {
		t.Fatal(err)
	}
	l := newShards(plan, n, 0, batch, limit)
	r := newRing(l, wire.Ring{})
	r.Begin()
	var sizes []int
	for len(r.rounds) > 0 {
		rd := &r.rounds[0]
		// The last member is slow: the first that are quicker take what there is, until they are told.
		m := wire.Tally{Generation: rd.generation, Version: r.version + 1, Samples: make([]int, n)}
		sum := 0
		for i := range n {
			m.Samples[i] = min(rd.parts[i], rd.whole(i))
			sum += m.Samples[i]
		}
		for i := 0; sum < n*batch && i < n; i++ {
			for sum < n*batch && m.Samples[i] < rd.whole(i) {
				if _, err = r.Computed(wire.Computed{Worker: star.Worker(i), Generation: rd.generation, Version: r.version, Samples: m.Samples[i]}); err != nil {
					t.Fatal(err)
				}
				k := min(rd.parts[i], rd.whole(i)-m.Samples[i])
				m.Samples[i], sum = m.Samples[i]+k, sum+k
			}
		}
		sizes = append(sizes, sum)
		for i := range n {
			m.Worker = star.Worker(i)
			if i == 0 { // who lies about it is not heeded
				lie := m
				lie.Samples = slices.Clone(m.Samples)
				lie.Samples[1] = rd.whole(1) + 1
				if _, err := r.Tally(lie); err == nil {
					t.Fatal("more samples than a member was given are counted")
				}
			}
			if _, err = r.Tally(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, k := range sizes {
		if k < n*batch && i < len(sizes)-1 || k >= n*batch+n*2 {
			t.Fatalf("rounds of %v samples, want %d", sizes, n*batch)
		}
	}
	if len(sizes) < 19 || r.used != limit || r.waste != 0 {
		t.Errorf("%d samples in rounds of %v, %d wasted", r.used, sizes, r.waste)
	}
}

// A plan that a ring cannot do is refused with what it can do.
func TestRingPlan(t *testing.T) {
	for text, ok := range map[string]bool{"ssgd": true, "ring-minus=1,2": true, "groups=0-2+3": true,
		"asgd": false, "x=2": false, "backup=1": false, "groups=0,1/2,3": false, "groups=0-2:2+3": false,
		"ssgd local=4": true, "ssgd micro=4 cap=1s": true, "x=2 micro=4 cap=1s": true, "backup=1 micro=4 cap=1s": true, "groups=0-2 held=3": true,
		"ssgd queue=4": true, "ssgd queue=4 shares=8,8,8,4": true} {
		p, err := modes.Parse(text, 4)
		if err != nil {
			t.Fatal(err)
		}
		if err := RingPlan(p); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "ring-minus") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Rings that fail without a round between end the job; a worker that two of them in a
// row have suspected is taken leave of.
func TestRingFaults(t *testing.T) {
	l := newShards(modes.SSGD(3), 3, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin()
	for try := 1; ; try++ {
		r.failed(0, r.now.generation-1, 2, "of a ring before this one") // the first time there is none
		r.failed(0, r.now.generation, -1, "nobody knows why")
		orders, evict, err := r.mend()
		if try > maxFaults {
			if err == nil || !strings.Contains(err.Error(), "nobody knows why") {
				t.Errorf("fault %d: %v, want an error with the reason", try, err)
			}
			break
		}
		if err != nil || evict >= 0 || len(orders) != 1 || len(orders[0].Rings) != 3 || !orders[0].Rings[0].Msg.Now {
			t.Fatalf("fault %d: %+v, worker %d, %v; want a ring of 3 at once", try, orders, evict, err)
		}
	}
	for w := range star.Worker(3) {
		if _, err := r.form(w, r.now.generation, 0); err != nil {
			t.Fatal(err)
		}
	}
	for w := range star.Worker(3) { // of a round that was given up
		if orders, err := r.Tally(wire.Tally{Worker: w, Generation: 1, Version: 1}); len(orders) > 0 || err != nil || r.version != 0 {
			t.Errorf("a tally of ring 1 makes version %d in ring %d, %v", r.version, r.now.generation, err)
		}
	}
	l = newShards(modes.SSGD(3), 3, 0, 10, 1000)
	r = newRing(l, wire.Ring{})
	r.Begin()
	r.failed(0, 1, 2, "no link to 2")
	r.mend()
	r.failed(0, r.now.generation, 2, "no link to 2")
	if _, evict, err := r.mend(); evict != 2 || err != nil {
		t.Errorf("worker %d, %v; want worker 2 to go", evict, err)
	}
}

// Who names whom, ring after ring, says who is cut off: the one that is in most of it.
func TestRingOutcast(t *testing.T) {
	for name, c := range map[string]struct {
		rings [][][2]int // in each, who names whom
		out   star.Worker
	}{
		"one hangs":                      {[][][2]int{{{0, 2}, {1, 2}}, {{1, 2}}}, 2},
		"two of two":                     {[][][2]int{{{0, 1}}, {{0, 1}}}, 1},
		"two that do not reach":          {[][][2]int{{{1, 2}}, {{2, 1}}, {{2, 1}}}, 1},
		"one is cut off from all others": {[][][2]int{{{1, 3}, {3, 0}}, {{3, 0}}}, 3},
		"damage here and there":          {[][][2]int{{{0, 1}}, {{1, 2}}, {{2, 3}}}, -1},
	} {
		l := newShards(modes.SSGD(4), 4, 0, 10, 1000)
		r := newRing(l, wire.Ring{})
		r.Begin()
		out := star.Worker(-1)
		for _, names := range c.rings {
			if out >= 0 {
				t.Errorf("%s: worker %d is taken leave of before the last ring", name, out)
			}
			for _, n := range names {
				r.failed(star.Worker(n[0]), r.now.generation, n[1], "no byte has moved")
			}
			var err error
			if _, out, err = r.mend(); err != nil {
				t.Fatal(err)
			}
		}
		if out != c.out {
			t.Errorf("%s: worker %d is taken leave of, want %d", name, out, c.out)
		}
	}
}

// A round that is closed has those who were first; what is late is in no update, in the next one, or corrects it.
func TestClosedRounds(t *testing.T) {
	for _, c := range []struct {
		drop, corrects bool
		late           []star.Worker
		total          int64
		used, waste    int64
	}{
		{drop: true, total: 20, used: 40, waste: 20},
		{late: []star.Worker{2}, total: 24, used: 44, waste: 16},
		{drop: true, corrects: true, late: []star.Worker{2}, total: 20, used: 40, waste: 20},
	} {
		p := modes.XOrder(3, 2)
		p.Groups[0].DropLate, p.Micro, p.ComputeDeadline = c.drop, 5, time.Hour
		l := newShards(p, 3, 0, 10, 60)
		l.halts = c.corrects
		r := newRing(l, wire.Ring{})
		r.Begin()
		say := func(w star.Worker, version int64, samples int) []Ready {
			t.Helper()
			o, err := r.Computed(wire.Computed{Worker: w, Generation: r.generation, Version: version, Samples: samples})
			if err != nil {
				t.Fatal(err)
			}
			return slices.Clone(o)
		}
		var last wire.Close
		for v := range int64(2) {
			if o := say(1, v, 10); len(o) > 0 {
				t.Fatalf("one of two closes a round: %+v", o)
			}
			if ws := r.Lacking(); !slices.Equal(ws, []star.Worker{0, 2}) {
				t.Errorf("round %d lacks %v", v, ws)
			}
			o := say(0, v, 10)
			if len(o) != 1 || len(o[0].Closes) != 3 {
				t.Fatalf("round %d: %+v, want a Close for each of 3", v, o)
			}
			last = o[0].Closes[2].Msg
			if !slices.Equal(last.First, []star.Worker{0, 1}) || v == 0 && (len(last.Late) > 0 || last.Total != 20) {
				t.Errorf("round %d: %+v", v, last)
			}
			if o := say(2, v, 4); len(o) > 0 {
				t.Errorf("round %d: who is late closes it again: %+v", v, o)
			}
			for w := range star.Worker(3) {
				if _, err := r.Tally(wire.Tally{Worker: w, Generation: r.generation, Version: v + 1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !slices.Equal(last.Late, c.late) || last.Total != c.total || r.used != c.used || r.waste != c.waste {
			t.Errorf("%+v: %+v, %d samples used and %d dropped", c, last, r.used, r.waste)
		}
	}
	// What nobody can have computed.
	p := modes.XOrder(2, 1)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 2, 0, 10, 60)
	r := newRing(l, wire.Ring{})
	r.Begin()
	for _, m := range []wire.Computed{{Worker: 0, Samples: 11}, {Worker: 0, Samples: 0}, {Worker: 5, Samples: 10}} {
		m.Generation = r.generation
		if _, err := r.Computed(m); err == nil {
			t.Errorf("%+v is believed", m)
		}
	}
	for _, m := range []wire.Computed{{Worker: 0, Samples: 10, Version: 7}, {Worker: 0, Samples: 10, Generation: 9}} {
		if _, err := r.Computed(m); err == nil {
			t.Errorf("%+v is believed", m)
		}
	}
	for _, m := range []wire.Computed{{Worker: 0, Samples: 10, Version: 2, Generation: 1}, {Worker: 0, Samples: 10}} {
		if o, err := r.Computed(m); err != nil || len(o) > 0 {
			t.Errorf("%+v, of no round there is: %v, %v", m, o, err)
		}
	}
}

// What is late of one ring is in no round of the next one, even where that closes a round before the old one's last is complete.
func TestLateOfAnotherRing(t *testing.T) {
	p := modes.XOrder(3, 2)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 3, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin()
	old := r.generation
	say := func(generation int64, version int64, ws ...star.Worker) (last []Ready) {
		t.Helper()
		for _, w := range ws {
			o, err := r.Computed(wire.Computed{Worker: w, Generation: generation, Version: version, Samples: 10})
			if err != nil {
				t.Fatal(err)
			}
			last = slices.Clone(o)
		}
		return last
	}
	q := modes.XOrder(3, 1)
	q.Micro, q.ComputeDeadline = 5, time.Hour
	r.Install(q)
	if r.generation == old || r.staged == nil || r.staged.from != 2 {
		t.Fatalf("generation %d, staged %+v: want another ring from round 2 on", r.generation, r.staged)
	}
	say(old, 0, 0, 1, 2)
	for w := range star.Worker(3) {
		if _, err := r.Tally(wire.Tally{Worker: w, Generation: old, Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	say(old, 1, 0, 1, 2) // worker 2 is late, and round 1 is complete for nobody yet
	o := say(r.generation, 2, 0)
	if len(o) != 1 || len(o[0].Closes) != 3 || len(o[0].Closes[0].Msg.Late) > 0 || o[0].Closes[0].Msg.Total != 10 {
		t.Errorf("%+v, want round 2 closed with the gradient of worker 0 alone", o)
	}
}

// With a time after which no part is begun (DropCompute) everybody is in the round, with the samples that it had time for.
func TestRoundsOfParts(t *testing.T) {
	p := modes.SSGD(2)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 2, 0, 10, 20)
	r := newRing(l, wire.Ring{})
	r.Begin()
	for w, have := range []int{10, 4} {
		if _, err := r.Computed(wire.Computed{Worker: star.Worker(w), Generation: r.generation, Samples: have}); err != nil {
			t.Fatal(err)
		}
	}
	for w := range star.Worker(2) {
		if _, err := r.Tally(wire.Tally{Worker: w, Generation: r.generation, Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if r.used != 14 || r.waste != 6 || !r.Drained() {
		t.Errorf("%d samples used and %d not, drained %v; want 14 and 6", r.used, r.waste, r.Drained())
	}
}
