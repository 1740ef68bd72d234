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
	settling = time.Second     // from the first update; before it, caches and connections warm up
	warming  = settling / 4    // of a worker's first exchanges may be what connections and caches cost once
	persists = 2 * time.Second // for which the same worker must be slow on hosts that are full
	clear    = 0.2             // gain for which a plan is chosen before much was seen
	slower   = 3               // doublings of the dwell at most, because the plan was changed before

	// pause is the shortest time between two decisions. Each prices every plan, which takes 0.4 ms for four workers: in
	// a job with iterations of 8 ms a decision in each would take 5 % of a processor.
	pause = 50 * time.Millisecond
	// stale is after how many rounds, and after how long at least, a decision is made again from the same times: the
	// noise scale and the price of staleness change more slowly.
	stale, staleTime = 8, time.Second
)

// lastLook is the basis of the last decision, and what has happened since.
type lastLook struct {
	asked time.Duration // the last decision
	rest  time.Duration // no decision is due before this time
	late  bool          // a worker has become late since the last decision
	doubt bool          // a worker may have sent too many invalid records in a row, or the loss has grown

	times   []time.Duration // the averages that the last decision was made from
	at      time.Duration
	content bool // it was sure, and wanted no other plan
}

// Decide reports whether the plan should change now, into which plan and why. The returned plan counts as installed.
func (c *Controller) Decide(at time.Duration) (d price.Decision, change bool) {
	if c.last.doubt {
		for i := range c.obs.workers {
			if w := &c.obs.workers[i]; !w.gone && w.bad >= invalid {
				return c.retreat(at, fmt.Sprintf("worker %d sends invalid records: %s", i, w.why))
			}
		}
		c.last.doubt = false
		if c.loss.grows() {
			if d, change := c.recoil(at); change {
				return d, true
			}
		}
	}
	if at < c.last.rest && !c.last.late {
		return price.Decision{}, false
	}
	f, h, ok := c.look(at)
	if !ok {
		if d, change := c.exchangeBound(at); change {
			return d, true
		}
		return c.escapeFirst(at)
	}
	if c.last.late {
		c.last.late = false
		if !c.obs.obvious(f) { // otherwise every plan is a candidate already
			if d, change := c.escape(at, h, f); change {
				return d, true
			}
		}
	}
	if c.obs.breaking() {
		return price.Decision{}, false
	}
	fastest, slowest := time.Duration(math.MaxInt64), time.Duration(0)
	for _, t := range f.Times {
		if t > 0 {
			fastest, slowest = min(fastest, t), max(slowest, t)
		}
	}
	fastest /= time.Duration(max(c.current.plan.Fragments, 1)) // a round has the exchange of one of them
	if due := c.last.asked + max(fastest, pause); at < due && c.last.asked > 0 {
		// Half of the way, since a worker may become faster meanwhile: so the times of all workers are looked at a few
		// times in a round, and not at each of its updates.
		c.last.rest = at + (due-at)/2
		return price.Decision{}, false
	}
	c.last.asked, c.last.rest = at, at
	c.suspect.follow(at, f.Times)
	if c.trials.running == nil && c.current.wants == 0 && c.last.unchanged(at, f.Times, c.obs.overdue || c.cfg.Decider != nil) {
		return price.Decision{}, false
	}
	if at-c.obs.begun < settling {
		return c.exchangeBound(at)
	}
	if c.cfg.Ring {
		if d, change := c.exchangeBound(at); change {
			return d, true
		}
	}
	if !c.obs.young() {
		align(h, c.obs.begins(h))
	}
	if c.current.safe {
		c.current.safe, c.current.since = false, at // from here on as usual
	}
	ssgd := modes.SSGD(len(c.obs.workers))
	// Workers that share full processors are slow in turn: only one that stays slow is a reason to leave SSGD.
	crowded := c.Full()
	shared := crowded && (c.suspect.worker < 0 || at-c.suspect.since < persists)
	linked := c.obs.linkBound() // a processor that is waited for is not what exchanges take
	if shared && !linked && c.current.plan.Equal(ssgd) {
		c.current.wants = 0
		return price.Decision{}, false
	}
	c.last.times, c.last.at, c.last.content = append(c.last.times[:0], f.Times...), at, false
	sure, few := c.obs.sure(h, f), []string(nil)
	if !sure && !c.obs.obvious(f) {
		if few = c.glimpsed(); few == nil {
			return price.Decision{}, false
		}
	}
	if shared && linked && c.current.plan.Equal(ssgd) {
		few = stepping
	}
	home, err := price.Over(ssgd, h, f)
	if err != nil {
		return c.retreat(at, err.Error())
	}
	present := home
	if !c.current.plan.Equal(ssgd) {
		if c.trials.running != nil && at >= c.trials.running.until {
			if d, change := c.judge(at, h, f); change {
				return d, true
			}
		}
		if present, err = c.trials.over(at, c.current.plan, h, f); err != nil {
			return c.retreat(at, err.Error())
		}
	}
	best, err := c.choose(at, h, f, home, sure, few)
	if err != nil {
		return c.retreat(at, err.Error())
	}
	if err := best.Plan.Validate(len(c.obs.workers)); err != nil {
		return c.retreat(at, fmt.Sprintf("the decider returned an invalid plan: %v", err))
	}
	switch {
	case !best.Plan.Equal(c.current.plan) && !c.trials.isBanned(at, best.Plan) && best.Cost.Seconds() <= (1-c.cfg.Gain)*present.Cost.Seconds():
		if c.cfg.Decider == nil && c.current.plan.Equal(ssgd) && !c.pays(at, h, f, best.Plan, home) {
			c.current.wants = 0
			return price.Decision{}, false
		}
		// On full processors times under one plan do not predict those under another: a plan that has not disappointed
		// stays. Local steps do not once the links that they are for have recovered.
		stays := crowded && !c.current.plan.Equal(ssgd) && !c.current.fled && (linked || c.current.plan.Local == 0)
		if !best.Plan.Equal(ssgd) && !(linked && best.Plan.Local > 0) && (shared || stays) {
			c.current.wants = 0
			return price.Decision{}, false
		}
		if best.Plan.Equal(ssgd) && c.home.early(at, slowest, c.dwell(slowest), c.worth.cautious(f, home), c.worth.cautious(f, present)) {
			return price.Decision{}, false
		}
	case !c.current.plan.Equal(ssgd) && c.worth.cautious(f, home) <= (1+equal)*c.worth.cautious(f, present):
		// The plan in force gains nothing over SSGD, which is simpler.
		if c.home.early(at, slowest, c.dwell(slowest), c.worth.cautious(f, home), c.worth.cautious(f, present)) {
			return price.Decision{}, false
		}
		best = price.Decision{Plan: ssgd, Cost: home.Cost, Why: fmt.Sprintf("ssgd: no worker is slow any more, %v is not cheaper", c.current.plan.Name())}
	default:
		c.current.wants, c.home.since, c.last.content = 0, 0, sure
		return price.Decision{}, false
	}
	if !best.Plan.Equal(ssgd) {
		c.home.since = 0
	}
	confirm := c.cfg.Confirm
	// The gradients of a queue are those of SSGD, also if it was chosen blind: only for local steps it is left at once.
	free := c.current.fled && (c.current.plan.Queue == 0 || best.Plan.Local > 0) || best.Plan.Local > 0 && c.current.plan.Local == 0 && c.slowed()
	// Exchanges have become short: the reason for local steps is gone.
	free = free || c.current.plan.Local > 0 && best.Plan.Local == 0 && !f.ExchangeDominates()
	gain := 1 - best.Cost.Seconds()/present.Cost.Seconds()
	if !sure && !free && gain < clear {
		return price.Decision{}, false
	}
	if gain > 0.3 || !sure && gain >= clear {
		confirm = 1 // waiting for certainty costs more than a wrong decision
	}
	stay := c.dwell(c.current.pace) << max(c.trials.backoff, min(c.current.recent, slower))
	if best.Plan.Equal(ssgd) { // disappointing plans do not delay the return to SSGD
		stay = c.dwell(c.current.pace)
	}
	if c.current.wants++; c.current.wants < confirm || c.current.since > 0 && !free && at-c.current.since < stay {
		return price.Decision{}, false
	}
	d = c.adopt(at, slowest, best, present)
	c.current.fled = c.obs.blind
	return d, true
}

