package blossom

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"sort"
)

// Dual is the proof that a matching is the best: prices by which every edge
// costs at least what it weighs, chosen edges cost exactly that, and the price
// of an unmatched vertex is 0. Its unit is half of one of the scaled weight
//
//	w′ = round(±w·2^Exp) + Shift    (minus with Minimum).
type Dual struct {
	// Exp is the power of two that weights are multiplied by before they are
	// rounded to integers, to even where two are as near.
	Exp int
	// Shift is what an additional edge is worth: 0 without MaxCardinality and
	// Perfect, else so much that the heaviest matching is one of the largest.
	Shift int64
	// Vertex is the price of each vertex.
	Vertex []int64
	// Blossoms are the odd sets of vertices that have a price.
	Blossoms []Blossom
}

// Blossom is an odd set of vertices: at most (len(Vertices)−1)/2 edges of a
// matching lie in it. Price is paid by each of them.
type Blossom struct {
	Vertices []int
	Price    int64
}

// dual is what the solver has found, without Exp and Shift.
func (s *solver) dual() Dual {
	d := Dual{Vertex: make([]int64, s.n)}
	for v, u := range s.u {
		d.Vertex[v] = u + s.groups[s.in[v]].off
	}
	for b := int32(s.n); int(b) < len(s.z); b++ {
		if !s.exists(b) || s.z[b] == 0 {
			continue
		}
		set := Blossom{Price: s.z[b]}
		for v := s.head[b]; ; v = s.next[v] {
			set.Vertices = append(set.Vertices, int(v))
			if v == s.tail[b] {
				break
			}
		}
		d.Blossoms = append(d.Blossoms, set)
	}
	return d
}

// ErrProof says that a Matching's Dual does not prove that it is the best.
var ErrProof = errors.New("blossom: no proof")

// Verify checks that m is a matching of the graph, and that m.Dual proves that
// none is better by more than m.Gap. It knows nothing of how they were found and holds for any Matching, however it was
// made: the sum of the prices (of a blossom: times the edges that it has room for) is at least what any matching
// weighs, and exactly what m weighs (W. H. Cunningham, A. B. Marsh III: A primal algorithm for optimum matching. Math.
// Programming Study 8, 1978). It takes O(m·log(depth)) and the size of the blossoms, depth the most of them around one
// vertex, where of any two blossoms that share a vertex one contains the other, as those of Solve do.
func Verify(n int, edges []Edge, m *Matching, opts ...Option) error {
	o := join(opts)
	if err := check(n, edges); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrProof, fmt.Sprintf(format, args...))
	}
	if len(m.Mate) != n || len(m.Dual.Vertex) != n {
		return bad("%d mates and %d prices for %d vertices", len(m.Mate), len(m.Dual.Vertex), n)
	}
	weights, gap, err := m.Dual.weights(n, edges, o)
	if err != nil {
		return err
	}
	if !(m.Gap >= gap) {
		return bad("the gap is %v, not %v", gap, m.Gap)
	}
	chosen := 0
	for v, w := range m.Mate {
		switch {
		case w < -1 || w >= n || w == v:
			return bad("vertex %d has the mate %d", v, w)
		case w >= 0 && m.Mate[w] != v:
			return bad("vertex %d has the mate %d, and that %d", v, w, m.Mate[w])
		case w < 0 && o&Perfect != 0:
			return bad("vertex %d is left out", v)
		case v < w:
			chosen++
		}
		if u := m.Dual.Vertex[v]; u < 0 || w < 0 && u != 0 {
			return bad("vertex %d, with the mate %d, has the price %d", v, w, u)
		}
	}

	// What each edge costs: prices are not negative, so that sums may end at the
	// largest number there is.
	cost := make([]uint64, len(edges))
	for i, e := range edges {
		cost[i] = uint64(m.Dual.Vertex[e.U]) + uint64(m.Dual.Vertex[e.V])
	}
	inside := make([]int, n) // 1 + the last blossom seen around it
	for k, b := range m.Dual.Blossoms {
		if len(b.Vertices)%2 == 0 || b.Price < 0 {
			return bad("blossom %d has %d vertices and the price %d", k, len(b.Vertices), b.Price)
		}
		for _, v := range b.Vertices {
			if v < 0 || v >= n || inside[v] == k+1 {
				return bad("blossom %d contains vertex %d, twice or not of the graph", k, v)
			}
			inside[v] = k + 1
		}
		full := 0
		for _, v := range b.Vertices {
			if w := m.Mate[v]; w > v && inside[w] == k+1 {
				full++
			}
		}
		if b.Price > 0 && full != len(b.Vertices)/2 {
			return bad("blossom %d has the price %d and contains %d edges of the matching, not %d", k, b.Price, full, len(b.Vertices)/2)
		}
	}
	if f, ok := nest(n, m.Dual.Blossoms); ok {
		for i, e := range edges {
			cost[i] = most(cost[i], f.around(e.U, e.V))
		}
	} else {
		crossing(n, edges, m.Dual.Blossoms, cost)
	}
	for i, e := range edges {
		w := max(weights[i], 0)
		taken := m.Mate[e.U] == e.V
		if taken {
			chosen--
		}
		if cost[i] < 2*uint64(w) || taken && (weights[i] < 0 || cost[i] != 2*uint64(w)) {
			return bad("edge %d, of %d and %d, weighs %d and costs %d halves (chosen: %v)", i, e.U, e.V, weights[i], cost[i], taken)
		}
	}
	if chosen != 0 {
		return bad("%d of the pairs are no edges", chosen)
	}
	return nil
}

