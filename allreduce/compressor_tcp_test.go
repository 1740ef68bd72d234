package allreduce_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"star/allreduce"
	"star/internal/compress"
)

// withCodec has all ranks of groups join with a codec for vectors of rows×cols.
func withCodec(t testing.TB, groups []*allreduce.Group, codec string, rows, cols int) []*allreduce.Compressor {
	t.Helper()
	cs := make([]*allreduce.Compressor, len(groups))
	err := firstOf(all(groups, func(g *allreduce.Group) (err error) {
		if cs[g.Rank()], err = allreduce.NewCompressor(allreduce.CompressorConfig{
			Len: rows * cols, Codec: codec, Tensors: []compress.Tensor{{Offset: 0, Shape: []int{rows, cols}}},
		}); err == nil {
			_, err = cs[g.Rank()].Join(context.Background(), g)
		}
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func gradient(n int, seed uint64) []float32 {
	rnd := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rnd.NormFloat64())
	}
	return v
}

// With every codec an all-reduce allocates nothing once it is in its stride.
func TestCompressorDoesNotAllocate(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	for _, codec := range []string{"fp16", "int8", "int8-stochastic", "topk=0.01", "powersgd=2"} {
		groups := form(t, 3, func(c *allreduce.Config) { c.Transport = "tcp" })
		cs := withCodec(t, groups, codec, 100, 200)
		const ops = 100
		var before, after runtime.MemStats
		err := firstOf(all(groups, func(g *allreduce.Group) error {
			c, grad, v := cs[g.Rank()], gradient(20_000, uint64(g.Rank())), make([]float32, 20_000)
			for i := range 20 + ops {
				if g.Rank() == 0 && i == 20 {
					runtime.ReadMemStats(&before)
				}
				copy(v, grad)
				for _, at := range []int{10_000, 0} {
					if err := c.AllReduce(context.Background(), v[at:at+10_000], at); err != nil {
						return err
					}
				}
				c.Keep()
			}
			return g.Barrier(context.Background())
		}))
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// The runtime itself allocates now and then.
		if n := after.Mallocs - before.Mallocs; n > ops/4 {
			t.Errorf("%s: %d allocations in %d rounds of 3 ranks", codec, n, ops)
		}
	}
}

// On one host auto chooses none, without a measurement; where the link may be only in this
// host's memory but is TCP, it measures, and all ranks choose the same.
func TestAutoHere(t *testing.T) {
	for _, kind := range transports {
		groups := form(t, 3, func(c *allreduce.Config) { over(c, kind) })
		made := make([]allreduce.Decision, 3)
		err := firstOf(all(groups, func(g *allreduce.Group) error {
			c, err := allreduce.NewCompressor(allreduce.CompressorConfig{Len: 100_000, Codec: compress.Auto})
			if err == nil {
				made[g.Rank()], err = c.Join(context.Background(), g)
			}
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		for r, d := range made {
			if d.Codec != made[0].Codec || kind != "tcp" && kind != "lent" && d.Codec != "none" || d.Why == "" {
				t.Errorf("%s: rank %d: %+v; rank 0: %+v", kind, r, d, made[0])
			}
		}
	}
}

// BenchmarkCompressor is an all-reduce of 4 MB over TCP on one host, 2 ranks: what the
// work of a codec costs where bytes cost next to nothing.
func BenchmarkCompressor(b *testing.B) {
	const rows, cols = 1024, 1024
	for _, codec := range []string{"none", "fp16", "int8", "topk=0.01", "powersgd=4"} {
		b.Run(fmt.Sprint(codec), func(b *testing.B) {
			groups := form(b, 2, func(c *allreduce.Config) { c.Transport = "tcp" })
			cs := withCodec(b, groups, codec, rows, cols)
			vs := [][]float32{gradient(rows*cols, 1), gradient(rows*cols, 2)}
			b.SetBytes(4 * rows * cols)
			b.ReportAllocs()
			b.ResetTimer()
			err := firstOf(all(groups, func(g *allreduce.Group) error {
				for range b.N {
					if err := cs[g.Rank()].AllReduce(context.Background(), vs[g.Rank()], 0); err != nil {
						return err
					}
					cs[g.Rank()].Keep()
				}
				return nil
			}))
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
