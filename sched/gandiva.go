package sched

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// timeslice is how long jobs that take turns run, s (Gandiva, section 3).
const timeslice = 60

// timeslicing is the policy of Gandiva. Jobs with the same number of GPUs are a class. A class gets GPUs in proportion
// to what its jobs request. If they do not all fit into that, they take turns.
type timeslicing struct {
	jobs []*Task
	// credit is, for each class, the GPUs that it did not get in earlier turns because they did not make a whole job.
	credit map[int]float64
	next   float64 // end of the current turn
}

// Gandiva lets jobs take turns of a minute; a switch costs no time.
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
	if turn { // a job that has had a turn is last in the next one
		rest := slices.DeleteFunc(slices.Clone(g.jobs), (*Task).Running)
		g.jobs = append(rest, on...)
	}
}

// startAll starts the tasks that do not run yet and returns those that run. If GPUs are free but spread over too many
// nodes, the other tasks move, at no cost: placed with the largest first, all fit if their numbers of GPUs are powers
// of two.
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

// order returns the tasks in the order in which they are to run: first those that have the turn, then the others.
func (g *timeslicing) order(turn bool, demand, gpus int) []*Task {
	classes := map[int][]*Task{}
	for _, t := range g.jobs {
		classes[t.GPUs] = append(classes[t.GPUs], t)
	}
	var run, rest []*Task
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(classes))) {
		all := classes[size]
		if demand > gpus && !turn { // within a turn, running jobs continue
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
