package pgns

import (
	"math/rand/v2"
	"testing"
)

// One gradient of a norm that nothing has, which is what a single worker says, is forgotten at once.
func TestOneLeap(t *testing.T) {
	for _, absurd := range []float64{1e40, 1e80, 1e300} {
		rng := rand.New(rand.NewPCG(1, 2))
		e, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		c := NewCourse(2)
		update := func(i int64, lie float64) {
			u := Update{Round: 8}
			for w := range 2 {
				n := 4 + rng.Float64()
				if w == 0 && lie > 0 {
					n = lie
				}
				c.Gradient(w, i, i, 4, n, 1)
				u.Gradients = append(u.Gradients, Gradient{Norm2: n, Samples: 4, Weight: 0.5, Basis: i})
			}
			u.Sum2 = 3.5
			m, err := e.Observe(u)
			c.Fired(i+1, []int{0, 1}, 8)
			if err == nil {
				c.Moments(i+1, m.Grad2)
			}
		}
		for i := range int64(50) {
			update(i, 0)
		}
		before := e.Noise()
		theta, _, ok := c.Bound()
		if !ok || before.Scale <= 0 {
			t.Fatalf("nothing is known: %+v, %v", before, ok)
		}
		update(50, absurd)
		for i := int64(51); i < 60; i++ {
			update(i, 0)
		}
		after := e.Noise()
		if after.Refused != 1 || after.Var > 2*before.Var || after.Scale > 2*before.Scale || after.Scale < before.Scale/2 {
			t.Errorf("%g: noise was %+v, is %+v", absurd, before, after)
		}
		if now, _, ok := c.Bound(); !ok || now > theta+0.5 || now < theta-0.5 {
			t.Errorf("%g: θ was %v, is %v (%v)", absurd, theta, now, ok)
		}
	}
}

// A leap that lasts is believed.
func TestLeapThatLasts(t *testing.T) {
	e, _ := New(Config{})
	for i := range int64(200) {
		n := 1.0
		if i > 20 {
			n = 1e20
		}
		e.Observe(Update{Round: 8, Sum2: 0.8 * n, Gradients: []Gradient{{Norm2: n, Samples: 4, Weight: 0.5, Basis: i}, {Norm2: n, Samples: 4, Weight: 0.5, Basis: i}}})
	}
	if s := e.Noise(); s.Var < 1e18 || s.Refused > 10 {
		t.Errorf("%+v", s)
	}
}
