package sched

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
)

// fits returns why a job can never run.
func fits(want, most int) string {
	return fmt.Sprintf("asks for %d GPUs, and the cluster has %d", want, most)
}

// queue is a policy that starts jobs in order of a key, and stops at the first one that does not fit.
type queue struct {
	key     func(*Task) float64
	waiting byKey
}

type keyed struct {
	*Task
	key float64
}

type byKey []keyed

func (q byKey) Len() int { return len(q) }
func (q byKey) Less(i, j int) bool {
	return q[i].key < q[j].key || q[i].key == q[j].key && q[i].seq < q[j].seq
}
func (q byKey) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *byKey) Push(x any)   { *q = append(*q, x.(keyed)) }
func (q *byKey) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// FIFO starts jobs in order of submission.
func FIFO() Policy { return &queue{key: func(t *Task) float64 { return t.Submit }} }

// SJF starts the job with the shortest duration first. It uses the true durations.
func SJF() Policy { return &queue{key: func(t *Task) float64 { return t.Duration * t.guess() }} }

// QSSF starts the job with the least duration times GPUs first; durations are predicted from the user's earlier jobs.
func QSSF() Policy {
	return &queue{key: func(t *Task) float64 { return t.History * float64(t.GPUs) }}
}

func (q *queue) Decide(s *State) {
	for _, t := range slices.Concat(s.Revoked, s.Arrived) {
		heap.Push(&q.waiting, keyed{t, q.key(t)})
	}
	for len(q.waiting) > 0 && s.Start(q.waiting[0].Task) {
		heap.Pop(&q.waiting)
	}
}

// quota is a policy that gives the GPUs to the first jobs in an order, and preempts the others.
type quota struct {
	order   func(s *State, t *Task) float64
	period  float64 // between decisions, s; 0: at each event
	waiting []*Task
	running []*Task
}

// remains returns how long a task is expected to need GPUs until its end, including its start; without the start, a
// task that has just started would rank behind tasks that have not.
func (s *State) remains(t *Task) float64 {
	if t.Running() {
		return t.thought()
	}
	return t.thought() + s.starting*t.guess()
}

// SRTF gives the GPUs to the jobs with the least time left. It uses the true durations.
func SRTF() Policy { return &quota{order: (*State).remains} }

// SRSF gives the GPUs to the jobs with the fewest GPU-seconds left. It uses the true durations.
func SRSF() Policy {
	return &quota{order: func(s *State, t *Task) float64 { return s.remains(t) * float64(t.GPUs) }}
}

// lucidLimit is where Tiresias, as in Lucid, splits its two queues, GPU-seconds.
const lucidLimit = 18000

// Tiresias gives the GPUs first to jobs that have received at most 18,000 GPU-seconds, then to the others; each group
// in order of submission. It decides once a minute.
func Tiresias() Policy {
	return &quota{period: 60, order: func(s *State, t *Task) float64 {
		if t.Attained > lucidLimit {
			return 1
		}
		return 0
	}}
}

func (q *quota) Decide(s *State) {
	q.waiting = append(append(q.waiting, s.Revoked...), s.Arrived...)
	if len(s.Ended)+len(s.Revoked) > 0 {
		q.running = slices.DeleteFunc(q.running, func(t *Task) bool { return !t.Running() })
	}
	if len(q.waiting) == 0 {
		return
	}
	if q.period > 0 {
		if rest := math.Mod(s.Now, q.period); rest != 0 {
			s.WakeAt(s.Now - rest + q.period)
			return
		}
		s.WakeAt(s.Now + q.period)
	}
	left, demand := s.GPUs(), 0
	for _, t := range q.waiting {
		demand += t.GPUs
	}
	ranked := q.waiting
	switch {
	case demand <= s.Free(): // running jobs keep their GPUs
	case q.period > 0:
		ranked = slices.Concat(q.running, q.waiting)
	default:
		ranked = slices.Concat(q.waiting, q.running)
	}
	var start []*Task
	changed := false
	for _, t := range q.rank(s, ranked) {
		if t.GPUs <= left {
			left -= t.GPUs
			if !t.Running() {
				start = append(start, t)
			}
		} else if t.Running() {
			s.Preempt(t, preemption(t.GPUs))
			q.running = slices.DeleteFunc(q.running, func(r *Task) bool { return r == t })
			q.waiting = append(q.waiting, t)
			changed = true
		}
	}
	for _, t := range start {
		if s.Start(t) {
			q.waiting = slices.DeleteFunc(q.waiting, func(w *Task) bool { return w == t })
			q.running = append(q.running, t)
			changed = true
		}
	}
	if changed && q.period == 0 && len(q.waiting) > 0 {
		s.WakeAt(s.Now + 1)
	}
}

// rank returns tasks in the policy's order. Tasks of equal rank stay as listed, or in order of submission if decisions
// have a period.
func (q *quota) rank(s *State, tasks []*Task) []*Task {
	type ranked struct {
		*Task
		by float64
	}
	all := make([]ranked, len(tasks))
	for i, t := range tasks {
		s.settle(t)
		all[i] = ranked{t, q.order(s, t)}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		if q.period > 0 {
			return cmp.Or(cmp.Compare(a.by, b.by), cmp.Compare(a.Submit, b.Submit))
		}
		return cmp.Compare(a.by, b.by)
	})
	in := make([]*Task, len(all))
	for i, r := range all {
		in[i] = r.Task
	}
	return in
}
