package net

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"star/train"
	"star/train/traintest"
)

// The references here are the formulas once more, in float64, position by
// position and without a matrix product, written to be read. Gradients are
// judged by central differences of the reference: in float64 a step of 1e-5
// leaves an error near 1e-9, so what remains is the rounding of our float32.

// draw fills n numbers of about unit size.
func draw(rnd *rand.Rand, n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(scale * rnd.NormFloat64())
	}
	return v
}

// tensorUnderTest is one input of a layer with the gradient we computed for it.
type tensorUnderTest struct {
	name        string
	value, grad []float32
}

// checkAgainstReference compares y and the gradients of L = Σ r·y with those of
// the float64 reference f, which maps the inputs to y.
func checkAgainstReference(t *testing.T, y, r []float32, inputs []tensorUnderTest, f func(in [][]float64) []float64) {
	t.Helper()
	in := make([][]float64, len(inputs))
	for i, x := range inputs {
		in[i] = widen(x.value)
	}
	want := f(in)
	if len(want) != len(y) {
		t.Fatalf("reference has %d outputs, layer %d", len(want), len(y))
	}
	for i := range want {
		if d := math.Abs(want[i] - float64(y[i])); !(d <= 2e-5*(1+math.Abs(want[i]))) {
			t.Fatalf("output %d is %v, want %v", i, y[i], want[i])
		}
	}
	loss := func() float64 {
		s := 0.0
		for i, v := range f(in) {
			s += v * float64(r[i])
		}
		return s
	}
	const eps = 1e-5
	for k, x := range inputs {
		if x.grad == nil {
			continue
		}
		numeric := make([]float64, len(x.value))
		size := 0.0
		for i := range numeric {
			was := in[k][i]
			in[k][i] = was + eps
			up := loss()
			in[k][i] = was - eps
			down := loss()
			in[k][i] = was
			numeric[i] = (up - down) / (2 * eps)
			size = max(size, math.Abs(numeric[i]))
		}
		for i, want := range numeric {
			if d := math.Abs(want - float64(x.grad[i])); !(d <= 5e-5*(size+1e-3)) {
				t.Fatalf("gradient of %s[%d] is %v, central difference says %v (largest of the tensor %v)", x.name, i, x.grad[i], want, size)
			}
		}
	}
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// poison fills what a layer must overwrite with NaN, so that adding to it shows;
// what it must add to starts from zero.
func poison(xs ...[]float32) {
	for _, x := range xs {
		for i := range x {
			x[i] = float32(math.NaN())
		}
	}
}

func zero(xs ...[]float32) {
	for _, x := range xs {
		clear(x)
	}
}

func referenceLSTM(x, wih, whh, bih, bhh []float64, T, B, I, H int) []float64 {
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	out := make([]float64, T*B*H)
	for b := range B {
		h, c := make([]float64, H), make([]float64, H)
		for t := range T {
			a := make([]float64, 4*H)
			for j := range a {
				a[j] = bih[j] + bhh[j]
				for k := range I {
					a[j] += wih[j*I+k] * x[(t*B+b)*I+k]
				}
				for k := range H {
					a[j] += whh[j*H+k] * h[k]
				}
			}
			for j := range H {
				c[j] = sigmoid(a[H+j])*c[j] + sigmoid(a[j])*math.Tanh(a[2*H+j])
				h[j] = sigmoid(a[3*H+j]) * math.Tanh(c[j])
			}
			copy(out[(t*B+b)*H:], h)
		}
	}
	return out
}

func TestLSTMLayerAgainstReference(t *testing.T) {
	for _, s := range []struct{ T, B, I, H int }{{1, 1, 1, 1}, {1, 3, 2, 4}, {2, 2, 3, 2}, {4, 2, 3, 5}, {5, 3, 7, 4}} {
		t.Run(fmt.Sprintf("steps=%d,batch=%d,in=%d,hidden=%d", s.T, s.B, s.I, s.H), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			T, B, I, H := s.T, s.B, s.I, s.H
			x := draw(rnd, T*B*I, 1)
			wih, whh := draw(rnd, 4*H*I, 0.7), draw(rnd, 4*H*H, 0.7)
			bih, bhh := draw(rnd, 4*H, 0.5), draw(rnd, 4*H, 0.5)
			r := draw(rnd, T*B*H, 1)
			y := make([]float32, T*B*H)
			dx, dwih, dwhh := make([]float32, len(x)), make([]float32, len(wih)), make([]float32, len(whh))
			dbih, dbhh := make([]float32, 4*H), make([]float32, 4*H)
			l := newLSTMLayer(T, B, I, H, true)
			for range 2 { // the second run must not see the first
				poison(y, dx)
				zero(dwih, dwhh, dbih, dbhh)
				l.forward(y, x, wih, whh, bih, bhh)
				l.backward(dx, dwih, dwhh, dbih, dbhh, r, y, x, wih, whh)
			}
			checkAgainstReference(t, y, r, []tensorUnderTest{
				{"x", x, dx}, {"W_ih", wih, dwih}, {"W_hh", whh, dwhh}, {"b_ih", bih, dbih}, {"b_hh", bhh, dbhh},
			}, func(in [][]float64) []float64 {
				return referenceLSTM(in[0], in[1], in[2], in[3], in[4], T, B, I, H)
			})
		})
	}
}

