package pgns

import (
	"math"
	"math/rand/v2"
	"testing"
)

// bowl is descent on a quadratic with noise by workers that wait for each other, and what a Course hears of it.
type bowl struct {
	rate      float64
	curvature []float64
	noise     float64 // variance of one sample's gradient in each coordinate
	batch     int
	at        []float64
	last      [][]float64
	rng       *rand.Rand
}

// round makes one update of all workers and tells c; it returns the exact θ = v·(1 + φ/B) where it begins.
func (b *bowl) round(c *Course, version int64, silent bool) (theta float64) {
	n, total := len(b.last), float64(len(b.last)*b.batch)
	var g2, turned, answered float64 // |G|², G·ηH·G, tr(ηH·Σ)/B
	for i, h := range b.curvature {
		g := h * b.at[i]
		g2 += g * g
		turned += b.rate * h * g * g
		answered += b.rate * h * b.noise / total
	}
	mean := make([]float64, len(b.at))
	u := Update{Round: n * b.batch}
	var workers []int
	for w := range n {
		g := make([]float64, len(b.at))
		norm2, change := 0.0, 0.0
		for i, h := range b.curvature {
			g[i] = h*b.at[i] + math.Sqrt(b.noise/float64(b.batch))*b.rng.NormFloat64()
			norm2 += g[i] * g[i]
			mean[i] += g[i] / float64(n)
			if b.last[w] != nil {
				change += (g[i] - b.last[w][i]) * (g[i] - b.last[w][i])
			}
		}
		if b.last[w] == nil || silent {
			change = -1
		}
		b.last[w] = g
		c.Gradient(w, version-1, version-1, b.batch, norm2, change)
		workers = append(workers, w)
		u.Gradients = append(u.Gradients, Gradient{Norm2: norm2, Samples: b.batch, Weight: 1})
	}
	for i, m := range mean {
		u.Sum2 += m * m * float64(n*n)
		b.at[i] -= b.rate * m
	}
	c.Fired(version, workers, n*b.batch)
	m, err := u.Moments()
	if err != nil {
		panic(err)
	}
	c.Moments(version, m.Grad2)
	return (turned + answered) / g2
}

func newBowl(rate, noise float64, seed uint64, curvature ...float64) *bowl {
	b := &bowl{rate: rate, curvature: curvature, noise: noise, batch: 16, last: make([][]float64, 4), rng: rand.New(rand.NewPCG(seed, 2))}
	for range curvature {
		b.at = append(b.at, 1)
	}
	return b
}

func same(h float64, n int) (hs []float64) {
	for range n {
		hs = append(hs, h)
	}
	return hs
}

// Without noise the bound is θ to the last digits, and nothing is known before four updates could be compared with the
// next ones.
func TestCourseOfExactGradients(t *testing.T) {
	for _, rate := range []float64{0, 0.01, 0.1, 0.3} {
		b, c := newBowl(rate, 0, 1, same(1, 20)...), NewCourse(4)
		for v := int64(1); v <= 12; v++ {
			want := b.round(c, v, false)
			_, got, ok := c.Bound()
			if ok != (v >= 5) {
				t.Fatalf("rate %v: known after %d updates: %v", rate, v, ok)
			}
			if ok && math.Abs(got-want) > 1e-6 {
				t.Errorf("rate %v, update %d: %v, want %v", rate, v, got, want)
			}
		}
	}
}

