package auto

import (
	"math"

	"star"
)

// PartCosts learns what a part of a batch costs by itself, from workers whose parts become larger or smaller. A batch that is computed in p parts, k samples in all, takes of the computing time Y of an equal share of b samples in one part
//
//	C = Y·(q·p + (1 − q)·k/b)                                                  (40)
//
// where q, 0 to 1, is what a part costs whatever its size: kernels are launched, an interpreter goes once through the model, gradients are added up. A queue of samples cuts a share into many
// parts, so what it may bring depends on q.
//
// One size of parts tells nothing of q; two do. When a worker's parts have become x' samples, after x, and one of them takes y', after y, by (40)
//
//	α = y'/y,    q = (α·x − x')/b / (1 − α + (α·x − x')/b)                      (41)
//
// y and y' are medians of the few records on both sides of the change: what becomes faster or slower at another time, for whatever reason, moves neither. As q is of a ratio, a worker that becomes
// slower altogether keeps it. What several changes of size have said is averaged by how sure it is.
type PartCosts struct {
	batch   float64 // b
	workers []partCost
}

// partCost is what is known of a worker.
type partCost struct {
	size   float64  // samples of its parts, in the first record of its present size
	odd    float64  // of the newest part, if that has another size
	first  []part   // of the first records of that size, at most sided
	latest []part   // of the newest ones, at most sided
	before []part   // latest, before the size has changed
	past   evidence // of changes that are over
}

// part is the mean one of a record.
type part struct{ samples, seconds float64 }

// evidence is a mean of q and the sum of the weights that it is made with, 1/variance each.
type evidence struct{ q, weight float64 }

const (
	sided    = 16   // records on each side of a change that are compared
	enough   = 3    // of which so many must be behind it
	resized  = 1.6  // by this factor sizes differ: less is what is left of runs of the stream, and would tell little
	uneven   = 0.05 // what times of equal parts differ by at least, as a part of themselves, whatever a few of them say
	partsure = 0.1  // standard error of q above which it is not known
)

// NewPartCosts makes one for so many workers, whose equal share has so many samples.
func NewPartCosts(workers, batch int) *PartCosts {
	return &PartCosts{batch: float64(batch), workers: make([]partCost, workers)}
}

// Observe takes in that a worker computed so many samples in so many parts, in so many seconds.
func (c *PartCosts) Observe(w star.Worker, samples, parts, seconds float64) {
	if !(parts >= 1 && parts <= samples && seconds > 0) {
		return
	}
	p, x := &c.workers[w], samples/parts
	switch {
	case p.size == 0:
		p.size = x
	case differ(x, p.size):
		// One record may have what was left of a batch. The first with parts of a new size pays for what is built once.
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

// known is what all changes have said of q. What older ones have said counts half beside a newer one: what a part costs may have changed, too.
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
	// The derivative of (41), by both of its differences: it is not linear.
	off = max(math.Abs(partOf(α+off, was/batch, size/batch)-q), math.Abs(partOf(max(α-off, 0), was/batch, size/batch)-q), 1e-6)
	e := evidence{q, 1 / (off * off)}
	return e.with(evidence{p.past.q, p.past.weight / 2})
}

// partOf is q of (41), sizes in shares: -1 to 2, for what is noise about 0 and 1 is to average out.
func partOf(α, was, size float64) float64 {
	n := α*was - size
	d := 1 - α + n
	if d == 0 {
		return 1
	}
	q := n / d
	if (was > size) != (d > 0) { // larger parts take less than smaller ones: all of it is theirs
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

// level is the median of the samples of ps, that of their times, and by what part of it these scatter, as a standard deviation of what is normal.
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

// forget is told that another process takes the worker's place.
func (c *PartCosts) forget(w star.Worker) { c.workers[w] = partCost{} }

// Share is q: the median of what workers have shown, who have the same program. A single worker that is sure of another one may have become slower just then, and its share of a round
// would follow. ok: half of those who are here have shown it, and the standard error of the median is small enough.
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
