package originals

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// elastic is a job under ElasticFlow's policies.
type elastic struct {
	work
	out *sched.Outcome

	n    int // GPUs now
	plan plan
	end  float64 // of the plan, and what the round costs after it: when the job's event is
	old  float64 // end before this round planned it
	over float64 // s of this round in which it makes no progress
	site site

	next          int // level
	gain          float64
	raised        plan // to next
	known         bool // grows is what gain is while it fits
	grows         float64
	second, until float64 // grows depends on the free GPUs from second to until
}

// event is a time at which jobs arrive or end. An event without jobs is a round, too.
type event struct {
	at             float64
	arrivals, ends []*elastic
}

// events are in order of time, one for each time.
type events []*event

func (e *events) at(t float64) *event {
	i, there := slices.BinarySearchFunc(*e, t, func(x *event, t float64) int { return cmp.Compare(x.at, t) })
	if !there {
		*e = slices.Insert(*e, i, &event{at: t})
	}
	return (*e)[i]
}

// drop takes a job's end out of the event at a time. An event that has no jobs then is deleted.
func (e *events) drop(j *elastic, t float64) {
	i, there := slices.BinarySearchFunc(*e, t, func(x *event, t float64) int { return cmp.Compare(x.at, t) })
	if !there {
		return
	}
	x := (*e)[i]
	x.ends = slices.DeleteFunc(x.ends, func(o *elastic) bool { return o == j })
	if len(x.arrivals)+len(x.ends) == 0 {
		*e = slices.Delete(*e, i, i+1)
	}
}

// move moves a job's end.
func (e *events) move(j *elastic, from, to float64) {
	if from != to {
		e.drop(j, from)
		x := e.at(to)
		x.ends = append(x.ends, j)
	}
}

// next takes the first event, with all that follow within a slot.
func (e *events) next(now, slot float64) *event {
	first := (*e)[0]
	for first.at <= now+slot && len(*e) > 1 {
		first.at = now + slot
		second := (*e)[1]
		if second.at > first.at {
			break
		}
		first.arrivals, first.ends = append(first.arrivals, second.arrivals...), append(first.ends, second.ends...)
		*e = slices.Delete(*e, 1, 2)
	}
	*e = slices.Delete(*e, 0, 1)
	return first
}

// elasticFlow is a cluster under ef or ef-admission.
type elasticFlow struct {
	planner
	admission bool
	sign      float64 // of the gains; -1: turned
	uncached  bool    // compute each gain again; for tests
	events    events
	nodes     *nodes
	groups    groups
	free      timeline // what all plans leave
	room      timeline // where others are made
	rest      timeline

	// In orders that last.
	runnable []*elastic // let in, and not ended
	pending  []*elastic // not started
	running  []*elastic // started, even if without GPUs now
}

func newElasticFlow(c sched.Cluster, o Options) *elasticFlow {
	e := &elasticFlow{planner: planner{slot: o.Slot, gpus: c.Nodes * c.GPUs}, admission: o.Policy == "ef-admission", sign: 1,
		nodes: newNodes(c.Nodes, cmp.Or(c.Switch, c.Nodes), c.GPUs), groups: groups{known: map[group]bool{}}}
	if o.Turned {
		e.sign = -1
	}
	return e
}

// run simulates jobs, which are in order of submission.
func (e *elasticFlow) run(jobs []*elastic, progress func(ended, jobs int)) {
	for _, j := range jobs {
		x := e.events.at(j.out.Submit)
		x.arrivals = append(x.arrivals, j)
	}
	e.now = -e.slot
	for rounds := 0; len(e.events) > 0; rounds++ {
		if progress != nil && rounds%64 == 0 {
			progress(ended(jobs), len(jobs))
		}
		x := e.events.next(e.now, e.slot)
		passed := x.at - e.now
		e.now = x.at
		x.ends = append(x.ends, e.progress(passed)...)
		for _, j := range x.ends {
			e.ends(j)
		}
		e.admit(x.arrivals)
		e.start()
		e.spread()
		e.ahead()
		e.place()
	}
}

