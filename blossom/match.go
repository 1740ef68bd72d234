package blossom

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Edge joins the vertices U and V.
type Edge struct {
	U, V   int
	Weight float64
}

// Option changes what is looked for. Options may be combined.
type Option uint8

const (
	// MaxCardinality asks for the heaviest of the matchings with the most edges.
	// Without it an edge of negative weight is never chosen.
	MaxCardinality Option = 1 << iota
	// Perfect asks for the heaviest of the matchings that leave no vertex out, and
	// for ErrNotPerfect if no perfect one exists
	Perfect
	// Minimum asks for the lightest matching instead of the heaviest. By itself
	// it chooses edges of negative weight only.
	Minimum
)

// ErrInput says that a graph cannot be matched: a vertex that is not there, a
// self-loop, a duplicate, a weight that is not finite.
var ErrInput = errors.New("blossom: bad graph")

// ErrNotPerfect says that every matching leaves a vertex out.
var ErrNotPerfect = errors.New("blossom: no perfect matching")

// Matching is what Solve finds.
type Matching struct {
	// Mate is the other end of each vertex's edge, −1 without an edge.

	Mate []int
	// Weight is the sum of the weights of the edges chosen, in order of their
	// first vertex.
	Weight float64
	// Gap is the most by which another matching might be better, because of the
	// rounding of weights. Zero: none is.
	Gap float64
	// Dual proves it; see Verify.
	Dual Dual
}

// Pairs are the edges chosen, each with the smaller vertex first, in order of it.
func (m *Matching) Pairs() [][2]int { return pairs(m.Mate) }

func pairs(mate []int) [][2]int {
	var ps [][2]int
	for v, w := range mate {
		if v < w {
			ps = append(ps, [2]int{v, w})
		}
	}
	return ps
}

// Match finds a maximum-weight matching of the graph with vertices 0 to n−1.
// mate[v] is the vertex that v is matched with, −1 if it is left alone.
//
// Weights are rounded to multiples of a power of two, 2^−k: the largest k for
// which the largest weight is at most 2^59 of them; with MaxCardinality or Perfect the
// largest for which (n/2+2)·(largest − smallest weight) is. Where all weights
// are such multiples, as integers up to 2^52 in magnitude are (with the options, while that
// product is at most 2^59), the result is exact. Elsewhere it weighs at most n/2·2^−k
// less than the best, a part of 10^−17·n of the largest weight, or of 10^−17·n² with the
// options.
//
// A graph that cannot be matched gives an error that is ErrInput and names the edge.
func Match(n int, edges []Edge, opts ...Option) (mate []int, err error) {
	m, err := Solve(n, edges, opts...)
	if err != nil {
		return nil, err
	}
	return m.Mate, nil
}

// Solve is Match with the proof that nothing is better.
func Solve(n int, edges []Edge, opts ...Option) (*Matching, error) {
	o := join(opts)
	if err := check(n, edges); err != nil {
		return nil, err
	}
	r := scale(edges, o, n/2)
	s, err := newSolver(n, edges, r.weights)
	if err != nil {
		return nil, err
	}
	s.solve()
	m := &Matching{Mate: make([]int, n), Gap: r.gap, Dual: s.dual()}
	m.Dual.Exp, m.Dual.Shift = r.exp, r.shift
	left := 0
	for v := range m.Mate {
		m.Mate[v] = int(s.mate[v])
		if s.mate[v] < 0 {
			left++
		}
	}
	if o&Perfect != 0 && left > 0 {
		return nil, fmt.Errorf("%w: every matching of these %d vertices leaves at least %d out", ErrNotPerfect, n, left)
	}
	m.Weight = weigh(m.Mate, edges)
	return m, nil
}

// join makes one set of the options.
func join(opts []Option) (o Option) {
	for _, x := range opts {
		o |= x
	}
	return o
}

