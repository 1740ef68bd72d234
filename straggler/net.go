package straggler

import "fmt"

// Shape is the shape of a network: stacked LSTM layers, a linear layer that predicts
// the next inputs ("resources") from the top state, and a perceptron that predicts
// one more value ("time") from the predicted inputs.
//
// The artefact's are: {2, 50, 2, 2, [256 128 1]} at run time, {3, 64, 2, 3, [256 128 1]} in
// training, and, older, {1, 32, 1, 1, nil}.
type Shape struct {
	Inputs    int
	Hidden    int
	Layers    int
	Resources int   // outputs of the linear layer
	Head      []int // widths of the perceptron after it, the last one 1; nil: no perceptron
}

// Limits of a shape: larger ones are slips, or a damaged file.
const (
	maxInputs = 64
	maxHidden = 4096
	maxLayers = 16
	maxWidth  = 1 << 14
)

// check returns an error for an invalid shape.
func (s Shape) check() error {
	for _, c := range []struct {
		what     string
		got, max int
	}{{"inputs", s.Inputs, maxInputs}, {"hidden units", s.Hidden, maxHidden}, {"layers", s.Layers, maxLayers}, {"resources", s.Resources, maxInputs}} {
		if c.got < 1 || c.got > c.max {
			return fmt.Errorf("a network with %d %s, want 1 to %d", c.got, c.what, c.max)
		}
	}
	if len(s.Head) > maxLayers {
		return fmt.Errorf("a head of %d layers, want at most %d", len(s.Head), maxLayers)
	}
	for i, w := range s.Head {
		if w < 1 || w > maxWidth || i == len(s.Head)-1 && w != 1 {
			return fmt.Errorf("a head with the widths %v; want 1 to %d, and 1 at the end", s.Head, maxWidth)
		}
	}
	return nil
}

func (s Shape) head() MLP { return MLP{Widths: append([]int{s.Resources}, s.Head...)} }

// Params is the number of parameters.
func (s Shape) Params() int {
	n := s.Resources * (s.Hidden + 1)
	for l := range s.Layers {
		n += 4 * s.Hidden * (s.in(l) + s.Hidden + 2)
	}
	if len(s.Head) > 0 {
		n += s.head().Params()
	}
	return n
}

func (s Shape) in(layer int) int {
	if layer == 0 {
		return s.Inputs
	}
	return s.Hidden
}

// lstm is one layer at work.
type lstm[T Float] struct {
	in, hidden         int
	wx, wh, bx, bh     []T
	dwx, dwh, dbx, dbh []T

	// Of the last forward, [step][row]: the activated gates i f g o, the cell and its
	// tanh, and the outputs; h and c begin with the initial state.
	x, gates, c, tc, h []T
	dg, dx, dh, dc     []T
}

// Net is a network with its parameters. Forward and Backward work on batches of
// sequences; Step on one step of many sequences with states that the caller keeps.
type Net[T Float] struct {
	Shape  Shape
	Params []T
	Grads  []T // of the last Backward, accumulated; the caller clears it

	ops    arith[T]
	layers []*lstm[T]
	w, b   []T // of the resources
	dw, db []T
	head   *perceptron[T] // nil: none

	steps, rows int // of the last Forward
	res, out    []T
	dres, dout  []T
	dtop        []T
	g, y, r     []T // of Step
}

// NewNet makes a network; its parameters are zero.
func NewNet[T Float](s Shape) *Net[T] {
	if err := s.check(); err != nil {
		panic("straggler: " + err.Error())
	}
	n := &Net[T]{Shape: s, Params: make([]T, s.Params()), Grads: make([]T, s.Params()), ops: arithOf[T]()}
	p, g := n.Params, n.Grads
	take := func(k int) (a, b []T) {
		a, b, p, g = p[:k:k], g[:k:k], p[k:], g[k:]
		return a, b
	}
	for l := range s.Layers {
		y := &lstm[T]{in: s.in(l), hidden: s.Hidden}
		y.wx, y.dwx = take(4 * s.Hidden * y.in)
		y.wh, y.dwh = take(4 * s.Hidden * s.Hidden)
		y.bx, y.dbx = take(4 * s.Hidden)
		y.bh, y.dbh = take(4 * s.Hidden)
		n.layers = append(n.layers, y)
	}
	n.w, n.dw = take(s.Resources * s.Hidden)
	n.b, n.db = take(s.Resources)
	if len(s.Head) > 0 {
		n.head = newPerceptron(s.head(), p, g)
	}
	return n
}

