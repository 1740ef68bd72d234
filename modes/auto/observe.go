package auto

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

const (
	pooled  = 8   // records of a worker up to which those that are alike stand in for it
	needed  = 5   // valid records of a worker before a decision
	hasty   = 2   // valid records that are enough where it is obvious which worker is slow
	invalid = 3   // invalid records in a row after which no record is believed
	shifted = 6   // iterations in a row that make a new level
	leapt   = 3   // iterations in a row that make a new level where each takes half more than the median
	apart   = 1.2 // factor by which levels differ
)

// observations is the workers of the job, and what their records have shown.
type observations struct {
	batch   int // samples of an equal share
	workers []watched
	parts   *PartCosts
	meeting meeting
	gone    int // workers that have left

	started bool          // there was an update
	begun   time.Duration // the first update

	overdue bool // a worker computes for longer than in any iteration that is remembered
	blind   bool // a worker is taken to be slow before its second iteration has ended

	// queued: workers have taken samples from a queue. Then their number follows from the times, and not the times
	// from their number.
	queued bool
}

func newObservations(workers, batch int) observations {
	obs := observations{batch: batch, workers: make([]watched, workers), parts: NewPartCosts(workers, batch)}
	for w := range obs.workers {
		obs.workers[w].computes = true
	}
	return obs
}

// watched is the state of a worker.
type watched struct {
	gone     bool
	times    ring   // seconds
	compute  ring   // seconds, of the same iterations
	samples  ring   // of the same iterations
	parts    ring   // in which these were computed
	begins   ring   // when they began, seconds
	busy     ring   // fraction of its host's processors that was busy during them, and during the first one; 0: unknown
	exchange ring   // seconds of the same iterations, and during the first one
	link     ring   // of them the seconds that the link alone took; 0: unknown
	seen     int64  // valid records
	bad      int    // invalid records in a row
	why      string // what was wrong with the last invalid record
	released time.Duration
	computes bool

	// pushes and pulled are the fragments of the exchange that follows the present iteration, and of the one before it
	// (Plan.Fragments).
	pushes, pulled int
	push           time.Duration // of the record before
	late           int           // deadlines that have passed in its present iteration
	leaps          int           // records in a row that took half more than the median
	far            int           // records in a row far above the median; negative: below

	// leveled is when the iteration began with which the worker reached a new, higher level.
	leveled time.Duration

	// first is the time of the first iteration, which times does not have. 0: none yet, or it had another number of
	// samples than an equal share. firstCompute and firstPull are of the same iteration.
	first, firstCompute, firstPull float64
}

// shift detects whether t belongs to a new level: several iterations in a row far above the median of the remembered
// ones, or far below it, which hardly ever happens to a worker that is slow now and then. Then all iterations before
// them are forgotten, but not how busy the host was: a burst of load that slows all workers would make full processors
// unknown (crowded).
//
// Iterations are scaled to the number of samples of this one: from a queue a slow worker takes fewer samples, in the
// same time as all others.
func (w *watched) shift(t, samples float64) {
	if len(w.times.vals) < needed {
		return
	}
	same := slices.Clone(w.times.vals)
	for i, k := range w.samples.vals {
		same[i] += w.compute.vals[i] * (samples/k - 1)
	}
	m := median(same)
	switch {
	case t > apart*m:
		w.far = max(w.far, 0) + 1
	case t*apart < m:
		w.far = min(w.far, 0) - 1
	default:
		w.far = 0
	}
	if t > 1.5*m {
		w.leaps++
	} else {
		w.leaps = 0
	}
	if w.far >= shifted || -w.far >= shifted || w.leaps >= leapt {
		keep := shifted - 1
		if w.leaps >= leapt {
			keep, w.leveled = leapt-1, w.released
		}
		w.far, w.leaps = 0, 0
		for _, r := range []*ring{&w.times, &w.compute, &w.samples, &w.parts, &w.begins, &w.exchange, &w.link} {
			r.keep(keep)
		}
	}
}

// breaking reports whether a worker has reached a new level while another one is an iteration short of it and in that
// iteration. What slows all workers, such as a link, is seen of one of them first, and would be taken for its own.
func (obs *observations) breaking() bool {
	for i := range obs.workers {
		w := &obs.workers[i]
		if w.gone || !w.computes || w.leaps != leapt-1 {
			continue
		}
		for j := range obs.workers {
			if v := &obs.workers[j]; !v.gone && v.leveled > 0 && v.leveled >= w.released {
				return true
			}
		}
	}
	return false
}

