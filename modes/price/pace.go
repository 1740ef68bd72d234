package price

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/modes"
)

// Pace is the speed of a plan if every worker always takes the same time.
type Pace struct {
	// Interval is the mean time from one update to the next.
	Interval time.Duration

	// Gradients is the mean number of gradients in an update.
	Gradients float64

	// Shares is each worker's fraction of the applied gradients, by rank. They add up to 1.
	Shares []float64

	// Staleness is the mean, over the gradients applied, of the updates between
	// reading the parameters and applying the gradient.
	Staleness float64

	// Spread is the mean number of gradients in the update that a gradient is in: more
	// than Gradients where updates are of different sizes.
	Spread float64

	// Dropped is the fraction of all computed gradients that were dropped.
	Dropped float64
}

// MaxTime is the longest iteration that is priced: sums of them must fit into a Duration.
const MaxTime = 100 * 24 * time.Hour

// PaceOf is the pace of p in the long run, when an iteration of worker w, from its release to its arrival, takes
// times[w].
//
// A group that waits for all its members fires every max τ, if they are in no other group. A group of quorum 1 fires
// with every arrival; one of another quorum is played until its rhythm recurs (type rhythm). Groups run side by side,
// so their rates f_g add up:
//
//	I = 1 / Σ f_g,    f_g = 1/max τ   or   f_g = Σ 1/τ   or   f_g of the rhythm
//
// For groups of these kinds that is exact. In a tree workers wait for the others of their report, so it counts as one
// arrival of several gradients; sending times are not included. For all others the [modes.Barrier] itself runs in
// virtual time (see [Simulate]) until 2¹⁴ gradients have arrived and the slowest worker's 50 times, or 2¹⁸ gradients
// have. Gradients that arrive at the same time are taken by rank; with equal times that choice can move the interval
// by a few percent.
//
// A queue is played for a round (type queue), with times of computing only.
//
// A worker always computes or waits, so the versions that pass during all iterations of N workers are N per update, for
// every plan; with G gradients in an update and none dropped, the mean staleness is N/G − 1. These are equations 6 to 8
// and 10 of docs/theory.md.
func PaceOf(p modes.Plan, times []time.Duration) (Pace, error) {
	if err := checkTimes(p, times); err != nil {
		return Pace{}, err
	}
	if pc, ok := closedForm(p, times); ok {
		return pc, nil
	}
	slowest := time.Duration(0)
	for _, t := range times {
		slowest = max(slowest, t)
	}
	const least, most = 1 << 14, 1 << 18
	// An update takes at most twice the slowest: late gradients are dropped.
	warmUp := min(1000, int(farthest/8/slowest))
	return simulate(p, times, warmUp, func(_, arrivals int, elapsed time.Duration) bool {
		return arrivals >= least && elapsed >= 50*slowest || arrivals >= most || elapsed >= farthest/2
	})
}

// mostUpdates is the maximum for Simulate: some minutes.
const mostUpdates = 1e9

// Simulate runs the Barrier in virtual time, with all workers starting at once, and returns the means over the given
// number of updates after the first skip. More than a billion updates, or more time than a time.Duration holds, is an
// error.
func Simulate(p modes.Plan, times []time.Duration, skip, updates int) (Pace, error) {
	if err := checkTimes(p, times); err != nil {
		return Pace{}, err
	}
	if skip < 0 || updates < 1 {
		return Pace{}, fmt.Errorf("price: simulate %d updates after %d: at least one after at least none", updates, skip)
	}
	if skip > mostUpdates || updates > mostUpdates-skip {
		return Pace{}, fmt.Errorf("price: simulate %d updates after %d: at most %d in all", updates, skip, int(mostUpdates))
	}
	if p.Queue > 0 { // each of its rounds is the same
		return queuePace(p, times), nil
	}
	return simulate(p, times, skip, func(done, _ int, _ time.Duration) bool { return done == updates })
}

func checkTimes(p modes.Plan, times []time.Duration) error {
	if err := p.Validate(len(times)); err != nil {
		return err
	}
	for w, t := range times {
		if t <= 0 || t > MaxTime {
			return fmt.Errorf("price: worker %d takes %v for an iteration: want more than 0 and at most %v", w, t, MaxTime)
		}
	}
	return nil
}

