package blossom

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestForest compares the weight with that of Match, on tables of few and of many different weights.
func TestForest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		n, most := r.IntN(24), []int64{1, 3, 10, 1000}[r.IntN(4)]
		table := make([][]int64, n)
		for u := range table {
			table[u] = make([]int64, n)
		}
		var edges []Edge
		for v := range table {
			for u := range v {
				if w := r.Int64N(most + 1); w > 0 && r.IntN(4) > 0 {
					table[u][v], table[v][u] = w, w
					edges = append(edges, Edge{u, v, float64(w)})
				}
			}
		}
		got, err := Forest(table)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Match(n, edges)
		if err != nil {
			t.Fatal(err)
		}
		weight := func(mate []int) (sum int64) {
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
		if g, w := weight(got), weight(want); g != w {
			t.Fatalf("%v: weight %d, want %d", table, g, w)
		}
	}
}

// TestForestTies has several matchings of the most weight, and finds the one that follows from the order of vertices, as by hand.
func TestForestTies(t *testing.T) {
	for _, c := range []struct {
		n     int
		edges [][3]int64
		want  []int
	}{
		{4, [][3]int64{{0, 1, 1}, {0, 2, 1}, {0, 3, 1}, {1, 2, 1}, {1, 3, 1}, {2, 3, 1}}, []int{1, 0, 3, 2}},
		{3, [][3]int64{{0, 1, 1}, {1, 2, 1}}, []int{1, 0, -1}},
		// 1 and 2 are first, with the most. 0 then comes, through 1 and 2, to 4, and 3 has nobody left.
		{5, [][3]int64{{1, 2, 9}, {0, 1, 7}, {1, 3, 7}, {2, 4, 7}, {2, 3, 7}}, []int{1, 0, 3, 2, -1}},
	} {
		table := make([][]int64, c.n)
		for u := range table {
			table[u] = make([]int64, c.n)
		}
		for _, e := range c.edges {
			table[e[0]][e[1]], table[e[1]][e[0]] = e[2], e[2]
		}
		if got, err := Forest(table); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, %v, want %v", c.edges, got, err, c.want)
		}
	}
	for _, bad := range [][][]int64{{{0, 1}}, {{0, 0}, {}}, {{0, 1}, {2, 0}}, {{1}}, {{0, 1 << 61}, {1 << 61, 0}}} {
		if _, err := Forest(bad); err == nil {
			t.Errorf("%v was matched", bad)
		}
	}
}
