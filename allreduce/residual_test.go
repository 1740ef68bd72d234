package allreduce

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/internal/compress"
)

// A job in two halves, where the second half begins with the residual and the memory of the first, has the bits of the
// whole job, with the vector in one piece or in several. Without them it has other bits.
func TestCompressorGoesOn(t *testing.T) {
	const ranks, length, half = 3, 4096, 4
	for _, name := range compressed[1:] {
		for _, cuts := range [][]int{{0, length}, {0, 1024, length}} {
			rnd := rand.New(rand.NewPCG(8, 9))
			vs := make([][ranks][]float32, 2*half)
			for i := range vs {
				for r := range ranks {
					vs[i][r] = normal(rnd, length)
				}
			}
			cfg := CompressorConfig{Len: length, Codec: name, Tensors: shapes(length), Seed: 5}
			run := func(recall bool, parts ...int) (out [ranks][]float32) {
				step := 0
				var before []*Compressor
				for _, steps := range parts {
					cs := compressors(t, ranks, cfg)
					for r, c := range before {
						if !recall {
							break
						}
						if err := cs[r].Recall(func(e []float32) error { copy(e, c.Residual()); return nil }, c.Remember()); err != nil {
							t.Fatal(err)
						}
					}
					groups := piped(ranks, Config{})
					join(t, groups, cs)
					for range steps {
						if err := errors.Join(together(groups, func(g *Group) error {
							r := g.Rank()
							out[r] = slices.Clone(vs[step][r])
							for i := 1; i < len(cuts); i++ {
								if err := cs[r].AllReduce(t.Context(), out[r][cuts[i-1]:cuts[i]], cuts[i-1]); err != nil {
									return err
								}
							}
							cs[r].Keep()
							return nil
						})...); err != nil {
							t.Fatal(err)
						}
						step++
					}
					before = cs
					closeAll(groups)
				}
				return out
			}
			want := run(true, 2*half)
			for r, got := range run(true, half, half) {
				if !slices.Equal(got, want[r]) {
					t.Errorf("%s in %d pieces: rank %d has another sum after it was recalled", name, len(cuts)-1, r)
				}
			}
			if got := run(false, half, half); slices.Equal(got[0], want[0]) {
				t.Errorf("%s: the same sums without the residual: this test compares nothing", name)
			}
		}
	}
}

// If one rank has lost its memory, all ranks start again together, and still have the same bits; nothing is lost.
func TestCompressorForgetsTogether(t *testing.T) {
	const ranks, length = 3, 4096
	cfg := CompressorConfig{Len: length, Codec: "powersgd=2", Tensors: shapes(length), Seed: 5}
	rnd := rand.New(rand.NewPCG(8, 9))
	cs := compressors(t, ranks, cfg)
	residuals := make([][]float32, ranks)
	warm := slices.Repeat([]float32{0.5}, 2*8)
	for r := range cs {
		residuals[r] = normal(rnd, length)
		var ps []compress.Piece
		if r > 0 {
			ps = []compress.Piece{{From: 0, To: length, Memory: compress.Memory{Warm: warm}}}
		}
		if err := cs[r].Recall(func(e []float32) error { copy(e, residuals[r]); return nil }, ps); err != nil {
			t.Fatal(err)
		}
	}
	groups := piped(ranks, Config{})
	defer closeAll(groups)
	join(t, groups, cs)
	out, given := make([][]float32, ranks), make([][]float32, ranks)
	for r := range given {
		given[r] = normal(rnd, length)
	}
	if err := errors.Join(together(groups, func(g *Group) error {
		out[g.Rank()] = slices.Clone(given[g.Rank()])
		return cs[g.Rank()].AllReduce(t.Context(), out[g.Rank()], 0)
	})...); err != nil {
		t.Fatal(err)
	}
	for i := range length {
		var want, got float64
		for r := range ranks {
			want += float64(given[r][i]) + float64(residuals[r][i])
			got += float64(cs[r].Residual()[i])
		}
		if got += float64(out[0][i]); math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
			t.Fatalf("element %d: %v is sent or left, of %v", i, got, want)
		}
		if out[0][i] != out[1][i] || out[0][i] != out[2][i] {
			t.Fatalf("element %d is not the same on all ranks", i)
		}
	}
	if err := cs[0].Recall(func([]float32) error { return nil }, nil); err == nil {
		t.Error("a compressor that works was told to begin with another residual")
	}
}
