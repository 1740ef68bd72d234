package election

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"pgregory.net/rapid"
)

// world is members without network and clock: messages take as long as chance wants, or do not come; members stand
// still and their clocks tick late; others come in their place.
type world struct {
	t           fataler
	chance      *rand.Rand
	now         time.Duration
	members     []*player // the founders, by rank; then those that came later
	places      int
	wires       []letter
	cut         map[[2]int]bool
	notes       map[string]uint64 // that were said to be agreed on: the term in which
	last        string            // of them
	leaderships map[uint64]uint64 // by term: the member that led
	newest      uint64
	first       time.Duration // how far the clock of the first leader is ahead
}

type fataler interface {
	Fatalf(format string, args ...any)
}

type player struct {
	*core
	rank    int
	ahead   time.Duration // of its own clock
	asleep  time.Duration // until then
	next    time.Duration // when it ticks
	dead    bool
	life    [processIDLen]byte // of a member that came later
	ask     map[uint64]string
	pending []letter
	disk    []raftpb.Message // records
	synced  int              // of them
}

// keeps has a player write down what it must.
func (p *player) keeps() {
	p.keep = func(r raftpb.Message, sync bool) {
		b, err := r.Marshal()
		if err != nil {
			panic(err)
		}
		p.disk = append(p.disk, raftpb.Message{})
		if err := p.disk[len(p.disk)-1].Unmarshal(b); err != nil {
			panic(err)
		}
		if sync {
			p.synced = len(p.disk)
		}
	}
	p.kept = func() { // like a file that is rewritten
		p.disk, p.synced = nil, 0
		p.keep(whole(p.store), true)
	}
	p.kept()
}

// again has a player that has died begin again with what is on its disk: all that it had to wait for, and some of the
// rest.
func (w *world) again(p *player) {
	p.disk = p.disk[:p.synced+w.chance.IntN(len(p.disk)-p.synced+1)]
	c, err := restore(p.self, p.disk, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatalf("member %d from its disk: %v", p.rank, err)
	}
	c.short = p.core.short
	p.core, p.dead, p.pending, p.ahead, p.asleep = c, false, nil, -w.now, 0
	p.next = w.now + time.Duration(w.chance.Int64N(int64(beat)))
	clear(p.ask)
	p.synced = len(p.disk)
	p.keeps()
}

func (p *player) own(w *world) time.Duration { return w.now + p.ahead }

// clock is the time by the clock of all members, as it has it.
func (p *player) clock(w *world) time.Duration { return p.own(w) + p.common }

type letter struct {
	from *player
	to   int // rank
	at   time.Duration
	msg  raftpb.Message
}

func newWorld(t fataler, members int, seed uint64) *world {
	w := &world{t: t, places: members, chance: rand.New(rand.NewPCG(seed, 1)), cut: map[[2]int]bool{}, notes: map[string]uint64{}, leaderships: map[uint64]uint64{}}
	for r := range members {
		c, err := newCore(r, members, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%v", err)
		}
		w.members = append(w.members, &player{core: c, rank: r, next: time.Duration(w.chance.Int64N(int64(beat))), ask: map[uint64]string{}})
		w.members[r].keeps()
	}
	return w
}

