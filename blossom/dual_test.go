package blossom

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What edges cost by the order of nested blossoms is what it is by going through all blossoms; blossoms that cross are
// noticed.
func TestNestedCosts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		price := func() int64 { return []int64{0, 1, r.Int64N(1000), math.MaxInt64}[r.IntN(4)] }
		var blossoms []Blossom
		var cut func(vs []int)
		cut = func(vs []int) {
			for len(vs) > 0 {
				k := 1 + r.IntN(len(vs))
				if k < len(vs) || len(vs)%2 == 1 {
					if k%2 == 1 {
						blossoms = append(blossoms, Blossom{slices.Clone(vs[:k]), price()})
					}
					if k > 1 {
						cut(slices.Clone(vs[:k-1]))
					}
				}
				vs = vs[k:]
			}
		}
		cut(r.Perm(n))
		r.Shuffle(len(blossoms), func(i, j int) { blossoms[i], blossoms[j] = blossoms[j], blossoms[i] })
		var edges []Edge
		for u := range n {
			for v := range u {
				edges = append(edges, Edge{v, u, 1})
			}
		}
		f, ok := nest(n, blossoms)
		if !ok {
			t.Fatalf("%v cross", blossoms)
		}
		want := make([]uint64, len(edges))
		crossing(n, edges, blossoms, want)
		for i, e := range edges {
			if got := f.around(e.U, e.V); got != want[i] {
				t.Fatalf("edge %v costs %d, want %d: %v", e, got, want[i], blossoms)
			}
		}
	})
	for _, bs := range [][]Blossom{{{[]int{0, 1, 2}, 1}, {[]int{2, 3, 4}, 1}}, {{[]int{0, 1, 2, 3, 4}, 1}, {[]int{4, 5, 6}, 1}}} {
		if _, ok := nest(7, bs); ok {
			t.Errorf("%v do not cross", bs)
		}
	}
	// A proof with blossoms that cross is one: both price 0.
	edges := []Edge{{0, 1, 3}}
	m := &Matching{Mate: []int{1, 0, -1, -1}, Dual: Dual{Vertex: []int64{3, 3, 0, 0}, Blossoms: []Blossom{{[]int{0, 1, 2}, 0}, {[]int{1, 2, 3}, 0}}}}
	if err := Verify(4, edges, m); err != nil {
		t.Error(err)
	}
}

// structured graphs are complete ones with many equal weights, which make many, and large, blossoms.
func structured(n int, weight func(u, v int) float64) []Edge {
	var edges []Edge
	for u := range n {
		for v := range u {
			edges = append(edges, Edge{v, u, weight(v, u)})
		}
	}
	return edges
}

func BenchmarkVerify(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, weight := range map[string]func(u, v int) float64{
		"max":    func(u, v int) float64 { return float64(max(u, v)) },
		"near":   func(u, v int) float64 { return 1e6 + float64(r.IntN(1000)) },
		"random": func(u, v int) float64 { return r.Float64() },
	} {
		edges := structured(1000, weight)
		m, err := Solve(1000, edges)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := Verify(1000, edges, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
