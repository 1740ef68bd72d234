package auto

import (
	"slices"
	"sort"
	"time"

	"star"
	"star/modes/price"
)

// look is the Controller's present forecast. The history is not aligned yet, unless all workers are young: most calls
// lead to no change, and need only the averages. ok: enough is known of every worker.
func (c *Controller) look(at time.Duration) (f price.Forecast, h price.History, ok bool) {
	n := len(c.obs.workers)
	h = make(price.History, n)
	f = c.forecast()
	var predicted []time.Duration
	if c.cfg.Predictor != nil {
		predicted = c.cfg.Predictor.Predict()
	}
	living := false
	c.obs.overdue, c.obs.blind = false, false
	c.obs.queued = c.obs.queued || c.current.plan.Queue > 0
	q := 0.0
	if c.obs.queued {
		q, f.Parts = c.obs.parts.Share(func(w star.Worker) bool { return !c.obs.workers[w].gone })
	}
	x := c.exchange()
	if c.cfg.Ring && x == 0 {
		f.Local, f.Outer = 0, 0 // what else takes long is no exchange
	}
	for i := range c.obs.workers {
		w := &c.obs.workers[i]
		if w.gone {
			continue
		}
		living = true
		if w.seen < hasty {
			if !c.obs.lags(at, w) {
				return f, nil, false
			}
			// As slow as the first time, or slower.
			c.obs.blind = true
			t := max(c.obs.elapsed(at, w), w.first)
			h[i], f.Times[i] = []time.Duration{price.Seconds(t)}, price.Seconds(t)
			if w.first > 0 {
				compute := t * min(w.firstCompute/w.first, 1)
				f.Fits[i] = price.Fit{Fixed: t - compute, PerSample: compute / float64(c.cfg.Batch)}
			}
			continue
		}
		fitted := fitOf
		if c.obs.queued {
			fitted = fitOfDrawn
		}
		if f.Fits[i] = fitted(w.samples.vals, w.times.vals, w.compute.vals); f.Parts {
			f.Fits[i] = fitOfParts(q, float64(c.cfg.Batch), w.samples.vals, w.parts.vals, w.times.vals, w.compute.vals)
		}
		f.Fits[i].Fixed += x
		b, now := float64(c.cfg.Batch), c.load(star.Worker(i))
		lately := slices.Clone(w.times.inOrder()) // as if they had been of an equal share
		for k := range lately {
			lately[k] = (lately[k] + x) * f.Fits[i].Of(b) / f.Fits[i].Took(w.samples.at(k), w.parts.at(k))
		}
		lo, hi := slices.Min(lately), slices.Max(lately)
		// A prediction beyond all that was seen is a level that is new. It is not believed if it is far beyond, or
		// rests on iterations of other numbers of samples than the next one has, or on exchanges of fragments.
		if i < len(predicted) && w.pulled < 2 && (c.current.plan.Queue > 0 || w.samples.at(len(lately)-1) == now) {
			if t := (predicted[i].Seconds() + x) * f.Fits[i].Of(b) / f.Fits[i].Of(now); t > hi && t < 20*hi || t > lo/20 && t < lo {
				lately = []float64{t}
			}
		}
		if over := (c.obs.elapsed(at, w) + x) * f.Fits[i].Of(b) / f.Fits[i].Of(now); w.computes && over > slices.Max(lately) && over <= price.MaxTime.Seconds() {
			lately = append(lately, over) // longer than ever already
			c.obs.overdue = true
		}
		mean := 0.0
		for _, t := range lately {
			h[i] = append(h[i], max(price.Seconds(t), 1))
			mean += t / float64(len(lately))
		}
		f.Times[i] = max(price.Seconds(mean), 1)
	}
	f.Shares = nil // these are times of equal shares
	if c.obs.young() {
		align(h, c.obs.begins(h))
		c.obs.pool(f, h)
		f.Parts = false
	}
	return f, h, living
}