// another has a process come in the place of one that is dead, or that sleeps.
func (w *world) another(rank int) *player {
	var id [processIDLen]byte
	binary.BigEndian.PutUint64(id[:], w.chance.Uint64())
	c, err := newLateCore(lateID(rank, id), slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	p := &player{core: c, rank: rank, ahead: -w.now, life: id, next: w.now + time.Duration(w.chance.Int64N(int64(beat))), ask: map[uint64]string{}}
	w.members = append(w.members, p)
	p.keeps()
	return p
}

// letIn has the leader let in those that have come. Each place is asked for by the last process that has come there.
func (w *world) letIn(p *player) {
	if p.term == 0 {
		return
	}
	last := map[int]*player{}
	for _, o := range w.members[w.places:] {
		if !o.dead && !w.cut[[2]int{o.rank, p.rank}] && w.now >= o.asleep {
			last[o.rank] = o
		}
	}
	for rank := range w.places {
		if o := last[rank]; o != nil && !p.votes(o.self) && p.vacant(rank) {
			p.admit(rank, o.life)
		}
	}
}

// usable says whether a majority of the voters is alive, as every living member knows them.
func (w *world) usable(without *player) bool {
	for _, p := range w.members {
		if p.dead || len(p.conf.Voters) == 0 {
			continue
		}
		for _, voters := range [][]uint64{p.conf.Voters, p.conf.VotersOutgoing} {
			dead := 0
			for _, id := range voters {
				if slices.ContainsFunc(w.members, func(o *player) bool { return o.self == id && (o.dead || o == without) }) {
					dead++
				}
			}
			if len(voters) > 0 && dead > (len(voters)-1)/2 {
				return false
			}
		}
	}
	return true
}

// run lets d pass, a millisecond at a time, and looks after each whether what was promised holds.
func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; w.now += time.Millisecond {
		rest := w.wires[:0]
		var due []letter
		for _, l := range w.wires {
			if l.at <= w.now {
				due = append(due, l)
			} else {
				rest = append(rest, l)
			}
		}
		w.wires = rest
		for _, l := range due {
			for _, p := range w.members {
				if p.rank == l.to && p.self == l.msg.To && !p.dead && !w.cut[[2]int{l.from.rank, l.to}] {
					p.pending = append(p.pending, l)
				}
			}
		}
		for _, p := range w.members {
			if p.dead || w.now < p.asleep {
				continue
			}
			for _, l := range p.pending {
				if err := p.step(l.from.self, l.msg, p.own(w)); err != nil {
					w.t.Fatalf("member %d: %v", p.rank, err)
				}
				w.settle(p)
			}
			p.pending = p.pending[:0]
			if w.now >= p.next { // a ticker keeps one tick for a late receiver
				p.tick(p.own(w))
				w.letIn(p)
				if p.next += beat; p.next < w.now {
					p.next = w.now/beat*beat + p.next%beat
				}
				w.settle(p)
			}
		}
		w.check()
	}
}

// settle does what a member's input made due.
func (w *world) settle(p *player) {
	msgs, err := p.ready()
	if err != nil {
		w.t.Fatalf("member %d: %v", p.rank, err)
	}
	for _, m := range msgs {
		b, err := m.Marshal()
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		l := letter{from: p, to: rankOf(m.To), at: w.now + time.Duration(w.chance.Int64N(int64(30*time.Millisecond)))}
		if err := l.msg.Unmarshal(b); err != nil {
			w.t.Fatalf("%v", err)
		}
		w.wires = append(w.wires, l)
	}
	for _, id := range p.done {
		w.notes[p.ask[id]], w.last = p.term, p.ask[id]
	}
	p.done = p.done[:0]
	if p.term == 0 {
		clear(p.ask)
		return
	}
	if who, ok := w.leaderships[p.term]; ok && who != p.self {
		w.t.Fatalf("at %v members %x and %x have the leadership of term %d", w.now, who, p.self, p.term)
	}
	if _, ok := w.leaderships[p.term]; !ok {
		w.leaderships[p.term] = p.self
		if p.term < w.newest {
			w.t.Fatalf("at %v a leadership of term %d begins after one of term %d", w.now, p.term, w.newest)
		}
		w.newest = p.term
		if w.last != "" && len(p.ask) == 0 && !w.knows(p, w.last) {
			w.t.Fatalf("at %v the leadership of term %d begins without %q, which was agreed on in term %d; it has %q", w.now, p.term, w.last, w.notes[w.last], p.state.Note)
		}
	}
}