// adopt changes the plan to best, where an iteration of the slowest worker takes slowest; present is the price of the
// plan in force.
func (c *Controller) adopt(at, slowest time.Duration, best price.Decision, present price.Candidate) price.Decision {
	gain := 1 - best.Cost.Seconds()/present.Cost.Seconds()
	best.Gain = gain
	if best.Plan.Equal(modes.SSGD(len(c.obs.workers))) {
		c.trials.running = nil // SSGD needs no trial
		c.home.back = true
	} else {
		if c.current.plan.Equal(modes.SSGD(len(c.obs.workers))) {
			// A link that was slow may be slow again, too, but that is seen in one round.
			if c.home.switchCost = leapt * gain * slowest.Seconds(); best.Plan.Outer != (modes.Outer{}) {
				c.home.switchCost = 0
			}
			if c.home.back {
				c.home.relapses, c.home.back = min(c.home.relapses+1, 6), false
			}
		}
		c.trials.running = &trial{from: c.current.plan, predicted: gain, begun: at + slowest, until: at + slowest + c.dwell(slowest), had: make([][]iteration, len(c.obs.workers))}
	}
	if c.current.recent++; at-c.current.since >= c.dwell(c.current.pace)<<(slower+1) {
		c.current.recent = 1
	}
	c.current.set(at, best.Plan.Clone())
	c.current.pace = slowest
	c.loss.changed()
	return best
}

