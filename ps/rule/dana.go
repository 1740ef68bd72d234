package rule

import (
	"fmt"
	"slices"

	"star/internal/kernel"
)

// WorkerMomentum is Nesterov's momentum with a velocity for each worker: DANA. An update of the gradients gᵢ with
// weights cᵢ makes
//
//	vᵢ ← μ·vᵢ + gᵢ + λ·w           for each worker i of the update
//	w  ← w − η·Σ cᵢ·(gᵢ + λ·w + μ·vᵢ)
//
// with λ the weight decay. A velocity decays with its own worker's gradients, once in a round of
// all workers in every mode. The velocity of [optim.Momentum] decays with every update, in ASGD N
// times as fast. While a worker computes, the velocities of other workers do not move the
// parameters: each acts when its own worker's next gradient comes. In SSGD Σ cᵢ·vᵢ is the velocity
// of [optim.Nesterov], and the update is the same up to rounding.
//
// If the norm is not requested before an update, a shard sends its parameters first and updates
// velocities while they are on their way ([Settler]). So workers wait for one more vector to be
// read for each gradient, but not for one to be written.
//
// In an update of a whole round, with weights that sum to 1 or more, only Σ cᵢ·vᵢ counts, so
// workers share one velocity. A shard that makes only such updates holds one vector and takes as
// long as with [optim.Nesterov], with the same bits. A worker with a gradient in an update of less
// than a round begins with a copy of the shared velocity. In both cases the velocities move the
// parameters by η·μ/(1−μ)·Σ cᵢ·vᵢ in total.
//
// Gradients arrive as they were computed. Codecs and measurements (noise, poison, the clipped norm)
// do not depend on velocities. Clipping scales each gᵢ before it enters its velocity, as in SSGD. A
// gradient that is dropped or rejected by a judge changes no velocity. In a tree the report is the
// root's gradient.
//
// I. Hakimi, S. Barkai, M. Gabel, A. Schuster: Taming Momentum in a Distributed Asynchronous
// Environment. arXiv 1907.11612, 2019, algorithm 6 (DANA-Slim). Here the parameter server has the
// velocities: it holds one more vector of its length for each worker, and workers do not depend on
// the rule. Their sum has weights 1 where ours has cᵢ.
//
// [optim.Momentum]: https://pkg.go.dev/star/train/optim
type WorkerMomentum struct {
	// Then makes plain steps; it clips.
	Then *Descent
	// μ, 0 ≤ μ < 1.
	Momentum float64
	Decay    float64 // λ

	// Apart says that weights do not give an update's share of a round: velocities are never
	// shared.
	Apart bool

	// velocity is by worker; nil: the worker uses common.
	velocity [][]float32
	// common is the shared velocity; nil: zero.
	common []float32
	united united
	// ahead: the update in hand leaves velocities to Settle.
	ahead bool
	// hand has the gradients of a direction that Combine has made, until Step; their Vec is in
	// fresh.
	hand  []Gradient
	fresh [][]float32
}

// NewWorkerMomentum makes the rule for a number of workers.
func NewWorkerMomentum(then *Descent, workers int, momentum, decay float64) *WorkerMomentum {
	return &WorkerMomentum{Then: then, Momentum: momentum, Decay: decay, velocity: make([][]float32, workers)}
}

// begin gives the workers of gs their own velocities of n elements.
func (r *WorkerMomentum) begin(gs []Gradient, n int) {
	for _, g := range gs {
		for int(g.Worker) >= len(r.velocity) {
			r.velocity = append(r.velocity, nil)
		}
		if r.velocity[g.Worker] == nil {
			r.velocity[g.Worker] = make([]float32, n)
			copy(r.velocity[g.Worker], r.common)
		}
	}
}

// whole reports whether an update has the samples of a whole round or more.
func (r *WorkerMomentum) whole(gs []Gradient) bool { return !r.Apart && weights(gs) > 1-1e-6 }

// weights returns the sum of the weights of gs.
func weights(gs []Gradient) (sum float64) {
	for _, g := range gs {
		sum += float64(g.Weight)
	}
	return sum
}

// unite replaces the velocities, of n elements, of all workers of an update by their mean.
func (r *WorkerMomentum) unite(gs []Gradient, n int) {
	if r.owned() {
		r.begin(gs, n)
		all, mean := weights(gs), make([]float32, n)
		for _, g := range gs {
			kernel.Axpy(float32(float64(g.Weight)/all), r.velocity[g.Worker], mean)
		}
		clear(r.velocity)
		r.common = mean
	}
	if r.common == nil {
		r.common = make([]float32, n)
	}
}