// knows says whether a member has that note, or one that was proposed later: the member that proposed it may not have
// heard that it was agreed on.
func (w *world) knows(p *player, note string) bool {
	var have, want int
	fmt.Sscan(string(p.state.Note), &have)
	for _, more := range p.state.Added { // in order
		before := have
		if fmt.Sscan(string(more), &have); have <= before {
			w.t.Fatalf("at %v member %d has %q after %q in %q", w.now, p.rank, more, p.state.Note, p.state.Added)
		}
	}
	fmt.Sscan(note, &want)
	return have >= want
}

func (w *world) check() {
	var held []int
	for _, p := range w.members {
		if !p.dead && p.holds(p.own(w)) {
			held = append(held, p.rank)
		}
	}
	if len(held) > 1 {
		w.t.Fatalf("at %v members %v all hold the lease", w.now, held)
	}
	for _, p := range w.members { // messages take time, so no member is ahead of the first leader's clock
		if p.term > 0 && p.clock(w) > w.now+w.first {
			w.t.Fatalf("at %v the clock of member %d is %v ahead", w.now, p.rank, p.clock(w)-w.now-w.first)
		}
	}
}

// holder is the member that holds the lease; -1: none does.
func (w *world) holder() int {
	return slices.IndexFunc(w.members, func(p *player) bool { return !p.dead && p.holds(p.own(w)) })
}

func (w *world) await(limit time.Duration) int {
	for end := w.now + limit; w.now < end; {
		w.run(10 * time.Millisecond)
		if r := w.holder(); r >= 0 {
			return r
		}
	}
	w.t.Fatalf("nobody holds the lease for %v", limit)
	return -1
}

// Whatever happens to messages and members, at most one of them holds the lease, leaderships follow each other in order
// of their terms, and each begins with all that was agreed on before.
func TestOnlyOneReigns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.SampledFrom([]int{3, 5}).Draw(t, "members"), rapid.Uint64().Draw(t, "seed"))
		k := w.places
		short := rapid.SampledFrom([]uint64{2, compactAfter}).Draw(t, "log")
		for _, p := range w.members {
			p.short = short
		}
		proposed := 0
		for range rapid.IntRange(5, 30).Draw(t, "events") {
			p := w.members[rapid.IntRange(0, len(w.members)-1).Draw(t, "who")]
			who := p.rank
			switch what := rapid.SampledFrom([]string{"cut", "oneway", "heal", "sleep", "kill", "kill", "another", "another", "again", "again", "resign", "note", "add", "add", "campaign"}).Draw(t, "event"); what {
			case "cut": // it reaches no member, and no member reaches it
				for o := range k {
					w.cut[[2]int{who, o}], w.cut[[2]int{o, who}] = true, true
				}
			case "oneway":
				w.cut[[2]int{who, rapid.IntRange(0, k-1).Draw(t, "to")}] = true
			case "heal":
				clear(w.cut)
			case "sleep":
				p.asleep = w.now + time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms"))*time.Millisecond
			case "kill":
				if w.usable(p) {
					p.dead = true
				}
			case "another": // it comes while the one before is dead, sleeps or is cut off, or for no reason at all
				w.another(who).short = short
			case "again": // with its disk
				if p.dead {
					w.again(p)
				}
			case "resign":
				if r := w.holder(); r >= 0 {
					w.members[r].resign()
					w.settle(w.members[r])
				}
			case "note", "add":
				if r := w.holder(); r >= 0 {
					p := w.members[r]
					proposed++
					text := fmt.Sprint(proposed)
					if id, err := p.proposeEntry(entry{Note: []byte(text), Add: what == "add"}); err == nil {
						p.ask[id] = text
						w.settle(p)
					}
				}
			case "campaign":
				if !p.dead && w.now >= p.asleep {
					p.campaign()
					w.settle(p)
				}
			}
			w.run(time.Duration(rapid.IntRange(1, 1500).Draw(t, "pass")) * time.Millisecond)
		}
		// A majority is alive and can talk: it finds a leader. A change of voters that was on its way may have come
		// through since a member was killed: then the living voters may be too few.
		clear(w.cut)
		for _, p := range w.members {
			p.asleep = 0
		}
		w.run(20 * time.Second)
		if w.holder() < 0 && w.usable(nil) {
			t.Fatalf("nobody holds the lease for %v", 20*time.Second)
		}
	})
}