// progress has jobs run until now, and returns those that are done before their event.
func (e *elasticFlow) progress(passed float64) (early []*elastic) {
	for _, j := range e.runnable {
		if j.n == 0 {
			continue
		}
		ran := passed
		if e.now > j.plan.real {
			ran -= e.now - j.plan.real
		}
		ran = max(0, ran-j.over)
		done := j.done(j.n, ran)
		if j.left <= done && j.end > e.now {
			e.events.drop(j, j.end)
			j.end = e.now - passed + math.Ceil(j.left/j.rate(j.n))
			early = append(early, j)
		}
		j.left -= done
	}
	for _, j := range e.runnable {
		j.over = 0
	}
	return early
}

// ends ends a job, unless it has no GPUs: with admission it stays then.
func (e *elasticFlow) ends(j *elastic) {
	if e.admission && j.n == 0 {
		return
	}
	e.nodes.release(&j.site)
	is := func(o *elastic) bool { return o == j }
	e.runnable, e.pending, e.running = slices.DeleteFunc(e.runnable, is), slices.DeleteFunc(e.pending, is), slices.DeleteFunc(e.running, is)
	j.out.End = j.end
	steps(j.out, j.end, 0)
}

// admit plans new jobs, beside the others. With admission all of them are declined if any job would be late, except
// best-effort jobs.
func (e *elasticFlow) admit(arrivals []*elastic) {
	for _, j := range e.runnable {
		j.old = j.end
	}
	e.runnable = append(e.runnable, arrivals...)
	in := arrivals
	e.replan()
	if late := slices.IndexFunc(e.runnable, func(j *elastic) bool { return j.plan.real > j.deadline }); e.admission && len(arrivals) > 0 && late >= 0 {
		in = nil
		for _, j := range arrivals {
			if j.out.BestEffort {
				in = append(in, j)
			} else {
				j.out.Why = fmt.Sprintf("job %s would end after its deadline, and the program declines all jobs that have come then", e.runnable[late].out.ID)
			}
		}
		e.runnable = slices.DeleteFunc(e.runnable, func(j *elastic) bool { return j.out.Declined() })
		e.replan()
	}
	e.pending = append(e.pending, in...)
	for _, j := range e.runnable {
		j.n, j.end = j.plan.now(), j.plan.end
		e.events.move(j, j.old, j.end)
	}
}

// replan plans all jobs, in order of their deadlines, and takes their GPUs away.
func (e *elasticFlow) replan() {
	slices.SortStableFunc(e.runnable, func(a, b *elastic) int { return cmp.Compare(a.deadline, b.deadline) })
	for _, j := range e.runnable {
		e.nodes.release(&j.site)
	}
	e.free = e.all(e.runnable)
}

// start starts jobs that have GPUs. Without admission there is a round when one of the others is to have some.
func (e *elasticFlow) start() {
	var start []*elastic
	e.pending = slices.DeleteFunc(e.pending, func(j *elastic) bool {
		if j.n > 0 {
			start = append(start, j)
			return true
		}
		if i := slices.IndexFunc(j.plan.steps, func(s step) bool { return s.gpus > 0 }); !e.admission && i >= 0 {
			e.events.at(j.plan.steps[i].at)
		}
		return false
	})
	for _, j := range start {
		e.starts(j)
	}
}

func (e *elasticFlow) starts(j *elastic) {
	j.out.Start = e.now
	j.out.Queue = e.now - j.out.Submit
	e.running = append(e.running, j)
}

