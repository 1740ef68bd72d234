package net

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/train"
)

// bench makes one layer alone, for training, with initial parameters.
func bench(t *testing.T, batch int, in []int, make1 func(b *Builder) (Layer, error)) (Layer, *Builder) {
	t.Helper()
	d := definition{
		name: "bench",
		fits: features,
		layers: func(b *Builder, _ settings) ([]Layer, error) {
			l, err := make1(b)
			if err != nil {
				return nil, err
			}
			return []Layer{l, Linear(b, "bench", l.Out(), b.Vocab, Identity)}, nil
		},
	}
	m, err := d.declare(Spec{Input: train.Input{Shape: in, Classes: 4}, Seed: 3}, true)
	if err != nil {
		t.Fatal(err)
	}
	b := m.builder(batch, true)
	l, err := make1(b)
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

// checkGradients compares a layer's gradients with central differences of
// L = Σ rᵢ·yᵢ for random r, over the elements of x and of every parameter.
//
// y is float32, so L carries a rounding of about 1e-7 of Σ|rᵢyᵢ|, and the
// quotient one of 1e-7·Σ|ry|/ε. Layers that are linear in each argument have no
// error of curvature and take a large ε; the others balance the two, and state
// their tolerance. An element is left out if the pattern of zeros of the result
// differs between the two sides: there the layer has a kink (ReLU). At most a
// fifth may be.
func checkGradients(t *testing.T, batch int, in []int, eps, tol float64, input func(*rand.Rand) float64, make1 func(b *Builder) (Layer, error)) {
	t.Helper()
	l, _ := bench(t, batch, in, make1)
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, batch*product(in))
	for i := range x {
		x[i] = float32(input(rng))
	}
	for _, p := range l.Params() { // off the special values 0 and 1
		for i := range p.W {
			p.W[i] += float32(0.2 * rng.NormFloat64())
		}
	}
	r := make([]float32, batch*product(l.Out()))
	for i := range r {
		r[i] = float32(rng.NormFloat64())
	}
	loss := func() (sum, size float64, zeros []bool) {
		for i, y := range l.Forward(x) {
			v := float64(y) * float64(r[i])
			sum += v
			size += math.Abs(v)
			zeros = append(zeros, y == 0 || y == 6)
		}
		return
	}
	_, size, _ := loss()
	keep := append([]float32(nil), r...)
	dx := append([]float32(nil), l.Backward(r)...)
	for i := range r {
		if r[i] != keep[i] {
			t.Fatal("Backward changed dy")
		}
	}
	if len(dx) != len(x) {
		t.Fatalf("dx has %d elements, x has %d", len(dx), len(x))
	}
	tensors := []struct {
		name string
		w, g []float32
	}{{"x", x, dx}}
	for _, p := range l.Params() {
		tensors = append(tensors, struct {
			name string
			w, g []float32
		}{p.Name, p.W, append([]float32(nil), p.G...)})
		clear(p.G)
	}
	again := l.Backward(r)
	for i := range again {
		again[i] = float32(math.NaN()) // the caller may change it
	}
	for i, v := range l.Backward(r) {
		if v != dx[i] {
			t.Fatalf("dx[%d] is %v the first time and %v later", i, dx[i], v)
		}
	}
	for _, v := range tensors {
		var scale float64
		for _, g := range v.g {
			scale = max(scale, math.Abs(float64(g)))
		}
		checked, kinks := 0, 0
		for n := 0; n < 60; n++ {
			i := rng.IntN(len(v.w))
			was := v.w[i]
			hi, lo := was+float32(eps), was-float32(eps)
			v.w[i] = hi
			up, _, zu := loss()
			v.w[i] = lo
			down, _, zd := loss()
			v.w[i] = was
			if fmt.Sprint(zu) != fmt.Sprint(zd) {
				kinks++
				continue
			}
			checked++
			want := (up - down) / (float64(hi) - float64(lo))
			noise := 2e-7 * size / eps
			if got := float64(v.g[i]); !(math.Abs(got-want) <= tol*max(scale, 1e-3)+noise) {
				t.Errorf("%s[%d]: gradient %v, difference quotient %v (largest gradient %v)", v.name, i, got, want, scale)
			}
		}
		if checked < 48 && kinks > 0 && checked < 4*kinks {
			t.Errorf("%s: %d elements checked, %d at a kink; the input does not suit the test", v.name, checked, kinks)
		}
	}
}

