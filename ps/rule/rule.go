package rule

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"star"
	"star/internal/exactsum"
	"star/internal/kernel"
)

// Gradient is one shard's slice of a worker's gradient.
type Gradient struct {
	Worker star.Worker
	// The worker's own count of iterations.
	Step int64
	// Version of the parameters it was computed on.
	Basis   int64
	Samples int // size of its mini-batch

	// Weight is c of the update rule. The firing sets it; a Push ignores it.
	Weight float32

	// Sum2 is the sum of squares of Vec as it came, negative if it was not measured.
	Sum2 float64

	// Of is the part of the slice that Vec has values for; its other elements have no meaning.
	Of Part

	Vec []float32
}

// Part is one of Parts parts of a vector, the one with that Index. The zero value is the whole vector.
type Part struct{ Parts, Index int }

// Range is the elements of the part, in a vector of n: n/Parts each, rounded.
func (p Part) Range(n int) (from, to int) {
	if p.Parts == 0 {
		return 0, n
	}
	return p.Index * n / p.Parts, (p.Index + 1) * n / p.Parts
}

// Rule makes an update of the gradients of a firing. It is called by one
// goroutine. Both methods must treat every element alike, whatever its place in
// the slice; see the package comment.
type Rule interface {
	// Combine makes one direction of gs, which has at least one gradient and is
	// sorted by worker. params is of the given version and must not be written
	// to. The vectors of gs may be overwritten; the result is one of them.
	Combine(params []float32, version int64, gs []Gradient) []float32

	// Step moves params along dir. samples is how many samples were applied
	// before this update. norm is the Euclidean norm of the direction over all
	// shards, or negative if the firing did not ask for it.
	Step(params, dir []float32, samples int64, norm float64)
}

// Fused is a Rule that can do both in one pass, if the norm is not requested in
// between.
type Fused interface {
	Rule

	// Update writes to next what Combine and Step with a negative norm would
	// make of params. next is params, or a vector with any contents. The
	// vectors of gs may be overwritten.
	Update(next, params []float32, version int64, gs []Gradient, samples int64)
}

// Strider is a Rule that can apply the results of workers' local steps.
type Strider interface {
	Rule

	// Strides reports whether it can: not with every optimiser, nor with clipping.
	Strides() bool

	// Stride moves params by gs. Each is what a [Solo] with a Gain hands over after that many
	// steps. The rule's state becomes that of these steps. The vectors of gs may be overwritten.
	Stride(params []float32, gs []Gradient, steps int, samples int64)
}

// Settler is a Fused rule that can postpone what only the next update needs. The shard does that
// work while parameters are on their way, so that no worker waits for it.
type Settler interface {
	Fused

	// Ahead is Update without the postponed work. If it returns false, nothing is done and Update
	// must follow. If true, Settle must be called before any other method, with the same gs and
	// unchanged vectors.
	Ahead(next, params []float32, version int64, gs []Gradient, samples int64) bool

	// Settle does what Ahead has postponed.
	Settle(gs []Gradient)
}

// Measurer is a Rule that can measure a direction while it makes it.
type Measurer interface {
	Rule

	// Measure turns measuring on or off for every later Combine and Update.
	Measure(on bool)

	// Sum2 returns the sum of squares of the last direction, before clipping. Its last bits depend
	// on Threads.
	Sum2() float64
}

// Witness is a Rule that must know which parameters each worker computes on.
type Witness interface {
	Rule

	// Sent reports that w is sent params, the shard's: valid until it returns.
	Sent(w star.Worker, params []float32)
}

// Personal is a Rule under which workers have their own models.
type Personal interface {
	Witness

	// Model returns what w is sent instead of the parameters after an update with its gradient,
	// valid until the next one; nil: the parameters. Sent is not called for it.
	Model(w star.Worker) []float32
}

// Salvager is a Rule that uses gradients that firings drop.
type Salvager interface {
	Rule

	// Late is called with each one that is stored here, in order of the firing. version is that of
	// the parameters. The vector is valid until it returns.
	Late(version int64, g Gradient)
}

