package net

import (
	"math"
	"testing"

	"star/train"
)

// Every part of a streamed gradient is complete when it is said to be: from the end
// to the beginning, without gaps, with the bits of Grad, also where layers share a tensor.
func TestGradStream(t *testing.T) {
	image := train.Input{Shape: []int{3, 32, 32}, Classes: 10}
	text := train.Input{Shape: []int{8}, Classes: 20, Tokens: true}
	for _, c := range []struct {
		model string
		in    train.Input
		parts int // at least
	}{
		{"mlp", image, 3}, {"lenet", image, 5}, {"resnet20:width=0.25", image, 10},
		{"lstm:layers=2,hidden=16,embed=16", text, 2},
		{"transformer:layers=2,heads=2,width=16", text, 5},
		{"transformer:layers=2,heads=2,width=16,tied=true", text, 2},
	} {
		t.Run(c.model, func(t *testing.T) {
			spec, err := Parse(c.model)
			if err != nil {
				t.Fatal(err)
			}
			spec.Input, spec.Batch, spec.Seed = c.in, 4, 7
			m, err := Build(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			b := train.Batch{Samples: 4}
			labels := 4
			if c.in.Tokens {
				labels = 4 * 8
				for i := range labels {
					b.Tokens = append(b.Tokens, int32(i*7%20))
				}
			} else {
				for i := range 4 * 3 * 32 * 32 {
					b.X = append(b.X, float32(i%13)/13)
				}
			}
			for i := range labels {
				b.Y = append(b.Y, int32(i*3%10))
			}
			n := len(m.Params())
			want := make([]float32, n)
			loss, err := m.Grad(t.Context(), want, b)
			if err != nil {
				t.Fatal(err)
			}
			for _, own := range []bool{true, false} {
				dst := make([]float32, n)
				if own {
					dst = m.(interface{ Gradient() []float32 }).Gradient()
				}
				low, parts := n, 0
				got := make([]float32, n)
				again, err := m.(train.Streamer).GradStream(t.Context(), dst, b, func(from, to int) {
					if to != low || from >= to {
						t.Errorf("[%d,%d) is ready, after [%d,%d)", from, to, low, n)
					}
					copy(got[from:to], dst[from:to])
					low, parts = from, parts+1
				})
				if err != nil || again != loss {
					t.Errorf("loss %v, %v; Grad's is %v", again, err, loss)
				}
				if low != 0 || parts < c.parts {
					t.Errorf("%d parts, down to %d; want at least %d, down to 0", parts, low, c.parts)
				}
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("element %d was %v when it was ready, Grad says %v", i, got[i], want[i])
					}
				}
			}
		})
	}
}