// escape leaves a round of SSGD that late workers hold up, at most a quarter of all: x-order without them, or a ring in
// which they ride. Gradients that have arrived make an update at once, which with a queue or shares would begin with
// the next round.
//
// How long the late workers will take is not known. Half of what has lasted for t lasts for 2t and longer, whatever the
// scale (the prior 1/t of Jeffreys), so their iterations are priced as twice what they have taken by now. If that is
// wrong, little is lost: in x-order of nearly all workers an update waits for no particular worker, and few gradients
// are stale. A worker that has met its deadlines for long is waited for until twice the deadline, or until it is late
// again after an iteration that took half longer than the median: every worker has a hiccup once, and hardly two in a
// row (TestEscapeInCalm has the rate).
//
// As the plan was chosen blind, it is left without a dwell, and for a queue or local steps before much was seen.
func (c *Controller) escape(at time.Duration, h price.History, f price.Forecast) (price.Decision, bool) {
	n, late, slowest := len(c.obs.workers), []star.Worker(nil), time.Duration(0)
	if c.cfg.Decider != nil || at-c.obs.begun < settling || !c.current.plan.Equal(modes.SSGD(n)) || c.obs.crowded(1) {
		return price.Decision{}, false
	}
	f.Times, h = slices.Clone(f.Times), slices.Clone(h)
	for i := range c.obs.workers {
		if w := &c.obs.workers[i]; w.late > 1 || w.late == 1 && (w.seen <= price.Remembered || w.leaps > 0) {
			late = append(late, star.Worker(i))
			f.Times[i] = max(price.Seconds(2*c.obs.elapsed(at, w)), f.Times[i])
			h[i] = []time.Duration{f.Times[i]}
		}
		slowest = max(slowest, f.Times[i])
	}
	return c.without(at, late, c.obs.living()/4, slowest/2, h, f)
}

