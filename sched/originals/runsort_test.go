package originals

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// TestRunSort sorts lists by an order with cycles, as Python's sort does it: testdata/runsort.py. The result differs
// from that of a stable sort of another kind.
func TestRunSort(t *testing.T) {
	b, err := os.ReadFile("testdata/runsort.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases [][2][]int
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	compare := func(a, b int) int { return (a - b) / 100 }
	others := 0
	for _, c := range cases {
		a := slices.Clone(c[0])
		runSort(a, compare, 64)
		if !slices.Equal(a, c[1]) {
			t.Errorf("%d elements: %v, want %v", len(a), a, c[1])
		}
		slices.SortStableFunc(c[0], compare)
		if !slices.Equal(c[0], c[1]) {
			others++
		}
	}
	if others == 0 {
		t.Error("no list tells the sorts apart")
	}
}

// Under an order without cycles it is any stable sort, whatever runs a list has.
func TestRunSortIsStable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	compare := func(a, b [2]int) int { return a[0] - b[0] }
	for range 2000 {
		var a [][2]int
		for range r.IntN(9) {
			from, step := r.IntN(400), r.IntN(5)-2
			for i := range r.IntN(120) {
				a = append(a, [2]int{from + step*i, len(a)})
			}
		}
		want := slices.Clone(a)
		slices.SortStableFunc(want, compare)
		if runSort(a, compare, []int{javaRuns, 64}[r.IntN(2)]); !slices.Equal(a, want) {
			t.Fatalf("%v, want %v", a, want)
		}
	}
}
