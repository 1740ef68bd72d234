package election

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// say has the leader propose a note, on which the members agree.
func (w *world) say(text string) {
	p := w.members[w.await(10*time.Second)]
	id, err := p.propose([]byte(text), false)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	p.ask[id] = text
	w.settle(p)
	for range 50 {
		if w.run(20 * time.Millisecond); w.last == text {
			return
		}
	}
	w.t.Fatalf("%q was not agreed on within a second", text)
}

// One founder after the other dies, and another process comes in its place. In the end none of the founders lives, and
// what they have noted is known.
func TestPlacesAreTakenAgain(t *testing.T) {
	for _, k := range []int{3, 5} {
		for seed := range uint64(10) {
			w := newWorld(t, k, seed)
			w.members[0].campaign()
			w.settle(w.members[0])
			w.say("1")
			for i := range k {
				old := w.members[i]
				old.dead = true
				p := w.another(old.rank)
				died := w.now
				for w.run(100 * time.Millisecond); !p.votes(p.self); w.run(100 * time.Millisecond) {
					if w.now-died > 20*time.Second {
						t.Fatalf("%d members, seed %d: nobody has the place of member %d after %v", k, seed, i, w.now-died)
					}
				}
				if waited := w.now - died; waited < vacantAfter-beat {
					t.Errorf("seed %d: member %d had lost its place after %v", seed, i, waited)
				}
				w.say(fmt.Sprint(i + 2))
			}
			last := w.members[w.await(10*time.Second)]
			if got := string(last.state.Note); got != fmt.Sprint(k+1) || len(last.conf.Voters) != k {
				t.Errorf("seed %d: in the end note %q, voters %x", seed, got, last.conf.Voters)
			}
			for rank := range k {
				if last.state.Places[rank].Turn != 2 {
					t.Errorf("seed %d: the place of member %d is had for the %dth time", seed, rank, last.state.Places[rank].Turn)
				}
			}
		}
	}
}

// A process that has a place and is alive keeps it, whichever process asks for it; so does the leader.
func TestAPlaceThatIsTaken(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.members[0].campaign()
	w.settle(w.members[0])
	w.say("1")
	for rank := range 3 {
		w.another(rank)
	}
	w.run(10 * time.Second)
	first := w.members[w.holder()]
	next, _ := first.successors()
	for _, p := range w.members[:3] {
		if p != first && p.self != next {
			p.asleep = w.now + 500*time.Millisecond // the next leader has not heard from it yet
		}
	}
	first.resign()
	w.settle(first)
	w.run(10 * time.Second)
	for _, p := range w.members[3:] {
		if p.votes(p.self) || p.index > 0 {
			t.Errorf("a process has the place of member %d, who is there", p.rank)
		}
	}
}

// After a handover another member leads at once: no member keeps its promise to the leader that resigned.
func TestResign(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, 3+2*int(seed%2), seed)
		w.members[0].campaign()
		w.settle(w.members[0])
		w.say("1")
		first := w.members[w.holder()]
		w.run(time.Second)
		if !first.resign() || first.holds(w.now) {
			t.Fatalf("seed %d: who has resigned holds the lease", seed)
		}
		w.settle(first)
		at := w.now
		second := w.members[w.await(5*time.Second)]
		if w.now-at > 400*time.Millisecond || second == first {
			t.Errorf("seed %d: after %v member %d holds the lease", seed, w.now-at, second.rank)
		}
		if string(second.state.Note) != "1" {
			t.Errorf("seed %d: the second leadership begins with note %q", seed, second.state.Note)
		}
		for dead, i := 0, 0; dead < w.places/2; i++ {
			if w.members[i] != second {
				w.members[i].dead = true
				dead++
			}
		}
		w.run(time.Second)
		if second.resign() || !second.holds(w.now) {
			t.Errorf("seed %d: with no majority but for it, the leader resigns", seed)
		}
	}
}

