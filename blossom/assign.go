package blossom

import (
	"fmt"
	"math"
)

// Assignment is what Assign finds.
type Assignment struct {
	// Column is which column each row has; no two have the same.
	Column []int
	// Cost is the sum of what they cost, in order of the rows.
	Cost float64
	// Rows and Columns are the prices that prove it: no cell costs less than the price of its row and the price of its
	// column together, chosen cells cost exactly that, columns without a row have the price 0 and the others no more.
	Rows, Columns []float64
}

// Assign gives each of n rows a column of its own, so that the chosen cells cost the least together. Rows have equally
// many columns, n or more. +Inf is a cell that may not be chosen. Costs that are whole and add up to less than 2^53 are
// exact; others are off by what adding them rounds, which Gap bounds. The same costs give the same assignment.
//
// A cost that is NaN or −Inf, rows of different lengths, or more rows than columns give an error that is ErrInput; rows
// that have too few columns that may be chosen give one that is ErrNotPerfect and names one of them.
//
// It is a primal-dual method. For each row in turn it looks for the cheapest path of cells, a chosen one after each
// other one, from the row to a column that is free, as Dijkstra's algorithm does, with costs less prices as lengths,
// and turns the path over. It takes O(n²·m) for n rows of m columns: rectangles are not padded to squares.
//
// Source: R. Jonker, A. Volgenant: A Shortest Augmenting Path Algorithm for Dense and Sparse Linear Assignment
// Problems. Computing 38, 1987; for rectangles D. F. Crouse: On Implementing 2D Rectangular Assignment Algorithms. IEEE
// Trans. Aerospace and Electronic Systems 52(4), 2016.
func Assign(cost [][]float64) (*Assignment, error) {
	n, m := len(cost), 0
	if n > 0 {
		m = len(cost[0])
	}
	if err := checkCosts(cost, m); err != nil {
		return nil, err
	}
	a := &Assignment{Column: make([]int, n), Rows: make([]float64, n), Columns: make([]float64, m)}
	s := paths{row: make([]int, m), from: make([]int, m), length: make([]float64, m), left: make([]int, 0, m)}
	for j := range s.row {
		s.row[j] = -1
	}
	for i := range cost {
		a.Column[i] = -1
	}
	for i := range cost {
		end, far := s.search(cost, a, i)
		if end < 0 {
			return nil, fmt.Errorf("%w: row %d finds no column of its own beside the rows before it", ErrNotPerfect, i)
		}
		a.Rows[i] += far
		for _, j := range s.seen { // of shorter paths
			d := far - s.length[j]
			a.Columns[j] -= d
			a.Rows[s.row[j]] += d
		}
		for j := end; ; {
			r := s.from[j]
			s.row[j] = r
			j, a.Column[r] = a.Column[r], j
			if r == i {
				break
			}
		}
	}
	for i, j := range a.Column {
		a.Cost += cost[i][j]
	}
	return a, nil
}

func checkCosts(cost [][]float64, m int) error {
	if len(cost) > m {
		return fmt.Errorf("%w: %d rows and %d columns; want no more rows than columns: turn the table over", ErrInput, len(cost), m)
	}
	for i, row := range cost {
		if len(row) != m {
			return fmt.Errorf("%w: row %d has %d columns, row 0 has %d", ErrInput, i, len(row), m)
		}
		for j, c := range row {
			if math.IsNaN(c) || math.IsInf(c, -1) {
				return fmt.Errorf("%w: row %d, column %d costs %v; want a number, or +Inf where it may not be chosen", ErrInput, i, j, c)
			}
		}
	}
	return nil
}

// paths is a search for the shortest path.
type paths struct {
	row    []int     // that has a column; −1: it is free
	from   []int     // row before a column on the shortest path to it that is known
	length []float64 // of that path
	left   []int     // columns with a path that may still become shorter
	seen   []int     // columns with the shortest path known, except for the last one
}

// search finds the shortest path from a row to a free column, and its length. −1: there is no path.
func (s *paths) search(cost [][]float64, a *Assignment, i int) (end int, far float64) {
	s.left, s.seen = s.left[:0], s.seen[:0]
	for j := range s.row {
		s.length[j] = math.Inf(1)
		s.left = append(s.left, j)
	}
	for {
		next, best := -1, math.Inf(1)
		base, costs := far-a.Rows[i], cost[i]
		for k, j := range s.left {
			if d := base + costs[j] - a.Columns[j]; d < s.length[j] {
				s.length[j], s.from[j] = d, i
			}
			// Of columns that are as far a free one ends the search.
			if d := s.length[j]; d < best || d == best && next >= 0 && s.row[j] < 0 && s.row[s.left[next]] >= 0 {
				next, best = k, d
			}
		}
		if next < 0 {
			return -1, 0
		}
		j := s.left[next]
		far = best
		if s.row[j] < 0 {
			return j, far
		}
		s.seen = append(s.seen, j)
		s.left[next] = s.left[len(s.left)-1]
		s.left = s.left[:len(s.left)-1]
		i = s.row[j]
	}
}

// Gap checks that each row has a column of its own, and says by how much another assignment could cost less at most, as
// the prices of the columns prove: every row costs its cheapest cell less the price of its column, at least. It knows
// nothing of how the assignment was found.
func (a *Assignment) Gap(cost [][]float64) (float64, error) {
	if len(a.Column) != len(cost) {
		return 0, fmt.Errorf("blossom: %d rows have a column, of %d", len(a.Column), len(cost))
	}
	taken := map[int]int{}
	sum, bound := 0., 0.
	for i, j := range a.Column {
		if j < 0 || j >= len(a.Columns) || j >= len(cost[i]) {
			return 0, fmt.Errorf("blossom: row %d has column %d, which is not there", i, j)
		}
		if other, twice := taken[j]; twice {
			return 0, fmt.Errorf("blossom: rows %d and %d have the same column %d", other, i, j)
		}
		taken[j] = i
		sum += cost[i][j]
		least := math.Inf(1)
		for k, c := range cost[i] {
			least = min(least, c-a.Columns[k])
		}
		bound += least
	}
	for j, v := range a.Columns {
		if v > 0 {
			return 0, fmt.Errorf("blossom: column %d has the price %v; want 0 or less", j, v)
		}
		bound += v // an assignment pays for each column at most once
	}
	return max(0, sum-bound), nil
}