// forecast is a Forecast without times.
func (c *Controller) forecast() price.Forecast {
	n := len(c.obs.workers)
	return price.Forecast{
		Times: make([]time.Duration, n), Batch: c.cfg.Batch, Shares: c.current.plan.Shares, Noise: c.worth.noise, Velocities: c.cfg.Velocities, Rate: c.worth.bounded(c.worth.rate, price.PriorRate, price.MinRate), Steepness: c.worth.steep * c.worth.dear(), Fits: make([]price.Fit, n),
		Ring: c.cfg.Ring, RiderWait: c.cfg.RiderWait, Queue: c.cfg.Queue, MaxShare: c.cfg.MaxShare, Local: c.cfg.Local, Outer: c.cfg.Outer, Fragments: !c.uncut, LinkBytes: c.cfg.LinkBytes, LinkRate: c.cfg.LinkRate, Phase: c.phase,
	}
}

// exchange is the seconds that the exchange of a ring adds to what its members take themselves.
func (c *Controller) exchange() float64 {
	if !c.cfg.Ring {
		return 0
	}
	var each []float64
	for i := range c.obs.workers {
		if w := &c.obs.workers[i]; !w.gone && len(w.compute.vals) > 0 {
			each = append(each, median(w.compute.vals)/median(w.samples.vals)*float64(c.cfg.Batch))
		}
	}
	return c.obs.meeting.exchange(median(each))
}

// load is the number of samples of an iteration of w that begins now, without those that it may take from a queue.
func (c *Controller) load(w star.Worker) float64 {
	return float64(c.current.plan.Share(w, c.cfg.Batch) * max(1, c.current.plan.Steps(w, c.cfg.Batch)))
}

// begins is the times at which the iterations of h began.
func (obs *observations) begins(h price.History) [][]float64 {
	all := make([][]float64, len(h))
	for i := range h {
		if k := len(h[i]); k > 0 {
			b := obs.workers[i].begins.inOrder()
			if k > len(b) { // the present one, too
				b = append(slices.Clone(b), obs.workers[i].released.Seconds())
			}
			all[i] = b[len(b)-k:]
		}
	}
	return all
}

// align makes iterations that were at the same time come at the same time when h is played: what slows all workers,
// such as a network that they share, makes SSGD wait once, and not once for each of them. begins is when the iterations
// began.
//
// Each worker gets as many iterations as the one that has most of them: its own in their order, spread evenly over the
// other's in the time that is known of both, so that their mean stays, and once more for the time before and after. So
// where all workers wait for all, iterations of one round come together.
func align(h price.History, begins [][]float64) {
	most := 0
	for w := range h {
		if len(h[w]) > len(h[most]) {
			most = w
		}
	}
	all := begins[most]
	// half is half the mean time between two iterations.
	half := func(b []float64) float64 { return (b[len(b)-1] - b[0]) / float64(max(2*len(b)-2, 1)) }
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

// pool lets similar workers share their records while all have few: a worker with a mean within a fifth
// of the median of all gets the iterations of all such workers, its own first. One or two iterations show the time of a
// worker, but not how much it varies, and not which of several similar workers is the slowest. Where exchanges
// dominate, workers may be similar that compute at different speeds: they keep these.
func (obs *observations) pool(f price.Forecast, h price.History) {
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
			compute = append(compute, obs.workers[w].compute.vals...)
			samples = append(samples, obs.workers[w].samples.vals...)
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
		own, v := 0.0, &obs.workers[w]
		for i, t := range v.compute.vals {
			own += t / v.samples.vals[i] / float64(len(v.compute.vals))
		}
		if len(v.compute.vals) == 0 || own < apart*k && own*apart > k {
			own = k
		}
		f.Fits[w] = price.Fit{Fixed: max(mean-own*float64(obs.batch), 0), PerSample: own}
	}
	for _, w := range alike {
		h[w] = out[w][:min(len(out[w]), max(price.Remembered/len(h[w]), 1)*len(h[w]))] // whole rounds
	}
}
