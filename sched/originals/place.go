package originals

import "slices"

// nodes places all jobs of a round, also those that had GPUs before. The list of free nodes keeps its order from round
// to round.
type nodes struct {
	gpus     int   // of a node
	inSwitch int   // nodes of a switch
	free     []int // in the order in which they are taken
	used     []int // GPUs of each node
}

// group is what the program takes for the GPUs of a job: the first of them, and how many they are.
type group struct{ first, gpus int }

// site is where a job runs.
type site struct {
	nodes []int // in the order in which they were taken
	gpus  int   // on each of them
	group group
}

func newNodes(count, inSwitch, gpus int) *nodes {
	n := &nodes{gpus: gpus, inSwitch: inSwitch, used: make([]int, count)}
	for i := range count {
		n.free = append(n.free, i)
	}
	return n
}

// number is a node's number within its switch.
func (n *nodes) number(node int) int { return node % n.inSwitch }

// release frees a site. A node that becomes free is placed after the free ones with the same number or a lower one, as
// the program sorts its list, stably, after each job.
func (n *nodes) release(s *site) {
	for _, node := range s.nodes {
		if n.used[node] -= s.gpus; n.used[node] == 0 {
			n.free = append(n.free, node)
		}
	}
	slices.SortStableFunc(n.free, func(a, b int) int { return n.number(a) - n.number(b) })
	*s = site{}
}

// take takes the first free node.
func (n *nodes) take() int {
	node := n.free[0]
	n.free = slices.Delete(n.free, 0, 1)
	return node
}

// place assigns nodes to jobs: jobs of whole nodes first, then the others, the largest first, each on the node opened
// last or on the next one.
func (n *nodes) place(jobs []*elastic) {
	for _, j := range jobs {
		if j.n < n.gpus {
			continue
		}
		j.site.gpus = n.gpus
		for range j.n / n.gpus {
			j.site.nodes = append(j.site.nodes, n.take())
		}
		j.site.group = group{slices.Min(j.site.nodes) * n.gpus, j.n}
		for _, node := range j.site.nodes {
			n.used[node] = n.gpus
		}
	}
	open, left := 0, 0
	for size := n.gpus / 2; size > 0; size /= 2 {
		for _, j := range jobs {
			if j.n != size {
				continue
			}
			if left < size {
				open, left = n.take(), n.gpus
			}
			j.site = site{[]int{open}, size, group{open*n.gpus + n.gpus - left, size}}
			left -= size
			n.used[open] += size
		}
	}
}

// overhead is what a round costs a job that runs: base, and more if its group is new, most of all when the groups are
// forgotten.
func overhead(cluster int, g group, known, forgotten bool) float64 {
	base, again := 2., 27.
	if cluster >= 256 {
		base, again = 7, 47
	}
	if known {
		return base
	}
	for n := 1; n <= g.gpus; n *= 2 {
		base += 2
	}
	if forgotten {
		return base + again
	}
	return base
}

// again returns the rounds, counted from 1, in which all groups are forgotten, so that each job restarts: every round
// with a number minus one that is a multiple of a slot's seconds.
func again(round int, slot float64) bool { return round > 1 && (round-1)%int(slot) == 0 }

// groups are those that jobs have had.
type groups struct {
	known map[group]bool
	round int // counted from 1
}

// charge sets the cost of this round for some jobs.
func (g *groups) charge(cluster int, slot float64, jobs []*elastic) {
	g.round++
	forget := again(g.round, slot)
	for _, j := range jobs {
		j.over = overhead(cluster, j.site.group, g.known[j.site.group], forget)
	}
	for _, j := range jobs {
		g.known[j.site.group] = true
	}
	if forget {
		clear(g.known)
	}
}
