package poison

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Norms agrees with a naive median of the last 64.
func TestNorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Norms
		var kept []float64
		value := rapid.OneOf(rapid.Float64Range(0, 4), rapid.Float64Range(1e5, 1e8), rapid.Just(0.0), rapid.Just(math.NaN()), rapid.Just(math.Inf(1)))
		for range rapid.IntRange(1, 200).Draw(t, "norms") {
			v := value.Draw(t, "squared")
			cause, factor := n.Judge(v)
			last := kept[max(0, len(kept)-64):]
			want, ratio := None, 0.0
			switch {
			case math.IsNaN(v) || math.IsInf(v, 0):
				want = NotFinite
			case v == 0:
			default:
				if len(last) >= 16 {
					sorted := slices.Sorted(slices.Values(last))
					median := sorted[len(sorted)/2]
					ratio = math.Sqrt(v / median)
					if ratio > 1000 {
						want, v = Exploding, median*1e6
					}
				}
				kept = append(kept, v)
			}
			if cause != want || want != NotFinite && factor != ratio {
				t.Fatalf("%v after %d: %v, %v times the median; want %v, %v", v, len(kept), cause, factor, want, ratio)
			}
		}
	})
}

// What stays is accepted in the end: the median follows, and one bad gradient does not move it.
func TestNormsFollow(t *testing.T) {
	var n Norms
	for range 100 {
		n.Judge(1)
	}
	if cause, factor := n.Judge(1e12); cause != Exploding || factor != 1e6 {
		t.Fatalf("%v, %v; want exploding, a million times", cause, factor)
	}
	if cause, factor := n.Judge(1); cause != None || factor != 1 {
		t.Fatalf("the one after: %v, %v times the median", cause, factor)
	}
	refused := 0
	for range 200 {
		if cause, _ := n.Judge(1e12); cause == Exploding {
			refused++
		}
	}
	// 32 of 64, with the first one, move the median to a thousand times.
	if refused != 31 {
		t.Errorf("%d of 200 refused, want 31: the lengths are these now", refused)
	}
	if cause, _ := n.Judge(1e-12); cause != None {
		t.Errorf("a short gradient: %v", cause)
	}
}

// A norm that is too long counts as just too long: one that is longer still is refused even when the median has gone
// up.
func TestNormsClamp(t *testing.T) {
	var n Norms
	for range 64 {
		n.Judge(1)
	}
	for i := range 32 {
		if cause, _ := n.Judge(1e12); cause != Exploding {
			t.Fatalf("the %dth of a million times the median: %v", i+1, cause)
		}
	}
	if cause, factor := n.Judge(1e16); cause != Exploding || factor != 1e5 {
		t.Errorf("a hundred times longer than those: %v, %v times the median", cause, factor)
	}
}

// After a turn a worker's directions are judged again from the start: earlier ones do not count.
func TestSignsForget(t *testing.T) {
	var s Signs
	turns := func(cos float64) (after int) {
		for changed := false; !changed; after++ {
			if after > 2000 {
				t.Fatalf("no turn with cosines of about %v", cos)
			}
			changed, _ = s.Observe(cos+0.01*float64(after%3-1), 0)
		}
		return after
	}
	for range 500 {
		s.Observe(0.5, 0)
	}
	if turns(-0.5); !s.Flipped() {
		t.Error("not flipped")
	}
	for i, cos := range []float64{0.5, -0.5, 0.5} {
		if n := turns(cos); n != 64 || s.Flipped() != (i%2 == 1) {
			t.Errorf("turn %d: after %d updates, want 64; flipped: %v", i, n, s.Flipped())
		}
	}
}

