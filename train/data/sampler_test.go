package data

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPermutationIsBijection(t *testing.T) {
	for n := 1; n <= 300; n++ {
		for epoch := int64(0); epoch < 3; epoch++ {
			p := NewPermutation(7, epoch, n)
			seen := make([]bool, n)
			for q := range n {
				i := p.At(q)
				if i < 0 || i >= n || seen[i] {
					t.Fatalf("n=%d epoch=%d: position %d gives %d, out of range or a second time", n, epoch, q, i)
				}
				seen[i] = true
			}
		}
	}
}

// The order is part of the contract between the processes of a job, which may
// be of different builds: it must not change unnoticed.
func TestPermutationGolden(t *testing.T) {
	p := NewPermutation(1, 0, 12000)
	var got []int
	for q := range 6 {
		got = append(got, p.At(q))
	}
	want := []int{11159, 6703, 10917, 157, 5864, 6524}
	if !slices.Equal(got, want) {
		t.Errorf("first samples of seed 1, epoch 0, n 12000: %v, want %v", got, want)
	}
}

func TestPermutationOutOfRangePanics(t *testing.T) {
	for _, q := range []int{-1, 10} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("At(%d) of 10 did not panic", q)
				}
			}()
			p := NewPermutation(1, 0, 10)
			p.At(q)
		}()
	}
}

// chi2Limit is a bound that a chi-squared variable of k degrees of freedom
// exceeds with a probability of about 1e-6 (normal approximation of Wilson and
// Hilferty, 1931). Seeds are fixed, so the tests either always pass or never.
func chi2Limit(k int) float64 {
	v := 2 / (9 * float64(k))
	c := 1 - v + 4.75*math.Sqrt(v)
	return float64(k) * c * c * c
}

func chi2(counts []int, trials int) float64 {
	want := float64(trials) / float64(len(counts))
	sum := 0.0
	for _, c := range counts {
		sum += (float64(c) - want) * (float64(c) - want) / want
	}
	return sum
}

func TestPermutationsAreUniform(t *testing.T) {
	t.Run("all orders of four", func(t *testing.T) {
		const trials = 24 * 2000
		counts := map[[4]int]int{}
		for e := range int64(trials) {
			p := NewPermutation(3, e, 4)
			counts[[4]int{p.At(0), p.At(1), p.At(2), p.At(3)}]++
		}
		var flat []int
		for _, c := range counts {
			flat = append(flat, c)
		}
		if len(flat) != 24 {
			t.Fatalf("%d of 24 orders seen", len(flat))
		}
		if got := chi2(flat, trials); got > chi2Limit(23) {
			t.Errorf("chi² = %.1f over 24 orders, limit %.1f", got, chi2Limit(23))
		}
	})
	t.Run("sample at a position", func(t *testing.T) {
		const n, trials = 37, 37 * 500
		for _, q := range []int{0, 1, 18, 36} {
			counts := make([]int, n)
			for e := range int64(trials) {
				p := NewPermutation(11, e, n)
				counts[p.At(q)]++
			}
			if got := chi2(counts, trials); got > chi2Limit(n-1) {
				t.Errorf("position %d: chi² = %.1f, limit %.1f", q, got, chi2Limit(n-1))
			}
		}
	})
	t.Run("step between neighbours", func(t *testing.T) {
		const n = 1000
		counts := make([]int, n)
		trials := 0
		for e := range int64(100) {
			p := NewPermutation(13, e, n)
			for q := range n - 1 {
				counts[(p.At(q+1)-p.At(q)+n)%n]++
				trials++
			}
		}
		if got := chi2(counts[1:], trials); got > chi2Limit(n-2) {
			t.Errorf("chi² = %.1f, limit %.1f", got, chi2Limit(n-2))
		}
	})
	t.Run("seeds and epochs differ", func(t *testing.T) {
		const n = 1000
		a := Stream{Seed: 1, N: n}.Indices(nil, 0, n)
		for _, s := range []struct {
			name   string
			stream Stream
			start  int64
		}{{"epoch", Stream{Seed: 1, N: n}, n}, {"seed", Stream{Seed: 2, N: n}, 0}} {
			b := s.stream.Indices(nil, s.start, n)
			same := 0
			for i := range a {
				if a[i] == b[i] {
					same++
				}
			}
			if same > 8 { // fixed points are Poisson(1): more than 8 has a probability of 1e-6
				t.Errorf("next %s: %d of %d positions hold the same sample", s.name, same, n)
			}
		}
	})
}

// However the stream is cut into ranges, over however many workers, and however
// shares change, each sample comes once per epoch.
func TestStreamCoversEachEpochOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 400).Draw(t, "n")
		s := Stream{
			Seed:    rapid.Uint64().Draw(t, "seed"),
			N:       n,
			Ordered: rapid.Bool().Draw(t, "ordered"),
		}
		first := rapid.Int64Range(0, 1<<40).Draw(t, "first epoch")
		const epochs = 3
		workers := rapid.IntRange(1, 9).Draw(t, "workers")
		buffers := make([][]int, workers) // reused, as workers do
		counts := make([][]int, epochs)
		for e := range counts {
			counts[e] = make([]int, n)
		}
		for done := 0; done < epochs*n; {
			w := rapid.IntRange(0, workers-1).Draw(t, "worker")
			share := min(rapid.IntRange(1, 2*n).Draw(t, "share"), epochs*n-done)
			buffers[w] = s.Indices(buffers[w], first*int64(n)+int64(done), share)
			if len(buffers[w]) != share {
				t.Fatalf("%d samples for a share of %d", len(buffers[w]), share)
			}
			for i, sample := range buffers[w] {
				counts[(done+i)/n][sample]++
			}
			done += share
		}
		for e := range counts {
			for sample, c := range counts[e] {
				if c != 1 {
					t.Fatalf("epoch %d: sample %d comes %d times", e, sample, c)
				}
			}
		}
	})
}

func TestStreamOrdered(t *testing.T) {
	got := Stream{Seed: 5, N: 4, Ordered: true}.Indices(nil, 6, 5)
	if want := []int{2, 3, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("positions 6..10 of 4 samples in order: %v, want %v", got, want)
	}
}

func TestIndicesDoesNotAllocate(t *testing.T) {
	s := Stream{Seed: 1, N: 1000}
	dst := make([]int, 64)
	start := int64(0)
	if got := testing.AllocsPerRun(100, func() {
		dst = s.Indices(dst, start, 64)
		start += 64
	}); got != 0 {
		t.Errorf("%v allocations per batch", got)
	}
}

func BenchmarkIndices(b *testing.B) {
	s := Stream{Seed: 1, N: 60000}
	dst := make([]int, 64)
	start := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		dst = s.Indices(dst, start, 64)
		start += 64
	}
}
