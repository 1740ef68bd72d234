package blossom

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Larger graphs, in which blossoms lie in blossoms and are expanded while they are part of
// a tree, by the proof alone.
func TestProof(t *testing.T) {
	sizes := []int{15, 30, 60, 120, 500}
	for _, k := range kinds {
		for _, n := range sizes {
			if testing.Short() && n > 120 {
				continue
			}
			for _, p := range []float64{2.5 / float64(n), 0.1, 1} {
				for _, o := range []Option{0, MaxCardinality, MaxCardinality | Minimum} {
					if n >= 250 && k.name != "ties" && k.name != "unit" && k.name != "signs" {
						continue
					}
					for seed := range uint64(max(1, 120/n)) {
						edges := graph(rand.New(rand.NewPCG(seed, uint64(n))), n, p, k.draw)
						m, err := Solve(n, edges, o)
						if err == nil {
							err = Verify(n, edges, m, o)
						}
						if err != nil {
							t.Fatalf("%s, n %d, p %.2g, options %d, seed %d: %v", k.name, n, p, o, seed, err)
						}
					}
				}
			}
		}
	}
}

// Points in the plane give deeply nested blossoms: the lightest perfect matching of
// them, and the heaviest.
func TestPlane(t *testing.T) {
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := 10 + 2*int(seed)*int(seed)/3*2
		if testing.Short() && n > 100 {
			break
		}
		x, y := make([]float64, n), make([]float64, n)
		for v := range n {
			x[v], y[v] = r.Float64(), r.Float64()
			if seed%2 == 1 { // a grid: many distances are equal
				x[v], y[v] = float64(r.IntN(8)), float64(r.IntN(8))
			}
		}
		var edges []Edge
		for u := range n {
			for v := range u {
				edges = append(edges, Edge{u, v, math.Hypot(x[u]-x[v], y[u]-y[v])})
			}
		}
		for _, o := range []Option{Perfect | Minimum, Perfect, 0} {
			m, err := Solve(n, edges, o)
			if err == nil {
				err = Verify(n, edges, m, o)
			}
			if err != nil {
				t.Fatalf("n %d, options %d: %v", n, o, err)
			}
		}
	}
}

// Complete graphs with random weights: comparisons of floats made other
// implementations fail on 15 % of them with 6 vertices, on 57 % with 10.
func TestFloatsEnd(t *testing.T) {
	for n := 4; n <= 12; n++ {
		for seed := range uint64(300) {
			edges := graph(rand.New(rand.NewPCG(seed, uint64(n))), n, 1, func(r *rand.Rand) float64 { return r.Float64() })
			m, err := Solve(n, edges)
			if err == nil {
				err = Verify(n, edges, m)
			}
			if err != nil {
				t.Fatalf("n %d, seed %d: %v", n, seed, err)
			}
		}
	}
}

// drawGraph draws a graph of at most n vertices.
func drawGraph(t *rapid.T, most int) (n int, edges []Edge) {
	n = rapid.IntRange(2, most).Draw(t, "n")
	weights := rapid.IntRange(-5, 40)
	for u := range n {
		for v := range u {
			if w := weights.Draw(t, "weight"); w > -4 {
				edges = append(edges, Edge{u, v, float64(w)})
			}
		}
	}
	return n, edges
}