func referenceAffine(x, w, b []float64, rows, out, in int) []float64 {
	y := make([]float64, rows*out)
	for r := range rows {
		for o := range out {
			s := b[o]
			for k := range in {
				s += w[o*in+k] * x[r*in+k]
			}
			y[r*out+o] = s
		}
	}
	return y
}

// referenceAttention looks, for every position, at the positions up to it and
// at nothing else: there is no mask.
func referenceAttention(x, wqkv, bqkv, wo, bo []float64, B, T, W, heads int) []float64 {
	qkv := referenceAffine(x, wqkv, bqkv, B*T, 3*W, W)
	d := W / heads
	mix := make([]float64, B*T*W)
	for b := range B {
		for h := range heads {
			at := func(part, t int) []float64 { return qkv[(b*T+t)*3*W+part*W+h*d:][:d] }
			for t := range T {
				weight, sum := make([]float64, t+1), 0.0
				for s := range weight {
					dot := 0.0
					for k, q := range at(0, t) {
						dot += q * at(1, s)[k]
					}
					weight[s] = math.Exp(dot / math.Sqrt(float64(d)))
					sum += weight[s]
				}
				for s, w := range weight {
					for k, v := range at(2, s) {
						mix[(b*T+t)*W+h*d+k] += w / sum * v
					}
				}
			}
		}
	}
	return referenceAffine(mix, wo, bo, B*T, W, W)
}

func TestAttentionAgainstReference(t *testing.T) {
	for _, s := range []struct{ B, T, W, heads int }{{1, 1, 2, 1}, {2, 4, 6, 2}, {1, 5, 4, 4}, {3, 3, 5, 1}} {
		t.Run(fmt.Sprintf("batch=%d,steps=%d,width=%d,heads=%d", s.B, s.T, s.W, s.heads), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(3, 4))
			B, T, W := s.B, s.T, s.W
			x := draw(rnd, B*T*W, 1)
			wqkv, bqkv := draw(rnd, 3*W*W, 0.7), draw(rnd, 3*W, 0.5)
			wo, bo := draw(rnd, W*W, 0.7), draw(rnd, W, 0.5)
			r := draw(rnd, B*T*W, 1)
			y, dx := make([]float32, B*T*W), make([]float32, B*T*W)
			dwqkv, dbqkv := make([]float32, 3*W*W), make([]float32, 3*W)
			dwo, dbo := make([]float32, W*W), make([]float32, W)
			a := newAttention(B, T, W, s.heads, true)
			for range 2 {
				poison(y, dx)
				zero(dwqkv, dbqkv, dwo, dbo)
				a.forward(y, x, wqkv, bqkv, wo, bo)
				a.backward(dx, dwqkv, dbqkv, dwo, dbo, r, x, wqkv, wo)
			}
			checkAgainstReference(t, y, r, []tensorUnderTest{
				{"x", x, dx}, {"W_qkv", wqkv, dwqkv}, {"b_qkv", bqkv, dbqkv}, {"W_o", wo, dwo}, {"b_o", bo, dbo},
			}, func(in [][]float64) []float64 {
				return referenceAttention(in[0], in[1], in[2], in[3], in[4], B, T, W, s.heads)
			})
		})
	}
}

