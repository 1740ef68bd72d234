package kernel

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// convNaive visits every (output, weight, input) triple of s once.
func convNaive(s Conv, visit func(y, w, x int)) {
	s = s.norm()
	oh, ow := s.OutH(), s.OutW()
	in, out := s.In/s.Groups, s.Out/s.Groups
	for n := range s.N {
		for o := range s.Out {
			for i := range oh {
				for j := range ow {
					for c := range in {
						for kh := range s.KH {
							for kw := range s.KW {
								h, w := i*s.Stride+kh*s.Dilation-s.Pad, j*s.Stride+kw*s.Dilation-s.Pad
								if h < 0 || h >= s.H || w < 0 || w >= s.W {
									continue
								}
								visit(((n*s.Out+o)*oh+i)*ow+j,
									((o*in+c)*s.KH+kh)*s.KW+kw,
									((n*s.In+o/out*in+c)*s.H+h)*s.W+w)
							}
						}
					}
				}
			}
		}
	}
}

// checkConv compares the three directions of s with the definition in float64.
func checkConv(s Conv, seed uint64) error {
	nx, ny, nw := s.N*s.In*s.H*s.W, s.N*s.Out*s.OutH()*s.OutW(), s.Weights()
	x, w, dy, bias := random(nx, seed), random(nw, seed+1), random(ny, seed+2), random(s.Out, seed+3)
	size := s.OutH() * s.OutW()
	y64, dx64, dw64, db64 := make([]float64, ny), make([]float64, nx), make([]float64, nw), make([]float64, s.Out)
	ya, xa, wa := make([]float64, ny), make([]float64, nx), make([]float64, nw)
	for i := range y64 {
		y64[i] = float64(bias[i/size%s.Out])
		ya[i] = math.Abs(y64[i])
		db64[i/size%s.Out] += float64(dy[i])
	}
	convNaive(s, func(iy, iw, ix int) {
		v := float64(w[iw]) * float64(x[ix])
		y64[iy] += v
		ya[iy] += math.Abs(v)
		v = float64(w[iw]) * float64(dy[iy])
		dx64[ix] += v
		xa[ix] += math.Abs(v)
		v = float64(x[ix]) * float64(dy[iy])
		dw64[iw] += v
		wa[iw] += math.Abs(v)
	})
	const guard = 19
	cmp := func(name string, run func(dst []float32), want, abs []float64) error {
		got := random(len(want)+guard, seed+9)
		tail := append([]float32(nil), got[len(want):]...)
		run(got[:len(want)])
		for i, v := range want {
			tol := 1e-5*abs[i] + 1e-6
			if d := math.Abs(float64(got[i]) - v); !(d <= tol) {
				return fmt.Errorf("%s: %+v: %s[%d] = %v, want %v ± %.2g", Name(), s, name, i, got[i], v, tol)
			}
		}
		for i, v := range tail {
			if got[len(want)+i] != v {
				return fmt.Errorf("%s: %+v: %s: element %d past the end changed", Name(), s, name, i)
			}
		}
		return nil
	}
	if err := cmp("y", func(d []float32) { s.Forward(d, x, w, bias) }, y64, ya); err != nil {
		return err
	}
	if err := cmp("dx", func(d []float32) { s.GradInput(d, dy, w) }, dx64, xa); err != nil {
		return err
	}
	dbias := make([]float32, s.Out)
	if err := cmp("dw", func(d []float32) { s.GradWeight(d, dbias, dy, x) }, dw64, wa); err != nil {
		return err
	}
	for o, v := range db64 {
		if !(math.Abs(float64(dbias[o])-v) <= 1e-5*math.Abs(v)+1e-5) {
			return fmt.Errorf("%+v: dbias[%d] = %v, want %v", s, o, dbias[o], v)
		}
	}
	return nil
}

func TestConvShapes(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, s := range []Conv{
			{N: 2, In: 1, H: 28, W: 28, Out: 6, KH: 5, KW: 5, Pad: 2},              // LeNet 1
			{N: 2, In: 6, H: 14, W: 14, Out: 16, KH: 5, KW: 5},                     // LeNet 2
			{N: 3, In: 16, H: 32, W: 32, Out: 16, KH: 3, KW: 3, Pad: 1},            // ResNet-20
			{N: 2, In: 16, H: 32, W: 32, Out: 32, KH: 3, KW: 3, Pad: 1, Stride: 2}, //
			{N: 2, In: 32, H: 16, W: 16, Out: 32, KH: 3, KW: 3, Pad: 1},
			{N: 2, In: 64, H: 8, W: 8, Out: 64, KH: 3, KW: 3, Pad: 1},
			{N: 2, In: 16, H: 32, W: 32, Out: 32, KH: 1, KW: 1, Stride: 2},
			{N: 2, In: 24, H: 9, W: 11, Out: 17, KH: 1, KW: 1},
			{N: 5, In: 32, H: 4, W: 4, Out: 48, KH: 3, KW: 3, Pad: 1},
			{N: 7, In: 16, H: 2, W: 2, Out: 24, KH: 3, KW: 3, Pad: 1},
			{N: 2, In: 3, H: 33, W: 70, Out: 8, KH: 7, KW: 7, Pad: 3, Stride: 2},
			{N: 2, In: 8, H: 20, W: 20, Out: 8, KH: 3, KW: 3, Pad: 2, Dilation: 2},
			{N: 2, In: 12, H: 17, W: 19, Out: 12, KH: 3, KW: 3, Pad: 1, Groups: 12},
			{N: 2, In: 12, H: 16, W: 16, Out: 8, KH: 3, KW: 3, Pad: 1, Groups: 4, Stride: 2},
			{N: 1, In: 1, H: 5, W: 5, Out: 1, KH: 5, KW: 5},
			{N: 1, In: 2, H: 3, W: 3, Out: 2, KH: 5, KW: 5, Pad: 4},
		} {
			if err := checkConv(s, 7); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestConvAgainstDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			g := rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "groups")
			s := Conv{
				N:  rapid.IntRange(1, 3).Draw(t, "n"),
				In: g * rapid.IntRange(1, 5).Draw(t, "in"), Out: g * rapid.IntRange(1, 9).Draw(t, "out"),
				H: rapid.IntRange(1, 20).Draw(t, "h"), W: rapid.IntRange(1, 40).Draw(t, "w"),
				KH: rapid.IntRange(1, 5).Draw(t, "kh"), KW: rapid.IntRange(1, 5).Draw(t, "kw"),
				Stride: rapid.IntRange(0, 3).Draw(t, "stride"), Pad: rapid.IntRange(0, 3).Draw(t, "pad"),
				Dilation: rapid.IntRange(0, 2).Draw(t, "dilation"), Groups: g,
			}
			if err := checkConv(s, rapid.Uint64().Draw(t, "seed")); err != nil {
				t.Fatal(err)
			}
		})
	})
}
