package allreduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"star/internal/compress"
	"star/internal/kernel"
)

// Every send of an all-to-all meets its receive in the same step, no rank sends to two ranks or receives from two in
// one step, and all blocks arrive where they belong.
func TestAllToAll(t *testing.T) {
	for n := 1; n <= 33; n++ {
		type key struct{ step, from, to int }
		sent := map[key]Span{}
		got := make([]map[int]int, n) // of each rank: by block the rank that it came from
		for r := range n {
			s := AllToAll(n, r)
			if s.Blocks != 2*n || s.Steps != n-1 || len(s.Moves) != n-1 {
				t.Fatalf("%d ranks: %d blocks, %d steps, %d moves", n, s.Blocks, s.Steps, len(s.Moves))
			}
			for i, m := range s.Moves {
				if m.Step != i || m.Add || m.To == r || m.From == r {
					t.Fatalf("rank %d of %d: move %+v is the %dth", r, n, m, i)
				}
				sent[key{m.Step, r, m.To}] = m.Send
			}
		}
		for r := range n {
			got[r] = map[int]int{}
			for _, m := range AllToAll(n, r).Moves {
				if b, ok := sent[key{m.Step, m.From, r}]; !ok || b != (Span{r, r + 1}) {
					t.Fatalf("rank %d of %d receives from %d in step %d, which sends it %v", r, n, m.From, m.Step, b)
				}
				if m.Recv != (Span{n + m.From, n + m.From + 1}) {
					t.Fatalf("rank %d of %d puts what rank %d sends to %v", r, n, m.From, m.Recv)
				}
				got[r][m.Recv.Lo] = m.From
			}
			if len(got[r]) != n-1 {
				t.Fatalf("rank %d of %d hears from %d ranks", r, n, len(got[r]))
			}
		}
	}
}

// The layout of the tests: a matrix, a vector, a larger matrix, a rest.
func shapes(n int) []compress.Tensor {
	a, b := n/4/8, n/2/16
	return []compress.Tensor{{Offset: 0, Shape: []int{a, 8}}, {Offset: 8 * a, Shape: []int{n / 8}}, {Offset: 8*a + n/8, Shape: []int{b, 4, 4}}}
}

var compressed = []string{"none", "fp16", "bf16", "int8", "int8-stochastic", "int2", "topk=0.1", "topk=3", "powersgd=2"}

func compressors(t testing.TB, ranks int, cfg CompressorConfig) []*Compressor {
	t.Helper()
	cs := make([]*Compressor, ranks)
	for r := range cs {
		var err error
		if cs[r], err = NewCompressor(cfg); err != nil {
			t.Fatal(err)
		}
	}
	return cs
}

func join(t testing.TB, groups []*Group, cs []*Compressor) {
	t.Helper()
	if err := errors.Join(together(groups, func(g *Group) error {
		_, err := cs[g.Rank()].Join(context.Background(), g)
		return err
	})...); err != nil {
		t.Fatal(err)
	}
}

func normal(rnd *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rnd.NormFloat64() * math.Exp(rnd.NormFloat64()))
	}
	return v
}

// naive is an all-reduce of the ranks' vectors in one process: what the doc comment of
// Compressor says, with a residual of each rank.
func naive(name string, vs, es [][]float32) []float32 {
	n, length := len(vs), len(vs[0])
	codec := func(rank int) compress.Codec {
		c, err := compress.New(name, compress.Slice{}, 0)
		if err != nil {
			panic(err)
		}
		return c
	}
	decode := func(c compress.Codec, msg []byte, length int) []float32 {
		v := make([]float32, length)
		if err := c.Decode(v, msg); err != nil {
			panic(err)
		}
		return v
	}
	sums := make([]float32, length)
	for r := range n {
		d := slices.Clone(vs[r])
		for i := range d {
			d[i] += es[r][i]
		}
		m := decode(codec(r), codec(r).Encode(nil, d), length)
		for i := range d {
			es[r][i] = d[i] - m[i]
			sums[i] += m[i]
		}
	}
	unit, cut := compress.Unit(codec(0))
	if !cut || name == "none" {
		return sums
	}
	units := (length + unit - 1) / unit
	for r := range n {
		lo, hi := Block(units, n, r)
		lo, hi = min(lo*unit, length), min(hi*unit, length)
		t := decode(codec(r), codec(r).Encode(nil, sums[lo:hi]), hi-lo)
		for i := range t {
			es[r][lo+i] += sums[lo+i] - t[i]
			sums[lo+i] = t[i]
		}
	}
	return sums
}

