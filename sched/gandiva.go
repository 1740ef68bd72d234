package sched

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// timeslice is how long jobs that take turns run, s (Gandiva, section 3).
const timeslice = 60

// timeslicing is the policy of Gandiva. Jobs with as many GPUs are a class, and a class has its share of the GPUs in proportion to what its jobs ask for. Jobs of a
// class take turns if not all of them fit into its share.
type timeslicing struct {
	jobs   []*Task
	credit map[int]float64 // GPUs of each class that it was not given in earlier turns, because they make no whole job
	next   float64         // when the turn ends
}

// Gandiva has jobs take turns of a minute; a change of turn costs no time.
func Gandiva() Policy { return &timeslicing{credit: map[int]float64{}} }

func (g *timeslicing) Decide(s *State) {
	g.jobs = append(slices.DeleteFunc(g.jobs, func(t *Task) bool { return !math.IsNaN(t.End) }), s.Arrived...)
	demand := 0
	for _, t := range g.jobs {
		demand += t.GPUs
	}
	turn := demand > s.GPUs() && s.Now >= g.next
	if turn {
		g.next = s.Now + timeslice
	}
	if demand > s.GPUs() {
		s.WakeAt(g.next)
	}
	var on []*Task
	left := s.GPUs()
	for _, t := range g.order(turn, demand, left) {
		if t.GPUs <= left {
			left -= t.GPUs
			on = append(on, t)
		}
	}
	has := map[*Task]bool{}
	for _, t := range on {
		has[t] = true
	}
	for _, t := range g.jobs {
		if t.Running() && !has[t] {
			s.Preempt(t, 0)
		}
	}
	on = s.startAll(on)
	if turn { // who has had one is last in the next
		rest := slices.DeleteFunc(slices.Clone(g.jobs), (*Task).Running)
		g.jobs = append(rest, on...)
	}
}

// startAll starts those tasks that do not run yet, and says which run. Where GPUs are free, but of too many nodes, all others move, at no cost: placed with the largest first all fit if
// their numbers of GPUs are powers of two.
func (s *State) startAll(tasks []*Task) []*Task {
	slices.SortStableFunc(tasks, func(a, b *Task) int { return cmp.Compare(b.GPUs, a.GPUs) })
	if slices.ContainsFunc(tasks, func(t *Task) bool { return !t.Running() && !s.Start(t) }) {
		for _, t := range tasks {
			if t.Running() {
				s.Preempt(t, 0)
			}
		}
		tasks = slices.DeleteFunc(tasks, func(t *Task) bool { return !s.Start(t) })
	}
	return tasks
}

// order is who is to run, first those whose turn it is, then the others.
func (g *timeslicing) order(turn bool, demand, gpus int) []*Task {
	classes := map[int][]*Task{}
	for _, t := range g.jobs {
		classes[t.GPUs] = append(classes[t.GPUs], t)
	}
	var run, rest []*Task
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(classes))) {
		all := classes[size]
		if demand > gpus && !turn { // in the middle of a turn who runs goes on
			slices.SortStableFunc(all, func(a, b *Task) int { return cmp.Compare(min(b.speed, 1), min(a.speed, 1)) })
		}
		n := len(all)
		switch {
		case turn:
			share := g.credit[size] + float64(n*size)/float64(demand)*float64(gpus)
			n = min(n, int(share)/size)
			g.credit[size] = min(share-float64(n*size), float64(size))
		case demand > gpus:
			n = len(all) - len(slices.DeleteFunc(slices.Clone(all), (*Task).Running))
		}
		run, rest = append(run, all[:n]...), append(rest, all[n:]...)
	}
	return append(run, rest...)
}
