package resource

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Load is the load of servers in a mode.
type Load struct {
	Updates   float64 // per second
	Gradients float64 // received, per second
}

// Demand is a job's use of the host of a server, as a function of the load:
//
//	usage = Base + PerUpdate·updates + PerGradient·gradients
//
// Every gradient and the parameters in reply are bytes to be moved and added, independent of the updates; only the
// optimiser step is once per update.
type Demand struct{ Base, PerUpdate, PerGradient Usage }

// At is the usage under a load.
func (d Demand) At(l Load) Usage {
	return d.Base.Plus(d.PerUpdate.Times(l.Updates)).Plus(d.PerGradient.Times(l.Gradients))
}

// Extra is the use of a mode beyond SSGD, at least 0.
func (d Demand) Extra(mode, ssgd Load) Usage { return d.At(mode).Minus(d.At(ssgd)) }

// Bytes describes a job's server before any measurement.
type Bytes struct {
	Gradient int64 // bytes that a worker pushes to this server, as sent
	Params   int64 // parameters of this server, sent back

	// Receive and Apply are the rates of a core, in bytes per second: from the socket into an update and back, and in an
	// optimiser step. Zero: ReceivePrior and ApplyPrior.
	Receive, Apply float64
}

const (
	// ReceivePrior is the rate of a shard per core, both directions together: star bench ps (loopback TCP, two virtual
	// processors, 1 to 16 MB, 1 and 4 workers) needs 0.40 to 0.57 s of processor time for 10⁹ bytes through the shard's
	// sockets, both ends together; 0.13 to 0.23 s of these are the worker's half of the data path.
	ReceivePrior = 3.5e9

	// ApplyPrior is the rate of a step of SGD: read gradient and parameters, write parameters.
	ApplyPrior = 10e9
)

// Demand is the prior for a job with known sizes: bandwidth is computed, the processor's share follows from the bytes
// and measured rates.
func (b Bytes) Demand() Demand {
	if b.Receive == 0 {
		b.Receive = ReceivePrior
	}
	if b.Apply == 0 {
		b.Apply = ApplyPrior
	}
	in, out := float64(b.Gradient), float64(b.Params)
	return Demand{
		PerGradient: Usage{CPU: (in + out) / b.Receive, NetIn: in, NetOut: out},
		PerUpdate:   Usage{CPU: out / b.Apply},
	}
}

// Learner learns a Demand from measurements while the job runs, starting from a prior. Measurements under similar loads
// are grouped, the last 31 of each group, and from five on their median counts: an outlier has no effect, old ones drop
// out, and measurements of one mode are kept while another one runs. Base and slopes are the least squares of these
// medians and of the prior, which counts as [pseudo] measurements at no load, in SSGD and in ASGD. The prior is first
// scaled to the measurements, since hosts differ. No value is negative. A Learner is not safe for concurrent use.
type Learner struct {
	prior   Demand
	workers int
	cells   []cell
	seen    int64
}

const (
	keep     = 31  // measurements of a load
	enough   = 5   // fewer measurements of a load are ignored
	mostCell = 24  // most groups of loads
	pseudo   = 2.0 // weight of the prior at each of its loads, in measurements
	steps    = 4.0 // loads count as similar within a factor of 2^(1/steps)
)

// cell has the measurements under similar loads.
type cell struct {
	key   [2]int
	ring  [keep]measure
	n     int
	used  int64 // last, in measurements
	total int64
}

// measure is one measurement.
type measure struct {
	load Load
	use  Usage
}

// NewLearner starts from a prior, for a job with that number of workers.
func NewLearner(prior Demand, workers int) (*Learner, error) {
	if workers < 1 {
		return nil, fmt.Errorf("resource: a job of %d workers: at least 1 is needed", workers)
	}
	for what, u := range map[string]Usage{"base": prior.Base, "slope by updates": prior.PerUpdate, "slope by gradients": prior.PerGradient} {
		if err := u.check("prior demand: "+what, false); err != nil {
			return nil, err
		}
	}
	return &Learner{prior: prior, workers: workers}, nil
}

// Observe adds the use under a load. Negative and non-finite values, and measurements without activity, are ignored and
// reported as false.
func (l *Learner) Observe(load Load, use Usage) bool {
	if use.check("", false) != nil || !(load.Updates > 0) || !(load.Gradients > 0) || math.IsInf(load.Updates+load.Gradients, 0) {
		return false
	}
	l.seen++
	key := [2]int{int(math.Floor(steps * math.Log2(load.Updates))), int(math.Floor(steps * math.Log2(load.Gradients)))}
	i := slices.IndexFunc(l.cells, func(c cell) bool { return c.key == key })
	if i < 0 {
		if len(l.cells) == mostCell { // replace the least recently used
			i = 0
			for k := range l.cells {
				if l.cells[k].used < l.cells[i].used {
					i = k
				}
			}
			l.cells = slices.Delete(l.cells, i, i+1)
		}
		i = len(l.cells)
		l.cells = append(l.cells, cell{key: key})
	}
	c := &l.cells[i]
	c.ring[c.total%keep] = measure{load, use}
	c.total++
	c.n = int(min(c.total, keep))
	c.used = l.seen
	return true
}