// Results and residuals are those of the formulas, in one process, bit for bit where the
// order of sums is ours to say; all ranks have the same bits.
func TestCompressorIsTheFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 5).Draw(t, "ranks")
		length := rapid.SampledFrom([]int{1, 2, 255, 256, 257, 700, 1281}).Draw(t, "length")
		name := rapid.SampledFrom([]string{"fp16", "bf16", "int8", "topk=0.1", "topk=3"}).Draw(t, "codec")
		seed := rapid.Uint64().Draw(t, "seed")
		cs := make([]*Compressor, ranks)
		es := make([][]float32, ranks)
		for r := range cs {
			cs[r], _ = NewCompressor(CompressorConfig{Len: length, Codec: name})
			es[r] = make([]float32, length)
		}
		synctestGroups(ranks, func(groups []*Group) {
			if err := errors.Join(together(groups, func(g *Group) error {
				_, err := cs[g.Rank()].Join(context.Background(), g)
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(seed, 1))
			for step := range 3 {
				vs := make([][]float32, ranks)
				for r := range vs {
					vs[r] = normal(rnd, length)
				}
				want := naive(name, vs, es)
				if err := errors.Join(together(groups, func(g *Group) error {
					return cs[g.Rank()].AllReduce(context.Background(), vs[g.Rank()], 0)
				})...); err != nil {
					t.Fatal(err)
				}
				for r := range vs {
					if !slices.Equal(vs[r], want) {
						t.Fatalf("%s, %d ranks, %d values, step %d: rank %d has another sum than the formula", name, ranks, length, step, r)
					}
					for i, e := range cs[r].Residual() {
						// The formula subtracts sums and adds residuals in another order.
						if d := math.Abs(float64(e - es[r][i])); d > 1e-5*math.Abs(float64(e))+1e-6 {
							t.Fatalf("%s, %d ranks, step %d: rank %d left out %v of element %d, want %v", name, ranks, step, r, e, i, es[r][i])
						}
					}
					copy(es[r], cs[r].Residual())
				}
			}
		})
	})
}

// synctestGroups makes groups for one test and closes them.
func synctestGroups(n int, f func(groups []*Group)) {
	groups := piped(n, Config{})
	defer closeAll(groups)
	f(groups)
}

