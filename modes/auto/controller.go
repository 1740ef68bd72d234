package auto

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// Controller decides while a job runs which plan it has: it predicts, prices, and changes the
// plan where that pays; it looks whether it did, and goes back where it did not. It is told
// what happens and when, and has no clock. Deciding is not part of any update: Decide may be called
// at any time, and what it costs delays nobody but its caller.
//
// The life of a plan:
//
//	              gain, confirmed, after the dwell                     seen ≥ needed
//	settled ─────────────────────────────────────► on trial ──────────────────────► settled
//	   ▲                                               │ costs more than the plan before would
//	   └───────────────────────────────────────────────┘ (that plan is left alone for a while)
//
// and from everywhere to SSGD, at once, when telemetry cannot be trusted. It is used by one
// goroutine.
type Controller struct {
	cfg         Config
	plan        modes.Plan
	noise       float64
	rate        float64 // θ
	worst       float64 // θ that SSGD is not left for: see CautiousRate
	bound       float64 // of both; 0: not known
	steep       float64 // ν; 0: there is no momentum
	thetaBound  float64 // bound of θ̂ that it has heard of
	lossPenalty float64 // how often the loss has grown in a plan that the price had said to be good
	phase       float64

	workers      []watched
	parts        *PartCosts
	gone         int // of them
	loss         ascent
	since        time.Duration
	pace         time.Duration // of the slowest worker when the plan was chosen: a plan stays for rounds as they were then, also where all have become slower since
	asked        time.Duration // last decision
	rest         time.Duration // before it there is nothing to look at
	fled         bool          // the plan was chosen blind: by escape, or while somebody's second iteration had not ended
	blind        bool          // that is so now
	lacks        bool          // somebody has become late since the last decision
	doubt        bool          // somebody may have sent too many invalid records in a row
	wants        int           // decisions in a row that want another plan
	safe         bool
	trial        *trial
	verdict      *modes.Verdict
	banned       []ban
	corrections  []correction
	dwellBackoff int // doublings of the dwell, because changes disappointed
	recent       int // changes, since a plan last stood for twice as long as it may have to

	homeward   time.Duration // since when it is SSGD that is wanted, in another plan; 0: it is not
	counted    time.Duration // up to which stayed is
	stayed     float64       // seconds that it has cost since homeward not to be in SSGD
	switchCost float64       // seconds that were lost in SSGD, as it was left, in as many rounds as it takes to see that somebody is slow
	relapses   int           // returns to SSGD, after which it was left again
	back       bool          // SSGD is the present plan because it was returned to

	slow      star.Worker   // one that is clearly slow, the slowest when it became so; else -1
	slowSince time.Duration // since when it is that one
	slowLast  star.Worker   // the last one that was; -1: none yet
	moves     int           // how often it was another one, and the last one slow no more

	looked   []time.Duration // the averages that the last decision was made from
	lookedAt time.Duration
	content  bool // it was sure, and wanted nothing else
	overdue  bool // somebody computes for longer than it ever has
	queued   bool // workers have taken samples from a queue: how many follows from their times, not the other way round

	begun time.Duration // the first update
	seen  bool          // there was one
}

// watched is what the Controller knows of a worker.
type watched struct {
	gone     bool
	times    ring   // seconds
	compute  ring   // seconds, of the same iterations
	samples  ring   // of the same iterations
	parts    ring   // in which these were computed
	begins   ring   // when they began, seconds
	busy     ring   // share of its host's processors that was busy during them; 0: not known
	seen     int64  // valid records
	bad      int    // invalid ones in a row
	why      string // of the last invalid one
	released time.Duration
	computes bool
	late     int     // deadlines that are over, of the iteration that it is at
	leaps    int     // records in a row that took half more than the median
	far      int     // records in a row far above the median; negative: below
	first    float64 // what the first iteration took, which is not remembered; 0: none yet, or it was of other samples than an equal share
}

// shift looks whether t belongs to a new level: several iterations in a row far above the median of those that are
// remembered, or far below it, as one that is slow now and then hardly ever has. Then all before them is forgotten.
//
// Iterations count as if each had been of as many samples as this one: who is slow takes fewer from a queue, and as long as everybody.
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
			keep = leapt - 1
		}
		w.far, w.leaps = 0, 0
		for _, r := range []*ring{&w.times, &w.compute, &w.samples, &w.parts, &w.begins, &w.busy} {
			r.keep(keep)
		}
	}
}

// trial is a plan that has to show what was promised.
type trial struct {
	from      modes.Plan
	predicted float64 // gain
	begun     time.Duration
	until     time.Duration
	counts    bool          // it has begun with an update
	last      time.Duration // the newest update
	samples   int
	rounds    []float64     // seconds of each whole round of samples
	round     time.Duration // when the last of these was over
	had       [][]iteration // of each worker, that began while it stood, whatever is forgotten meanwhile
}

// iteration is one of a worker, in seconds.
type iteration struct {
	began, took float64
	samples     int
	parts       float64
}

// correction is what a trial has shown of the price of a plan.
type correction struct {
	plan  modes.Plan
	rate  float64 // samples applied in a second, of those that were priced
	until time.Duration
}

// ban is a plan that did not keep its promise.
type ban struct {
	plan  modes.Plan
	until time.Duration
	times int
}

// New starts with a plan that was installed at time 0.
func New(cfg Config, plan modes.Plan) (*Controller, error) {
	if cfg.Batch < 1 {
		return nil, fmt.Errorf("modes: a controller with a batch of %d samples: at least 1 is needed", cfg.Batch)
	}
	if err := plan.Validate(cfg.Workers); err != nil {
		return nil, err
	}
	if cfg.Gain == 0 {
		cfg.Gain = 0.07
	}
	if !(cfg.Gain > 0 && cfg.Gain < 1) || cfg.Dwell < 0 || cfg.Confirm < 0 {
		return nil, fmt.Errorf("modes: a controller with gain %v, dwell %d, confirm %d: want a gain between 0 and 1, and no negative numbers", cfg.Gain, cfg.Dwell, cfg.Confirm)
	}
	if cfg.Dwell == 0 {
		cfg.Dwell = 10
	}
	if cfg.Confirm == 0 {
		cfg.Confirm = 3
	}
	if cfg.Own == nil {
		cfg.Own = star.Record.Busy
	}
	if !(cfg.Momentum >= 0 && cfg.Momentum < 1) {
		return nil, fmt.Errorf("modes: a controller of a job with momentum %v: want at least 0 and less than 1", cfg.Momentum)
	}
	if !(cfg.Velocities >= 0 && cfg.Velocities < 1) {
		return nil, fmt.Errorf("modes: a controller of a job with velocities of momentum %v: want at least 0 and less than 1", cfg.Velocities)
	}
	c := &Controller{cfg: cfg, plan: plan.Clone(), workers: make([]watched, cfg.Workers), parts: NewPartCosts(cfg.Workers, cfg.Batch), slow: -1, slowLast: -1}
	for w := range c.workers {
		c.workers[w].computes = true
	}
	c.steep = price.PriorSteepness(cfg.Momentum)
	return c, nil
}

