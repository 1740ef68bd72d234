package engine

import (
	"encoding/json"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/transport/wire"
)

// ridden is a ring of members 0 and 1 and rider 2 that has made a round, by its scheduler, and the metadata of then.
// Two rounds and the rider's batch are under way.
func ridden(t *testing.T) (*Ring, []byte) {
	l := newShards(modes.Ring(3, 2), 3, 0, 4, 100)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	made(t, r, 1, 0, 1)
	if len(r.rounds) != 2 || len(r.riderBatches) != 1 {
		t.Fatalf("rounds %+v, batches of riders %+v", r.rounds, r.riderBatches)
	}
	return r, r.Metadata(1)
}

func TestRingMemo(t *testing.T) {
	r, text := ridden(t)
	m, err := ParseRingMetadata(text, 3)
	if err != nil || m.Version != 1 || m.Samples != r.used || m.Cursor != r.cursor || len(m.Rounds) != 2 || len(m.RiderBatches) != 1 {
		t.Fatalf("%s became %+v, %v", text, m, err)
	}
	for name, change := range map[string]func(m *RingMetadata){
		"more workers":            func(m *RingMetadata) { m.Steps = m.Steps[1:] },
		"a negative version":      func(m *RingMetadata) { m.Version = -1 },
		"redo behind the cursor":  func(m *RingMetadata) { m.Redo = []Span{{m.Cursor - 1, 2}} },
		"more rounds than can be": func(m *RingMetadata) { m.Rounds = append(m.Rounds, m.Rounds[0]) },
		"a round without members": func(m *RingMetadata) { m.Rounds[0].Members, m.Rounds[0].Spans = nil, nil },
		"a span too few":          func(m *RingMetadata) { m.Rounds[0].Spans = m.Rounds[0].Spans[1:] },
		"a member there is not":   func(m *RingMetadata) { m.Rounds[0].Members = []star.Worker{0, 3} },
		"a span that was not out": func(m *RingMetadata) { m.Rounds[1].Spans[0].Start = m.Cursor },
		"a rider there is not":    func(m *RingMetadata) { m.RiderBatches[0].Worker = 7 },
		"a basis of the future":   func(m *RingMetadata) { m.RiderBatches[0].Basis = 9 },
	} {
		m, err := ParseRingMetadata(text, 3)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		b, _ := json.Marshal(m)
		if _, err := ParseRingMetadata(b, 3); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	if got := NewerMetadata([]byte(`{"term":2,"count":50}`), []byte(`{"term":3,"count":1}`)); string(got) != `{"term":3,"count":1}` {
		t.Errorf("of an earlier term and a later one %s is the newer", got)
	}
	later := r.Metadata(1)
	for i, x := range []struct{ a, b, want []byte }{{nil, text, text}, {text, nil, text}, {text, later, later}, {later, text, later}, {r.Metadata(2), later, nil}, {nil, nil, nil}} {
		want := x.want
		if i == 4 {
			want = x.a
		}
		if got := NewerMetadata(x.a, x.b); string(got) != string(want) {
			t.Errorf("%d: of %s and %s %s is the newer", i, x.a, x.b, got)
		}
	}
}

// FuzzRingMetadata checks that metadata of a release is rejected, or is the scheduler of a ring that can go on.
func FuzzRingMetadata(f *testing.F) {
	f.Add([]byte(`{"term":1,"count":5,"Version":1,"Samples":12,"Cursor":40,"seq":1,"steps":[1,1,0],"rounds":[{"gen":1,"of":12,"members":[0,1],"spans":[{"Start":12,"Count":4},{"Start":16,"Count":4}]}],"batches of riders":[{"worker":2,"span":{"Start":8,"Count":4},"basis":0}]}`), int64(2))
	f.Add([]byte(`{"steps":[-1,-1,-1],"rounds":null}`), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, version int64) {
		m, err := ParseRingMetadata(b, 3)
		if err != nil || m.Version > 1<<40 || m.Seq > 1<<40 || m.Cursor > 1<<40 || m.Samples > 1<<40 {
			return
		}
		l := newShards(modes.Ring(3, 2), 3, 0, 4, m.Cursor+100)
		l.resume(m.Progress)
		r := newRing(l, wire.Ring{})
		r.takeUp(&m.Snapshot)
		r.told([]wire.Tally{{Version: version, Carried: []wire.Gradient{{Worker: 2, Step: version, Weight: .5}}}})
		r.regroup([]star.Worker{0, 1})
		for _, w := range slices.Clone(r.forming) {
			if _, err := r.form(w, r.now.generation, version); err != nil {
				return
			}
		}
		if r.version != version {
			t.Fatalf("the ring was formed at version %d and has %d", version, r.version)
		}
	})
}

// What is claimed is handed out no more, and everything else still is, once.
func TestClaim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 40
		l := newShards(modes.SSGD(1), 1, 0, 3, limit)
		free := make([]bool, limit) // to be handed out
		for i := range free {
			free[i] = true
		}
		l.cursor = int64(rapid.IntRange(0, limit).Draw(t, "cursor"))
		for i := range l.cursor {
			free[i] = false
		}
		for at := int64(0); at < l.cursor; {
			n := rapid.Int64Range(1, 5).Draw(t, "piece")
			n = min(n, l.cursor-at)
			if rapid.Bool().Draw(t, "redo") {
				l.redo = append(l.redo, Span{at, int(n)})
				for i := at; i < at+n; i++ {
					free[i] = true
				}
			}
			at += n
		}
		for range rapid.IntRange(1, 3).Draw(t, "claims") {
			from := rapid.Int64Range(0, limit-1).Draw(t, "from")
			n := rapid.Int64Range(1, min(6, limit-from)).Draw(t, "count")
			if from < l.cursor {
				n = min(n, l.cursor-from) // a batch is of one piece
			}
			l.claim(Span{from, int(n)})
			for i := from; i < from+n; i++ {
				free[i] = false
			}
		}
		for {
			s, ok := l.take(4)
			if !ok {
				break
			}
			for i := s.Start; i < s.Start+int64(s.Count); i++ {
				if !free[i] {
					t.Fatalf("sample %d is handed out, and must not be", i)
				}
				free[i] = false
			}
		}
		if i := slices.Index(free, true); i >= 0 {
			t.Fatalf("sample %d is not handed out", i)
		}
	})
}