// What came out and what is left is what went in, whatever the codec, in pieces, and
// when the ring changes and the pieces with it; and every rank has the same bits.
func TestCompressorLosesNothing(t *testing.T) {
	const length, steps = 3000, 6
	for _, name := range compressed {
		cs := compressors(t, 4, CompressorConfig{Len: length, Codec: name, Tensors: shapes(length), Seed: 3})
		in, out := make([]float64, length), make([]float64, length)
		rnd := rand.New(rand.NewPCG(1, 2))
		// Four ranks, then three without the first, then all again; in other pieces each time.
		for phase, who := range [][]int{{0, 1, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {2}} {
			members := make([]*Compressor, len(who))
			for i, w := range who {
				members[i] = cs[w]
			}
			groups := piped(len(who), Config{})
			join(t, groups, members)
			pieces := [][]int{{0, length}, {0, 500, 1700, length}, {0, 1024, length}, {0, length}}[phase]
			for range steps {
				vs := make([][]float32, len(who))
				for r := range vs {
					vs[r] = normal(rnd, length)
					for i, x := range vs[r] {
						in[i] += float64(x)
					}
				}
				if err := errors.Join(together(groups, func(g *Group) error {
					for p := len(pieces) - 1; p > 0; p-- {
						if err := members[g.Rank()].AllReduce(t.Context(), vs[g.Rank()][pieces[p-1]:pieces[p]], pieces[p-1]); err != nil {
							return err
						}
					}
					members[g.Rank()].Keep()
					return nil
				})...); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for r := range vs {
					for i, x := range vs[r] {
						if math.Float32bits(x) != math.Float32bits(vs[0][i]) {
							t.Fatalf("%s: element %d is %v on rank 0, %v on rank %d", name, i, vs[0][i], x, r)
						}
					}
				}
				for i, x := range vs[0] {
					out[i] += float64(x)
				}
			}
			closeAll(groups)
		}
		var worst, left float64
		for i := range in {
			var e float64
			for _, c := range cs {
				e += float64(c.Residual()[i])
			}
			left = max(left, math.Abs(e))
			worst = max(worst, math.Abs(in[i]-out[i]-e))
		}
		if worst > 1e-3 {
			t.Errorf("%s: results and residuals differ from what was given by up to %v", name, worst)
		}
		if name != "none" && left == 0 {
			t.Errorf("%s: nothing was left out", name)
		}
	}
}

// PowerSGD over a group is that of one process, but for the order of sums; a sum of low
// rank arrives whole.
func TestCompressorPowerSGD(t *testing.T) {
	const ranks, rows, cols = 3, 40, 30
	cs := compressors(t, ranks, CompressorConfig{Len: rows*cols + 5, Codec: "powersgd=2", Tensors: []compress.Tensor{{Offset: 5, Shape: []int{rows, cols}}}})
	groups := piped(ranks, Config{})
	defer closeAll(groups)
	join(t, groups, cs)
	rnd := rand.New(rand.NewPCG(5, 5))
	a, b, rest := normal(rnd, rows), normal(rnd, cols), normal(rnd, 5)
	vs := make([][]float32, ranks)
	for r := range vs { // r+1 times the same matrix of rank 1
		vs[r] = slices.Clone(rest)
		for _, x := range a {
			for _, y := range b {
				vs[r] = append(vs[r], float32(r+1)*x*y)
			}
		}
	}
	want := make([]float32, len(vs[0]))
	for _, v := range vs {
		kernel.Add(want, v)
	}
	if err := errors.Join(together(groups, func(g *Group) error { // in two pieces, one of them not low rank
		if err := cs[g.Rank()].AllReduce(t.Context(), vs[g.Rank()][5:], 5); err != nil {
			return err
		}
		return cs[g.Rank()].AllReduce(t.Context(), vs[g.Rank()][:5], 0)
	})...); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if d := math.Abs(float64(vs[2][i] - want[i])); d > 1e-4*(1+math.Abs(float64(want[i]))) {
			t.Fatalf("element %d is %v, want %v", i, vs[2][i], want[i])
		}
	}
}

// A member that fails when the others can have finished without it has left out what it would
// have in a round that succeeds.
func TestCompressorPowerSGDFailsLate(t *testing.T) {
	const length = 600
	residual := func(late bool) []float32 {
		cs := compressors(t, 2, CompressorConfig{Len: length, Codec: "powersgd=1", Tensors: shapes(length)})
		groups := piped(2, Config{})
		defer closeAll(groups)
		join(t, groups, cs)
		errs := together(groups, func(g *Group) error {
			v := normal(rand.New(rand.NewPCG(3, uint64(g.Rank()))), length)
			if !late || g.Rank() == 0 {
				return cs[g.Rank()].AllReduce(t.Context(), v, 0)
			}
			p, err := cs[1].part(extent{0, length})
			if err == nil {
				err = g.AllReduce(t.Context(), Sum, p.averager.Project(v))
			}
			g.Close()
			return err
		})
		if (errs[0] != nil) != late || errs[1] != nil {
			t.Fatal(errs)
		}
		cs[0].Keep()
		return cs[0].Residual()
	}
	if !slices.Equal(residual(true), residual(false)) {
		t.Error("the residual is another one when the others do not answer in the end")
	}
}