// Cosine agrees with the sum of the others, added up without own.
func TestCosineOfOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "elements")
		draw := func(name string) []float32 {
			return rapid.SliceOfN(rapid.Float32Range(-8, 8), n, n).Draw(t, name)
		}
		own, rest := draw("own"), draw("rest")
		sum := make([]float32, n)
		var dot, own2, rest2, sum2 float64
		for i := range own {
			sum[i] = own[i] + rest[i]
			dot += float64(own[i]) * float64(rest[i])
			own2 += float64(own[i]) * float64(own[i])
			rest2 += float64(rest[i]) * float64(rest[i])
			sum2 += float64(sum[i]) * float64(sum[i])
		}
		if own2 < 1 || rest2 < 1 {
			t.Skip("nearly nothing")
		}
		want := dot / math.Sqrt(own2*rest2)
		if got := Cosine(own, sum, sum2, true); math.Abs(got-want) > 1e-3 {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// The sample of a vector is the same in one piece as in several, its coordinates are different ones, and all but a
// short rest can be in it.
func TestSampler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.IntRange(1, 700), rapid.IntRange(500, 100_000)).Draw(t, "elements")
		s := NewSampler(n, rapid.Int64Range(0, 1<<40).Draw(t, "round"))
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(i + 1)
		}
		whole, pieces := make([]float32, s.Len()), make([]float32, s.Len())
		s.Copy(whole, v, 0)
		for at := 0; at < n; {
			k := rapid.IntRange(1, n-at).Draw(t, "piece")
			s.Copy(pieces, v[at:at+k], at)
			at += k
		}
		if !slices.Equal(whole, pieces) {
			t.Fatalf("in pieces the sample differs")
		}
		if sorted := slices.Compact(slices.Sorted(slices.Values(whole))); len(sorted) != len(whole) || whole[0] == 0 {
			t.Fatalf("%d coordinates, %d different ones", len(whole), len(sorted))
		}
		if n <= 512 && s.Len() != n || n > 512 && (s.Len() < 512 || s.Len() > 4096) {
			t.Fatalf("%d of %d elements", s.Len(), n)
		}
	})
}

// fleet makes gradients: g + noise; flips turns some of them around.
type fleet struct {
	rnd   *rand.Rand
	mean  []float32
	noise float64 // of a coordinate, in norms of its mean
}

func newFleet(seed uint64, n int, noise float64) *fleet {
	c := &fleet{rand.New(rand.NewPCG(seed, 7)), make([]float32, n), noise}
	for i := range c.mean {
		c.mean[i] = float32(c.rnd.NormFloat64())
	}
	return c
}

func (c *fleet) gradients(workers int, flips ...int) []Gradient {
	gs := make([]Gradient, workers)
	for w := range gs {
		v := make([]float32, len(c.mean))
		for i, m := range c.mean {
			v[i] = m + float32(c.noise*c.rnd.NormFloat64())
			if slices.Contains(flips, w) {
				v[i] = -v[i]
			}
		}
		gs[w] = Gradient{Worker: w, Vec: v}
	}
	return gs
}

// updates until the first turn, and what it was; -1: none.
func (c *fleet) run(a *Angles, updates, workers int, flips ...int) (int, Turn) {
	for i := range updates {
		gs := c.gradients(workers, flips...)
		for w := range gs {
			gs[w].Void = a.flipped(w) // as the coordinator has it
		}
		if ts := a.Observe(gs); len(ts) > 0 {
			return i, ts[0]
		}
	}
	return -1, Turn{}
}

// A worker that flips the sign is found, also where noise is five times the gradient, and taken back when it is well
// again. No other worker is.
func TestFlipped(t *testing.T) {
	for _, noise := range []float64{0.1, 1, 5} {
		for _, workers := range []int{3, 4, 8} {
			for seed := range uint64(2) {
				c := newFleet(seed, 2000, noise)
				var a Angles
				if i, turn := c.run(&a, 100, workers); i >= 0 {
					t.Fatalf("noise %v, %d workers: a false alarm after %d updates: %+v", noise, workers, i, turn)
				}
				after, turn := c.run(&a, 600, workers, 1)
				if after < 0 || turn.Worker != 1 || !turn.Flipped || turn.Cosine >= 0 {
					t.Fatalf("noise %v, %d workers: worker 1 is flipped; found after %d updates: %+v", noise, workers, after, turn)
				}
				if i, turn := c.run(&a, 200, workers, 1); i >= 0 {
					t.Fatalf("noise %v, %d workers: it stays flipped, but after %d updates: %+v", noise, workers, i, turn)
				}
				after, turn = c.run(&a, 600, workers)
				if after < 0 || turn.Worker != 1 || turn.Flipped || turn.Cosine <= 0 {
					t.Fatalf("noise %v, %d workers: worker 1 is well again; found after %d updates: %+v", noise, workers, after, turn)
				}
			}
		}
	}
}

