package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// lucidJob is a job under Lucid's program. It counts the remaining seconds down.
type lucidJob struct {
	*sched.Outcome
	seq      int     // in order of submission
	left     float64 // s of running that remain, as of since
	attained float64 // GPU-seconds, as of since
	speed    float64 // s of work a second; 0: is not running
	since    float64
	waiting  float64 // since when it has no GPUs
	due      float64 // when it ends, if nothing changes
	at       []share
	partner  *lucidJob // that has the same GPUs; itself: it has joined one that has ended, and nothing joins it
	joined   bool      // the partner had them first
}

// share is a number of GPUs of a node.
type share struct{ node, gpus int }

// lucidCluster is a virtual cluster of Lucid's program, without its policy.
type lucidCluster struct {
	now, wake float64
	gpus      int // of all nodes
	late      float64
	pool      freeGPUs
	running   []*lucidJob // in no order
	arrived   []*lucidJob // since the last decision
}

func newLucidCluster(c sched.Cluster) *lucidCluster {
	return &lucidCluster{gpus: c.Nodes * c.GPUs, pool: newFreeGPUs(c), wake: math.Inf(1)}
}

// run simulates jobs, which are in order of submission, and calls decide when jobs have arrived or ended, or at wake.
// An end is noticed late seconds after it.
func (v *lucidCluster) run(outs []*sched.Outcome, progress func(ended, jobs int), decide func()) {
	due := make([]*lucidJob, len(outs))
	for i, o := range outs {
		due[i] = &lucidJob{Outcome: o, seq: i, left: o.Duration, waiting: o.Submit}
	}
	ended := 0
	for event := 1; ; event++ {
		if progress != nil && event%64 == 0 {
			progress(ended, len(outs))
		}
		next := v.wake
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		if t := v.first(); t != nil {
			next = min(next, t.due+v.late)
		}
		if math.IsInf(next, 1) {
			return
		}
		v.now, v.wake, v.arrived = next, math.Inf(1), nil
		for t := v.first(); t != nil && t.due+v.late <= next; t = v.first() {
			v.stop(t)
			t.End = next
			ended++
		}
		for ; len(due) > 0 && due[0].Submit <= next; due = due[1:] {
			if t := due[0]; !tooLarge(t.Outcome, v.gpus) {
				v.arrived = append(v.arrived, t)
			}
		}
		decide()
	}
}

// first is the job that ends first, of those that end at the same time the one that was submitted first. Nil: none
// runs.
func (v *lucidCluster) first() (first *lucidJob) {
	for _, t := range v.running {
		if first == nil || t.due < first.due || t.due == first.due && t.seq < first.seq {
			first = t
		}
	}
	return first
}

func (v *lucidCluster) wakeAt(t float64) { v.wake = min(v.wake, t) }

// start gives a job the GPUs that it asks for. False: they do not fit.
func (v *lucidCluster) start(t *lucidJob) bool {
	at := v.pool.consolidate(t.GPUs)
	if at == nil {
		return false
	}
	v.pool.give(at, -1)
	v.runOn(t, at, 1)
	steps(t.Outcome, v.now, float64(t.GPUs))
	return true
}

// join starts a job on the GPUs of another one. From now on they run at these speeds, until one of them stops.
func (v *lucidCluster) join(t, with *lucidJob, speed, others float64) {
	v.settle(with)
	v.pace(with, others)
	v.runOn(t, with.at, speed)
	t.partner, with.partner = with, t
	t.joined, with.joined = true, false
	steps(t.Outcome, v.now, float64(t.GPUs)/2)
	steps(with.Outcome, v.now, float64(t.GPUs)/2)
}

func (v *lucidCluster) runOn(t *lucidJob, at []share, speed float64) {
	if math.IsNaN(t.Start) {
		t.Start = v.now
	}
	t.at, t.since = at, v.now
	t.Queue += v.now - t.waiting
	v.running = append(v.running, t)
	v.pace(t, speed)
}

// pace has a job run at a speed from now on.
func (v *lucidCluster) pace(t *lucidJob, speed float64) {
	t.speed, t.due = speed, v.now
	if speed == 1 {
		t.due += math.Ceil(t.left)
		return
	}
	for left := t.left; left > 0; left -= speed {
		t.due++
	}
}

