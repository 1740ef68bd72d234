package pgns

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// A whole turn of answers about the same two gradients adds up to what they differ by, whatever
// their length, and no answer comes before there is something to compare with.
func TestChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(16_000, 70_000)).Draw(t, "n")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		a, b := make([]float32, n), make([]float32, n)
		want := 0.0
		for i := range a {
			a[i], b[i] = rng.Float32()-.5, rng.Float32()*float32(i%7)
			want += sq(float64(a[i] - b[i]))
		}
		k := stride(n)
		if n <= 2*4096-16 && k != 1 || n > 2*4096 && k < 2 || n > 16*4096 && k != 16 && k != 17 {
			t.Fatalf("one line of %d of %d coordinates", k, n)
		}
		var c Change
		if _, ok := c.Next(a); ok {
			t.Fatal("an answer about one gradient")
		}
		sum := 0.0
		for i := range 2 * k {
			a, b = b, a
			d, ok := c.Next(a)
			if !ok {
				t.Fatalf("no answer at call %d", i)
			}
			sum += d
		}
		if got := sum / float64(2*k); !near(got, want, 1e-4) {
			t.Errorf("%d coordinates, one line of %d: on average %v, want %v", n, k, got, want)
		}
		if _, ok := c.Next(a[:n-1]); ok {
			t.Error("an answer about gradients of two lengths")
		}
	})
}

// What a turn of the sample is off by is what the documentation says, and what it keeps is bounded.
func TestChangeVariance(t *testing.T) {
	const n = 400_000
	rng := rand.New(rand.NewPCG(3, 1))
	zero, g := make([]float32, n), make([]float32, n)
	for i := range g {
		g[i] = float32(rng.NormFloat64())
	}
	k := stride(n)
	var c Change
	c.Next(zero)
	var sum, squares float64
	for i := range 2 * k { // k odd: each line is compared both ways round
		v := g
		if i%2 == 1 {
			v = zero
		}
		d, _ := c.Next(v)
		sum += d
		squares += d * d
	}
	mean := sum / float64(2*k)
	dev := math.Sqrt(squares/float64(2*k)-mean*mean) / mean
	if want := math.Sqrt(2 * float64(k) / n); dev > 2*want || dev < want/2 {
		t.Errorf("relative deviation %v, want about %v", dev, want)
	}
	if kept := cap(c.kept); kept > n/k+2*changeLine {
		t.Errorf("keeps %d of %d coordinates, one of %d was wanted", kept, n, k)
	}
	if k := stride(1 << 30); k != 512 {
		t.Errorf("of a large gradient one of %d lines", k)
	}
}

// asgd trains the quadratic with n workers that take turns, each with batches of b, and tells the estimator of
// pairs. It starts again from the same place now and then, so that the gradient stays about as large. It returns the
// mean of the exact |G|² where gradients were taken.
func (q *quadratic) asgd(e *Estimator, n, b, updates int, rate float64) (grad2 float64) {
	type turn struct {
		at      []float64 // parameters
		version int64
		last    Gradient
		change  Change
	}
	begin := append([]float64(nil), q.w...)
	turns := make([]turn, n)
	for i := range updates {
		if i%200 == 0 {
			copy(q.w, begin)
			for j := range turns {
				turns[j] = turn{at: append([]float64(nil), q.w...), version: int64(i)}
			}
		}
		t := &turns[i%n]
		now := q.w
		q.w = t.at
		g := q.grad(b, 0)
		exact, _ := q.exact()
		grad2 += exact / float64(updates)
		q.w = now
		single := make([]float32, len(g))
		for j := range g {
			single[j] = float32(g[j])
			q.w[j] -= rate / float64(n) * g[j]
		}
		own := Gradient{Norm2: norm2(g), Samples: b, Basis: t.version}
		if d, ok := t.change.Next(single); ok {
			before := t.last
			before.Behind = 1 // a round of the others' and its own
			u := Pair(before, own, d)
			u.Round = n * b
			e.Observe(u)
		}
		t.last, t.version = own, int64(i+1)
		copy(t.at, q.w)
	}
	return grad2
}

