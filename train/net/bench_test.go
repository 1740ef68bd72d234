package net

import (
	"context"
	"syscall"
	"testing"
	"time"

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
			before := cpu()
			for b.Loop() {
				if _, err := m.Grad(context.Background(), g, batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu()-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(c.batch)*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}

// cpu is the processor time of this process, which a busy machine does not change
// as much as wall time.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
