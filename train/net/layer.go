package net

import "fmt"

// A Layer is one node of a model's graph: a function of one activation and of the
// parameters it took from the Builder, with its derivative.
//
// A Layer is made for one batch size and one mode and owns the memory of its
// results, so that running it allocates nothing. Slices are row-major, the
// sample first: (batch, features) or (batch, channels, height, width).
//
// A Layer that reads tokens takes them from Builder.Tokens when it is made, and
// ignores x.
type Layer interface {
	// Out is the shape of one sample of the result.
	Out() []int

	// Params are the parameter tensors that the layer uses, in layout order.
	Params() []*Param

	// Forward computes the result for x. x is borrowed until Backward is done;
	// the result is the layer's own and valid until the next Forward.
	Forward(x []float32) []float32

	// Backward takes the gradient of the loss with respect to the result of the
	// last Forward. It adds the gradients of the parameters to Param.G and
	// returns the gradient with respect to x, which the caller may change and
	// which is valid until the next Backward; nil when SkipInputGrad was called.
	// It does not change dy, and the result is not dy.
	Backward(dy []float32) []float32
}

// inputGradSkipper is a Layer that saves work if the gradient of its input is not needed: the first
// layer of a model.
type inputGradSkipper interface{ SkipInputGrad() }

// A Param is one tensor of parameters inside the flat vectors. W and G are views;
// both have the product of Shape as their length. While the layout is being
// learned they are nil: a constructor must not look into them.
type Param struct {
	Name  string
	Shape []int
	W, G  []float32
}

// A Builder is what a model is built with: it hands out parameters, buffers and
// scratch memory. It is valid while the model's layers are being made.
//
// A model is built once without memory for activations, to learn its layout,
// and then once for each batch size and mode. The order and shapes of Param and
// Buffer calls must not depend on Batch or Train.
type Builder struct {
	Batch  int  // samples of one run
	Train  bool // false: evaluation mode, Backward is never called
	Input  []int
	Vocab  int     // classes of the data set; size of the vocabulary for tokens
	Tokens []int32 // Batch × positions token ids, rewritten before each run; nil for features
	Seed   uint64  // of the model

	owner   *network
	scratch *scratch
	owned   map[string]bool
}

// A scratch is memory that all layers of one graph share: its content lasts for
// one call of Forward or Backward.
type scratch struct{ f []float32 }

func (s *scratch) take(n int) []float32 { return s.f[:n:n] }

// Scratch makes room for n elements of shared scratch memory and returns a
// function that gives them. The content is lost when the layer returns.
func (b *Builder) Scratch(n int) func() []float32 {
	s := b.scratch
	if len(s.f) < n {
		s.f = make([]float32, n)
	}
	return func() []float32 { return s.take(n) }
}

// Param returns the parameter tensor of that name. The same name gives the same
// tensor, so weights can be shared; their gradients add up. init is used when the
// model is made, with a generator of its own for each tensor.
func (b *Builder) Param(name string, init Init, shape ...int) *Param {
	if b.owned[name] {
		panic("net: parameter " + name + " belongs to another layer alone")
	}
	return b.owner.param(name, init, shape)
}

// Own is Param for a layer that overwrites Param.G instead of adding to it. Asking
// for the same name again is a defect of the model.
func (b *Builder) Own(name string, init Init, shape ...int) *Param {
	if b.owned[name] {
		panic("net: parameter " + name + " belongs to two layers")
	}
	b.owned[name] = true
	return b.owner.param(name, init, shape)
}

// Buffer returns state that training changes and that is not optimised, filled
// with v when the model is made; nil while the layout is being learned.
func (b *Builder) Buffer(name string, v float32, shape ...int) []float32 {
	return b.owner.buffer(name, v, shape)
}

// product is the number of elements of a shape.
func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// chain is layers one after another, as one Layer.
type chain struct{ layers []Layer }

// Chain joins one or more layers into one: fewer nodes for the machine to run.
func Chain(layers ...Layer) Layer {
	if len(layers) == 0 {
		panic("net: chain of no layers")
	}
	return &chain{layers}
}

func (c *chain) Params() []*Param {
	var ps []*Param
	for _, l := range c.layers {
		ps = append(ps, l.Params()...)
	}
	return ps
}

func (c *chain) Out() []int { return c.layers[len(c.layers)-1].Out() }

func (c *chain) Forward(x []float32) []float32 {
	for _, l := range c.layers {
		x = l.Forward(x)
	}
	return x
}

func (c *chain) Backward(dy []float32) []float32 {
	for i := len(c.layers) - 1; i >= 0; i-- {
		dy = c.layers[i].Backward(dy)
	}
	return dy
}

func (c *chain) SkipInputGrad() { skipInputGrad(c.layers[0]) }

func skipInputGrad(l Layer) {
	if s, ok := l.(inputGradSkipper); ok {
		s.SkipInputGrad()
	}
}

// shapeError says that a layer does not fit what it is fed.
func shapeError(name string, in []int, why string) error {
	return fmt.Errorf("net: layer %s on input %v: %s", name, in, why)
}
