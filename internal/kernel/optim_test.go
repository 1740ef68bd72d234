package kernel

import (
	"math"
	"testing"
)

// Five steps of each rule against the formulas in float64.
func TestOptimisersAgainstFormulas(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const n, lr, wd, mu, b1, b2, eps = 37, 0.1, 0.01, 0.9, 0.9, 0.999, 1e-8
		rules := map[string]struct {
			step func(w, g, v, s []float32, t int)
			want func(w, g, v, s *float64, t float64)
		}{
			"sgd": {
				func(w, g, v, s []float32, t int) { SGD(w, g, lr, wd) },
				func(w, g, v, s *float64, t float64) { *w -= lr * (*g + wd**w) },
			},
			"momentum": {
				func(w, g, v, s []float32, t int) { Momentum(w, g, v, lr, mu, 0.25, wd, false) },
				func(w, g, v, s *float64, t float64) { *v = mu**v + 0.75*(*g+wd**w); *w -= lr * *v },
			},
			"nesterov": {
				func(w, g, v, s []float32, t int) { Momentum(w, g, v, lr, mu, 0, wd, true) },
				func(w, g, v, s *float64, t float64) { d := *g + wd**w; *v = mu**v + d; *w -= lr * (d + mu**v) },
			},
			"adam": {
				func(w, g, v, s []float32, t int) {
					Adam(w, g, v, s, AdamStep{LR: lr, Beta1: b1, Beta2: b2, Eps: eps, Decay: wd, Step: int64(t)})
				},
				func(w, g, v, s *float64, t float64) {
					d := *g + wd**w
					*v = b1**v + (1-b1)*d
					*s = b2**s + (1-b2)*d*d
					*w -= lr * (*v / (1 - math.Pow(b1, t))) / (math.Sqrt(*s/(1-math.Pow(b2, t))) + eps)
				},
			},
			"adam, a quarter of a round": {
				func(w, g, v, s []float32, t int) {
					AdamPart(w, g, v, s, AdamStep{LR: lr, Beta1: b1, Beta2: b2, Eps: eps, Decay: wd, Step: int64(t)}, 0.25)
				},
				func(w, g, v, s *float64, t float64) {
					d := *g + wd**w
					*v = b1**v + (1-b1)*d
					mean := *v / (1 - math.Pow(b1, t))
					*s = b2**s + (1-b2)*(d*d/4+mean*mean*3/4)
					*w -= lr * mean / (math.Sqrt(*s/(1-math.Pow(b2, t))) + eps)
				},
			},
			"adamw": {
				func(w, g, v, s []float32, t int) {
					Adam(w, g, v, s, AdamStep{LR: lr, Beta1: b1, Beta2: b2, Eps: eps, Decay: wd, Decoupled: true, Step: int64(t)})
				},
				func(w, g, v, s *float64, t float64) {
					*w -= lr * wd * *w
					*v = b1**v + (1-b1)**g
					*s = b2**s + (1-b2)**g**g
					*w -= lr * (*v / (1 - math.Pow(b1, t))) / (math.Sqrt(*s/(1-math.Pow(b2, t))) + eps)
				},
			},
		}
		for name, r := range rules {
			w, v, s := random(n, 1), make([]float32, n), make([]float32, n)
			w64, v64, s64 := widen(w), widen(v), widen(s)
			for step := 1; step <= 5; step++ {
				g := random(n, uint64(10+step))
				r.step(w, g, v, s, step)
				for i, d := range widen(g) {
					r.want(&w64[i], &d, &v64[i], &s64[i], float64(step))
				}
				wantNear(t, name, w, w64, 1e-5)
			}
		}
	})
}