// escapeFirst is escape in the first round, before any update: of half of the workers or more the time of one iteration
// is known, and that of the late ones counts as twice their deadline. A baseline that does not wait for all workers
// from the beginning would be a round or two ahead otherwise (bench/RESULTS.md, Goals of decisions).
//
// Members of a ring send their records when a round is over, so in the second round, too, only first iterations are
// known: those of the late ones count as twice what they have taken by now.
func (c *Controller) escapeFirst(at time.Duration) (price.Decision, bool) {
	n := len(c.obs.workers)
	if c.obs.started && !c.cfg.Ring || c.cfg.Decider != nil || !c.current.plan.Equal(modes.SSGD(n)) || c.obs.crowded(1) {
		return price.Decision{}, false
	}
	f, h, late, slowest := c.forecast(), make(price.History, n), []star.Worker(nil), time.Duration(0)
	for i := range c.obs.workers {
		w := &c.obs.workers[i]
		t := price.Seconds(w.first)
		switch {
		case w.gone:
			continue
		case w.late > 0 && (w.seen == 0 || c.obs.elapsed(at, w) > 1.5*c.obs.firsts()):
			d := price.Seconds(c.obs.elapsed(at, w))
			if w.seen == 0 {
				d, _ = c.Deadline(star.Worker(i))
			}
			late, slowest, t = append(late, star.Worker(i)), d, max(2*d, t)
		case t == 0:
			return price.Decision{}, false
		}
		f.Times[i], h[i] = t, []time.Duration{t}
	}
	return c.without(at, late, c.obs.living()/2, slowest, h, f)
}

// without changes from SSGD to x-order of all workers but the late ones, or to a ring in which these ride, if that
// pays, and there are at most most of them. An iteration of the slowest worker takes slowest.
func (c *Controller) without(at time.Duration, late []star.Worker, most int, slowest time.Duration, h price.History, f price.Forecast) (price.Decision, bool) {
	n := len(c.obs.workers)
	plan := modes.XOrder(n, max(c.obs.living()-len(late), 1))
	if c.cfg.Ring {
		plan = modes.Ring(n, late...)
	}
	if len(late) == 0 || len(late) > max(most, 1) || c.obs.living() < 3 || c.trials.isBanned(at, plan) {
		return price.Decision{}, false
	}
	home, err := price.Over(modes.SSGD(n), h, f)
	if err != nil {
		return price.Decision{}, false
	}
	k, err := price.Over(plan, h, f)
	if err != nil || k.Cost.Seconds() > 0.7*home.Cost.Seconds() || c.worth.cautious(f, k) > (1-c.cfg.Gain)*c.worth.cautious(f, home) {
		return price.Decision{}, false
	}
	d := c.adopt(at, slowest, price.Decision{Plan: k.Plan, Cost: k.Cost, Why: f.Why(k, home.Cost) + ", as it seems"}, home)
	c.current.fled = true
	return d, true
}

// exchangeBound leaves SSGD for local steps in the first rounds, where a round of SSGD costs as much as two to five
// with local steps. Half of the workers must have ended an iteration, and most of their iterations must be the
// exchange, even without warming. Of the first one only the parameters' way is known: that of the gradient takes as
// long. In a ring it rests on the first two rounds; from then on decisions are not blind. As the plan was chosen
// blind, it is left without a dwell.
func (c *Controller) exchangeBound(at time.Duration) (price.Decision, bool) {
	n := len(c.obs.workers)
	if max(c.cfg.Local, c.cfg.Outer) < 2 || c.cfg.Ring && len(c.obs.meeting.took) > 1 || c.cfg.Decider != nil || c.current.since > 0 || !c.current.plan.Equal(modes.SSGD(n)) {
		return price.Decision{}, false
	}
	var exchanges, computes []float64
	for i := range c.obs.workers {
		w := &c.obs.workers[i]
		if w.gone || w.first == 0 {
			continue
		}
		took, compute, k := w.first, w.firstCompute, 1.0
		for i, t := range w.times.vals {
			took, compute, k = took+t, compute+w.compute.vals[i], k+1
		}
		exchange := max(took-compute-warming.Seconds(), 0) / k
		switch {
		case c.cfg.Ring:
			exchange = c.obs.meeting.soon()
		case len(w.times.vals) == 0:
			exchange = max(exchange, 2*(w.firstPull-warming.Seconds()))
		}
		exchanges, computes = append(exchanges, exchange), append(computes, compute/k)
	}
	if 2*len(exchanges) < c.obs.living() {
		return price.Decision{}, false
	}
	f, h := c.forecast(), make(price.History, n)
	fit := price.Fit{Fixed: median(exchanges), PerSample: median(computes) / float64(c.cfg.Batch)}
	t := max(price.Seconds(fit.Of(float64(c.cfg.Batch))), 1)
	for i := range c.obs.workers {
		if !c.obs.workers[i].gone {
			f.Times[i], f.Fits[i], h[i] = t, fit, []time.Duration{t}
		}
	}
	home, err := price.Over(modes.SSGD(n), h, f)
	if err != nil {
		return price.Decision{}, false
	}
	best, err := c.choose(at, h, f, home, false, stepping)
	if err != nil || best.Plan.Local == 0 || !c.pays(at, h, f, best.Plan, home) {
		return price.Decision{}, false
	}
	d := c.adopt(at, t, best, home)
	c.current.fled, c.home.switchCost, c.obs.meeting.counts = true, 0, c.cfg.Ring
	return d, true
}