// With noise alone no worker is reported as flipped; of two workers the flipped one cannot be identified.
func TestNobodyIsFlipped(t *testing.T) {
	for seed := range uint64(2) {
		c := newFleet(seed, 600, 1)
		clear(c.mean)
		var a Angles
		if i, turn := c.run(&a, 3000, 4); i >= 0 {
			t.Errorf("noise: after %d updates %+v", i, turn)
		}
		c = newFleet(seed, 600, 1)
		if i, turn := c.run(new(Angles), 500, 2, 1); i >= 0 {
			t.Errorf("two workers: after %d updates %+v", i, turn)
		}
	}
}

// epochs makes gradients at a stationary point: those of all samples add up to zero, and batches of one epoch have none
// in common.
func epochs(rnd *rand.Rand, samples, elements int, batches []int, flips ...int) func() []Gradient {
	all := make([][]float32, samples)
	for i := range all {
		all[i] = make([]float32, elements)
		for k := range all[i] {
			all[i][k] = float32(rnd.NormFloat64())
		}
	}
	for k := range elements {
		sum := float32(0)
		for i := range all {
			sum += all[i][k]
		}
		for i := range all {
			all[i][k] -= sum / float32(samples)
		}
	}
	order, at := rnd.Perm(samples), 0
	return func() []Gradient {
		need := 0
		for _, b := range batches {
			need += b
		}
		if at+need > samples {
			order, at = rnd.Perm(samples), 0
		}
		gs := make([]Gradient, len(batches))
		for w, b := range batches {
			v := make([]float32, elements)
			for _, i := range order[at : at+b] {
				for k := range v {
					v[k] += all[i][k] / float32(b)
				}
			}
			at += b
			if slices.Contains(flips, w) {
				for k := range v {
					v[k] = -v[k]
				}
			}
			gs[w] = Gradient{Worker: w, Vec: v}
		}
		return gs
	}
}

// Where learning has ended, batches without a common sample point against each other. No worker is reported for that,
// with batches of one size or not. That is as negative as Floor says, and alone exceeds the required certainty.
func TestWithoutReplacement(t *testing.T) {
	for _, batches := range [][]int{{16, 16, 16, 16}, {16, 16, 16}, {48, 16, 16, 6}} {
		const samples = 256
		next := epochs(rand.New(rand.NewPCG(3, 7)), samples, 80, batches)
		total := 0
		for _, b := range batches {
			total += b
		}
		var a Angles
		bare, told := make([]Signs, len(batches)), make([]Signs, len(batches))
		sums, fell := make([]float64, len(batches)), false
		const rounds = 1200
		for i := range rounds {
			gs := next()
			if ts := a.Observe(gs); len(ts) > 0 {
				t.Fatalf("batches %v: after %d updates %+v", batches, i, ts)
			}
			for w, g := range gs {
				rest := make([]float32, len(g.Vec))
				for o, h := range gs {
					for k := range rest {
						if o != w {
							rest[k] += h.Vec[k] * float32(batches[o])
						}
					}
				}
				cos := Cosine(g.Vec, rest, sumSq(rest), false)
				sums[w] += cos / rounds
				changed, _ := bare[w].Observe(cos, 0)
				fell = fell || changed
				if changed, mean := told[w].Observe(cos, Floor(batches[w], total-batches[w], samples)); changed {
					t.Fatalf("batches %v: worker %d is flipped after %d updates, mean %v", batches, w, i, mean)
				}
			}
		}
		for w, mean := range sums {
			if want := -Floor(batches[w], total-batches[w], samples); math.Abs(mean-want) > 0.1*-want+0.005 {
				t.Errorf("batches %v: mean cosine of worker %d is %.4f, want %.4f", batches, w, mean, want)
			}
		}
		if !fell {
			t.Errorf("batches %v: nobody would be flipped without a floor either: this test shows nothing", batches)
		}
	}
}

