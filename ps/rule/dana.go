package rule

import (
	"fmt"
	"slices"

	"star/internal/kernel"
)

// WorkerMomentum is Nesterov's momentum with a velocity for each worker: DANA. An update of the gradients gᵢ with weights cᵢ makes
//
//	vᵢ ← μ·vᵢ + gᵢ + λ·w           for each worker i of the update
//	w  ← w − η·Σ cᵢ·(gᵢ + λ·w + μ·vᵢ)
//
// with λ the weight decay. A velocity fades with its own worker's gradients, so once in a round of all workers in whatever mode, where that of
// [optim.Momentum] fades with every update: N times as fast in ASGD. And a worker that computes is not carried away meanwhile by what the others remember: their velocities move the parameters when
// their own next gradients come. In SSGD Σ cᵢ·vᵢ is the velocity of [optim.Nesterov], and so is the update, but for roundings.
//
// Where no norm is asked for before an update, a shard sends its parameters off first and brings velocities up to date while they are on their way ([Settler]): workers wait for a vector more to be read for each gradient, not for one
// to be written.
//
// In an update of a whole round, whose weights come to 1 or more, only Σ cᵢ·vᵢ counts, so there workers have one velocity in common: a shard that makes such updates only holds one vector, and takes as long for them as with
// [optim.Nesterov], of the same bits. A worker whose gradient is in an update of less begins with a copy of it. What is remembered moves the parameters by η·μ/(1−μ)·Σ cᵢ·vᵢ in all, before and after.
//
// Gradients arrive as they were computed. What is measured of them (noise, poison, the norm that is clipped) and codecs know nothing of velocities. Clipping scales each gᵢ before it
// enters its velocity, as it does in SSGD. A gradient that is dropped, or refused by a judge, leaves no trace. In a tree the report is its top's gradient.
//
// I. Hakimi, S. Barkai, M. Gabel, A. Schuster: Taming Momentum in a Distributed Asynchronous Environment. arXiv 1907.11612, 2019, algorithm 6 (DANA-Slim), with the velocities at the
// parameter server: it holds a vector of its length more for each worker, and workers need know nothing of the rule. Their sum has weights 1 where ours has cᵢ.
//
// [optim.Momentum]: https://pkg.go.dev/star/train/optim
type WorkerMomentum struct {
	Then     *Descent // of plain steps; it clips
	Momentum float64  // μ, 0 ≤ μ < 1
	Decay    float64  // λ

	// Apart says that weights do not tell what part of a round an update is of: velocities are never in common.
	Apart bool

	velocity [][]float32 // by worker; nil: common
	common   []float32   // nil: zero
	united   united
	ahead    bool       // the update in hand leaves velocities to Settle
	hand     []Gradient // of a direction that Combine has made, until Step; Vec is in fresh
	fresh    [][]float32
}

// NewWorkerMomentum makes the rule for so many workers.
func NewWorkerMomentum(then *Descent, workers int, momentum, decay float64) *WorkerMomentum {
	return &WorkerMomentum{Then: then, Momentum: momentum, Decay: decay, velocity: make([][]float32, workers)}
}

// begin gives the workers of gs velocities of n elements.
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

// whole says whether an update is of a whole round of samples, or more.
func (r *WorkerMomentum) whole(gs []Gradient) bool { return !r.Apart && weights(gs) > 1-1e-6 }

// weights is what those of gs come to.
func weights(gs []Gradient) (sum float64) {
	for _, g := range gs {
		sum += float64(g.Weight)
	}
	return sum
}

// unite makes the velocities, of n elements, of all workers of an update one: their mean.
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

// owned says whether any worker has a velocity of its own.
func (r *WorkerMomentum) owned() bool {
	return slices.ContainsFunc(r.velocity, func(v []float32) bool { return v != nil })
}

// united is the optimiser of whole rounds: Nesterov's momentum.
type united struct {
	rule *WorkerMomentum
	of   Optimizer // of all other updates
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

// round has update make one of gs, which are a whole round, of n elements.
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

// Stride implements [Strider]: velocities are the mean ones of the steps, in common after a whole round, else each worker's.
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
	if whole { // the first vector is the sum of all
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

// Settle implements [Settler]: decay is in the gradients since Ahead.
func (r *WorkerMomentum) Settle(gs []Gradient) {
	for _, g := range gs {
		kernel.Fade(r.velocity[g.Worker], g.Vec, float32(r.Momentum))
	}
}

// repeated says whether a worker has several gradients in gs, which are sorted by worker: the second one finds the velocity that the first has left.
func repeated(gs []Gradient) bool {
	for i := range gs[1:] {
		if gs[i].Worker == gs[i+1].Worker {
			return true
		}
	}
	return false
}

// accelerate makes the elements from at on of Σ cᵢ·gᵢ, sum, a direction, and brings velocities up to date. params and sum begin there, the vectors of gs at 0.
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

// CommonVelocity is the slot of a velocity that all workers have in common. It is what [optim.Nesterov] remembers.
const CommonVelocity = "dana.velocity"

const velocitySlot = "dana.velocity.%d"

// Slots implements [Stateful]. Velocities that are all the same are one in common.
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

// SetSlots implements [Stateful]. What belongs to workers that the job has no more is left out.
func (r *WorkerMomentum) SetSlots(slots []Slot) error {
	one := len(slots) > 0 && !slices.ContainsFunc(slots, func(s Slot) bool { return !slices.Equal(s.Data, slots[0].Data) })
	for w, s := range slots {
		if name := fmt.Sprintf(velocitySlot, w); s.Name != name && (s.Name != CommonVelocity || len(slots) > 1) {
			return fmt.Errorf("ps: %q is no state of the optimiser dana: give every star-ps the same --optimizer and --baseline", s.Name)
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
