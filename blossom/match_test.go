package blossom

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// brute looks at every matching: the weight of the best one, its number of
// edges and whether one leaves no vertex out.
func brute(n int, edges []Edge, o Option) (best float64, most int, found bool) {
	w := make([][]float64, n)
	for v := range w {
		w[v] = make([]float64, n)
		for j := range w[v] {
			w[v][j] = math.NaN()
		}
	}
	for _, e := range edges {
		x := e.Weight
		if o&Minimum != 0 {
			x = -x
		}
		w[e.U][e.V], w[e.V][e.U] = x, x
	}
	type state struct {
		weight float64
		edges  int
	}
	memo := map[int]state{}
	better := func(a, b state) bool {
		if o&(MaxCardinality|Perfect) != 0 && a.edges != b.edges {
			return a.edges > b.edges
		}
		return a.weight > b.weight
	}
	var from func(used int) state
	from = func(used int) state {
		v := 0
		for v < n && used>>v&1 == 1 {
			v++
		}
		if v == n {
			return state{}
		}
		if s, ok := memo[used]; ok {
			return s
		}
		s := from(used | 1<<v)
		for j := v + 1; j < n; j++ {
			if used>>j&1 == 0 && !math.IsNaN(w[v][j]) {
				t := from(used | 1<<v | 1<<j)
				t.weight += w[v][j]
				t.edges++
				if better(t, s) {
					s = t
				}
			}
		}
		memo[used] = s
		return s
	}
	s := from(0)
	if o&Minimum != 0 {
		s.weight = -s.weight
	}
	return s.weight, s.edges, 2*s.edges == n
}

// kinds are the weights of random graphs.
var kinds = []struct {
	name string
	draw func(r *rand.Rand) float64
}{
	{"ties", func(r *rand.Rand) float64 { return float64(r.IntN(4)) }},
	{"small", func(r *rand.Rand) float64 { return float64(r.IntN(30) - 5) }},
	{"signs", func(r *rand.Rand) float64 { return float64(r.IntN(2001) - 1000) }},
	{"large", func(r *rand.Rand) float64 { return float64(r.Int64N(1<<52) - 1<<50) }},
	{"unit", func(r *rand.Rand) float64 { return r.Float64() }},
	{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }},
	{"wide", func(r *rand.Rand) float64 { return math.Exp(20 * r.NormFloat64()) }},
	{"tiny", func(r *rand.Rand) float64 { return r.Float64() * 5e-320 }},
	{"huge", func(r *rand.Rand) float64 { return (r.Float64() - 0.5) * math.MaxFloat64 / 8 }},
	{"near", func(r *rand.Rand) float64 { return 1 + float64(r.IntN(4))*0x1p-52 }},
}

// graph draws a graph with each of the possible edges with probability p, in any
// order.
func graph(r *rand.Rand, n int, p float64, draw func(r *rand.Rand) float64) (edges []Edge) {
	for u := range n {
		for v := range u {
			if r.Float64() < p {
				edges = append(edges, Edge{u, v, draw(r)})
			}
		}
	}
	r.Shuffle(len(edges), func(i, j int) {
		edges[i], edges[j] = edges[j], edges[i]
		if r.IntN(2) == 0 {
			edges[i].U, edges[i].V = edges[i].V, edges[i].U
		}
	})
	return edges
}

// Small graphs of every kind, against every matching there is.
func TestBruteForce(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 30
	}
	for _, k := range kinds {
		for _, o := range []Option{0, MaxCardinality, Perfect, Minimum, Minimum | MaxCardinality, Minimum | Perfect} {
			t.Run(fmt.Sprintf("%s/%d", k.name, o), func(t *testing.T) {
				for seed := range uint64(rounds) {
					r := rand.New(rand.NewPCG(seed, uint64(o)))
					n := r.IntN(11)
					edges := graph(r, n, []float64{0.2, 0.5, 1}[r.IntN(3)], k.draw)
					want, most, perfect := brute(n, edges, o)
					m, err := Solve(n, edges, o)
					if o&Perfect != 0 && !perfect {
						if !errors.Is(err, ErrNotPerfect) {
							t.Fatalf("seed %d: %v; there is no perfect matching of %v", seed, err, edges)
						}
						continue
					}
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if err := Verify(n, edges, m, o); err != nil {
						t.Fatalf("seed %d: %v: %v", seed, edges, err)
					}
					if pairs := len(m.Pairs()); o&MaxCardinality != 0 && pairs != most {
						t.Fatalf("seed %d: %d edges of at most %d: %v", seed, pairs, most, edges)
					}
					sum := 0.0 // the sums themselves are rounded
					for _, e := range edges {
						sum += math.Abs(e.Weight)
					}
					if miss := math.Abs(m.Weight - want); miss > m.Gap+sum*0x1p-50 || m.Gap > sum*float64(n*n)*0x1p-50 {
						t.Fatalf("seed %d: weighs %v, best %v, gap %v: %v", seed, m.Weight, want, m.Gap, edges)
					}
				}
			})
		}
	}
}
