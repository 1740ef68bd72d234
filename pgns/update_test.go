package pgns

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// quadratic is the loss E ½·(w−ξ)ᵀA(w−ξ) with ξ of covariance diag(s²): the gradient of
// one sample is A·(w−ξ), so G and Σ are known.
type quadratic struct {
	a, s, w []float64
	rng     *rand.Rand
}

func newQuadratic(seed uint64) *quadratic {
	q := &quadratic{rng: rand.New(rand.NewPCG(seed, 7))}
	for i := range 20 {
		q.a = append(q.a, 0.2+0.1*float64(i))
		q.s = append(q.s, 1+0.5*float64(i%3))
		q.w = append(q.w, 0.3-0.02*float64(i))
	}
	return q
}

func (q *quadratic) exact() (grad2, trace float64) {
	for i := range q.a {
		grad2 += sq(q.a[i] * q.w[i])
		trace += sq(q.a[i] * q.s[i])
	}
	return
}

// grad is the mean gradient of b samples, at w moved by shift of itself.
func (q *quadratic) grad(b int, shift float64) []float64 {
	g := make([]float64, len(q.a))
	for i := range g {
		g[i] = q.a[i] * (q.w[i]*(1+shift) - q.s[i]*q.rng.NormFloat64()/math.Sqrt(float64(b)))
	}
	return g
}

func sq(x float64) float64 { return x * x }

func norm2(g []float64) (s float64) {
	for _, x := range g {
		s += x * x
	}
	return s
}

// update makes an Update of gradients over the given batches.
func (q *quadratic) update(batches []int, weight func(i, b int) float64) Update {
	var u Update
	sum := make([]float64, len(q.a))
	for i, b := range batches {
		g := q.grad(b, 0)
		c := weight(i, b)
		u.Gradients = append(u.Gradients, Gradient{Norm2: norm2(g), Samples: b, Weight: c})
		for j := range sum {
			sum[j] += c * g[j]
		}
	}
	u.Sum2 = norm2(sum)
	return u
}

// The estimator finds G and Σ of the quadratic within 5 %, whatever the batches and
// weights, although single observations are off by multiples.
func TestKnownCovariance(t *testing.T) {
	bySamples := func(_, b int) float64 { return float64(b) / 1000 }
	for _, c := range []struct {
		name    string
		batches []int
		weight  func(i, b int) float64
	}{
		{"equal", []int{32, 32, 32, 32}, bySamples},
		{"unequal", []int{8, 16, 64, 40}, bySamples},
		{"two", []int{16, 48}, bySamples},
		{"damped", []int{32, 32, 16, 48}, func(i, b int) float64 { return float64(b) / float64(1+i) }},
	} {
		q := newQuadratic(1)
		e, err := New(Config{Smoothing: 0.99999})
		if err != nil {
			t.Fatal(err)
		}
		for range 20000 {
			if _, err := e.Observe(q.update(c.batches, c.weight)); err != nil {
				t.Fatal(err)
			}
		}
		n, grad2, trace := e.Noise(), 0.0, 0.0
		grad2, trace = q.exact()
		if !near(n.Grad2, grad2, .05) || !near(n.Var, trace, .05) || !near(n.Scale, trace/grad2, .06) || n.Mixed {
			t.Errorf("%s: %+v, want |G|² %.4f, trΣ %.4f, φ %.2f", c.name, n, grad2, trace, trace/grad2)
		}
	}
}

func near(a, b, rel float64) bool { return math.Abs(a-b) <= rel*math.Abs(b) }

