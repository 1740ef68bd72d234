package placement

import (
	"math"
	"slices"
)

// problem is a set of tasks to be placed. Tasks are numbered by job, servers first, so the tasks of one job on one host
// are adjacent in a sorted list.
type problem struct {
	hosts      []Host
	jobs       []Job
	tasks      []task
	first      []int // by job: the number of its first task; one more at the end
	maxServers int   // most servers on one host
	mate       []int // by task: the task that it complements; -1: none

	// By job: the larger of the rate into its servers and the rate out of its workers, and the same for the other
	// direction, in bytes per second.
	push, pull []float64

	rules bool      // some task has a rule about its hosts
	slabs [][]slab  // by host: its GPUs
	least []slab    // by host: the smallest part and memory of its GPUs
	gpus  []float64 // by host: the total size of its GPUs

	packer  packer // scratch
	demands []slab
}

type task struct {
	Task
	job    int
	kind   Kind
	rank   int
	allows []bool // by host; nil: all
	twin   bool   // equal to the task before it
}

func newProblem(hosts []Host, jobs []Job) *problem {
	p := &problem{hosts: hosts, jobs: jobs}
	servers := 0
	for j, job := range jobs {
		p.first = append(p.first, len(p.tasks))
		var in, out, pushed, pulled float64
		add := func(kind Kind, ts []Task) {
			for i, t := range ts {
				n := task{Task: t, job: j, kind: kind, rank: i}
				if len(t.Only) > 0 {
					p.rules = true
					n.allows = make([]bool, len(hosts))
					for _, h := range t.Only {
						n.allows[h] = true
					}
				}
				n.twin = i > 0 && t.Demand == ts[i-1].Demand && t.wants() == ts[i-1].wants() && slices.Equal(t.Only, ts[i-1].Only)
				p.tasks = append(p.tasks, n)
			}
		}
		add(Server, job.Servers)
		add(Worker, job.Workers)
		for _, t := range job.Servers {
			in += t.Demand.NetIn
			out += t.Demand.NetOut
		}
		for _, t := range job.Workers {
			pulled += t.Demand.NetIn
			pushed += t.Demand.NetOut
		}
		p.push = append(p.push, max(in, pushed))
		p.pull = append(p.pull, max(out, pulled))
		servers += len(job.Servers)
	}
	for _, h := range hosts {
		slabs := h.slabs()
		least, sum := largest(slabs), 0.0
		for _, g := range slabs {
			least = slab{min(least.part, g.part), min(least.memory, g.memory)}
			sum += g.part
		}
		p.slabs = append(p.slabs, slabs)
		p.least, p.gpus = append(p.least, least), append(p.gpus, sum)
	}
	p.first = append(p.first, len(p.tasks))
	p.maxServers = (servers+len(hosts)-1)/len(hosts) + 1
	p.mate = make([]int, len(p.tasks))
	for i := range p.mate {
		p.mate[i] = -1
	}
	return p
}

func (p *problem) allowed(t, h int) bool { return p.tasks[t].allows == nil || p.tasks[t].allows[h] }

// figures are the values of a set of tasks on a host.
type figures struct {
	load    float64 // largest share of CPU, in, out
	over    float64 // sum of the relative excess over all capacities
	crowd   int     // workers that share a GPU
	traffic float64 // in and out, bytes per second

	use     Resources // of the tasks
	excess  float64   // of GPU demand, part of over
	servers int
}

// tolerance bounds the difference of sums in different order.
const tolerance = 1e-9

// part is use/capacity.
func part(use, capacity float64) float64 {
	switch {
	case use <= 0:
		return 0
	case capacity <= 0 && use < 1e-6:
		return 0 // rounding error of a subtraction
	case capacity <= 0:
		return math.MaxFloat32 // larger than any other
	}
	return use / capacity
}

// carried sums the demands of the tasks of one job on one host. With open tasks, which may still be placed on this
// host, the network is a lower bound.
func (p *problem) carried(job int, on []int, openServers, openWorkers Resources) (u Resources) {
	var ps, ws, most Resources
	workers := 0
	for _, i := range on {
		t := &p.tasks[i]
		u.CPU += t.Demand.CPU
		u.Memory += t.Demand.Memory
		if t.kind == Server {
			ps.NetIn += t.Demand.NetIn
			ps.NetOut += t.Demand.NetOut
			continue
		}
		workers++
		ws.NetIn += t.Demand.NetIn
		ws.NetOut += t.Demand.NetOut
		most.NetIn = max(most.NetIn, t.Demand.NetIn)
		most.NetOut = max(most.NetOut, t.Demand.NetOut)
	}
	switch {
	case len(p.jobs[job].Servers) == 0: // workers exchange among themselves, once per host
		if workers < len(p.jobs[job].Workers) && openWorkers == (Resources{}) {
			u.NetIn, u.NetOut = most.NetIn, most.NetOut
		}
		return u
	case len(p.jobs[job].Workers) == 0:
		u.NetIn, u.NetOut = ps.NetIn, ps.NetOut
		return u
	}
	// away is the part of a rate that leaves the host if a share of the other side is on it.
	away := func(there, total float64) float64 {
		if total <= 0 {
			return 1
		}
		return max(0, 1-there/total)
	}
	push, pull := p.push[job], p.pull[job]
	u.NetOut = ws.NetOut*away(ps.NetIn+openServers.NetIn, push) + ps.NetOut*away(ws.NetIn+openWorkers.NetIn, pull)
	u.NetIn = ps.NetIn*away(ws.NetOut+openWorkers.NetOut, push) + ws.NetIn*away(ps.NetOut+openServers.NetOut, pull)
	return u
}

