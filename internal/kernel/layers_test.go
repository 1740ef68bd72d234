package kernel

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func wantNear(t interface {
	Helper()
	Fatalf(string, ...any)
}, name string, got []float32, want []float64, tol float64) {
	t.Helper()
	for i, w := range want {
		if !(math.Abs(float64(got[i])-w) <= tol*(1+math.Abs(w))) {
			t.Fatalf("%s[%d] = %v, want %v", name, i, got[i], w)
		}
	}
}

// gradient is the central difference of f by each element of x, weighed by dy.
func gradient(x []float64, f func(x []float64) float64) []float64 {
	const eps = 1e-5
	g := make([]float64, len(x))
	for i, v := range x {
		x[i] = v + eps
		up := f(x)
		x[i] = v - eps
		g[i] = (up - f(x)) / (2 * eps)
		x[i] = v
	}
	return g
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func dot64(x []float64, y []float32) float64 {
	var s float64
	for i, v := range x {
		s += v * float64(y[i])
	}
	return s
}

// normNaive is batch normalisation by its definition, in float64.
func normNaive(s Norm, x, gamma, beta []float64) (y, mean, variance []float64) {
	y, mean, variance = make([]float64, len(x)), make([]float64, s.C), make([]float64, s.C)
	count := float64(s.N * s.Size)
	each := func(c int, f func(i int)) {
		for n := range s.N {
			for p := range s.Size {
				f((n*s.C+c)*s.Size + p)
			}
		}
	}
	for c := range s.C {
		each(c, func(i int) { mean[c] += x[i] / count })
		each(c, func(i int) { variance[c] += (x[i] - mean[c]) * (x[i] - mean[c]) / count })
		each(c, func(i int) {
			y[i] = (x[i]-mean[c])/math.Sqrt(variance[c]+float64(s.Eps))*gamma[c] + beta[c]
		})
	}
	return y, mean, variance
}

func TestNormAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, s := range []Norm{{N: 3, C: 4, Size: 25, Eps: 1e-5, Momentum: 0.1}, {N: 8, C: 3, Size: 1, Eps: 1e-5, Momentum: 0.3}, {N: 1, C: 2, Size: 9, Eps: 1e-3}} {
			n := s.N * s.C * s.Size
			x, gamma, beta := random(n, 1), random(s.C, 2), random(s.C, 3)
			for i := range x {
				x[i] += 3
			}
			runMean, runVar := random(s.C, 4), random(s.C, 5)
			y, mean, invStd := make([]float32, n), make([]float32, s.C), make([]float32, s.C)
			m0, v0 := widen(runMean), widen(runVar)
			s.Train(y, x, gamma, beta, mean, invStd, runMean, runVar)
			wy, wm, wv := normNaive(s, widen(x), widen(gamma), widen(beta))
			wantNear(t, "y", y, wy, 1e-5)
			wantNear(t, "mean", mean, wm, 1e-6)
			count := float64(s.N * s.Size)
			for c := range s.C {
				m0[c] += float64(s.Momentum) * (wm[c] - m0[c])
				v0[c] += float64(s.Momentum) * (wv[c]*count/(count-1) - v0[c]) // unbiased, as PyTorch
			}
			wantNear(t, "running mean", runMean, m0, 1e-5)
			wantNear(t, "running variance", runVar, v0, 1e-5)

			dy := random(n, 6)
			dx, dgamma, dbeta := make([]float32, n), make([]float32, s.C), make([]float32, s.C)
			s.Grad(dx, dgamma, dbeta, dy, x, gamma, mean, invStd)
			xs, gs, bs := widen(x), widen(gamma), widen(beta)
			loss := func([]float64) float64 { y, _, _ := normNaive(s, xs, gs, bs); return dot64(y, dy) }
			wantNear(t, "dx", dx, gradient(xs, loss), 1e-4)
			wantNear(t, "dgamma", dgamma, gradient(gs, loss), 1e-4)
			wantNear(t, "dbeta", dbeta, gradient(bs, loss), 1e-4)
			s.Grad(dy, dgamma, dbeta, dy, x, gamma, mean, invStd) // in place
			for i := range dx {
				if dx[i] != dy[i] {
					t.Fatalf("in place: dx[%d] = %v, want %v", i, dy[i], dx[i])
				}
			}

			for c := range runVar {
				runVar[c] = float32(math.Abs(float64(runVar[c])))
			}
			s.Eval(y, x, gamma, beta, runMean, runVar)
			for i := range wy {
				c := i / s.Size % s.C
				wy[i] = (float64(x[i])-float64(runMean[c]))/math.Sqrt(float64(runVar[c])+float64(s.Eps))*float64(gamma[c]) + float64(beta[c])
			}
			wantNear(t, "y of Eval", y, wy, 1e-5)
		}
	})
}

