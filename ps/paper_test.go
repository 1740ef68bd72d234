package ps

import (
	"math"
	"slices"
	"testing"

	"star"
	"star/ps/rule"
	"star/transport/wire"
)

// The update semantics of the published system, recorded from runs of it: four workers, w0 = (1, 2), η = 0.1, c = 1/4,
// reports from workers 0, 1, 2, 3, 0. (Z. Zhang, H. Shen: Straggler Tolerant and Resilient DL Training on Homogeneous
// GPUs, arXiv 2512.09685, public artefact.) Each case says after which reports the barrier fires which workers.
func TestUpdateSemantics(t *testing.T) {
	reports := []struct {
		w star.Worker
		g []float32
	}{{0, []float32{0.4, -0.2}}, {1, []float32{0.8, 0.6}}, {2, []float32{1, 1}}, {3, []float32{-1, 0.5}}, {0, []float32{0.2, 0.2}}}
	for _, c := range []struct {
		name string
		fire [][]star.Worker // after each report; nil: none
		want [][2]float64
	}{
		{"x=4", [][]star.Worker{nil, nil, nil, {0, 1, 2, 3}, nil},
			[][2]float64{{1, 2}, {1, 2}, {1, 2}, {0.97, 1.9525}, {0.97, 1.9525}}},
		{"x=2", [][]star.Worker{nil, {0, 1}, nil, {2, 3}, nil},
			[][2]float64{{1, 2}, {0.97, 1.99}, {0.97, 1.99}, {0.97, 1.9525}, {0.97, 1.9525}}},
		{"x=1", [][]star.Worker{{0}, {1}, {2}, {3}, {0}},
			[][2]float64{{0.99, 2.005}, {0.97, 1.99}, {0.945, 1.965}, {0.97, 1.9525}, {0.965, 1.9475}}},
		{"x=4 with three pending, then x=2", [][]star.Worker{nil, nil, nil, {0, 1, 2, 3}, nil},
			[][2]float64{{1, 2}, {1, 2}, {1, 2}, {0.97, 1.9525}, {0.97, 1.9525}}},
		{"groups {0,1},{2,3}", [][]star.Worker{nil, {0, 1}, nil, {2, 3}, nil},
			[][2]float64{{1, 2}, {0.97, 1.99}, {0.97, 1.99}, {0.97, 1.9525}, {0.97, 1.9525}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewShard(2, &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(0.1)}, &heap{})
			s.Load([]float32{1, 2}, 0)
			var steps [4]int64
			var seq int64
			for i, r := range reports {
				if err := s.Push(rule.Gradient{Worker: r.w, Step: steps[r.w], Vec: slices.Clone(r.g)}); err != nil {
					t.Fatal(err)
				}
				if c.fire[i] != nil {
					seq++
					f := wire.Fire{Seq: seq, Version: seq}
					for _, w := range c.fire[i] {
						f.Gradients = append(f.Gradients, wire.Gradient{Worker: w, Step: steps[w], Weight: 0.25})
						steps[w]++
					}
					if err := s.Fire(&f); err != nil {
						t.Fatal(err)
					}
					if ev, ok := s.Next(); !ok || ev.Kind != Updated {
						t.Fatalf("no update after report %d", i)
					}
				}
				for j, want := range c.want[i] {
					if got := float64(s.Params()[j]); math.Abs(got-want) > 1e-6 {
						t.Errorf("after report %d: w[%d] = %v, want %v", i, j, got, want)
					}
				}
			}
		})
	}
}

// SSGD with N workers is one process on the whole batch: linear regression,
// 50 steps, within 1e-5 relative.
func TestSSGDIsTheWholeBatch(t *testing.T) {
	const n, batch, steps = 23, 48, 50
	x := make([][]float32, batch)
	y := make([]float32, batch)
	for i := range x {
		x[i] = make([]float32, n)
		for j := range x[i] {
			x[i][j] = float32(math.Sin(float64(31*i + 7*j)))
			y[i] += x[i][j] * float32(math.Cos(float64(j)))
		}
	}
	// grad is the mean gradient of ½(w·x−y)² over samples [from, to).
	grad := func(w []float32, from, to int) []float32 {
		g := make([]float32, n)
		for i := from; i < to; i++ {
			var e float32
			for j := range w {
				e += w[j] * x[i][j]
			}
			e -= y[i]
			for j := range g {
				g[j] += e * x[i][j] / float32(to-from)
			}
		}
		return g
	}
	whole := make([]float32, n)
	for range steps {
		g := grad(whole, 0, batch)
		for j := range whole {
			whole[j] -= 0.3 * g[j]
		}
	}
	for _, shares := range [][]int{{48}, {24, 24}, {12, 12, 12, 12}, {1, 7, 30, 10}} {
		s := NewShard(n, &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(0.3)}, &heap{})
		s.Load(make([]float32, n), 0)
		for step := range int64(steps) {
			f := wire.Fire{Seq: step + 1, Version: step + 1}
			at := 0
			for w, k := range shares {
				if err := s.Push(rule.Gradient{Worker: star.Worker(w), Step: step, Vec: grad(s.Params(), at, at+k)}); err != nil {
					t.Fatal(err)
				}
				f.Gradients = append(f.Gradients, wire.Gradient{
					Worker: star.Worker(w), Step: step, Weight: float32(k) / batch,
				})
				at += k
			}
			if err := s.Fire(&f); err != nil {
				t.Fatal(err)
			}
			s.Next()
		}
		// Relative to the vector: an element that happens to be near zero has no relative accuracy in float32, whatever
		// computes the sum.
		var diff, norm float64
		for j, want := range whole {
			diff = math.Hypot(diff, float64(s.Params()[j]-want))
			norm = math.Hypot(norm, float64(want))
		}
		if diff > 1e-5*norm {
			t.Errorf("shares %v: %v from the whole batch's parameters, whose norm is %v", shares, diff, norm)
		}
	}
}
