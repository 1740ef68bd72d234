package baseline

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
)

// lbbsp is load-balanced BSP: all workers wait for all, and slower workers get fewer samples. The sum of the batches is
// constant.
//
// C. Chen, Q. Weng, W. Wang, B. Li, B. Li: Semi-Dynamic Load Balancing: Efficient Distributed Learning in Non-Dedicated
// Environments. SoCC 2020, arXiv 1806.02508.
var lbbsp = Entry{
	Name:  "lb-bsp",
	Paper: "Chen, Weng, Wang, Li, Li, SoCC 2020",
	About: "SSGD with batches in proportion to the workers' speeds",
	Ring:  true,
	Settings: []Setting{
		{Name: "device", Default: "cpu", Source: "ours", Kind: Choice, Of: []string{"cpu", "gpu"},
			About: "cpu: shares in proportion to predicted speeds; gpu: samples move from the slowest to the fastest, a few at a time"},
		{Name: "predictor", Default: "narx", Source: "paper", Kind: Choice, Of: []string{"narx", "ema", "last"}, About: "cpu: of the next iteration's speed"},
		{Name: "ema", Default: "0.2", Source: "ours", Kind: Number, Min: 0.001, Max: 1, About: "cpu: weight of the newest speed in the moving average"},
		{Name: "change", Default: "0.02", Source: "ours", Kind: Number, Min: 0, Max: 1,
			About: "cpu: part of the iteration that new shares must be expected to save; 0: every change of a sample counts, as in the paper"},
		{Name: "min", Default: "1", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "samples that a worker gets at least"},
		{Name: "max", Source: "ours", Kind: Wholes, Min: 1, Max: 1 << 20, About: "samples that a worker's memory holds, one number for all or one for each, such as 64/64/32; 4 equal shares if unset"},
		{Name: "delta", Default: "5", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 20, About: "gpu: samples moved at once, at first"},
		{Name: "window", Default: "5", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 20, About: "gpu: iterations between moves, at first"},
	},
	Make: func(j Job, v Values) (Made, error) {
		most, err := v.Wholes("max", j.Workers, 4*j.Batch)
		if err != nil {
			return Made{}, err
		}
		least := v.Whole("min", 1)
		if least > j.Batch {
			return Made{}, fmt.Errorf("min=%d is more than an equal share, %d", least, j.Batch)
		}
		shares, err := Apportion(j.Workers*j.Batch, make([]float64, j.Workers), least, most)
		if err != nil {
			return Made{}, fmt.Errorf("min=%d, max=%s: %w", least, clip(v["max"]), err)
		}
		m := Made{Plan: modes.SSGD(j.Workers), Resizes: true}
		m.Plan.Shares = shares
		if v["device"] == "gpu" {
			m.Scheme = &pairwise{tuner: NewTuner(shares, least, most, v.Whole("delta", 5), v.Whole("window", 5)), workers: j.Workers,
				sum: make([]time.Duration, j.Workers), count: make([]int, j.Workers), gone: make([]bool, j.Workers)}
			return m, nil
		}
		b := &balance{total: j.Workers * j.Batch, least: least, most: most, change: v.Number("change"), shares: slices.Clone(shares),
			speed: make([]predictor, j.Workers), seen: make([]int, j.Workers), gone: make([]bool, j.Workers)}
		for w := range b.speed {
			switch v["predictor"] {
			case "last":
				b.speed[w] = &EMA{Weight: 1}
			case "ema":
				b.speed[w] = &EMA{Weight: v.Number("ema")}
			default:
				b.speed[w] = newForesight(uint64(w), v.Number("ema"))
			}
		}
		m.Scheme = b
		return m, nil
	},
}