func closedForm(p modes.Plan, times []time.Duration) (Pace, bool) {
	if p.MaxLead > 0 || len(p.Excluded) > 0 {
		return Pace{}, false
	}
	n := len(times)
	if p.Queue > 0 {
		return queuePace(p, times), true
	}
	rate := make([]float64, n) // gradients of each worker per second
	updates := 0.0             // per second
	spread := 0.0
	for _, g := range p.Groups {
		all := g.Quorum == len(g.Members)
		if p.HasTree() && !all { // workers of a tree wait for each other
			return Pace{}, false
		}
		if len(g.Riders) > 0 || g.NonBlocking || !all && g.DropLate {
			return Pace{}, false
		}
		if !all && g.Quorum == 1 {
			for _, w := range g.Members {
				rate[w] = 1 / times[w].Seconds()
				updates += rate[w]
				spread += rate[w]
			}
			continue
		}
		if !all {
			members := slices.Sorted(slices.Values(g.Members)) // simultaneous arrivals are taken by rank
			var own []time.Duration
			for _, w := range members {
				own = append(own, times[w])
			}
			shares := make([]float64, len(own))
			x := float64(g.Quorum)
			f := 1 / new(rhythm).play(own, g.Quorum, settles, shares)
			for i, w := range members {
				rate[w] = shares[i] * x * f
			}
			updates += f
			spread += x * x * f
			continue
		}
		slowest := time.Duration(0)
		for _, w := range g.Members {
			slowest = max(slowest, times[w])
		}
		for _, w := range g.Members {
			rate[w] = 1 / slowest.Seconds()
		}
		updates += 1 / slowest.Seconds()
		spread += float64(len(g.Members)*len(g.Members)) / slowest.Seconds()
	}
	gradients := 0.0
	for _, r := range rate {
		gradients += r
	}
	for w := range rate {
		rate[w] /= gradients
	}
	return Pace{
		Interval:  time.Duration(float64(time.Second)/updates + 0.5),
		Gradients: gradients / updates,
		Shares:    rate,
		Staleness: float64(n)*updates/gradients - 1,
		Spread:    spread / gradients,
	}, true
}

// simulate measures from update number skip (0: the start) to the first update for which done is true of the updates,
// arrivals and time since then.
func simulate(p modes.Plan, times []time.Duration, skip int, done func(updates, arrivals int, elapsed time.Duration) bool) (Pace, error) {
	n := len(times)
	b := modes.NewBarrier(p, n, 0)
	q := make(agenda, 0, n)
	for w, t := range times {
		q.add(event{t, star.Worker(w)})
	}
	basis := make([]int64, n)  // version of each worker's last release
	counts := make([]int64, n) // gradients applied, since start
	// With a tree, a report arrives with its last worker. By the top of the tree: the workers that have arrived,
	// and the size of the report.
	top := roots(p)
	report := make([][]star.Worker, n)
	size := make([]int, n)
	for _, r := range top {
		size[r]++
	}
	var start time.Duration
	var applied, dropped, stale, squares int64
	updates, arrivals, skipped := 0, 0, 0
	for {
		e := q.next()
		if e.at > farthest {
			return Pace{}, fmt.Errorf("price: simulate: after %d updates %v have passed, which is the limit: want fewer updates, or shorter iterations", skipped+updates, e.at)
		}
		measuring := skipped == skip
		if measuring {
			arrivals++
		}
		one := [1]star.Worker{e.worker}
		arrived := one[:]
		if top != nil {
			r := top[e.worker]
			if report[r] = append(report[r], e.worker); len(report[r]) < size[r] {
				continue
			}
			arrived, report[r] = report[r], nil
		}
		fired := false
		for _, f := range b.Report(arrived) {
			if measuring {
				squares += int64(len(f.Workers) * len(f.Workers))
			}
			for _, w := range f.Workers {
				if measuring {
					counts[w]++
					applied++
					stale += f.Version - 1 - basis[w]
				}
			}
			if measuring {
				dropped += int64(len(f.Dropped))
			}
			for w := range f.Released() {
				basis[w] = f.Version
				q.add(event{e.at + times[w], w})
			}
			fired = fired || len(f.Workers) > 0 // at most one update for an arrival
		}
		switch {
		case !fired:
		case !measuring:
			skipped++
			start = e.at
		default:
			updates++
			if !done(updates, arrivals, e.at-start) {
				continue
			}
			pc := Pace{
				Interval:  (e.at - start) / time.Duration(updates),
				Gradients: float64(applied) / float64(updates),
				Shares:    make([]float64, n),
				Staleness: float64(stale) / float64(applied),
				Dropped:   float64(dropped) / float64(applied+dropped),
				Spread:    float64(squares) / float64(applied),
			}
			for w, k := range counts {
				pc.Shares[w] = float64(k) / float64(applied)
			}
			return pc, nil
		}
	}
}

// event is the arrival of a worker's gradient.
type event struct {
	at     time.Duration
	worker star.Worker
}

func (e event) before(f event) bool {
	return e.at < f.at || e.at == f.at && e.worker < f.worker
}

// agenda is a binary heap of events, the next one first. container/heap would allocate memory for every one of them.
type agenda []event

func (q *agenda) add(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

func (q *agenda) next() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	if h = h[:len(h)-1]; len(h) > 0 {
		h.replace(last)
	}
	*q = h
	return first
}

// replace replaces the first event by e.
func (q agenda) replace(e event) {
	i := 0
	for {
		down := 2*i + 1
		if down >= len(q) {
			break
		}
		if down+1 < len(q) && q[down+1].before(q[down]) {
			down++
		}
		if !q[down].before(e) {
			break
		}
		q[i] = q[down]
		i = down
	}
	q[i] = e
}

// roots are the tops of the trees, by worker; nil if no worker has a parent. The tree must have no cycle.
func roots(p modes.Plan) []star.Worker {
	if !p.HasTree() {
		return nil
	}
	top := make([]star.Worker, len(p.Parents))
	for w := range top {
		top[w] = star.Worker(w)
		for p.Parents[top[w]] != modes.Direct {
			top[w] = p.Parents[top[w]]
		}
	}
	return top
}