// owned reports whether any worker has a velocity of its own.
func (r *WorkerMomentum) owned() bool {
	return slices.ContainsFunc(r.velocity, func(v []float32) bool { return v != nil })
}

// united is the optimiser of whole rounds: Nesterov's momentum.
type united struct {
	rule *WorkerMomentum
	// of is the optimiser of all other updates.
	of Optimizer
}

// Begin implements [RangeOptimizer].
func (u *united) Begin() {
	if o, ok := u.of.(RangeOptimizer); ok {
		o.Begin()
	}
}

// Step implements [Optimizer].
func (u *united) Step(params, grad []float32, lr float64) {
	u.Begin()
	u.StepRange(params, grad, 0, lr)
}

// StepRange implements [RangeOptimizer].
func (u *united) StepRange(params, grad []float32, from int, lr float64) {
	r := u.rule
	kernel.Momentum(params, grad, r.common[from:from+len(params)], float32(lr), float32(r.Momentum), 0, float32(r.Decay), true)
}

// round calls update for gs, which are a whole round of n elements, with the shared velocity.
func (r *WorkerMomentum) round(gs []Gradient, n int, update func(*Descent)) {
	r.unite(gs, n)
	r.united = united{r, r.Then.Optimizer}
	r.Then.Optimizer = &r.united
	update(r.Then)
	r.Then.Optimizer = r.united.of
}

// Combine implements [Rule]. Velocities change in Step, when the norm is known.
func (r *WorkerMomentum) Combine(params []float32, version int64, gs []Gradient) []float32 {
	r.hand = append(r.hand[:0], gs...)
	for i := range r.hand {
		if r.whole(gs) {
			break
		}
		if i == len(r.fresh) {
			r.fresh = append(r.fresh, nil)
		}
		r.fresh[i] = append(r.fresh[i][:0], r.hand[i].Vec...)
		r.hand[i].Vec = r.fresh[i]
	}
	return r.Then.Combine(params, version, gs)
}

// Step implements [Rule].
func (r *WorkerMomentum) Step(params, dir []float32, samples int64, norm float64) {
	if r.whole(r.hand) {
		r.round(r.hand, len(dir), func(d *Descent) { d.Step(params, dir, samples, norm) })
		r.hand = r.hand[:0]
		return
	}
	r.begin(r.hand, len(dir))
	clip := r.Then.clip(norm)
	kernel.Scale(clip, dir)
	for at := 0; at < len(dir); at += stretch {
		end := min(at+stretch, len(dir))
		for i := range r.hand {
			kernel.Scale(clip, r.hand[i].Vec[at:end])
		}
		r.accelerate(dir[at:end], params[at:end], r.hand, at)
	}
	r.hand = r.hand[:0]
	r.Then.Step(params, dir, samples, -1)
}

// Update implements [Fused].
func (r *WorkerMomentum) Update(next, params []float32, version int64, gs []Gradient, samples int64) {
	if r.whole(gs) {
		r.round(gs, len(params), func(d *Descent) { d.Update(next, params, version, gs, samples) })
		return
	}
	o, ok := r.Then.Optimizer.(RangeOptimizer)
	if !ok {
		dir := r.Combine(params, version, gs)
		if &next[0] != &params[0] {
			copy(next, params)
		}
		r.Step(next, dir, samples, -1)
		return
	}
	r.begin(gs, len(params))
	o.Begin()
	r.Then.pass = pass{gs: gs, next: next, params: params, optimizer: o, lr: r.Then.Schedule.At(samples), own: r}
	r.Then.run()
}

// Strides implements [Strider].
func (r *WorkerMomentum) Strides() bool { return r.Then.Strides() }

// Stride implements [Strider]. After a whole round the velocities are the mean ones of the steps,
// shared; otherwise each worker's.
func (r *WorkerMomentum) Stride(params []float32, gs []Gradient, steps int, samples int64) {
	gain, whole := float32(1/(1-r.Momentum)), r.whole(gs)
	if !whole {
		r.begin(gs, len(params))
		for _, g := range gs {
			clear(r.velocity[g.Worker])
			kernel.Axpy(gain, g.Vec, r.velocity[g.Worker])
		}
	}
	r.Then.Stride(params, gs, steps, samples)
	// The first vector has the sum.
	if whole {
		clear(r.velocity)
		r.common = append(r.common[:0], gs[0].Vec...)
		kernel.Scale(gain, r.common)
	}
}