// With noise the bound is above θ nearly always, and not far above; where noise hides the gradient it says little.
func TestCourseBounds(t *testing.T) {
	for _, c := range []struct {
		rate, noise, most float64
		least             int // of 200
	}{
		{0.02, 1, 0.06, 180},   // φ/B = 1/64
		{0.02, 64, 0.35, 180},  // φ/B = 1
		{0.1, 16, 0.35, 180},   // φ/B = 1/4
		{0.02, 6400, 1e9, 150}, // φ/B = 100
	} {
		below, sum, known := 0, 0.0, 0
		for seed := range uint64(200) {
			b, course := newBowl(c.rate, c.noise, seed, same(1, 100)...), NewCourse(4)
			θ := 0.0
			for v := int64(1); v <= 10; v++ {
				θ += b.round(course, v, false) / 10
			}
			if _, got, ok := course.Bound(); ok {
				known++
				sum += got
				if got < θ*0.9 { // which weighs these rounds otherwise
					below++
				}
			}
		}
		if known-below < c.least*known/200 || sum/float64(known) > c.most || c.noise < 1000 && known < 200 {
			t.Errorf("rate %v, noise %v: of %d known bounds %d are below θ; mean %v", c.rate, c.noise, known, below, sum/float64(known))
		}
	}
}

// Input that is not of consecutive clean updates of all workers says nothing.
func TestCourseIgnores(t *testing.T) {
	for name, spoil := range map[string]func(c *Course, v int64){
		"no change told":        nil,
		"moments not told":      func(c *Course, v int64) { c.clean[(v-1)&63].known = false },
		"a step is missing":     func(c *Course, v int64) { c.last[2].step++ },
		"of another version":    func(c *Course, v int64) { c.last[1].basis-- },
		"far apart":             func(c *Course, v int64) { c.total += 1000 },
		"a norm that is no one": func(c *Course, v int64) { c.last[0].norm2 = math.NaN() },
	} {
		b, c := newBowl(0.1, 0, 1, same(1, 5)...), NewCourse(4)
		for v := int64(1); v <= 20; v++ {
			b.round(c, v, spoil == nil)
			if spoil != nil {
				spoil(c, v)
			}
		}
		if _, θ, ok := c.Bound(); ok {
			t.Errorf("%s: %v", name, θ)
		}
	}
	c := NewCourse(2)
	c.Gradient(-1, 0, 0, 1, 1, 1)
	c.Gradient(2, 0, 0, 1, 1, 1)
	c.Fired(1, []int{5}, 2)
	c.Fired(2, nil, 0)
	c.Moments(9, 1)
	c.Moments(2, math.Inf(1))
	if _, _, ok := c.Bound(); ok {
		t.Error("a bound of nothing")
	}
}

// A change of the learning rate is followed: what was measured long ago does not count.
func TestCourseFollows(t *testing.T) {
	b, c := newBowl(0.2, 0, 1, same(1, 5)...), NewCourse(4)
	for v := int64(1); v <= 60; v++ {
		if v == 10 {
			b.rate = 0.002
			for i := range b.at {
				b.at[i] = 1
			}
		}
		b.round(c, v, false)
	}
	if _, got, ok := c.Bound(); !ok || got > 0.01 {
		t.Errorf("%v, %v: want about 0.002", got, ok)
	}
}

// A sum over group members that are released together while others go on: distances count in rounds.
func TestCourseDistance(t *testing.T) {
	c := NewCourse(3)
	// Workers 0 and 1 make every odd version, worker 2 every even one. G goes down by a tenth a round of 3 gradients.
	g, at := 1.0, map[int64]float64{0: 1}
	for v := int64(1); v <= 40; v++ {
		if v%2 == 0 {
			c.Gradient(2, v/2-1, max(v-2, 0), 10, 1, 0)
			c.Fired(v, []int{2}, 30)
			g *= 1 - 0.1/3
			at[v] = g
			continue
		}
		basis := max(v-2, 0) // of the version that they made last
		before := max(v-4, 0)
		now, was := at[basis], at[before]
		change := (now - was) * (now - was)
		if v == 1 {
			change = -1
		}
		for w := range 2 {
			c.Gradient(w, v/2, basis, 10, now*now, change)
		}
		c.Fired(v, []int{0, 1}, 30)
		c.Moments(v, now*now)
		g *= 1 - 0.2/3
		at[v] = g
	}
	if _, got, ok := c.Bound(); !ok || math.Abs(got-0.1) > 0.005 {
		t.Errorf("%v, %v: want about 0.1", got, ok)
	}
}