// All members share a clock, which goes on when another one leads that began at another time, also one that came later.
func TestOneClock(t *testing.T) {
	w := newWorld(t, 3, 7)
	w.members[0].ahead, w.members[1].ahead, w.members[2].ahead = time.Hour, 0, 9*time.Hour
	w.first = time.Hour
	w.members[0].campaign()
	w.settle(w.members[0])
	for n := range 6 {
		r := w.await(10 * time.Second)
		p := w.members[r]
		if off := w.now + w.first - p.clock(w); off < 0 || off > time.Duration(n)*30*time.Millisecond {
			t.Errorf("leader %d, member %d: its clock is %v behind", n, p.rank, off)
		}
		w.run(time.Second)
		p.dead = true
		late := w.another(p.rank)
		w.run(12 * time.Second)
		if len(late.conf.Voters) == 0 {
			t.Fatalf("who came in the place of member %d was not let in", p.rank)
		}
	}
}

// Among the clock readings of one leader the one with the shortest time on its way counts; the next leader starts over.
func TestFollow(t *testing.T) {
	c := new(core)
	for _, q := range []struct {
		term           uint64
		now, says, has time.Duration
	}{{2, 10, 110, 100}, {2, 20, 115, 100}, {2, 30, 135, 105}, {3, 40, 100, 60}, {3, 50, 105, 60}} {
		c.now = q.now
		if c.follow(q.term, q.says); c.common != q.has {
			t.Errorf("at %d, told %d in term %d: %d ahead, want %d", q.now, q.says, q.term, c.common, q.has)
		}
	}
}

// When the leader is gone another one leads within the 6 s that are promised, and knows what was noted. The two members
// that are left draw the time of their candidacy, and one time in ten it is the same and they draw again: more than 6 s
// is three such draws in a row.
func TestASuccessorIsThereInTime(t *testing.T) {
	late := 0
	for seed := range uint64(40) {
		w := newWorld(t, 3, seed)
		w.members[0].campaign()
		w.settle(w.members[0])
		first := w.await(time.Second)
		p := w.members[first]
		id, err := p.propose([]byte("1"), false)
		if err != nil {
			t.Fatal(err)
		}
		p.ask[id] = "1"
		w.settle(p)
		w.run(time.Second)
		if w.last != "1" {
			t.Fatalf("seed %d: a note was not agreed on within a second", seed)
		}
		p.dead = true
		at := w.now
		second := w.await(10 * time.Second)
		if w.now-at > 6*time.Second {
			late++
		}
		if got := string(w.members[second].state.Note); got != "1" {
			t.Errorf("seed %d: the second leadership begins with note %q, want 1", seed, got)
		}
		if w.members[second].term <= p.term {
			t.Errorf("seed %d: the second leadership has term %d, the first had %d", seed, w.members[second].term, p.term)
		}
	}
	if late > 2 {
		t.Errorf("of 40 times it took %d times more than 6 s until somebody else reigned", late)
	}
}

