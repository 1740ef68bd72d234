package placement

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// MoveOptions configure Moves: the cost of a move and how long it pays.
type MoveOptions struct {
	// Horizon is how long the demands are expected to stay unchanged. Zero means 10 minutes.
	Horizon time.Duration

	// Bandwidth is the highest rate at which state is copied, in bytes per second. Zero: the free rate of the busier of
	// the two links, but at least a tenth of the link.
	Bandwidth float64

	// Pause is how long the job stops in addition to the copying. Zero means 1 s.
	Pause time.Duration

	// Workers allows moves of workers; without it only servers move.
	Workers bool

	// Most is the largest number of proposed moves. Zero means 16.
	Most int
}

// Step is one proposed move.
type Step struct {
	Job      int
	Kind     Kind
	Rank     int
	From, To int // hosts

	// Gain is the time that all jobs together save within the horizon, Cost the time that the move takes of its job.
	Gain, Cost time.Duration

	Why string
}

// Moves proposes moves that pay, in order, each for the placement after the previous ones. at gives the present host of
// every task, by job, servers first, as in [Result.Choices]: at[k] is that of choice k with all jobs placed.
//
// A host with a load over 1 slows its tasks by that factor, since a link delays what it cannot carry in time, and a job
// is as slow as its slowest task:
//
//	slowdown(j) = max over its tasks' hosts of max(1, load)
//	gain        = Σ_j horizon · (1 − slowdown'(j) / slowdown(j))
//	cost        = pause + state / bandwidth
//
// for which the job stops. A move counts what it exceeds elsewhere, too: it never exceeds memory, GPUs and the number
// of servers unless they were exceeded before. Of two moves with equal gain it proposes the cheaper one.
func Moves(hosts []Host, jobs []Job, at []int, o MoveOptions) ([]Step, error) {
	if err := Validate(hosts, jobs); err != nil {
		return nil, err
	}
	p := newProblem(hosts, jobs)
	s, err := p.at(at)
	if err != nil {
		return nil, err
	}
	if o.Horizon < 0 || o.Pause < 0 || !(o.Bandwidth >= 0) || o.Most < 0 {
		return nil, fmt.Errorf("placement: negative or no number in %+v", o)
	}
	if o.Horizon == 0 {
		o.Horizon = 10 * time.Minute
	}
	if o.Pause == 0 {
		o.Pause = time.Second
	}
	if o.Most == 0 {
		o.Most = 16
	}
	var steps []Step
	moved := map[int]bool{}
	for len(steps) < o.Most {
		slow := s.slowdowns()
		best, task := Step{}, -1
		for i, t := range p.tasks {
			from := s.at[i]
			if moved[i] || t.kind == Worker && !o.Workers {
				continue
			}
			for to := range hosts {
				if to == from || !p.allowed(i, to) || s.room(i, to) {
					continue
				}
				cost, ok := s.copying(i, from, to, o)
				if !ok {
					continue
				}
				s.set(i, to)
				after := s.slowdowns()
				s.set(i, from)
				gain := time.Duration(0)
				for j := range jobs {
					gain += time.Duration(float64(o.Horizon) * (1 - after[j]/slow[j]))
				}
				if net := gain - cost; net > 0 && (task < 0 || net > best.Gain-best.Cost) {
					best = Step{Job: t.job, Kind: t.kind, Rank: t.rank, From: from, To: to, Gain: gain, Cost: cost}
					best.Why = fmt.Sprintf("%s carries %.2f of what it has, %s after it %.2f: its job runs %.2fx as slow as it could, then %.2fx",
						hosts[from].Name, s.fig[from].load, hosts[to].Name, s.with(to, []int{i}, nil).load, slow[t.job], after[t.job])
					task = i
				}
			}
		}
		if task < 0 {
			break
		}
		moved[task] = true
		s.set(task, best.To)
		best.Why += fmt.Sprintf("; saves %s in %s for %s", short(best.Gain), o.Horizon, short(best.Cost))
		steps = append(steps, best)
	}
	return steps, nil
}

// Loads returns the load of each host when the tasks are at these hosts, as for [Moves].
func Loads(hosts []Host, jobs []Job, at []int) ([]Load, error) {
	if err := Validate(hosts, jobs); err != nil {
		return nil, err
	}
	p := newProblem(hosts, jobs)
	s, err := p.at(at)
	if err != nil {
		return nil, err
	}
	var ls []Load
	for h := range hosts {
		ls = append(ls, p.load(h, s.on[h]))
	}
	return ls, nil
}

// at is the state with every task on its host.
func (p *problem) at(at []int) (*state, error) {
	if len(at) != len(p.tasks) {
		return nil, fmt.Errorf("placement: %d hosts for %d tasks", len(at), len(p.tasks))
	}
	s := p.empty()
	for i, h := range at {
		if h < 0 || h >= len(p.hosts) {
			return nil, fmt.Errorf("placement: %s is on host %d; there are %d", p.name(i), h, len(p.hosts))
		}
		s.set(i, h)
	}
	return s, nil
}

// slowdowns are the slowdowns of the jobs.
func (s *state) slowdowns() []float64 {
	slow := make([]float64, len(s.p.jobs))
	for j := range slow {
		slow[j] = 1
	}
	for i, h := range s.at {
		j := s.p.tasks[i].job
		slow[j] = max(slow[j], s.fig[h].load)
	}
	return slow
}

// room reports whether host h lacks room for task i in memory, GPU or servers, which are not a matter of speed.
func (s *state) room(i, h int) (full bool) {
	p := s.p
	before := p.load(h, s.on[h])
	on := append(append([]int{}, s.on[h]...), i)
	slices.Sort(on)
	after := p.load(h, on)
	e0, _ := p.crowd(h, s.on[h])
	e1, _ := p.crowd(h, on)
	return after.Memory > max(1, before.Memory)+tolerance || after.Servers > max(p.maxServers, before.Servers) || e1 > e0+tolerance
}

// copying is the cost of moving task i for its job; false if it cannot be copied.
func (s *state) copying(i, from, to int, o MoveOptions) (time.Duration, bool) {
	rate := math.Inf(1)
	free := func(capacity, used float64) float64 { return max(capacity-used, capacity/10) }
	rate = min(rate, free(s.p.hosts[from].Capacity.NetOut, s.p.load(from, s.on[from]).Use.NetOut))
	rate = min(rate, free(s.p.hosts[to].Capacity.NetIn, s.p.load(to, s.on[to]).Use.NetIn))
	if o.Bandwidth > 0 {
		rate = min(rate, o.Bandwidth)
	}
	bytes := s.p.tasks[i].State
	if bytes == 0 {
		bytes = s.p.tasks[i].Demand.Memory
	}
	seconds := 0.0
	if bytes > 0 {
		seconds = bytes / rate
	}
	if !(seconds < 1e6) {
		return 0, false
	}
	return o.Pause + time.Duration(seconds*float64(time.Second)), true
}