// choose is the plan that would be best now: of the kinds in few, or SSGD; of all kinds if few is nil.
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
	// The candidates are in order of their prices by averages; the best of each kind are priced again over what
	// was seen lately.
	best, least := ssgd, math.Inf(1)
	// Only a worker that has been slow for a dwell is expected to stay slow for one.
	lasts := sure && (c.cfg.Ring || c.suspect.worker >= 0 && at-c.suspect.since >= c.dwell(f.Times[c.suspect.worker]))
	// On full hosts a push may only wait for a processor. Computing waits for one as well, so that it does not explain
	// exchanges that take many times as long.
	waits := c.current.plan.Local == 0 && c.obs.crowded(1) && !c.obs.linkBound()
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
		if left == 0 || tried[k.Kind] == most || k.Plan.AutoTree || k.Kind == price.KindSSGD && k.Plan.Shares == nil || !lasts && c.personal(k) || waits && k.Kind == price.KindLocal || few != nil && !slices.Contains(few, k.Kind) {
			continue
		}
		tried[k.Kind]++
		left--
		p, feared, err := c.priceMoving(at, k.Plan, h, f)
		if err != nil {
			return price.Decision{}, err
		}
		p, feared = p.Guessed(k.Guess), feared.Guessed(k.Guess)
		cost := feared.Cost.Seconds()
		if c.obs.blind && c.cfg.Velocities > 0 { // the job shows nothing of what staleness costs at its learning rate
			cost *= 1 + c.cfg.Gain*feared.Staleness/(1+feared.Staleness)
		}
		if cost < least && p.Cost < ssgd.Cost {
			best, least = p, cost
		}
	}
	return price.Decision{Plan: best.Plan, Cost: best.Cost, Why: outside + f.Why(best, ssgd.Cost)}, nil
}

// personal reports whether k is made for the workers that were slow, so that it is worth something only while they stay
// slow. In a ring only riders help where the network is slow, so they are allowed at once there. From a queue every
// worker takes as much as it can, whatever the sizes of its parts.
func (c *Controller) personal(k price.Candidate) bool {
	return k.Plan.Shares != nil && k.Kind != price.KindQueue || k.Kind == price.KindGroups || k.Kind == price.KindRing && !c.cfg.Ring
}

// priceMoving is the price over h where another worker may become the slow one before the plan has stayed for its
// dwell: by how often that has happened so far, the cost over the same iterations with those of the slowest and the
// fastest worker exchanged counts too. So a plan that is made for one worker, in groups, riders or shares, is dearer
// than one that takes whichever gradients come.
//
// That it has never happened says less the shorter the job has run. feared is the price with half a change more, the
// mean of such a rate after that many were counted (H. Jeffreys, An Invariant Form for the Prior Probability in
// Estimation Problems, Proceedings of the Royal Society A, 1946). Plans are compared by feared; whether the best of
// them is worth a change follows from what was seen.
func (c *Controller) priceMoving(at time.Duration, p modes.Plan, h price.History, f price.Forecast) (k, feared price.Candidate, err error) {
	k, err = c.trials.over(at, p, h, f)
	if err != nil || c.suspect.worker < 0 || k.Kind == price.KindStatic || k.Kind == price.KindASGD || k.Kind == price.KindQueue || (k.Kind == price.KindSSGD || p.Local > 0) && p.Shares == nil {
		return k, k, err
	}
	fast := c.suspect.worker
	for w, t := range f.Times {
		if t > 0 && t < f.Times[fast] {
			fast = star.Worker(w)
		}
	}
	h = slices.Clone(h)
	h[c.suspect.worker], h[fast] = h[fast], h[c.suspect.worker]
	f.Fits = slices.Clone(f.Fits)
	f.Fits[c.suspect.worker], f.Fits[fast] = f.Fits[fast], f.Fits[c.suspect.worker]
	other, err := c.trials.over(at, p, h, f)
	if err != nil {
		return k, k, err
	}
	dearer := func(k price.Candidate, moves float64) price.Candidate {
		chance := min(moves*c.dwell(f.Times[c.suspect.worker]).Seconds()/max(at-c.obs.begun, 1).Seconds(), 1)
		factor := 1 + chance*(other.Cost.Seconds()/k.Cost.Seconds()-1)
		k.Cost, k.Penalty = price.Seconds(k.Cost.Seconds()*factor), k.Penalty*factor
		return k
	}
	return dearer(k, float64(c.suspect.moves)), dearer(k, float64(c.suspect.moves)+0.5), nil
}

