package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// served is a job under Tiresias as in ElasticFlow.
type served struct {
	*sched.Outcome
	seq      int
	left     float64 // s
	executed float64 // s of progress
	running  bool
	lost     float64 // s until it continues
	last     float64 // up to when left is right
	due      float64 // when it ends, as far as is known
	level    int     // its queue
}

// tiresiasLimits is where the three queues are split, GPU-seconds.
var tiresiasLimits = []float64{3250, 7200}

// attained is a cluster under Tiresias as ElasticFlow's program has it: three queues by GPU-seconds received, decisions
// at least a slot apart, and a job that gets GPUs loses the seconds of setup. Jobs that have had enough are noticed at
// the next decision.
type attained struct {
	now    float64
	slot   float64
	gpus   int
	round  int
	queues [3][]*served
}

// runTiresias simulates jobs under it. GPUs are counted, not placed.
func runTiresias(outs []*sched.Outcome, c sched.Cluster, o Options) {
	slot := o.Slot
	due := make([]*served, len(outs))
	for i, o := range outs {
		due[i] = &served{Outcome: o, seq: i, left: o.Duration}
	}
	e := &attained{now: -slot, slot: slot, gpus: c.Nodes * c.GPUs}
	for {
		next := e.next()
		last := len(due) == 1 && due[0].Submit <= next // the last arrival does not wait
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		if math.IsInf(next, 1) {
			break
		}
		if !last {
			next = max(next, e.now+slot)
		}
		e.now = next
		e.round++
		e.progress()
		for ; len(due) > 0 && due[0].Submit <= next; due = due[1:] {
			if j := due[0]; !tooLarge(j.Outcome, e.gpus) {
				j.last, j.Queue = next, next-j.Submit
				e.queues[0] = append(e.queues[0], j)
			}
		}
		e.demote()
		e.serve()
	}
}

// next is when a job ends or has had enough of its queue. The program divides the remainder until a limit by the GPUs
// after the seconds received, not the GPU-seconds, so it checks jobs with several GPUs later than they pass the limit.
func (e *attained) next() float64 {
	at := math.Inf(1)
	for level, q := range e.queues {
		for _, j := range q {
			if !j.running {
				continue
			}
			at = min(at, j.due)
			if level < len(tiresiasLimits) {
				at = min(at, e.now+max(1, math.Ceil((tiresiasLimits[level]-j.executed)/float64(j.GPUs))))
			}
		}
	}
	return at
}

// progress brings all jobs up to now.
func (e *attained) progress() {
	for level, q := range e.queues {
		e.queues[level] = slices.DeleteFunc(q, func(j *served) bool {
			d := e.now - j.last
			j.last = e.now
			switch {
			case !j.running:
				j.Queue += d
			case j.due <= e.now:
				j.End = j.due
				steps(j.Outcome, j.End, 0)
				return true
			default:
				run := max(0, d-j.lost)
				j.lost = 0
				j.left -= run
				j.executed += run
			}
			return false
		})
	}
}

// demote moves jobs that have had enough to the end of the next queue, those with more GPUs first.
func (e *attained) demote() {
	var moved []*served
	for level, limit := range tiresiasLimits {
		e.queues[level] = slices.DeleteFunc(e.queues[level], func(j *served) bool {
			enough := j.running && j.executed*float64(j.GPUs) >= limit
			if enough {
				moved = append(moved, j)
			}
			return enough
		})
	}
	slices.SortFunc(moved, func(a, b *served) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.Submit, b.Submit), cmp.Compare(a.seq, b.seq))
	})
	for _, j := range moved {
		j.level++
		e.queues[j.level] = append(e.queues[j.level], j)
	}
}

// serve gives the GPUs to the first jobs that fit, in the order of the queues. A running job is first in its queue from
// now on. What a job loses delays its end from the next decision on where it starts, and at once where it runs.
func (e *attained) serve() {
	free := e.gpus
	for _, q := range e.queues {
		for _, j := range q {
			ran := j.running
			if j.running = j.GPUs <= free; !j.running {
				if ran {
					j.Preemptions++
					steps(j.Outcome, e.now, 0)
				}
				continue
			}
			free -= j.GPUs
			steps(j.Outcome, e.now, float64(j.GPUs))
			if math.IsNaN(j.Start) {
				j.Start = e.now
			}
			j.due = e.now + j.left
			if restart := again(e.round, e.slot); restart || !ran {
				j.lost = overhead(e.gpus, group{0, j.GPUs}, false, restart)
			}
			if ran {
				j.due += j.lost
			}
		}
		slices.SortStableFunc(q, func(a, b *served) int {
			switch {
			case a.running == b.running:
				return 0
			case a.running:
				return -1
			}
			return 1
		})
	}
}