func referenceFeedForward(x, w1, b1, w2, b2 []float64, rows, width, inner int) []float64 {
	a := referenceAffine(x, w1, b1, rows, inner, width)
	for i, v := range a {
		// D. Hendrycks, K. Gimpel: Gaussian Error Linear Units. arXiv 1606.08415
		a[i] = v * 0.5 * (1 + math.Erf(v/math.Sqrt2))
	}
	return referenceAffine(a, w2, b2, rows, width, inner)
}

func TestFeedForwardAgainstReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const rows, width, inner = 5, 3, 7
	x := draw(rnd, rows*width, 1)
	w1, b1 := draw(rnd, inner*width, 1), draw(rnd, inner, 1)
	w2, b2 := draw(rnd, width*inner, 0.7), draw(rnd, width, 0.5)
	r := draw(rnd, rows*width, 1)
	y, dx := make([]float32, len(x)), make([]float32, len(x))
	dw1, db1 := make([]float32, len(w1)), make([]float32, len(b1))
	dw2, db2 := make([]float32, len(w2)), make([]float32, len(b2))
	f := newFeedForward(rows, width, inner, true)
	for range 2 {
		poison(y, dx)
		zero(dw1, db1, dw2, db2)
		f.forward(y, x, w1, b1, w2, b2)
		f.backward(dx, dw1, db1, dw2, db2, r, x, w1, w2)
	}
	checkAgainstReference(t, y, r, []tensorUnderTest{
		{"x", x, dx}, {"W_1", w1, dw1}, {"b_1", b1, db1}, {"W_2", w2, dw2}, {"b_2", b2, db2},
	}, func(in [][]float64) []float64 {
		return referenceFeedForward(in[0], in[1], in[2], in[3], in[4], rows, width, inner)
	})
}

// A token that comes twice gets the sum of both gradients, one that does not
// come gets none.
func TestEmbedding(t *testing.T) {
	table := []float32{1, 2, 3, 4, 5, 6}
	tokens := []int32{2, 0, 2}
	y := make([]float32, 6)
	embed(y, table, tokens, 2)
	if got, want := fmt.Sprint(y), "[5 6 1 2 5 6]"; got != want {
		t.Errorf("embedded %v, want %v", got, want)
	}
	d := []float32{9, 9, 9, 9, 9, 9}
	embedGrad(d, []float32{1, 2, 3, 4, 50, 60}, tokens, 2)
	if got, want := fmt.Sprint(d), "[12 13 9 9 60 71]"; got != want {
		t.Errorf("gradient %v, want %v", got, want)
	}
}

// layerBuilder is a Builder outside of any model, for windows of tokens.
func layerBuilder(batch, steps, vocabulary int) *Builder {
	m := &network{
		spec:  Spec{Name: "test"},
		named: map[string]*Param{}, namedBuffer: map[string][]float32{},
		declared: &declaration{},
	}
	b := m.builder(batch, true)
	b.Input, b.Vocab = []int{steps}, vocabulary
	b.Tokens = make([]int32, batch*steps)
	rnd := rand.New(rand.NewPCG(8, 9))
	for i := range b.Tokens {
		b.Tokens[i] = rnd.Int32N(int32(vocabulary))
	}
	return b
}

// checkLayer runs a layer twice, forward and backward, and compares it with a
// reference that takes x and the parameters in the layer's order. A nil x is that
// of a layer that reads tokens.
func checkLayer(t *testing.T, l Layer, x []float32, n int, f func(in [][]float64) []float64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(10, 11))
	for _, p := range l.Params() {
		p.W, p.G = draw(rnd, product(p.Shape), 0.6), make([]float32, product(p.Shape))
	}
	dy := draw(rnd, n, 1)
	keep := append([]float32(nil), dy...)
	var y, dx []float32
	for range 2 {
		for _, p := range l.Params() {
			for i := range p.G {
				p.G[i] = 1 // a layer adds to the existing value
			}
		}
		y = l.Forward(x)
		dx = l.Backward(dy)
	}
	for _, p := range l.Params() {
		for i := range p.G {
			p.G[i]--
		}
	}
	for i := range dy {
		if dy[i] != keep[i] {
			t.Fatalf("Backward changed dy[%d]", i)
		}
	}
	inputs := []tensorUnderTest{{"x", x, dx}}
	for _, p := range l.Params() {
		inputs = append(inputs, tensorUnderTest{p.Name, p.W, p.G})
	}
	if len(inputs) == 1 {
		t.Fatal("layer has no parameters")
	}
	checkAgainstReference(t, y, dy, inputs, f)
}