// Tuning is the present Gain and Dwell of the [Config].
func (c *Controller) Tuning() (gain float64, dwell int) { return c.cfg.Gain, c.cfg.Dwell }

// Tune sets them, from the next decision on: a gain between 0 and 1, a dwell of at least 1.
func (c *Controller) Tune(gain float64, dwell int) { c.cfg.Gain, c.cfg.Dwell = gain, dwell }

// Plan is the one that the Controller believes installed. It belongs to the Controller.
func (c *Controller) Plan() modes.Plan { return c.plan }

// Installed tells of a plan that somebody else has installed.
func (c *Controller) Installed(at time.Duration, p modes.Plan) {
	c.plan, c.since, c.trial, c.wants, c.homeward, c.switchCost, c.fled, c.recent = p.Clone(), at, nil, 0, 0, 0, false, 0
	c.loss.changed()
}

// Refused tells that a plan that Decide wanted is not to be had, or no longer, and which one
// is in force. It is left alone for half a minute, and longer each time.
func (c *Controller) Refused(at time.Duration, p, present modes.Plan) {
	c.punish(at, p, refusal/2)
	c.Installed(at, present)
}

// refusal is how long a plan is not asked for again. Jobs come and go in minutes.
const refusal = 30 * time.Second

// Noise tells the gradient noise scale in samples. What is no number is ignored.
func (c *Controller) Noise(scale float64) {
	if scale >= 0 && !math.IsInf(scale, 1) {
		c.noise = scale
	}
}

// Drift tells by how much of itself the gradient changes in a round, as package pgns
// measures it, and how much there is to go by: below 1 the prior is trusted more.
func (c *Controller) Drift(drift, strength float64) {
	if !(drift >= 0) || !(strength > 0) || math.IsInf(drift, 1) {
		return
	}
	trust := min(strength, 1e6) / (1 + min(strength, 1e6))
	θ := price.RateOfDrift(drift, c.noise, c.round())
	if c.cfg.Momentum > 0 { // gradients of parameters that swing differ by less than the rate makes of them
		θ = max(θ, price.PriorRate)
	}
	c.rate = trust*θ + (1-trust)*price.PriorRate
	c.worst = trust*θ + (1-trust)*price.CautiousRate
}

// Bound tells what package pgns measures where nothing is stale (pgns.Course): θ̂, and how much it is at most.
func (c *Controller) Bound(theta, most float64) {
	if !(theta >= 0 && most >= 0) || math.IsInf(most, 1) {
		return
	}
	if c.cfg.Adaptive {
		return
	}
	if c.cfg.Momentum > 0 {
		nu := func(θ float64) float64 { return price.Steepness(θ, c.noise, c.round(), c.cfg.Momentum) }
		if most != c.thetaBound {
			c.thetaBound = most
			// The prior, where it may be.
			now := max(min(price.PriorSteepness(c.cfg.Momentum), nu(most)), nu(theta))
			c.steep *= math.Pow(max(now, leastSteepness)/c.steep, slowly)
		}
		most = nu(most) * (1 + c.noise/float64(c.round()))
	}
	c.bound = max(most, price.MinRate)
}

// slowly is by what part the steepness follows what is measured, at each measurement. What is measured is of the last ten rounds, scatters by a factor of two, and is believed only with two standard errors, in favour of the prior: that is caution enough,
// and by less the decision that a straggler asks for, in its first rounds, is made by the prior.
const slowly = 1. / 2

// bounded is θ that is believed: what was measured of stale gradients, else prior; no more than the bound, of which nothing counts that is below least.
func (c *Controller) bounded(measured, prior, least float64) float64 {
	if measured == 0 {
		measured = prior
	}
	if c.cfg.Velocities > 0 {
		measured = price.VelocityRate
	} else if c.bound > 0 {
		measured = min(measured, max(c.bound, least))
	}
	return min(measured*c.dear(), price.MaxRate)
}

// dear is what staleness is held to cost more than by the price, because the loss has grown where it should not have.
func (c *Controller) dear() float64 { return math.Pow(4, min(c.lossPenalty, 4)) }

// Phase tells how much of the job is done, 0 to 1.
func (c *Controller) Phase(done float64) {
	if done >= 0 && done <= 1 {
		c.phase = done
	}
}

// living is how many workers there are, at least one.
func (c *Controller) living() int { return max(len(c.workers)-c.gone, 1) }

// round is the samples of a round of all.
func (c *Controller) round() int { return c.living() * c.cfg.Batch }

// Leave tells that a worker is gone, Join that it is back.
func (c *Controller) Leave(w star.Worker) {
	if !c.workers[w].gone {
		c.gone++
	}
	c.workers[w].gone, c.workers[w].computes = true, false
}

// Join tells that a worker is back, and computes since then.
func (c *Controller) Join(at time.Duration, w star.Worker) {
	if c.workers[w].gone {
		c.gone--
	}
	c.workers[w] = watched{computes: true, released: at}
	c.parts.forget(w)
}

// Observe takes in the record of a gradient that has arrived.
func (c *Controller) Observe(r star.Record) {
	if r.Worker < 0 || int(r.Worker) >= len(c.workers) {
		return
	}
	w := &c.workers[r.Worker]
	w.computes, w.late = false, 0
	t := c.cfg.Own(r)
	switch {
	case r.Load < 0 || r.Compute < 0 || r.Push < 0 || r.Pull < 0 || r.Injected < 0:
		w.bad, w.why = w.bad+1, fmt.Sprintf("a negative time in step %d", r.Step)
	case t <= 0 || t > price.MaxTime:
		w.bad, w.why = w.bad+1, fmt.Sprintf("step %d took %v", r.Step, t)
	case r.Samples < 1:
		w.bad, w.why = w.bad+1, fmt.Sprintf("step %d had %d samples", r.Step, r.Samples)
	default:
		w.bad = 0
		if c.loss.observe(r.Loss, c.living()); c.loss.grows() && !c.plan.Equal(modes.SSGD(len(c.workers))) {
			c.doubt = true
		}
		if w.seen++; w.seen == 1 {
			if w.first = t.Seconds(); r.Samples != c.cfg.Batch {
				w.first = 0
			}
			return // the first iteration pays for what is built once
		}
		parts, ok := r.Telemetry.Get(star.Parts)
		if ok {
			c.parts.Observe(r.Worker, float64(r.Samples), parts, (r.Load + r.Compute).Seconds())
		} else {
			parts = 1
		}
		if c.trial != nil && w.released >= c.trial.begun {
			c.trial.had[r.Worker] = append(c.trial.had[r.Worker], iteration{w.released.Seconds(), t.Seconds(), r.Samples, parts})
		}
		w.shift(t.Seconds(), float64(r.Samples))
		w.times.add(t.Seconds())
		w.compute.add((r.Load + r.Compute).Seconds())
		w.samples.add(float64(r.Samples))
		w.parts.add(parts)
		w.begins.add(w.released.Seconds())
		busy, ok := r.Telemetry.Get(star.HostCPU)
		if !ok || !(busy >= 0 && busy <= 1) {
			busy = 0
		}
		w.busy.add(busy)
		if c.cfg.Predictor != nil {
			c.cfg.Predictor.Observe(r)
		}
	}
	c.doubt = c.doubt || w.bad >= invalid
}

