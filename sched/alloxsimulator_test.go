package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/blossom"
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
			all = append(all, &single{Outcome: Outcome{Job: &Job{ID: fmt.Sprint(id)}}})
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