func referenceLayerNorm(x, gamma, beta []float64) []float64 {
	n := len(gamma)
	y := make([]float64, len(x))
	for r := 0; r < len(x); r += n {
		mean, variance := 0.0, 0.0
		for _, v := range x[r : r+n] {
			mean += v / float64(n)
		}
		for _, v := range x[r : r+n] {
			variance += (v - mean) * (v - mean) / float64(n)
		}
		for i := range n {
			y[r+i] = (x[r+i]-mean)/math.Sqrt(variance+1e-5)*gamma[i] + beta[i]
		}
	}
	return y
}

func TestLayerNormAgainstReference(t *testing.T) {
	for _, scale := range []float64{2, 3e-3} { // the second one's variance is about ε
		b := layerBuilder(2, 3, 5)
		l := newLayerNormLayer(b, "norm", 3, 4)
		x := draw(rand.New(rand.NewPCG(12, 13)), 2*3*4, scale)
		checkLayer(t, l, x, len(x), func(in [][]float64) []float64 { return referenceLayerNorm(in[0], in[1], in[2]) })
	}
}

func TestRowsLinearAgainstReference(t *testing.T) {
	b := layerBuilder(2, 3, 5)
	l := newRowsLinear(b, 3, 4, 5, b.Param("w", Normal(1), 5, 4), b.Param("b", Normal(1), 5))
	x := draw(rand.New(rand.NewPCG(12, 13)), 2*3*4, 1)
	checkLayer(t, l, x, 2*3*5, func(in [][]float64) []float64 { return referenceAffine(in[0], in[1], in[2], 6, 5, 4) })
}

// referenceDrop applies the mask that the layer drew, if it drew one.
func referenceDrop(x []float64, d *dropout) []float64 {
	y := append([]float64(nil), x...)
	for i, m := range d.mask {
		y[i] *= float64(m)
	}
	return y
}

// sum is the sum of vectors of one length.
func sum(xs ...[]float64) []float64 {
	y := make([]float64, len(xs[0]))
	for _, x := range xs {
		for i, v := range x {
			y[i] += v
		}
	}
	return y
}

// testDrops runs f without dropout and with one. The masks of the last forward are
// the ones that the gradients and the reference are about.
func testDrops(t *testing.T, f func(t *testing.T, p float64)) {
	for _, p := range []float64{0, 0.4} {
		t.Run(fmt.Sprintf("dropout=%v", p), func(t *testing.T) { f(t, p) })
	}
}

func TestPositionsAgainstReference(t *testing.T) {
	testDrops(t, func(t *testing.T, p float64) {
		const batch, steps, vocabulary, width = 3, 4, 5, 2
		b := layerBuilder(batch, steps, vocabulary)
		l := newPositions(b, width, 1, p)
		checkLayer(t, l, nil, batch*steps*width, func(in [][]float64) []float64 {
			y := make([]float64, batch*steps*width)
			for i, tok := range b.Tokens {
				for k := range width {
					y[i*width+k] = in[1][int(tok)*width+k] + in[2][i%steps*width+k]
				}
			}
			return referenceDrop(y, l.drop)
		})
	})
}

func TestBlockAgainstReference(t *testing.T) {
	testDrops(t, func(t *testing.T, p float64) {
		const batch, steps, width, heads, inner = 2, 3, 4, 2, 5
		l := newBlock(layerBuilder(batch, steps, 5), 0, width, heads, inner, p)
		x := draw(rand.New(rand.NewPCG(14, 15)), batch*steps*width, 1)
		checkLayer(t, l, x, len(x), func(in [][]float64) []float64 {
			x, q := in[0], in[1:]
			a := referenceAttention(referenceLayerNorm(x, q[8], q[9]), q[0], q[1], q[2], q[3], batch, steps, width, heads)
			z := sum(x, referenceDrop(a, l.drop1))
			f := referenceFeedForward(referenceLayerNorm(z, q[10], q[11]), q[4], q[5], q[6], q[7], batch*steps, width, inner)
			return sum(z, referenceDrop(f, l.drop2))
		})
	})
}

// turn makes (b, t, n) of (t, b, n).
func turn(x []float64, T, B int) []float64 {
	n := len(x) / (T * B)
	y := make([]float64, len(x))
	for t := range T {
		for b := range B {
			copy(y[(b*T+t)*n:][:n], x[(t*B+b)*n:])
		}
	}
	return y
}

