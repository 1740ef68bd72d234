package modes

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
)

// A tree is on trial: what gains nothing goes, and does not come again for a while, longer each time; what gains stays.
func TestTreeTrial(t *testing.T) {
	load := TreeLoad{Bytes: 1e6, Cycle: 10 * time.Millisecond, Spare: make([]float64, 4), Hosts: make([]string, 4), Able: []bool{true, true, true, true}}
	type world struct {
		k       TreeKeeper
		at      time.Duration
		samples int64
		version int64
		mode    string
		built   []time.Duration
		back    int
		v       *Verdict
	}
	// play runs a job for the given number of seconds; pace says how many samples it applies in one, with or without a
	// tree.
	play := func(w *world, seconds int, pace func(tree bool) int64) {
		for range seconds {
			w.at += time.Second
			w.samples += pace(w.k.Parents() != nil)
			w.version += 10
			v, why := w.k.Seen(w.at, w.samples, w.version, w.mode)
			if v != nil {
				w.v = v
			}
			switch {
			case why != "":
				w.back++
			case w.k.Ready():
				if _, why = w.k.Update(load); why != "" {
					w.built = append(w.built, w.at)
				}
			}
		}
	}
	start := func() *world { return &world{k: TreeKeeper{Rule: TreeRule{Capacity: 200e6}}, mode: "ssgd"} }
	with := func(tree, flat int64) func(bool) int64 {
		return func(has bool) int64 {
			if has {
				return tree
			}
			return flat
		}
	}

	w := start()
	play(w, 400, with(76, 100))
	if len(w.built) < 3 || w.back != len(w.built) || w.k.Parents() != nil || !w.v.Reverted || math.Abs(w.v.Seen-(1-100./76)) > 0.01 {
		t.Errorf("a tree that costs a quarter: built at %v, gone back from %d times, %+v", w.built, w.back, w.v)
	}
	for i := 2; i < len(w.built); i++ {
		if w.built[i]-w.built[i-1] <= w.built[i-1]-w.built[i-2] {
			t.Errorf("built at %v: it is not left alone for longer each time", w.built)
		}
	}

	w = start()
	n := 0
	play(w, 100, func(tree bool) int64 {
		if n++; n%8 == 0 {
			return 10 // an evaluation
		}
		return with(140, 100)(tree)
	})
	if len(w.built) != 1 || w.back != 0 || w.k.Parents() == nil || w.v == nil || w.v.Reverted || math.Abs(w.v.Seen-(1-100./140)) > 0.01 {
		t.Errorf("a tree that gains: built at %v, gone back from %d times, %+v", w.built, w.back, w.v)
	}
	was := slices.Clone(w.k.Parents())
	load.Cycle = time.Second // nothing is asked of the links any more
	play(w, 3, with(1000, 800))
	if w.k.Parents() != nil {
		t.Fatal("the tree stays without demand")
	}
	play(w, 20, with(140, 100)) // … but without it everything is slower
	if !slices.Equal(w.k.Parents(), was) || !w.v.Reverted {
		t.Errorf("the end of a tree that was needed: %v, %+v", w.k.Parents(), w.v)
	}
	load.Cycle = 10 * time.Millisecond

	w = start()
	play(w, 8, with(140, 100))
	if len(w.built) != 1 {
		t.Fatalf("built at %v", w.built)
	}
	w.mode = "x=2"
	play(w, 1, with(140, 100))
	if w.k.Parents() != nil || w.back != 1 || w.v != nil {
		t.Errorf("a change during the trial: %v, %d, %+v; want the tree gone, and no verdict", w.k.Parents(), w.back, w.v)
	}
	play(w, 20, with(140, 100))
	if len(w.built) != 2 || w.k.Parents() == nil || w.v == nil || w.v.Reverted {
		t.Errorf("the trial after it: built at %v, %+v", w.built, w.v)
	}
}

// What a tree is built by is what the links carry, not what was used of them.
func TestTreeTrialSaysWhy(t *testing.T) {
	k := TreeKeeper{Rule: TreeRule{Capacity: 1}}
	load := TreeLoad{Bytes: 1e6, Cycle: time.Second, Spare: make([]float64, 3), Hosts: make([]string, 3), Able: []bool{true, true, true}}
	said := ""
	for i := range int64(20) {
		if _, why := k.Seen(time.Duration(i)*time.Second, 100*i, 10*i, "ssgd"); why != "" {
			said = why
		} else if k.Ready() {
			k.Update(load)
		}
	}
	if !strings.Contains(said, "100 samples/s") || slices.ContainsFunc(k.Parents(), func(w star.Worker) bool { return w != Direct }) {
		t.Errorf("%q, %v; want it to say what was seen, and no tree", said, k.Parents())
	}
}