// Seen is the number of measurements.
func (l *Learner) Seen() int64 { return l.seen }

// middle is the median of a value over a cell.
func (c *cell) middle(of func(measure) float64) float64 {
	var vs [keep]float64
	for i := range c.n {
		vs[i] = of(c.ring[i])
	}
	return median(vs[:c.n])
}

// median of vs, which it sorts.
func median(vs []float64) float64 {
	slices.Sort(vs)
	return (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
}

// point is a row of the least squares.
type point struct {
	x    [3]float64 // 1, updates, gradients
	y, w float64
}

// Demand is the current estimate.
func (l *Learner) Demand() Demand {
	var cells []*cell
	for i := range l.cells {
		if l.cells[i].n >= enough {
			cells = append(cells, &l.cells[i])
		}
	}
	if len(cells) == 0 {
		return l.prior
	}
	loads := make([]Load, len(cells))
	rate, weight := 0.0, 0.0
	for i, c := range cells {
		loads[i] = Load{c.middle(func(m measure) float64 { return m.load.Updates }), c.middle(func(m measure) float64 { return m.load.Gradients })}
		rate += loads[i].Gradients * float64(c.n)
		weight += float64(c.n)
	}
	rate /= weight
	refs := []Load{{}, {rate / float64(l.workers), rate}, {rate, rate}}
	var d Demand
	for k := range kinds {
		var rows []point
		type ratio struct{ v, w float64 }
		var ratios []ratio
		for i, c := range cells {
			y := c.middle(func(m measure) float64 { return m.use.of(k) })
			rows = append(rows, point{[3]float64{1, loads[i].Updates, loads[i].Gradients}, y, float64(c.n)})
			if p := l.prior.At(loads[i]).of(k); p > 0 {
				ratios = append(ratios, ratio{y / p, float64(c.n)})
			}
		}
		scale := 1.0
		if len(ratios) > 0 { // weighted median
			slices.SortFunc(ratios, func(a, b ratio) int { return cmp.Compare(a.v, b.v) })
			half, sum := 0.0, 0.0
			for _, r := range ratios {
				half += r.w / 2
			}
			for _, r := range ratios {
				if sum += r.w; sum >= half {
					scale = r.v
					break
				}
			}
		}
		for _, r := range refs {
			if l.workers == 1 && r == refs[2] {
				continue // ASGD is SSGD
			}
			rows = append(rows, point{[3]float64{1, r.Updates, r.Gradients}, scale * l.prior.At(r).of(k), pseudo})
		}
		β := positive(rows)
		*d.Base.at(k), *d.PerUpdate.at(k), *d.PerGradient.at(k) = β[0], β[1], β[2]
	}
	return d
}

// positive is the weighted least squares solution without negative coefficients: the best over all eight sets of
// coefficients that may differ from 0.
func positive(rows []point) (best [3]float64) {
	least := math.Inf(1)
	// Coefficients are compared by what they contribute, so columns are scaled to a mean square of 1.
	var norm [3]float64
	for _, r := range rows {
		for i, x := range r.x {
			norm[i] += r.w * x * x
		}
	}
	for i := range norm {
		if norm[i] = math.Sqrt(norm[i]); norm[i] == 0 {
			norm[i] = 1
		}
	}
	for set := range 8 {
		var a [3][3]float64
		var b, β [3]float64
		for _, r := range rows {
			for i := range 3 {
				for j := range 3 {
					a[i][j] += r.w * r.x[i] / norm[i] * r.x[j] / norm[j]
				}
				b[i] += r.w * r.x[i] / norm[i] * r.y
			}
		}
		for i := range 3 {
			if set>>i&1 == 0 {
				a[i], b[i] = [3]float64{}, 0
				for j := range 3 {
					a[j][i] = 0
				}
				a[i][i] = 1
			} else {
				a[i][i] *= 1 + 1e-9 // in case loads are proportional
			}
		}
		if !solve(a, b, &β) || slices.Min(β[:]) < 0 {
			continue
		}
		sum := 0.0
		for _, r := range rows {
			e := r.y
			for i := range 3 {
				e -= β[i] * r.x[i] / norm[i]
			}
			sum += r.w * e * e
		}
		if sum < least {
			least = sum
			for i := range 3 {
				best[i] = β[i] / norm[i]
			}
		}
	}
	return best
}

// solve does Gaussian elimination with pivoting; false: singular.
func solve(a [3][3]float64, b [3]float64, x *[3]float64) bool {
	for i := range 3 {
		p := i
		for j := i + 1; j < 3; j++ {
			if math.Abs(a[j][i]) > math.Abs(a[p][i]) {
				p = j
			}
		}
		a[i], a[p], b[i], b[p] = a[p], a[i], b[p], b[i]
		if math.Abs(a[i][i]) < 1e-14 {
			return false
		}
		for j := i + 1; j < 3; j++ {
			f := a[j][i] / a[i][i]
			for k := i; k < 3; k++ {
				a[j][k] -= f * a[i][k]
			}
			b[j] -= f * b[i]
		}
	}
	for i := 2; i >= 0; i-- {
		x[i] = b[i]
		for k := i + 1; k < 3; k++ {
			x[i] -= a[i][k] * x[k]
		}
		x[i] /= a[i][i]
	}
	return true
}

// Giving learns what a delay of a job frees and costs, starting from a prior.
//
// Sensitivities use the published scale as we interpret it: a job bound by a resource that gets an eighth and a quarter
// of its share is slower by 8 and by 4, which makes 32 = [bound]; a job with a speed of the share to the power of e has
// 32^e. The exponent e is measured: the slowdown of a job relative to the reduction of its use.
type Giving struct {
	prior Costs
	freed [kinds]history
	e     [kinds]history
}

const (
	bound    = 32.0
	trust    = 3.0 // weight of the prior, in observations
	remember = 15
	steepest = 2.0  // largest e; the smallest is -0.1, slightly less than published
	gentlest = -0.1 //
	visible  = 0.02 // smallest relative change of a usage or a time that counts
)

// history has the last values.
type history struct{ vs []float64 }

func (h *history) add(v float64) {
	if h.vs = append(h.vs, v); len(h.vs) > remember {
		h.vs = h.vs[1:]
	}
}

// middle is the median of the values; 0 without values.
func (h *history) middle() float64 {
	if len(h.vs) == 0 {
		return 0
	}
	return median(slices.Clone(h.vs))
}

// blend is the median of the values and of a prior that counts as several values.
func (h *history) blend(prior float64) float64 {
	n := float64(len(h.vs))
	if n == 0 {
		return prior
	}
	return (trust*prior + n*h.middle()) / (trust + n)
}

// Response is the measured effect of a delay of a job.
type Response struct {
	Workers       int           // on the host
	Delay         time.Duration // of each iteration
	Before, After Usage         // of the job on the host

	// RoundBefore and RoundAfter are times of its rounds.
	RoundBefore, RoundAfter time.Duration
}

// NewGiving starts from a prior.
func NewGiving(prior Costs) (*Giving, error) {
	if err := prior.check("prior costs"); err != nil {
		return nil, err
	}
	return &Giving{prior: prior}, nil
}

// Observe adds a response. Invalid values are an error.
func (g *Giving) Observe(r Response) error {
	if r.Workers < 1 || r.Delay <= 0 || r.RoundBefore <= 0 || r.RoundAfter <= 0 {
		return fmt.Errorf("resource: %d workers delayed by %v, rounds of %v and %v: want more than 0", r.Workers, r.Delay, r.RoundBefore, r.RoundAfter)
	}
	for what, u := range map[string]Usage{"before": r.Before, "after": r.After} {
		if err := u.check("use "+what+" a delay", false); err != nil {
			return err
		}
	}
	slower := math.Log(r.RoundAfter.Seconds() / r.RoundBefore.Seconds())
	for k := range kinds {
		a, b := r.Before.of(k), r.After.of(k)
		g.freed[k].add(max(a-b, 0) / float64(r.Workers) / r.Delay.Seconds())
		switch less := math.Log(a / b); {
		case a == 0:
		case b > 0 && less < visible:
			if slower > visible { // slower without freeing anything
				g.e[k].add(steepest)
			}
		case b == 0:
			g.e[k].add(0)
		default:
			g.e[k].add(min(max(slower/less, gentlest), steepest))
		}
	}
	return nil
}

// Costs is the current estimate.
func (g *Giving) Costs() Costs {
	c := g.prior
	for k := range kinds {
		*c.Freed.at(k) = g.freed[k].blend(g.prior.Freed.of(k))
	}
	sense := func(prior float64, hs ...*history) float64 {
		e := math.Log(prior) / math.Log(bound)
		var all history
		for _, h := range hs {
			all.vs = append(all.vs, h.vs...)
		}
		return math.Pow(bound, all.blend(e))
	}
	c.Sensitivity = Sensitivity{CPU: sense(g.prior.Sensitivity.CPU, &g.e[cpu]), Net: sense(g.prior.Sensitivity.Net, &g.e[netIn], &g.e[netOut])}
	return c
}
