package compress

import (
	"fmt"
	"testing"
)

// Sizes: one that stays in the second-level cache, one of 16 MB. Rates are bytes
// of float32 per second on one processor.
var benchSizes = []int{1 << 16, 1 << 22}

func benchCodecs(b *testing.B, n int) []Codec {
	var cs []Codec
	for _, name := range []string{"none", "fp16", "bf16", "int8", "int8-stochastic", "topk=0.001", "topk=0.01", "topk=0.1"} {
		c, err := New(name, Slice{}, 1)
		if err != nil {
			b.Fatal(err)
		}
		cs = append(cs, c)
	}
	for _, rank := range []int{1, 4} {
		c, err := newPowerSGD(n, []Matrix{{0, n / 1024, 1024}}, rank, 1)
		if err != nil {
			b.Fatal(err)
		}
		cs = append(cs, c)
	}
	return cs
}

func bench(b *testing.B, run func(b *testing.B, c Codec, n int)) {
	benchISA(b, func(b *testing.B) {
		for _, n := range benchSizes {
			for _, c := range benchCodecs(b, n) {
				b.Run(fmt.Sprintf("%s/%d", c.Name(), n), func(b *testing.B) {
					b.SetBytes(int64(4 * n))
					b.ReportAllocs()
					run(b, c, n)
				})
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	bench(b, func(b *testing.B, c Codec, n int) {
		src, msg := randoms(n, 1), make([]byte, 0, c.MaxBytes(n))
		for b.Loop() {
			msg = c.Encode(msg[:0], src)
		}
		b.ReportMetric(float64(len(msg))/float64(n), "B/value")
	})
}

func BenchmarkFeedback(b *testing.B) {
	bench(b, func(b *testing.B, c Codec, n int) {
		f, src, msg := NewFeedback(c, n), randoms(n, 1), make([]byte, 0, c.MaxBytes(n))
		for b.Loop() {
			msg = f.Encode(msg[:0], src)
		}
	})
}

func BenchmarkDecodeAdd(b *testing.B) {
	bench(b, func(b *testing.B, c Codec, n int) {
		msg, dst := c.Encode(nil, randoms(n, 1)), make([]float32, n)
		for b.Loop() {
			if err := c.DecodeAdd(dst, 0.25, msg); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAverager(b *testing.B) {
	benchISA(b, func(b *testing.B) {
		for _, rank := range []int{1, 4} {
			const n = 1 << 22
			b.Run(fmt.Sprintf("rank=%d/%d", rank, n), func(b *testing.B) {
				a := averagers(b, 1, n, []Matrix{{0, n / 1024, 1024}}, rank)[0]
				g, dst := randoms(n, 1), make([]float32, n)
				b.SetBytes(4 * n)
				b.ReportAllocs()
				for b.Loop() {
					a.Project(g)
					a.Refine()
					a.Reconstruct(dst)
				}
			})
		}
	})
}
