package originals

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// match assigns jobs to places on machines: a machine's k-th place from the last one counts k times the duration of its
// job, since k jobs wait for that. It also returns which job is the first one of a free machine. Nil: no assignment.
//
// Of equally good assignments it has the simulator's: machines have numbers, those with a GPU the lowest; jobs are in
// the order of a hash table of their ids; of machines that are free the one with the highest number starts its first
// job. Runs of parts have the free machines with the lowest numbers, each as if it were free at once, but nothing
// starts there. The machine of a job that starts is taken, until the job ends, for the duration of all jobs that
// are assigned to it now, also those that start elsewhere later. Sums are rounded as there, since sums that are equal
// except for rounding are not equal there.
func (e *mixed) match(jobs []*single) (first *single, kind int) {
	jobs = inHashOrder(jobs)
	type machine struct {
		kind int
		from float64 // when it is free, according to its plan
		free bool
	}
	machines := make([]machine, e.machines[onGPU]+e.machines[onCPU])
	for i := range machines {
		machines[i] = machine{onGPU, e.now, true}
		if i >= e.machines[onGPU] {
			machines[i].kind = onCPU
		}
	}
	var runs [kinds]int
	for _, j := range e.running {
		if j.batch == nil {
			machines[j.machine] = machine{j.kind, max(e.now, j.planned), false}
		} else {
			runs[j.kind]++
		}
	}
	for i := range machines {
		if m := &machines[i]; m.free && runs[m.kind] > 0 {
			m.free = false
			runs[m.kind]--
		}
	}
	cost := make([][]float64, len(jobs)*len(machines))
	for i := range cost {
		m := machines[i%len(machines)]
		for _, j := range jobs {
			cost[i] = append(cost[i], (m.from-j.Submit)+float64(float64(i/len(machines)+1)*j.estimate[m.kind]))
		}
	}
	best, last := -1, 0
	has := hungarian(cost, len(jobs))
	for i, j := range has {
		place, at := i/len(machines), i%len(machines)
		if j < len(jobs) && machines[at].free && (at > best || at == best && place > last) {
			best, last, first = at, place, jobs[j]
		}
	}
	if first == nil {
		return nil, 0
	}
	first.machine, first.planned = best, e.now
	for i := best; i < len(has); i += len(machines) {
		if has[i] < len(jobs) {
			first.planned += jobs[has[i]].estimate[machines[best].kind]
		}
	}
	return first, machines[best].kind
}

// inHashOrder puts jobs in the order of a table of at least 16 chains, a power of two, that is at most three quarters
// full: by the remainders of their ids, and of ids that are no numbers of their places.
func inHashOrder(jobs []*single) []*single {
	chains := uint32(16)
	for 4*len(jobs) > 3*int(chains) {
		chains *= 2
	}
	chain := map[*single]uint32{}
	for i, j := range jobs {
		id, err := strconv.Atoi(j.ID)
		if err != nil {
			id = i
		}
		h := uint32(id)
		chain[j] = (h ^ h>>16) % chains
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b *single) int { return cmp.Compare(chain[a], chain[b]) })
	return jobs
}

// hungarian assigns rows to as many columns: the first columns have costs, all others cost 0. It returns the column of
// each row.
//
// Where several assignments are best it is the one that the Hungarian method finds from these rows in this order: rows
// take the first column that costs them no more than the cheapest cell of the column, and each row that is left over
// finds the shortest alternating path to a column, the first of equal ones. Columns without costs differ in their order
// alone, so that one price and one slack do for all of them; with m columns that have costs and n rows it takes O(n
// m²).
//
// Source: H. W. Kuhn: The Hungarian Method for the Assignment Problem. Naval Research Logistics Quarterly 2, 1955, with
// slacks.
func hungarian(cost [][]float64, columns int) []int {
	n := len(cost)
	h := &labels{
		cost: cost, row: make([]float64, n), column: make([]float64, columns), has: make([]int, n), of: make([]int, n),
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
	others := columns
	for i, c := range cost {
		for j := 0; j < columns && h.has[i] < 0; j++ {
			if h.of[j] < 0 && c[j] == 0 {
				h.has[i], h.of[j] = j, i
			}
		}
		if h.has[i] < 0 && others < n {
			h.has[i], h.of[others] = others, i
			others++
		}
	}
	for i := range n {
		if h.has[i] < 0 {
			h.augment(i)
		}
	}
	return h.has
}

// labels are prices of rows and columns; no cell costs less than both together.
type labels struct {
	cost        [][]float64
	row, column []float64 // of columns that have costs
	other       float64   // of each other column
	has, of     []int     // the column of a row, the row of a column; -1: none
}

// augment gives a row a column, on the shortest alternating path.
func (h *labels) augment(start int) {
	n, columns := len(h.row), len(h.column)
	slack, by, parent := make([]float64, columns), make([]int, columns), make([]int, n)
	for j := range parent {
		parent[j] = -1
	}
	// The other columns are reached in their order, at the same slack.
	others, otherSlack, otherBy := columns, math.Inf(1), -1
	for j := range slack {
		slack[j] = math.Inf(1)
	}
	reached := make([]int, 0, n)
	for i := start; i >= 0; {
		reached = append(reached, i)
		price, cost := h.row[i], h.cost[i]
		for j, column := range h.column {
			if s := cost[j] - price - column; s < slack[j] && parent[j] < 0 {
				slack[j], by[j] = s, i
			}
		}
		if s := -price - h.other; s < otherSlack {
			otherSlack, otherBy = s, i
		}
		next, least := -1, math.Inf(1)
		for j, s := range slack {
			if s < least && parent[j] < 0 {
				next, least = j, s
			}
		}
		if others < n && otherSlack < least {
			next, least = others, otherSlack
		}
		if least > 0 {
			h.raise(least, reached, parent, slack)
			if others > columns {
				h.other -= least
			} else {
				otherSlack -= least
			}
		}
		if next < columns {
			parent[next] = by[next]
		} else {
			parent[next] = otherBy
			others++
		}
		if i = h.of[next]; i >= 0 {
			continue
		}
		for j := next; j >= 0; {
			r := parent[j]
			h.of[j] = r
			h.has[r], j = j, h.has[r]
		}
	}
}

// raise changes the prices of reached columns, so that another column is no more expensive than its prices.
func (h *labels) raise(by float64, reached, parent []int, slack []float64) {
	for _, i := range reached {
		h.row[i] += by
	}
	for j := range slack {
		if parent[j] < 0 {
			slack[j] -= by
		} else {
			h.column[j] -= by
		}
	}
}
