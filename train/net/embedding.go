package net

import "star/internal/kernel"

// embed gathers rows of table, (vocabulary, width): y[p] = table[tokens[p]].
// Tokens are in range; the model checks them before it runs.
func embed(y, table []float32, tokens []int32, width int) {
	for p, t := range tokens {
		copy(y[p*width:(p+1)*width], table[int(t)*width:(int(t)+1)*width])
	}
}

// embedGrad adds the gradient of embed to dtable: to each row the gradients of
// the positions that showed it, in order of position.
func embedGrad(dtable, dy []float32, tokens []int32, width int) {
	for p, t := range tokens {
		kernel.Add(dtable[int(t)*width:(int(t)+1)*width], dy[p*width:(p+1)*width])
	}
}

// positions is where a Transformer begins: y[b, t] = table[tokens[b, t]] + place[t].
type positions struct {
	batch, steps, width int

	tokens       []int32
	table, place *Param
	drop         *dropout
	y, d         []float32
}

// newPositions takes two embeddings: one for tokens, N(0, σ²), and one for places
// in the window, N(0, σ²) too.
func newPositions(b *Builder, width int, sigma, drop float64) *positions {
	steps := b.Input[0]
	n := b.Batch * steps * width
	l := &positions{
		batch: b.Batch, steps: steps, width: width, tokens: b.Tokens,
		table: b.Param("embed.weight", Normal(sigma), b.Vocab, width),
		place: b.Param("position.weight", Normal(sigma), steps, width),
		drop:  newDropout(b, drop, n, 0),
		y:     make([]float32, n),
	}
	if b.Train {
		l.d = make([]float32, n)
	}
	return l
}

func (l *positions) Out() []int       { return []int{l.steps, l.width} }
func (l *positions) Params() []*Param { return []*Param{l.table, l.place} }

func (l *positions) Forward([]float32) []float32 {
	embed(l.y, l.table.W, l.tokens, l.width)
	for b, n := 0, l.steps*l.width; b < l.batch; b++ {
		kernel.Add(l.y[b*n:(b+1)*n], l.place.W)
	}
	l.drop.forward(l.y)
	return l.y
}

func (l *positions) Backward(dy []float32) []float32 {
	copy(l.d, dy)
	l.drop.backward(l.d)
	embedGrad(l.table.G, l.d, l.tokens, l.width)
	for b, n := 0, l.steps*l.width; b < l.batch; b++ {
		kernel.Add(l.place.G, l.d[b*n:(b+1)*n])
	}
	return nil // tokens have no gradient
}
