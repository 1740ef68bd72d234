package estimate

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
)

// Table is what models learn from: rows of features, and the value to predict for each. Categories are numbers, too
// (TargetCodes).
type Table struct {
	X [][]float64 // by row, then by feature
	Y []float64
}

func (t Table) check() error {
	if len(t.X) == 0 || len(t.X) != len(t.Y) {
		return fmt.Errorf("%d rows with %d values to learn: want as many, and one at least", len(t.X), len(t.Y))
	}
	for i, row := range t.X {
		if len(row) != len(t.X[0]) || len(row) == 0 {
			return fmt.Errorf("row %d has %d features, the first one %d: want as many, and one at least", i, len(row), len(t.X[0]))
		}
		for _, v := range append(row[:len(row):len(row)], t.Y[i]) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("row %d has a %v: want finite numbers", i, v)
			}
		}
	}
	return nil
}

// mostBins is how many values of a feature are distinguished.
const mostBins = 256

// binned is rows as bins: bin k of a feature contains the values up to edge k and above edge k-1.
type binned struct {
	edges [][]float64 // by feature, ascending
	bin   [][]uint8   // by feature, then by row
}

// binning cuts each feature between values: between all if there are few, else into bins of about equal size.
func binning(x [][]float64, most int) *binned {
	b := &binned{}
	for j := range x[0] {
		column := make([]float64, len(x))
		for i := range x {
			column[i] = x[i][j]
		}
		slices.Sort(column)
		var edges []float64
		few, last := distinct(column) <= most, 0 // rows below the last edge
		for i := 1; i < len(column); i++ {
			if column[i] > column[i-1] {
				if few || float64(i-last) >= float64(len(column))/float64(most) && len(edges) < most-1 {
					edges, last = append(edges, column[i-1]+(column[i]-column[i-1])/2), i
				}
			}
		}
		b.edges = append(b.edges, edges)
		bins := make([]uint8, len(x))
		for i := range x {
			bins[i] = uint8(binOf(edges, x[i][j]))
		}
		b.bin = append(b.bin, bins)
	}
	return b
}

func distinct(sorted []float64) (n int) {
	for i, v := range sorted {
		if i == 0 || v > sorted[i-1] {
			n++
		}
	}
	return n
}

// binOf returns the bin of a value.
func binOf(edges []float64, v float64) int {
	i, _ := slices.BinarySearch(edges, v)
	return i
}

// Tree is a decision tree of least squares: of numbers (Grow), or of classes (GrowClasses), for which that is Gini's
// impurity.
//
// Source: Breiman, Friedman, Olshen, Stone, Classification and Regression Trees, 1984.
type Tree struct {
	nodes []node
}

// node is a node of a tree. Rows with a feature of at most at go left.
type node struct {
	feature     int // -1: a leaf
	at          float64
	left, right int
	value       []float64 // mean over the rows
	rows        float64
	squares     float64 // sum of the rows' squared distances to value
}

// Limits limit how far a tree grows.
type Limits struct {
	Depth int // largest number of splits above a leaf; 0: no limit
	Leaf  int // smallest number of rows of a leaf; 0: 1
}

// Grow builds a tree that predicts a number.
func Grow(t Table, l Limits) (*Tree, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	y := make([][]float64, len(t.Y))
	for i, v := range t.Y {
		y[i] = []float64{v}
	}
	return grow(binning(t.X, mostBins), y, l), nil
}

// GrowClasses builds a tree that predicts probabilities of classes: Y holds their numbers, from 0.
func GrowClasses(t Table, classes int, l Limits) (*Tree, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	y := make([][]float64, len(t.Y))
	for i, v := range t.Y {
		if v != math.Trunc(v) || v < 0 || v >= float64(classes) {
			return nil, fmt.Errorf("row %d is of class %v: want 0 to %d", i, v, classes-1)
		}
		y[i] = make([]float64, classes)
		y[i][int(v)] = 1
	}
	return grow(binning(t.X, mostBins), y, l), nil
}

func grow(b *binned, y [][]float64, l Limits) *Tree {
	rows := make([]int, len(y))
	for i := range rows {
		rows[i] = i
	}
	t := &Tree{}
	t.add(b, y, rows, l, 0)
	return t
}