// Apportion divides total samples in proportion to speeds (LB-BSP, section 3.2: bᵢ = B·vᵢ/Σv), each at least least and
// at most its own of most (cap_i). It rounds down and gives the rest to the largest fractions, of equal ones to the
// lowest rank first. Where bounds are violated, those of the side with the larger violation are fixed and the rest is
// divided again. A speed that is not positive and finite counts as the smallest one that is; without any, shares
// are equal. An error: a total that does not fit between the bounds, or numbers beyond 2⁴⁰.
func Apportion(total int, speeds []float64, least int, most []int) ([]int, error) {
	n := len(speeds)
	if len(most) != n {
		return nil, fmt.Errorf("%d bounds for %d workers", len(most), n)
	}
	const farthest = 1 << 40 // sums of 4096 of them are exact
	if n > 4096 || total < 0 || total > farthest || least < 0 || least > farthest {
		return nil, fmt.Errorf("%d samples for %d workers of at least %d each: want 0 to %d, and at most 4096 workers", total, n, least, farthest)
	}
	room := 0
	for w, k := range most {
		if k < least || k > farthest {
			return nil, fmt.Errorf("worker %d is to have at least %d and at most %d samples", w, least, k)
		}
		room += k
	}
	if total < n*least || total > room {
		return nil, fmt.Errorf("%d workers hold %d to %d samples, and have to hold %d", n, n*least, room, total)
	}
	v := slices.Clone(speeds)
	good := func(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
	small := math.Inf(1)
	for _, x := range v {
		if good(x) {
			small = min(small, x)
		}
	}
	for i, x := range v {
		switch {
		case math.IsInf(small, 1):
			v[i] = 1
		case !good(x):
			v[i] = small
		}
	}
	shares := make([]int, n)
	fixed := make([]bool, n)
	left := total
	for {
		sum := 0.0
		for i, x := range v {
			if !fixed[i] {
				sum += x / slices.Max(v) // of at most 1 each: no overflow
			}
		}
		over, under := 0.0, 0.0
		exact := make([]float64, n)
		for i, x := range v {
			if fixed[i] {
				continue
			}
			exact[i] = float64(left) * (x / slices.Max(v)) / sum
			over += max(0, exact[i]-float64(most[i]))
			under += max(0, float64(least)-exact[i])
		}
		if over == 0 && under == 0 {
			round(shares, exact, fixed, left)
			return shares, nil
		}
		for i := range v {
			switch {
			case fixed[i]:
			case over >= under && exact[i] > float64(most[i]):
				shares[i], fixed[i] = most[i], true
				left -= most[i]
			case over < under && exact[i] < float64(least):
				shares[i], fixed[i] = least, true
				left -= least
			}
		}
	}
}

// round rounds the shares that are not fixed to whole samples, left in all.
func round(shares []int, exact []float64, fixed []bool, left int) {
	var order []int
	for i, x := range exact {
		if fixed[i] {
			continue
		}
		shares[i] = int(x + 1e-9) // 38.99999999 is 39
		left -= shares[i]
		order = append(order, i)
	}
	part := func(i int) float64 { return exact[i] - float64(shares[i]) }
	slices.SortStableFunc(order, func(a, b int) int {
		if d := part(b) - part(a); math.Abs(d) > 1e-9 {
			return cmp.Compare(d, 0)
		}
		return a - b
	})
	for _, i := range order[:max(0, left)] {
		shares[i]++
	}
}

// predictor predicts the speed of a worker's next iteration, in samples per second.
type predictor interface {
	// observe takes the speed of an iteration, and the fractions of processor time and memory that were available.
	observe(speed, cpu, memory float64)
	predict() float64
}

// EMA is the moving average pₖ₊₁ = a·vₖ + (1 − a)·pₖ that begins with the first value; with a = 1 it is the last value.
type EMA struct {
	Weight float64 // a
	value  float64
	seen   bool
}

// Observe takes in a value.
func (e *EMA) Observe(v float64) {
	if !e.seen {
		e.value, e.seen = v, true
		return
	}
	e.value = e.Weight*v + (1-e.Weight)*e.value
}

// Predict is the prediction of the next value; 0 before the first value.
func (e *EMA) Predict() float64 { return e.value }

func (e *EMA) observe(v, _, _ float64) { e.Observe(v) }
func (e *EMA) predict() float64        { return e.value }

// balance is LB-BSP for clusters of processors.
type balance struct {
	total  int // B, with all workers live
	least  int
	most   []int // by worker: the most samples that its memory holds
	change float64
	shares []int
	speed  []predictor
	seen   []int
	gone   []bool
}

// Observe implements Scheme.
func (b *balance) Observe(r star.Record) {
	b.gone[r.Worker] = false // it may have come back
	t := r.Own().Seconds()
	if t <= 0 || r.Samples <= 0 {
		return
	}
	cpu, memory := available(r)
	b.speed[r.Worker].observe(float64(r.Samples)/t, cpu, memory)
	b.seen[r.Worker]++
}

// available is the fraction of the host's processors and memory that the worker could use; 1 if not measured.
func available(r star.Record) (cpu, memory float64) {
	cpu, memory = 1, 1
	if used, ok := r.Telemetry.Get(star.HostCPU); ok {
		cpu = 1 - used
	}
	if free, ok := r.Telemetry.Get(star.MemAvailable); ok {
		memory = free
	}
	return cpu, memory
}

// Leave implements Scheme.
func (b *balance) Leave(w star.Worker) { b.gone[w] = true }

// Fired implements Scheme.
func (b *balance) Fired(Update) (Decision, bool) {
	n := len(b.shares)
	var ranks, most []int
	var speeds []float64
	room := 0
	for w := range n {
		if b.gone[w] {
			continue
		}
		if b.seen[w] == 0 {
			return Decision{}, false
		}
		ranks, speeds, most = append(ranks, w), append(speeds, b.speed[w].predict()), append(most, b.most[w])
		room += b.most[w]
	}
	if len(ranks) == 0 {
		return Decision{}, false
	}
	// The samples of workers that have left are not redistributed: the batch of the others stays as it was, or is
	// what their memories hold.
	got, err := Apportion(min(b.total/n*len(ranks), room), speeds, b.least, most)
	if err != nil {
		panic("baseline: " + err.Error()) // Make has checked the numbers
	}
	next := slices.Clone(b.shares)
	now, then := 0.0, 0.0
	for i, w := range ranks {
		next[w] = got[i]
		now = max(now, float64(b.shares[w])/max(speeds[i], 1e-300))
		then = max(then, float64(got[i])/max(speeds[i], 1e-300))
	}
	if slices.Equal(next, b.shares) || then > now*(1-b.change) {
		return Decision{}, false
	}
	b.shares = next
	p := modes.SSGD(n)
	p.Shares = slices.Clone(next)
	return Decision{p, fmt.Sprintf("LB-BSP: predicted speeds %s samples/s, the slowest takes %.3g s instead of %.3g s", rounded(speeds), then, now)}, true
}

func rounded(vs []float64) string {
	var b []byte
	for i, v := range vs {
		if i > 0 {
			b = append(b, '/')
		}
		b = fmt.Appendf(b, "%.3g", v)
	}
	return string(b)
}

// Tuner moves samples between workers that take a constant time below some batch and a time with a slope above it, as
// GPUs do (LB-BSP, section 3.3). After each window some samples move from the slowest to the fastest; when the same two
// workers swap roles, fewer samples move and windows become longer.
//
//	moving ── a reversal with single samples ──► holding ── two windows a tenth worse ──► moving, from the start
//
// Ties, the end and the restart are ours: the lowest rank; a tie, or a reversal with single samples, holds; and when
// the ratio of slowest to fastest has been more than a tenth above its value at that time for two windows, the tuner
// starts again. Invariant: the sum of the shares is constant.
type Tuner struct {
	shares        []int
	least         int
	most          []int // by worker
	delta, window int   // now
	delta0, win0  int
	from, to      int // of the last move; from -1: there was none
	holds         bool
	held          float64 // slowest/fastest when it converged
	worse         int     // windows in a row with a ratio more than a tenth above that
}

// NewTuner begins with the given shares; most is the maximum of each worker. It copies the slices.
func NewTuner(shares []int, least int, most []int, delta, window int) *Tuner {
	return &Tuner{shares: slices.Clone(shares), least: least, most: slices.Clone(most), delta: delta, window: window, delta0: delta, win0: window, from: -1}
}

// Window is how many iterations to average before the next call of Step.
func (t *Tuner) Window() int { return t.window }

// Step takes the mean compute times of a window and reports whether it moved samples. A time that is not positive marks
// a worker that has left: it takes no part.
func (t *Tuner) Step(times []time.Duration) bool {
	s, l, quick := -1, -1, -1
	for i, d := range times {
		if d <= 0 {
			continue
		}
		if s < 0 || d > times[s] {
			s = i
		}
		if quick < 0 || d < times[quick] {
			quick = i
		}
		if t.shares[i]+t.delta <= t.most[i] && (l < 0 || d < times[l]) {
			l = i
		}
	}
	if s < 0 {
		return false
	}
	ratio := float64(times[s]) / float64(times[quick])
	if t.holds {
		if t.worse++; ratio <= 1.1*t.held {
			t.worse = 0
		}
		if t.worse < 2 {
			return false
		}
		t.holds, t.worse, t.delta, t.window, t.from = false, 0, t.delta0, t.win0, -1
		return t.Step(times)
	}
	if l < 0 || l == s || times[s] == times[l] {
		return false
	}
	if t.from == l && t.to == s { // the reversal of the last move
		if t.delta == 1 {
			t.holds, t.held = true, ratio
			return false
		}
		t.delta, t.window, t.from = max(1, t.delta/2), 2*t.window, -1
		return false
	}
	d := min(t.delta, t.shares[s]-t.least)
	if d <= 0 {
		return false
	}
	t.shares[l] += d
	t.shares[s] -= d
	t.from, t.to = s, l
	return true
}

// pairwise is LB-BSP for clusters of GPUs.
type pairwise struct {
	tuner   *Tuner
	workers int
	sum     []time.Duration // of iterations with the present share, since the last step
	count   []int
	gone    []bool
}

// Observe implements Scheme. Iterations that began before the shares changed are not counted.
func (p *pairwise) Observe(r star.Record) {
	p.gone[r.Worker] = false // it may have come back
	if r.Samples == p.tuner.shares[r.Worker] {
		p.sum[r.Worker] += r.Own()
		p.count[r.Worker]++
	}
}

// Leave implements Scheme.
func (p *pairwise) Leave(w star.Worker) { p.gone[w] = true }

// Fired implements Scheme.
func (p *pairwise) Fired(Update) (Decision, bool) {
	times := make([]time.Duration, p.workers)
	for w := range times {
		switch {
		case p.gone[w]:
		case p.count[w] < p.tuner.Window():
			return Decision{}, false
		default:
			times[w] = p.sum[w] / time.Duration(p.count[w])
		}
	}
	clear(p.sum)
	clear(p.count)
	if !p.tuner.Step(times) {
		return Decision{}, false
	}
	plan := modes.SSGD(p.workers)
	plan.Shares = slices.Clone(p.tuner.shares)
	return Decision{plan, fmt.Sprintf("LB-BSP: %d samples from worker %d, the slowest, to worker %d", p.tuner.delta, p.tuner.from, p.tuner.to)}, true
}
