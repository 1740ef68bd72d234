package net

import (
	"context"
	"math/rand/v2"
	"testing"

	"star/train"
)

// benchmarkStep times Grad on a fixed batch of random tokens.
func benchmarkStep(b *testing.B, model string, in train.Input, samples int) {
	spec, err := Parse(model)
	if err != nil {
		b.Fatal(err)
	}
	spec.Input, spec.Batch = in, samples
	m, err := Build(spec)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	rnd := rand.New(rand.NewPCG(1, 1))
	batch := train.Batch{Samples: samples}
	for range samples * in.Shape[0] {
		batch.Tokens = append(batch.Tokens, rnd.Int32N(int32(in.Classes)))
		batch.Y = append(batch.Y, rnd.Int32N(int32(in.Classes)))
	}
	g := m.(interface{ Gradient() []float32 }).Gradient()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Grad(context.Background(), g, batch); err != nil {
			b.Fatal(err)
		}
	}
}

// The models and settings of bench/torch_step.py, to be run beside it: -cpu 1.
func BenchmarkLSTM(b *testing.B) {
	benchmarkStep(b, "lstm:layers=1,hidden=128,embed=128", train.Input{Shape: []int{50}, Classes: 64, Tokens: true}, 32)
}

func BenchmarkTransformer(b *testing.B) {
	benchmarkStep(b, "transformer:layers=1,width=64,heads=4,ff=256", train.Input{Shape: []int{32}, Classes: 64, Tokens: true}, 8)
}
