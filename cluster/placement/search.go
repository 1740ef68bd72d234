package placement

import (
	"cmp"
	"math"
	"slices"
)

// closeBy is the relative distance from a lower bound at which the maximum load of many tasks is good enough: a smaller
// difference is not noticeable.
const closeBy = 0.01

// worth is the work of the local search per task, in weighed sets of tasks. It bounds the time; most searches end long
// before.
const worth = 1500

// solve places all tasks of the jobs in list. It returns nil if it finds no placement that fits; proven: none exists.
// exact: no placement has a smaller maximum load.
func (p *problem) solve(list []int, o Options) (s *state, exact, proven bool) {
	var tasks []int
	for _, j := range list {
		for i := p.first[j]; i < p.first[j+1]; i++ {
			tasks = append(tasks, i)
		}
	}
	floor, near := p.floor(tasks), 0.0
	if len(tasks) > maxExact {
		near = closeBy
	}
	var best *state
	for _, order := range p.orders(tasks) {
		t := p.construct(order)
		t.improve(worth*len(tasks), floor*(1+near))
		if best == nil || better(t, best) {
			best = t
		}
		if over, load := best.total(); over == 0 && load <= floor*(1+near) {
			return best, load <= floor*(1+tolerance), false
		}
	}
	over, _ := best.total()
	switch nodes := o.Nodes; {
	case nodes < 0 && over > 0:
		return nil, false, false
	case nodes < 0:
		return best, false, false
	case over > 0 || len(tasks) <= maxExact:
		found, done := p.branch(tasks, best, nodes)
		if found != nil {
			// If branch did not finish, its result may still be improved.
			if !done {
				found.improve(worth*len(tasks), floor)
			}
			return found, done, false
		}
		if over > 0 {
			return nil, false, done
		}
		return best, done, false
	}
	return best, false, false
}

// maxExact is the largest number of tasks for branch and bound if a placement that fits is known: with more tasks it
// does not finish.
const maxExact = 64

// better compares placements by exceeded capacities, maximum load and traffic.
func better(a, b *state) bool {
	ao, al := a.total()
	bo, bl := b.total()
	if math.Abs(ao-bo) > tolerance {
		return ao < bo
	}
	return al < bl*(1-tolerance)
}

// floor is a lower bound of the maximum load: that of all processors as one, which no traffic within a host reduces.
func (p *problem) floor(tasks []int) float64 {
	var use, room float64
	for _, i := range tasks {
		use += p.tasks[i].Demand.CPU
	}
	least := 0.0
	for _, h := range p.hosts {
		use += h.Used.CPU
		room += h.Capacity.CPU
		least = max(least, part(h.Used.CPU, h.Capacity.CPU), part(h.Used.NetIn, h.Capacity.NetIn), part(h.Used.NetOut, h.Capacity.NetOut))
	}
	return max(least, part(use, room))
}

// orders are sequences of units in which tasks are placed. A unit is placed as a whole if that is not worse: a pair
// that complements each other, or a task.
func (p *problem) orders(tasks []int) [][][]int {
	in := make([]bool, len(p.tasks))
	for _, i := range tasks {
		in[i] = true
	}
	var units, singles, jobs [][]int
	for _, i := range tasks {
		singles = append(singles, []int{i})
		switch m := p.mate[i]; {
		case m < 0 || !in[m]:
			units = append(units, []int{i})
		case m > i:
			units = append(units, []int{i, m})
		}
	}
	for i := 0; i < len(tasks); {
		k := i
		for ; k < len(tasks) && p.tasks[tasks[k]].job == p.tasks[tasks[i]].job; k++ {
		}
		jobs = append(jobs, tasks[i:k])
		i = k
	}
	var all Resources
	gpus := 0.0
	for _, h := range p.hosts {
		all = all.plus(h.Capacity)
		for _, g := range h.GPUs {
			gpus += g
		}
	}
	size := func(unit []int) float64 {
		var u Resources
		gpu := 0.0
		for _, i := range unit {
			u = u.plus(p.tasks[i].Demand)
			gpu += p.tasks[i].GPU
		}
		return max(part(u.CPU, all.CPU), part(u.NetIn, all.NetIn), part(u.NetOut, all.NetOut), part(u.Memory, all.Memory), part(gpu, gpus))
	}
	// The most constrained first, then the largest demand.
	sorted := func(units [][]int) [][]int {
		choices := func(unit []int) int { return max(1, len(p.tasks[unit[0]].Only)) * min(1, len(p.tasks[unit[0]].Only)) }
		slices.SortStableFunc(units, func(a, b []int) int {
			x, y := choices(a), choices(b)
			if (x > 0) != (y > 0) {
				return cmp.Compare(y, x) // those with a rule about their hosts first
			}
			return cmp.Compare(size(b), size(a))
		})
		return units
	}
	return [][][]int{sorted(units), sorted(jobs), sorted(singles)}
}