// Forward computes the outputs of a batch of rows sequences of steps inputs each
// from the zero state: x is [steps × rows × Inputs], the result [steps × rows ×
// Outputs], valid until the next call. x must stay as it is until Backward.
func (n *Net[T]) Forward(x []T, steps, rows int) []T {
	n.steps, n.rows = steps, rows
	for _, l := range n.layers {
		x = l.forward(n.ops, x, steps, rows)
	}
	k := n.Shape.Resources
	n.res = sized(n.res, steps*rows*k)
	n.ops.gemm(false, true, steps*rows, k, n.Shape.Hidden, x, n.w, 0, n.res)
	addRows(n.res, n.b)
	if n.head == nil {
		return n.res
	}
	n.out = sized(n.out, steps*rows*(k+1))
	join(n.out, n.res, n.head.forward(n.res, steps*rows), k)
	return n.out
}

// join writes rows of k resources and one time.
func join[T Float](out, res, time []T, k int) {
	for i, t := range time {
		copy(out[i*(k+1):], res[i*k:(i+1)*k])
		out[i*(k+1)+k] = t
	}
}

// Backward adds to Grads the gradient of a loss, given its gradient with respect to the
// outputs of the last Forward is dout, which is not kept.
func (n *Net[T]) Backward(dout []T) {
	k, rows := n.Shape.Resources, n.steps*n.rows
	if n.head != nil {
		n.dres, n.dout = sized(n.dres, rows*k), sized(n.dout, rows)
		for i := range rows {
			n.dout[i] = dout[i*(k+1)+k]
		}
		through := n.head.backward(n.dout, rows)
		for i := range rows {
			for j := range k {
				n.dres[i*k+j] = dout[i*(k+1)+j] + through[i*k+j]
			}
		}
		dout = n.dres
	}
	h := n.Shape.Hidden
	top := n.layers[len(n.layers)-1]
	n.ops.gemm(true, false, k, h, rows, dout, top.h[n.rows*h:], 1, n.dw)
	sumRows(n.db, dout)
	n.dtop = sized(n.dtop, rows*h)
	n.ops.gemm(false, false, rows, h, k, dout, n.w, 0, n.dtop)
	d := n.dtop
	for l := len(n.layers) - 1; l >= 0; l-- {
		d = n.layers[l].backward(n.ops, d, n.steps, n.rows, l > 0)
	}
}

// forward returns the layer's outputs [steps × rows × hidden].
func (l *lstm[T]) forward(ops arith[T], x []T, steps, rows int) []T {
	h, s := l.hidden, rows*l.hidden
	l.x = x
	l.gates, l.tc = sized(l.gates, 4*steps*s), sized(l.tc, steps*s)
	l.c, l.h = sized(l.c, (steps+1)*s), sized(l.h, (steps+1)*s)
	clear(l.c[:s])
	clear(l.h[:s])
	ops.gemm(false, true, steps*rows, 4*h, l.in, x, l.wx, 0, l.gates)
	addRows(l.gates, l.bx)
	addRows(l.gates, l.bh)
	for t := range steps {
		g := l.gates[4*t*s : 4*(t+1)*s]
		if t > 0 { // the initial state is zero
			ops.gemm(false, true, rows, 4*h, h, l.h[t*s:(t+1)*s], l.wh, 1, g)
		}
		cell(ops, g, l.c[t*s:(t+1)*s], l.c[(t+1)*s:(t+2)*s], l.tc[t*s:(t+1)*s], l.h[(t+1)*s:(t+2)*s], h)
	}
	return l.h[s:]
}

// cell activates the gates g of each row, in the order i f g o, and makes the next
// cell c = f·c₀ + i·g, tc = tanh c and the output h = o·tc. c may be c0.
func cell[T Float](ops arith[T], g, c0, c, tc, h []T, hidden int) {
	for r, at := 0, 0; at < len(c); r, at = r+1, at+hidden {
		row := g[r*4*hidden : (r+1)*4*hidden]
		ops.sigmoid(row[:2*hidden])
		ops.tanh(row[2*hidden:3*hidden], row[2*hidden:3*hidden])
		ops.sigmoid(row[3*hidden:])
		in, forget, new := row[:hidden], row[hidden:2*hidden], row[2*hidden:3*hidden]
		from, to := c0[at:at+hidden], c[at:at+hidden]
		for j := range to {
			to[j] = forget[j]*from[j] + in[j]*new[j]
		}
	}
	ops.tanh(tc, c)
	for r, at := 0, 0; at < len(c); r, at = r+1, at+hidden {
		out := g[r*4*hidden+3*hidden : (r+1)*4*hidden]
		to, from := h[at:at+hidden], tc[at:at+hidden]
		for j := range to {
			to[j] = out[j] * from[j]
		}
	}
}

