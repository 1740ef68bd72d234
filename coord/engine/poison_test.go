package engine

import (
	"math"
	"slices"
	"testing"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/ps/replica"
)

// lengths drives a scheduler of n workers and two shards, round after round; sums are the squares that each shard says.
type lengths struct {
	t    *testing.T
	l    *Shards
	step int64
}

func newLengths(t *testing.T, n int) *lengths {
	r := &lengths{t: t, l: newShards(modes.SSGD(n), n, 2, 4, 1<<20)}
	r.l.guard, r.l.report = new(poison.Norms), true
	r.l.Begin(nil)
	return r
}

// round is one update; it returns its order.
func (r *lengths) round(sums ...[2]float64) Ready {
	r.t.Helper()
	var out []Ready
	for w, s := range sums {
		for shard := range 2 {
			os, err := r.l.Stored(shard, star.Worker(w), r.step, replica.Sum{Sum2: s[shard]})
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, os...)
		}
		r.l.states[w].norm2, r.l.states[w].change = s[0]+s[1], 1
		os, err := r.l.arrive(star.Worker(w), r.step, 4)
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, os...)
	}
	if len(out) != 1 {
		r.t.Fatalf("%d orders, want one", len(out))
	}
	r.step++
	return out[0]
}

// A poisoned gradient has weight 0, is reported, and teaches nothing of the noise.
func TestPoisonIsLeftOut(t *testing.T) {
	nan := math.NaN()
	one := [2]float64{0.5, 0.5}
	for name, c := range map[string]struct {
		bad   [2]float64
		cause poison.Cause
		where []int
	}{
		"sound":               {one, poison.None, nil},
		"long":                {[2]float64{9e5, 0}, poison.None, nil},
		"too long":            {[2]float64{5e5, 6e5}, poison.Exploding, nil},
		"NaN on one shard":    {[2]float64{1, nan}, poison.NotFinite, []int{1}},
		"Inf on both":         {[2]float64{math.Inf(1), math.Inf(1)}, poison.NotFinite, []int{0, 1}},
		"not measured by one": {[2]float64{1e30, -1}, poison.None, nil},
		"of zeros":            {[2]float64{}, poison.None, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLengths(t, 3)
			for range 8 {
				if o := r.round(one, one, one); len(o.Poison) > 0 {
					t.Fatalf("%+v", o.Poison)
				}
			}
			o := r.round(one, c.bad, one)
			found := c.cause != poison.None
			if found != (len(o.Poison) == 1) || found && (o.Poison[0].Worker != 1 || o.Poison[0].Step != 8 || o.Poison[0].Cause != c.cause || !slices.Equal(o.Poison[0].Shards, c.where)) {
				t.Fatalf("found %+v, want %v on shards %v", o.Poison, c.cause, c.where)
			}
			if c.cause == poison.Exploding && math.Abs(o.Poison[0].Factor-math.Sqrt(1.1e6)) > 1 {
				t.Errorf("%v times the median", o.Poison[0].Factor)
			}
			for _, g := range o.Fire.Gradients {
				if (g.Weight == 0) != (found && g.Worker == 1) {
					t.Errorf("worker %d has weight %v", g.Worker, g.Weight)
				}
			}
			if learns := len(o.Noise.Gradients) > 0; learns == found || o.Fire.Report == found {
				t.Errorf("found %v, and asks for the noise: %v, %v", found, learns, o.Fire.Report)
			}
			if o.Fire.Samples != 96 || o.Used != 108 {
				t.Errorf("samples %d and %d: its samples count", o.Fire.Samples, o.Used)
			}
			if o := r.round(one, one, one); len(o.Poison) > 0 {
				t.Errorf("the gradients after it: %+v", o.Poison)
			}
		})
	}
}

// The gradients of a worker that is marked as flipped (against the others) are left out until the mark is removed.
func TestFlippedIsLeftOut(t *testing.T) {
	one := [2]float64{1, 1}
	r := newLengths(t, 3)
	r.l.states[2].flipped = true
	for range 3 {
		if o := r.round(one, one, one); len(o.Poison) != 1 || o.Poison[0].Worker != 2 || o.Poison[0].Cause != poison.Flipped || o.Fire.Gradients[2].Weight != 0 || o.Fire.Gradients[1].Weight == 0 {
			t.Fatalf("%+v, %+v", o.Poison, o.Fire.Gradients)
		}
	}
	r.l.states[2].flipped = false
	if o := r.round(one, one, one); len(o.Poison) != 0 || o.Fire.Gradients[2].Weight == 0 {
		t.Errorf("%+v, %+v", o.Poison, o.Fire.Gradients)
	}
}