// settle brings left and attained of a job up to now.
func (v *lucidCluster) settle(t *lucidJob) {
	if d := v.now - t.since; t.speed > 0 {
		if t.speed == 1 {
			t.left -= d
		} else {
			for range int(d) {
				t.left -= t.speed
			}
		}
		t.attained += float64(d * float64(t.GPUs))
	}
	t.since = v.now
}

// stop takes a job's GPUs. One that shares them keeps them; if it has joined the other one it keeps its speed, too.
func (v *lucidCluster) stop(t *lucidJob) {
	v.settle(t)
	t.speed = 0
	v.running = slices.DeleteFunc(v.running, func(r *lucidJob) bool { return r == t })
	steps(t.Outcome, v.now, 0)
	if p := t.partner; p == nil || p == t {
		v.pool.give(t.at, 1)
	} else if steps(p.Outcome, v.now, float64(p.GPUs)); p.joined {
		p.partner = p
	} else {
		v.settle(p)
		v.pace(p, 1)
		p.partner = nil
	}
	t.at, t.partner, t.joined = nil, nil, false
}

// preempt takes a job's GPUs, at the cost of some seconds of work that are to be done again.
func (v *lucidCluster) preempt(t *lucidJob) {
	v.stop(t)
	if t.GPUs > 8 {
		t.left += 60
	} else {
		t.left += 40
	}
	t.waiting = v.now
	t.Preemptions++
}

// freeGPUs is the GPUs that are free.
type freeGPUs struct {
	free []int // of each node
	size int   // of a node
}

func newFreeGPUs(c sched.Cluster) freeGPUs {
	return freeGPUs{slices.Repeat([]int{c.GPUs}, c.Nodes), c.GPUs}
}

// total is all that are free.
func (p *freeGPUs) total() (n int) {
	for _, f := range p.free {
		n += f
	}
	return n
}

// give frees GPUs; times is -1 if they are taken.
func (p *freeGPUs) give(at []share, times int) {
	for _, x := range at {
		p.free[x.node] += times * x.gpus
	}
}

// add adds a free node.
func (p *freeGPUs) add() { p.free = append(p.free, p.size) }

// drop takes a node away. False: it is in use.
func (p *freeGPUs) drop(node int) bool {
	if p.free[node] != p.size {
		return false
	}
	p.free[node] = 0
	return true
}

// consolidate finds GPUs on as few nodes as possible: what fits on one node goes where the fewest GPUs are left over;
// more takes whole nodes, and the rest from the next one. Nil: it does not fit.
func (p *freeGPUs) consolidate(want int) (at []share) {
	if want > p.total() {
		return nil
	}
	if want <= p.size {
		best := -1
		for i, f := range p.free {
			if f >= want && (best < 0 || f < p.free[best]) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		return []share{{best, want}}
	}
	order := make([]int, len(p.free))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.free[b], p.free[a]) })
	for k := 0; want > 0; k++ { // all of them together are enough
		take := min(want, p.size)
		if p.free[order[k]] < take {
			return nil
		}
		at = append(at, share{order[k], take})
		want -= take
	}
	return at
}

// queue is a policy that starts jobs in order of a key, and stops at the first one that does not fit.
type queue struct {
	*lucidCluster
	key     func(*lucidJob) float64
	waiting []*lucidJob
	byGPUs  bool // of qssf: jobs that arrive together while none waits are ordered by their GPUs, until the next second
	crude   bool // they have been
}

func runQueue(outs []*sched.Outcome, c sched.Cluster, o Options) {
	l := &queue{lucidCluster: newLucidCluster(c)}
	switch o.Policy {
	case "fifo":
		l.key = func(t *lucidJob) float64 { return t.Submit }
	case "sjf":
		l.key = func(t *lucidJob) float64 { return t.Duration }
	case "qssf":
		l.key, l.byGPUs = func(t *lucidJob) float64 { return t.History * float64(t.GPUs) }, true
	}
	l.run(outs, o.Progress, l.decide)
}

