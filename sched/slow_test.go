package sched

import (
	"math"
	"math/rand/v2"
	"testing"
)

func slowFrom(t *testing.T, spells ...Spell) *Slow {
	t.Helper()
	s, err := NewSlow(spells)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSlow has 100 s of work on two nodes. One takes twice as long from 50 to 150 s, and the other four times from 100
// s on.
func TestSlow(t *testing.T) {
	s := slowFrom(t, Spell{1, 100, 1e9, 4}, Spell{0, 50, 150, 2})
	both := []Share{{0, 1}, {1, 1}}
	if d := s.done(both, 0, 200); d != 50+25+100./4 {
		t.Errorf("did %v s of work", d)
	}
	if e := s.end(both, 0, 100); e != 200 {
		t.Errorf("ended at %v", e)
	}
	s.Queue = true // 50 at 1, 50 at 3/4, 50 at 3/8, then 5/8
	if d := s.done(both, 0, 200); d != 50+37.5+18.75+31.25 {
		t.Errorf("did %v s of work with a queue", d)
	}
	if known, next := s.known(2, 105); known[0] != 1 || known[1] != 1 || next != 110 {
		t.Errorf("known at 105: %v, changes at %v; a minute after 50 s one is known", known, next)
	}
	if _, err := NewSlow([]Spell{{0, 0, 10, 2}, {0, 9, 20, 3}}); err == nil {
		t.Error("overlapping times are taken")
	}
}

func seeded(seed uint64) func(node int) Random {
	return func(node int) Random { return rand.New(rand.NewPCG(seed, uint64(node))) }
}

// TestRandomSpells has nodes be slow a tenth of the time, in the same way for the same seed.
func TestRandomSpells(t *testing.T) {
	sum, span := 0., 1000*86400.
	for _, x := range RandomSpells(16, 0, span, seeded(1)) {
		sum += x.To - x.From
		if x.Factor < leastSlow || x.Factor > mostSlow {
			t.Fatal(x)
		}
	}
	if part := sum / 16 / span; math.Abs(part-.1) > .005 {
		t.Errorf("nodes are slow %v of the time", part)
	}
	if a, b := RandomSpells(2, 0, 1e6, seeded(7)), RandomSpells(3, 0, 1e6, seeded(7)); a[0] != b[0] {
		t.Error("more nodes make others slow at other times")
	}
}

// TestKnown has what is known change when it was said to, and not for ever at the same time: a minute after a time
// within a minute of a power of two is rounded.
func TestKnown(t *testing.T) {
	const nodes = 64
	var spells []Spell
	r := rand.New(rand.NewPCG(1, 1))
	for i := range nodes {
		spells = append(spells, Spell{i, 32768 - 60*r.Float64(), 65536 - 60*r.Float64(), 2})
	}
	s := slowFrom(t, spells...)
	at := 0.
	for range spells {
		for range 2 { // it begins, and ends
			_, next := s.known(nodes, at)
			if next <= at {
				t.Fatalf("at %v what is known is said to change at %v", at, next)
			}
			at = next
		}
	}
	if _, next := s.known(nodes, at); !math.IsInf(next, 1) {
		t.Errorf("%d spells change what is known more often than they begin and end", nodes)
	}
}

// TestSlowJobs has a job of 100 s on a node that takes twice as long from 50 s on end at 150 s, under policies of both
// engines.
func TestSlowJobs(t *testing.T) {
	c := Cluster{Nodes: 1, GPUs: 1, Slow: slowFrom(t, Spell{0, 50, 1e9, 2})}
	job := &Job{ID: "a", GPUs: 1, Duration: 100, Deadline: never, Iterations: 100, Rates: []float64{1}, Batch: 1}
	for _, policy := range []string{"fifo", "srtf", "gandiva", "edf", "ef", "pollux", "star"} {
		out, err := Run([]*Job{job}, map[string]Cluster{"": c}, Options{Policy: policy, Slot: 60})
		want := 150.
		if policy == "pollux" { // it takes 30 s to begin: 20 s of work until 50 s, 80 s from then on
			want = 210
		}
		if err != nil || math.Abs(out[0].End-want) > 1 {
			t.Errorf("%s: ended at %v, want %v; %v", policy, out[0].End, want, err)
		}
	}
}