// slowed reports whether most workers have reached a new level since the present plan was chosen, or in two iterations
// before. What slows all of them, such as their links, is seen of one first, so that the plan may have been chosen
// against a worker that is as fast as the others.
func (c *Controller) slowed() bool {
	n := 0
	for i := range c.obs.workers {
		if w := &c.obs.workers[i]; !w.gone && w.leveled > max(c.current.since-2*c.current.pace, 0) {
			n++
		}
	}
	return 2*n > c.obs.living()
}

// living is the number of live workers, at least one.
func (obs *observations) living() int { return max(len(obs.workers)-obs.gone, 1) }

// round is the samples of a round of all live workers.
func (obs *observations) round() int { return obs.living() * obs.batch }

// Leave records that a worker has left.
func (c *Controller) Leave(w star.Worker) {
	if !c.obs.workers[w].gone {
		c.obs.gone++
	}
	c.obs.workers[w].gone, c.obs.workers[w].computes = true, false
}

// Join records that a worker is back, and computes from now on.
func (c *Controller) Join(at time.Duration, w star.Worker) {
	if c.obs.workers[w].gone {
		c.obs.gone--
	}
	c.obs.workers[w] = watched{computes: true, released: at}
	c.obs.parts.forget(w)
}

// Observe takes the record of a gradient that has arrived.
func (c *Controller) Observe(r star.Record) {
	if r.Worker < 0 || int(r.Worker) >= len(c.obs.workers) {
		return
	}
	w := &c.obs.workers[r.Worker]
	w.computes, w.late = false, 0
	t := c.cfg.Own(r)
	if riders := c.current.plan.Groups[0].Riders; c.cfg.Ring && r.Push >= 0 && !slices.Contains(riders, r.Worker) {
		c.obs.meeting.came(&r, c.obs.living()-len(riders), max(w.pushes, w.pulled, 1))
	}
	if !c.cfg.Ring && max(w.pushes, 1) != max(w.pulled, 1) { // the first push of another size belongs to the next exchange
		t += w.push - r.Push
	}
	w.push = r.Push
	if w.pulled > 1 { // r has the exchange of a fragment: as if it had been that of all parameters
		took := t - r.Load - r.Compute
		if link, known := linkTime(&r); known { // waits for a processor are as long for all of them
			took = min(took, price.Seconds(link))
		}
		t += time.Duration(w.pulled-1) * took
	}
	switch {
	case r.Load < 0 || r.Compute < 0 || r.Push < 0 || r.Pull < 0 || r.Injected < 0:
		w.bad, w.why = w.bad+1, fmt.Sprintf("a negative time in step %d", r.Step)
	case t <= 0 || t > price.MaxTime:
		w.bad, w.why = w.bad+1, fmt.Sprintf("step %d took %v", r.Step, t)
	case r.Samples < 1:
		w.bad, w.why = w.bad+1, fmt.Sprintf("step %d had %d samples", r.Step, r.Samples)
	default:
		w.bad = 0
		busy, ok := r.Telemetry.Get(star.HostCPU)
		if !ok || !(busy >= 0 && busy <= 1) {
			busy = 0
		}
		w.busy.add(busy)
		link, _ := linkTime(&r)
		w.link.add(link)
		w.exchange.add((r.Push + r.Transit + r.Pull).Seconds())
		if c.loss.observe(r.Loss, c.obs.living()); c.loss.grows() && !c.current.plan.Equal(modes.SSGD(len(c.obs.workers))) {
			c.last.doubt = true
		}
		if w.seen++; w.seen == 1 {
			if w.first = t.Seconds(); r.Samples != c.cfg.Batch {
				w.first = 0
			}
			w.firstCompute, w.firstPull = (r.Load + r.Compute).Seconds(), r.Pull.Seconds()
			return // the first iteration includes one-time costs
		}
		parts, ok := r.Telemetry.Get(star.Parts)
		if ok {
			c.obs.parts.Observe(r.Worker, float64(r.Samples), parts, (r.Load + r.Compute).Seconds())
		} else {
			parts = 1
		}
		if c.trials.running != nil && w.released >= c.trials.running.begun {
			c.trials.running.had[r.Worker] = append(c.trials.running.had[r.Worker], iteration{w.released.Seconds(), t.Seconds(), r.Samples, parts})
		}
		w.shift(t.Seconds(), float64(r.Samples))
		w.times.add(t.Seconds())
		w.compute.add((r.Load + r.Compute).Seconds())
		w.samples.add(float64(r.Samples))
		w.parts.add(parts)
		w.begins.add(w.released.Seconds())
		if c.cfg.Predictor != nil {
			c.cfg.Predictor.Observe(r)
		}
	}
	c.last.doubt = c.last.doubt || w.bad >= invalid
}

