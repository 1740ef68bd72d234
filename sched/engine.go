package sched

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// Task is a job in a State.
type Task struct {
	Outcome
	Left     float64 // remaining running time at the last change, s
	Attained float64 // GPU-seconds received until the last change

	seq     int     // order of arrival
	speed   float64 // s of work per s; 0: not running
	since   float64 // time of Left and Attained
	waiting float64 // since when it waits for GPUs
	due     float64 // when it ends if nothing changes
	index   int     // in State.ends; -1: not running
	at      []Share
	partner *Task // the task that shares its GPUs
}

// thought returns the policy's estimate of Left.
func (t *Task) thought() float64 { return t.Left * t.guess() }

// Running reports whether the task has GPUs.
func (t *Task) Running() bool { return t.index >= 0 }

// State is what a policy sees and changes: one virtual cluster.
type State struct {
	Now     float64
	Arrived []*Task // since the last decision, in order of submission
	Ended   []*Task // since the last decision
	Revoked []*Task // since the last decision: they lost GPUs of nodes that left, and wait again
	Cluster Cluster

	nodes *nodes
	away  int // GPUs of absent nodes
	ends  endings
	wake  float64

	starting float64 // s without progress at each start
}

// endings is a heap of the running tasks by when they end.
type endings []*Task

func (e endings) Len() int { return len(e) }
func (e endings) Less(i, j int) bool {
	return e[i].due < e[j].due || e[i].due == e[j].due && e[i].seq < e[j].seq
}
func (e endings) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}
func (e *endings) Push(x any) {
	t := x.(*Task)
	t.index = len(*e)
	*e = append(*e, t)
}
func (e *endings) Pop() any {
	old := *e
	t := old[len(old)-1]
	*e = old[:len(old)-1]
	t.index = -1
	return t
}

// Free returns the number of free GPUs.
func (s *State) Free() int { return s.nodes.total }

// GPUs returns the number of GPUs that are present, free or not.
func (s *State) GPUs() int { return s.Cluster.Nodes*s.Cluster.GPUs - s.away }

// Running returns the tasks that have GPUs, in no particular order.
func (s *State) Running() []*Task { return s.ends }

// WakeAt requests a decision at time t, in s, or earlier.
func (s *State) WakeAt(t float64) { s.wake = min(s.wake, t) }

// Start gives a task the GPUs that it requests, by the cluster's placement. It returns false if they do not fit.
func (s *State) Start(t *Task) bool {
	at := s.nodes.place(t.GPUs)
	if at == nil {
		return false
	}
	s.nodes.take(at)
	s.start(t, at, 1)
	return true
}

// Join starts a task on the GPUs of another one, which must not share them yet. From now on the two run at these
// speeds, until one of them stops.
func (s *State) Join(t, with *Task, speed, others float64) {
	s.settle(with)
	s.run(with, others)
	s.start(t, with.at, speed)
	t.partner, with.partner = with, t
	t.has(s.Now, float64(t.GPUs)/2)
	with.has(s.Now, float64(t.GPUs)/2)
}

// start starts a task on the given GPUs.
func (s *State) start(t *Task, at []Share, speed float64) {
	t.at = at
	if math.IsNaN(t.Start) {
		t.Start = s.Now
	}
	t.Queue += s.Now - t.waiting
	t.since = s.Now
	t.Left += s.starting
	t.has(s.Now, float64(t.GPUs))
	heap.Push(&s.ends, t)
	s.run(t, speed)
}

// run sets a task's speed from now on.
func (s *State) run(t *Task, speed float64) {
	t.speed = speed
	t.due = s.Cluster.Slow.end(t.at, s.Now, t.Left/speed)
	heap.Fix(&s.ends, t.index)
}

// settle brings Left and Attained of a task up to now.
func (s *State) settle(t *Task) {
	if t.Running() {
		t.Left -= s.Cluster.Slow.done(t.at, t.since, s.Now) * t.speed
		t.Attained += (s.Now - t.since) * float64(t.GPUs)
	}
	t.since = s.Now
}