// Ranks do not round alike at random: else their errors would add up.
func TestCompressorRandomNumbers(t *testing.T) {
	const length = 3 * compress.Block
	cs := compressors(t, 3, CompressorConfig{Len: length, Codec: "int8-stochastic"})
	groups := piped(3, Config{})
	defer closeAll(groups)
	join(t, groups, cs)
	if err := errors.Join(together(groups, func(g *Group) error {
		return cs[g.Rank()].AllReduce(t.Context(), normal(rand.New(rand.NewPCG(1, 1)), length), 0)
	})...); err != nil {
		t.Fatal(err)
	}
	// The last block is rank 2's, so these are what the first encodings left out.
	if a, b := cs[0].Residual()[2*compress.Block:], cs[1].Residual()[2*compress.Block:]; slices.Equal(a, b) {
		t.Error("two ranks have rounded alike")
	}
}

// A round that is undone leaves no trace, and one that is kept does.
func TestCompressorUndo(t *testing.T) {
	const length = 600
	for _, name := range compressed[1:] {
		once, twice := compressors(t, 2, CompressorConfig{Len: length, Codec: name, Tensors: shapes(length)}), compressors(t, 2, CompressorConfig{Len: length, Codec: name, Tensors: shapes(length)})
		rnd := rand.New(rand.NewPCG(7, 7))
		first, second := [][]float32{normal(rnd, length), normal(rnd, length)}, [][]float32{normal(rnd, length), normal(rnd, length)}
		do := func(cs []*Compressor, vs [][]float32, pieces ...int) [][]float32 {
			groups := piped(2, Config{})
			defer closeAll(groups)
			join(t, groups, cs)
			out := [][]float32{slices.Clone(vs[0]), slices.Clone(vs[1])}
			if err := errors.Join(together(groups, func(g *Group) error {
				for i := 1; i < len(pieces); i++ {
					if err := cs[g.Rank()].AllReduce(t.Context(), out[g.Rank()][pieces[i-1]:pieces[i]], pieces[i-1]); err != nil {
						return err
					}
				}
				return nil
			})...); err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, cs := range [][]*Compressor{once, twice} {
			do(cs, first, 0, length)
			cs[0].Keep()
			cs[1].Keep()
		}
		residual := slices.Clone(once[1].Residual())
		if once[1].Undo(); !slices.Equal(once[1].Residual(), residual) {
			t.Errorf("%s: Undo undoes what was kept", name)
		}
		do(twice, second, 0, 256, length)
		if slices.Equal(twice[1].Residual(), residual) {
			t.Errorf("%s: the round that is to be undone changed nothing", name)
		}
		twice[0].Undo()
		twice[1].Undo()
		for r := range twice {
			if !slices.Equal(twice[r].Residual(), once[r].Residual()) {
				t.Errorf("%s: rank %d: what was left out is not what it was", name, r)
			}
		}
		if name == "int8-stochastic" {
			continue // its random numbers go on
		}
		a, b := do(once, second, 0, length), do(twice, second, 0, length)
		if !slices.Equal(a[0], b[0]) {
			t.Errorf("%s: a round that was undone changes the next one", name)
		}
	}
}

// What was left out before a change to none goes out at once, with none.
func TestCompressorFlushes(t *testing.T) {
	cs := compressors(t, 2, CompressorConfig{Len: 100, Codec: "topk=3"})
	groups := piped(2, Config{})
	defer closeAll(groups)
	join(t, groups, cs)
	give := func() []float32 {
		vs := [][]float32{slices.Repeat([]float32{1}, 100), slices.Repeat([]float32{2}, 100)}
		if err := errors.Join(together(groups, func(g *Group) error { return cs[g.Rank()].AllReduce(t.Context(), vs[g.Rank()], 0) })...); err != nil {
			t.Fatal(err)
		}
		return vs[0]
	}
	sum := give()
	for _, c := range cs {
		if err := c.use("none"); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range give() {
		if sum[i] += x; sum[i] != 6 {
			t.Fatalf("element %d of both rounds is %v, want 6", i, sum[i])
		}
	}
	if sum = give(); sum[50] != 3 {
		t.Errorf("what was left out went out twice: %v, want 3", sum[50])
	}
}

// Ranks that mean different things all say so, with both values.
func TestCompressorMismatch(t *testing.T) {
	base := CompressorConfig{Len: 1000, Codec: "int8", Tensors: shapes(1000)}
	for says, odd := range map[string]func(*CompressorConfig){
		`rank 0 has codec "int8" for 1000 values`: func(c *CompressorConfig) { c.Codec = "fp16" },
		`rank 2 has codec "topk=0.01" for 1000`:   func(c *CompressorConfig) { c.Codec = "topk=0.01" },
		`rank 2 has codec "int8" for 999 values`:  func(c *CompressorConfig) { c.Len = 999 },
		`all ranks need the same`:                 func(c *CompressorConfig) { c.Seed++ },
		"all ranks need the":                      func(c *CompressorConfig) { c.Tensors = c.Tensors[1:] },
	} {
		other := base
		odd(&other)
		cs := append(compressors(t, 2, base), compressors(t, 1, other)...)
		groups := piped(3, Config{})
		for r, err := range together(groups, func(g *Group) error {
			_, err := cs[g.Rank()].Join(t.Context(), g)
			return err
		}) {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("rank %d: %v; want %q", r, err, says)
			}
			if err := cs[r].AllReduce(t.Context(), make([]float32, 3), 0); err == nil {
				t.Errorf("rank %d goes on", r)
			}
		}
		// The group itself is still good.
		if err := errors.Join(together(groups, func(g *Group) error { return g.Barrier(t.Context()) })...); err != nil {
			t.Error(err)
		}
		closeAll(groups)
	}
}

// broken is a codec with messages that no decoder accepts: their last third is wrong, and they are longer than they
// should be.
type broken struct {
	compress.Codec
	more int
}

func (b broken) Encode(dst []byte, src []float32) []byte {
	at := len(dst)
	dst = b.Codec.Encode(dst, src)
	for i := at + (len(dst)-at)*2/3 + 1; i < len(dst); i++ {
		dst[i] = 0xff
	}
	return append(dst, make([]byte, b.more)...)
}

func (b broken) DecodeAdd([]float32, float32, []byte) error { return nil }

// A message that no rank can decode fails all ranks, and their errors name the sender.
func TestCompressorBadMessage(t *testing.T) {
	for _, b := range []struct {
		name string
		more int
	}{{"int8", 0}, {"topk=0.1", 0}, {"topk=0.1", 10_000}} {
		name := b.name
		synctest.Test(t, func(t *testing.T) {
			const length = 3000
			cs := compressors(t, 3, CompressorConfig{Len: length, Codec: name})
			groups := piped(3, Config{Timeout: 10 * time.Second})
			defer closeAll(groups)
			join(t, groups, cs)
			p, err := cs[1].part(extent{0, length})
			if err != nil {
				t.Fatal(err)
			}
			p.feedback.Use(broken{p.feedback.Codec(), b.more})
			cs[1].parts[extent{0, length}] = p
			begun := time.Now()
			errs := together(groups, func(g *Group) error { return cs[g.Rank()].AllReduce(t.Context(), make([]float32, length), 0) })
			for r, err := range errs {
				var e *Error
				if !errors.As(err, &e) || e.Rank != 1 || b.more > 0 && !strings.Contains(err.Error(), "its message has 1") {
					t.Errorf("%s: rank %d: %v; want an error that names rank 1", name, r, err)
				}
			}
			if d := time.Since(begun); d > 9*time.Second {
				t.Errorf("%s: it took %v", name, d)
			}
			if err := groups[0].Barrier(t.Context()); err == nil {
				t.Errorf("%s: the group goes on", name)
			}
		})
	}
}

// Bytes on the wire are those of the codec: 2(n-1)/n of an encoded vector for each rank, or
// n-1 messages.
func TestCompressorTraffic(t *testing.T) {
	const length = 40_000
	for _, ranks := range []int{2, 4} {
		plain := 4 * length * 2 * float64(ranks-1) / float64(ranks)
		for _, c := range []struct {
			name        string
			least, most float64 // of a float32 ring's bytes
		}{
			{"none", 1, 1}, {"fp16", 0.5, 0.5}, {"bf16", 0.5, 0.5}, {"int8", 0.25, 0.26}, {"int8-stochastic", 0.25, 0.26},
			{"topk=0.01", 0.012 * float64(ranks) / 2, 0.014 * float64(ranks) / 2}, {"powersgd=2", 0.02, 0.2},
		} {
			cs := compressors(t, ranks, CompressorConfig{Len: length, Codec: c.name,
				Tensors: []compress.Tensor{{Offset: 0, Shape: []int{200, 200}}}})
			groups := piped(ranks, Config{Algorithm: AlgorithmRing})
			join(t, groups, cs)
			before := groups[0].Traffic()
			vs := make([][]float32, ranks)
			for r := range vs {
				vs[r] = normal(rand.New(rand.NewPCG(1, uint64(r))), length)
			}
			if err := errors.Join(together(groups, func(g *Group) error { return cs[g.Rank()].AllReduce(t.Context(), vs[g.Rank()], 0) })...); err != nil {
				t.Fatal(err)
			}
			after := groups[0].Traffic()
			for _, n := range []int64{after.Sent - before.Sent, after.Received - before.Received} {
				if share := float64(n) / plain; share < 0.99*c.least || share > 1.01*c.most {
					t.Errorf("%s, %d ranks: %d bytes, %.4f of float32; want %v to %v", c.name, ranks, n, share, c.least, c.most)
				}
			}
			closeAll(groups)
		}
	}
}

// A NaN arrives on all ranks, and is gone after that.
func TestCompressorOutlivesNaN(t *testing.T) {
	const length = 600
	for _, name := range compressed {
		cs := compressors(t, 2, CompressorConfig{Len: length, Codec: name, Tensors: shapes(length)})
		groups := piped(2, Config{})
		join(t, groups, cs)
		for step := range 3 {
			vs := [][]float32{normal(rand.New(rand.NewPCG(1, 1)), length), normal(rand.New(rand.NewPCG(1, 2)), length)}
			if step == 1 {
				vs[1][5] = float32(math.NaN())
			}
			if err := errors.Join(together(groups, func(g *Group) error { return cs[g.Rank()].AllReduce(t.Context(), vs[g.Rank()], 0) })...); err != nil {
				t.Fatal(err)
			}
			for r := range vs {
				if kernel.Finite(vs[r]) != (step != 1) {
					t.Errorf("%s, step %d: finite on rank %d: %v", name, step, r, step == 1)
				}
			}
		}
		closeAll(groups)
	}
}

func TestCompressorArguments(t *testing.T) {
	for says, cfg := range map[string]CompressorConfig{
		"0 elements":                 {Codec: "int8"},
		"zip":                        {Len: 5, Codec: "zip"},
		"from 1 to 64":               {Len: 5, Codec: "powersgd=0"},
		"needs the shapes":           {Len: 5, Codec: "powersgd=2"},
		"matrix 1":                   {Len: 9, Codec: "powersgd=1", Tensors: []compress.Tensor{{Offset: 0, Shape: []int{3, 3}}, {Offset: 0, Shape: []int{3, 3}}}},
		"2147483648 elements; use 1": {Len: compress.MaxLen + 1, Codec: "int8"},
	} {
		if _, err := NewCompressor(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v; want %q", cfg, err, says)
		}
	}
	c := compressors(t, 1, CompressorConfig{Len: 10, Codec: "int8"})[0]
	if err := c.AllReduce(t.Context(), make([]float32, 10), 0); err == nil || !strings.Contains(err.Error(), "call Join first") {
		t.Error(err)
	}
	groups := piped(1, Config{})
	defer closeAll(groups)
	join(t, groups, []*Compressor{c})
	for _, from := range []int{-1, 6} {
		if err := c.AllReduce(t.Context(), make([]float32, 5), from); err == nil || !strings.Contains(err.Error(), fmt.Sprint(from)) {
			t.Errorf("from %d: %v", from, err)
		}
	}
	if err := c.AllReduce(t.Context(), nil, 10); err != nil {
		t.Error(err)
	}
}

// auto: a slow link takes int8, a fast one none; a choice stays unless the speed is well
// beyond the one that would change it.
func TestCompressorChoice(t *testing.T) {
	quick := []compress.Candidate{{Codec: compress.FP16, Encode: 6e9, Decode: 20e9}, {Codec: &compress.Int8{}, Encode: 6e9, Decode: 20e9}}
	c := &choice{candidates: quick}
	const n = 1 << 20
	for _, s := range []struct {
		bps  float64
		pick int
	}{{25e6, 1}, {10e9, -1}} {
		for _, ranks := range []int{2, 4, 16} {
			if pick, why := c.at(s.bps, ranks, n); pick != s.pick {
				t.Errorf("%g bytes/s, %d ranks: %d, want %d: %s", s.bps, ranks, pick, s.pick, why)
			}
		}
	}
	// Formula (7) of docs/compression.md with c = 2(n-1)/n, d = 2 and 1+1/n encodings: fp16
	// alone pays below 1.2·c / (4·(1+1/n)/E + 8/D).
	for _, s := range []struct {
		encode, decode, limit float64
		ranks                 int
	}{{1e9, 0, 0.2e9, 2}, {1e9, 0, 0.36e9, 4}, {0, 1e9, 0.15e9, 2}} {
		one := &choice{candidates: []compress.Candidate{{Codec: compress.FP16, Encode: s.encode, Decode: s.decode}}}
		below, _ := one.at(0.99*s.limit, s.ranks, n)
		above, _ := one.at(1.01*s.limit, s.ranks, n)
		if below != 0 || above != -1 {
			t.Errorf("%+v: %d below the limit, %d above", s, below, above)
		}
	}
	// Where the choice changes, by bisection.
	lo, hi := 25e6, 10e9
	for hi/lo > 1.001 {
		if mid := math.Sqrt(lo * hi); func() bool { p, _ := c.at(mid, 4, n); return p == 1 }() {
			lo = mid
		} else {
			hi = mid
		}
	}
	beyond, _ := c.at(hi, 4, n)
	c.decided, c.current = true, 1
	for f, want := range map[float64]int{0.5: 1, 1.1: 1, 1.24: 1} {
		if pick, _ := c.at(lo*f, 4, n); pick != want {
			t.Errorf("int8 in use, %v of the limit: %d, want %d", f, pick, want)
		}
	}
	if pick, _ := c.at(lo*1.3, 4, n); pick == 1 {
		t.Error("int8 stays far beyond the limit")
	}
	c.current = beyond
	if pick, _ := c.at(lo*0.9, 4, n); pick != beyond {
		t.Errorf("candidate %d in use, a little below the limit: %d", beyond, pick)
	}
	if pick, _ := c.at(lo*0.7, 4, n); pick != 1 {
		t.Errorf("candidate %d stays far below the limit", pick)
	}
}

// slowLink passes a fixed number of bytes each millisecond.
type slowLink struct {
	net.Conn
	perMillisecond int
}

func (c slowLink) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), c.perMillisecond)])
	time.Sleep(time.Duration(float64(n) / float64(c.perMillisecond) * float64(time.Millisecond)))
	return n, err
}