// most is a + b, or the largest number there is.
func most(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry > 0 {
		return math.MaxUint64
	}
	return sum
}

// nested are blossoms: of any two that share a vertex, one contains the other. The vertices of each are
// adjacent in one order of all vertices.
type nested struct {
	at     []int   // by vertex: its place in that order
	chains [][]set // by vertex: the blossoms around it, the smallest first
}

// set is the places that a blossom has, and the price of it and of all around it.
type set struct {
	from, to int
	price    uint64
}

// noBlossom is the index for a vertex or blossom without an enclosing blossom.
const noBlossom = -1

// nest finds the order; false: two of the blossoms cross.
func nest(n int, blossoms []Blossom) (f nested, ok bool) {
	order := make([]int, len(blossoms)) // larger ones first
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(blossoms[b].Vertices) - len(blossoms[a].Vertices) })
	smallest := slices.Repeat([]int{noBlossom}, n) // by vertex: of the blossoms so far
	parent := make([]int, len(blossoms))
	for _, k := range order {
		vs := blossoms[k].Vertices
		parent[k] = smallest[vs[0]]
		for _, v := range vs {
			if smallest[v] != parent[k] {
				return f, false
			}
			smallest[v] = k
		}
	}
	// Each takes its places from those of its parent, from the front; what is left there is for the parent's own vertices.
	sets, free, front := make([]set, len(blossoms)), make([]int, len(blossoms)), 0
	for _, k := range order {
		next, price := &front, uint64(0)
		if p := parent[k]; p != noBlossom {
			next, price = &free[p], sets[p].price
		}
		sets[k] = set{*next, *next + len(blossoms[k].Vertices), most(price, uint64(blossoms[k].Price))}
		free[k], *next = *next, sets[k].to
	}
	f.at, f.chains = make([]int, n), make([][]set, n)
	for v, k := range smallest {
		next := &front
		if k != noBlossom {
			next = &free[k]
		}
		f.at[v], *next = *next, *next+1
	}
	chain := make([][]set, len(blossoms))
	for _, k := range order {
		chain[k] = []set{sets[k]}
		if p := parent[k]; p != noBlossom {
			chain[k] = append(chain[k], chain[p]...)
		}
	}
	for v, k := range smallest {
		if k != noBlossom {
			f.chains[v] = chain[k]
		}
	}
	return f, true
}

// around is the price of all blossoms around both u and v.
func (f *nested) around(u, v int) uint64 {
	chain, at := f.chains[u], f.at[v]
	k := sort.Search(len(chain), func(k int) bool { return chain[k].from <= at && at < chain[k].to })
	if k == len(chain) {
		return 0
	}
	return chain[k].price
}

// crossing adds to the cost of each edge the prices of the blossoms around it, whatever these are.
func crossing(n int, edges []Edge, blossoms []Blossom, cost []uint64) {
	at := make([][]int, n) // edges of each vertex
	for i, e := range edges {
		at[e.U] = append(at[e.U], i)
	}
	inside := make([]int, n) // 1 + the last blossom seen around it
	for k, b := range blossoms {
		for _, v := range b.Vertices {
			inside[v] = k + 1
		}
		for _, v := range b.Vertices {
			for _, i := range at[v] {
				if inside[edges[i].V] == k+1 {
					cost[i] = most(cost[i], uint64(b.Price))
				}
			}
		}
	}
}

// weights are the scaled weights, and the most that rounding can have cost.
func (d *Dual) weights(n int, edges []Edge, o Option) ([]int64, float64, error) {
	all := o&(MaxCardinality|Perfect) != 0
	ws := make([]int64, len(edges))
	lo, hi, exact := int64(math.MaxInt64), int64(math.MinInt64), true
	for i, e := range edges {
		w := e.Weight
		if o&Minimum != 0 {
			w = -w
		}
		f := math.RoundToEven(math.Ldexp(w, d.Exp))
		if !(math.Abs(f) <= 1<<61) {
			if f < 0 && !all {
				ws[i] = -1 // whatever it is, it is of no use
				continue
			}
			return nil, 0, fmt.Errorf("%w: edge %d weighs %v: too much to be multiplied by 2^%d", ErrProof, i, e.Weight, d.Exp)
		}
		ws[i] = int64(f)
		lo, hi = min(lo, ws[i]), max(hi, ws[i])
		exact = exact && (math.Ldexp(f, -d.Exp) == w || w < 0 && !all)
	}
	if !all {
		if d.Shift != 0 {
			return nil, 0, fmt.Errorf("%w: edges have been made heavier by %d", ErrProof, d.Shift)
		}
	} else if len(edges) > 0 {
		// With weights from 0, see scale: the lightest edge must weigh more than
		// n/2 times the difference between the heaviest and it.
		lightest := new(big.Int).Add(big.NewInt(lo), big.NewInt(d.Shift))
		span := new(big.Int).Sub(big.NewInt(hi), big.NewInt(lo))
		if lightest.Cmp(span.Mul(span, big.NewInt(int64(n/2)))) <= 0 || !new(big.Int).Add(big.NewInt(hi), big.NewInt(d.Shift)).IsInt64() {
			return nil, 0, fmt.Errorf("%w: a shift of %d does not make the heaviest matching one of the largest", ErrProof, d.Shift)
		}
		for i := range ws {
			ws[i] += d.Shift
		}
	}
	if exact {
		return ws, 0, nil
	}
	return ws, math.Ldexp(float64(n/2), -d.Exp), nil
}