// A rider's batch that no process remembers is in the round that carried it, and is handed out again when that round is
// not made after all.
func TestForgottenErrand(t *testing.T) {
	for name, reached := range map[string]int64{"the round was made": 3, "it was not": 1} {
		t.Run(name, func(t *testing.T) {
			_, text := ridden(t)
			m, err := ParseRingMetadata(text, 3)
			if err != nil {
				t.Fatal(err)
			}
			l := newShards(modes.Ring(3, 2), 3, 0, 4, 100)
			l.resume(m.Progress)
			r := newRing(l, wire.Ring{})
			r.takeUp(&m.Snapshot)
			r.absent(2)
			lost := Span{m.Cursor, 4}
			first, second := r.rounds[0], r.rounds[1]
			r.told([]wire.Tally{
				{Version: 2, Generation: first.generation, Carried: []wire.Gradient{{Worker: 2, Step: m.RiderBatches[0].Span.Start, Weight: 4. / 12}}},
				{Version: 3, Generation: second.generation, Carried: []wire.Gradient{{Worker: 2, Step: lost.Start, Weight: 4. / 12}}},
			})
			want := m.Samples
			if reached == 3 {
				want += first.total + second.total + 8
			}
			var applied []Span
			orders := r.regroup([]star.Worker{0, 1})
			for _, w := range []star.Worker{0, 1} {
				o, err := r.form(w, r.now.generation, reached)
				if err != nil {
					t.Fatal(err)
				}
				orders = append(slices.Clone(orders), o...)
			}
			for _, o := range orders {
				applied = append(applied, o.Pieces...)
			}
			if r.used != want {
				t.Errorf("%d samples are applied, want %d: %v", r.used, want, applied)
			}
			again := slices.ContainsFunc(append(r.progress().Redo, applied...), func(s Span) bool { return s == lost }) || r.cursor == lost.Start
			if !again {
				t.Errorf("the batch %v is in no update and is not to be done: %+v", lost, r.progress())
			}
		})
	}
}

// A batch of a rider that left, which another rider has brought since, belongs to no rider any more, though the
// remaining workers remember it as the first one's: its samples are applied once, or handed out once, whether the other
// rider had all of it or a part.
func TestErrandOfAnother(t *testing.T) {
	for name, c := range map[string]struct {
		share   int // of rider 2
		reached int64
	}{"all of it, and the round was made": {4, 3}, "a part, and the round was made": {3, 3}, "all of it, and the round was not made": {4, 2}, "a part, and the round was not made": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			plan := modes.Ring(4, 2, 3)
			plan.Shares = []int{4, 4, c.share, 4}
			l := newShards(plan, 4, 0, 4, 100)
			r := newRing(l, wire.Ring{})
			r.Begin(nil)
			left, brought := r.riderBatches[3].Span, []wire.Gradient{{Worker: 2, Step: r.riderBatches[2].Start, Weight: float32(c.share) / float32(r.now.of)}}
			r.Leave(3) // the ring without it begins with round 2
			made(t, r, 1, 0, 1)
			m, err := ParseRingMetadata(r.Metadata(1), 4)
			if err != nil {
				t.Fatal(err)
			}
			told := []wire.Tally{{Generation: r.rounds[0].generation, Version: 2, Carried: brought}}
			for w := range star.Worker(2) {
				if _, err := r.Tally(wire.Tally{Worker: w, Generation: told[0].Generation, Version: 2, Carried: brought}); err != nil {
					t.Fatal(err)
				}
			}
			again := r.riderBatches[2]
			if again.Start != left.Start || again.Count != c.share || !slices.ContainsFunc(m.RiderBatches, func(e SnapshotRiderBatch) bool { return e.Worker == 3 && e.Span == left }) {
				t.Fatalf("rider 2 has %+v, want of %+v; the metadata: %+v", again, left, m.RiderBatches)
			}
			told = append(told, wire.Tally{Generation: r.now.generation, Version: 3,
				Carried: []wire.Gradient{{Worker: 2, Step: again.Start, Weight: float32(c.share) / float32(r.now.of)}}})

			handover := NewRing(Config{Plan: plan, Workers: 4, Batch: 4, Limit: 100, After: &m.Snapshot, Absent: []star.Worker{2, 3}, Ring: &RingConfig{Generation: GenerationsOf(2)}})
			handover.Begin(&Told{With: []star.Worker{0, 1}, Tallies: told})
			var pieces []Span
			for w := range star.Worker(2) {
				orders, err := handover.form(w, handover.now.generation, c.reached)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range orders {
					pieces = append(pieces, o.Pieces...)
				}
			}
			p := handover.progress()
			exactly(t, p.Cursor, []Span{{0, int(m.Samples)}}, pieces, p.Redo)
		})
	}
}