func sumSq(v []float32) (sum float64) {
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}

func TestFloor(t *testing.T) {
	for _, c := range []struct {
		own, others, all int
		want             float64
	}{
		{64, 192, 4096, 0.027939}, {64, 192, 0, 0}, {0, 3, 10, 0}, {3, 0, 10, 0}, {5, 5, 10, 1}, {5, 50, 10, 1}, {1, 1, 3, 0.5},
	} {
		if got := Floor(c.own, c.others, c.all); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("Floor(%d, %d, %d) = %v, want %v", c.own, c.others, c.all, got, c.want)
		}
	}
}

// Two of five are found, and no other worker.
func TestTwoFlipped(t *testing.T) {
	c := newFleet(1, 2000, 1)
	var a Angles
	found := map[int]bool{}
	for range 600 {
		gs := c.gradients(5, 1, 3)
		for w := range gs {
			gs[w].Void = a.flipped(w)
		}
		for _, turn := range a.Observe(gs) {
			found[turn.Worker] = turn.Flipped
		}
	}
	if len(found) != 2 || !found[1] || !found[3] {
		t.Errorf("workers 1 and 3 are flipped; found %v", found)
	}
}

// A gradient that was taken back is neither judged nor used to judge others.
func TestVoid(t *testing.T) {
	c := newFleet(1, 600, 0.5)
	var a Angles
	for range 300 {
		gs := c.gradients(4, 2)
		gs[2].Void = true
		gs[2].Vec[3] = float32(math.NaN())
		if ts := a.Observe(gs); len(ts) > 0 {
			t.Fatalf("%+v", ts)
		}
	}
	if n := a.signs[0].n; n != 300 {
		t.Errorf("the others were compared %d times of 300: what was taken back is among them", n)
	}
}

// Cosine leaves own out of the sum.
func TestCosine(t *testing.T) {
	own, sum := []float32{1, 0}, []float32{1, 2} // the other one is (0, 2)
	if got := Cosine(own, sum, 5, true); got != 0 {
		t.Errorf("of (1,0) with the rest of (1,2): %v, want 0", got)
	}
	if got, want := Cosine(own, sum, 5, false), 1/math.Sqrt(5); math.Abs(got-want) > 1e-12 {
		t.Errorf("of (1,0) with (1,2): %v, want %v", got, want)
	}
	if got := Cosine([]float32{0, 0}, sum, 5, false); !math.IsNaN(got) {
		t.Errorf("of nothing: %v, want NaN", got)
	}
}

func TestCauses(t *testing.T) {
	for _, c := range []Cause{NotFinite, Exploding, Flipped} {
		if got, ok := Parse(c.String()); !ok || got != c {
			t.Errorf("%v comes back as %v, %v", c, got, ok)
		}
	}
	if _, ok := Parse(""); ok {
		t.Error("no cause is a cause")
	}
	if _, ok := Parse("bad"); ok {
		t.Error("bad is a cause")
	}
}

// Nothing is allocated once it has begun.
func TestAllocations(t *testing.T) {
	c := newFleet(1, 5000, 1)
	gs := c.gradients(4)
	var a Angles
	var n Norms
	a.Observe(gs)
	if got := testing.AllocsPerRun(100, func() { a.Observe(gs); n.Judge(3) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkAngles(b *testing.B) {
	for _, n := range []int{8_000, 60_000, 4_000_000} {
		b.Run(map[int]string{8_000: "8k", 60_000: "60k", 4_000_000: "4M"}[n], func(b *testing.B) {
			gs := newFleet(1, n, 1).gradients(4)
			var a Angles
			b.ReportAllocs()
			for b.Loop() {
				a.Observe(gs)
			}
		})
	}
}

func BenchmarkNorms(b *testing.B) {
	var n Norms
	i := 0.0
	for b.Loop() {
		i++
		n.Judge(1 + math.Mod(i*0.618, 1))
	}
}