// Numbers of members tell places and processes apart.
func TestIDs(t *testing.T) {
	seen := map[uint64]bool{}
	for rank := range 9 {
		for _, id := range []uint64{founderID(rank), lateID(rank, [processIDLen]byte{}), lateID(rank, [processIDLen]byte{1}), lateID(rank, [processIDLen]byte{0xff, 0xff})} {
			if rankOf(id) != rank || id == 0 || seen[id] {
				t.Errorf("member %d has number %x, of member %d", rank, id, rankOf(id))
			}
			seen[id] = true
		}
	}
	if rankOf(0) != -1 {
		t.Errorf("nobody is member %d", rankOf(0))
	}
	if _, err := parseGreeting(make([]byte, processIDLen)); err == nil {
		t.Error("a greeting that is too short was taken")
	}
	for _, turn := range []int{late, fresh, founder, 7} {
		g := greeting{[processIDLen]byte{1, 2}, turn}
		if back, err := parseGreeting(g.append(nil)); err != nil || back != g {
			t.Errorf("%v came back as %v, %v", g, back, err)
		}
	}
}

// How a member answers a process that introduces itself.
func TestGreetings(t *testing.T) {
	a, b, c := [processIDLen]byte{1}, [processIDLen]byte{2}, [processIDLen]byte{3}
	for name, x := range map[string]struct {
		turn  int // of the member that judges
		has   map[int]holder
		who   greeting
		want  verdict
		notes bool // it is a founder from now on
	}{
		"a founder, new":                            {who: greeting{a, fresh}, want: known, notes: true},
		"a founder, again":                          {has: map[int]holder{1: {a, founder}}, who: greeting{a, founder}, want: known},
		"another one of its rank":                   {has: map[int]holder{1: {a, founder}}, who: greeting{b, fresh}, want: another},
		"one that knows that it is late":            {has: map[int]holder{1: {a, founder}}, who: greeting{b, late}, want: another},
		"one late of whom nobody knew":              {who: greeting{b, late}, want: unsure},
		"one that got the place":                    {has: map[int]holder{1: {b, 2}}, who: greeting{b, 2}, want: known},
		"one that got it, as is not known here yet": {has: map[int]holder{1: {a, founder}}, who: greeting{b, 2}, want: unsure},
		"a founder whose place another one got":     {has: map[int]holder{1: {b, 2}}, who: greeting{a, founder}, want: replaced},
		"the second, when the third has the place":  {has: map[int]holder{1: {c, 3}}, who: greeting{b, 2}, want: replaced},
		"a new one, when the second has the place":  {has: map[int]holder{1: {b, 2}}, who: greeting{c, fresh}, want: another},
		"one late, when the second has the place":   {has: map[int]holder{1: {b, 2}}, who: greeting{c, late}, want: another},
		"a new one, to one who is late":             {turn: late, who: greeting{a, fresh}, want: unsure},
		"a new one, to one who came late":           {turn: 2, who: greeting{a, fresh}, want: another},
		"a founder, to one who came late":           {turn: 2, who: greeting{a, founder}, want: unsure},
	} {
		m, err := New(Config{Members: make([]string, 3)})
		if err != nil {
			t.Fatal(err)
		}
		m.turn = x.turn
		for r, h := range x.has {
			m.lives[r] = h
		}
		if got := m.greet(1, x.who); got != x.want {
			t.Errorf("%s: told %d, want %d", name, got, x.want)
		}
		if h, ok := m.lives[1]; ok != (x.notes || len(x.has) > 0) || x.notes && h.Life != x.who.life {
			t.Errorf("%s: noted %v", name, h)
		}
	}
}

// A process that was told that it is not the one ends if it had a place, and asks for one if it had none.
func TestAnswers(t *testing.T) {
	for name, x := range map[string]struct {
		turn    int
		says    verdict
		turnsTo int
		end     bool
	}{
		"new":                         {fresh, known, fresh, false},
		"new, another one was there":  {fresh, another, late, false},
		"a founder":                   {founder, replaced, founder, true},
		"a founder, an old answer":    {founder, another, founder, false},
		"one late":                    {late, another, late, false},
		"one late, others have it":    {late, replaced, late, false},
		"one that came late":          {2, replaced, 2, true},
		"one that came late, not yet": {2, unsure, 2, false},
	} {
		m, err := New(Config{Members: make([]string, 3)})
		if err != nil {
			t.Fatal(err)
		}
		m.turn = x.turn
		m.lives[2] = holder{[processIDLen]byte{9}, founder}
		mine, turned := m.greeting()
		err = m.answered(1, mine, append(make([]byte, processIDLen), byte(x.says)))
		if got := errors.As(err, new(*ReplacedError)); got != x.end || m.turn != x.turnsTo {
			t.Errorf("%s: turn %d, %v", name, m.turn, err)
		}
		// a process that comes late may have met others that have ended since
		if len(m.lives) == 0 != (x.turn == fresh && x.turnsTo == late) {
			t.Errorf("%s: it knows %v", name, m.lives)
		}
		select {
		case <-turned:
			if x.turn == x.turnsTo {
				t.Errorf("%s: it says something else from now on", name)
			}
		default:
			if x.turn != x.turnsTo {
				t.Errorf("%s: it goes on to say what is not true", name)
			}
		}
	}
	m, _ := New(Config{Members: make([]string, 3)})
	mine, _ := m.greeting()
	if err := m.answered(1, mine, make([]byte, processIDLen)); err == nil {
		t.Error("an answer that is too short was taken")
	}
	m.greet(1, greeting{[processIDLen]byte{1}, fresh})
	// another process in the place of the one that was met does not count
	for by, want := range map[[processIDLen]byte]bool{{2}: false, {1}: true} {
		clear(m.agreed)
		if err := m.answered(1, mine, append(by[:], byte(known))); err != nil || m.agreed[1] != want {
			t.Errorf("process %x takes this one for a founder: counted %v, %v", by[:1], m.agreed[1], err)
		}
	}
}

