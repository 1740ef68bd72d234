package net

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"star/internal/vector"
	"star/train"
)

// keep is the number of training graphs of different batch sizes that a model holds: each costs its
// activations. Two are enough for a worker with a constant share of the batch, except for the last
// batch of an epoch.
const keep = 2

// evalBatch is how many samples an evaluation graph takes at a time.
const evalBatch = 64

// network is a train.Model on gorgonia.
type network struct {
	spec Spec
	def  *definition
	set  settings

	params, grad, buffers []float32
	layout, bufferLayout  []train.TensorSpec
	named                 map[string]*Param
	namedBuffer           map[string][]float32

	declared *declaration // while the layout is being learned

	graphs []*graph // training, the last used first
	eval   *graph
	closed bool
}

// A declaration gathers tensors before the flat vectors exist.
type declaration struct {
	inits  []Init    // of each tensor of the layout
	values []float32 // of each tensor of the buffer layout
	size   int       // parameters so far
}

// most is the largest number of parameters of a model: 8 GiB of float32.
const most = 1 << 31

// Build makes a model with its initial parameters. The result also has
// the method
//
//	Gradient() []float32
//
// which gives the model's own gradient vector: Grad into it copies nothing.
func Build(spec Spec) (train.Model, error) {
	m, err := declare(spec, true)
	if err != nil {
		return nil, err
	}
	if spec.Batch < 0 {
		return nil, fmt.Errorf("net: model %s: batch %d; must not be negative", spec.Name, spec.Batch)
	}
	if spec.Batch > 0 {
		if _, err := m.graph(spec.Batch); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// declare learns the layout by building the model for one sample. With fill it
// also makes the parameters.
func declare(spec Spec, fill bool) (*network, error) {
	d, err := find(spec.Name)
	if err != nil {
		return nil, err
	}
	return d.declare(spec, fill)
}

func (d *definition) declare(spec Spec, fill bool) (*network, error) {
	set, err := d.read(spec.Settings)
	if err != nil {
		return nil, err
	}
	in := spec.Input
	if len(in.Shape) == 0 || slices.Min(in.Shape) < 1 || in.Classes < 1 {
		return nil, fmt.Errorf("net: model %s: input of shape %v with %d classes; both must be positive", d.name, in.Shape, in.Classes)
	}
	if err := d.fits(in); err != nil {
		return nil, fmt.Errorf("net: model %s does not fit its input: %w", d.name, err)
	}
	m := &network{
		spec: spec, def: d, set: set,
		named: map[string]*Param{}, namedBuffer: map[string][]float32{},
		declared: &declaration{},
	}
	m.spec.Settings = maps.Clone(spec.Settings)
	m.spec.Input.Shape = slices.Clone(in.Shape)
	if _, err := d.build(m.builder(1, true), set); err != nil {
		return nil, err
	}
	made := m.declared
	m.declared = nil
	if made.size > most {
		return nil, fmt.Errorf("net: model %s has more than %d parameters; make it narrower or its input smaller", d.name, most)
	}
	if !fill {
		return m, nil
	}
	m.params, m.grad = vector.Make[float32](made.size), vector.Make[float32](made.size)
	for i, t := range m.layout {
		p, end := m.named[t.Name], t.Offset+t.Len()
		p.W, p.G = m.params[t.Offset:end:end], m.grad[t.Offset:end:end]
		made.inits[i](p.W, generator(spec.Seed, t.Name))
	}
	if n := len(m.bufferLayout); n > 0 {
		last := m.bufferLayout[n-1]
		m.buffers = make([]float32, last.Offset+last.Len())
	}
	for i, t := range m.bufferLayout {
		end := t.Offset + t.Len()
		m.namedBuffer[t.Name] = m.buffers[t.Offset:end:end]
		Constant(made.values[i])(m.namedBuffer[t.Name], nil)
	}
	return m, nil
}

func (m *network) builder(batch int, train bool) *Builder {
	b := &Builder{
		Batch: batch, Train: train, Input: m.spec.Input.Shape, Vocab: m.spec.Input.Classes,
		Seed: m.spec.Seed, owner: m, scratch: &scratch{}, owned: map[string]bool{},
	}
	if m.spec.Input.Tokens {
		b.Tokens = make([]int32, batch*product(m.spec.Input.Shape))
	}
	return b
}

// param finds or declares a parameter tensor.
func (m *network) param(name string, init Init, shape []int) *Param {
	if p, ok := m.named[name]; ok {
		if !slices.Equal(p.Shape, shape) {
			panic(fmt.Sprintf("net: parameter %s is %v and %v", name, p.Shape, shape))
		}
		return p
	}
	d := m.declared
	if d == nil {
		panic("net: parameter " + name + " is not in the layout")
	}
	t := train.TensorSpec{Name: name, Shape: slices.Clone(shape), Offset: d.size}
	p := &Param{Name: name, Shape: t.Shape}
	m.layout = append(m.layout, t)
	m.named[name] = p
	d.inits = append(d.inits, init)
	if d.size <= most { // beyond it the offsets do not matter, and must not overflow
		d.size += t.Len()
	}
	return p
}

// buffer finds or declares a buffer.
func (m *network) buffer(name string, v float32, shape []int) []float32 {
	if f, ok := m.namedBuffer[name]; ok {
		return f
	}
	d := m.declared
	if d == nil {
		panic("net: buffer " + name + " is not in the layout")
	}
	t := train.TensorSpec{Name: name, Shape: slices.Clone(shape)}
	if n := len(m.bufferLayout); n > 0 {
		t.Offset = m.bufferLayout[n-1].Offset + m.bufferLayout[n-1].Len()
	}
	m.bufferLayout = append(m.bufferLayout, t)
	m.namedBuffer[name] = nil
	d.values = append(d.values, v)
	return nil
}

func (m *network) Params() []float32                { return m.params }
func (m *network) Layout() []train.TensorSpec       { return m.layout }
func (m *network) Buffers() []float32               { return m.buffers }
func (m *network) BufferLayout() []train.TensorSpec { return m.bufferLayout }

// Gradient is the model's own gradient vector. It is overwritten by Grad.
func (m *network) Gradient() []float32 { return m.grad }

func (m *network) describe() string {
	n := 0
	for _, t := range m.layout {
		n += t.Len()
	}
	kind := "features"
	if m.spec.Input.Tokens {
		kind = "tokens"
	}
	return fmt.Sprintf("%s, %d parameters in %d tensors, %s %v, %d classes", m.def.full(m.set), n, len(m.layout), kind, m.spec.Input.Shape, m.spec.Input.Classes)
}

func (m *network) String() string { return m.describe() }

var errClosed = errors.New("net: model is closed")

// Close frees the graphs. It may be called twice.
func (m *network) Close() error {
	m.closed = true
	m.graphs, m.eval = nil, nil
	return nil
}

// graph finds or makes the training graph of a batch size.
func (m *network) graph(batch int) (*graph, error) {
	for i, g := range m.graphs {
		if g.batch == batch {
			copy(m.graphs[1:i+1], m.graphs[:i])
			m.graphs[0] = g
			return g, nil
		}
	}
	if len(m.graphs) == keep { // before the new one is made, to bound the memory
		m.graphs[keep-1] = nil
		m.graphs = m.graphs[:keep-1]
	}
	g, err := newGraph(m, batch, true)
	if err != nil {
		return nil, err
	}
	m.graphs = slices.Insert(m.graphs, 0, g)
	return g, nil
}

// check says what is wrong with a batch.
func (m *network) check(b train.Batch) error {
	in := m.spec.Input
	row := product(in.Shape)
	if b.Samples < 1 {
		return fmt.Errorf("net: %s: batch of %d samples", m.spec.Name, b.Samples)
	}
	labels := b.Samples
	if in.Tokens {
		labels = b.Samples * row
		if b.X != nil || len(b.Tokens) != b.Samples*row {
			return fmt.Errorf("net: %s: batch of %d samples has %d tokens and %d features; wants %d tokens", m.spec.Name, b.Samples, len(b.Tokens), len(b.X), b.Samples*row)
		}
		for i, t := range b.Tokens {
			if t < 0 || int(t) >= in.Classes {
				return fmt.Errorf("net: %s: token %d of the batch is %d; must be from 0 to %d, the vocabulary has %d", m.spec.Name, i, t, in.Classes-1, in.Classes)
			}
		}
	} else if b.Tokens != nil || len(b.X) != b.Samples*row {
		return fmt.Errorf("net: %s: batch of %d samples has %d features and %d tokens; wants %d features", m.spec.Name, b.Samples, len(b.X), len(b.Tokens), b.Samples*row)
	}
	if len(b.Y) != labels {
		return fmt.Errorf("net: %s: batch of %d samples has %d labels; wants %d", m.spec.Name, b.Samples, len(b.Y), labels)
	}
	for i, y := range b.Y {
		if y < -1 || int(y) >= in.Classes {
			return fmt.Errorf("net: %s: label %d of the batch is %d; must be from 0 to %d, or -1 for none", m.spec.Name, i, y, in.Classes-1)
		}
	}
	return nil
}

// Grad implements train.Model. Predictions with label -1 do not count; a batch
// without any other has loss and gradient zero.
func (m *network) Grad(ctx context.Context, dst []float32, b train.Batch) (float64, error) {
	return m.gradient(ctx, dst, b, nil)
}

// GradStream implements train.Streamer: the gradients of layers are complete in reverse
// order, those of a tensor that several layers share with the first of them.
func (m *network) GradStream(ctx context.Context, dst []float32, b train.Batch, ready func(from, to int)) (float64, error) {
	return m.gradient(ctx, dst, b, func(from, to int) {
		if unsafe.SliceData(dst) != unsafe.SliceData(m.grad) {
			copy(dst[from:to], m.grad[from:to])
		}
		ready(from, to)
	})
}

// gradient is Grad, and GradStream where ready is not nil.
func (m *network) gradient(ctx context.Context, dst []float32, b train.Batch, ready func(from, to int)) (float64, error) {
	if m.closed {
		return 0, errClosed
	}
	if len(dst) != len(m.params) {
		return 0, fmt.Errorf("net: %s: gradient goes to %d elements; the model has %d parameters", m.spec.Name, len(dst), len(m.params))
	}
	if err := m.check(b); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	g, err := m.graph(b.Samples)
	if err != nil {
		return 0, err
	}
	copy(g.x, b.X)
	copy(g.tok, b.Tokens)
	copy(g.y, b.Y)
	clear(m.grad)
	g.ready = ready
	defer func() { g.ready = nil }()
	if err := g.run(ctx); err != nil {
		return 0, fmt.Errorf("net: %s: gradient of a batch of %d: %w", m.spec.Name, b.Samples, err)
	}
	if ready == nil && unsafe.SliceData(dst) != unsafe.SliceData(m.grad) {
		copy(dst, m.grad)
	}
	return g.loss.found.Mean(), nil
}

// Eval implements train.Model. It takes the batch in pieces of evalBatch; batch
// normalisation uses the running statistics.
func (m *network) Eval(ctx context.Context, b train.Batch) (train.Result, error) {
	var sum train.Result
	err := m.forward(ctx, b, func(g *graph, _, _ int) {
		sum.LossSum += g.loss.found.Sum
		sum.Correct += g.loss.found.Correct
		sum.Count += g.loss.found.Count
	})
	if err != nil {
		return train.Result{}, err
	}
	return sum, nil
}

// Scores implements train.Scorer.
func (m *network) Scores(ctx context.Context, b train.Batch, each func(prediction int, scores []float32)) error {
	return m.forward(ctx, b, func(g *graph, from, n int) {
		rows, cols := len(g.y)/evalBatch, g.loss.cols
		for i := range n * rows {
			each(from*rows+i, g.loss.scores[i*cols:(i+1)*cols])
		}
	})
}

// forward runs over b in evaluation mode, evalBatch samples at a time; each is called with the first of them and
// their number.
func (m *network) forward(ctx context.Context, b train.Batch, each func(g *graph, from, n int)) error {
	if m.closed {
		return errClosed
	}
	if err := m.check(b); err != nil {
		return err
	}
	if m.eval == nil {
		g, err := newGraph(m, evalBatch, false)
		if err != nil {
			return err
		}
		m.eval = g
	}
	g := m.eval
	row, rows := product(m.spec.Input.Shape), len(g.y)/evalBatch
	for from := 0; from < b.Samples; from += evalBatch {
		n := min(evalBatch, b.Samples-from)
		if b.X != nil {
			clear(g.x[copy(g.x, b.X[from*row:(from+n)*row]):])
		} else {
			clear(g.tok[copy(g.tok, b.Tokens[from*row:(from+n)*row]):])
		}
		for i := copy(g.y, b.Y[from*rows:(from+n)*rows]); i < len(g.y); i++ {
			g.y[i] = -1 // padding does not count
		}
		if err := g.run(ctx); err != nil {
			return fmt.Errorf("net: %s: evaluation of a batch of %d: %w", m.spec.Name, b.Samples, err)
		}
		each(g, from, n)
	}
	return nil
}
