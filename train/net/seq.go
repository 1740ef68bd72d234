package net

import (
	"fmt"
	"math/rand/v2"

	"star/internal/kernel"
	"star/train"
)

// Sequence models read tokens (batch, steps) and predict, at every position, the
// token that comes next; every position counts as one prediction of the loss.

// tokenRows refuses what is not a window of tokens.
func tokenRows(in train.Input) error {
	if !in.Tokens || len(in.Shape) != 1 {
		return fmt.Errorf("it takes windows of tokens, and the data set has features of shape %v; take mlp, lenet or resnet20, or a text", in.Shape)
	}
	return nil
}

// dropout is inverted dropout inside a fused layer: with probability p an element
// becomes zero, the others grow by 1/(1−p). Zero p does nothing and draws
// nothing. The masks come from the layer's own generator, so a run repeats.
//
// Reference: N. Srivastava et al.: Dropout. JMLR 15, 2014.
type dropout struct {
	p    float64
	rng  *rand.Rand
	mask []float32
}

// newDropout makes a dropout over n elements; in evaluation mode it does
// nothing. id tells the dropouts of one model apart.
func newDropout(b *Builder, p float64, n, id int) *dropout {
	if p == 0 || !b.Train {
		return &dropout{}
	}
	return &dropout{p: p, rng: rand.New(rand.NewPCG(b.Seed, uint64(id))), mask: make([]float32, n)}
}

// forward draws a mask and applies it to x in place.
func (d *dropout) forward(x []float32) {
	if d.p == 0 {
		return
	}
	keep := float32(1 / (1 - d.p))
	for i := range d.mask {
		d.mask[i] = 0
		if d.rng.Float64() >= d.p {
			d.mask[i] = keep
		}
	}
	kernel.Mul(x, x, d.mask)
}

// backward turns the gradient of the result into that of x, in place.
func (d *dropout) backward(dy []float32) {
	if d.p != 0 {
		kernel.Mul(dy, dy, d.mask)
	}
}

// rowsLinear is y = x Wᵀ + b at every position: the head of a language model. It
// adds its gradients, so W may be tied to the embedding.
type rowsLinear struct {
	steps, rows, in, out int
	w, b                 *Param
	x, y, dx, sum        []float32
}

// newHead scores every token of the vocabulary; parameters and their initial
// distribution are those of torch.nn.Linear.
func newHead(b *Builder, steps, width int) *rowsLinear {
	return newTiedHead(b, steps, width, b.Param("head.weight", FanIn(width), b.Vocab, width))
}

// newTiedHead is newHead with weights that are shared: the embedding's.
// O. Press, L. Wolf: Using the Output Embedding to Improve Language Models. EACL 2017.
func newTiedHead(b *Builder, steps, width int, w *Param) *rowsLinear {
	return newRowsLinear(b, steps, width, b.Vocab, w, b.Param("head.bias", FanIn(width), b.Vocab))
}

func newRowsLinear(b *Builder, steps, in, out int, w, bias *Param) *rowsLinear {
	l := &rowsLinear{steps: steps, rows: b.Batch * steps, in: in, out: out, w: w, b: bias}
	l.y = make([]float32, l.rows*out)
	if b.Train {
		l.dx, l.sum = make([]float32, l.rows*in), make([]float32, out)
	}
	return l
}

func (l *rowsLinear) Out() []int       { return []int{l.steps, l.out} }
func (l *rowsLinear) Params() []*Param { return []*Param{l.w, l.b} }

func (l *rowsLinear) Forward(x []float32) []float32 {
	l.x = x
	affine(l.y, x, l.w.W, l.b.W, l.rows, l.out, l.in)
	return l.y
}

func (l *rowsLinear) Backward(dy []float32) []float32 {
	affineGrad(l.dx, l.w.G, l.b.G, dy, l.x, l.w.W, l.sum, l.rows, l.out, l.in)
	return l.dx
}

// affine computes y = x wᵀ + b for rows of x: x (rows, in), w (out, in), b (out).
func affine(y, x, w, b []float32, rows, out, in int) {
	for r := range rows {
		copy(y[r*out:(r+1)*out], b)
	}
	kernel.Gemm(false, true, rows, out, in, 1, x, in, w, in, 1, y, out)
}

// affineGrad adds the gradients of affine to dw and db and overwrites dx. It
// leaves what it added to db in sum, (out).
func affineGrad(dx, dw, db, dy, x, w, sum []float32, rows, out, in int) {
	kernel.Gemm(true, false, out, in, rows, 1, dy, out, x, in, 1, dw, in)
	kernel.ColSum(sum[:out], dy, rows)
	kernel.Add(db, sum[:out])
	kernel.Gemm(false, false, rows, in, out, 1, dy, out, w, in, 0, dx, in)
}
