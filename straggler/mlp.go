package straggler

import "fmt"

// MLP is the shape of a perceptron: its layers' widths, from the inputs to the
// outputs, with ReLU between them, and a logistic output if Sigmoid is set. Its
// parameters lie one after the other in PyTorch's order: for each layer the matrix
// [outputs × inputs] by rows, then the bias.
type MLP struct {
	Widths  []int
	Sigmoid bool
}

// Params is the number of parameters.
func (m MLP) Params() int {
	n := 0
	for i := 1; i < len(m.Widths); i++ {
		n += m.Widths[i] * (m.Widths[i-1] + 1)
	}
	return n
}

// perceptron is an MLP at work, on batches of up to any number of rows.
type perceptron[T Float] struct {
	MLP
	ops    arith[T]
	params []T
	grads  []T
	in     []T   // of the last forward, borrowed
	out    [][]T // of each layer
	d      [2][]T
}

func newPerceptron[T Float](m MLP, params, grads []T) *perceptron[T] {
	if len(params) != m.Params() {
		panic(fmt.Sprintf("straggler: a perceptron of %d parameters got %d", m.Params(), len(params)))
	}
	return &perceptron[T]{MLP: m, ops: arithOf[T](), params: params, grads: grads, out: make([][]T, len(m.Widths)-1)}
}

// forward computes the outputs of rows inputs. They are valid until the next call.
func (p *perceptron[T]) forward(x []T, rows int) []T {
	p.in = x
	w := p.params
	for l := range p.out {
		in, out := p.Widths[l], p.Widths[l+1]
		y := sized(p.out[l], rows*out)
		p.ops.gemm(false, true, rows, out, in, x, w[:in*out], 0, y)
		addRows(y, w[in*out:(in+1)*out])
		if l+1 < len(p.out) {
			relu(y)
		} else if p.Sigmoid {
			p.ops.sigmoid(y)
		}
		p.out[l], x, w = y, y, w[(in+1)*out:]
	}
	return x
}

// backward adds to the gradient of the parameters what the gradient dy of the last
// outputs (before a Sigmoid, which it does not undo) means, and returns that of
// the inputs.
func (p *perceptron[T]) backward(dy []T, rows int) []T {
	end := len(p.params)
	for l := len(p.out) - 1; l >= 0; l-- {
		in, out := p.Widths[l], p.Widths[l+1]
		x := p.in
		if l > 0 {
			x = p.out[l-1]
		}
		start := end - (in+1)*out
		g := p.grads[start:end]
		p.ops.gemm(true, false, out, in, rows, dy, x, 1, g[:in*out])
		sumRows(g[in*out:], dy)
		dx := sized(p.d[l&1], rows*in)
		p.ops.gemm(false, false, rows, in, out, dy, p.params[start:start+in*out], 0, dx)
		if l > 0 { // through the ReLU
			for i, y := range x {
				if y <= 0 {
					dx[i] = 0
				}
			}
		}
		p.d[l&1], dy, end = dx, dx, start
	}
	return dy
}

func relu[T Float](x []T) {
	for i, v := range x {
		if !(v > 0) {
			x[i] = 0
		}
	}
}
