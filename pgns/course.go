package pgns

import "math"

// Course measures θ (see price.Forecast) while all workers wait for each other, before any gradient is stale: the part
// of its effect that an update would lose if it came a round late. The gradients of one update are of the same
// parameters, and so are the next ones of its workers, d rounds of samples later. With ḡ and ḡ′ their means, |G|² by
// (16) of the first,
//
//	θ̂ = Σ (|G|² − ḡ·ḡ′)/d / Σ |G|²                                          (22)
//
// over updates, the last ten or so of them counting. On a quadratic with v the part of itself by which the gradient
// changes in a round, E ḡ·ḡ′ = |G|²·(1 − v) − v·trΣ/B, since the parameters have answered to the noise of ḡ; so θ̂ =
// v·(1 + φ/B), which is θ. The sum over workers of their own products replaces ḡ·ḡ′: Σ b·g·g′/B has the same mean, and
// needs only norms and differences that are known ([Change]).
//
// Of a model with many curvatures that is those of the steepest directions, in which least is left to gain. So it is a
// bound: staleness costs no more.
type Course struct {
	last    []leg
	clean   [64]place // of versions, by version modulo 64
	total   int64     // samples applied
	pending int64     // version of the last clean update with unknown moments; 0: none
	basis   int64     // of it

	n, nn      float64 // Σ w, Σ w²
	x, y       float64 // Σ w·(|G|² − ḡ·ḡ′)/d, Σ w·|G|²
	xx, xy, yy float64 // Σ w²·…
}

// leg is a worker's last gradient and the one before.
type leg struct {
	step, basis int64
	samples     int
	norm2       float64
	before      int64 // basis of the gradient before
	product     float64
	known       bool // the product, and what is before
}

// place is a version.
type place struct {
	version int64 // +1; 0: none
	total   int64 // samples applied until then
	grad2   float64
	known   bool // grad2
}

// NewCourse makes a Course for a number of workers.
func NewCourse(workers int) *Course { return &Course{last: make([]leg, workers)} }

// Gradient tells of one that has arrived: its worker's step, the version that it is of, its samples, |g|², and |g −
// g′|², g′ being its worker's gradient before; less than 0: not known.
func (c *Course) Gradient(worker int, step, basis int64, samples int, norm2, change float64) {
	if worker < 0 || worker >= len(c.last) {
		return
	}
	was := c.last[worker]
	now := leg{step: step, basis: basis, samples: samples, norm2: norm2, before: was.basis}
	sum := norm2 + was.norm2
	if now.known = was.samples > 0 && step == was.step+1 && change >= 0 && !math.IsNaN(sum) && !math.IsInf(sum, 1) &&
		(norm2 == 0 || was.norm2 == 0 || norm2 < leap*was.norm2 && was.norm2 < leap*norm2); now.known {
		now.product = (sum - change) / 2
		// Of two vectors of these lengths.
		most := math.Sqrt(norm2 * was.norm2)
		now.product = min(max(now.product, -most), most)
	}
	c.last[worker] = now
}

// Fired tells of the update that made a version, out of the last gradients of some workers. round is the samples of a
// round of all.
func (c *Course) Fired(version int64, workers []int, round int) {
	c.pending = 0
	var product, samples float64
	same, known := true, true
	var first leg
	for i, w := range workers {
		if w < 0 || w >= len(c.last) {
			return
		}
		l := c.last[w]
		if i == 0 {
			first = l
		}
		same = same && l.basis == first.basis
		known = known && l.known && l.before == first.before
		product += float64(l.samples) * l.product
		samples += float64(l.samples)
	}
	if same && known && len(workers) > 1 && samples > 0 && round > 0 {
		from, to := c.at(first.before), c.at(first.basis)
		if from != nil && to != nil && from.known {
			if d := float64(to.total-from.total) / float64(round); d >= 0.5 && d <= 2 {
				c.add((from.grad2-product/samples)/d, from.grad2)
			}
		}
	}
	if c.at(version-1) == nil { // the first, or those between were not reported
		c.clean[(version-1)&63] = place{version: version, total: c.total}
	}
	c.total += int64(samples)
	c.clean[version&63] = place{version: version + 1, total: c.total}
	if same && len(workers) > 1 {
		c.pending, c.basis = version, first.basis
	}
}

// Moments tells |G|² of the update that made a version, by (16).
func (c *Course) Moments(version int64, grad2 float64) {
	if version != c.pending || version == 0 || math.IsNaN(grad2) || math.IsInf(grad2, 0) {
		return
	}
	if p := c.at(c.basis); p != nil {
		p.grad2, p.known = grad2, true
	}
}

func (c *Course) at(version int64) *place {
	if version < 0 {
		return nil
	}
	if p := &c.clean[version&63]; p.version == version+1 {
		return p
	}
	return nil
}

func (c *Course) add(x, y float64) {
	const keep = recent
	c.n, c.nn = c.n*keep+1, c.nn*keep*keep+1
	c.x, c.y = c.x*keep+x, c.y*keep+y
	c.xx, c.xy, c.yy = c.xx*keep*keep+x*x, c.xy*keep*keep+x*y, c.yy*keep*keep+y*y
}

// Bound is θ̂, at least 0, and what it is at most, by two of its standard errors: staleness costs no more than that.
// ok: enough was seen.
func (c *Course) Bound() (theta, most float64, ok bool) {
	if c.y <= 0 || c.n < fewest {
		return 0, 0, false
	}
	r := c.x / c.y
	free := c.n * c.n / c.nn // as many equal weights
	spread := max(c.xx-2*r*c.xy+r*r*c.yy, 0)
	return max(r, 0), max(r, 0) + 2*math.Sqrt(spread*free/(free-1))/c.y, true
}

// fewest pairs of updates, by their weights, that say how much they scatter.
const fewest = 3