// Ahead implements [Settler].
func (r *WorkerMomentum) Ahead(next, params []float32, version int64, gs []Gradient, samples int64) bool {
	if _, ok := r.Then.Optimizer.(RangeOptimizer); !ok || repeated(gs) || r.whole(gs) {
		return false
	}
	r.ahead = true
	r.Update(next, params, version, gs, samples)
	r.ahead = false
	return true
}

// Settle implements [Settler]. Weight decay was added to the gradients by Ahead.
func (r *WorkerMomentum) Settle(gs []Gradient) {
	for _, g := range gs {
		kernel.Fade(r.velocity[g.Worker], g.Vec, float32(r.Momentum))
	}
}

// repeated reports whether a worker has several gradients in gs, which are sorted by worker. The
// second one then finds the velocity that the first has left.
func repeated(gs []Gradient) bool {
	for i := range gs[1:] {
		if gs[i].Worker == gs[i+1].Worker {
			return true
		}
	}
	return false
}

// accelerate turns elements from at on of sum, which is Σ cᵢ·gᵢ, into a direction and updates
// velocities. params and sum begin at that element, the vectors of gs at 0.
func (r *WorkerMomentum) accelerate(sum, params []float32, gs []Gradient, at int) {
	mu, decay, weights := float32(r.Momentum), float32(r.Decay), float32(0)
	for _, g := range gs {
		weights += g.Weight
	}
	if decay != 0 {
		kernel.Axpy(weights*decay, params, sum)
	}
	for _, g := range gs {
		if r.ahead {
			if decay != 0 {
				kernel.Axpy(decay, params, g.Vec[at:at+len(sum)])
			}
			kernel.Foresee(sum, g.Vec[at:at+len(sum)], r.velocity[g.Worker][at:at+len(sum)], mu, g.Weight*mu)
			continue
		}
		kernel.Accelerate(sum, g.Vec[at:at+len(sum)], params, r.velocity[g.Worker][at:at+len(sum)], mu, g.Weight*mu, decay)
	}
}

// Measure implements [Measurer].
func (r *WorkerMomentum) Measure(on bool) { r.Then.Measure(on) }

// Sum2 implements [Measurer]: of Σ cᵢ·gᵢ.
func (r *WorkerMomentum) Sum2() float64 { return r.Then.Sum2() }

// CommonVelocity is the name of the slot of the shared velocity, which is also that of
// [optim.Nesterov].
const CommonVelocity = "dana.velocity"

const velocitySlot = "dana.velocity.%d"

// Slots implements [Stateful]. If all velocities are equal, it returns one shared velocity.
func (r *WorkerMomentum) Slots(n int) []Slot {
	out := make([]Slot, len(r.velocity))
	for w, v := range r.velocity {
		if v == nil {
			v = r.common
		}
		if v == nil {
			v = make([]float32, n)
		}
		out[w] = Slot{Name: fmt.Sprintf(velocitySlot, w), Data: v}
	}
	return out
}

// Lasting implements [Stateful].
func (r *WorkerMomentum) Lasting(n int) []Slot {
	if r.common == nil || r.owned() {
		return r.Slots(n)
	}
	return []Slot{{Name: CommonVelocity, Data: r.common}}
}

// SetSlots implements [Stateful]. It ignores velocities of workers that the job no longer has.
func (r *WorkerMomentum) SetSlots(slots []Slot) error {
	one := len(slots) > 0 && !slices.ContainsFunc(slots, func(s Slot) bool { return !slices.Equal(s.Data, slots[0].Data) })
	for w, s := range slots {
		if name := fmt.Sprintf(velocitySlot, w); s.Name != name && (s.Name != CommonVelocity || len(slots) > 1) {
			return fmt.Errorf("ps: %q is not a state vector of the optimiser dana; give every star-ps the same --optimizer and --baseline", s.Name)
		}
	}
	clear(r.velocity)
	if r.common = nil; one {
		r.common = slices.Clone(slots[0].Data)
		return nil
	}
	for w := range min(len(r.velocity), len(slots)) {
		r.velocity[w] = slices.Clone(slots[w].Data)
	}
	return nil
}

func (r *WorkerMomentum) inner() *Descent { return r.Then }
