package straggler

import (
	"fmt"
	"math"
	"testing"

	_ "go4.org/unsafe/assume-no-moving-gc" // gorgonia needs a version that knows this Go
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

var tiny = Shape{Inputs: 3, Hidden: 5, Layers: 2, Resources: 3, Head: []int{7, 4, 1}}

// lossAt is the network's loss on a fixed batch.
func lossAt(n *Net[float64], x, want, d []float64, steps, rows int) float64 {
	return mse(d, n.Forward(x, steps, rows), want)
}

// Every coordinate's gradient against central differences.
func TestGradientsByDifferences(t *testing.T) {
	for _, s := range []Shape{tiny, {Inputs: 2, Hidden: 3, Layers: 1, Resources: 1}, {Inputs: 1, Hidden: 2, Layers: 3, Resources: 2, Head: []int{1}}} {
		n := NewNet[float64](s)
		for i := range n.Params {
			n.Params[i] = 0.5 * math.Sin(1.7*float64(i)+0.3)
		}
		const steps, rows = 6, 3
		x, want := waves[float64](math.Cos, steps, rows, s.Inputs), waves[float64](math.Sin, steps, rows, s.outputs())
		d := make([]float64, len(want))
		lossAt(n, x, want, d, steps, rows)
		n.Backward(d)
		scratch := make([]float64, len(d))
		for i, p := range n.Params {
			const eps = 1e-6
			n.Params[i] = p + eps
			up := lossAt(n, x, want, scratch, steps, rows)
			n.Params[i] = p - eps
			down := lossAt(n, x, want, scratch, steps, rows)
			n.Params[i] = p
			if diff := (up - down) / (2 * eps); math.Abs(diff-n.Grads[i]) > 1e-8 {
				t.Fatalf("%+v: parameter %d: gradient %.10f, difference %.10f", s, i, n.Grads[i], diff)
			}
		}
	}
}

// Backward accumulates.
func TestGradientsAddUp(t *testing.T) {
	n := NewNet[float64](tiny)
	fill(n.Params, tiny.tensors())
	x, want := waves[float64](math.Cos, 4, 2, 3), waves[float64](math.Sin, 4, 2, 4)
	d := make([]float64, len(want))
	lossAt(n, x, want, d, 4, 2)
	n.Backward(d)
	once := append([]float64(nil), n.Grads...)
	lossAt(n, x, want, d, 4, 2)
	n.Backward(d)
	for i, g := range n.Grads {
		near(t, fmt.Sprint("gradient ", i), g, 2*once[i], 1e-15)
	}
}

// Loss and gradients of the artefact's network are those of the same network built on gorgonia.
func TestAgreesWithGorgonia(t *testing.T) {
	s := Shape{Inputs: 2, Hidden: 6, Layers: 2, Resources: 2, Head: []int{8, 5, 1}}
	const steps, rows = 5, 3
	n := NewNet[float64](s)
	fill(n.Params, s.tensors())
	x, want := waves[float64](math.Cos, steps, rows, s.Inputs), waves[float64](math.Sin, steps, rows, s.outputs())
	d := make([]float64, len(want))
	loss := lossAt(n, x, want, d, steps, rows)
	n.Backward(d)

	gLoss, gGrads := onGorgonia(t, s, n.Params, x, want, steps, rows)
	near(t, "loss", loss, gLoss, 1e-12)
	for i, g := range n.Grads {
		near(t, fmt.Sprint("gradient ", i), g, gGrads[i], 1e-12)
	}
}

// onGorgonia builds the network as a graph and differentiates it.
func onGorgonia(tb testing.TB, s Shape, params, x, want []float64, steps, rows int) (float64, []float64) {
	g, ps, loss, lossValue, grads := gorgoniaGraph(tb, s, params, x, want, steps, rows)
	vm := G.NewTapeMachine(g, G.BindDualValues(ps...))
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		tb.Fatal(err)
	}
	_ = loss
	return (*lossValue).Data().(float64), grads
}

