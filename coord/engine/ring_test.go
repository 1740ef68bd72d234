package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/transport/wire"
)

// With one round ahead no worker waits: members are released for round r+1 before round r is complete, in order of
// rank, with the samples of a full ring's rounds.
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
		{show(r.Begin(nil)), "ring1→0 ring1→1 ring1→2 0@0:0+10/30 1@0:10+10/30 2@0:20+10/30 ring1→3 3@0:30+10/0 0@1:40+10/30 1@1:50+10/30 2@1:60+10/30"},
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

// A rider may have got a later version than that it was released with: the member that has carried its gradient, or its
// record, says how stale it is, whichever is first. Neither makes it staler than its release, nor younger than the
// round.
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
		r.Begin(nil)
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
		for w, behind := range [][]int{c.behind, nil} { // the member that carried it reports first, and counts
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
	if _, err := r.Tally(m); err == nil || !strings.Contains(err.Error(), "how stale 2 gradients of riders are, but carried 1") {
		t.Errorf("of two gradients where it has carried one: %v", err)
	}
}

// A rider with a new parent must send its gradient again, unless it was carried; a rider that becomes a member, and one
// that is gone, have their batches handed out again.
func TestRidersKeepTheirBatches(t *testing.T) {
	l := newShards(modes.Ring(6, 3, 4, 5), 6, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	batch := func(w star.Worker) int64 { return r.riderBatches[w].Start }
	three, four, five := batch(3), batch(4), batch(5)
	r.Install(modes.Ring(6, 0, 3, 4)) // 5 joins the ring, 0 leaves it
	var orders []Ready
	for v := int64(1); v <= 2; v++ {
		for w := range star.Worker(3) {
			m := wire.Tally{Worker: w, Generation: 1, Version: v}
			if v == 2 {
				m.Carried = []wire.Gradient{{Worker: 3, Step: three}, {Worker: 4, Step: three}} // 4 has no such batch
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
	if got[4].Start != four || !got[4].Pull || got[3].Start == three || got[3].Count != 10 || got[0].Count != 10 {
		t.Errorf("riders are released with %+v; want 4 at %d again, and new batches for 0 and 3", got, four)
	}
	if got[3].Start != five && got[0].Start != five {
		t.Errorf("the batch of 5, at %d, was not handed out again: %+v", five, got)
	}
}

// Rounds of a queue are whole ones, the last perhaps not, whatever was handed out beforehand: an optimiser with a
// memory goes on as far after a round of few samples as after another.
func TestRingQueueEnds(t *testing.T) {
	const n, batch, limit = 4, 8, 20*32 + 5
	plan, err := modes.Parse("ssgd queue=4", n)
	if err != nil {
		t.Fatal(err)
	}
	l := newShards(plan, n, 0, batch, limit)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	var sizes []int
	for len(r.rounds) > 0 {
		rd := &r.rounds[0]
		// The last member is slow: the first that are quicker take what is left, until the engine tells them to stop.
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
			if i == 0 { // the tally of a member that lies about it is rejected
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
	r.Begin(nil)
	for try := 1; ; try++ {
		r.failed(0, r.now.generation-1, 2, "of a ring before this one") // the first time no ring was before it
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
	r.Begin(nil)
	r.failed(0, 1, 2, "no link to 2")
	r.mend()
	r.failed(0, r.now.generation, 2, "no link to 2")
	if _, evict, err := r.mend(); evict != 2 || err != nil {
		t.Errorf("worker %d, %v; want worker 2 to go", evict, err)
	}
}

// The suspects that members name, ring after ring, tell which member is cut off: the one that is in most of it.
func TestRingOutcast(t *testing.T) {
	for name, c := range map[string]struct {
		rings [][][2]int // in each, a member and its suspect
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
		r.Begin(nil)
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

// A closed round has the gradients that came first; what is late is in no update, in the next one, or corrects it.
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
		r.Begin(nil)
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
	// What no member can have computed.
	p := modes.XOrder(2, 1)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 2, 0, 10, 60)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
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

// What is late of one ring is in no round of the next one, even where that closes a round before the old one's last is
// complete.
func TestLateOfAnotherRing(t *testing.T) {
	p := modes.XOrder(3, 2)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 3, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
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
	say(old, 1, 0, 1, 2) // worker 2 is late, and no member has completed round 1 yet
	o := say(r.generation, 2, 0)
	if len(o) != 1 || len(o[0].Closes) != 3 || len(o[0].Closes[0].Msg.Late) > 0 || o[0].Closes[0].Msg.Total != 10 {
		t.Errorf("%+v, want round 2 closed with the gradient of worker 0 alone", o)
	}
}

// With a time after which no part is begun (DropCompute) all workers are in the round, each with the samples that it
// had time for.
func TestRoundsOfParts(t *testing.T) {
	p := modes.SSGD(2)
	p.Micro, p.ComputeDeadline = 5, time.Hour
	l := newShards(p, 2, 0, 10, 20)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
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