// Late records that the deadline of w has passed without its gradient, or twice the deadline, and so on.
func (c *Controller) Late(w star.Worker) {
	if c.obs.workers[w].computes {
		c.obs.workers[w].late++
		c.last.late = true
	}
}

// Fired records an update: the workers with an applied gradient, which are released, and the number of samples.
func (c *Controller) Fired(at time.Duration, ws []star.Worker, samples int) {
	if !c.obs.started {
		c.obs.begun, c.obs.started = at, true
	}
	for _, w := range ws {
		if int(w) < len(c.obs.workers) && !c.obs.workers[w].gone {
			v := &c.obs.workers[w]
			v.released, v.computes, v.late = at, true, 0
			v.pushes, v.pulled = c.current.plan.Fragments, v.pushes
		}
	}
	if t := c.trials.running; t != nil && at > t.begun {
		t.fired(at, samples, c.obs.round())
	}
}

// young reports whether all workers have few records.
func (obs *observations) young() bool {
	for i := range obs.workers {
		if w := &obs.workers[i]; !w.gone && w.seen > pooled {
			return false
		}
	}
	return true
}

// elapsed is the seconds since w was released, without an exchange of a ring.
func (obs *observations) elapsed(at time.Duration, w *watched) float64 {
	return (at - w.released).Seconds() - obs.meeting.known()/float64(max(w.pushes, 1))
}

// lags reports whether w, with one iteration on record, took half longer than most for it, and has already taken half
// longer than most for the second: that is known before the second one ends.
func (obs *observations) lags(at time.Duration, w *watched) bool {
	elapsed := obs.elapsed(at, w)
	if w.seen == 1 && w.late > 0 && elapsed > 1.5*obs.firsts() {
		return true
	}
	if w.seen != 1 || !w.computes || w.first <= 1.5*obs.firsts() {
		return false
	}
	var others []float64
	for i := range obs.workers {
		if o := &obs.workers[i]; !o.gone && o != w && len(o.times.vals) > 0 {
			others = append(others, o.times.vals[len(o.times.vals)-1])
		}
	}
	return 2*len(others) >= len(obs.workers) && elapsed > 1.5*median(others)
}

// firstDeadline is the deadline of first iterations, once at least half of the workers have ended theirs:
// beyond the median by half, and by half a second, because connections and caches may cost one worker that much.
func (obs *observations) firstDeadline() (d time.Duration, ok bool) {
	seen := 0
	for i := range obs.workers {
		if w := &obs.workers[i]; !w.gone && w.seen > 0 {
			seen++
		}
	}
	if 2*seen < obs.living() {
		return 0, false
	}
	m := obs.firsts()
	return price.Seconds(max(1.5*m, m+settling.Seconds()/2)), true
}

// firsts is the median time of the first iterations.
func (obs *observations) firsts() float64 {
	var vs []float64
	for i := range obs.workers {
		if w := &obs.workers[i]; !w.gone && w.seen > 0 {
			vs = append(vs, w.first)
		}
	}
	return median(vs)
}

// sure reports whether enough was seen of every worker.
func (obs *observations) sure(h price.History, f price.Forecast) bool {
	for w := range h {
		if f.Times[w] > 0 && obs.workers[w].seen < needed {
			return false
		}
	}
	return true
}

// obvious reports whether a worker took clearly longer than most, by half, in each of its iterations on record, the
// first one included. Most workers do so once now and then, and hardly twice in a row.
func (obs *observations) obvious(f price.Forecast) bool {
	var living []float64
	for _, t := range f.Times {
		if t > 0 {
			living = append(living, t.Seconds())
		}
	}
	m, first := median(living), obs.firsts()
	for i := range obs.workers {
		w := &obs.workers[i]
		// A worker without times has passed lags.
		if !w.gone && w.first > 1.5*first && (len(w.times.vals) == 0 || slices.Min(w.times.vals) > 1.5*m) {
			return true
		}
	}
	return false
}