// What must not matter does not.
func TestRelations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, edges := drawGraph(t, 14)
		o := Option(rapid.SampledFrom([]int{0, int(MaxCardinality), int(Minimum), int(MaxCardinality | Minimum)}).Draw(t, "options"))
		m, err := Solve(n, edges, o)
		if err != nil {
			t.Fatal(err)
		}
		if m.Gap != 0 {
			t.Fatalf("integers with a gap of %v", m.Gap)
		}
		if err := Verify(n, edges, m, o); err != nil {
			t.Fatal(err)
		}
		again := func(what string, n int, edges []Edge, o Option) *Matching {
			m, err := Solve(n, edges, o)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return m
		}
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		order = rapid.Permutation(order).Draw(t, "order")
		other := slices.Clone(edges)
		for i, e := range other {
			other[i] = Edge{order[e.V], order[e.U], e.Weight}
		}
		slices.Reverse(other)
		if x := again("names", n, other, o); x.Weight != m.Weight || len(x.Pairs()) != len(m.Pairs()) && o&MaxCardinality != 0 {
			t.Fatalf("other names: %v pairs weigh %v, not %v, %v", x.Pairs(), x.Weight, m.Pairs(), m.Weight)
		}
		for i, e := range edges {
			other[i] = Edge{e.U, e.V, e.Weight * 0x1p-700}
		}
		if x := again("units", n, other, o); !slices.Equal(x.Mate, m.Mate) {
			t.Fatalf("in other units: %v, not %v", x.Mate, m.Mate)
		}
		if o&MaxCardinality != 0 {
			for i, e := range edges {
				other[i] = Edge{e.U, e.V, e.Weight - 1000}
			}
			if x := again("less", n, other, o); x.Weight != m.Weight-1000*float64(len(m.Pairs())) {
				t.Fatalf("every edge weighs 1000 less: %v, not %v", x.Weight, m.Weight)
			}
		}
		// Vertices and edges that no matching wants change nothing.
		if o == 0 {
			if x := again("more", n+2, append(slices.Clone(edges), Edge{n, 0, -1}, Edge{n, n + 1, 0}), 0); x.Weight != m.Weight || x.Mate[n] != -1 {
				t.Fatalf("with edges of no use: %v, not %v", x.Weight, m.Weight)
			}
		}
	})
}

// A b-matching against every set of edges.
func TestBMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		var edges []Edge
		for u := range n {
			for v := range u {
				if w := rapid.IntRange(-6, 12).Draw(t, "weight"); w > -5 && len(edges) < 11 {
					edges = append(edges, Edge{v, u, float64(w)})
				}
			}
		}
		capacity := rapid.SliceOfN(rapid.IntRange(0, 3), n, n).Draw(t, "capacity")
		o := Option(rapid.IntRange(0, 7).Draw(t, "options"))
		sign := 1.0
		if o&Minimum != 0 {
			sign = -1
		}
		best, size, found := 0.0, -1, false
		for set := range 1 << len(edges) {
			sum, used := 0.0, make([]int, n)
			for i, e := range edges {
				if set>>i&1 == 1 {
					sum += sign * e.Weight
					used[e.U]++
					used[e.V]++
				}
			}
			fits, full := true, true
			for v, c := range capacity {
				fits, full = fits && used[v] <= c, full && used[v] == c
			}
			if !fits || o&Perfect != 0 && !full {
				continue
			}
			k := bits.OnesCount(uint(set))
			if !found || o&(MaxCardinality|Perfect) != 0 && k > size || (k == size || o&(MaxCardinality|Perfect) == 0) && sum > best {
				best, size, found = sum, k, true
			}
		}
		chosen, err := BMatch(n, capacity, edges, o)
		if !found {
			if !errors.Is(err, ErrNotPerfect) {
				t.Fatalf("%v; there is none", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		sum, used := 0.0, make([]int, n)
		for _, i := range chosen {
			sum += sign * edges[i].Weight
			used[edges[i].U]++
			used[edges[i].V]++
		}
		for v, c := range capacity {
			if used[v] > c {
				t.Fatalf("vertex %d is in %d edges of at most %d", v, used[v], c)
			}
		}
		if sum != best || o&(MaxCardinality|Perfect) != 0 && len(chosen) != size {
			t.Fatalf("%d edges weigh %v; the best are %d and weigh %v", len(chosen), sum, size, best)
		}
	})
}

// A b-matching with capacities of 1 is a matching.
func TestBMatchOfOne(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 2 + r.IntN(30)
		edges := graph(r, n, 0.3, kinds[seed%3].draw)
		for _, o := range []Option{0, MaxCardinality, Minimum} {
			m, err := Solve(n, edges, o)
			if err != nil {
				t.Fatal(err)
			}
			chosen, err := BMatch(n, slices.Repeat([]int{1}, n), edges, o)
			if err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for _, i := range chosen {
				sum += edges[i].Weight
			}
			if sum != m.Weight || o == MaxCardinality && len(chosen) != len(m.Pairs()) {
				t.Fatalf("seed %d, options %d: %d edges weigh %v; the matching has %d and weighs %v", seed, o, len(chosen), sum, len(m.Pairs()), m.Weight)
			}
		}
	}
}