// Scorer is a Rule with directions that are judged before they are applied, in firings with
// NormFirst: once for the whole job, from the scores of all shards. Apply brings the verdict.
type Scorer interface {
	Rule

	// Score returns the product of dir and the reference gradient, and the squares of the
	// reference, valid until the next call.
	Score(dir []float32) (dot float64, ref *exactsum.Squares)
}

// Stateful is a Rule with more state than its optimiser's. n is the length of the shard.
type Stateful interface {
	Rule

	// Slots returns the state, for a shard that moves: always the same slots in the same order,
	// each n long. The vectors may be the rule's own.
	Slots(n int) []Slot

	// Lasting returns those that a checkpoint keeps.
	Lasting(n int) []Slot

	// SetSlots copies what Slots or Lasting returned into the rule.
	SetSlots([]Slot) error
}

// Optimizer moves params along grad at learning rate lr. Both have the length
// that it was made for.
type Optimizer interface {
	Step(params, grad []float32, lr float64)
}

// RangeOptimizer is an Optimizer with a step that can be made in parts, by several
// goroutines at once: Begin, then StepRange for every range once. grad and params
// begin at element from.
type RangeOptimizer interface {
	Optimizer
	Begin()
	StepRange(params, grad []float32, from int, lr float64)
}

// WholeOptimizer is an Optimizer that may need whole tensors: if Whole, a step is made by Begin, then StepPart for
// each of Parts, by several goroutines at once. share is the sum of the weights of the update's gradients: 1 for a
// round of all workers. An optimiser with steps of a length of their own makes them as much shorter.
type WholeOptimizer interface {
	Optimizer
	Whole() bool
	Begin()
	Parts() int
	StepPart(i int, params, grad []float32, lr, share float64)
}

// StrideOptimizer is an Optimizer that can continue from what workers' optimisers of the same
// settings have done, given the mean movement of a step.
type StrideOptimizer interface {
	Optimizer
	Strides() bool
	Stride(params, mean []float32, steps int, lr float64)
}

// Schedule is the learning rate after a number of samples. Its clock is samples, not updates, so a
// change of mode does not change the schedule.
type Schedule interface {
	At(samples int64) float64
}

// Constant is a Schedule that never changes.
type Constant float64

// At returns c.
func (c Constant) At(int64) float64 { return float64(c) }

// Descent is the usual Rule: the weighted sum of the gradients, clipped by its global norm, goes to
// an optimiser. Long vectors are divided among goroutines. A RangeOptimizer works on a part of the
// sum while it is in the cache.
type Descent struct {
	Optimizer Optimizer
	Schedule  Schedule

	// Clip is the largest norm of the weighted sum. A longer one is scaled down to it. Zero: no
	// clipping. It applies to firings with NormFirst.
	Clip float64

	// Unit is by what a [Solo] divides a distance that is for Outward: the learning rate without its
	// schedule, times the optimiser's Gain. So distances have the unit of gradients. 0: 1.
	Unit float64

	// Threads is among how many goroutines a long vector is divided. Zero means 4, or the number of
	// processors if that is less.
	Threads int

	// outer is the state of outer steps; nil: the last update was of gradients, or of the mean.
	outer *outerState

	// share is the sum of the weights of the direction in hand, if it is weighed; otherwise that is 1.
	share   float64
	weighed bool

	// The pass in hand and its goroutines. They are fields so that a pass allocates nothing.
	pass pass
	one  [1]Gradient
	// part is how many elements a goroutine handles; parts has all goroutines except the caller's.
	part  int
	parts []func()
	wg    sync.WaitGroup

	// scratch is a part of the sum for each goroutine.
	scratch [][]float32
	sums    []squareSum // one for each goroutine
	measure bool
}

// squareSum is a sum of squares on its own cache line.
type squareSum struct {
	of float64
	_  [7]float64
}

// Measure implements [Measurer].
func (d *Descent) Measure(on bool) { d.measure = on }

// Sum2 implements [Measurer].
func (d *Descent) Sum2() float64 {
	total := 0.0
	for i := range d.sums {
		total += d.sums[i].of
	}
	return total
}

