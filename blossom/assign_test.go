package blossom

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// cheapest tries every assignment. +Inf: no assignment exists.
func cheapest(cost [][]float64, i, taken int) float64 {
	if i == len(cost) {
		return 0
	}
	best := math.Inf(1)
	for j, c := range cost[i] {
		if taken>>j&1 == 0 {
			best = min(best, c+cheapest(cost, i+1, taken|1<<j))
		}
	}
	return best
}

// TestAssignAgainstAll compares with every assignment of small tables: whole costs, many of them the same, some
// forbidden.
func TestAssignAgainstAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 5).Draw(t, "rows")
		m := rapid.IntRange(n, 7).Draw(t, "columns")
		most := rapid.SampledFrom([]int{1, 5, 1 << 40}).Draw(t, "most")
		cost := make([][]float64, n)
		for i := range cost {
			for range m {
				c := float64(rapid.IntRange(-most, most).Draw(t, "cost"))
				if rapid.IntRange(0, 5).Draw(t, "forbid") == 0 {
					c = math.Inf(1)
				}
				cost[i] = append(cost[i], c)
			}
		}
		want := cheapest(cost, 0, 0)
		a, err := Assign(cost)
		if math.IsInf(want, 1) {
			if !errors.Is(err, ErrNotPerfect) {
				t.Fatalf("%v: %v; want ErrNotPerfect", cost, err)
			}
			return
		}
		if err != nil {
			t.Fatalf("%v: %v", cost, err)
		}
		if gap, err := a.Gap(cost); err != nil || gap != 0 || a.Cost != want {
			t.Fatalf("%v: %v; gap %v, %v; the least is %v", cost, a, gap, err, want)
		}
		for i, row := range cost { // what the prices are said to be
			for j, c := range row {
				if c < a.Rows[i]+a.Columns[j] || a.Column[i] == j && c != a.Rows[i]+a.Columns[j] {
					t.Fatalf("%v: row %d, column %d costs %v, and the prices are %v, %v", cost, i, j, c, a.Rows[i], a.Columns[j])
				}
			}
		}
	})
}

// TestAssignLarge proves assignments that are too large to try all of them by their prices, with costs that are
// rounded.
func TestAssignLarge(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range [][2]int{{200, 200}, {50, 2000}, {1, 3000}} {
		cost := make([][]float64, size[0])
		sum := 0.
		for i := range cost {
			for range size[1] {
				cost[i] = append(cost[i], r.ExpFloat64())
				sum = max(sum, cost[i][len(cost[i])-1])
			}
		}
		a, err := Assign(cost)
		if err != nil {
			t.Fatal(err)
		}
		if gap, err := a.Gap(cost); err != nil || gap > 1e-12*sum*float64(size[0]) {
			t.Errorf("%d × %d: may be off by %v, %v", size[0], size[1], gap, err)
		}
		// The proof is of this assignment, and not of any.
		a.Column[0] = (a.Column[0] + 1) % size[1]
		if gap, err := a.Gap(cost); err == nil && gap < 1e-9 {
			t.Errorf("%d × %d: another assignment passes for one that costs least", size[0], size[1])
		}
	}
}

func TestAssignErrors(t *testing.T) {
	for _, c := range []struct {
		cost [][]float64
		want error
		text string
	}{
		{[][]float64{{1}, {2}}, ErrInput, "2 rows and 1 columns"},
		{[][]float64{{1, 2}, {2}}, ErrInput, "row 1 has 1 columns, row 0 has 2"},
		{[][]float64{{1, math.NaN()}}, ErrInput, "row 0, column 1 costs NaN"},
		{[][]float64{{math.Inf(-1)}}, ErrInput, "costs -Inf"},
		{[][]float64{{1, math.Inf(1)}, {1, math.Inf(1)}}, ErrNotPerfect, "row 1"},
	} {
		if _, err := Assign(c.cost); !errors.Is(err, c.want) || !contains(err, c.text) {
			t.Errorf("%v: %v; want %q", c.cost, err, c.text)
		}
	}
	for _, a := range []*Assignment{{Column: []int{0}, Columns: []float64{0, 0}}, {Column: []int{0, 0}, Columns: []float64{0, 0}},
		{Column: []int{0, 2}, Columns: []float64{0, 0}}, {Column: []int{0, 1}, Columns: []float64{0, 1}}} {
		if gap, err := a.Gap([][]float64{{1, 2}, {2, 4}}); err == nil {
			t.Errorf("%v has a gap of %v", a, gap)
		}
	}
}

// FuzzAssign: whatever the costs are, an assignment comes with prices that prove it, or an error.
func FuzzAssign(f *testing.F) {
	f.Add(uint8(2), uint8(3), []byte{1, 2, 3, 4, 5, 6})
	f.Add(uint8(3), uint8(3), []byte{0, 0, 0, 255, 255, 0, 255, 255, 9})
	f.Fuzz(func(t *testing.T, n, m uint8, text []byte) {
		cost := make([][]float64, n%20)
		for i := range cost {
			for j := range int(m % 40) {
				c := math.Inf(1)
				if k := i*int(m%40) + j; k < len(text) && text[k] < 255 {
					c = float64(text[k]) - 100
				}
				cost[i] = append(cost[i], c)
			}
		}
		a, err := Assign(cost)
		if err != nil {
			if !errors.Is(err, ErrInput) && !errors.Is(err, ErrNotPerfect) {
				t.Fatal(err)
			}
			return
		}
		if gap, err := a.Gap(cost); err != nil || gap != 0 {
			t.Fatalf("%v: %v may be off by %v, %v", cost, a, gap, err)
		}
	})
}

// BenchmarkAssign is of the size that AlloX's scheduler has for 50 jobs, 20 GPUs and 20 processors.
func BenchmarkAssign(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	cost := make([][]float64, 50)
	for i := range cost {
		for k := range 50 {
			p := float64(r.IntN(300))
			for range 40 {
				cost[i] = append(cost[i], float64(k+1)*p)
			}
		}
	}
	for b.Loop() {
		if _, err := Assign(cost); err != nil {
			b.Fatal(err)
		}
	}
}