func TestLSTMStackAgainstReference(t *testing.T) {
	testDrops(t, func(t *testing.T, p float64) {
		const B, T, V, E, H, layers = 3, 4, 5, 2, 3, 2
		b := layerBuilder(B, T, V)
		l := newLSTMStack(b, E, H, layers, p)
		checkLayer(t, l, nil, B*T*H, func(in [][]float64) []float64 {
			x := make([]float64, T*B*E)
			for i, tok := range b.Tokens { // i = b·T + t
				copy(x[((i%T)*B+i/T)*E:][:E], in[1][int(tok)*E:])
			}
			x = referenceDrop(x, l.drops[0])
			wide := E
			for k := range layers {
				q := in[2+4*k:]
				x = referenceDrop(referenceLSTM(x, q[0], q[1], q[2], q[3], T, B, wide, H), l.drops[k+1])
				wide = H
			}
			return turn(x, T, B)
		})
	})
}

// What comes after a position cannot change its scores.
func TestTransformerIsCausal(t *testing.T) {
	const steps, at = 6, 3
	b := layerBuilder(1, steps, 7)
	first, second := newPositions(b, 8, 1, 0), newBlock(b, 0, 8, 2, 16, 0)
	for _, p := range append(first.Params(), second.Params()...) {
		p.W = draw(rand.New(rand.NewPCG(1, 4)), product(p.Shape), 0.6)
	}
	before := append([]float32(nil), second.Forward(first.Forward(nil))...)
	b.Tokens[at] = (b.Tokens[at] + 1) % 7
	after := second.Forward(first.Forward(nil))
	for i := range before {
		if same := before[i] == after[i]; same != (i/8 < at) {
			t.Fatalf("token %d changed; element %d of position %d was %v and is %v", at, i%8, i/8, before[i], after[i])
		}
	}
}