// Late tells that the gradient of w is not there, although its deadline is over, or twice that, and so on.
func (c *Controller) Late(w star.Worker) {
	if c.workers[w].computes {
		c.workers[w].late++
		c.lacks = true
	}
}

// Fired tells of an update: whose gradients, and over how many samples, were applied. These
// workers are released.
func (c *Controller) Fired(at time.Duration, ws []star.Worker, samples int) {
	if !c.seen {
		c.begun, c.seen = at, true
	}
	for _, w := range ws {
		if int(w) < len(c.workers) && !c.workers[w].gone {
			c.workers[w].released, c.workers[w].computes, c.workers[w].late = at, true, 0
		}
	}
	if t := c.trial; t != nil && at > t.begun {
		if t.last, t.samples = at, t.samples+samples; !t.counts { // from one update to another, so that whole ones count
			t.counts, t.begun, t.samples, t.round = true, at, 0, at
		}
		for ; t.samples >= (len(t.rounds)+1)*c.round(); t.round = at {
			t.rounds = append(t.rounds, (at - t.round).Seconds())
		}
	}
}

const (
	settling = time.Second // from the first update; before it, caches and connections warm up

	// full is the share of a host's processors that is busy when there is no more to be had of them: what is left goes where
	// threads change places, and into more updates. Four workers on two processors have 0.85 in SSGD, and no mode makes them faster.
	full = 0.75

	persists = 2 * time.Second // for which the same worker must be slow on hosts that are full

	pooled  = 8   // records of a worker up to which those that are alike stand in for it
	needed  = 5   // valid records of a worker before anything is decided
	hasty   = 2   // of which so many are enough where nobody can doubt who is slow
	invalid = 3   // invalid ones in a row after which nothing is believed
	shifted = 6   // iterations in a row that make a new level
	leapt   = 3   // of these, where each takes half more than the median
	apart   = 1.2 // by this factor

	slower = 3 // doublings of the dwell at most, because the plan was changed before

	dearest = 12 // rounds that it may cost not to go back to SSGD

	equal = 0.01 // costs that differ by no more are as good as the same, and SSGD is the simplest plan
)

// Forecast is what the Controller expects now. ok: enough is known of everybody.
func (c *Controller) Forecast(at time.Duration) (f price.Forecast, h price.History, ok bool) {
	if f, h, ok = c.look(at); ok && !c.young() {
		align(h, c.begins(h))
	}
	return f, h, ok
}

// begins is when the iterations of h began.
func (c *Controller) begins(h price.History) [][]float64 {
	all := make([][]float64, len(h))
	for i := range h {
		if k := len(h[i]); k > 0 {
			b := c.workers[i].begins.inOrder()
			if k > len(b) { // the present one, too
				b = append(slices.Clone(b), c.workers[i].released.Seconds())
			}
			all[i] = b[len(b)-k:]
		}
	}
	return all
}

// look is Forecast with a history that is still to be aligned, unless all are young: most looks at the averages change nothing.
func (c *Controller) look(at time.Duration) (f price.Forecast, h price.History, ok bool) {
	n := len(c.workers)
	h = make(price.History, n)
	f = price.Forecast{
		Times: make([]time.Duration, n), Batch: c.cfg.Batch, Shares: c.plan.Shares, Noise: c.noise, Velocities: c.cfg.Velocities, Rate: c.bounded(c.rate, price.PriorRate, price.MinRate), Steepness: c.steep * c.dear(), Fits: make([]price.Fit, n),
		Ring: c.cfg.Ring, RiderWait: c.cfg.RiderWait, Queue: c.cfg.Queue, MaxShare: c.cfg.MaxShare, Local: c.cfg.Local, LinkBytes: c.cfg.LinkBytes, LinkRate: c.cfg.LinkRate, Phase: c.phase,
	}
	var predicted []time.Duration
	if c.cfg.Predictor != nil {
		predicted = c.cfg.Predictor.Predict()
	}
	living := false
	c.overdue, c.blind = false, false
	c.queued = c.queued || c.plan.Queue > 0
	q := 0.0
	if c.queued {
		q, f.Parts = c.parts.Share(func(w star.Worker) bool { return !c.workers[w].gone })
	}
	for i := range c.workers {
		w := &c.workers[i]
		if w.gone {
			continue
		}
		living = true
		if w.seen < hasty {
			if !c.lags(at, w) {
				return f, nil, false
			}
			// As slow as the first time, or slower.
			c.blind = true
			t := max((at - w.released).Seconds(), w.first)
			h[i], f.Times[i] = []time.Duration{price.Seconds(t)}, price.Seconds(t)
			continue
		}
		fitted := fitOf
		if c.queued {
			fitted = fitOfDrawn
		}
		if f.Fits[i] = fitted(w.samples.vals, w.times.vals, w.compute.vals); f.Parts {
			f.Fits[i] = fitOfParts(q, float64(c.cfg.Batch), w.samples.vals, w.parts.vals, w.times.vals, w.compute.vals)
		}
		b, now := float64(c.cfg.Batch), c.load(star.Worker(i))
		lately := slices.Clone(w.times.inOrder()) // as if they had been of an equal share
		for k := range lately {
			lately[k] *= f.Fits[i].Of(b) / f.Fits[i].Took(w.samples.at(k), w.parts.at(k))
		}
		lo, hi := slices.Min(lately), slices.Max(lately)
		// A prediction beyond all that was seen is a level that nobody has seen yet; one that is far beyond is not believed, nor one from iterations of other samples than the next has.
		if i < len(predicted) && (c.plan.Queue > 0 || w.samples.at(len(lately)-1) == now) {
			if t := predicted[i].Seconds() * f.Fits[i].Of(b) / f.Fits[i].Of(now); t > hi && t < 20*hi || t > lo/20 && t < lo {
				lately = []float64{t}
			}
		}
		if over := (at - w.released).Seconds() * f.Fits[i].Of(b) / f.Fits[i].Of(now); w.computes && over > slices.Max(lately) && over <= price.MaxTime.Seconds() {
			lately = append(lately, over) // longer than ever already
			c.overdue = true
		}
		mean := 0.0
		for _, t := range lately {
			h[i] = append(h[i], max(price.Seconds(t), 1))
			mean += t / float64(len(lately))
		}
		f.Times[i] = max(price.Seconds(mean), 1)
	}
	f.Shares = nil // these are times of equal shares
	if c.young() {
		align(h, c.begins(h))
		c.pool(f, h)
		f.Parts = false
	}
	return f, h, living
}

