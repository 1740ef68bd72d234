package auto

import (
	"math"

	"star"
)

// PartCosts estimates the fixed cost of a part of a batch, from workers that change the size of their parts. A batch of
// k samples in p parts takes, of the computing time Y of an equal share of b samples in one part,
//
//	C = Y·(q·p + (1 − q)·k/b)                                                  (32)
//
// where q, 0 to 1, is the cost of a part whatever its size: kernel launches, one pass of an interpreter through the
// model, adding up gradients. A queue of samples cuts a share into many parts, so its benefit depends on q.
//
// One size of parts does not determine q; two do. When a worker's parts change from x to x' samples, and their times
// from y to y', by (32)
//
//	α = y'/y,    q = (α·x − x')/b / (1 − α + (α·x − x')/b)                      (33)
//
// y and y' are medians of the few records on both sides of the change, so other changes of speed, for whatever reason,
// do not affect them. As q is of a ratio, a worker that becomes slower altogether keeps it. The results of several
// changes of size are averaged, weighted by their certainty.
type PartCosts struct {
	batch   float64 // b
	workers []partCost
}

// partCost is the state of a worker.
type partCost struct {
	size   float64  // samples of its parts, in the first record of its present size
	odd    float64  // of the newest part, if it has another size
	first  []part   // the first records of that size, at most sided
	latest []part   // the newest records, at most sided
	before []part   // latest, before the size changed
	past   evidence // of earlier changes
}

// part is the mean part of a record.
type part struct{ samples, seconds float64 }

// evidence is a mean of q and the sum of its weights, 1/variance each.
type evidence struct{ q, weight float64 }

const (
	sided  = 16 // records on each side of a change that are compared
	enough = 3  // minimum number of records after a change
	// Factor by which sizes differ: less comes from the ends of pieces of the stream, and would show little.
	resized  = 1.6
	uneven   = 0.05 // least relative spread of times of equal parts, whatever a few of them show
	partsure = 0.1  // standard error of q above which q is unknown
)

// NewPartCosts returns the PartCosts of a job with equal shares of batch samples.
func NewPartCosts(workers, batch int) *PartCosts {
	return &PartCosts{batch: float64(batch), workers: make([]partCost, workers)}
}

// Observe records that a worker computed samples in a number of parts, in the given seconds.
func (c *PartCosts) Observe(w star.Worker, samples, parts, seconds float64) {
	if !(parts >= 1 && parts <= samples && seconds > 0) {
		return
	}
	p, x := &c.workers[w], samples/parts
	switch {
	case p.size == 0:
		p.size = x
	case differ(x, p.size):
		// One record may have the rest of a batch. The first with parts of a new size includes one-time costs.
		if p.odd == 0 || differ(x, p.odd) {
			p.odd = x
			return
		}
		p.past = p.known(c.batch)
		p.before, p.size, p.first, p.latest = p.latest, x, nil, nil
	}
	p.odd = 0
	one := part{x, seconds / parts}
	if len(p.first) < sided {
		p.first = append(p.first, one)
	}
	if p.latest = append(p.latest, one); len(p.latest) > sided {
		p.latest = p.latest[1:]
	}
}

func differ(x, y float64) bool { return x > resized*y || y > resized*x }

// known is the estimate of q from all changes. Older ones count half as much as a newer one, because the cost of a part
// may have changed.
func (p *partCost) known(batch float64) evidence {
	if len(p.before) == 0 || len(p.first) < enough {
		return p.past
	}
	was, y, noise := level(p.before)
	size, now, noiseNow := level(p.first)
	spread := max(noise, noiseNow, uneven) * math.Sqrt(math.Pi/2) // of a median
	α := now / y
	off := α * spread * math.Sqrt(1/float64(len(p.before))+1/float64(len(p.first)))
	q := partOf(α, was/batch, size/batch)
	// The derivative of (33), by both of its differences: it is not linear.
	off = max(math.Abs(partOf(α+off, was/batch, size/batch)-q), math.Abs(partOf(max(α-off, 0), was/batch, size/batch)-q), 1e-6)
	e := evidence{q, 1 / (off * off)}
	return e.with(evidence{p.past.q, p.past.weight / 2})
}

// partOf is q of (33), with sizes in shares. It is limited to -1 to 2, not 0 to 1, so that noise averages out.
func partOf(α, was, size float64) float64 {
	n := α*was - size
	d := 1 - α + n
	if d == 0 {
		return 1
	}
	q := n / d
	if (was > size) != (d > 0) { // larger parts take less time than smaller ones: the cost of a part is all
		q = 2
	}
	return min(max(q, -1), 2)
}

func (e evidence) with(o evidence) evidence {
	sum := e.weight + o.weight
	if sum == 0 {
		return evidence{}
	}
	return evidence{(e.q*e.weight + o.q*o.weight) / sum, sum}
}

// level is the median of the samples of ps, that of their times, and the relative spread of the times, scaled to the
// standard deviation of normal values.
func level(ps []part) (samples, seconds, spread float64) {
	xs, ys := make([]float64, len(ps)), make([]float64, len(ps))
	for i, p := range ps {
		xs[i], ys[i] = p.samples, p.seconds
	}
	seconds = median(ys)
	for i, y := range ys {
		ys[i] = math.Abs(y/seconds - 1)
	}
	return median(xs), seconds, 1.4826 * median(ys)
}

// forget discards the state of a worker that is replaced by another process.
func (c *PartCosts) forget(w star.Worker) { c.workers[w] = partCost{} }

// Share is q: the median of the workers' estimates, because they run the same program. A single worker that is certain
// of another value may have become slower at that time, and its share of a round would change with it. ok: half of the
// present workers have an estimate, and the standard error of the median is small enough.
func (c *PartCosts) Share(here func(w star.Worker) bool) (q float64, ok bool) {
	var qs, offs []float64
	living := 0
	for w := range c.workers {
		if !here(star.Worker(w)) {
			continue
		}
		living++
		if e := c.workers[w].known(c.batch); e.weight > 0 {
			qs, offs = append(qs, e.q), append(offs, 1/math.Sqrt(e.weight))
		}
	}
	if 2*len(qs) < living || living == 0 {
		return 0, false
	}
	m := median(qs)
	for i, q := range qs {
		qs[i] = math.Abs(q - m)
	}
	off := max(median(offs), 1.4826*median(qs)) * math.Sqrt(math.Pi/2/float64(len(qs)))
	return min(max(m, 0), 1), off <= partsure
}
