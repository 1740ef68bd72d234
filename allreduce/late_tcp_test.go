package allreduce_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"star/allreduce"
)

// While one rank arrives last the others begin without it; all have the same bits, those of the plain sum but for
// rounding. When it is on time again they wait for no rank.
func TestLateRank(t *testing.T) {
	const n, late, count = 4, 1, 1 << 19
	groups := form(t, n, func(c *allreduce.Config) { over(c, "tcp"); c.Algorithm = allreduce.AlgorithmLate })
	sums := make([][]float32, n)
	sum := func(delay time.Duration) {
		t.Helper()
		if err := firstOf(all(groups, func(g *allreduce.Group) error {
			v := make([]float32, count)
			for i := range v {
				v[i] = float32(math.Sin(float64(i*n + g.Rank())))
			}
			if err := g.Barrier(t.Context()); err != nil {
				return err
			}
			if g.Rank() == late {
				time.Sleep(delay)
			}
			sums[g.Rank()] = v
			return g.AllReduce(t.Context(), allreduce.Mean, v)
		})); err != nil {
			t.Fatal(err)
		}
	}
	used := func() allreduce.Algorithm { return groups[0].Algorithm(4 * count) }
	until := func(delay time.Duration, done func() bool) {
		t.Helper()
		for i := 0; i < 160 && !done(); i++ {
			sum(delay)
		}
		for _, g := range groups {
			if g.Algorithm(4*count) != used() {
				t.Fatalf("rank %d uses %v, rank 0 %v", g.Rank(), g.Algorithm(4*count), used())
			}
		}
	}
	until(30*time.Millisecond, func() bool { return used() == allreduce.AlgorithmLate })
	if used() != allreduce.AlgorithmLate {
		t.Fatalf("a rank that arrives 30 ms after the others: %v", used())
	}
	sum(30 * time.Millisecond)
	for r, v := range sums {
		if !slices.Equal(v, sums[0]) {
			t.Errorf("rank %d has other bits than rank 0", r)
		}
	}
	for i, x := range sums[0] {
		want := 0.0
		for r := range n {
			want += float64(float32(math.Sin(float64(i*n+r)))) / n
		}
		if math.Abs(float64(x)-want) > 1e-6 {
			t.Fatalf("element %d is %v, want %v", i, x, want)
		}
	}
	until(0, func() bool { return used() != allreduce.AlgorithmLate })
	if used() == allreduce.AlgorithmLate {
		t.Error("a rank that is on time again is still taken for late")
	}
}