// Verify is not fooled: any change of a proof or of what it proves is seen.
func TestVerifyRefuses(t *testing.T) {
	// a triangle with a tail, and a path
	edges := []Edge{{0, 1, 8}, {1, 2, 9}, {0, 2, 10}, {2, 3, 7}, {4, 5, 3}, {5, 6, 2}}
	solve := func() *Matching {
		m, err := Solve(7, edges)
		if err != nil {
			t.Fatal(err)
		}
		if err := Verify(7, edges, m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for name, spoil := range map[string]func(m *Matching){
		"too few mates":       func(m *Matching) { m.Mate = m.Mate[:6] },
		"too few prices":      func(m *Matching) { m.Dual.Vertex = m.Dual.Vertex[:6] },
		"not mutual":          func(m *Matching) { m.Mate[6] = 0 },
		"itself":              func(m *Matching) { m.Mate[6] = 6 },
		"no such vertex":      func(m *Matching) { m.Mate[6] = 7 },
		"no edge":             func(m *Matching) { m.Mate[6], m.Mate[4], m.Mate[5] = 4, 6, -1 },
		"a worse matching":    func(m *Matching) { m.Mate[4], m.Mate[5], m.Mate[6] = -1, 6, 5 },
		"nothing":             func(m *Matching) { m.Mate = slices.Repeat([]int{-1}, 7) },
		"an edge left out":    func(m *Matching) { m.Mate[4], m.Mate[5] = -1, -1 },
		"cheap":               func(m *Matching) { m.Dual.Vertex[5]-- },
		"dear":                func(m *Matching) { m.Dual.Vertex[5]++ },
		"dear and alone":      func(m *Matching) { m.Dual.Vertex[6]++ },
		"negative":            func(m *Matching) { m.Dual.Vertex[6] = -1 },
		"shifted":             func(m *Matching) { m.Dual.Shift = 1 },
		"other units":         func(m *Matching) { m.Dual.Exp++ },
		"units too small":     func(m *Matching) { m.Dual.Exp = 2000 },
		"a pair as a blossom": func(m *Matching) { m.Dual.Blossoms = append(m.Dual.Blossoms, Blossom{[]int{0, 1}, 2}) },
		"not full":            func(m *Matching) { m.Dual.Blossoms = append(m.Dual.Blossoms, Blossom{[]int{0, 2, 4}, 2}) },
		"a negative blossom":  func(m *Matching) { m.Dual.Blossoms = append(m.Dual.Blossoms, Blossom{[]int{4, 5, 6}, -2}) },
		"a vertex twice":      func(m *Matching) { m.Dual.Blossoms = append(m.Dual.Blossoms, Blossom{[]int{4, 5, 4}, 0}) },
		"a stranger":          func(m *Matching) { m.Dual.Blossoms = append(m.Dual.Blossoms, Blossom{[]int{4, 5, 7}, 0}) },
	} {
		m := solve()
		spoil(m)
		if err := Verify(7, edges, m); !errors.Is(err, ErrProof) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := solve()
	if err := Verify(7, edges, m, MaxCardinality); !errors.Is(err, ErrProof) {
		t.Errorf("no proof that it is one of the largest: %v", err)
	}
	if err := Verify(7, edges, m, Perfect); !errors.Is(err, ErrProof) {
		t.Errorf("vertex 6 is alone: %v", err)
	}
	thirds := []Edge{{0, 1, 1. / 3}, {1, 2, 1e-30}}
	m, err := Solve(3, thirds)
	if err != nil || m.Gap == 0 || m.Gap > 1e-16 {
		t.Fatalf("gap %v, %v", m.Gap, err)
	}
	m.Gap = 0
	if err := Verify(3, thirds, m); !errors.Is(err, ErrProof) {
		t.Errorf("rounding is not owned up to: %v", err)
	}
}

// Weights that need every bit.
func TestExact(t *testing.T) {
	const big = 1 << 52
	for _, c := range []struct {
		n     int
		edges []Edge
		o     Option
		want  string
	}{
		{4, []Edge{{0, 1, big - 1}, {1, 2, 2*big - 1}, {2, 3, big - 1}}, 0, "[[1 2]]"},
		{4, []Edge{{0, 1, big - 1}, {1, 2, 2*big - 3}, {2, 3, big - 1}}, 0, "[[0 1] [2 3]]"},
		{4, []Edge{{0, 1, -big}, {1, 2, big}, {2, 3, -big}}, MaxCardinality, "[[0 1] [2 3]]"},
		{4, []Edge{{0, 1, -big}, {2, 3, big}, {0, 2, 1}, {1, 3, 0}}, Perfect, "[[0 2] [1 3]]"},
		{4, []Edge{{0, 1, -big}, {2, 3, big}, {0, 2, 0}, {1, 3, -1}}, Perfect, "[[0 1] [2 3]]"},
		{4, []Edge{{0, 1, 5}, {2, 3, -5}, {0, 2, 1}, {1, 3, -2}}, Perfect | Minimum, "[[0 2] [1 3]]"},
		{2, []Edge{{0, 1, math.MaxFloat64}}, Perfect | Minimum, "[[0 1]]"},
		{2, []Edge{{0, 1, math.SmallestNonzeroFloat64}}, 0, "[[0 1]]"},
		{2, []Edge{{0, 1, 0}}, 0, "[]"},
		{2, []Edge{{0, 1, 0}}, MaxCardinality, "[[0 1]]"},
		{2, []Edge{{0, 1, -3}}, Minimum, "[[0 1]]"},
		{0, nil, Perfect, "[]"},
		{3, nil, MaxCardinality, "[]"},
	} {
		m, err := Solve(c.n, c.edges, c.o)
		if err != nil {
			t.Errorf("%v: %v", c.edges, err)
			continue
		}
		if got := fmt.Sprint(m.Pairs()); got != c.want || m.Gap != 0 {
			t.Errorf("%v, options %d: %s, gap %v; want %s", c.edges, c.o, got, m.Gap, c.want)
		}
		if err := Verify(c.n, c.edges, m, c.o); err != nil {
			t.Errorf("%v, options %d: %v", c.edges, c.o, err)
		}
	}
}

func TestBadGraphs(t *testing.T) {
	for _, c := range []struct {
		n     int
		edges []Edge
		want  string
	}{
		{-1, nil, "-1 vertices"},
		{2, []Edge{{0, 2, 1}}, "edge 0 joins 0 and 2; vertices are 0 to 1"},
		{2, []Edge{{-1, 1, 1}}, "edge 0 joins -1 and 1"},
		{2, []Edge{{0, 1, 1}, {1, 1, 1}}, "edge 1 joins vertex 1 to itself"},
		{2, []Edge{{0, 1, math.NaN()}}, "edge 0, of 0 and 1, has the weight NaN"},
		{2, []Edge{{0, 1, math.Inf(-1)}}, "the weight -Inf"},
		{3, []Edge{{0, 1, 1}, {1, 2, 1}, {1, 0, -2}}, "edges 0 and 2 both join 0 and 1"},
	} {
		for name, match := range map[string]func() error{
			"Match":  func() error { _, err := Match(c.n, c.edges); return err },
			"BMatch": func() error { _, err := BMatch(c.n, make([]int, max(c.n, 0)), c.edges); return err },
		} {
			if err := match(); !errors.Is(err, ErrInput) || !contains(err, c.want) {
				t.Errorf("%s: %v; want %q", name, err, c.want)
			}
		}
	}
	if _, err := BMatch(2, []int{1}, nil); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
	if _, err := BMatch(2, []int{1, -1}, nil); !errors.Is(err, ErrInput) || !contains(err, "vertex 1 has the capacity -1") {
		t.Error(err)
	}
	if _, err := Match(3, []Edge{{0, 1, 1}, {1, 2, 1}}, Perfect); !errors.Is(err, ErrNotPerfect) || !contains(err, "3 vertices leaves at least 1 out") {
		t.Error(err)
	}
}