// young reports whether nobody was seen often.
func (c *Controller) young() bool {
	for i := range c.workers {
		if w := &c.workers[i]; !w.gone && w.seen > pooled {
			return false
		}
	}
	return true
}

// align has iterations that were at the same time come at the same time when h is played: what slows all workers, such as a network that they share, makes SSGD wait once, and not once for each of them. begins is when they
// began. Each worker gets as many as the one has that has most of them: its own in their order, spread evenly over the other's in the time that is known of both, so that their mean stays, and once more for the time before and
// behind. So where everybody waits for everybody those of one round come together.
func align(h price.History, begins [][]float64) {
	most := 0
	for w := range h {
		if len(h[w]) > len(h[most]) {
			most = w
		}
	}
	all := begins[most]
	half := func(b []float64) float64 { return (b[len(b)-1] - b[0]) / float64(max(2*len(b)-2, 1)) } // of the time between two of them
	for w, own := range h {
		b := begins[w]
		if len(own) == 0 || slices.Equal(b, all) {
			continue
		}
		last := min(all[len(all)-1]+half(all), b[len(b)-1]+half(b))
		within := func(b []float64, first float64) (from, n int) {
			from = sort.SearchFloat64s(b, first)
			for n = 0; from+n < len(b) && b[from+n] <= last; n++ {
			}
			return from, n
		}
		to, k := within(all, b[0]-half(b))
		from, l := within(b, all[0]-half(all))
		if k == 0 || l == 0 { // never at the same time
			to, k, from, l = 0, len(own), 0, len(own)
		}
		h[w] = make([]time.Duration, len(all))
		j := (k - to%k) % k
		for i := range all {
			at := j
			if k != l {
				at = j * l / k
			}
			h[w][i] = own[from+at]
			if j++; j == k {
				j = 0
			}
		}
	}
}

// load is how many samples an iteration of w has that begins now, but for what it may take from a queue.
func (c *Controller) load(w star.Worker) float64 {
	return float64(c.plan.Share(w, c.cfg.Batch) * max(1, c.plan.Local))
}

// lags reports whether w, of which one iteration has arrived, took half longer than most for it, and has by now taken half longer than most for the second: nobody needs
// to wait for its end to know that.
func (c *Controller) lags(at time.Duration, w *watched) bool {
	if w.seen == 1 && w.late > 0 {
		return true
	}
	if w.seen != 1 || !w.computes || w.first <= 1.5*c.firsts() {
		return false
	}
	var others []float64
	for i := range c.workers {
		if o := &c.workers[i]; !o.gone && o != w && len(o.times.vals) > 0 {
			others = append(others, o.times.vals[len(o.times.vals)-1])
		}
	}
	return 2*len(others) >= len(c.workers) && (at-w.released).Seconds() > 1.5*median(others)
}

// firsts is the median of what the first iterations took.
func (c *Controller) firsts() float64 {
	var vs []float64
	for i := range c.workers {
		if w := &c.workers[i]; !w.gone && w.seen > 0 {
			vs = append(vs, w.first)
		}
	}
	return median(vs)
}

// pool lets workers that are alike, none of which was seen often, stand in for each other: whose mean is within a fifth of the median of all
// gets the iterations of all such workers, its own first. One iteration or two say what a worker takes, but not by how much
// that varies, and least of all which of several that are alike is the slowest.
func (c *Controller) pool(f price.Forecast, h price.History) {
	var living []float64
	for _, t := range f.Times {
		if t > 0 {
			living = append(living, t.Seconds())
		}
	}
	m := median(living)
	var alike []int
	var all, compute, samples []float64
	for w, t := range f.Times {
		if s := t.Seconds(); s > 0 && s < apart*m && s*apart > m {
			alike = append(alike, w)
			for _, d := range h[w] {
				all = append(all, d.Seconds())
			}
			compute = append(compute, c.workers[w].compute.vals...)
			samples = append(samples, c.workers[w].samples.vals...)
		}
	}
	if len(alike) < 2 {
		return
	}
	mean := 0.0
	for _, t := range all {
		mean += t / float64(len(all))
	}
	k := 0.0
	for i, t := range compute {
		k += t / samples[i] / float64(len(compute))
	}
	out := make(price.History, len(h))
	for i, w := range alike {
		for j := 0; j < len(alike) && len(out[w]) < price.Remembered; j++ {
			out[w] = append(out[w], h[alike[(i+j)%len(alike)]]...)
		}
		f.Times[w] = max(price.Seconds(mean), 1)
		f.Fits[w] = price.Fit{Fixed: max(mean-k*float64(c.cfg.Batch), 0), PerSample: k}
	}
	for _, w := range alike {
		h[w] = out[w][:min(len(out[w]), max(price.Remembered/len(h[w]), 1)*len(h[w]))] // whole rounds
	}
}

// sure reports whether enough was seen of everybody.
func (c *Controller) sure(h price.History, f price.Forecast) bool {
	for w := range h {
		if f.Times[w] > 0 && c.workers[w].seen < needed {
			return false
		}
	}
	return true
}

// obvious reports whether somebody took clearly longer than most in each iteration that was seen of it, by half, the first one among
// them. Most do so once now and then, and hardly twice in a row.
func (c *Controller) obvious(f price.Forecast) bool {
	var living []float64
	for _, t := range f.Times {
		if t > 0 {
			living = append(living, t.Seconds())
		}
	}
	m, first := median(living), c.firsts()
	for i := range c.workers {
		w := &c.workers[i]
		if !w.gone && w.first > 1.5*first && (len(w.times.vals) == 0 || slices.Min(w.times.vals) > 1.5*m) { // without any it lags
			return true
		}
	}
	return false
}

