package net

import (
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"sync"
	"unsafe"

	"github.com/chewxy/hm"
	// Gorgonia refuses to start on a Go it does not know unless this module is
	// newer than the one it asks for.
	_ "go4.org/unsafe/assume-no-moving-gc"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"star/train"
)

// building guards every construction of a gorgonia graph: it numbers node groups
// with a global counter.
var building sync.Mutex

// A graph is a model's expression graph for one batch size and one mode, with the
// operations in the order in which they run.
type graph struct {
	batch int
	train bool
	x     []float32 // the input, Batch rows; nil for tokens
	tok   []int32
	y     []int32 // labels, one for each prediction
	loss  *softmaxLoss
	expr  *G.ExprGraph
	ctx   context.Context // of the run

	// tape has the operations in the order in which they were applied, each after those that it
	// depends on. values has the results by place in tape; only gr.run uses it.

	tape   []instruction
	places map[*G.Node]int // in tape, while the graph is built
	values []G.Value

	// ready, if not nil, is called for parts of the gradient that are complete, from the end to the
	// beginning. uses counts, for each tensor of the layout, the layers that add to its gradient,
	// left those that have not yet done so in this run; low is the start of the part that was
	// announced last.
	ready      func(from, to int)
	layout     []train.TensorSpec
	at         map[string]int // by name, in layout
	uses, left []int
	low        int // tensors
}

// newGraph makes the graph of a model.
func newGraph(m *network, batch int, training bool) (gr *graph, err error) {
	building.Lock()
	defer building.Unlock()
	defer func() {
		// Gorgonia panics on what it cannot derive; the layers are ours, so
		// this is a defect, but a worker shall say so and not crash.
		if r := recover(); r != nil {
			gr, err = nil, fmt.Errorf("net: building the graph of %s for batch %d: %v", m.spec.Name, batch, r)
		}
	}()

	gr = &graph{batch: batch, train: training, expr: G.NewGraph(), ctx: context.Background(), places: map[*G.Node]int{}}
	gr.layout, gr.at = m.layout, make(map[string]int, len(m.layout))
	for i, t := range m.layout {
		gr.at[t.Name] = i
	}
	gr.uses, gr.left = make([]int, len(m.layout)), make([]int, len(m.layout))
	b := m.builder(batch, training)
	in := gr.feed(m.spec.Input, b)
	layers, err := m.def.build(b, m.set)
	if err != nil {
		return nil, err
	}
	scores, weights, err := gr.chain(in, layers)
	if err != nil {
		return nil, fmt.Errorf("net: %s: %w", m.spec.Name, err)
	}
	loss, err := gr.score(scores, m.spec.Input.Classes)
	if err != nil {
		return nil, fmt.Errorf("net: loss of %s: %w", m.spec.Name, err)
	}
	if training {
		if _, err := G.Grad(loss, weights...); err != nil {
			return nil, fmt.Errorf("net: derivative of %s: %w", m.spec.Name, err)
		}
	}
	gr.values, gr.places = make([]G.Value, len(gr.tape)), nil
	return gr, nil
}

// An instruction runs one operation.
type instruction struct {
	op   G.Op
	in   []G.Value // those that are no results are always the same
	from []int     // place in the tape of the one that makes in[i], or -1
}

// apply makes the node of an operation of ours, and puts it on the tape.
func (gr *graph) apply(op G.Op, children ...*G.Node) (*G.Node, error) {
	node, err := G.ApplyOp(op, children...)
	if err != nil {
		return nil, err
	}
	step := instruction{op: op, in: make([]G.Value, len(children)), from: make([]int, len(children))}
	for i, c := range children {
		if place, ok := gr.places[c]; ok {
			step.from[i] = place
		} else {
			step.from[i], step.in[i] = -1, c.Value()
		}
	}
	gr.places[node] = len(gr.tape)
	gr.tape = append(gr.tape, step)
	return node, nil
}

// feed makes the input node, on memory that the model writes before each run.
func (gr *graph) feed(in train.Input, b *Builder) *G.Node {
	shape := append([]int{gr.batch}, in.Shape...)
	if in.Tokens {
		gr.tok = b.Tokens
		return G.NewTensor(gr.expr, tensor.Int32, len(shape), G.WithShape(shape...), G.WithName("tokens"),
			G.WithValue(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(gr.tok))))
	}
	gr.x = make([]float32, product(shape))
	return G.NewTensor(gr.expr, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithShape(shape...), tensor.WithBacking(gr.x))))
}

