package originals

import (
	"math/rand/v2"
	"slices"
	"testing"

	"star/blossom"
)

// TestMatch compares the weight with that of blossom.Match, on tables of few and of many different weights.
func TestMatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		n, most := r.IntN(24), []int64{1, 3, 10, 1000}[r.IntN(4)]
		table := make([][]float64, n)
		for u := range table {
			table[u] = make([]float64, n)
		}
		var edges []blossom.Edge
		for v := range table {
			for u := range v {
				if w := float64(r.Int64N(most + 1)); w > 0 && r.IntN(4) > 0 {
					table[u][v], table[v][u] = w, w
					edges = append(edges, blossom.Edge{U: u, V: v, Weight: w})
				}
			}
		}
		want, err := blossom.Match(n, edges)
		if err != nil {
			t.Fatal(err)
		}
		weight := func(mate []int) (sum float64) {
			for u, v := range mate {
				if v >= 0 && (mate[v] != u || table[u][v] == 0) {
					t.Fatalf("%v: vertex %d has mate %d", table, u, v)
				}
				if u < v {
					sum += table[u][v]
				}
			}
			return sum
		}
		if g, w := weight(match(table)), weight(want); g != w {
			t.Fatalf("%v: weight %g, want %g", table, g, w)
		}
	}
}

// TestMatchTies has several matchings of the same greatest weight: the order of the vertices decides which one is
// found.
func TestMatchTies(t *testing.T) {
	for _, c := range []struct {
		n     int
		edges [][3]int
		want  []int
	}{
		{4, [][3]int{{0, 1, 1}, {0, 2, 1}, {0, 3, 1}, {1, 2, 1}, {1, 3, 1}, {2, 3, 1}}, []int{1, 0, 3, 2}},
		{3, [][3]int{{0, 1, 1}, {1, 2, 1}}, []int{1, 0, -1}},
		// The heaviest edge joins 1 and 2 first. Then 0 reaches 4 through both, which leaves 3 without a mate.
		{5, [][3]int{{1, 2, 9}, {0, 1, 7}, {1, 3, 7}, {2, 4, 7}, {2, 3, 7}}, []int{1, 0, 3, 2, -1}},
	} {
		table := make([][]float64, c.n)
		for u := range table {
			table[u] = make([]float64, c.n)
		}
		for _, e := range c.edges {
			table[e[0]][e[1]], table[e[1]][e[0]] = float64(e[2]), float64(e[2])
		}
		if got := match(table); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.edges, got, c.want)
		}
	}
}
