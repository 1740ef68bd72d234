package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"star/internal/kernel"
)

// Tensor is one tensor of the parameters: its elements are at Offset, row-major.
type Tensor struct {
	Name   string
	Shape  []int
	Offset int
}

// Matrix is a part of the parameters that muon makes orthogonal as a whole: Rows·Cols elements from From, row-major.
type Matrix struct {
	From, Rows, Cols int
}

// To is the end of the matrix, without it.
func (m Matrix) To() int { return m.From + m.Rows*m.Cols }

// rms is the root mean square of the elements of a step of AdamW, which Muon's have at the same learning rate, so that
// rates transfer: an orthogonal m×n matrix has 1/√max(m, n) (Liu et al. 2025, equation 4).
const rms = 0.2

// Shaped returns c for parameters that consist of these tensors, in order and without gaps. It sets Matrices: tensors
// of two or more dimensions. The first counts rows: kernels of convolutions are flattened. As Jordan
// et al. advise, tables of embeddings and the output layer are left to AdamW: tensors that are named so, and the last
// matrix of a model, unless the model has an embedding with another number of rows, which is its output layer too.
func (c Config) Shaped(tensors []Tensor) Config {
	c.shaped, c.Matrices = len(tensors) > 0, nil
	vocabulary, last := 0, -1
	for i, t := range tensors {
		if len(t.Shape) < 2 {
			continue
		}
		last = i
		if isEmbedding(t.Name) {
			vocabulary = max(vocabulary, t.Shape[0])
		}
	}
	for i, t := range tensors {
		if len(t.Shape) < 2 || isEmbedding(t.Name) || isOutput(t.Name) || i == last && (vocabulary == 0 || vocabulary == t.Shape[0]) {
			continue
		}
		m := Matrix{t.Offset, t.Shape[0], 1}
		for _, k := range t.Shape[1:] {
			m.Cols *= k
		}
		if min(m.Rows, m.Cols) > 1 { // the direction of a vector is no matter of singular values
			c.Matrices = append(c.Matrices, m)
		}
	}
	return c
}

// named reports whether a part of a tensor's name, between dots, is one of words.
func named(name string, words ...string) bool {
	return slices.ContainsFunc(strings.Split(strings.ToLower(name), "."), func(part string) bool { return slices.Contains(words, part) })
}

func isEmbedding(name string) bool {
	return strings.Contains(strings.ToLower(name), "embed") || named(name, "wte", "wpe", "position")
}

func isOutput(name string) bool { return named(name, "head", "lm_head", "classifier") }

// cutMatrices returns those with elements in a range, numbered from its beginning.
func cutMatrices(ms []Matrix, from, to int) (cut []Matrix) {
	for _, m := range ms {
		if m.From < to && m.To() > from {
			m.From -= from
			cut = append(cut, m)
		}
	}
	return cut
}

// Fits returns an error if c needs the shapes of n parameters, and does not have them, or has a part of a matrix.
func (c Config) Fits(n int) error {
	if c.Name == Muon && !c.shaped && n > 0 {
		return fmt.Errorf("optim: %s needs the shapes of the model's tensors, which are not known: have workers send a layout (names and shapes) when they join, or use --optimizer %s", c.Name, AdamW)
	}
	for _, m := range c.Matrices {
		if c.Name == Muon && (m.From < 0 || m.To() > n) {
			return fmt.Errorf("optim: %d parameters have a part of a matrix of %d×%d (elements %d to %d): %s needs whole ones", n, m.Rows, m.Cols, m.From, m.To(), c.Name)
		}
	}
	return nil
}

// Whole reports whether a step needs whole tensors: it is made by StepPart.
func (o *Optimizer) Whole() bool { return o.c.Name == Muon }

// Parts is how many parts a step of muon has: each matrix, and the rest.
func (o *Optimizer) Parts() int { return len(o.c.Matrices) + 1 }

// StepPart is part i of a step of muon, after Begin. params and grad are whole. Different parts may be stepped by
// several goroutines at once.
//
// share is the update's part of the samples of a round of all workers. A step has a length of its own, so that N
// updates of a gradient each would go N times as far as one of their mean. Therefore it is share times as long, the
// momentum of matrices decays by μ^share, and AdamW's second moments are those of a round ([kernel.AdamPart]). So an
// update of a round is that of the papers, and samples have the same effect in all modes.
func (o *Optimizer) StepPart(i int, params, grad []float32, lr, share float64) {
	if len(params) != o.n || len(grad) != o.n {
		panic(fmt.Sprintf("optim: step on %d parameters with %d of the gradient and an optimiser for %d", len(params), len(grad), o.n))
	}
	lr *= share
	if i < len(o.c.Matrices) {
		m := o.c.Matrices[i]
		from, to := m.From, m.To()
		factor, decay := o.c.at(from)
		kernel.Muon(params[from:to], grad[from:to], o.slots[0].Data[from:to], m.Rows, m.Cols, kernel.MuonStep{
			Rate: float32(lr * factor * rms * math.Sqrt(float64(max(m.Rows, m.Cols)))), Beta: float32(math.Pow(o.c.Momentum, share)),
			Decay: float32(lr * factor * decay),
		})
		return
	}
	at := 0
	for _, m := range o.c.Matrices {
		o.stepRange(params[at:m.From], grad[at:m.From], at, lr, share)
		at = m.To()
	}
	o.stepRange(params[at:], grad[at:], at, lr, share)
}

// at returns the settings of a parameter: those of its group.
func (c *Config) at(i int) (factor, decay float64) {
	for _, g := range c.Groups {
		if g.From <= i && i < g.To {
			return g.Factor, g.WeightDecay
		}
	}
	return 1, c.WeightDecay
}