// chain makes the nodes of the layers and of the parameters, and returns the last
// layer's and the parameters'.
func (gr *graph) chain(node *G.Node, layers []Layer) (scores *G.Node, weights G.Nodes, err error) {
	for _, l := range layers { // up to the first one with parameters, dx is not needed
		skipInputGrad(l)
		if len(l.Params()) > 0 {
			break
		}
	}
	needGrad := false
	for i, l := range layers {
		params := l.Params()
		op := &layerOp{
			gr: gr, layer: l, id: i, params: params,
			in: node.Shape().Clone(), inType: node.Type(), inGrad: needGrad,
			out: append(tensor.Shape{gr.batch}, l.Out()...),
		}
		op.y.shape = op.out
		children := []*G.Node{node}
		for _, p := range params {
			gr.uses[gr.at[p.Name]]++
			// A node for each use of a tensor, all on the same memory: so
			// gorgonia sees no sharing and adds nothing up itself.
			w := G.NewTensor(gr.expr, tensor.Float32, len(p.Shape), G.WithShape(p.Shape...), G.WithName(fmt.Sprintf("%d/%s", i, p.Name)),
				G.WithValue(tensor.New(tensor.WithShape(p.Shape...), tensor.WithBacking(p.W))))
			if unsafe.SliceData(w.Value().(*tensor.Dense).Float32s()) != unsafe.SliceData(p.W) {
				panic("net: gorgonia copied parameter " + p.Name)
			}
			children = append(children, w)
			weights = append(weights, w)
		}
		if node, err = gr.apply(op, children...); err != nil {
			return nil, nil, fmt.Errorf("%v: %w", op, err)
		}
		needGrad = needGrad || len(params) > 0
	}
	return node, weights, nil
}

// score makes the nodes of the labels and of the loss.
func (gr *graph) score(scores *G.Node, classes int) (*G.Node, error) {
	rows := product(scores.Shape()) / classes
	gr.y = make([]int32, rows)
	labels := G.NewTensor(gr.expr, tensor.Int32, 1, G.WithShape(rows), G.WithName("y"),
		G.WithValue(tensor.New(tensor.WithShape(rows), tensor.WithBacking(gr.y))))
	gr.loss = newSoftmaxLoss(rows, classes, gr.train)
	return gr.apply(&lossOp{gr: gr, loss: gr.loss, in: scores.Shape().Clone(), inType: scores.Type(), labels: gr.y}, scores, labels)
}

// run runs the graph on what is in x, tok and y.
func (gr *graph) run(ctx context.Context) error {
	gr.ctx = ctx
	copy(gr.left, gr.uses)
	gr.low = len(gr.layout)
	defer func() { gr.ctx = context.Background() }()
	for i, s := range gr.tape {
		for j, from := range s.from {
			if from >= 0 {
				s.in[j] = gr.values[from]
			}
		}
		v, err := s.op.Do(s.in...)
		if err != nil {
			return err
		}
		gr.values[i] = v
	}
	return nil
}

// finished notes that a layer has written its gradients.
func (gr *graph) finished(params []*Param) {
	if gr.ready == nil {
		return
	}
	for _, p := range params {
		gr.left[gr.at[p.Name]]--
	}
	was := gr.low
	for gr.low > 0 && gr.left[gr.low-1] == 0 {
		gr.low--
	}
	if gr.low < was {
		last := gr.layout[was-1]
		gr.ready(gr.layout[gr.low].Offset, last.Offset+last.Len())
	}
}

// step is one operation of a run: it stops when the context is done, and turns a
// panic inside a layer into an error.
func (gr *graph) step(what fmt.Stringer, f func() G.Value) (v G.Value, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v: %v", what, r)
		}
	}()
	if err := gr.ctx.Err(); err != nil {
		return nil, err
	}
	return f(), nil
}

// floats is the memory of a value that this package made.
func floats(v G.Value) []float32 {
	if d, ok := v.(*tensor.Dense); ok && d.Dtype() == tensor.Float32 {
		return d.Float32s()
	}
	return nil // tokens
}

