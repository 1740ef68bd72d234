package sched

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// TestRunSort sorts lists by an order with cycles, as Python's sort does it: testdata/runsort.py. What it comes to is not what a stable sort of another kind makes of it.
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
