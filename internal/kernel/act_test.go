package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

func ulps(got float32, want float64) float64 {
	w := float32(want)
	next := math.Nextafter32(float32(math.Abs(float64(w))), float32(math.Inf(1)))
	return math.Abs(float64(got)-want) / (float64(next) - math.Abs(float64(w)))
}

func phi(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

// The errors that the documentation promises, over random values of every size
// that matters and a fine grid.
func TestActivationErrors(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		var x []float32
		r := rand.New(rand.NewPCG(1, 2))
		for range 60000 {
			x = append(x, float32(r.NormFloat64()*math.Exp2(float64(r.IntN(12)-6))))
		}
		for v := -105.0; v < 90; v += 0.003 {
			x = append(x, float32(v))
		}
		y := make([]float32, len(x))
		worst := func(name string, run func(dst, x []float32), err func(x float64, y float32) float64, limit float64) {
			run(y, x)
			var w float64
			var at float32
			for i, v := range x {
				if e := err(float64(v), y[i]); !(e <= w) {
					w, at = e, v
				}
			}
			t.Logf("%s: largest error %.3g at %v", name, w, at)
			if !(w <= limit) {
				t.Errorf("%s: error %.3g at %v, promised %.3g", name, w, at, limit)
			}
		}
		worst("Exp (ulp)", Exp, func(x float64, y float32) float64 {
			want := math.Exp(x)
			if want > math.MaxFloat32*(1+0x1p-25) {
				if math.IsInf(float64(y), 1) {
					return 0
				}
				return math.Inf(1)
			}
			return ulps(y, want)
		}, 2)
		worst("Tanh", Tanh, func(x float64, y float32) float64 { return math.Abs(float64(y) - math.Tanh(x)) }, 2e-7)
		worst("Sigmoid", Sigmoid, func(x float64, y float32) float64 { return math.Abs(float64(y) - 1/(1+math.Exp(-x))) }, 2e-7)
		worst("GELU", GELU, func(x float64, y float32) float64 {
			return math.Abs(float64(y)-x*phi(x)) / math.Max(1, math.Abs(x))
		}, 4e-7)
		one := make([]float32, len(x))
		fill(one, 1)
		worst("GELUGrad", func(dst, x []float32) { GELUGrad(dst, one, x) }, func(x float64, y float32) float64 {
			return math.Abs(float64(y) - (phi(x) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)))
		}, 1e-6)
	})
}

// Towards the ends the functions neither turn back nor leave their range.
func TestActivationsAreMonotoneNearTheEnds(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, f := range []struct {
			name     string
			run      func(dst, x []float32)
			from, to float64
			lo, hi   float32
		}{
			{"Exp", Exp, -110, -80, 0, 1}, {"Exp", Exp, 80, 95, 1, float32(math.Inf(1))},
			{"Tanh", Tanh, 4, 20, 0, 1}, {"Tanh", Tanh, -20, -4, -1, 0},
			{"Sigmoid", Sigmoid, 8, 40, 0, 1}, {"Sigmoid", Sigmoid, -110, -8, 0, 1},
		} {
			const n = 100000
			x, y := make([]float32, n), make([]float32, n)
			for i := range x {
				x[i] = float32(f.from + (f.to-f.from)*float64(i)/n)
			}
			f.run(y, x)
			for i, v := range y {
				if v < f.lo || v > f.hi || v != v {
					t.Fatalf("%s(%v) = %v, outside [%v, %v]", f.name, x[i], v, f.lo, f.hi)
				}
				// One ulp back is rounding.
				if i > 0 && v < math.Nextafter32(math.Nextafter32(y[i-1], float32(math.Inf(-1))), float32(math.Inf(-1))) {
					t.Fatalf("%s(%v) = %v < %s(%v) = %v", f.name, x[i], v, f.name, x[i-1], y[i-1])
				}
			}
		}
	})
}

func TestActivationsOfNaNAndInf(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		one := []float32{1, 1, 1}
		for _, f := range []struct {
			name        string
			run         func(dst, x []float32)
			minus, plus float32
		}{
			{"ReLU", ReLU, 0, inf}, {"Exp", Exp, 0, inf}, {"Tanh", Tanh, -1, 1}, {"Sigmoid", Sigmoid, 0, 1}, {"GELU", GELU, 0, inf},
			{"GELUGrad", func(d, x []float32) { GELUGrad(d, one, x) }, 0, 1},
		} {
			x, y := []float32{nan, -inf, inf}, make([]float32, 3)
			f.run(y, x)
			if y[0] == y[0] || y[1] != f.minus || y[2] != f.plus {
				t.Errorf("%s(NaN, -Inf, +Inf) = %v, want NaN, %v, %v", f.name, y, f.minus, f.plus)
			}
		}
	})
}

func TestActivationGradients(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		x, dy := random(1000, 1), random(1000, 2)
		y, dx := make([]float32, len(x)), make([]float32, len(x))
		check := func(name string, slope func(x float64) float64) {
			t.Helper()
			for i := range x {
				want := float64(dy[i]) * slope(float64(x[i]))
				if !(math.Abs(float64(dx[i])-want) <= 1e-6*(1+math.Abs(want))) {
					t.Fatalf("%s at %v: %v, want %v", name, x[i], dx[i], want)
				}
			}
		}
		ReLU(y, x)
		ReLUGrad(dx, dy, y)
		check("ReLUGrad", func(x float64) float64 {
			if x > 0 {
				return 1
			}
			return 0
		})
	})
}