// A view wraps slices as tensors, once for each slice.
type view struct {
	t     *tensor.Dense
	shape tensor.Shape
}

func (v *view) of(s []float32) G.Value {
	if v.t == nil || unsafe.SliceData(v.t.Float32s()) != unsafe.SliceData(s) {
		v.t = tensor.New(tensor.WithShape(v.shape...), tensor.WithBacking(s[:product(v.shape)]))
	}
	return v.t
}

// typeOf is gorgonia's type of a tensor of float32.
func typeOf(shape tensor.Shape) hm.Type {
	if len(shape) == 0 {
		return tensor.Float32
	}
	return G.TensorType{Dims: len(shape), Of: tensor.Float32}
}

// fused is what our operations have in common for gorgonia. Results are pointers
// to memory of the layers, which no other operation may overwrite.
type fused struct{}

func (fused) ReturnsPtr() bool     { return false }
func (fused) CallsExtern() bool    { return false }
func (fused) OverwritesInput() int { return -1 }

// hashOf is FNV-1a of an operation's name. Names are unique in a graph, so that
// gorgonia never takes two of our nodes for the same value.
func hashOf(s fmt.Stringer) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s.String()))
	return h.Sum32()
}

// layerOp is the forward half of a layer: (x, parameters…) → y.
type layerOp struct {
	fused
	gr     *graph
	layer  Layer
	id     int
	params []*Param
	in     tensor.Shape
	inType hm.Type
	inGrad bool
	out    tensor.Shape
	y      view
}

func (op *layerOp) String() string {
	name := "no parameters"
	if len(op.params) > 0 {
		name = op.params[0].Name
	}
	return fmt.Sprintf("layer %d (%T, %s)", op.id, op.layer, name)
}
func (op *layerOp) Arity() int            { return 1 + len(op.params) }
func (op *layerOp) WriteHash(h hash.Hash) { fmt.Fprint(h, op) }
func (op *layerOp) Hashcode() uint32      { return hashOf(op) }
func (op *layerOp) DiffWRT(inputs int) []bool {
	d := make([]bool, inputs)
	d[0] = op.inGrad
	for i := 1; i < inputs; i++ {
		d[i] = true
	}
	return d
}

func (op *layerOp) Type() hm.Type {
	ts := []hm.Type{op.inType}
	for _, p := range op.params {
		ts = append(ts, typeOf(p.Shape))
	}
	return hm.NewFnType(append(ts, typeOf(op.out))...)
}

func (op *layerOp) InferShape(...G.DimSizer) (tensor.Shape, error) { return op.out.Clone(), nil }

func (op *layerOp) Do(in ...G.Value) (G.Value, error) {
	return op.gr.step(op, func() G.Value { return op.y.of(op.layer.Forward(floats(in[0]))) })
}

