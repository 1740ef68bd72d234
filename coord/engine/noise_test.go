package engine

import (
	"math"
	"testing"

	"star"
	"star/modes"
	"star/transport/wire"
)

func close9(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

// A ring's members tell the norm of their sum, and the coordinator knows those of its parts,
// also of a rider's gradient, which is of an older version.
func TestNoiseOfARing(t *testing.T) {
	plan, err := modes.Parse("ring-minus=2", 3)
	if err != nil {
		t.Fatal(err)
	}
	l := newShards(plan, 3, 0, 4, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	record := func(w int, version int64, norm2 float64) {
		rec := recordOf(w, version)
		rec.Norm2 = norm2
		r.arrive(rec)
	}
	round := func(version int64, sum2 float64, carried ...wire.Gradient) (o Ready) {
		for w := range 2 {
			record(w, version-1, 10*float64(version)+float64(w))
			orders, err := r.Tally(wire.Tally{Worker: recordOf(w, 0).Worker, Generation: 1, Version: version, Sum2: sum2, Carried: carried})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range orders {
				if x.Fire.Version == version {
					o = x
				}
			}
		}
		return o
	}
	o := round(1, 7)
	if g := o.Noise.Gradients; o.Noise.Sum2 != 7 || o.Noise.Round != 12 || len(g) != 2 || g[0].Norm2 != 10 || g[1].Norm2 != 11 || g[0].Samples != 4 || g[1].Weight != 4./12 {
		t.Errorf("round 1: %+v", o.Noise)
	}
	record(2, 0, 99)
	o = round(2, 8, wire.Gradient{Worker: 2, Step: r.riderBatches[2].Start})
	g := o.Noise.Gradients
	if len(g) != 3 || g[0].Basis != 1 || g[1].Norm2 != 21 || g[2].Norm2 != 99 || g[2].Basis != 0 || !o.Noise.Mixed() {
		t.Fatalf("round 2: %+v", o.Noise)
	}
	if want := 8. / 12; g[2].Behind != want || g[0].Behind != 0 { // one round of two members
		t.Errorf("the rider is %v rounds behind, want %v", g[2].Behind, want)
	}
	record(2, 2, 98) // released with version 2, carried in the next round
	o = round(3, 9, wire.Gradient{Worker: 2, Step: r.riderBatches[2].Start})
	if g := o.Noise.Gradients; len(g) != 3 || g[2].Behind != 0 || g[2].Basis != 2 {
		t.Errorf("round 3: %+v", o.Noise)
	}
}

// A ring of one member compares its gradients with each other.
func TestNoiseOfALoneMember(t *testing.T) {
	l := newShards(modes.SSGD(1), 1, 0, 4, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	for version := int64(1); version < 4; version++ {
		rec := recordOf(0, version-1)
		rec.Step, rec.Norm2 = version-1, 10+float64(version)
		if version > 1 {
			rec.Telemetry.Set(star.GradChange, 3)
		}
		r.arrive(rec)
		orders, err := r.Tally(wire.Tally{Worker: 0, Generation: 1, Version: version, Sum2: 5})
		if err != nil || len(orders) == 0 {
			t.Fatal(orders, err)
		}
		o := orders[0]
		if version == 1 {
			if len(o.Pair.Gradients) > 0 {
				t.Errorf("a pair of one gradient: %+v", o.Pair)
			}
			continue
		}
		g := o.Pair.Gradients
		if len(g) != 2 || g[0].Norm2 != rec.Norm2-1 || g[1].Norm2 != rec.Norm2 || g[0].Samples != 4 || !o.Pair.Mixed() ||
			g[0].Behind-g[1].Behind != 1 || !close9(o.Pair.Sum2, 8*4*(2*rec.Norm2-1)-16*3) {
			t.Errorf("version %d: %+v", version, o.Pair)
		}
	}
}

// Which gradients are compared: consecutive ones, of parameters that are near.
func TestPairOfAnAccount(t *testing.T) {
	ok := workerState{measured: measured{change: 1, prior: glance{norm2: 2, samples: 4, step: 6, basis: 10, read: 100}, last: glance{norm2: 3, samples: 5, step: 7, basis: 12, read: 108}}}
	for _, c := range []struct {
		name   string
		change func(*workerState)
		want   bool
	}{
		{"as it is", func(*workerState) {}, true},
		{"it does not say", func(a *workerState) { a.change = -1 }, false},
		{"not a number", func(a *workerState) { a.change = math.NaN() }, false},
		{"the first one", func(a *workerState) { a.prior = glance{} }, false},
		{"one between was lost", func(a *workerState) { a.prior.step = 5 }, false},
		{"two rounds between", func(a *workerState) { a.last.read = 116 }, true},
		{"more", func(a *workerState) { a.last.read = 117 }, false},
	} {
		a := ok
		c.change(&a)
		u, got := a.pair(120, 8)
		if got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if c.name != "as it is" {
			continue
		}
		g := u.Gradients
		if len(g) != 2 || u.Round != 8 || g[0].Behind != 2.5 || g[1].Behind != 1.5 || g[0].Basis != 10 || g[1].Basis != 12 ||
			!close9(u.Sum2, 9*(4*2+5*3)-4*5*1) {
			t.Errorf("%+v", u)
		}
	}
}

// How far a gradient is behind counts the samples that were applied since its release.
func TestBehind(t *testing.T) {
	l := newShards(modes.ASGD(2), 2, 0, 4, 1000)
	l.Begin(nil)
	arrive := func(w star.Worker) float64 {
		orders, err := l.arrive(w, l.states[w].step, 4)
		if err != nil || len(orders) != 1 {
			t.Fatal(orders, err)
		}
		return orders[0].Noise.Gradients[0].Behind
	}
	for i, c := range []struct {
		w    star.Worker
		want float64
	}{{0, 0}, {0, 0}, {1, 1}, {1, 0}, {0, 1}} { // two of four samples are a round
		if got := arrive(c.w); got != c.want {
			t.Errorf("arrival %d, of worker %d: %v rounds behind, want %v", i, c.w, got, c.want)
		}
	}
}

func recordOf(w int, version int64) (r star.Record) {
	r.Worker, r.Step, r.Basis, r.Samples = star.Worker(w), version, version, 4
	return r
}