// glimpsed has the kinds of plans that may be chosen before much was seen; nil: none, as the plan is not SSGD any more. Local steps are for what all iterations have in common, so one of each worker is enough for them. Where two are
// remembered of all who are not at their second one that is enough for a queue of samples: it is for nobody in particular, and its gradients are those of SSGD, so that where it was for nothing little is lost.
func (c *Controller) glimpsed() []string {
	if !c.fled && !c.plan.Equal(modes.SSGD(len(c.workers))) {
		return nil
	}
	twice := 0
	for i := range c.workers {
		w := &c.workers[i]
		switch {
		case w.gone:
		case len(w.times.vals) >= 2:
			twice++
		case !w.computes:
			return []string{price.KindLocal}
		}
	}
	if 2*twice < c.living() {
		return []string{price.KindLocal}
	}
	return []string{price.KindLocal, price.KindQueue}
}

// unchanged reports whether a decision would be made from what the last one was made from: nobody's average has moved by a twentieth, nobody is overdue, the last one was content, and it was made within
// eight rounds. A decision is made up to once in a round of the fastest worker, and takes some part of a millisecond for a few workers and time in
// proportion to their number for many. Of more than 64 the last one need not have been content. A Decider may go by more than averages, and is asked each time for fewer.
func (c *Controller) unchanged(at time.Duration, times []time.Duration) bool {
	if len(times) <= price.Exhaustive && (!c.content || c.overdue || c.cfg.Decider != nil) || len(c.looked) == 0 || at-c.lookedAt >= 8*slices.Max(times) {
		return false
	}
	for w, t := range times {
		if was := c.looked[w]; t > was+was/20 || t < was-was/20 {
			return false
		}
	}
	return true
}

// crowded reports whether the processors of most workers' hosts are full: 0.75 of them or more are busy, over the iterations that are
// remembered. Workers that share processors slow each other down, each in its turn, and all the more in a plan in which they wait less:
// their times under one plan are no measure of another. It goes by workers of which so many iterations say it.
func (c *Controller) crowded(least float64) bool {
	var shares []float64
	for i := range c.workers {
		sum, known := 0.0, 0.0
		for _, b := range c.workers[i].busy.vals {
			if b > 0 {
				sum, known = sum+b, known+1
			}
		}
		if !c.workers[i].gone && known >= least {
			shares = append(shares, sum/known)
		}
	}
	return median(shares) >= full
}

// suspect follows who is the slowest by more than apart, compared with the median of all, and since when. It is the same one as long as it is that slow, whoever is slower by now.
func (c *Controller) suspect(at time.Duration, times []time.Duration) {
	var living []float64
	who := star.Worker(-1)
	for w, t := range times {
		if t == 0 {
			continue
		}
		if living = append(living, t.Seconds()); who < 0 || t > times[who] {
			who = star.Worker(w)
		}
	}
	limit := apart * median(living)
	if times[who].Seconds() < limit {
		who = -1
	}
	if who == c.slow {
		return
	}
	// Of several that are slow the slowest is chance: while the last one still is, nobody's turn is over.
	if who >= 0 && c.slow >= 0 && times[c.slow].Seconds() >= limit {
		return
	}
	c.slow, c.slowSince = who, at
	if who < 0 {
		return
	}
	if c.slowLast >= 0 && who != c.slowLast && times[c.slowLast].Seconds() < limit {
		c.moves++
	}
	c.slowLast = who
}

// Decide says whether the plan is to be changed now, into what and why. The plan that it
// returns counts as installed.
func (c *Controller) Decide(at time.Duration) (d price.Decision, change bool) {
	if c.doubt {
		for i := range c.workers {
			if w := &c.workers[i]; !w.gone && w.bad >= invalid {
				return c.retreat(at, fmt.Sprintf("worker %d reports what cannot be: %s", i, w.why))
			}
		}
		c.doubt = false
		if c.loss.grows() {
			if d, change := c.recoil(at); change {
				return d, true
			}
		}
	}
	if at < c.rest && !c.lacks {
		return price.Decision{}, false
	}
	f, h, ok := c.look(at)
	if !ok {
		return price.Decision{}, false
	}
	if c.lacks {
		c.lacks = false
		if !c.obvious(f) { // else all plans come into question already
			if d, change := c.escape(at, h, f); change {
				return d, true
			}
		}
	}
	fastest, slowest := time.Duration(math.MaxInt64), time.Duration(0)
	for _, t := range f.Times {
		if t > 0 {
			fastest, slowest = min(fastest, t), max(slowest, t)
		}
	}
	if due := c.asked + fastest; at < due && c.asked > 0 {
		// Half of the way, since somebody may become faster meanwhile: so the times of all are gone through a few times in a round,
		// not at each of its updates.
		c.rest = at + (due-at)/2
		return price.Decision{}, false
	}
	c.asked, c.rest = at, at
	c.suspect(at, f.Times)
	if c.trial == nil && c.wants == 0 && c.unchanged(at, f.Times) {
		return price.Decision{}, false
	}
	if at-c.begun < settling {
		return price.Decision{}, false
	}
	if !c.young() {
		align(h, c.begins(h))
	}
	if c.safe {
		c.safe, c.since = false, at // from here on as usual
	}
	c.looked, c.lookedAt, c.content = append(c.looked[:0], f.Times...), at, false
	sure, few := c.sure(h, f), []string(nil)
	if !sure && !c.obvious(f) {
		if few = c.glimpsed(); few == nil {
			return price.Decision{}, false
		}
	}
	ssgd := modes.SSGD(len(c.workers))
	home, err := price.Over(ssgd, h, f)
	if err != nil {
		return c.retreat(at, err.Error())
	}
	present := home
	if !c.plan.Equal(ssgd) {
		if c.trial != nil && at >= c.trial.until {
			if d, change := c.judge(at, h, f); change {
				return d, true
			}
		}
		if present, err = c.priceOver(at, c.plan, h, f); err != nil {
			return c.retreat(at, err.Error())
		}
	}
	best, err := c.choose(at, h, f, home, sure, few)
	if err != nil {
		return c.retreat(at, err.Error())
	}
	if err := best.Plan.Validate(len(c.workers)); err != nil {
		return c.retreat(at, fmt.Sprintf("the decider wants what is no plan: %v", err))
	}
	switch {
	case !best.Plan.Equal(c.plan) && !c.isBanned(at, best.Plan) && best.Cost.Seconds() <= (1-c.cfg.Gain)*present.Cost.Seconds():
		if c.cfg.Decider == nil && c.plan.Equal(ssgd) && !c.pays(at, h, f, best.Plan, home) {
			c.wants = 0
			return price.Decision{}, false
		}
		if c.crowded(needed-1) && !best.Plan.Equal(ssgd) && (c.slow < 0 || at-c.slowSince < persists) {
			c.wants = 0 // now this one is slow, now that one: they share processors
			return price.Decision{}, false
		}
		if best.Plan.Equal(ssgd) && c.early(at, slowest, c.cautious(f, home), c.cautious(f, present)) {
			return price.Decision{}, false
		}
	case !c.plan.Equal(ssgd) && c.cautious(f, home) <= (1+equal)*c.cautious(f, present):
		// Nothing is gained any more by what is more complicated.
		if c.early(at, slowest, c.cautious(f, home), c.cautious(f, present)) {
			return price.Decision{}, false
		}
		best = price.Decision{Plan: ssgd, Cost: home.Cost, Why: fmt.Sprintf("ssgd: nobody is slow any more, %v is not cheaper", c.plan.Name())}
	default:
		c.wants, c.homeward, c.content = 0, 0, sure
		return price.Decision{}, false
	}
	if !best.Plan.Equal(ssgd) {
		c.homeward = 0
	}
	confirm := c.cfg.Confirm
	if !sure && !c.fled && best.Cost.Seconds() > 0.7*present.Cost.Seconds() {
		return price.Decision{}, false
	}
	if gain := 1 - best.Cost.Seconds()/present.Cost.Seconds(); gain > 0.3 {
		confirm = 1 // waiting to be surer costs more than being wrong
	}
	stands := c.dwell(c.pace) << max(c.dwellBackoff, min(c.recent, slower))
	if best.Plan.Equal(ssgd) { // what has disappointed is no reason to stay away from home
		stands = c.dwell(c.pace)
	}
	if c.wants++; c.wants < confirm || c.since > 0 && !c.fled && at-c.since < stands {
		return price.Decision{}, false
	}
	d = c.adopt(at, slowest, best, present)
	c.fled = c.blind
	return d, true
}