// stop takes a task's GPUs.
func (s *State) stop(t *Task) {
	s.settle(t)
	heap.Remove(&s.ends, t.index)
	t.speed = 0
	t.has(s.Now, 0)
	if p := t.partner; p != nil { // the partner keeps the GPUs
		p.has(s.Now, float64(p.GPUs))
		s.settle(p)
		s.run(p, 1)
		p.partner = nil
	} else {
		s.nodes.give(t.at)
	}
	t.at, t.partner = nil, nil
}

// Preempt takes a task's GPUs. The task must repeat cost s of work.
func (s *State) Preempt(t *Task, cost float64) {
	s.stop(t)
	t.Left += cost
	t.waiting = s.Now
	t.Preemptions++
}

// Decline refuses a task for a reason.
func (s *State) Decline(t *Task, why string) { t.Why = why }

// Simulate runs jobs in a cluster under a policy until all have ended or were declined. The jobs must belong to one
// virtual cluster; they arrive in order of submission, and in the given order at equal times. Outcomes are in the order
// of jobs.
func Simulate(jobs []*Job, c Cluster, p Policy) []Outcome { return simulate(jobs, c, p, Options{}) }

// simulate is Simulate with the options Start, Placement and Progress.
func simulate(jobs []*Job, c Cluster, p Policy, o Options) []Outcome {
	tasks := make([]*Task, len(jobs))
	for i, j := range jobs {
		tasks[i] = &Task{Outcome: begins(j), Left: j.Duration, index: -1, waiting: j.Submit}
	}
	due := bySubmission(tasks)
	for i, t := range due {
		t.seq = i
	}
	s := &State{Cluster: c, nodes: newNodes(c), wake: never, starting: o.Start}
	s.nodes.placement = o.Placement
	ended, away := 0, newAbsences(c.Away)
	for event := 1; ; event++ {
		if event%reporting == 0 && o.Progress != nil {
			o.Progress(ended, len(jobs))
		}
		next := s.wake
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		if len(s.ends) > 0 {
			next = min(next, s.ends[0].due)
		}
		if ended < len(jobs) {
			next = min(next, away.next())
		}
		if math.IsInf(next, 1) || c.Away != nil && len(due)+len(s.ends) == 0 && math.IsInf(away.next(), 1) && s.stuck(tasks) {
			break
		}
		s.Now, s.wake = next, never
		s.Arrived, s.Ended, s.Revoked = s.Arrived[:0], s.Ended[:0], s.Revoked[:0]
		for len(s.ends) > 0 && s.ends[0].due <= next {
			t := s.ends[0]
			s.stop(t)
			t.Left = 0
			t.End = next
			s.Ended = append(s.Ended, t)
		}
		s.revoke(away)
		for len(due) > 0 && due[0].Submit <= next {
			t := due[0]
			due = due[1:]
			if most := c.Nodes * c.GPUs; t.GPUs > most {
				s.Decline(t, fits(t.GPUs, most))
				ended++
				continue
			}
			s.Arrived = append(s.Arrived, t)
		}
		ended += len(s.Ended)
		p.Decide(s)
	}
	return outcomes(tasks)
}

// stuck reports whether all remaining tasks request more GPUs than are present. A policy may still check every minute.
func (s *State) stuck(tasks []*Task) bool {
	return !slices.ContainsFunc(tasks, func(t *Task) bool { return math.IsNaN(t.End) && !t.Declined() && t.GPUs <= s.GPUs() })
}

// begins returns the outcome of a job that has not started.
func begins(j *Job) Outcome { return Outcome{Job: j, Start: math.NaN(), End: math.NaN()} }

func (o *Outcome) outcome() *Outcome { return o }

// bySubmission returns jobs in order of submission, in the given order at equal times.
func bySubmission[T interface{ outcome() *Outcome }](jobs []T) []T {
	due := slices.Clone(jobs)
	slices.SortStableFunc(due, func(a, b T) int { return cmp.Compare(a.outcome().Submit, b.outcome().Submit) })
	return due
}

// outcomes returns the outcomes of jobs.
func outcomes[T interface{ outcome() *Outcome }](jobs []T) []Outcome {
	out := make([]Outcome, len(jobs))
	for i, j := range jobs {
		out[i] = *j.outcome()
	}
	return out
}