// Two gradients by their difference are the same as two by their sum, and find Σ.
func TestPair(t *testing.T) {
	q := newQuadratic(2)
	e, _ := New(Config{Smoothing: 0.99999})
	for range 20000 {
		g1, g2 := q.grad(24, 0), q.grad(40, 0)
		diff, sum := make([]float64, len(g1)), make([]float64, len(g1))
		for i := range diff {
			diff[i] = g2[i] - g1[i]
			sum[i] = 24*g1[i] + 40*g2[i]
		}
		u := Pair(Gradient{Norm2: norm2(g1), Samples: 24}, Gradient{Norm2: norm2(g2), Samples: 40}, norm2(diff))
		if !near(u.Sum2, norm2(sum), 1e-9) {
			t.Fatalf("sum %v by the difference, %v by itself", u.Sum2, norm2(sum))
		}
		if _, err := e.Observe(u); err != nil {
			t.Fatal(err)
		}
	}
	grad2, trace := q.exact()
	if n := e.Noise(); !near(n.Grad2, grad2, .05) || !near(n.Var, trace, .05) {
		t.Errorf("%+v, want |G|² %.4f, trΣ %.4f", n, grad2, trace)
	}
}

// With equal batches it is AdaptDL's formula: n gradients over b samples, L the mean
// of their squared norms, T that of their mean.
func TestEqualBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, b := rapid.IntRange(2, 9).Draw(t, "n"), rapid.IntRange(1, 512).Draw(t, "b")
		var u Update
		L, length, longest := 0.0, 0.0, 0.0
		for range n {
			g := rapid.Float64Range(0, 100).Draw(t, "g")
			L += g / float64(n)
			length, longest = length+math.Sqrt(g)/float64(n), max(longest, math.Sqrt(g)/float64(n))
			u.Gradients = append(u.Gradients, Gradient{Norm2: g, Samples: b, Weight: 1 / float64(n)})
		}
		T := sq(rapid.Float64Range(max(0, 2*longest-length), length).Draw(t, "|Σ c·g|")) // as long as such a sum can be
		u.Sum2 = T
		m, err := u.Moments()
		if err != nil {
			t.Fatal(err)
		}
		N, B := float64(n), float64(b)
		if want := (N*T - L) / (N - 1); math.Abs(m.Grad2-want) > 1e-9*(1+math.Abs(want)) {
			t.Errorf("|G|² %v, want %v", m.Grad2, want)
		}
		if want := (L - T) * N * B / (N - 1); math.Abs(m.Var-want) > 1e-9*(1+math.Abs(want)) {
			t.Errorf("trΣ %v, want %v", m.Var, want)
		}
	})
}

func TestRefused(t *testing.T) {
	ok := Gradient{Norm2: 1, Samples: 8, Weight: .5}
	with := func(f func(*Gradient)) Update {
		g := ok
		f(&g)
		return Update{Gradients: []Gradient{ok, g}, Sum2: 1}
	}
	nan := math.NaN()
	e, _ := New(Config{})
	for name, u := range map[string]Update{
		"none":            {},
		"one":             {Gradients: []Gradient{ok}, Sum2: 1},
		"norm NaN":        with(func(g *Gradient) { g.Norm2 = nan }),
		"norm infinite":   with(func(g *Gradient) { g.Norm2 = math.Inf(1) }),
		"norm negative":   with(func(g *Gradient) { g.Norm2 = -1 }),
		"no samples":      with(func(g *Gradient) { g.Samples = 0 }),
		"weight NaN":      with(func(g *Gradient) { g.Weight = nan }),
		"weight negative": with(func(g *Gradient) { g.Weight = -1 }),
		"sum NaN":         {Gradients: []Gradient{ok, ok}, Sum2: nan},
		"sum infinite":    {Gradients: []Gradient{ok, ok}, Sum2: math.Inf(1)},
		"weights zero":    {Gradients: []Gradient{{Norm2: 1, Samples: 1}, {Norm2: 1, Samples: 1}}, Sum2: 1},
	} {
		if _, err := e.Observe(u); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// E Σ b|g|²/B and E|Σ a·g|² say the same when Σ a²/b = n/B.
	skew := Update{Gradients: []Gradient{{Norm2: 1, Samples: 1, Weight: 1}, {Norm2: 1, Samples: 3, Weight: 0.4142}}, Sum2: 1}
	if _, err := e.Observe(skew); !errors.Is(err, ErrWeight) {
		t.Errorf("weights that hide the noise: %v", err)
	}
	if n := e.Noise(); n.Scale != 0 || n.Observations != 0 || n.Refused != 12 {
		t.Errorf("after refusals: %+v", n)
	}
	for _, s := range []float64{-1, 1, 2, nan} {
		if _, err := New(Config{Smoothing: s}); err == nil {
			t.Errorf("smoothing %v: no error", s)
		}
	}
}

// The first observation counts in full, and one that says the same changes nothing.
func TestBiasCorrection(t *testing.T) {
	u := newQuadratic(3).update([]int{16, 16, 32}, func(_, b int) float64 { return float64(b) })
	e, _ := New(Config{})
	m, err := e.Observe(u)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n := e.Noise(); !near(n.Var, m.Var, 1e-12) || n.Grad2 != max(n.Grad2, 0) {
			t.Errorf("%+v, observed %+v", n, m)
		}
		e.Observe(u)
	}
}