func normal(r *rand.Rand) float64 { return r.NormFloat64() }

// apart are multiples of 0.1: no two different ones are within 2ε.
func apart(r *rand.Rand) float64 { return 0.1 * float64(r.IntN(2000)-1000) }

func TestLayerGradients(t *testing.T) {
	img := []int{3, 7, 6}
	relu := func(l Layer, err error) (Layer, error) { return l, err }
	for _, c := range []struct {
		name     string
		in       []int
		eps, tol float64
		input    func(*rand.Rand) float64
		make     func(b *Builder) (Layer, error)
	}{
		{"linear", []int{9}, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) { return Linear(b, "l", []int{9}, 7, Identity), nil }},
		{"linear relu", []int{9}, 1e-2, 1e-4, normal, func(b *Builder) (Layer, error) { return Linear(b, "l", []int{9}, 7, ReLU), nil }},
		{"linear relu6", []int{9}, 1e-2, 1e-4, func(r *rand.Rand) float64 { return 6 * r.NormFloat64() }, func(b *Builder) (Layer, error) { return Linear(b, "l", []int{9}, 7, ReLU6), nil }},
		{"linear on image", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) { return Linear(b, "l", img, 5, Identity), nil }},
		{"conv 3x3", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) {
			return Conv(b, "c", img, 4, Window{Size: 3, Pad: 1}, Identity)
		}},
		{"conv 5x5 stride 2 pad 2 relu", img, 1e-3, 1e-3, normal, func(b *Builder) (Layer, error) {
			return relu(Conv(b, "c", img, 4, Window{Size: 5, Stride: 2, Pad: 2}, ReLU))
		}},
		{"conv 1x1 stride 2", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) {
			return PlainConv(b, "c", img, 5, Window{Size: 1, Stride: 2})
		}},
		{"conv 2x2 no pad", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) {
			return PlainConv(b, "c", img, 2, Window{Size: 2})
		}},
		{"depthwise", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) {
			return DepthwiseConv(b, "c", img, Window{Size: 3, Pad: 1})
		}},
		{"depthwise stride 2", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) {
			return DepthwiseConv(b, "c", img, Window{Size: 3, Stride: 2, Pad: 1})
		}},
		{"max pool", img, 1e-2, 1e-4, apart, func(b *Builder) (Layer, error) { return MaxPool(b, "p", img, Window{Size: 2}) }},
		{"max pool overlapping", img, 1e-2, 1e-4, apart, func(b *Builder) (Layer, error) {
			return MaxPool(b, "p", img, Window{Size: 3, Stride: 2, Pad: 1})
		}},
		{"global average pool", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) { return GlobalAvgPool(b, "p", img) }},
		{"subsample", img, 0.1, 1e-4, normal, func(b *Builder) (Layer, error) { return Subsample(b, "s", img, 8, 2) }},
		// Curvature: ε² times the third derivative, which is of the order of γ/σ³.
		{"batch norm", img, 1e-2, 2e-3, normal, func(b *Builder) (Layer, error) { return BatchNorm(b, "n", img, Identity), nil }},
		{"batch norm relu", img, 1e-3, 3e-3, normal, func(b *Builder) (Layer, error) { return BatchNorm(b, "n", img, ReLU), nil }},
		{"conv and norm relu", img, 1e-3, 3e-3, normal, func(b *Builder) (Layer, error) {
			c, err := PlainConv(b, "c", img, 5, Window{Size: 3, Stride: 2, Pad: 1})
			return ConvNorm(b, c, "n", ReLU), err
		}},
		{"conv and norm", img, 1e-2, 3e-3, normal, func(b *Builder) (Layer, error) {
			c, err := DepthwiseConv(b, "c", img, Window{Size: 3, Pad: 1})
			return ConvNorm(b, c, "n", Identity), err
		}},
		{"batch norm of features", []int{5}, 1e-2, 5e-3, normal, func(b *Builder) (Layer, error) { return BatchNorm(b, "n", []int{5}, Identity), nil }},
		{"residual", img, 1e-2, 1e-3, normal, func(b *Builder) (Layer, error) {
			c, err := Conv(b, "c", img, 3, Window{Size: 3, Pad: 1}, Identity)
			return Residual(b, img, c, nil, Identity), err
		}},
		{"residual with shortcut relu", img, 1e-3, 2e-3, normal, func(b *Builder) (Layer, error) {
			c, err := Conv(b, "c", img, 6, Window{Size: 3, Stride: 2, Pad: 1}, Identity)
			if err != nil {
				return nil, err
			}
			s, err := Subsample(b, "s", img, 6, 2)
			return Residual(b, img, c, s, ReLU), err
		}},
		{"residual with projection", img, 1e-2, 1e-3, normal, func(b *Builder) (Layer, error) {
			c, err := Conv(b, "c", img, 6, Window{Size: 3, Stride: 2, Pad: 1}, Identity)
			if err != nil {
				return nil, err
			}
			s, err := PlainConv(b, "s", img, 6, Window{Size: 1, Stride: 2})
			return Residual(b, img, c, s, Identity), err
		}},
		{"chain", img, 0.1, 1e-3, normal, func(b *Builder) (Layer, error) {
			c, err := Conv(b, "c", img, 4, Window{Size: 3}, Identity)
			if err != nil {
				return nil, err
			}
			return Chain(c, Linear(b, "l", c.Out(), 3, Identity)), nil
		}},
	} {
		for _, batch := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", c.name, batch), func(t *testing.T) {
				if c.name == "batch norm of features" && batch == 1 {
					t.Skip("one value has no variance")
				}
				checkGradients(t, batch, c.in, c.eps, c.tol, c.input, c.make)
			})
		}
	}
}