// adopt changes the plan to best, where iterations of the slowest worker take so long; present is the price of the one that is there.
func (c *Controller) adopt(at, slowest time.Duration, best price.Decision, present price.Candidate) price.Decision {
	gain := 1 - best.Cost.Seconds()/present.Cost.Seconds()
	best.Gain = gain
	if best.Plan.Equal(modes.SSGD(len(c.workers))) {
		c.trial = nil // a way home needs no trial
		c.back = true
	} else {
		if c.plan.Equal(modes.SSGD(len(c.workers))) {
			c.switchCost = leapt * gain * slowest.Seconds()
			if c.back {
				c.relapses, c.back = min(c.relapses+1, 6), false
			}
		}
		c.trial = &trial{from: c.plan, predicted: gain, begun: at + slowest, until: at + slowest + c.dwell(slowest), had: make([][]iteration, len(c.workers))}
	}
	if c.recent++; at-c.since >= c.dwell(c.pace)<<(slower+1) {
		c.recent = 1
	}
	c.plan, c.since, c.pace, c.wants, c.fled = best.Plan.Clone(), at, slowest, 0, false
	c.loss.changed()
	return best
}

// escape is out of a round of SSGD that late workers hold up, a quarter of all at most: x-order without them. What has arrived makes an update at once, which with a queue or shares begins with the next round. How long they
// take nobody knows: half of what has lasted for t lasts for 2t and longer, whatever the scale (the prior 1/t of Jeffreys), so their iterations are priced as if they took twice as long as these have by now. If that is wrong, little is lost: in x-order
// of nearly all an update waits for nobody in particular, and few gradients are stale. Who has kept its deadlines for long is waited for until twice the deadline: everybody has a hiccup once. As the plan was chosen blind, it is left without a dwell, and for a queue or local steps before much was seen.
func (c *Controller) escape(at time.Duration, h price.History, f price.Forecast) (price.Decision, bool) {
	n, late, slowest := len(c.workers), 0, time.Duration(0)
	if c.cfg.Ring || c.cfg.Decider != nil || at-c.begun < settling || !c.plan.Equal(modes.SSGD(n)) || c.crowded(1) {
		return price.Decision{}, false
	}
	f.Times, h = slices.Clone(f.Times), slices.Clone(h)
	for i := range c.workers {
		if w := &c.workers[i]; w.late > 1 || w.late == 1 && w.seen <= price.Remembered {
			late++
			f.Times[i] = max(2*(at-w.released), f.Times[i])
			h[i] = []time.Duration{f.Times[i]}
		}
		slowest = max(slowest, f.Times[i])
	}
	plan := modes.XOrder(n, max(c.living()-late, 1))
	if late == 0 || late > max(c.living()/4, 1) || c.living() < 3 || c.isBanned(at, plan) {
		return price.Decision{}, false
	}
	home, err := price.Over(modes.SSGD(n), h, f)
	if err != nil {
		return price.Decision{}, false
	}
	k, err := price.Over(plan, h, f)
	if err != nil || k.Cost.Seconds() > 0.7*home.Cost.Seconds() || c.cautious(f, k) > (1-c.cfg.Gain)*c.cautious(f, home) {
		return price.Decision{}, false
	}
	d := c.adopt(at, slowest/2, price.Decision{Plan: k.Plan, Cost: k.Cost, Why: f.Why(k, home.Cost) + ", as it seems"}, home)
	c.fled = true
	return d, true
}

// early reports whether SSGD, which is wanted, is to wait. Whoever was slow may be slow again, and to find out what it was left for costs switchCost once more. So the plan that is there stays until staying has
// cost as much: whatever comes, no more than twice is lost of what would be with foresight (ski rental: A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator, Competitive Snoopy Caching, Algorithmica
// 1988). Where SSGD was left again before, it also takes longer to believe, until staying has cost twelve rounds.
func (c *Controller) early(at, slowest time.Duration, home, present float64) bool {
	if c.homeward == 0 {
		c.homeward, c.stayed, c.counted = at, 0, at
	}
	c.stayed += (at - c.counted).Seconds() * max(1-home/present, equal)
	c.counted = at
	return c.stayed < c.switchCost || c.relapses > 0 && c.stayed < dearest*slowest.Seconds() && at-c.homeward < c.dwell(slowest)<<c.relapses
}

// cautious is what k, priced under f, costs if staleness costs as much as [price.CautiousRate] says. SSGD is left, and returned to, by that.
func (c *Controller) cautious(f price.Forecast, k price.Candidate) float64 {
	f.Rate = c.bounded(c.worst, price.CautiousRate, price.PriorRate) // jitter alone makes waiting dear enough to leave SSGD where staleness is free
	return k.CostUnder(f)
}

// pays reports whether p is worth leaving SSGD for, if all is as it was lately.
func (c *Controller) pays(at time.Duration, h price.History, f price.Forecast, p modes.Plan, home price.Candidate) bool {
	k, err := c.priceOver(at, p, h, f)
	return err == nil && c.cautious(f, k) <= (1-c.cfg.Gain)*c.cautious(f, home)
}

