package rule

import (
	"fmt"
	"math"

	"star"
)

// DelayCompensated is DC-ASGD. Before gradients are used, they are corrected for how far the
// parameters have moved since the worker read them,
//
//	g ← g + λ·g⊙g⊙(w − w_bak(m))
//
// element by element, with w_bak(m) the parameters that worker m was sent last. The second term
// comes from a Taylor expansion of the gradient at w, with the diagonal of g·gᵀ instead of the
// Hessian. With Adaptive, λ differs by element:
//
//	λ = Lambda/√(MS + 1e-7)        MS ← Decay·MS + (1 − Decay)·g⊙g
//
// The corrected gradient goes to Then, which applies weights, clipping and the optimiser. So
// momentum acts on the corrected gradient; the paper has no momentum. g is the mean over the
// worker's mini-batch, so λ does not depend on the weight of a gradient in an update.
//
// S. Zheng et al.: Asynchronous Stochastic Gradient Descent with Delay Compensation. ICML 2017,
// equations 10 and 14. The implementation in MXNet keeps one copy for all workers. This is the
// paper's, with one for each: it costs a vector of the shard's length per worker, and one more with
// Adaptive.
type DelayCompensated struct {
	Then     *Descent
	Lambda   float64
	Adaptive bool
	// Of MS, in [0, 1].
	Decay float64

	// sent is by worker: the parameters that it computes on; nil: it was sent none yet.
	sent [][]float32
	// ms is nil before the first gradient.
	ms []float32
}

// floor keeps the adaptive λ finite for a parameter without gradient.
const floor = 1e-7 // DC-ASGD, section 5

// NewDelayCompensated makes the rule of a shard of n elements for a number of workers.
func NewDelayCompensated(then *Descent, workers, n int, lambda, decay float64, adaptive bool) *DelayCompensated {
	d := &DelayCompensated{Then: then, Lambda: lambda, Adaptive: adaptive, Decay: decay, sent: make([][]float32, workers)}
	if adaptive {
		d.ms = make([]float32, n)
	}
	return d
}

// Sent implements [Witness].
func (d *DelayCompensated) Sent(w star.Worker, params []float32) {
	if w < 0 || int(w) >= len(d.sent) {
		return
	}
	if d.sent[w] == nil {
		d.sent[w] = make([]float32, len(params))
	}
	copy(d.sent[w], params)
}

// correct changes the gradients of gs in place, in order.
func (d *DelayCompensated) correct(params []float32, gs []Gradient) {
	for _, g := range gs {
		var back []float32
		if w := int(g.Worker); w >= 0 && w < len(d.sent) {
			back = d.sent[w]
		}
		if d.Adaptive {
			d.average(g.Vec)
		}
		if back == nil {
			continue
		}
		lambda := float32(d.Lambda)
		for i, x := range g.Vec {
			if d.Adaptive {
				lambda = float32(d.Lambda / math.Sqrt(float64(d.ms[i])+floor))
			}
			// Each product is rounded by itself, so that every processor computes the same bits.
			square := float32(x * x)
			step := float32(square * (params[i] - back[i]))
			g.Vec[i] = x + float32(lambda*step)
		}
	}
}

// average updates MS.
func (d *DelayCompensated) average(g []float32) {
	keep, take := float32(d.Decay), float32(1-d.Decay)
	for i, x := range g {
		d.ms[i] = float32(keep*d.ms[i]) + float32(take*float32(x*x))
	}
}

// Combine implements [Rule].
func (d *DelayCompensated) Combine(params []float32, version int64, gs []Gradient) []float32 {
	d.correct(params, gs)
	return d.Then.Combine(params, version, gs)
}

// Step implements [Rule].
func (d *DelayCompensated) Step(params, dir []float32, samples int64, norm float64) {
	d.Then.Step(params, dir, samples, norm)
}

// Update implements [Fused].
func (d *DelayCompensated) Update(next, params []float32, version int64, gs []Gradient, samples int64) {
	d.correct(params, gs)
	d.Then.Update(next, params, version, gs, samples)
}

// Measure implements [Measurer].
func (d *DelayCompensated) Measure(on bool) { d.Then.Measure(on) }

// Sum2 implements [Measurer].
func (d *DelayCompensated) Sum2() float64 { return d.Then.Sum2() }

// Slots implements [Stateful]. The slot of a worker that was sent nothing has NaN.
func (d *DelayCompensated) Slots(n int) []Slot {
	var out []Slot
	for w, v := range d.sent {
		if v == nil {
			v = make([]float32, n)
			v[0] = float32(math.NaN())
		}
		out = append(out, Slot{Name: fmt.Sprintf("dc-asgd.sent.%d", w), Data: v})
	}
	return append(out, d.Lasting(n)...)
}

// SetSlots implements [Stateful].
func (d *DelayCompensated) SetSlots(slots []Slot) error {
	for _, s := range slots {
		var w int
		switch _, err := fmt.Sscanf(s.Name, "dc-asgd.sent.%d", &w); {
		case err == nil && w >= 0 && w < len(d.sent):
			if d.sent[w] = nil; s.Data[0] == s.Data[0] {
				d.Sent(star.Worker(w), s.Data)
			}
		case s.Name == "dc-asgd.ms" && len(s.Data) == len(d.ms):
			copy(d.ms, s.Data)
		default:
			return fmt.Errorf("ps: %q of %d elements is not a state vector of dc-asgd with %d workers; give every star-ps the same --baseline", s.Name, len(s.Data), len(d.sent))
		}
	}
	return nil
}

// Lasting implements [Stateful]: what workers were sent is useless after a restart of the job.
func (d *DelayCompensated) Lasting(int) []Slot {
	if !d.Adaptive {
		return nil
	}
	return []Slot{{Name: "dc-asgd.ms", Data: d.ms}}
}

func (r *DelayCompensated) inner() *Descent { return r.Then }

// DelaySpec has the settings of a [DelayCompensated].
type DelaySpec struct {
	Lambda, Decay float64
	Adaptive      bool
}

// Make implements [Spec].
func (s DelaySpec) Make(then *Descent, workers, n int) Rule {
	return NewDelayCompensated(then, workers, n, s.Lambda, s.Decay, s.Adaptive)
}