// A leader that is cut off stops holding the lease before anybody else has it, without hearing of it.
func TestTheLeaseEndsByItself(t *testing.T) {
	w := newWorld(t, 3, 7)
	w.members[0].campaign()
	w.settle(w.members[0])
	first := w.await(time.Second)
	for o := range 3 {
		w.cut[[2]int{first, o}], w.cut[[2]int{o, first}] = true, true
	}
	w.run(lease + 50*time.Millisecond)
	if w.members[first].holds(w.now) {
		t.Error("it holds the lease although nobody has heard of it for longer than that")
	}
	if _, err := w.members[first].propose([]byte("x"), false); err != nil {
		t.Fatalf("it leads, as far as it knows: %v", err)
	}
	second := w.await(10 * time.Second)
	if second == first {
		t.Fatal("who is cut off holds the lease")
	}
	w.run(3 * time.Second)
	clear(w.cut)
	w.run(3 * time.Second)
	if w.members[first].term != 0 || string(w.members[second].state.Note) == "x" || slices.Contains(w.members[first].done, 1) {
		t.Errorf("what the first one proposed while it was cut off came through: term %d, note %q", w.members[first].term, w.members[second].state.Note)
	}
}

// A member that has answered a leader's question neither campaigns nor votes while the leader relies on the answer,
// though it may have forgotten which leader it follows.
func TestPromise(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, 3, seed)
		w.members[0].campaign()
		w.settle(w.members[0])
		first := w.await(time.Second)
		b, c := (first+1)%3, (first+2)%3
		w.cut[[2]int{first, c}], w.cut[[2]int{c, first}] = true, true
		w.run(3 * time.Second) // c asks for votes in vain
		if w.holder() != first {
			t.Fatalf("seed %d: who was cut off from one of three has lost the lease", seed)
		}
		w.cut[[2]int{first, b}], w.cut[[2]int{b, first}] = true, true
		for range 70 {
			for _, p := range []*player{w.members[b], w.members[c]} {
				p.campaign()
				w.settle(p)
			}
			w.run(10 * time.Millisecond)
		}
		if next := w.await(5 * time.Second); next == first {
			t.Errorf("seed %d: who is cut off holds the lease", seed)
		}
	}

	// It hears of a later term, and forgets which leader it followed.
	var m *core
	var err error
	votes := func(at time.Duration) (granted bool) {
		for _, msg := range []raftpb.Message{
			{Type: raftpb.MsgPreVoteResp, From: 3, To: 2, Term: 4, Reject: true},
			{Type: raftpb.MsgVote, From: 3, To: 2, Term: 4, Index: 1, LogTerm: 1},
		} {
			if err := m.step(founderID(2), msg, at); err != nil {
				t.Fatal(err)
			}
			out, err := m.ready()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range out {
				granted = granted || o.Type == raftpb.MsgVoteResp && !o.Reject
			}
		}
		return granted
	}
	const asked = 5 * time.Second
	for _, msg := range []raftpb.Message{
		{Type: raftpb.MsgHeartbeat, From: 1, To: 2, Term: 3, Commit: 1},
		{Type: raftpb.MsgApp, From: 1, To: 2, Term: 3, Index: 1, LogTerm: 1, Commit: 1},
	} {
		if m, err = newCore(1, 3, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if err := m.step(founderID(0), msg, asked); err != nil {
			t.Fatal(err)
		}
		if _, err := m.ready(); err != nil {
			t.Fatal(err)
		}
		if votes(asked + lease) {
			t.Errorf("%v: it votes while the leader whom it answered may rely on it", msg.Type)
		}
		if !votes(asked + promise) {
			t.Errorf("%v: it does not vote when its promise is over", msg.Type)
		}
	}
}