// dwell is how long a plan is kept at least: rounds of the slowest worker, and a second, since on a busy machine what
// is seen of a shorter time is chance.
func (c *Controller) dwell(slowest time.Duration) time.Duration {
	return max(time.Duration(c.cfg.Dwell)*slowest, time.Second)
}

// judge compares what a plan on trial was to bring with what is seen: the samples applied
// in a second, against those that it would apply in the iterations that it had, correct its cost. Where
// the plan before would have been cheaper in these, that one comes back.
func (c *Controller) judge(at time.Duration, h price.History, f price.Forecast) (price.Decision, bool) {
	t := c.trial
	c.trial = nil
	took := (t.last - t.begun).Seconds()
	// Over what was there while it stood: it is not to blame for what has come, or gone.
	h = t.history(h, f.Fits, c.cfg.Batch)
	present, err := price.Over(c.plan, h, f)
	if err != nil {
		return price.Decision{}, false
	}
	// What its own trial has shown of the plan before counts, such as an exchange that no price has: it would be seen of it again.
	before, err := c.priceOver(at, t.from, h, f)
	if took <= 0 || t.samples == 0 || err != nil {
		return price.Decision{}, false
	}
	seen := float64(t.samples) / took
	priced := present.Rate()
	c.correct(at, t, seen/priced)
	cost := present.Cost.Seconds() * priced / seen
	gain := 1 - cost/before.Cost.Seconds()
	// Where what was priced is what is seen, and it pays no longer, the world has changed, and the plan has kept its promise: Decide sees to that.
	broken := gain < 0 && seen < (1-c.cfg.Gain/2)*priced
	c.verdict = &modes.Verdict{Plan: c.plan, Predicted: t.predicted, Seen: gain, Reverted: broken}
	if !broken {
		if gain >= t.predicted/2 {
			c.dwellBackoff = max(c.dwellBackoff-1, 0)
		}
		return price.Decision{}, false
	}
	c.dwellBackoff = min(c.dwellBackoff+1, 8)
	c.punish(at, c.plan, at-t.begun)
	d := price.Decision{Plan: t.from, Cost: before.Cost, Why: fmt.Sprintf("back to %v: %v was to gain %.0f %%, but %.0f %% is seen (%.0f samples/s instead of %.0f)",
		t.from.Name(), c.plan.Name(), 100*t.predicted, 100*gain, seen, priced)}
	c.plan, c.since, c.wants, c.fled = t.from.Clone(), at, 0, false
	c.loss.changed()
	return d, true
}

// correct remembers how many samples the present plan has applied in a second, in its trial t, of those that were priced: as much of what it differs from 1 as is sure, by two standard errors of what its rounds took. It is
// believed for ten times as long as it was looked at.
func (c *Controller) correct(at time.Duration, t *trial, rate float64) {
	c.corrections = slices.DeleteFunc(c.corrections, func(k correction) bool { return at >= k.until || k.plan.SameKind(c.plan) })
	n := float64(len(t.rounds))
	if n < needed {
		return
	}
	mean, squares := 0.0, 0.0
	for _, d := range t.rounds {
		mean += d / n
	}
	for _, d := range t.rounds {
		squares += (d/mean - 1) * (d/mean - 1)
	}
	off := 2 * math.Sqrt(squares/(n-1)/n)
	if rate = max(rate*(1-off), min(rate*(1+off), 1)); rate > 0 && rate != 1 {
		c.corrections = append(c.corrections, correction{c.plan.Clone(), rate, at + 10*(at-t.begun)})
	}
}

// priceOver is PriceOver by what a trial has shown of p.
func (c *Controller) priceOver(at time.Duration, p modes.Plan, h price.History, f price.Forecast) (price.Candidate, error) {
	k, err := price.Over(p, h, f)
	for _, o := range c.corrections {
		if at < o.until && o.plan.SameKind(p) {
			k = k.Scaled(o.rate)
		}
	}
	return k, err
}

// history is what t had, by fits as if each iteration had been of an equal share of batch samples. Of whom it had none it is what is in h.
func (t *trial) history(h price.History, fits []price.Fit, batch int) price.History {
	had := make(price.History, len(h))
	begins := make([][]float64, len(h))
	for w, its := range t.had {
		if len(h[w]) == 0 {
			continue
		}
		for _, it := range its {
			had[w] = append(had[w], max(price.Seconds(it.took*fits[w].Of(float64(batch))/fits[w].Took(float64(it.samples), it.parts)), 1))
			begins[w] = append(begins[w], it.began)
		}
		if len(its) == 0 {
			had[w], begins[w] = h[w], make([]float64, len(h[w]))
		}
	}
	align(had, begins)
	return had
}

// Verdict is what became of the last change of plan, told once; nil: nothing is new.
func (c *Controller) Verdict() *modes.Verdict {
	v := c.verdict
	c.verdict = nil
	return v
}

// choose is the plan that would be best now, of the kinds of few, or SSGD; nil: of all kinds.
func (c *Controller) choose(at time.Duration, h price.History, f price.Forecast, ssgd price.Candidate, sure bool, few []string) (price.Decision, error) {
	outside := ""
	switch d := c.cfg.Decider.(type) {
	case nil:
	case *price.Learned: // what it says is relative to SSGD
		k, ratio, why, err := d.Choose(f, nil)
		if err != nil {
			return price.Decision{}, err
		}
		if why == "" {
			k.Cost = price.Seconds(ratio * ssgd.Cost.Seconds())
			return price.Decision{Plan: k.Plan, Cost: k.Cost, Why: "learned: " + f.Why(k, ssgd.Cost)}, nil
		}
		outside = why + ": "
	default:
		return d.Decide(f)
	}
	most := math.Inf(1)
	if len(h) > price.Exhaustive {
		most = 1.1
	}
	found, err := price.Promising(f, most)
	if err != nil {
		return price.Decision{}, err
	}
	// By their averages the candidates come in order; over what was seen lately the best of each kind are priced anew.
	best, least := ssgd, time.Duration(math.MaxInt64)
	lasts := sure && (c.cfg.Ring || c.slow >= 0 && at-c.slowSince >= c.dwell(f.Times[c.slow])) // who is to stay slow for a dwell must have been so for one
	tried := map[string]int{}
	left := 40
	if len(h) > price.Exhaustive {
		left = 6
	}
	if len(h) > 4*price.Exhaustive {
		left = 4
	}
	for _, k := range found {
		most := 4
		if k.Kind == price.KindStatic || k.Kind == price.KindRing {
			most = 12
		}
		if left == 0 || tried[k.Kind] == most || k.Plan.AutoTree || k.Kind == price.KindSSGD && k.Plan.Shares == nil || !lasts && c.personal(k) || few != nil && !slices.Contains(few, k.Kind) {
			continue
		}
		tried[k.Kind]++
		left--
		p, feared, err := c.priceMoving(at, k.Plan, h, f)
		if err != nil {
			return price.Decision{}, err
		}
		if p, feared = p.Guessed(k.Guess), feared.Guessed(k.Guess); feared.Cost < least && p.Cost < ssgd.Cost {
			best, least = p, feared.Cost
		}
	}
	return price.Decision{Plan: best.Plan, Cost: best.Cost, Why: outside + f.Why(best, ssgd.Cost)}, nil
}