// Processes come in the place of those that have ended, until no founder is left; what the founders have noted is
// known, and the others are led meanwhile. After a handover another member leads before the old leader would have been
// missed.
func TestProcessesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		defer b.close()
		r := b.await(2 * time.Second)
		if err := r.SetNote([]byte("note")); err != nil {
			t.Fatal(err)
		}
		for rank := range 3 {
			before := greeting{b.members[rank].own, founder}
			b.end(rank)
			if rank == r.Rank {
				r = b.await(6 * time.Second)
			}
			if rank == 0 { // one that is gone again before the place is vacant does not get it
				l, err := b.net.Listen(b.addrs[0])
				if err != nil {
					t.Fatal(err)
				}
				b.start(0, l)
				time.Sleep(time.Second)
				b.end(0)
				time.Sleep(10 * time.Second)
				if got := b.members[r.Rank].greet(0, before); got != known {
					t.Errorf("a process that is gone got the place: of the one before is said %d", got)
				}
			}
			l, err := b.net.Listen(b.addrs[rank])
			if err != nil {
				t.Fatal(err)
			}
			b.start(rank, l)
			for wait := 0; b.members[rank].Status().Leader != r.Rank; wait++ {
				if time.Sleep(100 * time.Millisecond); wait > 100 {
					t.Fatalf("member %d came again %d s ago and does not know that member %d leads: %+v", rank, wait/10, r.Rank, b.members[rank].Status())
				}
			}
			time.Sleep(time.Second)
			for o, m := range b.members {
				if got := m.greet(rank, before); o != rank && got != replaced {
					t.Errorf("member %d says %d of the process that was member %d before", o, got, rank)
				}
			}
		}
		begun := time.Now()
		if err := r.HandOver(); err != nil {
			t.Fatal(err)
		}
		next := b.await(time.Second)
		if took := time.Since(begun); took > 300*time.Millisecond || next.Rank == r.Rank || string(next.Note) != "note" {
			t.Errorf("after %v member %d leaderships, with note %q", took, next.Rank, next.Note)
		}
		if err := r.Hold(); !errors.Is(err, ErrLeadershipLost) {
			t.Errorf("who has handed over holds: %v", err)
		}
	})
}

// A process with the rank of a living one is not let in, says so, and disturbs no other process.
func TestARankThatIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		defer b.close()
		r := b.await(2 * time.Second)
		twin, err := New(Config{Job: "job", Rank: 2, Members: b.addrs, Network: b.net, JoinTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		err = twin.Run(t.Context())
		var late *LateError
		if !errors.As(err, &late) || late.ExitCode() != 69 || !strings.Contains(err.Error(), "another process was star-ps 2") {
			t.Errorf("it ends with %v", err)
		}
		if err := r.Hold(); err != nil {
			t.Errorf("who reigned before: %v", err)
		}
	})
}

// With too few others a leadership cannot be handed over, and goes on.
func TestNobodyToHandOverTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		defer b.close()
		r := b.await(2 * time.Second)
		other := (r.Rank + 1) % 3
		b.end(other)
		time.Sleep(time.Second)
		if err := r.HandOver(); err == nil || r.Hold() != nil {
			t.Errorf("handed over to one of three: %v, %v", err, r.Hold())
		}
	})
}