// backward takes the gradient of the outputs and returns that of the inputs, or
// nil if it is not needed.
func (l *lstm[T]) backward(ops arith[T], dout []T, steps, rows int, below bool) []T {
	h, s := l.hidden, rows*l.hidden
	l.dg = sized(l.dg, 4*steps*s)
	l.dh, l.dc = sized(l.dh, s), sized(l.dc, s)
	clear(l.dh)
	clear(l.dc)
	for t := steps - 1; t >= 0; t-- {
		g, dg := l.gates[4*t*s:4*(t+1)*s], l.dg[4*t*s:4*(t+1)*s]
		tc, c0, dy := l.tc[t*s:(t+1)*s], l.c[t*s:(t+1)*s], dout[t*s:(t+1)*s]
		for r := range rows {
			gate, dgate := g[4*r*h:4*(r+1)*h], dg[4*r*h:4*(r+1)*h]
			for j := range h {
				i, f, n, o := gate[j], gate[h+j], gate[2*h+j], gate[3*h+j]
				at := r*h + j
				dh := dy[at] + l.dh[at]
				dc := dh*o*(1-tc[at]*tc[at]) + l.dc[at]
				dgate[j] = dc * n * i * (1 - i)
				dgate[h+j] = dc * c0[at] * f * (1 - f)
				dgate[2*h+j] = dc * i * (1 - n*n)
				dgate[3*h+j] = dh * tc[at] * o * (1 - o)
				l.dc[at] = dc * f
			}
		}
		if t > 0 {
			ops.gemm(false, false, rows, h, 4*h, dg, l.wh, 0, l.dh)
		}
	}
	ops.gemm(true, false, 4*h, l.in, steps*rows, l.dg, l.x, 1, l.dwx)
	ops.gemm(true, false, 4*h, h, steps*rows, l.dg, l.h, 1, l.dwh)
	sumRows(l.dbx, l.dg)
	sumRows(l.dbh, l.dg)
	if !below {
		return nil
	}
	l.dx = sized(l.dx, steps*rows*l.in)
	ops.gemm(false, false, steps*rows, l.in, 4*h, l.dg, l.wx, 0, l.dx)
	return l.dx
}

// State is the state of rows sequences between steps.
type State[T Float] struct {
	c, h [][]T // [layer][rows × hidden]
	tc   []T
}

// NewState is the zero state of rows sequences.
func (n *Net[T]) NewState(rows int) *State[T] {
	s := &State[T]{tc: make([]T, rows*n.Shape.Hidden)}
	for range n.layers {
		s.c = append(s.c, make([]T, rows*n.Shape.Hidden))
		s.h = append(s.h, make([]T, rows*n.Shape.Hidden))
	}
	return s
}

// CopyFrom makes s the state o, of as many sequences.
func (s *State[T]) CopyFrom(o *State[T]) {
	for l := range s.c {
		copy(s.c[l], o.c[l])
		copy(s.h[l], o.h[l])
	}
}

// copyRow makes row i of s row j of o.
func (s *State[T]) copyRow(i int, o *State[T], j, hidden int) {
	for l := range s.c {
		copy(s.c[l][i*hidden:(i+1)*hidden], o.c[l][j*hidden:])
		copy(s.h[l][i*hidden:(i+1)*hidden], o.h[l][j*hidden:])
	}
}

// Step advances the state of rows sequences by one input each, x [rows × Inputs],
// and returns the outputs [rows × Outputs], valid until the next call.
func (n *Net[T]) Step(s *State[T], x []T, rows int) []T {
	h := n.Shape.Hidden
	n.g = sized(n.g, 4*rows*h)
	for i, l := range n.layers {
		n.ops.gemm(false, true, rows, 4*h, l.in, x, l.wx, 0, n.g)
		n.ops.gemm(false, true, rows, 4*h, h, s.h[i], l.wh, 1, n.g)
		addRows(n.g, l.bx)
		addRows(n.g, l.bh)
		cell(n.ops, n.g, s.c[i], s.c[i], s.tc, s.h[i], h)
		x = s.h[i]
	}
	k := n.Shape.Resources
	n.r = sized(n.r, rows*k)
	n.ops.gemm(false, true, rows, k, h, x, n.w, 0, n.r)
	addRows(n.r, n.b)
	if n.head == nil {
		return n.r
	}
	n.y = sized(n.y, rows*(k+1))
	join(n.y, n.r, n.head.forward(n.r, rows), k)
	return n.y
}
