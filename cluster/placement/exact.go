package placement

import (
	"cmp"
	"slices"
)

// brancher is a depth-first search over all placements of a list of tasks.
type brancher struct {
	p     *problem
	tasks []int
	s     []slot
	at    []int
	best  float64 // best load so far
	found []int   // its placement
	nodes int
	cut   bool // nodes ran out
	floor float64

	scratch                  []int
	openServers, openWorkers []Resources // by job: demand that is not placed yet
}

// slot is one host during the search.
type slot struct {
	on []int
}

// branch searches for the placement of the tasks that fits and has the smallest maximum load. It starts from a known
// placement and returns a better one, or nil; done: no better one exists, else the budget of nodes was spent.
func (p *problem) branch(tasks []int, known *state, nodes int) (s *state, done bool) {
	over, load := known.total()
	b := &brancher{p: p, tasks: slices.Clone(tasks), s: make([]slot, len(p.hosts)), at: make([]int, len(p.tasks)), nodes: nodes,
		openServers: make([]Resources, len(p.jobs)), openWorkers: make([]Resources, len(p.jobs)), floor: p.floor(tasks)}
	b.best = load
	if over > 0 {
		b.best = 1 + 2*tolerance // anything that fits
	}
	for i := range b.at {
		b.at[i] = -1
	}
	// Jobs with the largest demand first; within a job servers first, equal tasks next to each other. Tasks with a rule
	// about their hosts come before.
	size := make([]float64, len(p.jobs))
	free := make([]int, len(p.jobs))
	for _, i := range tasks {
		t := &p.tasks[i]
		j := t.job
		open := b.openWorkers
		if t.kind == Server {
			open = b.openServers
		}
		open[j] = open[j].plus(t.Demand)
		greatest := 0.0
		for h := range p.hosts {
			c := p.hosts[h].Capacity
			d := t.Demand
			greatest = max(greatest, part(d.CPU, c.CPU), part(d.NetIn, c.NetIn), part(d.NetOut, c.NetOut), part(d.Memory, c.Memory))
		}
		size[j] = max(size[j], greatest)
		if t.allows == nil {
			free[j] = 1
		}
	}
	slices.SortStableFunc(b.tasks, func(x, y int) int {
		i, k := p.tasks[x].job, p.tasks[y].job
		if i == k {
			return cmp.Compare(x, y)
		}
		return cmp.Or(cmp.Compare(free[i], free[k]), cmp.Compare(size[k], size[i]), cmp.Compare(i, k))
	})
	for h := range p.hosts {
		f := p.weigh(h, nil)
		if f.over > 0 {
			return nil, true // the usage of others is too much already
		}
	}
	b.descend(0)
	if b.found != nil {
		s = p.empty()
		for _, i := range tasks {
			s.set(i, b.found[i])
		}
	}
	return s, !b.cut
}

// least is a lower bound for the figures of host h with these tasks, independent of the tasks to come.
func (b *brancher) least(h int, on []int) figures {
	var u Resources
	servers := 0
	for i := 0; i < len(on); {
		job := b.p.tasks[on[i]].job
		k := i
		for ; k < len(on) && b.p.tasks[on[k]].job == job; k++ {
			if b.p.tasks[on[k]].kind == Server {
				servers++
			}
		}
		u = u.plus(b.p.carried(job, on[i:k], b.openServers[job], b.openWorkers[job]))
		i = k
	}
	f := b.p.rate(h, u, servers)
	excess, _ := b.p.crowd(h, on)
	f.over += excess
	return f
}

func (b *brancher) descend(k int) {
	if k == len(b.tasks) {
		load := 0.0
		for h := range b.s {
			f := b.p.weigh(h, b.s[h].on)
			if f.over > 0 {
				return
			}
			load = max(load, f.load)
		}
		if load < b.best*(1-tolerance) {
			b.best = load
			b.found = slices.Clone(b.at)
		}
		return
	}
	t := b.tasks[k]
	task := &b.p.tasks[t]
	open := &b.openWorkers[task.job]
	if task.kind == Server {
		open = &b.openServers[task.job]
	}
	before := *open
	*open = Resources{before.CPU - task.Demand.CPU, max(0, before.NetIn-task.Demand.NetIn), max(0, before.NetOut-task.Demand.NetOut), before.Memory - task.Demand.Memory}
	if k+1 == len(b.tasks) || b.p.tasks[b.tasks[k+1]].job != task.job || b.p.tasks[b.tasks[k+1]].kind != task.kind {
		*open = Resources{} // the last one: avoids the rounding error of a subtraction
	}
	defer func() { *open = before }()

	type option struct {
		h    int
		load float64
	}
	var options []option
	from := 0
	if task.twin && k > 0 && b.tasks[k-1] == t-1 {
		from = b.at[t-1] // the order of equal tasks does not matter
	}
	for h := from; h < len(b.s); h++ {
		if !b.p.allowed(t, h) || b.same(h, from) {
			continue
		}
		on := b.s[h].on
		i, _ := slices.BinarySearch(on, t)
		b.scratch = append(append(append(b.scratch[:0], on[:i]...), t), on[i:]...)
		f := b.least(h, b.scratch)
		if b.nodes--; b.nodes < 0 {
			b.cut = true
			return
		}
		if f.over > 0 || f.load >= b.best*(1-tolerance) {
			continue
		}
		options = append(options, option{h, f.load})
	}
	slices.SortStableFunc(options, func(x, y option) int { return cmp.Compare(x.load, y.load) })
	for _, o := range options {
		if o.load >= b.best*(1-tolerance) {
			continue
		}
		s := &b.s[o.h]
		i, _ := slices.BinarySearch(s.on, t)
		s.on = slices.Insert(s.on, i, t)
		b.at[t] = o.h
		b.descend(k + 1)
		b.at[t] = -1
		i, _ = slices.BinarySearch(s.on, t)
		s.on = slices.Delete(s.on, i, i+1)
		if b.cut || b.found != nil && b.best <= b.floor*(1+tolerance) {
			return
		}
	}
}

// same reports whether a host before h, but not before from, equals h and is as empty: then h need not be tried. Rules
// about the hosts of a task make hosts different.
func (b *brancher) same(h, from int) bool {
	if len(b.s[h].on) > 0 {
		return false
	}
	x := &b.p.hosts[h]
	for g := from; g < h; g++ {
		y := &b.p.hosts[g]
		if len(b.s[g].on) == 0 && x.Capacity == y.Capacity && x.Used == y.Used && slices.Equal(b.p.slabs[g], b.p.slabs[h]) && !b.p.rules {
			return true
		}
	}
	return false
}