const (
	// stretch is how many elements are summed and stepped at a time: 16 KiB, which stay in the
	// first-level cache.
	stretch = 4096

	// enough elements justify a goroutine: about 20 µs of work.
	enough = 128 << 10

	// enoughWhole is enough for a WholeOptimizer: Muon needs 65 ns for an element of a matrix with 64 rows.
	enoughWhole = 16 << 10
)

// pass is one pass over the vectors of a firing.
type pass struct {
	gs []Gradient
	// next is nil if the pass only sums.
	next, params []float32
	optimizer    RangeOptimizer // with next
	lr           float64
	// made: gs is a direction that an earlier pass has made.
	made bool
	// own is nil if the sum is the direction.
	own *WorkerMomentum
}

// over runs p over elements [from, to). A sum that is not needed later is made in scratch, so it is
// never written to memory. If sum2 is not nil, it adds the squares of the sum to it.
func (p *pass) over(from, to int, scratch []float32, sum2 *squareSum) {
	for at := from; at < to; at += stretch {
		end := min(at+stretch, to)
		sum := p.gs[0].Vec[at:end]
		if p.next != nil && (len(p.gs) > 1 || p.gs[0].Weight != 1 || p.own != nil) {
			sum = scratch[:copy(scratch, sum)]
		}
		kernel.Scale(p.gs[0].Weight, sum)
		for _, g := range p.gs[1:] {
			kernel.Axpy(g.Weight, g.Vec[at:end], sum)
		}
		if sum2 != nil {
			sum2.of += kernel.SumSq(sum)
		}
		if p.next == nil {
			continue
		}
		if p.own != nil {
			p.own.accelerate(sum, p.params[at:end], p.gs, at)
		}
		if &p.next[0] != &p.params[0] {
			copy(p.next[at:end], p.params[at:end])
		}
		p.optimizer.StepRange(p.next[at:end], sum, at, p.lr)
	}
}

// run runs d.pass over all elements, in as many goroutines as are worth it.
func (d *Descent) run() {
	n := len(d.pass.gs[0].Vec)
	threads := max(1, min(d.threads(), n/enough))
	for i := len(d.parts); i < threads-1; i++ {
		d.parts = append(d.parts, func() {
			defer d.wg.Done()
			n := len(d.pass.gs[0].Vec)
			d.pass.over(min((i+1)*d.part, n), min((i+2)*d.part, n), d.scratch[i+1], d.sum(i+1))
		})
	}
	for len(d.scratch) < threads {
		d.scratch = append(d.scratch, make([]float32, stretch))
		d.sums = append(d.sums, squareSum{})
	}
	if d.measuring() {
		clear(d.sums)
	}
	// Whole stretches, a little more than a share.
	d.part = (n/threads + stretch) / stretch * stretch
	d.wg.Add(threads - 1)
	for _, f := range d.parts[:threads-1] {
		go f()
	}
	d.pass.over(0, min(d.part, n), d.scratch[0], d.sum(0))
	d.wg.Wait()
	d.pass = pass{}
}

// threads is Threads, or its default.
func (d *Descent) threads() int {
	if d.Threads == 0 {
		return min(4, runtime.GOMAXPROCS(0))
	}
	return d.Threads
}

// ranged returns the optimiser if it makes steps in ranges of elements.
func (d *Descent) ranged() (RangeOptimizer, bool) {
	if o, ok := d.Optimizer.(WholeOptimizer); ok && o.Whole() {
		return nil, false
	}
	o, ok := d.Optimizer.(RangeOptimizer)
	return o, ok
}

// stepWhole makes a step of o with a direction of that share.
func (d *Descent) stepWhole(o WholeOptimizer, params, dir []float32, lr, share float64) {
	o.Begin()
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < o.Parts(); i = int(next.Add(1)) - 1 {
			o.StepPart(i, params, dir, lr, share)
		}
	}
	for range max(1, min(d.threads(), o.Parts(), len(params)/enoughWhole)) - 1 {
		d.wg.Go(work)
	}
	work()
	d.wg.Wait()
}