// Noise that hides the gradient is a large scale, not a negative or infinite one.
func TestClamp(t *testing.T) {
	g := Gradient{Norm2: 100, Samples: 4, Weight: 1}
	e, _ := New(Config{})
	if m, err := e.Observe(Update{Gradients: []Gradient{g, g}, Sum2: 1}); err != nil || m.Grad2 >= 0 {
		t.Fatal(m, err)
	}
	if n := e.Noise(); n.Scale != MaxScale || n.Grad2 != 0 {
		t.Errorf("%+v", n)
	}
	e, _ = New(Config{})
	e.Observe(Update{Gradients: []Gradient{g, g}, Sum2: 400}) // equal gradients
	if n := e.Noise(); n.Var != 1e-6 || n.Grad2 != 100 || n.Scale != 1e-8 {
		t.Errorf("no noise at all: %+v", n)
	}
}

// Gradients of different versions scatter more. They are kept apart from those of one
// version, and used, marked, when there is nothing else.
func TestMixedVersions(t *testing.T) {
	q := newQuadratic(4)
	_, trace := q.exact()
	const drift = 0.5 // of the gradient in a round
	mixed := func() Update {
		var u Update
		sum := make([]float64, len(q.a))
		for i, b := range []int{64, 64, 64, 64} {
			d := 4 * float64(i) // rounds behind
			g := q.grad(b, drift*d)
			u.Gradients = append(u.Gradients, Gradient{Norm2: norm2(g), Samples: b, Weight: 1, Basis: int64(-i), Behind: d})
			for j := range sum {
				sum[j] += g[j]
			}
		}
		u.Sum2 = norm2(sum)
		return u
	}
	clean := func() Update {
		return q.update([]int{64, 64, 64, 64}, func(_, _ int) float64 { return 1 })
	}
	e, _ := New(Config{Smoothing: 0.9999})
	for range 5000 {
		e.Observe(mixed())
	}
	if n := e.Noise(); !n.Mixed || n.Var < 1.2*trace {
		t.Errorf("only mixed: %+v, trΣ is %.3f", n, trace)
	}
	if d, s := e.Drift(); d != 0 || s != 0 {
		t.Errorf("drift %v, %v without knowing the noise", d, s)
	}
	for range 10000 {
		e.Observe(clean())
		e.Observe(mixed())
	}
	if n := e.Noise(); n.Mixed || !near(n.Var, trace, .05) {
		t.Errorf("with clean ones: %+v, trΣ is %.3f", n, trace)
	}
}

// A gradient that changes by a known part of itself in each round is found to do so.
func TestDrift(t *testing.T) {
	q := newQuadratic(5)
	for i := range q.w {
		q.w[i] *= 6 // so that the gradient exceeds the noise, as early in training
	}
	e, _ := New(Config{Smoothing: 0.999})
	batches := []int{64, 32, 128, 32}
	const drift = 0.3
	for range 3000 {
		e.Observe(q.update(batches, func(_, b int) float64 { return float64(b) }))
		var u Update
		sum := make([]float64, len(q.a))
		for i, b := range batches {
			d := float64(i) / 2
			g := q.grad(b, drift*d)
			u.Gradients = append(u.Gradients, Gradient{Norm2: norm2(g), Samples: b, Weight: float64(b) / 99, Basis: int64(-i), Behind: d})
			for j := range sum {
				sum[j] += float64(b) / 99 * g[j]
			}
		}
		u.Sum2 = norm2(sum)
		if _, err := e.Observe(u); err != nil {
			t.Fatal(err)
		}
	}
	if d, s := e.Drift(); !near(d, drift, .1) || s <= 0 {
		t.Errorf("drift %.3f (strength %.2g), want %.3f", d, s, drift)
	}
}