// add adds a node for rows, and those below it.
func (t *Tree) add(b *binned, y [][]float64, rows []int, l Limits, depth int) int {
	n := node{feature: -1, value: make([]float64, len(y[0])), rows: float64(len(rows))}
	for _, i := range rows {
		for k, v := range y[i] {
			n.value[k] += v / n.rows
		}
	}
	for _, i := range rows {
		for k, v := range y[i] {
			n.squares += (v - n.value[k]) * (v - n.value[k])
		}
	}
	at := len(t.nodes)
	t.nodes = append(t.nodes, n)
	if n.squares <= 1e-12*n.rows || l.Depth > 0 && depth >= l.Depth {
		return at
	}
	feature, edge := bestCut(b, y, rows, n.value, max(l.Leaf, 1))
	if feature < 0 {
		return at
	}
	var left, right []int
	for _, i := range rows {
		if int(b.bin[feature][i]) <= edge {
			left = append(left, i)
		} else {
			right = append(right, i)
		}
	}
	lo := t.add(b, y, left, l, depth+1)
	hi := t.add(b, y, right, l, depth+1)
	t.nodes[at].feature, t.nodes[at].at, t.nodes[at].left, t.nodes[at].right = feature, b.edges[feature][edge], lo, hi
	return at
}

// bestCut returns the cut that leaves the fewest squares, the first of equals, or -1 if none helps. Values are taken
// relative to their mean, to avoid rounding errors.
func bestCut(b *binned, y [][]float64, rows []int, mean []float64, leaf int) (feature, edge int) {
	feature, most := -1, 1e-12
	outputs := len(mean)
	for j, edges := range b.edges {
		if len(edges) == 0 {
			continue
		}
		count, sum := make([]float64, len(edges)+1), make([]float64, (len(edges)+1)*outputs)
		for _, i := range rows {
			k := int(b.bin[j][i])
			count[k]++
			for o, v := range y[i] {
				sum[k*outputs+o] += v - mean[o]
			}
		}
		n, below := 0., make([]float64, outputs)
		for k := range edges {
			n += count[k]
			gain := 0.
			for o := range below {
				below[o] += sum[k*outputs+o]
				gain += below[o] * below[o]
			}
			rest := float64(len(rows)) - n
			if count[k] == 0 || n < float64(leaf) || rest < float64(leaf) {
				continue
			}
			if gain *= 1/n + 1/rest; gain > most*(1+1e-12) {
				feature, edge, most = j, k, gain
			}
		}
	}
	return feature, edge
}

// Prune removes leaves that are not worth it: afterwards the tree has the least sum of squares over all rows plus alpha
// per leaf (minimal cost-complexity).
func (t *Tree) Prune(alpha float64) {
	all := t.nodes[0].rows
	var cost func(at int) float64
	cost = func(at int) float64 {
		n := &t.nodes[at]
		alone := n.squares/all + alpha
		if n.feature < 0 {
			return alone
		}
		if below := cost(n.left) + cost(n.right); below < alone {
			return below
		}
		n.feature = -1
		return alone
	}
	cost(0)
}

// Leaves returns the number of leaves.
func (t *Tree) Leaves() int {
	var below func(at int) int
	below = func(at int) int {
		n := t.nodes[at]
		if n.feature < 0 {
			return 1
		}
		return below(n.left) + below(n.right)
	}
	return below(0)
}

// Shares returns the means of a row's leaf: one number, or the fraction of each class.
func (t *Tree) Shares(x []float64) []float64 {
	n := t.nodes[0]
	for n.feature >= 0 {
		if x[n.feature] <= n.at {
			n = t.nodes[n.left]
		} else {
			n = t.nodes[n.right]
		}
	}
	return n.value
}

// Predict returns the prediction of a tree of Grow for a row.
func (t *Tree) Predict(x []float64) float64 { return t.Shares(x)[0] }

// Class returns the most probable class by a tree of GrowClasses for a row, the first of equals.
func (t *Tree) Class(x []float64) int { return floats.MaxIdx(t.Shares(x)) }