// personal reports whether k is made for the workers that were slow, so that it is worth something only if they stay so. In a ring only riders help where the network is slow, so they are not waited for there.
func (c *Controller) personal(k price.Candidate) bool {
	return k.Plan.Shares != nil || k.Kind == price.KindGroups || k.Kind == price.KindRing && !c.cfg.Ring
}

// priceMoving is PriceOver where it may be another worker's turn to be slow before the plan has stood for its dwell: by how often
// it was so far, the cost over the same iterations with the slowest worker's and the fastest's exchanged counts. So a
// plan that is made for one worker, in groups, riders or shares, is dearer than one that takes whoever comes.
//
// That it never was says less the shorter the job has run. feared is the price with half a turn more, the mean of such a rate after so many
// were counted (H. Jeffreys, An Invariant Form for the Prior Probability in Estimation Problems, Proceedings of the Royal Society A, 1946). Plans are
// chosen among by it; whether the best of them is worth a change is up to what was seen.
func (c *Controller) priceMoving(at time.Duration, p modes.Plan, h price.History, f price.Forecast) (k, feared price.Candidate, err error) {
	k, err = c.priceOver(at, p, h, f)
	if err != nil || c.slow < 0 || k.Kind == price.KindStatic || k.Kind == price.KindASGD || k.Kind == price.KindQueue || (k.Kind == price.KindSSGD || k.Kind == price.KindLocal) && p.Shares == nil {
		return k, k, err
	}
	fast := c.slow
	for w, t := range f.Times {
		if t > 0 && t < f.Times[fast] {
			fast = star.Worker(w)
		}
	}
	h = slices.Clone(h)
	h[c.slow], h[fast] = h[fast], h[c.slow]
	f.Fits = slices.Clone(f.Fits)
	f.Fits[c.slow], f.Fits[fast] = f.Fits[fast], f.Fits[c.slow]
	other, err := c.priceOver(at, p, h, f)
	if err != nil {
		return k, k, err
	}
	dearer := func(k price.Candidate, moves float64) price.Candidate {
		chance := min(moves*c.dwell(f.Times[c.slow]).Seconds()/max(at-c.begun, 1).Seconds(), 1)
		factor := 1 + chance*(other.Cost.Seconds()/k.Cost.Seconds()-1)
		k.Cost, k.Penalty = price.Seconds(k.Cost.Seconds()*factor), k.Penalty*factor
		return k
	}
	return dearer(k, float64(c.moves)), dearer(k, float64(c.moves)+0.5), nil
}

// punish keeps a plan away, longer each time.
func (c *Controller) punish(at time.Duration, p modes.Plan, trial time.Duration) {
	for i := range c.banned {
		if b := &c.banned[i]; b.of(p) {
			b.times = min(b.times+1, 16)
			b.until = at + trial*time.Duration(1<<b.times)
			return
		}
	}
	c.banned = append(c.banned, ban{plan: p.Clone(), until: at + 2*trial, times: 1})
	if len(c.banned) > 64 {
		c.banned = c.banned[1:]
	}
}

func (c *Controller) isBanned(at time.Duration, p modes.Plan) bool {
	return slices.ContainsFunc(c.banned, func(b ban) bool { return at < b.until && b.of(p) })
}

// of says whether p is kept away by b: a queue of smaller parts than were too dear is, too, and one of larger parts is not.
func (b *ban) of(p modes.Plan) bool { return b.plan.SameKind(p) && p.Queue >= b.plan.Queue }

// recoil is from a plan in which the loss has grown to SSGD. Staleness is held to be four times as dear from then on.
func (c *Controller) recoil(at time.Duration) (price.Decision, bool) {
	was, from, to := c.plan, c.loss.middle, c.loss.latest()
	c.lossPenalty++
	c.punish(at, was, max(at-c.since, refusal))
	d, change := c.retreat(at, fmt.Sprintf("the loss has grown from %.3g to %.3g in %v", from, to, was.Name()))
	c.loss.changed()
	return d, change
}

// retreat is to SSGD, the plan that needs no knowledge.
func (c *Controller) retreat(at time.Duration, why string) (price.Decision, bool) {
	c.wants, c.trial, c.safe = 0, nil, true
	home := modes.SSGD(len(c.workers))
	if c.plan.Equal(home) {
		return price.Decision{}, false
	}
	c.plan, c.since, c.fled = home, at, false
	return price.Decision{Plan: home, Why: "ssgd, to be safe: " + why}, true
}

// Deadline is how long an iteration of w may take before it is out of the ordinary: beyond
// the median by ten times the spread (1.4826·MAD, the standard deviation of what is normal),
// and beyond all that was seen lately by half. ok: enough was seen.
func (c *Controller) Deadline(w star.Worker) (d time.Duration, ok bool) {
	vs := c.workers[w].times.vals
	if len(vs) < needed {
		// Whoever took long for its first iteration is looked at again when it has taken long for the second.
		o := &c.workers[w]
		switch {
		case o.seen == 0 || o.gone || !c.seen:
			return 0, false
		case o.seen == 1 && o.first > 1.5*c.firsts():
			return max(price.Seconds(1.5*c.firsts()), c.begun+settling-o.released), true
		}
		// Nor is anybody else waited for without end while little is known.
		longest := c.firsts()
		for _, v := range vs {
			longest = max(longest, v)
		}
		return max(price.Seconds(1.5*longest), c.begun+settling-o.released), true
	}
	if k := c.workers[w]; c.plan.Local > 0 { // longer than they were before there were such steps
		vs = slices.Clone(vs)
		fit := fitOf(k.samples.vals, k.times.vals, k.compute.vals)
		for i := range vs {
			vs[i] *= fit.Of(c.load(w)) / fit.Of(k.samples.vals[i])
		}
	}
	m := median(vs)
	dev := make([]float64, len(vs))
	for i, v := range vs {
		dev[i] = math.Abs(v - m)
	}
	return price.Seconds(max(m+10*1.4826*median(dev), 1.5*slices.Max(vs))), true
}