// weigh adds up the weights of the edges of a matching, in order of the vertices.
func weigh(mate []int, edges []Edge) float64 {
	at := make([]float64, len(mate))
	for _, e := range edges {
		if mate[e.U] == e.V {
			at[min(e.U, e.V)] = e.Weight
		}
	}
	sum := 0.0
	for _, w := range at {
		sum += w
	}
	return sum
}

// maxVertices bounds the number of vertices, and of edges: their numbers fit 32 bits.
const maxVertices = 1 << 30

func check(n int, edges []Edge) error {
	if n < 0 || n > maxVertices || len(edges) > maxVertices {
		return fmt.Errorf("%w: %d vertices and %d edges; want 0 to %d of each", ErrInput, n, len(edges), maxVertices)
	}
	for i, e := range edges {
		switch {
		case e.U < 0 || e.U >= n || e.V < 0 || e.V >= n:
			return fmt.Errorf("%w: edge %d joins %d and %d; vertices are 0 to %d", ErrInput, i, e.U, e.V, n-1)
		case e.U == e.V:
			return fmt.Errorf("%w: edge %d joins vertex %d to itself", ErrInput, i, e.U)
		case math.IsNaN(e.Weight) || math.IsInf(e.Weight, 0):
			return fmt.Errorf("%w: edge %d, of %d and %d, has the weight %v; want a finite number", ErrInput, i, e.U, e.V, e.Weight)
		}
	}
	return nil
}

// distinct finds two edges that join the same vertices.
func distinct(n int, edges []Edge) error {
	_, err := newSolver(n, edges, make([]int64, len(edges)))
	return err
}

// limit is the largest scaled weight. Duals stay below 2 of it, the keys of a
// search below 8, which leaves int64 a bit.
const limit = 1 << 59

// scaled is a graph's weights as integers: round(±w·2^exp) + shift. What is not
// positive is of no use.
type scaled struct {
	weights []int64
	exp     int
	shift   int64
	gap     float64
}

// scale makes weights integers. most is the number of edges that a solution may
// have.
//
// The heaviest of the largest matchings is the heaviest one when every edge
// weighs shift more: let M have k edges and not be of the largest, and W(k) be the most
// that k edges weigh. Some M' of k+1 edges differs from M along one path, of j old and j+1 new edges. With
// weights from 0 to R it loses at most j·R, j < most, by that, and gains
// shift > (most+1)·R.
func scale(edges []Edge, o Option, most int) scaled {
	var r scaled
	r.weights = make([]int64, len(edges))
	if len(edges) == 0 {
		return r
	}
	sign := 1.0
	if o&Minimum != 0 {
		sign = -1
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, e := range edges {
		lo, hi = min(lo, sign*e.Weight), max(hi, sign*e.Weight)
	}
	all := o&(MaxCardinality|Perfect) != 0
	if !all && hi <= 0 {
		return r
	}
	size := hi
	if all {
		size = max(math.Abs(lo), math.Abs(hi))
	}
	_, e := math.Frexp(size) // size < 2^e; 0 of 0
	r.exp = 59 - e
	if all {
		for r.exp = 61 - e; ; r.exp-- { // both below 2^61, their difference below 2^62
			span := round(hi, r.exp) - round(lo, r.exp)
			over, product := bits.Mul64(uint64(most)+2, uint64(span)+1)
			if over == 0 && product <= limit {
				r.shift = int64(product) - span - round(lo, r.exp)
				break
			}
		}
	}
	exact := true
	for i, e := range edges {
		w := sign * e.Weight
		if !all && w <= 0 {
			continue
		}
		k := round(w, r.exp)
		exact = exact && math.Ldexp(float64(k), -r.exp) == w
		r.weights[i] = k + r.shift
	}
	if !exact {
		r.gap = math.Ldexp(float64(most), -r.exp)
	}
	return r
}

// round is w·2^exp as an integer.
func round(w float64, exp int) int64 { return int64(math.RoundToEven(math.Ldexp(w, exp))) }
