//go:build !race

// Under the race detector sync.Pool forgets on purpose, and the matrix product allocates its packing memory again.

package net

import (
	"math/rand/v2"
	"testing"
)

// Once warm, our layers allocate nothing.
func TestSequenceLayersAllocateNothing(t *testing.T) {
	const batch, steps, vocabulary = 3, 8, 11
	for name, make := range map[string]func(b *Builder) Layer{
		"lstm":        func(b *Builder) Layer { return newLSTMStack(b, 6, 10, 2, 0.1) },
		"positions":   func(b *Builder) Layer { return newPositions(b, 8, 1, 0.1) },
		"block":       func(b *Builder) Layer { return newBlock(b, 0, 8, 2, 20, 0.1) },
		"layer norm":  func(b *Builder) Layer { return newLayerNormLayer(b, "norm", steps, 8) },
		"rows linear": func(b *Builder) Layer { return newHead(b, steps, 8) },
	} {
		l := make(layerBuilder(batch, steps, vocabulary))
		for _, p := range l.Params() {
			p.W = draw(rand.New(rand.NewPCG(1, 3)), product(p.Shape), 1)
			p.G = append([]float32(nil), p.W...)
		}
		x := draw(rand.New(rand.NewPCG(1, 1)), batch*steps*8, 1)
		dy := draw(rand.New(rand.NewPCG(1, 2)), batch*product(l.Out()), 1)
		if n := testing.AllocsPerRun(20, func() {
			l.Forward(x)
			l.Backward(dy)
		}); n != 0 {
			t.Errorf("%s: %v allocations per step, want 0", name, n)
		}
	}
}