func (l *queue) decide() {
	key := l.key
	came := l.arrived
	if l.byGPUs && len(l.waiting) == 0 && len(came) > 1 {
		l.wakeAt(l.now + 1)
		l.crude = true
		key = func(t *lucidJob) float64 { return float64(t.GPUs) }
	} else if l.crude {
		l.crude = false
		l.sort(key)
	}
	if len(came) > 0 {
		l.waiting = append(l.waiting, came...)
		l.sort(key)
	}
	for len(l.waiting) > 0 && l.start(l.waiting[0]) {
		l.waiting = l.waiting[1:]
	}
}

func (l *queue) sort(key func(*lucidJob) float64) {
	slices.SortFunc(l.waiting, func(a, b *lucidJob) int { return cmp.Or(cmp.Compare(key(a), key(b)), a.seq-b.seq) })
}

// quota is a policy that gives the GPUs to the first jobs in an order, also those that others have now.
type quota struct {
	*lucidCluster
	order   func(*lucidJob) float64
	period  float64 // of decisions, s; 0: whenever something happens
	waiting []*lucidJob
	had     []*lucidJob // that have GPUs, in order of their starts
}

// plenty is how many GPU-seconds a job has under tiresias before it is behind those that have had less.
const plenty = 18000

func runQuota(outs []*sched.Outcome, c sched.Cluster, o Options) {
	s := &quota{lucidCluster: newLucidCluster(c)}
	s.late = 1
	switch o.Policy {
	case "srtf":
		s.order = func(t *lucidJob) float64 { return t.left }
	case "srsf":
		s.order = func(t *lucidJob) float64 { return t.left * float64(t.GPUs) }
	case "tiresias":
		s.period = 60
		s.order = func(t *lucidJob) float64 {
			if t.attained > plenty {
				return 1
			}
			return 0
		}
	}
	s.run(outs, o.Progress, s.decide)
}

func (s *quota) decide() {
	s.waiting = append(s.waiting, s.arrived...)
	s.had = slices.DeleteFunc(s.had, func(t *lucidJob) bool { return t.speed == 0 })
	if len(s.waiting) == 0 {
		return
	}
	if s.period > 0 {
		if rest := math.Mod(s.now, s.period); rest != 0 {
			s.wakeAt(s.now - rest + s.period)
			return
		}
		s.wakeAt(s.now + s.period)
	}
	demand := 0
	for _, t := range s.waiting {
		demand += t.GPUs
	}
	ranked := s.waiting
	switch {
	case demand <= s.pool.total(): // jobs that run keep their GPUs
	case s.period > 0:
		ranked = slices.Concat(s.had, s.waiting)
	default:
		ranked = slices.Concat(s.waiting, s.had)
	}
	left := s.gpus
	var start []*lucidJob
	changed := false
	for _, t := range s.rank(ranked) {
		if t.GPUs <= left {
			left -= t.GPUs
			if t.speed == 0 {
				start = append(start, t)
			}
		} else if t.speed > 0 {
			s.preempt(t)
			s.had = slices.DeleteFunc(s.had, func(r *lucidJob) bool { return r == t })
			s.waiting = append(s.waiting, t)
			changed = true
		}
	}
	for _, t := range start {
		if s.start(t) {
			s.waiting = slices.DeleteFunc(s.waiting, func(w *lucidJob) bool { return w == t })
			s.had = append(s.had, t)
			changed = true
		}
	}
	if changed && s.period == 0 && len(s.waiting) > 0 {
		s.wakeAt(s.now + 1)
	}
}

// rank is jobs in the policy's order, those of the same rank as they are listed, or by submission where decisions have
// a period.
func (s *quota) rank(jobs []*lucidJob) []*lucidJob {
	by := map[*lucidJob]float64{}
	for _, t := range jobs {
		s.settle(t)
		by[t] = s.order(t)
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b *lucidJob) int {
		if s.period > 0 {
			return cmp.Or(cmp.Compare(by[a], by[b]), cmp.Compare(a.Submit, b.Submit))
		}
		return cmp.Compare(by[a], by[b])
	})
	return jobs
}
