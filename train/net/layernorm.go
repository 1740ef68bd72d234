package net

import "star/internal/kernel"

// layerNormEps is PyTorch's default.
const layerNormEps = 1e-5

// layerNorm normalises each row by its own mean and biased variance, as
// torch.nn.LayerNorm over the last axis:
//
//	y = γ ⊙ (x − mean(x)) / √(var(x) + ε) + β
//
// Reference: J. L. Ba, J. R. Kiros, G. E. Hinton: Layer Normalization. arXiv 1607.06450, 2016.
type layerNorm struct {
	rows          int
	mean, inv     []float32 // (rows)
	dgamma, dbeta []float32 // (width) of one run
	gamma, beta   *Param
}

func newLayerNorm(b *Builder, name string, rows, width int) *layerNorm {
	return &layerNorm{
		rows:   rows,
		mean:   make([]float32, rows),
		inv:    make([]float32, rows),
		dgamma: make([]float32, width),
		dbeta:  make([]float32, width),
		gamma:  b.Param(name+".weight", Constant(1), width),
		beta:   b.Param(name+".bias", Constant(0), width),
	}
}

func (l *layerNorm) forward(y, x []float32) {
	kernel.LayerNorm(y, x, l.gamma.W, l.beta.W, l.mean, l.inv, l.rows, layerNormEps)
}

// backward takes the gradient dy of the last forward's y and its x, adds to the
// gradients of γ and β and overwrites dx, which may be dy.
func (l *layerNorm) backward(dx, dy, x []float32) {
	kernel.LayerNormGrad(dx, l.dgamma, l.dbeta, dy, x, l.gamma.W, l.mean, l.inv, l.rows)
	kernel.Add(l.gamma.G, l.dgamma)
	kernel.Add(l.beta.G, l.dbeta)
}

// layerNormLayer is a layerNorm as a Layer over (steps, width).
type layerNormLayer struct {
	*layerNorm
	steps, width int
	x, y, dx     []float32
}

func newLayerNormLayer(b *Builder, name string, steps, width int) *layerNormLayer {
	rows := b.Batch * steps
	l := &layerNormLayer{layerNorm: newLayerNorm(b, name, rows, width), steps: steps, width: width}
	l.y = make([]float32, rows*width)
	if b.Train {
		l.dx = make([]float32, rows*width)
	}
	return l
}

func (l *layerNormLayer) Out() []int       { return []int{l.steps, l.width} }
func (l *layerNormLayer) Params() []*Param { return []*Param{l.gamma, l.beta} }

func (l *layerNormLayer) Forward(x []float32) []float32 {
	l.x = x
	l.forward(l.y, x)
	return l.y
}

func (l *layerNormLayer) Backward(dy []float32) []float32 {
	l.backward(l.dx, dy, l.x)
	return l.dx
}