// A member that was away for so long that the log no longer reaches back gets what it came to.
func TestALongLogIsCompacted(t *testing.T) {
	w := newWorld(t, 3, 3)
	w.members[0].campaign()
	w.settle(w.members[0])
	first := w.members[w.await(time.Second)]
	away := (first.rank + 1) % 3
	if _, err := first.proposeEntry(entry{Note: []byte("more"), Add: true}); err != nil {
		t.Fatal(err)
	}
	w.settle(first)
	if w.run(time.Second); len(w.members[away].state.Added) != 1 {
		t.Fatalf("%q is added", w.members[away].state.Added)
	}
	for o := range 3 {
		w.cut[[2]int{away, o}], w.cut[[2]int{o, away}] = true, true
	}
	const notes = 5 * compactAfter
	for i := range notes {
		id, err := first.propose([]byte(fmt.Sprint(i+1)), false)
		if err != nil {
			t.Fatal(err)
		}
		first.ask[id] = fmt.Sprint(i + 1)
		w.settle(first)
		w.run(2 * time.Millisecond)
	}
	w.run(time.Second)
	if n, _ := first.store.FirstIndex(); n < compactAfter {
		t.Errorf("after %d notes the log still begins at %d", notes, n)
	}
	clear(w.cut)
	w.run(5 * time.Second)
	if got := string(w.members[away].state.Note); got != fmt.Sprint(notes) {
		t.Errorf("who was away knows note %q, want %d", got, notes)
	}
	if more := w.members[away].state.Added; len(more) > 0 {
		t.Errorf("who was away has %q still, in the place of which there are notes", more)
	}
}

// What was added is not there any more with a snapshot that was made after a note took its place, though nothing
// follows the snapshot that would say so.
func TestASnapshotForgetsWhatWasAdded(t *testing.T) {
	w := newWorld(t, 3, 3)
	for _, p := range w.members {
		p.short = 2
	}
	w.members[0].campaign()
	w.settle(w.members[0])
	first := w.members[w.await(time.Second)]
	away := w.members[(first.rank+1)%3]
	propose := func(e entry) {
		t.Helper()
		if _, err := first.proposeEntry(e); err != nil {
			t.Fatal(err)
		}
		w.settle(first)
		w.run(time.Second)
	}
	propose(entry{Note: []byte("more"), Add: true})
	if len(away.state.Added) != 1 {
		t.Fatalf("%q is added", away.state.Added)
	}
	for o := range 3 {
		w.cut[[2]int{away.rank, o}], w.cut[[2]int{o, away.rank}] = true, true
	}
	last := func() bool { // the snapshot has all that was agreed on, the log begins after what the absent member has
		snap, _ := first.store.Snapshot()
		begins, _ := first.store.FirstIndex()
		return snap.Metadata.Index == first.lastIndex() && begins > away.lastIndex()+1
	}
	for i := 0; !last(); i++ {
		if i > 20 {
			t.Fatal("no snapshot is the last that was agreed on")
		}
		propose(entry{Note: fmt.Append(nil, "note ", i)})
	}
	clear(w.cut)
	w.run(5 * time.Second)
	if got, want := string(away.state.Note), string(first.state.Note); got != want || len(away.state.Added) > 0 {
		t.Errorf("who was away knows note %q, want %q, and still has %q, in the place of which it is", got, want, away.state.Added)
	}
}

// What another member says is looked at before it is believed.
func TestBadMessagesAreRefused(t *testing.T) {
	c, err := newCore(1, 3, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]raftpb.Message{
		"of somebody else":  {Type: raftpb.MsgHeartbeat, From: 3, To: 2, Term: 2},
		"to somebody else":  {Type: raftpb.MsgHeartbeat, From: 1, To: 3, Term: 2},
		"a local one":       {Type: raftpb.MsgHup, From: 1, To: 2},
		"a proposal":        {Type: raftpb.MsgProp, From: 1, To: 2, Entries: []raftpb.Entry{{Data: []byte("{}")}}},
		"far in the future": {Type: raftpb.MsgHeartbeat, From: 1, To: 2, Term: 9, Commit: 1000},
		"without a term":    {Type: raftpb.MsgApp, From: 1, To: 2, Index: 1, LogTerm: 1},
		"a number twice":    {Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Commit: 3, Entries: []raftpb.Entry{{Term: 2, Index: 2}, {Term: 2, Index: 2}}},
		"a gap":             {Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Entries: []raftpb.Entry{{Term: 2, Index: 3}}},
		"a later term":      {Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Entries: []raftpb.Entry{{Term: 3, Index: 2}}},
		"terms backwards":   {Type: raftpb.MsgApp, From: 1, To: 2, Term: 3, Index: 1, LogTerm: 1, Entries: []raftpb.Entry{{Term: 3, Index: 2}, {Term: 2, Index: 3}}},
		"of no term":        {Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, Entries: []raftpb.Entry{{Index: 2}}},
		"in another kind":   {Type: raftpb.MsgHeartbeat, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Entries: []raftpb.Entry{{Term: 2, Index: 2}}},
	} {
		if err := c.step(founderID(0), m, 0); err == nil {
			t.Errorf("%s: it was taken in", name)
		}
	}
	if _, err := c.ready(); err != nil || c.leads() || c.term != 0 {
		t.Errorf("after them: term %d, %v", c.term, err)
	}
}