// A mean far from zero does not eat the variance, and a constant channel has none.
func TestNormOfFarMean(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		s := Norm{N: 4, C: 2, Size: 100, Eps: 1e-5, Momentum: 0.1}
		x := random(800, 1)
		for i := range x {
			x[i] += 10000
			if i/100%2 == 1 {
				x[i] = 77
			}
		}
		y, mean, invStd := make([]float32, 800), make([]float32, 2), make([]float32, 2)
		s.Train(y, x, []float32{1, 1}, []float32{0, 0}, mean, invStd, nil, nil)
		_, _, wv := normNaive(s, widen(x), []float64{1, 1}, []float64{0, 0})
		if got, want := float64(invStd[0]), 1/math.Sqrt(wv[0]+1e-5); !(math.Abs(got/want-1) <= 1e-5) {
			t.Errorf("invStd = %v, want %v", got, want)
		}
		for i, v := range y {
			if i/100%2 == 1 && v != 0 || v != v {
				t.Fatalf("y[%d] = %v of a constant channel", i, v)
			}
		}
	})
}

// In a large constant channel the one-pass variance comes out as rounding of
// either sign.
func TestNormOfLargeConstants(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		s := Norm{N: 1, C: 50, Size: 1001, Eps: 1e-5}
		x, one, zero := random(50*1001, 1), make([]float32, 1001), make([]float32, 1001)
		fill(one, 1)
		for c := range s.C {
			fill(x[c*1001:(c+1)*1001], 1e7+x[c*1001]*1e6)
		}
		y, mean, invStd := make([]float32, len(x)), make([]float32, 50), make([]float32, 50)
		s.Train(y, x, one, zero, mean, invStd, nil, nil)
		if i := FirstNonFinite(invStd); i >= 0 {
			t.Errorf("invStd of a channel of %v is %v", x[i*1001], invStd[i])
		}
		LayerNorm(y, x, one, zero, mean, invStd, 50, 1e-5)
		if i := FirstNonFinite(invStd); i >= 0 {
			t.Errorf("invStd of a row of %v is %v", x[i*1001], invStd[i])
		}
	})
}

func TestLayerNormAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, cols := range []int{1, 7, 64, 65} {
			const rows, eps = 5, 1e-5
			x, gamma, beta, dy := random(rows*cols, 1), random(cols, 2), random(cols, 3), random(rows*cols, 4)
			y, mean, invStd := make([]float32, rows*cols), make([]float32, rows), make([]float32, rows)
			LayerNorm(y, x, gamma, beta, mean, invStd, rows, eps)
			naive := func(x, gamma, beta []float64) []float64 {
				y := make([]float64, len(x))
				for r := range rows {
					var m, v float64
					row := x[r*cols : (r+1)*cols]
					for _, a := range row {
						m += a / float64(cols)
					}
					for _, a := range row {
						v += (a - m) * (a - m) / float64(cols)
					}
					for c, a := range row {
						y[r*cols+c] = (a-m)/math.Sqrt(v+eps)*gamma[c] + beta[c]
					}
				}
				return y
			}
			xs, gs, bs := widen(x), widen(gamma), widen(beta)
			wantNear(t, "y", y, naive(xs, gs, bs), 1e-5)
			dx, dgamma, dbeta := make([]float32, rows*cols), make([]float32, cols), make([]float32, cols)
			LayerNormGrad(dx, dgamma, dbeta, dy, x, gamma, mean, invStd, rows)
			loss := func([]float64) float64 { return dot64(naive(xs, gs, bs), dy) }
			if cols > 1 { // one column: the derivative is 0/√eps, all rounding
				wantNear(t, "dx", dx, gradient(xs, loss), 1e-4)
			}
			wantNear(t, "dgamma", dgamma, gradient(gs, loss), 1e-4)
			wantNear(t, "dbeta", dbeta, gradient(bs, loss), 1e-4)
		}
	})
}

func TestMaxPoolAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			k := rapid.IntRange(1, 4).Draw(t, "k")
			p := Pool{
				Planes: rapid.IntRange(1, 3).Draw(t, "planes"), K: k,
				H: rapid.IntRange(1, 14).Draw(t, "h"), W: rapid.IntRange(1, 40).Draw(t, "w"),
				Stride: rapid.IntRange(0, 3).Draw(t, "stride"), Pad: rapid.IntRange(0, k/2).Draw(t, "pad"),
			}
			x := random(p.Planes*p.H*p.W, rapid.Uint64().Draw(t, "seed"))
			for i := range x {
				switch rapid.IntRange(0, 9).Draw(t, "kind") {
				case 0:
					x[i] = float32(math.NaN())
				case 1:
					x[i] = float32(math.Inf(-1))
				case 2:
					x[i] = 1 // equals
				}
			}
			oh, ow := p.OutH(), p.OutW()
			y, arg := make([]float32, p.Planes*oh*ow), make([]int32, p.Planes*oh*ow)
			p.Max(y, arg, x)
			dy, dx := random(len(y), 1), random(len(x), 2)
			p.MaxGrad(dx, dy, arg)
			want := make([]float64, len(x))
			for n := range p.Planes {
				for i := range oh {
					for j := range ow {
						best, o := -1, (n*oh+i)*ow+j
						for a := range k {
							for b := range k {
								h, w := i*p.stride()+a-p.Pad, j*p.stride()+b-p.Pad
								if h < 0 || w < 0 || h >= p.H || w >= p.W {
									continue
								}
								q := h*p.W + w
								plane := x[n*p.H*p.W:]
								if best < 0 || plane[q] > plane[best] || plane[q] != plane[q] && plane[best] == plane[best] {
									best = q
								}
							}
						}
						if int(arg[o]) != best || !equalBits(y[o], x[n*p.H*p.W+best]) {
							t.Fatalf("%+v: output %d: %v at %d, want index %d", p, o, y[o], arg[o], best)
						}
						want[n*p.H*p.W+best] += float64(dy[o])
					}
				}
			}
			wantNear(t, "dx", dx, want, 1e-5)
		})
	})
}

func TestMeanPlanes(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		x := random(6*49, 1)
		y, dx := make([]float32, 6), make([]float32, 6*49)
		MeanPlanes(y, x, 49)
		for i := range y {
			var s float64
			for _, v := range x[i*49 : (i+1)*49] {
				s += float64(v) / 49
			}
			if !(math.Abs(float64(y[i])-s) <= 1e-6) {
				t.Errorf("plane %d: %v, want %v", i, y[i], s)
			}
		}
		MeanPlanesGrad(dx, y, 49)
		for i := range dx {
			if dx[i] != y[i/49]/49 {
				t.Fatalf("dx[%d] = %v, want %v", i, dx[i], y[i/49]/49)
			}
		}
	})
}

// col2im is the transpose of im2col: <im2col(x), c> = <x, col2im(c)>.
func TestIm2colTransposes(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			s := Conv{
				H: rapid.IntRange(1, 12).Draw(t, "h"), W: rapid.IntRange(1, 12).Draw(t, "w"),
				KH: rapid.IntRange(1, 4).Draw(t, "kh"), KW: rapid.IntRange(1, 4).Draw(t, "kw"),
				Stride: rapid.IntRange(1, 3).Draw(t, "stride"), Pad: rapid.IntRange(0, 3).Draw(t, "pad"), Dilation: rapid.IntRange(1, 2).Draw(t, "dilation"),
			}
			const channels = 2
			d := s
			d.In, d.Out = 1, 1
			size := d.OutH() * d.OutW()
			x, c := random(channels*s.H*s.W, 1), random(channels*s.KH*s.KW*size, 2)
			col := random(len(c), 3)
			im2col(col, size, x, channels, s)
			back := make([]float32, len(x))
			col2im(back, c, size, channels, s)
			if a, b := Dot(col, c), Dot(x, back); !(math.Abs(a-b) <= 1e-4*(1+math.Abs(a))) {
				t.Fatalf("%+v: <col, c> = %v, <x, back> = %v", s, a, b)
			}
			// And im2col itself: one element by its definition.
			if size == 0 {
				return
			}
			r, o := rapid.IntRange(0, channels*s.KH*s.KW-1).Draw(t, "row"), rapid.IntRange(0, size-1).Draw(t, "column")
			h := o/d.OutW()*max(s.Stride, 1) + r/s.KW%s.KH*max(s.Dilation, 1) - s.Pad
			w := o%d.OutW()*max(s.Stride, 1) + r%s.KW*max(s.Dilation, 1) - s.Pad
			var want float32
			if h >= 0 && h < s.H && w >= 0 && w < s.W {
				want = x[(r/(s.KH*s.KW)*s.H+h)*s.W+w]
			}
			if col[r*size+o] != want {
				t.Fatalf("%+v: row %d column %d is %v, want %v", s, r, o, col[r*size+o], want)
			}
		})
	})
}