// use sums the demands of tasks, in ascending order, on a host, without Host.Used.
func (p *problem) use(on []int) (u Resources, servers int) {
	for i := 0; i < len(on); {
		job := p.tasks[on[i]].job
		k := i
		for ; k < len(on) && p.tasks[on[k]].job == job; k++ {
			if p.tasks[on[k]].kind == Server {
				servers++
			}
		}
		u = u.plus(p.carried(job, on[i:k], Resources{}, Resources{}))
		i = k
	}
	return u, servers
}

// weigh returns the figures of tasks, in ascending order, on host h.
func (p *problem) weigh(h int, on []int) figures {
	u, servers := p.use(on)
	f := p.rate(h, u, servers)
	excess, crowd := p.crowd(h, on)
	f.over += excess
	f.crowd, f.excess = crowd, excess
	f.use, f.servers = u, servers
	return f
}

// rate compares use and capacity.
func (p *problem) rate(h int, u Resources, servers int) (f figures) {
	host := &p.hosts[h]
	f.traffic = u.NetIn + u.NetOut
	u = u.plus(host.Used)
	cpu, in, out, mem := part(u.CPU, host.Capacity.CPU), part(u.NetIn, host.Capacity.NetIn), part(u.NetOut, host.Capacity.NetOut), part(u.Memory, host.Capacity.Memory)
	f.load = max(cpu, in, out)
	for _, x := range [...]float64{cpu, in, out, mem} {
		if x > 1+tolerance {
			f.over += x - 1
		}
	}
	f.over += float64(max(0, servers-p.maxServers))
	return f
}

// state is a partial placement. Tasks that are not in it are at -1.
type state struct {
	p   *problem
	at  []int   // host of each task
	on  [][]int // tasks of each host, ascending
	fig []figures

	work int   // number of weighed sets of tasks
	a    []int // scratch
}

func (p *problem) empty() *state {
	s := &state{p: p, at: make([]int, len(p.tasks)), on: make([][]int, len(p.hosts)), fig: make([]figures, len(p.hosts))}
	for i := range s.at {
		s.at[i] = -1
	}
	for h := range p.hosts {
		s.fig[h] = p.weigh(h, nil)
	}
	return s
}

// set puts task t on host h, -1: nowhere.
func (s *state) set(t, h int) {
	if old := s.at[t]; old >= 0 {
		i, _ := slices.BinarySearch(s.on[old], t)
		s.on[old] = slices.Delete(s.on[old], i, i+1)
		s.fig[old] = s.p.weigh(old, s.on[old])
	}
	s.at[t] = h
	if h >= 0 {
		i, _ := slices.BinarySearch(s.on[h], t)
		s.on[h] = slices.Insert(s.on[h], i, t)
		s.fig[h] = s.p.weigh(h, s.on[h])
	}
}

// with returns the figures of host h with the tasks of plus and without those of minus. Both are sorted and of one job
// each, if neither is empty.
func (s *state) with(h int, plus, minus []int) figures {
	s.work++
	p := s.p
	old := &s.fig[h]
	u, servers, gpu := old.use, old.servers, false
	var done [2]int
	for n, tasks := range [2][]int{plus, minus} {
		done[n] = -1
		if len(tasks) == 0 {
			continue
		}
		for _, t := range tasks {
			gpu = gpu || p.tasks[t].GPU > 0
			if p.tasks[t].kind == Server {
				servers += 1 - 2*n
			}
		}
		for _, t := range tasks {
			job := p.tasks[t].job
			if slices.Contains(done[:n], job) || done[n] == job {
				continue
			}
			done[n] = job
			group := s.group(h, job)
			before := p.carried(job, group, Resources{}, Resources{})
			after := p.carried(job, s.changed(group, job, plus, minus), Resources{}, Resources{})
			u = Resources{u.CPU + after.CPU - before.CPU, u.NetIn + after.NetIn - before.NetIn, u.NetOut + after.NetOut - before.NetOut, u.Memory + after.Memory - before.Memory}
		}
	}
	f := p.rate(h, u, servers)
	if excess, crowd := old.excess, old.crowd; !gpu {
		f.over += excess
		f.crowd = crowd
	} else {
		excess, crowd = p.crowd(h, s.changed(s.on[h], -1, plus, minus))
		f.over += excess
		f.crowd = crowd
	}
	return f
}

// group is the part of a job in the tasks on host h.
func (s *state) group(h, job int) []int {
	on := s.on[h]
	i, _ := slices.BinarySearch(on, s.p.first[job])
	k := i
	for k < len(on) && on[k] < s.p.first[job+1] {
		k++
	}
	return on[i:k]
}

// changed is a sorted list with those of plus and without those of minus that are of the job (-1: of any). It is valid
// until the next call.
func (s *state) changed(list []int, job int, plus, minus []int) []int {
	out := s.a[:0]
	for _, t := range list {
		if !slices.Contains(minus, t) {
			out = append(out, t)
		}
	}
	for _, t := range plus {
		if job < 0 || s.p.tasks[t].job == job {
			i, _ := slices.BinarySearch(out, t)
			out = slices.Insert(out, i, t)
		}
	}
	s.a = out
	return out
}

// total is the key of a whole placement: smaller is better, from left to right.
func (s *state) total() (over, load float64) {
	for _, f := range s.fig {
		over += f.over
		load = max(load, f.load)
	}
	return over, load
}
