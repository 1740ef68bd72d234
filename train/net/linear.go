package net

import "star/internal/kernel"

// linear is y = act(x·Wᵀ + b), W of shape (out, in) as in PyTorch.
type linear struct {
	batch, in, out int
	w, b           *Param
	act            Activation
	x, y, dx       []float32
	dz             func() []float32
	skip           bool
}

// Linear is a fully connected layer on everything that a sample holds.
func Linear(b *Builder, name string, in []int, out int, act Activation) Layer {
	n := product(in)
	l := &linear{
		batch: b.Batch, in: n, out: out, act: act,
		w: b.Param(name+".weight", FanIn(n), out, n),
		b: b.Param(name+".bias", FanIn(n), out),
		y: make([]float32, b.Batch*out),
	}
	if act != Identity {
		l.dz = b.Scratch(len(l.y))
	}
	return l
}

func (l *linear) Out() []int       { return []int{l.out} }
func (l *linear) Params() []*Param { return []*Param{l.w, l.b} }
func (l *linear) SkipInputGrad()   { l.skip = true }

func (l *linear) Forward(x []float32) []float32 {
	l.x = x
	for r := 0; r < l.batch; r++ {
		copy(l.y[r*l.out:(r+1)*l.out], l.b.W)
	}
	kernel.Gemm(false, true, l.batch, l.out, l.in, 1, x, l.in, l.w.W, l.in, 1, l.y, l.out)
	l.act.forward(l.y)
	return l.y
}

func (l *linear) Backward(dy []float32) []float32 {
	if l.act != Identity {
		dz := l.dz()
		l.act.backward(dz, dy, l.y)
		dy = dz
	}
	kernel.Gemm(true, false, l.out, l.in, l.batch, 1, dy, l.out, l.x, l.in, 1, l.w.G, l.in)
	for r := 0; r < l.batch; r++ {
		kernel.Add(l.b.G, dy[r*l.out:(r+1)*l.out])
	}
	if l.skip {
		return nil
	}
	if l.dx == nil {
		l.dx = make([]float32, l.batch*l.in)
	}
	kernel.Gemm(false, false, l.batch, l.in, l.out, 1, dy, l.out, l.w.W, l.in, 0, l.dx, l.in)
	return l.dx
}