// In modes of K gradients, where a worker may bring several of the K (K-batch-sync and -async), those that are kept
// until there are enough are checked as all others: a poisoned one has weight 0, whichever worker brings it and in
// whatever place, and the next update is sound.
func TestPoisonOfKeptGradients(t *testing.T) {
	type gradient struct {
		worker star.Worker
		sum2   float64
	}
	for _, mode := range []string{"kbatch=3", "kbatch-async=3"} {
		for _, c := range []struct {
			name  string
			round []gradient
			cause poison.Cause
			bad   int // place in the round
		}{
			{"sound", []gradient{{0, 1}, {0, 1}, {1, 1}}, poison.None, -1},
			{"the first of a worker's", []gradient{{0, math.NaN()}, {0, 1}, {1, 1}}, poison.NotFinite, 0},
			{"the second of a worker's", []gradient{{0, 1}, {0, 1e7}, {1, 1}}, poison.Exploding, 1},
			{"the last", []gradient{{0, 1}, {0, 1}, {1, math.Inf(1)}}, poison.NotFinite, 2},
		} {
			t.Run(mode+" "+c.name, func(t *testing.T) {
				plan, err := modes.Parse(mode, 2)
				if err != nil {
					t.Fatal(err)
				}
				l := newShards(plan, 2, 1, 4, 1<<20)
				l.guard, l.report = new(poison.Norms), true
				l.Begin(nil)
				steps := map[star.Worker]int64{}
				late := func(w star.Worker) bool { // K-batch-sync drops what was computed on an older version
					return mode == "kbatch=3" && l.states[w].basis < l.barrier.Version()
				}
				round := func(gs ...gradient) (o Ready) {
					t.Helper()
					updates := 0
					for w := range star.Worker(2) {
						if late(w) {
							gs = append([]gradient{{w, 1}}, gs...)
						}
					}
					for _, g := range gs {
						l.states[g.worker].norm2, l.states[g.worker].change = 1, 1
						for _, f := range []func() ([]Ready, error){
							func() ([]Ready, error) { return l.Stored(0, g.worker, steps[g.worker], replica.Sum{Sum2: g.sum2}) },
							func() ([]Ready, error) { return l.arrive(g.worker, steps[g.worker], 4) },
						} {
							out, err := f()
							if err != nil {
								t.Fatal(err)
							}
							for _, x := range out {
								if len(x.Fire.Gradients) > 0 {
									o = x
									updates++
								}
							}
						}
						steps[g.worker]++
					}
					if updates != 1 {
						t.Fatalf("%d updates of %d gradients, want one", updates, len(gs))
					}
					return o
				}
				sound := []gradient{{0, 1}, {1, 1}, {0, 1}}
				for range 8 {
					if o := round(sound...); len(o.Poison) > 0 {
						t.Fatalf("%+v", o.Poison)
					}
				}
				was := map[star.Worker]int64{0: steps[0], 1: steps[1]}
				for w := range was {
					if late(w) {
						was[w]++
					}
				}
				o := round(c.round...)
				if found := c.bad >= 0; found != (len(o.Poison) == 1) || found == (len(o.Noise.Gradients) > 0) || found == o.Fire.Report {
					t.Fatalf("found %+v; noise of %d gradients, asked for: %v", o.Poison, len(o.Noise.Gradients), o.Fire.Report)
				}
				for i, g := range c.round {
					step := was[g.worker]
					was[g.worker]++
					if i == c.bad && (o.Poison[0].Worker != g.worker || o.Poison[0].Step != step || o.Poison[0].Cause != c.cause) {
						t.Errorf("%+v, want worker %d, step %d, %v", o.Poison[0], g.worker, step, c.cause)
					}
					for _, f := range o.Fire.Gradients {
						if f.Worker == g.worker && f.Step == step && (f.Weight == 0) != (i == c.bad) {
							t.Errorf("worker %d, step %d has weight %v", f.Worker, f.Step, f.Weight)
						}
					}
				}
				if o := round(sound...); len(o.Poison) > 0 || len(o.Noise.Gradients) == 0 {
					t.Errorf("the update after it: %+v", o.Poison)
				}
			})
		}
	}
}

// With --poison off nothing is looked at.
func TestPoisonOff(t *testing.T) {
	r := newLengths(t, 2)
	r.l.guard = nil
	r.l.states[1].flipped = true
	if o := r.round([2]float64{math.NaN(), 1}, [2]float64{1, 1}); len(o.Poison) != 0 || o.Fire.Gradients[0].Weight == 0 {
		t.Errorf("%+v, %+v", o.Poison, o.Fire.Gradients)
	}
}

// The next gradient of a worker is not compared with one that was poison.
func TestPairAfterPoison(t *testing.T) {
	l := newShards(modes.ASGD(1), 1, 1, 4, 1<<20)
	l.guard = new(poison.Norms)
	l.Begin(nil)
	pairs := 0
	for step := range int64(20) {
		sum := 1.0
		if step == 10 {
			sum = math.Inf(1)
		}
		l.states[0].norm2, l.states[0].change = sum, 1
		if _, err := l.Stored(0, 0, step, replica.Sum{Sum2: sum}); err != nil {
			t.Fatal(err)
		}
		os, err := l.arrive(0, step, 4)
		if err != nil || len(os) != 1 {
			t.Fatal(os, err)
		}
		if len(os[0].Pair.Gradients) > 0 {
			pairs++
			if step == 10 || step == 11 {
				t.Errorf("step %d is compared", step)
			}
		}
	}
	if pairs != 17 {
		t.Errorf("%d pairs of 20 gradients, of which one is poison; want 17", pairs)
	}
}