// stepping are the kinds of plans with local steps.
var stepping = []string{price.KindLocal, price.KindOuter}

// glimpsed has the kinds of plans that may be chosen before much was seen; nil: none, as SSGD was left already. Local
// steps answer what all iterations have in common, so one iteration of each worker is enough for them. A queue of
// samples needs two of each worker that is not at its second one: it favours no worker, and its gradients are those of
// SSGD, so that little is lost where it brings nothing.
func (c *Controller) glimpsed() []string {
	if !c.current.fled && !c.current.plan.Equal(modes.SSGD(len(c.obs.workers))) {
		if c.slowed() {
			return stepping
		}
		return nil
	}
	twice := 0
	for i := range c.obs.workers {
		w := &c.obs.workers[i]
		switch {
		case w.gone:
		case len(w.times.vals) >= 2:
			twice++
		case !w.computes:
			return stepping
		}
	}
	if 2*twice < c.obs.living() {
		return stepping
	}
	return append(slices.Clone(stepping), price.KindQueue)
}

// unchanged reports whether a decision would be made from the same facts as the last one: no average has moved by a
// twentieth, no worker is overdue, the last decision was content, and it is not stale. A decision is made up to once in
// a round of the fastest worker and in each pause, and takes part of a millisecond for a few workers, and time in
// proportion to their number for many. With more than 64 the last one need not have been content. With fewer, must is
// true where a Decider is set, which may go by more than averages.
func (l *lastLook) unchanged(at time.Duration, times []time.Duration, must bool) bool {
	if len(times) <= price.Exhaustive && (!l.content || must) || len(l.times) == 0 || at-l.at >= max(stale*slices.Max(times), staleTime) {
		return false
	}
	for w, t := range times {
		if was := l.times[w]; t > was+was/20 || t < was-was/20 {
			return false
		}
	}
	return true
}

// dwell is how long a plan stays at least: rounds of the slowest worker, and at least a second, because on a busy
// machine what is seen of a shorter time is chance.
func (c *Controller) dwell(slowest time.Duration) time.Duration {
	return max(time.Duration(c.cfg.Dwell)*slowest, time.Second)
}

// retreat changes to SSGD, the plan that needs no knowledge.
func (c *Controller) retreat(at time.Duration, why string) (price.Decision, bool) {
	c.current.wants, c.trials.running, c.current.safe = 0, nil, true
	home := modes.SSGD(len(c.obs.workers))
	if c.current.plan.Equal(home) {
		return price.Decision{}, false
	}
	c.current.set(at, home)
	return price.Decision{Plan: home, Why: "ssgd, to be safe: " + why}, true
}

// recoil changes to SSGD from a plan in which the loss has grown. From then on staleness costs four times as much.
func (c *Controller) recoil(at time.Duration) (price.Decision, bool) {
	was, from, to := c.current.plan, c.loss.middle, c.loss.latest()
	c.worth.penalty++
	c.trials.punish(at, was, max(at-c.current.since, refusal))
	d, change := c.retreat(at, fmt.Sprintf("the loss has grown from %.3g to %.3g in %v", from, to, was.Name()))
	c.loss.changed()
	return d, change
}