// Gradients that have become larger or smaller as a whole since versions were last equal scatter more or less for that,
// which is no drift.
func TestGrowthIsNoDrift(t *testing.T) {
	for _, c := range []struct {
		by      float64 // the gradients, in norm
		learned bool
	}{{0.2, false}, {0.7, false}, {0.9, true}, {1, true}, {1.15, true}, {1.4, false}, {10, false}} {
		e, _ := New(Config{})
		update := func(by float64, apart int64) Update {
			// Four gradients of 2·trΣ/b = 1 around one of norm 1.
			u := Update{Sum2: by * by * (1 + 1./4), Round: 32}
			for k := range int64(4) {
				u.Gradients = append(u.Gradients, Gradient{Norm2: 2 * by * by, Samples: 8, Weight: 1. / 4, Basis: -k * apart, Behind: float64(k*apart) / 4})
			}
			return u
		}
		for range 20 {
			e.Observe(update(1, 0))
		}
		if _, s := e.Drift(); s != 0 {
			t.Fatalf("a drift of strength %v where versions are equal", s)
		}
		for range 20 { // they are as large as they are now
			e.Observe(update(c.by, 1))
		}
		_, before := e.Drift()
		e.Observe(update(c.by, 1))
		if _, after := e.Drift(); after > before != c.learned {
			t.Errorf("gradients of %v times the norm: strength %v, then %v; learned from: %v", c.by, before, after, c.learned)
		}
	}
}

// What was long ago is forgotten.
func TestForgets(t *testing.T) {
	g := Gradient{Norm2: 2, Samples: 4, Weight: .5}
	h := Gradient{Norm2: 20, Samples: 4, Weight: .5}
	e, _ := New(Config{Smoothing: 0.9})
	for range 1000 {
		e.Observe(Update{Gradients: []Gradient{g, g}, Sum2: 1.5})
	}
	for range 100 {
		e.Observe(Update{Gradients: []Gradient{h, h}, Sum2: 15})
	}
	if n := e.Noise(); !near(n.Var, 40, .01) { // 8·(20 − 15)
		t.Errorf("%+v", n)
	}
}

// Norms that no vectors with this norm of their weighted sum can have say nothing, whichever of them is wrong.
func TestTriangle(t *testing.T) {
	for name, c := range map[string]struct {
		lengths []float64 // |g|, each over 8 samples with weight ½
		sum     float64   // |Σ c·g|
		err     error
	}{
		"at right angles":             {[]float64{3, 4}, 2.5, nil},
		"in one direction":            {[]float64{3, 5}, 4, nil},
		"but for rounding":            {[]float64{3, 5}, 4.0002, nil},
		"against each other":          {[]float64{3, 5}, 1, nil},
		"against each other, rounded": {[]float64{3, 5}, 0.9999, nil},
		"of nothing":                  {[]float64{4, 4}, 0, nil},
		"longer than both":            {[]float64{3, 5}, 4.01, ErrLength},
		"shorter than one alone":      {[]float64{3, 5}, 0.99, ErrLength},
		"one that exaggerates":        {[]float64{4, 4, 4e10}, 3, ErrLength},
		"one that says it has none":   {[]float64{0, 3}, 2, ErrLength},
	} {
		t.Run(name, func(t *testing.T) {
			u := Update{Sum2: c.sum * c.sum}
			for _, l := range c.lengths {
				u.Gradients = append(u.Gradients, Gradient{Norm2: l * l, Samples: 8, Weight: 0.5})
			}
			if _, err := u.Moments(); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
		})
	}
}