// linkTime is the seconds that the bytes of r needed on the link, in both directions, if what comes needs as long for a
// byte as what was sent.
func linkTime(r *star.Record) (seconds float64, known bool) {
	busy, ok := r.Telemetry.Get(star.LinkBusy)
	if !ok || !(busy >= 0) || !(r.NetOut > 0) || !(r.NetIn >= 0) {
		return 0, false
	}
	return busy * (1 + r.NetIn/r.NetOut), true
}

// linkBound reports whether links explain the exchanges of most workers, and not processors that they wait for: they
// need at least three quarters of the time. The kernel's clock has ticks of some milliseconds, so the sums of many
// exchanges are compared. Behind 20 Mbit/s links are all of it, and over loopback on full processors at most 0.57.
func (obs *observations) linkBound() bool {
	bound := 0
	for i := range obs.workers {
		w := &obs.workers[i]
		if w.gone || w.seen < needed {
			continue
		}
		took, link := 0.0, 0.0
		for k, t := range w.exchange.vals {
			took, link = took+t, link+w.link.vals[k]
		}
		if link >= 0.75*took && link > 0 {
			bound++
		}
	}
	return 2*bound >= obs.living()
}

// crowded reports whether the processors of most workers' hosts are full ([star.FullHost]), over the
// iterations that are remembered. Workers that share processors slow each other down in turn, and more so in a plan in
// which they wait less: their times under one plan do not predict those under another. Only workers with at least least
// such iterations count.
func (obs *observations) crowded(least float64) bool {
	var shares []float64
	for i := range obs.workers {
		sum, known := 0.0, 0.0
		for _, b := range obs.workers[i].busy.vals {
			if b > 0 {
				sum, known = sum+b, known+1
			}
		}
		if !obs.workers[i].gone && known >= least {
			shares = append(shares, sum/known)
		}
	}
	return median(shares) >= star.FullHost
}

// Full reports whether the processors of most workers' hosts are busy, over at least five iterations of each worker.
// false: they are not, or it is unknown.
func (c *Controller) Full() bool { return c.obs.crowded(needed) }

// Deadline is the time after which an iteration of w counts as late: beyond the median by ten times the spread
// (1.4826·MAD, which is the standard deviation of normal values), and beyond the longest of the latest iterations by
// half. After an iteration that took half longer than the median the next one counts as late sooner: beyond the median
// of those before by five times their spread, and by 15 %. That detects a worker that has become slow for good
// (escape). ok: enough records.
func (c *Controller) Deadline(w star.Worker) (d time.Duration, ok bool) {
	vs := c.obs.workers[w].times.vals
	if k := c.obs.workers[w]; c.current.plan.Local > 0 && len(vs) > 0 { // scaled to the samples of an iteration with local steps
		vs = slices.Clone(vs)
		fit := fitOf(k.samples.vals, k.times.vals, k.compute.vals)
		for i := range vs {
			vs[i] *= fit.Of(c.load(w)) / fit.Of(k.samples.vals[i])
		}
	}
	if len(vs) < needed {
		// A worker that took long for its first iteration is looked at again when it has taken long for the second.
		o := &c.obs.workers[w]
		switch {
		case o.gone || o.seen == 0 && c.obs.started:
			return 0, false
		case !c.obs.started:
			return c.obs.firstDeadline()
		case o.seen == 1 && o.first > 1.5*c.obs.firsts():
			return max(price.Seconds(1.5*c.obs.firsts()), c.obs.begun+settling-o.released), true
		}
		// No other worker is waited for without a deadline either while little is known.
		longest := c.obs.firsts() + float64(max(c.current.plan.Steps(w, c.cfg.Batch), 1)-1)*o.firstCompute
		for _, v := range vs {
			longest = max(longest, v)
		}
		return max(price.Seconds(1.5*longest), c.obs.begun+settling-o.released), true
	}
	if k := &c.obs.workers[w]; k.leaps > 0 && c.current.plan.Local == 0 && len(vs) >= needed+k.leaps {
		m, spread := middle(k.times.inOrder()[:len(vs)-k.leaps])
		return price.Seconds(max(m+5*spread, 1.15*m)), true
	}
	m, spread := middle(vs)
	return price.Seconds(max(m+10*spread, 1.5*slices.Max(vs))), true
}

// middle is the median of vs and their spread around it: 1.4826 times the median of the deviations.
func middle(vs []float64) (m, spread float64) {
	m = median(vs)
	dev := make([]float64, len(vs))
	for i, v := range vs {
		dev[i] = math.Abs(v - m)
	}
	return m, 1.4826 * median(dev)
}