// SymDiff makes one node that computes all of the layer's gradients, and one for
// each parameter that shows its part of the flat gradient.
func (op *layerOp) SymDiff(inputs G.Nodes, output, grad *G.Node) (G.Nodes, error) {
	out := op.in
	if !op.inGrad {
		out = tensor.Shape{} // a token of completion
	}
	back, err := op.gr.apply(&gradOp{layerOp: op, dx: view{shape: out}, dyType: grad.Type(), done: G.NewF32(0)}, grad, output)
	if err != nil {
		return nil, err
	}
	all := make(G.Nodes, len(inputs))
	if op.inGrad {
		all[0] = back
	}
	for i, p := range op.params {
		pick := &pickOp{from: op, index: i, backType: back.Type(), p: p}
		if all[i+1], err = G.ApplyOp(pick, back); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// gradOp is the backward half: (dy, y) → dx. y only determines the order.
type gradOp struct {
	*layerOp
	dx     view
	dyType hm.Type
	done   *G.F32
}

func (op *gradOp) String() string        { return "gradient of " + op.layerOp.String() }
func (op *gradOp) Arity() int            { return 2 }
func (op *gradOp) WriteHash(h hash.Hash) { fmt.Fprint(h, op) }
func (op *gradOp) Hashcode() uint32      { return hashOf(op) }
func (op *gradOp) DiffWRT(int) []bool    { return nil }

func (op *gradOp) Type() hm.Type {
	return hm.NewFnType(op.dyType, typeOf(op.out), typeOf(op.dx.shape))
}

func (op *gradOp) InferShape(...G.DimSizer) (tensor.Shape, error) { return op.dx.shape.Clone(), nil }

func (op *gradOp) SymDiff(G.Nodes, *G.Node, *G.Node) (G.Nodes, error) {
	return nil, fmt.Errorf("net: %v has no second derivative", op)
}

func (op *gradOp) Do(in ...G.Value) (G.Value, error) {
	return op.gr.step(op, func() G.Value {
		dx := op.layer.Backward(floats(in[0]))
		op.gr.finished(op.params)
		if !op.inGrad {
			return op.done
		}
		return op.dx.of(dx)
	})
}

// pickOp represents a parameter's gradient, dx → dw, for gorgonia. It does nothing: gradOp has
// written into the flat gradient.
type pickOp struct {
	fused
	from     *layerOp
	index    int
	p        *Param
	backType hm.Type
}

func (op *pickOp) String() string        { return fmt.Sprintf("gradient %d of %v", op.index, op.from) }
func (op *pickOp) Arity() int            { return 1 }
func (op *pickOp) Type() hm.Type         { return hm.NewFnType(op.backType, typeOf(op.p.Shape)) }
func (op *pickOp) WriteHash(h hash.Hash) { fmt.Fprint(h, op) }
func (op *pickOp) Hashcode() uint32      { return hashOf(op) }

func (op *pickOp) InferShape(...G.DimSizer) (tensor.Shape, error) {
	return tensor.Shape(op.p.Shape).Clone(), nil
}

func (op *pickOp) Do(...G.Value) (G.Value, error) {
	return nil, fmt.Errorf("net: %v does not run", op)
}

// lossOp is the mean softmax cross-entropy: (logits, labels) → loss.
type lossOp struct {
	fused
	gr     *graph
	loss   *softmaxLoss
	in     tensor.Shape
	inType hm.Type
	labels []int32
	mean   G.F32
}

func (op *lossOp) String() string            { return "softmax cross-entropy" }
func (op *lossOp) Arity() int                { return 2 }
func (op *lossOp) WriteHash(h hash.Hash)     { fmt.Fprint(h, op) }
func (op *lossOp) Hashcode() uint32          { return hashOf(op) }
func (op *lossOp) DiffWRT(inputs int) []bool { return []bool{true, false} }

func (op *lossOp) Type() hm.Type {
	return hm.NewFnType(op.inType, G.TensorType{Dims: 1, Of: tensor.Int32}, tensor.Float32)
}

func (op *lossOp) InferShape(...G.DimSizer) (tensor.Shape, error) { return tensor.Shape{}, nil }

func (op *lossOp) Do(in ...G.Value) (G.Value, error) {
	return op.gr.step(op, func() G.Value {
		op.mean = G.F32(op.loss.forward(floats(in[0]), op.labels))
		return &op.mean
	})
}

func (op *lossOp) SymDiff(inputs G.Nodes, output, grad *G.Node) (G.Nodes, error) {
	n, err := op.gr.apply(&lossGradOp{lossOp: op, d: view{shape: op.in}}, grad, output)
	return G.Nodes{n, nil}, err
}

// lossGradOp gives the gradient of the logits, which forward left behind:
// (1, loss) → dlogits.
type lossGradOp struct {
	*lossOp
	d view
}

func (op *lossGradOp) String() string        { return "gradient of softmax cross-entropy" }
func (op *lossGradOp) Arity() int            { return 2 }
func (op *lossGradOp) WriteHash(h hash.Hash) { fmt.Fprint(h, op) }
func (op *lossGradOp) Hashcode() uint32      { return hashOf(op) }
func (op *lossGradOp) DiffWRT(int) []bool    { return nil }

func (op *lossGradOp) Type() hm.Type {
	return hm.NewFnType(tensor.Float32, tensor.Float32, op.inType)
}

func (op *lossGradOp) InferShape(...G.DimSizer) (tensor.Shape, error) { return op.in.Clone(), nil }

func (op *lossGradOp) SymDiff(G.Nodes, *G.Node, *G.Node) (G.Nodes, error) {
	return nil, fmt.Errorf("net: %v has no second derivative", op)
}

func (op *lossGradOp) Do(in ...G.Value) (G.Value, error) {
	return op.gr.step(op, func() G.Value { return op.d.of(op.loss.gradient()) })
}
