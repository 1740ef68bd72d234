package placement

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// MoveOptions say what a move costs and how long it pays.
type MoveOptions struct {
	// Horizon is how long the demands are expected to stay as they are. Zero means
	// 10 minutes.
	Horizon time.Duration

	// Bandwidth is at what rate state is copied at most, in bytes per second. Zero: as fast
	// as the less free of the two links allows, at least a tenth of it.
	Bandwidth float64

	// Pause is for how long the job stands still besides the copying. Zero means 1 s.
	Pause time.Duration

	// Workers are moved, too; without it only servers are.
	Workers bool

	// Most is how many moves are proposed at most. Zero means 16.
	Most int
}

// Step is one proposed move.
type Step struct {
	Job      int
	Kind     Kind
	Rank     int
	From, To int // hosts

	// Gain is the time that all jobs together save within the horizon, Cost what the
	// move takes of its job.
	Gain, Cost time.Duration

	Why string
}

// Moves proposes moves that pay, one after the other, each for the placement that
// those before it have made. at gives the present host of every task, by job, servers
// first, as [Result.Choices] has them: at[k] is that of choice k with all jobs placed.
//
// A host whose load is over 1 slows its tasks by that factor, since what a link
// cannot carry in time waits, and a job is as slow as its slowest task:
//
//	slowdown(j) = max over its tasks' hosts of max(1, load)
//	gain        = Σ_j horizon · (1 − slowdown'(j) / slowdown(j))
//	cost        = pause + state / bandwidth
//
// during which the job stands still. What a move would exceed elsewhere counts, too: memory, GPUs and the
// number of servers are never exceeded by a move that did not find them so. Where two moves gain the
// same the cheaper one is proposed.
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

// Loads says what each host carries when the tasks are at these hosts, as for [Moves].
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

// slowdowns are those of the jobs.
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

// room reports whether task i would find none on host h for what is not a matter of speed: memory, GPU, servers.
func (s *state) room(i, h int) (full bool) {
	p := s.p
	before := p.load(h, s.on[h])
	on := append(append([]int{}, s.on[h]...), i)
	slices.Sort(on)
	after := p.load(h, on)
	e0, _ := p.crowd(h, s.on[h])
	e1, _ := p.crowd(h, on)
	return after.Memory > max(1, before.Memory)+tolerance || after.Servers > max(p.seats, before.Servers) || e1 > e0+tolerance
}

// copying is what the move of task i costs its job; false if there is no way.
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