// construct places the units in order, each where the maximum load is smallest.
func (p *problem) construct(units [][]int) *state {
	s := p.empty()
	for _, unit := range units {
		if len(unit) > 1 && s.place(unit) {
			continue
		}
		for _, t := range unit {
			s.place([]int{t})
		}
	}
	return s
}

// place puts a unit on the host where the result is best. Several tasks are only placed within the capacities.
func (s *state) place(unit []int) bool {
	best := -1
	var least figures
	var added float64
	for h := range s.p.hosts {
		if slices.ContainsFunc(unit, func(t int) bool { return !s.p.allowed(t, h) }) {
			continue
		}
		f := s.with(h, unit, nil)
		over, traffic := f.over-s.fig[h].over, f.traffic-s.fig[h].traffic
		f.over = over
		switch {
		case best < 0:
		case over > least.over+tolerance:
			continue
		case over < least.over-tolerance:
		case f.load > least.load*(1+tolerance):
			continue
		case f.load < least.load*(1-tolerance):
		case f.crowd-s.fig[h].crowd > least.crowd-s.fig[best].crowd:
			continue
		case traffic >= added:
			continue
		}
		best, least, added = h, f, traffic
	}
	if best < 0 || len(unit) > 1 && least.over > tolerance {
		return false
	}
	for _, t := range unit {
		s.set(t, best)
	}
	return true
}

// change moves tasks from host a to host b, and others back.
type change struct {
	a, b        int
	there, back []int
	fa, fb      figures
}

func (s *state) apply(c change) {
	there, back := slices.Clone(c.there), slices.Clone(c.back)
	for _, t := range there {
		s.set(t, c.b)
	}
	for _, t := range back {
		s.set(t, c.a)
	}
}

// alike reports whether task t equals the one before it in a list: then results for that one hold for t.
func (p *problem) alike(list []int, i int) bool {
	return i > 0 && list[i-1] == list[i]-1 && p.tasks[list[i]].twin && p.mate[list[i]] < 0 && p.mate[list[i-1]] < 0
}

// changes offers every move, swap and move of a job's part off host a, to hosts that keep accepts, if pass accepts the
// new figures of host b. An offered change is valid until offer returns, its lists until a task is set.
func (s *state) changes(a int, keep func(b int) bool, pass func(*change) bool, offer func(*change)) {
	p := s.p
	on := s.on[a]
	c := change{a: a}
	try := func() {
		if c.fb = s.with(c.b, c.there, c.back); pass(&c) {
			c.fa = s.with(a, c.back, c.there)
			offer(&c)
		}
	}
	for c.b = range p.hosts {
		if c.b == a || !keep(c.b) {
			continue
		}
		others := s.on[c.b]
		for i, t := range on {
			if !p.allowed(t, c.b) || p.alike(on, i) {
				continue
			}
			c.there, c.back = on[i:i+1], nil
			try()
			for k, u := range others {
				if p.tasks[u].job == p.tasks[t].job && p.tasks[u].kind == p.tasks[t].kind && p.tasks[u].Demand == p.tasks[t].Demand && p.tasks[u].wants() == p.tasks[t].wants() {
					continue // no change
				}
				if p.allowed(u, a) && !p.alike(others, k) {
					c.back = others[k : k+1]
					try()
				}
			}
		}
		c.back = nil
		for i := 0; i < len(on); {
			k := i
			for ; k < len(on) && p.tasks[on[k]].job == p.tasks[on[i]].job; k++ {
			}
			c.there = on[i:k]
			if k-i > 1 && !slices.ContainsFunc(c.there, func(t int) bool { return !p.allowed(t, c.b) }) {
				try()
			}
			i = k
		}
	}
}

