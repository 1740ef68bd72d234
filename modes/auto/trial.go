package auto

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star/modes"
	"star/modes/price"
)

// trials is the present trial and the results of earlier ones.
type trials struct {
	running     *trial // nil: no plan is on trial
	verdict     *modes.Verdict
	corrections []correction
	banned      []ban
	backoff     int // doublings of the dwell, because changes disappointed
}

// trial is the plan in force until it has shown the predicted gain.
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
	had       [][]iteration // of each worker, that began during the trial, also those that are forgotten elsewhere
}

// fired counts an update of samples; round is the samples of a round of all workers. Only whole updates count: the
// first one begins the trial.
func (t *trial) fired(at time.Duration, samples, round int) {
	if t.last, t.samples = at, t.samples+samples; !t.counts {
		t.counts, t.begun, t.samples, t.round = true, at, 0, at
	}
	for ; t.samples >= (len(t.rounds)+1)*round; t.round = at {
		t.rounds = append(t.rounds, (at - t.round).Seconds())
	}
}

// iteration is one of a worker, in seconds.
type iteration struct {
	began, took float64
	samples     int
	parts       float64
}

// correction is the difference between the price of a plan and the result of its trial.
type correction struct {
	plan  modes.Plan
	rate  float64 // samples applied per second, as a part of those that were priced
	until time.Duration
}

// ban is a plan that did not bring its predicted gain, and is avoided until a time.
type ban struct {
	plan  modes.Plan
	until time.Duration
	times int
}

// refusal is how long a rejected plan is not chosen again. Jobs in a cluster join and leave within minutes.
const refusal = 30 * time.Second

// judge compares the predicted gain of a plan on trial with the measured one: its cost is corrected by the samples
// applied per second, relative to those that it should apply in its iterations. If the plan before would have been
// cheaper in these iterations, judge returns to it.
func (c *Controller) judge(at time.Duration, h price.History, f price.Forecast) (price.Decision, bool) {
	t := c.trials.running
	c.trials.running = nil
	took := (t.last - t.begun).Seconds()
	// Only iterations within the trial count: others do not depend on the plan.
	h = t.history(h, f.Fits, c.cfg.Batch, c.exchange())
	present, err := price.Over(c.current.plan, h, f)
	if err != nil {
		return price.Decision{}, false
	}
	// The result of the trial of the plan before counts, such as an exchange that no price includes: it would be the
	// same again.
	before, err := c.trials.over(at, t.from, h, f)
	if took <= 0 || t.samples == 0 || err != nil {
		return price.Decision{}, false
	}
	seen := float64(t.samples) / took
	priced := present.Rate()
	c.trials.correct(at, c.current.plan, t, seen/priced)
	cost := present.Cost.Seconds() * priced / seen
	gain := 1 - cost/before.Cost.Seconds()
	// If the rate is as priced, but the plan does not pay any more, then conditions have changed, and the
	// prediction was right: Decide handles that.
	broken := gain < 0 && seen < (1-c.cfg.Gain/2)*priced
	c.trials.verdict = &modes.Verdict{Plan: c.current.plan, Predicted: t.predicted, Seen: gain, Reverted: broken}
	if !broken {
		if gain >= t.predicted/2 {
			c.trials.backoff = max(c.trials.backoff-1, 0)
		}
		return price.Decision{}, false
	}
	c.trials.backoff = min(c.trials.backoff+1, 8)
	c.trials.punish(at, c.current.plan, at-t.begun)
	d := price.Decision{Plan: t.from, Cost: before.Cost, Why: fmt.Sprintf("back to %v: %v was predicted to gain %.0f %% and gained %.0f %% (%.0f samples/s instead of %.0f)",
		t.from.Name(), c.current.plan.Name(), 100*t.predicted, 100*gain, seen, priced)}
	c.current.set(at, t.from.Clone())
	c.loss.changed()
	return d, true
}

// correct records the samples per second that the plan in force has applied in its trial t, relative to those that were
// priced: as much of the difference from 1 as is certain, by two standard errors of the times of its rounds. The
// correction is valid for ten times the duration of the trial.
func (ts *trials) correct(at time.Duration, plan modes.Plan, t *trial, rate float64) {
	ts.corrections = slices.DeleteFunc(ts.corrections, func(k correction) bool { return at >= k.until || k.plan.SameKind(plan) })
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
		ts.corrections = append(ts.corrections, correction{plan.Clone(), rate, at + 10*(at-t.begun)})
	}
}

// over is [price.Over] with the correction of p's trial.
func (ts *trials) over(at time.Duration, p modes.Plan, h price.History, f price.Forecast) (price.Candidate, error) {
	k, err := price.Over(p, h, f)
	for _, o := range ts.corrections {
		if at < o.until && o.plan.SameKind(p) {
			k = k.Scaled(o.rate)
		}
	}
	return k, err
}

// history is the iterations of t, with an exchange of x seconds, scaled by fits to an equal share of batch samples.
// Workers without an iteration have those of h.
func (t *trial) history(h price.History, fits []price.Fit, batch int, x float64) price.History {
	had := make(price.History, len(h))
	begins := make([][]float64, len(h))
	for w, its := range t.had {
		if len(h[w]) == 0 {
			continue
		}
		for _, it := range its {
			had[w] = append(had[w], max(price.Seconds((it.took+x)*fits[w].Of(float64(batch))/fits[w].Took(float64(it.samples), it.parts)), 1))
			begins[w] = append(begins[w], it.began)
		}
		if len(its) == 0 {
			had[w], begins[w] = h[w], make([]float64, len(h[w]))
		}
	}
	align(had, begins)
	return had
}

// Verdict is the result of the last change of plan, returned once; nil: none since the last call.
func (c *Controller) Verdict() *modes.Verdict {
	v := c.trials.verdict
	c.trials.verdict = nil
	return v
}

// punish bans a plan for a time, longer each time.
func (ts *trials) punish(at time.Duration, p modes.Plan, trial time.Duration) {
	for i := range ts.banned {
		if b := &ts.banned[i]; b.of(p) {
			b.times = min(b.times+1, 16)
			b.until = at + trial*time.Duration(1<<b.times)
			return
		}
	}
	ts.banned = append(ts.banned, ban{plan: p.Clone(), until: at + 2*trial, times: 1})
	if len(ts.banned) > 64 {
		ts.banned = ts.banned[1:]
	}
}

// isBanned reports whether p is avoided now.
func (ts *trials) isBanned(at time.Duration, p modes.Plan) bool {
	return slices.ContainsFunc(ts.banned, func(b ban) bool { return at < b.until && b.of(p) })
}

// of reports whether b excludes p: a ban of a queue also excludes queues of smaller parts, and not those of larger
// parts.
func (b *ban) of(p modes.Plan) bool { return b.plan.SameKind(p) && p.Queue >= b.plan.Queue }
