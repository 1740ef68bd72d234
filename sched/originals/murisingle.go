package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// lone is a job under a policy of Muri's program in which no jobs share GPUs.
type lone struct {
	*sched.Outcome
	left     float64 // s of running alone
	attained float64 // GPU-seconds
	running  bool
	due      float64 // when it ends, if nothing changes
	waiting  float64 // since when it has no GPUs

	level int     // queue of tiresias
	jump  float64 // when it goes to the next one
}

// loners is a cluster under srtf, srsf or tiresias as Muri's program has them. GPUs are counted, not placed.
type loners struct {
	now, wake float64
	gpus      int
	policy    string
	jobs      []*lone // present jobs; for tiresias, in the order of the queues
}

// runLoners simulates jobs, which are in order of submission.
func runLoners(outs []*sched.Outcome, c sched.Cluster, o Options) {
	m := &loners{gpus: c.Nodes * c.GPUs, policy: o.Policy, wake: math.Inf(1)}
	due := make([]*lone, len(outs))
	for i, out := range outs {
		due[i] = &lone{Outcome: out, left: out.Duration, waiting: out.Submit}
	}
	for {
		next := m.wake
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		for _, j := range m.jobs {
			if j.running {
				next = min(next, j.due)
			}
		}
		if math.IsInf(next, 1) {
			return
		}
		for _, j := range m.jobs {
			m.progress(j, next)
		}
		m.now, m.wake = next, math.Inf(1)
		m.jobs = slices.DeleteFunc(m.jobs, func(j *lone) bool { return !math.IsNaN(j.End) })
		for ; len(due) > 0 && due[0].Submit <= next; due = due[1:] {
			if j := due[0]; !tooLarge(j.Outcome, m.gpus) {
				m.jobs = append(m.jobs, j)
			}
		}
		m.decide()
	}
}

// progress runs a job until a time. Each event costs each job the time of a restart, or the time since the last event
// if that is less.
func (m *loners) progress(j *lone, to float64) {
	if !j.running {
		return
	}
	d := to - m.now
	j.attained += float64(d * float64(j.GPUs))
	if j.due <= to {
		j.left, j.End = 0, to
		steps(j.Outcome, to, 0)
	} else if d > j.Restart {
		j.left -= (d - j.Restart) / alone
	}
}

// decide gives the GPUs to the jobs that fit, in order.
func (m *loners) decide() {
	switch m.policy {
	case "srtf":
		m.sort(func(j *lone) float64 { return j.left })
	case "srsf":
		m.sort(func(j *lone) float64 { return j.left * float64(j.GPUs) })
	case "tiresias":
		m.demote()
	}
	free := m.gpus
	for _, j := range m.jobs {
		ran := j.running
		j.running = j.GPUs <= free
		switch {
		case j.running:
			free -= j.GPUs
			m.run(j, ran)
			steps(j.Outcome, m.now, float64(j.GPUs))
		case ran:
			j.Preemptions++
			j.waiting = m.now
			steps(j.Outcome, m.now, 0)
		}
	}
	if m.policy == "tiresias" { // jobs that run are first in their queue from now on
		m.sort(func(j *lone) float64 {
			if j.running {
				return float64(2 * j.level)
			}
			return float64(2*j.level + 1)
		})
	}
}

func (m *loners) sort(key func(*lone) float64) {
	slices.SortStableFunc(m.jobs, func(a, b *lone) int { return cmp.Compare(key(a), key(b)) })
}

// run has a job run from now on.
func (m *loners) run(j *lone, ran bool) {
	if math.IsNaN(j.Start) {
		j.Start = m.now
	}
	if !ran {
		j.Queue += m.now - j.waiting
	}
	j.due = m.now + float64(j.left*alone)
	if m.policy == "tiresias" && j.level < len(tiresiasLimits) {
		if !ran || j.jump <= m.now {
			j.jump = m.now + max(1, math.Ceil((tiresiasLimits[j.level]-j.attained)/float64(j.GPUs)))
		}
		m.wake = min(m.wake, j.jump)
	}
}

// demote moves jobs that have had enough to the end of the next queue.
func (m *loners) demote() {
	var moved []*lone
	for _, j := range m.jobs {
		level := j.level
		for j.level < len(tiresiasLimits) && j.attained >= tiresiasLimits[j.level]-1e-9 {
			j.level++
		}
		if j.level != level {
			j.jump = 0
			moved = append(moved, j)
		}
	}
	m.jobs = append(slices.DeleteFunc(m.jobs, func(j *lone) bool { return slices.Contains(moved, j) }), moved...)
	m.sort(func(j *lone) float64 { return float64(j.level) })
}
