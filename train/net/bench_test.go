package net

import (
	"context"
	"testing"

	"star/train"
	"star/train/traintest"
)

// One training step of each model for which there is a target against PyTorch; run
// with -cpu 1, and see bench/torch_step.py for the other side.
func BenchmarkStep(b *testing.B) {
	for _, c := range []struct {
		model string
		in    train.Input
		batch int
	}{
		{"mlp", train.Input{Shape: []int{784}, Classes: 10}, 64},
		{"lenet", mnist, 64},
		{"resnet20", cifar, 32},
		{"vgg11", cifar, 8},
		{"mobilenetv2", cifar, 8},
	} {
		b.Run(c.model, func(b *testing.B) {
			spec, err := Parse(c.model)
			if err != nil {
				b.Fatal(err)
			}
			spec.Input, spec.Batch = c.in, c.batch
			m, err := Build(spec)
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			g := m.(interface{ Gradient() []float32 }).Gradient()
			batch := traintest.Batch(c.in, c.batch, 1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Grad(context.Background(), g, batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.batch)*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}