func gorgoniaGraph(tb testing.TB, s Shape, params, x, want []float64, steps, rows int) (*G.ExprGraph, G.Nodes, *G.Node, *G.Value, []float64) {
	g := G.NewGraph()
	must := func(n *G.Node, err error) *G.Node {
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	grads := make([]float64, len(params))
	var ps G.Nodes
	at := 0
	matrix := func(r, c int) *G.Node {
		n := r * c
		p := G.NewTensor(g, tensor.Float64, 2, G.WithShape(r, c), G.WithName(fmt.Sprint("p", at)),
			G.WithValue(tensor.New(tensor.WithShape(r, c), tensor.WithBacking(params[at:at+n:at+n]))),
			G.WithGrad(tensor.New(tensor.WithShape(r, c), tensor.WithBacking(grads[at:at+n:at+n]))))
		ps = append(ps, p)
		at += n
		return p
	}
	constant := func(name string, v []float64, r, c int) *G.Node {
		return G.NewMatrix(g, tensor.Float64, G.WithShape(r, c), G.WithName(name), G.WithValue(tensor.New(tensor.WithShape(r, c), tensor.WithBacking(v))))
	}
	ones := make([]float64, rows)
	for i := range ones {
		ones[i] = 1
	}
	one := constant("ones", ones, rows, 1)
	linear := func(x, w, b *G.Node) *G.Node { // x·Wᵀ + 1·b
		return must(G.Add(must(G.Mul(x, must(G.Transpose(w)))), must(G.Mul(one, b))))
	}
	type layer struct{ wx, wh, bx, bh *G.Node }
	var layers []layer
	for l := range s.Layers {
		layers = append(layers, layer{matrix(4*s.Hidden, s.in(l)), matrix(4*s.Hidden, s.Hidden), matrix(1, 4*s.Hidden), matrix(1, 4*s.Hidden)})
	}
	rw, rb := matrix(s.Resources, s.Hidden), matrix(1, s.Resources)
	var hw, hb []*G.Node
	for i, w := 0, s.head().Widths; i+1 < len(w); i++ {
		hw, hb = append(hw, matrix(w[i+1], w[i])), append(hb, matrix(1, w[i+1]))
	}
	h, c := make([]*G.Node, s.Layers), make([]*G.Node, s.Layers)
	for l := range h {
		h[l] = constant(fmt.Sprint("h", l), make([]float64, rows*s.Hidden), rows, s.Hidden)
		c[l] = constant(fmt.Sprint("c", l), make([]float64, rows*s.Hidden), rows, s.Hidden)
	}
	var total *G.Node
	k, in := s.outputs(), s.Inputs
	for t := range steps {
		v := constant(fmt.Sprint("x", t), x[t*rows*in:(t+1)*rows*in], rows, in)
		for l, p := range layers {
			gates := must(G.Add(linear(v, p.wx, p.bx), linear(h[l], p.wh, p.bh)))
			part := func(i int) *G.Node {
				return must(G.Slice(gates, nil, G.S(i*s.Hidden, (i+1)*s.Hidden)))
			}
			i, f, n, o := must(G.Sigmoid(part(0))), must(G.Sigmoid(part(1))), must(G.Tanh(part(2))), must(G.Sigmoid(part(3)))
			c[l] = must(G.Add(must(G.HadamardProd(f, c[l])), must(G.HadamardProd(i, n))))
			h[l] = must(G.HadamardProd(o, must(G.Tanh(c[l]))))
			v = h[l]
		}
		res := linear(v, rw, rb)
		y := res
		for i := range hw {
			if y = linear(y, hw[i], hb[i]); i+1 < len(hw) {
				y = must(G.Rectify(y))
			}
		}
		var wr, wt []float64
		for r := range rows {
			row := want[(t*rows+r)*k:]
			wr, wt = append(wr, row[:s.Resources]...), append(wt, row[s.Resources])
		}
		for _, pair := range [][2]*G.Node{{res, constant(fmt.Sprint("r", t), wr, rows, s.Resources)}, {y, constant(fmt.Sprint("t", t), wt, rows, 1)}} {
			e := must(G.Sum(must(G.Square(must(G.Sub(pair[0], pair[1]))))))
			if total == nil {
				total = e
			} else {
				total = must(G.Add(total, e))
			}
		}
	}
	loss := must(G.Mul(total, G.NewConstant(1/float64(len(want)))))
	var value G.Value
	G.Read(loss, &value)
	if _, err := G.Grad(loss, ps...); err != nil {
		tb.Fatal(err)
	}
	return g, ps, loss, &value, grads
}

// One step after the other gives what the whole sequence gives, and float32 what float64 does.
func TestStepIsForward(t *testing.T) {
	const steps, rows = 9, 4
	wide, narrow := NewNet[float64](tiny), NewNet[float32](tiny)
	fill(wide.Params, tiny.tensors())
	fill(narrow.Params, tiny.tensors())
	x, x32 := waves[float64](math.Cos, steps, rows, 3), waves[float32](math.Cos, steps, rows, 3)
	all := append([]float64(nil), wide.Forward(x, steps, rows)...)
	s, s32 := wide.NewState(rows), narrow.NewState(rows)
	k := rows * tiny.outputs()
	for i := range steps {
		y := wide.Step(s, x[i*rows*3:(i+1)*rows*3], rows)
		y32 := narrow.Step(s32, x32[i*rows*3:(i+1)*rows*3], rows)
		for j, want := range all[i*k : (i+1)*k] {
			near(t, "float64", y[j], want, 1e-14)
			near(t, "float32", float64(y32[j]), want, 1e-5)
		}
	}
}

func TestShapeRefuses(t *testing.T) {
	for _, s := range []Shape{
		{}, {Inputs: 1, Hidden: 1, Layers: 1}, {Inputs: maxInputs + 1, Hidden: 1, Layers: 1, Resources: 1}, {Inputs: 1, Hidden: 1, Layers: -1, Resources: 1},
		{Inputs: 1, Hidden: 1, Layers: 1, Resources: 1, Head: []int{0, 1}}, {Inputs: 1, Hidden: 1, Layers: 1, Resources: 1, Head: []int{4, 2}},
		{Inputs: 1, Hidden: 1, Layers: 1, Resources: 1, Head: make([]int, maxLayers+1)},
	} {
		if s.check() == nil {
			t.Errorf("%+v passes", s)
		}
	}
}

// outputs is the number of values for each step: the resources, then the time.
func (s Shape) outputs() int {
	if len(s.Head) == 0 {
		return s.Resources
	}
	return s.Resources + 1
}

// tensors are the lengths of the parameter tensors in their order, which is
// PyTorch's: for each LSTM layer W_ih, W_hh, b_ih, b_hh (gates in the order i, f, g,
// o), then matrix and bias of each linear layer.
func (s Shape) tensors() []int {
	var ns []int
	for l := range s.Layers {
		ns = append(ns, 4*s.Hidden*s.in(l), 4*s.Hidden*s.Hidden, 4*s.Hidden, 4*s.Hidden)
	}
	ns = append(ns, s.Resources*s.Hidden, s.Resources)
	if len(s.Head) > 0 {
		w := s.head().Widths
		for i := 1; i < len(w); i++ {
			ns = append(ns, w[i]*w[i-1], w[i])
		}
	}
	return ns
}