// change is an entry that has another member vote.
func change(context []byte, remove, add uint64) raftpb.Entry {
	data, _ := (&raftpb.ConfChangeV2{Context: context, Changes: []raftpb.ConfChangeSingle{
		{Type: raftpb.ConfChangeRemoveNode, NodeID: remove}, {Type: raftpb.ConfChangeAddNode, NodeID: add}}}).Marshal()
	return raftpb.Entry{Term: 2, Index: 2, Type: raftpb.EntryConfChangeV2, Data: data}
}

// FuzzStep says that no message of another member ends the process, whatever it says.
func FuzzStep(f *testing.F) {
	for _, m := range []raftpb.Message{
		{Type: raftpb.MsgHeartbeat, From: 1, To: 2, Term: 2, Commit: 1},
		{Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Entries: []raftpb.Entry{{Term: 2, Index: 2, Data: []byte(`{"term":2,"rank":0,"begin":true}`)}}},
		{Type: raftpb.MsgVote, From: 1, To: 2, Term: 3, Index: 5, LogTerm: 2},
		{Type: raftpb.MsgVote, From: 1, To: 2, Term: 3, Index: 5, LogTerm: 2, Context: []byte(handedOver)},
		{Type: raftpb.MsgTimeoutNow, From: 1, To: 2, Term: 1},
		{Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Commit: 2, Entries: []raftpb.Entry{change([]byte(`{"2":{"life":[1,2],"turn":2}}`), 3, lateID(2, [processIDLen]byte{1, 2}))}},
		{Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Commit: 2, Entries: []raftpb.Entry{change(nil, 3, 0)}},
		{Type: raftpb.MsgApp, From: 1, To: 2, Term: 2, Index: 1, LogTerm: 1, Commit: 2, Entries: []raftpb.Entry{change([]byte("x"), 1, 1)}},
		{Type: raftpb.MsgSnap, From: 1, To: 2, Term: 3, Snapshot: &raftpb.Snapshot{Data: []byte("{}"), Metadata: raftpb.SnapshotMetadata{Index: 9, Term: 2, ConfState: raftpb.ConfState{Voters: []uint64{1, 2, 3}}}}},
		{Type: raftpb.MsgHeartbeatResp, From: 1, To: 2, Term: 1, Context: binary.BigEndian.AppendUint64(nil, 5)},
	} {
		b, err := m.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, leads bool) {
		var m raftpb.Message
		if m.Unmarshal(b) != nil {
			return
		}
		c, err := newCore(1, 3, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if leads {
			c.campaign()
			c.ready()
		}
		m.From, m.To = 1, 2
		if c.step(founderID(0), m, time.Second) == nil {
			c.ready()
		}
		c.tick(2 * time.Second)
		c.ready()
	})
}

// propose has members agree on a note in this leadership, or that all is over. done will have the ID.
func (c *core) propose(note []byte, over bool) (id uint64, err error) {
	return c.proposeEntry(entry{Note: note, Over: over})
}

// holds says whether this member has the lease at that time.
func (c *core) holds(now time.Duration) bool { return c.term > 0 && now < c.until }