// improve makes changes while they help: first where capacities are exceeded, then on the fullest host, each change
// reducing the larger load of two hosts, until the fullest is no fuller than floor or no change helps; then once on
// each of the other hosts. It ends after that amount of work.
func (s *state) improve(work int, floor float64) {
	s.work = 0
	others := false
	for {
		order := make([]int, len(s.fig))
		for h := range order {
			order[h] = h
		}
		slices.SortStableFunc(order, func(a, b int) int {
			if c := cmp.Compare(s.fig[b].over, s.fig[a].over); c != 0 {
				return c
			}
			return cmp.Compare(s.fig[b].load, s.fig[a].load)
		})
		better := false
		for i, a := range order {
			if s.work >= work {
				return
			}
			if !others && (i > 0 && s.fig[a].over == 0 || s.fig[a].over == 0 && s.fig[a].load <= floor) {
				break
			}
			if better = s.relieve(a); better && !others {
				break
			}
		}
		if others {
			return
		}
		others = !better
	}
}

// relieve makes the change that helps host a most, if any.
func (s *state) relieve(a int) bool {
	fa := s.fig[a]
	var best change
	found := false
	var over, load float64
	s.changes(a, func(b int) bool { return fa.over > 0 || s.fig[b].load < fa.load*(1-1e-7) }, func(c *change) bool {
		return c.fb.over < fa.over+s.fig[c.b].over+tolerance && (fa.over > 0 || c.fb.load < fa.load*(1-1e-7))
	}, func(c *change) {
		fb := s.fig[c.b]
		o, l := c.fa.over+c.fb.over-fa.over-fb.over, max(c.fa.load, c.fb.load)-max(fa.load, fb.load)
		if o > -tolerance && (o > tolerance || l > -1e-7*fa.load) {
			return // not better
		}
		if found && (o > over+tolerance || o > over-tolerance && l >= load) {
			return
		}
		best, found, over, load = *c, true, o, l
	})
	if found {
		s.apply(best)
	}
	return found
}

// settle spends slack, a share of the maximum load, on fewer workers that share a GPU, then on less traffic, then on
// more tasks on a host with their complement.
func (s *state) settle(slack float64) {
	_, load := s.total()
	limit := load
	if slack > 0 {
		limit = max(load, min(1, load*(1+slack)))
	}
	p := s.p
	pairs := func(h int, there, back []int) (n int) {
		for _, t := range there {
			if m := p.mate[t]; m >= 0 {
				if s.at[m] == h && !slices.Contains(back, m) || slices.Contains(there, m) {
					n++
				}
				if s.at[m] == s.at[t] && !slices.Contains(there, m) {
					n--
				}
			}
		}
		return n
	}
	budget := worth * len(p.tasks)
	s.work = 0
	for again := true; again && s.work < budget; {
		again = false
		for a := range p.hosts {
			best, found := change{}, false
			var crowd, mates int
			var traffic float64
			s.changes(a, func(int) bool { return true }, func(c *change) bool {
				return c.fb.over <= tolerance && c.fb.load <= limit*(1+tolerance)
			}, func(c *change) {
				fa, fb := s.fig[a], s.fig[c.b]
				if c.fa.over+c.fb.over > tolerance || max(c.fa.load, c.fb.load) > limit*(1+tolerance) {
					return
				}
				dc := c.fa.crowd + c.fb.crowd - fa.crowd - fb.crowd
				dt := c.fa.traffic + c.fb.traffic - fa.traffic - fb.traffic
				dm := pairs(c.b, c.there, c.back) + pairs(a, c.back, c.there)
				least := 1e-6 * (fa.traffic + fb.traffic)
				switch {
				case dc < 0:
				case dc > 0, dt > least:
					return
				case dt < -least:
				case dm <= 0:
					return
				}
				if found && (dc > crowd || dc == crowd && (dt > traffic || dt == traffic && dm <= mates)) {
					return
				}
				best, found, crowd, traffic, mates = *c, true, dc, dt, dm
			})
			if found {
				s.apply(best)
				again = true
			}
			if s.work >= budget {
				break
			}
		}
	}
}