// slowPair is two ranks with such links.
func slowPair(perMillisecond int) (groups []*Group) {
	x, y := net.Pipe()
	a, b := net.Pipe()
	for r, conns := range [][2]net.Conn{{slowLink{x, perMillisecond}, a}, {slowLink{y, perMillisecond}, b}} {
		w := newChannelWaiter()
		peers, control := make([]peer, 2), make([]*controlLink, 2)
		peers[1-r].link = newStream(conns[0], w.wake)
		control[1-r] = &controlLink{link: newStream(conns[1], w.wake)}
		groups = append(groups, newGroup(Config{Rank: r, Size: 2}, peers, control, w))
	}
	return groups
}

func TestBandwidth(t *testing.T) {
	for _, c := range []struct {
		size           int64
		ranks          int
		seconds, empty float64
		want           float64
	}{{1000, 2, 1, 0, 1000}, {1000, 4, 1, 0, 1500}, {1000, 2, 1, 0.5, 2000}, {1000, 2, 1, 0.99, 10_000}} {
		if got := bandwidth(c.size, c.ranks, c.seconds, c.empty); math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The speed of a link is measured, on all ranks alike, and all choose the same; rank 0
// says why.
func TestCompressorMeasures(t *testing.T) {
	for _, c := range []struct {
		perMillisecond int
		codec          string
	}{{12_500, "int8"}, {100_000_000, "none"}} {
		synctest.Test(t, func(t *testing.T) {
			groups := slowPair(c.perMillisecond)
			defer closeAll(groups)
			speeds := make([]float64, 2)
			if err := errors.Join(together(groups, func(g *Group) (err error) {
				speeds[g.Rank()], err = g.speed(t.Context(), 1<<20)
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			if want := 1e3 * float64(c.perMillisecond); speeds[0] != speeds[1] || c.perMillisecond < 1e6 && math.Abs(speeds[0]/want-1) > 0.2 {
				t.Errorf("speeds %g, want %g", speeds, want)
			}
			// 64, 128 and three times 256 KiB: the first one that takes 20 ms.
			if sent := groups[0].Traffic().Sent; c.perMillisecond == 12_500 && (sent < 960<<10 || sent > 961<<10) {
				t.Errorf("the measurement sent %d bytes", sent)
			}
			cs := compressors(t, 2, CompressorConfig{Len: 1 << 18, Codec: compress.Auto})
			for _, c := range cs { // the clock does not advance here
				c.tuner.candidates = compress.Typical()
			}
			for i := range cs[1].tuner.candidates { // what it finds itself does not count
				cs[1].tuner.candidates[i].Encode = float64(c.perMillisecond) * 1e-3
			}
			made := make([]Decision, 2)
			if err := errors.Join(together(groups, func(g *Group) (err error) {
				made[g.Rank()], err = cs[g.Rank()].Join(t.Context(), g)
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			if made[0].Codec != c.codec || made[1].Codec != c.codec || !strings.Contains(made[0].Why, "MB/s") || cs[1].Codec() != c.codec {
				t.Errorf("%d bytes each millisecond: %+v, want %s", c.perMillisecond, made, c.codec)
			}
			// And it stays, when measured again.
			if err := errors.Join(together(groups, func(g *Group) error {
				d, err := cs[g.Rank()].Choose(t.Context())
				if d.Codec != c.codec {
					t.Errorf("rank %d: then %+v", g.Rank(), d)
				}
				return err
			})...); err != nil {
				t.Fatal(err)
			}
			// In another ring, in which they have changed places.
			again := slowPair(c.perMillisecond)
			defer closeAll(again)
			for _, gs := range [][]*Group{groups, again} {
				if err := errors.Join(together(gs, func(g *Group) error {
					c := cs[g.Rank()]
					if gs[0] == again[0] {
						c = cs[1-g.Rank()]
						if _, err := c.Join(t.Context(), g); err != nil {
							return err
						}
					}
					v := slices.Repeat([]float32{1}, 1<<18)
					if err := c.AllReduce(t.Context(), v, 0); err != nil {
						return err
					}
					if v[0] < 1.9 || v[0] > 2.1 || v[1<<18-1] < 1.9 || v[1<<18-1] > 2.1 {
						t.Errorf("rank %d: %v … %v, want 2", g.Rank(), v[0], v[1<<18-1])
					}
					return nil
				})...); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