// spread assigns the remaining GPUs, a level at a time, to jobs without GPUs first, then to the job with the largest
// growth of the plan's GPU-seconds per GPU. It leaves runnable in the order of the last gains, those of equal gain as
// they stood.
func (e *elasticFlow) spread() {
	free := e.gpus
	for _, j := range e.runnable {
		free -= j.n
		j.next = j.up(j.n)
		j.gain, j.known = math.Inf(-1), false
	}
	if free == 0 {
		return
	}
	for {
		for _, j := range e.runnable {
			e.look(j, free)
		}
		slices.SortStableFunc(e.runnable, func(a, b *elastic) int { return cmp.Compare(b.gain, a.gain) })
		i := slices.IndexFunc(e.runnable, func(j *elastic) bool { return j.next > j.n && j.next-j.n <= free })
		if i < 0 {
			return
		}
		j := e.runnable[i]
		free -= j.next - j.n
		if math.IsNaN(j.out.Start) {
			e.pending = slices.DeleteFunc(e.pending, func(o *elastic) bool { return o == j })
			e.starts(j)
		}
		rest := e.raise(j).merged()
		e.forget(e.free, rest)
		e.free, e.rest, j.known = rest, e.free, false
		j.plan, j.raised = j.raised, j.plan
		e.events.move(j, j.end, j.plan.end)
		j.end, j.n = j.plan.end, j.next
		j.next = j.up(j.n)
	}
}

// look computes the gain of a job. The gain of a job without a next level is unchanged.
func (e *elasticFlow) look(j *elastic, free int) {
	switch {
	case j.next == j.n:
	case j.next-j.n > free:
		j.gain = math.Inf(-1)
	case j.n == 0:
		j.gain = math.Inf(1)
	default:
		if second := secondStep(e.free, &j.plan, e.room); e.uncached || !j.known || second != j.second {
			e.raise(j)
			j.known, j.second, j.until = true, second, max(e.align(j.deadline), j.raised.end)
			j.grows = e.sign * (j.raised.seconds() - j.plan.seconds()) / float64(j.next-j.n)
		}
		j.gain = j.grows
	}
}

// raise plans a job with its next level, and returns what that leaves, not merged.
func (e *elasticFlow) raise(j *elastic) timeline {
	e.room = giveBack(e.free, &j.plan, e.room, math.MaxInt)
	j.raised, e.rest = e.planner.plan(&j.work, e.room, j.next, j.raised.steps, e.rest)
	return e.rest
}

// forget marks the gains of jobs for recomputation if their raised plans used GPUs that are free in one timeline and
// not in the other. The first step of a plan counts only by its end, not by its free GPUs.
func (e *elasticFlow) forget(a, b timeline) {
	changes := changes(a, b)
	for _, j := range e.runnable {
		j.known = j.known && !slices.ContainsFunc(changes, func(c change) bool { return c.from < j.until && c.to > j.second })
	}
}

// ahead has a round when a plan changes.
func (e *elasticFlow) ahead() {
	if e.admission {
		slices.SortStableFunc(e.runnable, func(a, b *elastic) int { return cmp.Compare(b.n, a.n) })
		at := math.Inf(1)
		for _, j := range e.runnable {
			if len(j.plan.steps) > 1 {
				at = min(at, j.plan.steps[1].at)
			}
		}
		if len(e.events) > 0 && at < e.events[0].at {
			e.events.at(at)
		}
		return
	}
	for _, j := range e.running {
		if len(j.plan.steps) > 1 {
			e.events.at(j.plan.steps[1].at)
		}
	}
}

// place places all jobs that have GPUs, and computes their overhead.
func (e *elasticFlow) place() {
	order := e.runnable
	if !e.admission {
		order = e.running
	}
	var run []*elastic
	for _, j := range order {
		if steps(j.out, e.now, float64(j.n)); j.n > 0 {
			run = append(run, j)
		}
	}
	e.nodes.place(run)
	e.groups.charge(e.gpus, e.slot, run)
	for _, j := range run {
		e.events.move(j, j.end, j.end+j.over)
		j.end += j.over
	}
}
