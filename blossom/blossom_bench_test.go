package blossom

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct {
		n int
		p float64
		o Option
	}{{100, 1, 0}, {500, 1, 0}, {500, 1, Perfect}, {5000, 0.002, 0}, {5000, 0.002, MaxCardinality}} {
		b.Run(fmt.Sprintf("n=%d/p=%v/options=%d", c.n, c.p, c.o), func(b *testing.B) {
			edges := graph(rand.New(rand.NewPCG(1, 2)), c.n, c.p, func(r *rand.Rand) float64 { return r.Float64() })
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Match(c.n, edges, c.o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