// SkipInputGrad takes away the gradient of the input and changes nothing else.
func TestSkipInputGrad(t *testing.T) {
	img := []int{3, 6, 6}
	conv := func(b *Builder) (Layer, error) { return Conv(b, "c", img, 4, Window{Size: 3, Pad: 1}, ReLU) }
	for name, make1 := range map[string]func(b *Builder) (Layer, error){
		"conv":   conv,
		"linear": func(b *Builder) (Layer, error) { return Linear(b, "l", img, 5, ReLU), nil },
		"pool":   func(b *Builder) (Layer, error) { return MaxPool(b, "p", img, Window{Size: 2}) },
		"chain": func(b *Builder) (Layer, error) {
			l, err := conv(b)
			return Chain(l, Linear(b, "l", l.Out(), 5, Identity)), err
		},
		"residual": func(b *Builder) (Layer, error) {
			l, err := conv(b)
			if err != nil {
				return nil, err
			}
			s, err := Subsample(b, "s", img, 4, 1)
			return Residual(b, img, l, s, ReLU), err
		},
	} {
		var layers [2]Layer
		for i := range layers {
			layers[i], _ = bench(t, 2, img, make1)
		}
		skipInputGrad(layers[1])
		x, dy := make([]float32, 2*product(img)), make([]float32, 2*product(layers[0].Out()))
		for i := range x {
			x[i] = float32(i%13) - 6
		}
		for i := range dy {
			dy[i] = float32(i%7) - 3
		}
		for i, l := range layers {
			l.Forward(x)
			if dx := l.Backward(dy); (dx == nil) != (i == 1) {
				t.Errorf("%s: dx has %d elements, skipped: %t", name, len(dx), i == 1)
			}
		}
		for i, p := range layers[0].Params() {
			for j := range p.G {
				if p.G[j] != layers[1].Params()[i].G[j] {
					t.Fatalf("%s: %s[%d]: %v with dx, %v without", name, p.Name, j, p.G[j], layers[1].Params()[i].G[j])
				}
			}
		}
	}
}

