package originals

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/blossom"
	"star/sched"
)

// TestHungarian: assignments cost what those of another method cost, no more.
func TestHungarian(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for round := range 300 {
		rows := 1 + r.IntN(12)
		columns := 1 + r.IntN(rows)
		cost := make([][]float64, rows)
		turned := make([][]float64, columns)
		for i := range cost {
			for j := range columns {
				cost[i] = append(cost[i], float64(r.IntN(9)))
				turned[j] = append(turned[j], cost[i][j])
			}
		}
		want, err := blossom.Assign(turned)
		if err != nil {
			t.Fatal(err)
		}
		given := make([][]float64, rows)
		for i := range cost {
			given[i] = slices.Clone(cost[i])
		}
		sum, seen := 0., map[int]bool{}
		for i, j := range hungarian(given, columns) {
			if seen[j] || j < 0 || j >= rows {
				t.Fatalf("round %d: column %d is given to row %d", round, j, i)
			}
			seen[j] = true
			if j < columns {
				sum += cost[i][j]
			}
		}
		if math.Abs(sum-want.Cost) > 1e-9 {
			t.Fatalf("round %d: %v costs %v, and could cost %v", round, cost, sum, want.Cost)
		}
	}
}

// TestHashOrder: the table is larger the more jobs it has.
func TestHashOrder(t *testing.T) {
	jobs := func(ids ...int) (all []*single) {
		for _, id := range ids {
			all = append(all, &single{Outcome: &sched.Outcome{Job: &sched.Job{ID: fmt.Sprint(id)}}})
		}
		return all
	}
	for _, c := range []struct{ ids, want []int }{
		{[]int{13, 19, 16, 35}, []int{16, 19, 35, 13}},
		{[]int{17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17}},
		{[]int{65536, 1}, []int{65536, 1}},
	} {
		var got []string
		for _, j := range inHashOrder(jobs(c.ids...)) {
			got = append(got, j.ID)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v: %v, want %v", c.ids, got, c.want)
		}
	}
}

// TestHungarianIsPlain: among equally good assignments the result is the one that the method reaches when each column
// has a price of its own.
func TestHungarianIsPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for round := range 400 {
		columns, machines := 1+r.IntN(7), 1+r.IntN(5)
		cost := make([][]float64, columns*machines)
		plain := make([][]float64, len(cost))
		from, takes := make([]float64, machines), make([]float64, columns*machines)
		for i := range from {
			from[i] = float64(r.IntN(4)) * r.Float64()
		}
		for i := range takes {
			takes[i] = float64(1+r.IntN(5)) / float64(1+round%3)
		}
		for i := range cost {
			m := i % machines
			for j := range columns {
				cost[i] = append(cost[i], from[m]+float64(i/machines+1)*takes[j*machines+m])
			}
			plain[i] = slices.Clone(cost[i])
		}
		for i, j := range plainHungarian(plain, columns) {
			if got := hungarian(clones(cost), columns)[i]; got != j && (got < columns || j < columns) {
				t.Fatalf("round %d, %d columns, %d machines: row %d has column %d, want %d",
					round, columns, machines, i, got, j)
			}
		}
	}
}

func clones(rows [][]float64) (all [][]float64) {
	for _, r := range rows {
		all = append(all, slices.Clone(r))
	}
	return all
}

// plainHungarian is hungarian with a price for each column.
func plainHungarian(cost [][]float64, columns int) []int {
	n := len(cost)
	h := &plainLabels{
		cost: cost, columns: columns,
		row: make([]float64, n), column: make([]float64, n), has: make([]int, n), of: make([]int, n),
	}
	if columns == n {
		for _, c := range cost {
			least := slices.Min(c)
			for j := range c {
				c[j] -= least
			}
		}
	}
	for j := range columns {
		least := math.Inf(1)
		for _, c := range cost {
			least = min(least, c[j])
		}
		for _, c := range cost {
			c[j] -= least
		}
	}
	for i := range n {
		h.has[i], h.of[i] = -1, -1
	}
	for i := range n {
		for j := 0; j < n && h.has[i] < 0; j++ {
			if h.of[j] < 0 && h.left(i, j) == 0 {
				h.has[i], h.of[j] = j, i
			}
		}
	}
	for i := range n {
		if h.has[i] < 0 {
			h.augment(i)
		}
	}
	return h.has
}

// plainLabels are prices of rows and columns; no cell costs less than both together.
type plainLabels struct {
	cost        [][]float64
	columns     int // that have costs
	row, column []float64
	has, of     []int // the column of a row, the row of a column; -1: none
}

// left is what a cell costs beyond the prices.
func (h *plainLabels) left(i, j int) float64 {
	c := 0.
	if j < h.columns {
		c = h.cost[i][j]
	}
	return c - h.row[i] - h.column[j]
}

// augment gives a row a column, on the shortest alternating path.
func (h *plainLabels) augment(start int) {
	n := len(h.row)
	slack, by, parent := make([]float64, n), make([]int, n), make([]int, n)
	for j := range n {
		slack[j], by[j], parent[j] = h.left(start, j), start, -1
	}
	for reached := []int{start}; ; {
		next, least := -1, math.Inf(1)
		for j := range n {
			if parent[j] < 0 && slack[j] < least {
				next, least = j, slack[j]
			}
		}
		if least > 0 {
			for _, i := range reached {
				h.row[i] += least
			}
			for j := range n {
				if parent[j] < 0 {
					slack[j] -= least
				} else {
					h.column[j] -= least
				}
			}
		}
		parent[next] = by[next]
		i := h.of[next]
		if i < 0 {
			for j := next; j >= 0; {
				r := parent[j]
				h.of[j] = r
				h.has[r], j = j, h.has[r]
			}
			return
		}
		reached = append(reached, i)
		for j := range n {
			if parent[j] < 0 {
				if s := h.left(i, j); s < slack[j] {
					slack[j], by[j] = s, i
				}
			}
		}
	}
}