// measuring reports whether the pass in hand makes a direction to be measured. The Step of a
// direction that was made before does not.
func (d *Descent) measuring() bool { return d.measure && !d.pass.made }

// sum returns where goroutine i adds its squares; nil if nothing is measured.
func (d *Descent) sum(i int) *squareSum {
	if !d.measuring() {
		return nil
	}
	return &d.sums[i]
}

// Combine sums cᵢ·gᵢ in order of gs into the first vector.
func (d *Descent) Combine(_ []float32, _ int64, gs []Gradient) []float32 {
	d.Weigh(weights(gs))
	d.pass = pass{gs: gs}
	d.run()
	return gs[0].Vec
}

// Weigh says what the weights of the next direction's gradients add up to, if not Combine made it.
func (d *Descent) Weigh(sum float64) {
	if d.share = sum; math.Abs(sum-1) < rounded { // weights are float32
		d.share = 1
	}
	d.weighed = true
}

// Update implements [Fused].
func (d *Descent) Update(next, params []float32, version int64, gs []Gradient, samples int64) {
	if o, ok := d.ranged(); ok {
		o.Begin()
		d.pass = pass{gs: gs, next: next, params: params, optimizer: o, lr: d.Schedule.At(samples)}
		d.run()
		return
	}
	dir := d.Combine(params, version, gs)
	if &next[0] != &params[0] {
		copy(next, params)
	}
	d.Step(next, dir, samples, -1)
}

// Strides implements [Strider].
func (d *Descent) Strides() bool {
	o, ok := d.Optimizer.(StrideOptimizer)
	return ok && o.Strides() && d.Clip == 0
}

// Stride implements [Strider].
func (d *Descent) Stride(params []float32, gs []Gradient, steps int, samples int64) {
	d.Optimizer.(StrideOptimizer).Stride(params, d.Combine(params, 0, gs), steps, d.Schedule.At(samples))
}

// Step clips, then calls the optimiser.
func (d *Descent) Step(params, dir []float32, samples int64, norm float64) {
	weight := d.clip(norm)
	lr := d.Schedule.At(samples)
	o, ok := d.ranged()
	if !ok {
		kernel.Scale(weight, dir)
		if o, ok := d.Optimizer.(WholeOptimizer); ok && o.Whole() {
			share := d.share
			if !d.weighed {
				share = 1
			}
			d.weighed = false
			d.stepWhole(o, params, dir, lr, share)
			return
		}
		d.Optimizer.Step(params, dir, lr)
		return
	}
	o.Begin()
	d.one[0] = Gradient{Weight: weight, Vec: dir} // a sum of one
	d.pass = pass{gs: d.one[:], next: params, params: params, optimizer: o, lr: lr, made: true}
	d.run()
	d.one[0] = Gradient{}
}

// clip returns the factor for a direction of that norm.
//
// Pascanu, Mikolov, Bengio: On the difficulty of training recurrent neural networks. ICML 2013,
// algorithm 1. A norm that is not finite changes nothing: it would turn the whole direction into
// NaN and hide which element was bad.
func (d *Descent) clip(norm float64) float32 {
	if d.Clip > 0 && norm > d.Clip && !math.IsInf(norm, 1) {
		return float32(d.Clip / norm)
	}
	return 1
}

// State is what a rule keeps from update to update.
type State struct {
	Name  string
	Steps int64
	Slots []Slot
}

// Slot is one vector of a State, as long as the shard.
type Slot struct {
	Name string
	Data []float32
}

// Inner returns the descent inside r; or nil.
func Inner(r Rule) *Descent {
	if around, ok := r.(interface{ inner() *Descent }); ok {
		return around.inner()
	}
	return nil
}

func (d *Descent) inner() *Descent { return d }

// Spec is a rule as a baseline requests it: its settings, before there is a shard.
type Spec interface {
	// Make makes the rule of a shard of n elements in a job with a number of workers. then is the
	// rule that follows it.
	Make(then *Descent, workers, n int) Rule
}
