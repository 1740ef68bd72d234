package blossom

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// ErrEdges is in the error of a text that is no list of edges. The error names the
// line.
var ErrEdges = errors.New("not a list of edges")

// Parse reads a list of edges, one a line:
//
//	# a comment, also behind an edge
//	0 1 2.5
//
// joins the vertices 0 and 1 with the weight 2.5. Vertices are whole numbers from
// 0; they need not be dense: names has those that occur, in order, and the ends of
// an edge are places in names. Weights are finite decimal numbers. An edge that joins a vertex to itself, or two
// vertices that another one joins, is an error, and so is whatever else is on a line.
func Parse(text []byte) (names []int, edges []Edge, err error) {
	lines := map[[2]int]int{} // where vertices were joined
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line, _, _ = bytes.Cut(line, []byte("#"))
		words := bytes.Fields(line)
		if len(words) == 0 {
			continue
		}
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%w: line %d: %s", ErrEdges, number, fmt.Sprintf(format, args...))
		}
		if len(words) != 3 {
			return nil, nil, bad("%d words; want \"u v weight\", such as \"0 1 2.5\"", len(words))
		}
		var ends [2]int
		for k := range ends {
			v, err := strconv.ParseUint(string(words[k]), 10, 63)
			if err != nil || v > math.MaxInt {
				return nil, nil, bad("%.40q is no vertex; want a whole number from 0", words[k])
			}
			ends[k] = int(v)
		}
		w, err := strconv.ParseFloat(string(words[2]), 64)
		if err != nil || math.IsNaN(w) || math.IsInf(w, 0) {
			return nil, nil, bad("%.40q is no weight; want a finite number", words[2])
		}
		if ends[0] == ends[1] {
			return nil, nil, bad("vertex %d is joined to itself", ends[0])
		}
		key := [2]int{min(ends[0], ends[1]), max(ends[0], ends[1])}
		if before, ok := lines[key]; ok {
			return nil, nil, bad("%d and %d are joined by line %d already", ends[0], ends[1], before)
		}
		lines[key] = number
		edges = append(edges, Edge{ends[0], ends[1], w})
		names = append(names, ends[0], ends[1])
	}
	slices.Sort(names)
	names = slices.Clip(slices.Compact(names))
	for i, e := range edges {
		edges[i].U, _ = slices.BinarySearch(names, e.U)
		edges[i].V, _ = slices.BinarySearch(names, e.V)
	}
	return names, edges, nil
}

// AppendTo appends the edge's line to dst, as Parse reads it; names are those of
// the vertices, nil for their numbers.
func (e Edge) AppendTo(dst []byte, names []int) []byte {
	u, v := e.U, e.V
	if names != nil {
		u, v = names[u], names[v]
	}
	dst = strconv.AppendInt(dst, int64(u), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(v), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendFloat(dst, e.Weight, 'g', -1, 64)
	return append(dst, '\n')
}