// Linear adds to the gradient, so its tensors may be used twice; those of a
// convolution may not, and asking for them twice panics.
func TestSharedParameters(t *testing.T) {
	l, b := bench(t, 1, []int{2}, func(b *Builder) (Layer, error) {
		b.Own("o", Constant(0), 1)
		return Linear(b, "l", []int{2}, 1, Identity), nil
	})
	l.Forward([]float32{3, 5})
	l.Backward([]float32{1})
	l.Backward([]float32{1})
	if w, bias := l.Params()[0].G, l.Params()[1].G; w[0] != 6 || w[1] != 10 || bias[0] != 2 {
		t.Errorf("gradients %v, %v after two backward passes, want [6 10] and [2]", w, bias)
	}
	if Linear(b, "l", []int{2}, 1, Identity).Params()[0] != l.Params()[0] {
		t.Error("the same name gives another tensor")
	}
	panics := func(what string, f func()) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", what)
			}
		}()
		f()
	}
	panics("Own twice", func() { b.Own("o", Constant(0), 1) })
	panics("Param of an owned tensor", func() { b.Param("o", Constant(0), 1) })
	panics("another shape", func() { b.Param("l.weight", Constant(0), 7) })
}

// Two channels of 3x3 become four of 2x2, the new ones zero on both sides.
func TestSubsample(t *testing.T) {
	l, _ := bench(t, 1, []int{2, 3, 3}, func(b *Builder) (Layer, error) { return Subsample(b, "s", []int{2, 3, 3}, 4, 2) })
	x := make([]float32, 18)
	for i := range x {
		x[i] = float32(i + 1)
	}
	want := []float32{0, 0, 0, 0, 1, 3, 7, 9, 10, 12, 16, 18, 0, 0, 0, 0}
	if got := l.Forward(x); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Batch normalisation's running statistics follow PyTorch: momentum 0.1 of the new
// value, unbiased variance. By hand: the values 1, 2, 3, 6 have mean 3 and
// unbiased variance 14/3.
func TestBatchNormRunningStatistics(t *testing.T) {
	made, _ := bench(t, 4, []int{1}, func(b *Builder) (Layer, error) { return BatchNorm(b, "n", []int{1}, Identity), nil })
	l := made.(*batchNorm)
	y := l.Forward([]float32{1, 2, 3, 6})
	if got := l.runMean[0]; math.Abs(float64(got)-0.3) > 1e-6 {
		t.Errorf("running mean %v, want 0.3", got)
	}
	if got, want := float64(l.runVar[0]), 0.9+0.1*14/3; math.Abs(got-want) > 1e-6 {
		t.Errorf("running variance %v, want %v", got, want)
	}
	// (6−3)/√(3.5+1e-5)
	if got, want := float64(y[3]), 3/math.Sqrt(3.5+1e-5); math.Abs(got-want) > 1e-6 {
		t.Errorf("result %v, want %v", got, want)
	}
}

func TestDropoutLayer(t *testing.T) {
	l, b := bench(t, 1, []int{10000}, func(b *Builder) (Layer, error) { return Dropout(b, "d", []int{10000}, 0.3), nil })
	if Dropout(b, "d", []int{10000}, 0) != nil {
		t.Error("p = 0 makes a layer")
	}
	x := make([]float32, 10000)
	for i := range x {
		x[i] = 1
	}
	y := append([]float32(nil), l.Forward(x)...)
	dx := l.Backward(x)
	zeros := 0
	for i, v := range y {
		if v == 0 {
			zeros++
		} else if math.Abs(float64(v)-1/0.7) > 1e-6 {
			t.Fatalf("a kept element is %v, want 1/0.7", v)
		}
		if dx[i] != v {
			t.Fatalf("element %d: forward %v, backward %v", i, v, dx[i])
		}
	}
	if zeros < 2800 || zeros > 3200 { // 4 standard deviations are 183
		t.Errorf("%d of 10000 dropped, want about 3000", zeros)
	}
	same := 0
	for i, v := range l.Forward(x) {
		if v == y[i] {
			same++
		}
	}
	if same == len(y) {
		t.Error("two steps have the same mask")
	}
	b.Train = false
	if Dropout(b, "d", []int{10000}, 0.3) != nil {
		t.Error("evaluation drops elements")
	}
}