// Tying saves the head's weights, and both uses of the table give it gradient.
func TestTiedHead(t *testing.T) {
	in := train.Input{Shape: []int{4}, Classes: 9, Tokens: true}
	names := map[string][]string{}
	for _, model := range []string{"transformer:layers=1,width=8,heads=2", "transformer:layers=1,width=8,heads=2,tied=true"} {
		spec, err := Parse(model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = in
		m, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, s := range m.Layout() {
			names[model] = append(names[model], s.Name)
		}
		b := train.Batch{Tokens: []int32{0, 1, 2, 3}, Y: []int32{1, 2, 3, 4}, Samples: 1}
		g := make([]float32, len(m.Params()))
		if _, err := m.Grad(context.Background(), g, b); err != nil {
			t.Fatal(err)
		}
		table := m.Layout()[0]
		// Row 8 is no input: only as weights of the head does it get a gradient.
		moved := false
		for _, v := range g[table.Offset+8*8 : table.Offset+9*8] {
			moved = moved || v != 0
		}
		if tied := spec.Settings["tied"] == "true"; moved != tied {
			t.Errorf("%s: gradient of an unseen token's row is there: %t, want %t", model, moved, tied)
		}
	}
	a, b := names["transformer:layers=1,width=8,heads=2"], names["transformer:layers=1,width=8,heads=2,tied=true"]
	if !slices.Contains(a, "head.weight") || slices.Contains(b, "head.weight") || len(a) != len(b)+1 {
		t.Errorf("untied has %v, tied %v", a, b)
	}
}

// What does not fit is an error that says what to do.
func TestSequenceModelsRefuse(t *testing.T) {
	text := train.Input{Shape: []int{8}, Classes: 11, Tokens: true}
	for _, c := range []struct {
		model string
		in    train.Input
		want  string
	}{
		{"lstm", train.Input{Shape: []int{1, 28, 28}, Classes: 10}, "windows of tokens"},
		{"transformer", train.Input{Shape: []int{1, 28, 28}, Classes: 10}, "windows of tokens"},
		{"transformer:width=10,heads=4", text, "width=10 cannot be divided among heads=4"},
	} {
		spec, err := Parse(c.model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = c.in
		if _, err := Build(spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %v: error %v, want one with %q", c.model, c.in, err, c.want)
		}
	}
}

// Dropout keeps the mean, and evaluation does without.
func TestDropout(t *testing.T) {
	b := layerBuilder(1, 1, 2)
	const n = 10000
	d := newDropout(b, 0.25, n, 1)
	x := make([]float32, n)
	for i := range x {
		x[i] = 3
	}
	d.forward(x)
	zeros := 0
	for _, v := range x {
		switch v {
		case 0:
			zeros++
		case 4:
		default:
			t.Fatalf("dropout made %v of 3, want 0 or 4", v)
		}
	}
	if zeros < 2300 || zeros > 2700 { // 2500 ± 4.6 σ, and the seed is fixed
		t.Errorf("%d of %d dropped, want about 2500", zeros, n)
	}
	other := newDropout(b, 0.25, n, 2)
	other.forward(make([]float32, n))
	if slices.Equal(d.mask, other.mask) {
		t.Error("two layers of a model drop the same elements")
	}
	b.Train = false
	if e := newDropout(b, 0.25, n, 1); e.p != 0 {
		t.Error("dropout in evaluation mode")
	}
}

func TestSequenceConformance(t *testing.T) {
	text := train.Input{Shape: []int{5}, Classes: 7, Tokens: true}
	for model, k := range map[string]traintest.Kit{
		"lstm:layers=1,hidden=16,embed=8":                                  {Input: text, Steps: 300, Rate: 1},
		"lstm:layers=2,hidden=16,embed=8,dropout=0.2":                      {Input: text, Steps: 300, Rate: 1, Random: true},
		"transformer:layers=1,heads=2,width=16":                            {Input: text, Steps: 300, Rate: 0.1},
		"transformer:layers=2,heads=1,width=16,ff=8,dropout=0.1,tied=true": {Input: text, Steps: 300, Rate: 0.1, Random: true},
		"transformer:layers=1,heads=4,width=8,ff=12,dropout=0,tied=true":   {Input: text, Steps: 300, Rate: 0.1},
		"lstm:layers=3,hidden=9,embed=13,dropout=0":                        {Input: train.Input{Shape: []int{2}, Classes: 3, Tokens: true}, Steps: 300, Rate: 2},
	} {
		t.Run(model, func(t *testing.T) {
			spec, err := Parse(model)
			if err != nil {
				t.Fatal(err)
			}
			spec.Input, spec.Seed = k.Input, 7
			k.New = func() (train.Model, error) { return Build(spec) }
			traintest.Run(t, k)
		})
	}
}

// Scores far beyond the range of the exponential give the same weights as near
// zero, and the future gets none.
func TestSoftmaxPrefix(t *testing.T) {
	for _, shift := range []float32{0, 200, -200} {
		row := []float32{shift, shift + 1, 7}
		softmaxPrefix(row, 2)
		p := 1 / (1 + math.E)
		if near := math.Abs(float64(row[0])-p) < 1e-6 && math.Abs(float64(row[1])-(1-p)) < 1e-6; !near || row[2] != 0 {
			t.Errorf("weights of scores shifted by %v are %v, want %.4f, %.4f, 0", shift, row, p, 1-p)
		}
	}
}

// The initial distributions are PyTorch's defaults, as the comments of the layers say. A uniform distribution is
// identified by its bound and its variance, a third of the bound's square.
func TestSequenceInitialDistributions(t *testing.T) {
	text := train.Input{Shape: []int{40}, Classes: 50, Tokens: true}
	const (
		normal  = "normal"
		uniform = "uniform"
		value   = "value"
	)
	type law struct {
		kind string
		size float64 // σ, bound or value
	}
	root := math.Sqrt
	for model, want := range map[string]map[string]law{
		"lstm:layers=2,embed=30,hidden=25": {
			"embed.weight":      {normal, 1},
			"lstm.weight_ih_l0": {uniform, 1 / root(25)}, "lstm.weight_hh_l0": {uniform, 1 / root(25)},
			"lstm.bias_ih_l0": {uniform, 1 / root(25)}, "lstm.bias_hh_l0": {uniform, 1 / root(25)},
			"lstm.weight_ih_l1": {uniform, 1 / root(25)}, "lstm.weight_hh_l1": {uniform, 1 / root(25)},
			"lstm.bias_ih_l1": {uniform, 1 / root(25)}, "lstm.bias_hh_l1": {uniform, 1 / root(25)},
			"head.weight": {uniform, 1 / root(25)}, "head.bias": {uniform, 1 / root(25)},
		},
		"transformer:layers=1,width=36,heads=4": {
			"embed.weight": {normal, 1}, "position.weight": {normal, 1},
			"layers.0.self_attn.in_proj_weight":  {uniform, root(6. / (4 * 36))},
			"layers.0.self_attn.in_proj_bias":    {value, 0},
			"layers.0.self_attn.out_proj.weight": {uniform, 1 / root(36)},
			"layers.0.self_attn.out_proj.bias":   {value, 0},
			"layers.0.linear1.weight":            {uniform, 1 / root(36)}, "layers.0.linear1.bias": {uniform, 1 / root(36)},
			"layers.0.linear2.weight": {uniform, 1 / root(144)}, "layers.0.linear2.bias": {uniform, 1 / root(144)},
			"layers.0.norm1.weight": {value, 1}, "layers.0.norm1.bias": {value, 0},
			"layers.0.norm2.weight": {value, 1}, "layers.0.norm2.bias": {value, 0},
			"norm.weight": {value, 1}, "norm.bias": {value, 0},
			"head.weight": {uniform, 1 / root(36)}, "head.bias": {uniform, 1 / root(36)},
		},
		"transformer:layers=1,width=36,heads=1,tied=true": {
			"embed.weight": {normal, 1. / 6}, "position.weight": {normal, 1. / 6},
		},
	} {
		spec, err := Parse(model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input, spec.Seed = text, 3
		m, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if tied := spec.Settings["tied"] == "true"; !tied && len(m.Layout()) != len(want) {
			t.Errorf("%s has %d tensors, want %d", model, len(m.Layout()), len(want))
		}
		for _, s := range m.Layout() {
			law, ok := want[s.Name]
			if !ok {
				continue
			}
			w := m.Params()[s.Offset : s.Offset+s.Len()]
			square, top, off := 0.0, 0.0, 0.0
			for _, v := range w {
				square += float64(v) * float64(v) / float64(len(w))
				top = max(top, math.Abs(float64(v)))
				off = max(off, math.Abs(float64(v)-law.size))
			}
			noise := 5 / math.Sqrt(float64(len(w))) // five standard errors, or more, of either variance
			switch law.kind {
			case value:
				if off != 0 {
					t.Errorf("%s: %s is off %v by %v", model, s.Name, law.size, off)
				}
			case uniform:
				if want := law.size * law.size / 3; top > law.size || math.Abs(square-want) > noise*want {
					t.Errorf("%s: %s has largest %v and mean square %v, want at most %v and about %v", model, s.Name, top, square, law.size, want)
				}
			case normal:
				if want := law.size * law.size; top < 2*law.size || math.Abs(square-want) > math.Sqrt2*noise*want {
					t.Errorf("%s: %s has largest %v and mean square %v, want about %v", model, s.Name, top, square, want)
				}
			}
			delete(want, s.Name)
		}
		for name := range want {
			t.Errorf("%s has no tensor %s", model, name)
		}
	}
}

// Zero for ff means four times the width.
func TestTransformerInnerWidth(t *testing.T) {
	for model, want := range map[string]int{"transformer:width=12,heads=2": 48, "transformer:width=12,heads=2,ff=7": 7} {
		spec, err := Parse(model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = train.Input{Shape: []int{3}, Classes: 5, Tokens: true}
		m, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, s := range m.Layout() {
			if strings.HasSuffix(s.Name, "linear1.bias") && s.Len() != want {
				t.Errorf("%s: %s has %d elements, want %d", model, s.Name, s.Len(), want)
			}
		}
	}
}

// The word model of the paper is ours with default settings: PyTorch's
// word_language_model on WikiText-2 (28782 words, 2 layers of 200, embedding
// 200) has 12,184,782 parameters, and its Transformer (8 heads, 200 inside)
// 12,025,582 without the learned positions and the last norm that ours has.
func TestSequenceParameterCounts(t *testing.T) {
	const window = 35
	for model, want := range map[string]int{
		"lstm": 12184782,
		"transformer:layers=2,heads=8,width=200,ff=200": 12025582 + window*200 + 2*200,
	} {
		spec, err := Parse(model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = train.Input{Shape: []int{window}, Classes: 28782, Tokens: true}
		text, err := Describe(spec)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, fmt.Sprintf(" %d parameters", want)) {
			t.Errorf("%s, want %d parameters", text, want)
		}
	}
}