// Pairs of consecutive gradients of asynchronous workers find G and Σ of the quadratic within 5 % as long as the
// learning rate is small, and are marked; at large rates tr Σ is too much, by what Pair says.
func TestPairsOfASGD(t *testing.T) {
	const n, b = 4, 16
	for _, rate := range []float64{0.01, 0.3, 0.6} {
		t.Run(fmt.Sprint("rate ", rate), func(t *testing.T) {
			q := newQuadratic(6)
			for i := range q.w {
				q.w[i] *= 6
			}
			e, _ := New(Config{Smoothing: 0.99999})
			_, trace := q.exact()
			curved := 0.0 // tr AΣ
			for i := range q.a {
				curved += q.a[i] * sq(q.a[i]*q.s[i])
			}
			grad2 := q.asgd(e, n, b, 40_000, rate)
			v := rate * curved / trace // as noise sees it
			s := e.Noise()
			t.Logf("v %.3f: tr Σ %+.1f %%, |G|² %+.1f %%, φ %+.1f %%", v, 100*(s.Var/trace-1), 100*(s.Grad2/grad2-1), 100*(s.Scale/(trace/grad2)-1))
			if !s.Mixed {
				t.Error("not marked")
			}
			if d, strength := e.Drift(); d != 0 || strength != 0 {
				t.Errorf("drift %v, %v", d, strength)
			}
			if rate < 0.1 {
				if !near(s.Var, trace, .05) || !near(s.Grad2, grad2, .05) || !near(s.Scale, trace/grad2, .05) {
					t.Errorf("%+v, want |G|² %.4f, trΣ %.4f, φ %.2f", s, grad2, trace, trace/grad2)
				}
				return
			}
			least := 1 + 0.8*v/n
			most := 1 + 1.5*(v/n+v*v*(b*grad2/trace+1./n)/2)
			if over := s.Var / trace; over < least || over > most {
				t.Errorf("tr Σ is %.3f of what it is, want %.3f to %.3f", over, least, most)
			}
		})
	}
}

// An estimate that no two vectors of these norms allow is limited to what they allow. After gradients of equal
// versions, pairs only make φ smaller: they bound it from above, by an unknown distance.
func TestPairsAfterCleanUpdates(t *testing.T) {
	const n, b = 4, 16
	for rate, bound := range map[float64]bool{0.01: false, 0.6: true} {
		q := newQuadratic(6)
		for i := range q.w {
			q.w[i] *= 6
		}
		e, _ := New(Config{})
		for range 200 {
			u := Update{}
			sum := make([]float64, len(q.w))
			for range n {
				g := q.grad(b, 0)
				u.Gradients = append(u.Gradients, Gradient{Norm2: norm2(g), Samples: b, Weight: 1.0 / n})
				for i, v := range g {
					sum[i] += v / n
				}
			}
			u.Sum2 = norm2(sum)
			if _, err := e.Observe(u); err != nil {
				t.Fatal(err)
			}
		}
		clean := e.Noise()
		q.asgd(e, n, b, 2000, rate)
		s := e.Noise()
		if clean.Mixed || !s.Mixed {
			t.Fatalf("before %+v, after %+v", clean, s)
		}
		if s.Scale > clean.Scale || s.Scale <= 0 {
			t.Errorf("rate %v: φ is %v, and was %v", rate, s.Scale, clean.Scale)
		}
		if alone := s.Grad2 <= 0 || s.Var/s.Grad2 > clean.Scale; bound && !alone {
			t.Errorf("rate %v: pairs alone tell %v/%v: this tests nothing", rate, s.Var, s.Grad2)
		}
	}
}

func TestPairIsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		norm := rapid.Float64Range(0, 1e6)
		g1 := Gradient{Norm2: norm.Draw(t, "first"), Samples: rapid.IntRange(1, 100).Draw(t, "b1")}
		g2 := Gradient{Norm2: norm.Draw(t, "second"), Samples: rapid.IntRange(1, 100).Draw(t, "b2")}
		u := Pair(g1, g2, rapid.Float64Range(0, 1e9).Draw(t, "difference"))
		n1, n2 := float64(g1.Samples)*math.Sqrt(g1.Norm2), float64(g2.Samples)*math.Sqrt(g2.Norm2)
		if slack := 1e-9 * sq(n1+n2); u.Sum2 < sq(n1-n2)-slack || u.Sum2 > sq(n1+n2)+slack {
			t.Errorf("|b₁g₁+b₂g₂|² = %v, of norms %v and %v", u.Sum2, n1, n2)
		}
		if _, err := u.Moments(); err != nil {
			t.Error(err)
		}
	})
	if _, err := Pair(Gradient{Norm2: 1, Samples: 1}, Gradient{Norm2: 1, Samples: 1}, math.NaN()).Moments(); err == nil {
		t.Error("a difference that is not a number")
	}
}

func BenchmarkChange(b *testing.B) {
	for _, n := range []int{61_706, 1_000_000, 25_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := make([]float32, n)
			for i := range g {
				g[i] = float32(i%13) - 6
			}
			var c Change
			c.Next(g)
			b.ReportAllocs()
			for b.Loop() {
				c.Next(g)
			}
		})
	}
}
