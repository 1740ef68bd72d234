package pgns

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// around is an update of n gradients of b samples each: an exact gradient of the given squared norm, and what each is
// off by, at right angles to it and to each other, of trace/b. They are of as many versions as there are gradients if
// apart is 1, which lie a round apart, and of one if it is 0.
func around(n, b int, grad2, trace float64, apart int64) Update {
	u := Update{Sum2: grad2 + trace/float64(n*b), Round: 2 * b}
	for k := range int64(n) {
		u.Gradients = append(u.Gradients, Gradient{Norm2: grad2 + trace/float64(b), Samples: b, Weight: 1 / float64(n), Basis: -k * apart, Behind: float64(k * apart)})
	}
	return u
}

func observe(t *testing.T, e *Estimator, us ...Update) {
	t.Helper()
	for _, u := range us {
		if _, err := e.Observe(u); err != nil {
			t.Fatal(err)
		}
	}
}

// An update of n gradients counts n−1 times, of equal versions and of different ones, and what was before it by a
// memory of so much less.
func TestWeights(t *testing.T) {
	for apart := range int64(2) {
		e, err := New(Config{Smoothing: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		// What gradients scatter at right angles is trΣ·n/(n−1) of (15).
		one, other := around(2, 8, 3, 10, apart), around(5, 8, 3, 100, apart)
		a, err := one.Moments()
		if err != nil {
			t.Fatal(err)
		}
		b, err := other.Moments()
		if err != nil {
			t.Fatal(err)
		}
		observe(t, e, one, other)
		n := e.Noise()
		if want := (0.5*a.Var + 4*b.Var) / 4.5; n.Mixed != (apart == 1) || !near(n.Var, want, 1e-12) {
			t.Errorf("versions %d apart: %+v, want a trace of %v", apart, n, want)
		}
		if want := (0.5*a.Grad2 + 4*b.Grad2) / 4.5; !near(n.Grad2, max(want, 0), 1e-9) {
			t.Errorf("versions %d apart: %+v, want |G|² of %v", apart, n, want)
		}
	}
}

// What mixed updates said is forgotten like what others said, and so is what their scatter was too much.
func TestMixedForgets(t *testing.T) {
	e, _ := New(Config{Smoothing: 0.9})
	for range 50 {
		observe(t, e, around(4, 8, 3, 1000, 1))
	}
	for range 100 {
		observe(t, e, around(4, 8, 3, 10, 1))
	}
	want, _ := around(4, 8, 3, 10, 1).Moments()
	if n := e.Noise(); !n.Mixed || !near(n.Var, want.Var, 0.01) {
		t.Errorf("%+v, want a trace of %v", n, want.Var)
	}
	e, _ = New(Config{Smoothing: 0.9})
	drift := func(extra float64) float64 {
		for range 100 {
			observe(t, e, around(4, 8, 10, 10, 0), around(4, 8, 10, 10+extra, 1))
		}
		d, _ := e.Drift()
		return d
	}
	much := drift(30)
	little := drift(3)
	e, _ = New(Config{Smoothing: 0.9})
	if alone := drift(3); much < 2*alone || !near(little, alone, 0.01) {
		t.Errorf("a drift of %v, then %v; alone the second is %v", much, little, alone)
	}
}

// Versions are mixed whichever gradient is of another one.
func TestMixed(t *testing.T) {
	for at := range 4 {
		u := around(4, 8, 1, 1, 0)
		if u.Mixed() {
			t.Error("gradients of one version are mixed")
		}
		if u.Gradients[at].Basis = 7; !u.Mixed() {
			t.Errorf("gradient %d is of another version, and they are not mixed", at)
		}
	}
}

// Nothing is learned of drift from pairs in which the second gradient has answered to the first one's noise, nor if
// weights are not those of the samples.
func TestNoDriftFrom(t *testing.T) {
	pair := Pair(Gradient{Norm2: 12, Samples: 8, Basis: 0, Behind: 1}, Gradient{Norm2: 12, Samples: 8, Basis: 4}, 30)
	pair.Round = 16
	skew := around(4, 8, 10, 30, 1)
	skew.Gradients[2].Weight *= 1.3
	for name, c := range map[string]struct {
		u     Update
		seen  bool
		twice Update
	}{
		"a pair":                    {pair, false, around(4, 8, 10, 16, 1)},
		"weights of another kind":   {skew, false, around(4, 8, 10, 16, 1)},
		"an update of the ordinary": {around(4, 8, 10, 30, 1), true, around(4, 8, 10, 16, 1)},
	} {
		e, _ := New(Config{})
		for range 20 {
			observe(t, e, around(4, 8, 10, 16, 0))
		}
		observe(t, e, c.u)
		if _, s := e.Drift(); s > 0 != c.seen {
			t.Errorf("%s: strength %v", name, s)
		}
		observe(t, e, c.twice) // an input that teaches something about drift
		if _, s := e.Drift(); s <= 0 {
			t.Errorf("%s, and then an ordinary one: strength %v", name, s)
		}
	}
}

// An update is learned from where those before it were of the size of clean ones, whatever its own: else chance would
// select. It counts for those after it.
func TestOwnSizeDoesNotSelect(t *testing.T) {
	e, _ := New(Config{})
	for range 20 {
		observe(t, e, around(4, 8, 10, 16, 0))
	}
	strength := func() float64 {
		_, s := e.Drift()
		return s
	}
	observe(t, e, around(4, 8, 1000, 1600, 1))
	first := strength()
	if first <= 0 {
		t.Error("nothing was learned from an update for its own size")
	}
	observe(t, e, around(4, 8, 10, 16, 1))
	if s := strength(); s > first {
		t.Errorf("strength %v, then %v, learned behind an update of another size", first, s)
	}
}

// Drift is a part of the gradient, and its strength is measured in units of the noise: neither depends on how large
// gradients are.
func TestDriftHasNoUnit(t *testing.T) {
	told := func(by float64) (d, s float64) {
		e, _ := New(Config{})
		for range 20 {
			observe(t, e, around(4, 8, 10*by, 16*by, 0), around(4, 8, 10*by, 20*by, 1))
		}
		return e.Drift()
	}
	d1, s1 := told(1)
	d2, s2 := told(1e4)
	if d1 <= 0 || !near(d1, d2, 1e-9) || !near(s1, s2, 1e-9) {
		t.Errorf("drift %v of strength %v; of gradients a hundred times as large %v, %v", d1, s1, d2, s2)
	}
}

// What gradients scatter too much is put down to the exact gradient, which changes with the distance, and to the walk
// of the parameters by noise, which does with its root.
func TestDriftIsOfGradientAndNoise(t *testing.T) {
	for _, grad2 := range []float64{1e-6, 1, 100} { // noise alone, both, hardly any noise
		e, _ := New(Config{})
		clean, mixed := around(4, 8, grad2, 16, 0), around(4, 8, grad2, 20, 1)
		for range 10 {
			observe(t, e, clean, mixed)
		}
		m, _ := clean.Moments()
		s, straight, random := mixed.scatter()
		want := math.Sqrt((s - 3*m.Var) / (m.Grad2*straight + m.Var/16*random))
		if d, _ := e.Drift(); !near(d, want, 1e-9) {
			t.Errorf("|G|² %v: drift %v, want %v", grad2, d, want)
		}
	}
}

// Only pairs are held to what clean updates said: they cannot say that noise has grown, updates of several gradients
// can.
func TestOnlyPairsAreHeld(t *testing.T) {
	e, _ := New(Config{Smoothing: 0.5})
	for range 5 {
		observe(t, e, around(4, 8, 100, 10, 0))
	}
	known := e.Noise().Scale
	pair := Pair(Gradient{Norm2: 100, Samples: 8}, Gradient{Norm2: 100, Samples: 8, Basis: 1}, 190)
	for range 20 {
		observe(t, e, pair)
	}
	if n := e.Noise(); !n.Mixed || n.Scale > known || n.Var <= 10*known {
		t.Errorf("pairs: %+v, φ was %v", n, known)
	}
	observe(t, e, around(4, 8, 1, 1000, 1))
	if n := e.Noise(); n.Scale <= known {
		t.Errorf("an update of four: %+v, φ was %v", n, known)
	}
}

// The scatter of places, which is added up in order, is that of all pairs of gradients.
func TestScatterOfPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u Update
		samples := 0.0
		for range rapid.IntRange(2, 8).Draw(t, "n") {
			g := Gradient{Samples: rapid.IntRange(1, 64).Draw(t, "b"), Behind: rapid.Float64Range(0, 10).Draw(t, "d"), Norm2: 1}
			g.Weight = float64(g.Samples)
			samples += g.Weight
			u.Gradients = append(u.Gradients, g)
		}
		straight, random := 0.0, 0.0
		for _, g := range u.Gradients {
			for _, h := range u.Gradients {
				d := math.Abs(g.Behind - h.Behind)
				straight += g.Weight * h.Weight * d * d / 2 / samples
				random += g.Weight * h.Weight * d / 2 / samples
			}
		}
		_, s, r := u.scatter()
		if math.Abs(s-straight) > 1e-9*(1+straight) || math.Abs(r-random) > 1e-9*(1+random) {
			t.Errorf("%v and %v, want %v and %v", s, r, straight, random)
		}
	})
}

// The size of the last ten updates or so is compared with that of clean ones, not that of the last one alone: one that
// is larger by chance stops nothing.
func TestOneLargeUpdateStopsNothing(t *testing.T) {
	e, _ := New(Config{})
	for range 20 {
		observe(t, e, around(4, 8, 10, 16, 0))
	}
	_, last := e.Drift()
	for k := range 20 {
		size := 0.7
		if k%2 == 0 {
			size = 1.7 // more than 1.5, by itself
		}
		observe(t, e, around(4, 8, 10*size, 16*size, 1))
		_, s := e.Drift()
		if s <= last {
			t.Fatalf("nothing was learned from update %d: strength %v, then %v", k, last, s)
		}
		last = s
	}
}
