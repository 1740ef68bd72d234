package rule

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"star"
	"star/internal/kernel"
	"star/internal/outer"
)

// Outer is the rule of outer steps, which update the parameters of a job in which workers make local steps.
type Outer = outer.Rule

// The kinds of outer steps.
const (
	OuterMean      = outer.Mean
	OuterNesterov  = outer.Nesterov
	OuterDelayed   = outer.Delayed
	OuterLookahead = outer.Lookahead
)

// ParseOuter reads a rule as a plan names it, such as nesterov(0.9,0.7).
func ParseOuter(s string) (Outer, error) { return outer.Parse(s) }

// outerState is the state of the outer steps of a shard.
type outerState struct {
	of Outer

	// v; nil without momentum. Of Delayed also Δ, and S.
	velocity, sum []float32
	share         float64

	// models is what workers are sent instead of the parameters, by worker; nil: the parameters. memory is what
	// they are made in.
	models, memory [][]float32
}

func newOuterState(o Outer, n int) *outerState {
	s := &outerState{of: o}
	if o.Momentum > 0 {
		s.velocity = make([]float32, n)
		if o.Kind == OuterDelayed {
			s.sum = make([]float32, n)
		}
	}
	return s
}

// rounded is the tolerance of a sum of shares that is 1: weights are float32.
const rounded = 1e-6

// Outward makes the outer step o of params, which are of the given version. Each of gs is the distance that a
// [Solo] with d's Unit hands over, or a gradient, which counts as the distance of a plain step at the rate
// of the Unit. Weights are the a_k. The state begins with the first outer step, and again with
// another rule. The vectors of gs may be overwritten.
//
// Gradients of parts of the vector (Gradient.Of) move only these, with their part of the velocity: each element makes
// an outer step of those of gs that have it. Only with Nesterov.
func (d *Descent) Outward(params []float32, version int64, gs []Gradient, o Outer) {
	if d.outer == nil || d.outer.of != o {
		d.outer = newOuterState(o, len(params))
	}
	if !slices.ContainsFunc(gs, func(g Gradient) bool { return g.Of.Parts > 0 }) {
		d.outward(params, d.outer.velocity, version, gs, o)
		return
	}
	n := len(params)
	ends := []int{0, n}
	for _, g := range gs {
		from, to := g.Of.Range(n)
		ends = append(ends, from, to)
	}
	slices.Sort(ends)
	for i, to := range ends[1:] {
		from, some := ends[i], []Gradient(nil)
		for _, g := range gs {
			if a, b := g.Of.Range(n); a <= from && to <= b {
				g.Vec = g.Vec[from:to]
				some = append(some, g)
			}
		}
		if from == to || len(some) == 0 {
			continue
		}
		var v []float32
		if d.outer.velocity != nil {
			v = d.outer.velocity[from:to]
		}
		d.outward(params[from:to], v, version, some, o)
	}
}

// outward makes the outer step of elements with that velocity.
func (d *Descent) outward(params, velocity []float32, version int64, gs []Gradient, o Outer) {
	s, share := d.outer, weights(gs)
	g := d.Combine(params, version, gs)
	kernel.Scale(float32(d.unit()), g)
	eta, mu := float32(o.Rate), float32(o.Momentum)
	switch {
	case velocity == nil:
		kernel.Axpy(-eta, g, params)
	case s.sum == nil:
		kernel.Momentum(params, g, velocity, eta, mu, 0, 0, true)
	default:
		kernel.Axpy(1, g, s.sum)
		kernel.Axpy(-eta, g, params)
		// As float32, which a slot keeps: copies of a shard must agree on when a round is whole.
		if s.share = float64(float32(s.share + share)); s.share < 1-rounded {
			break
		}
		kernel.Fade(s.velocity, s.sum, mu)
		kernel.Axpy(-eta*mu, s.velocity, params)
		clear(s.sum)
		s.share = 0
	}
	if o.Kind == OuterLookahead {
		s.foresee(params, version, gs)
	}
}

// foresee makes what the workers of an update are sent.
func (s *outerState) foresee(params []float32, version int64, gs []Gradient) {
	clear(s.models)
	for _, g := range gs {
		late := version - g.Basis
		if late <= 0 || s.velocity == nil {
			continue
		}
		for int(g.Worker) >= len(s.models) {
			s.models, s.memory = append(s.models, nil), append(s.memory, nil)
		}
		mu := s.of.Momentum
		ahead := s.of.Rate * mu * mu * (1 - math.Pow(mu, float64(late))) / (1 - mu)
		m := append(s.memory[g.Worker][:0], params...)
		kernel.Axpy(float32(-ahead), s.velocity, m)
		s.models[g.Worker], s.memory[g.Worker] = m, m
	}
}

// OuterModel returns what w is sent instead of the parameters after an outer step with its distance, valid
// until the next update; nil: the parameters.
func (d *Descent) OuterModel(w star.Worker) []float32 {
	if d.outer == nil || int(w) >= len(d.outer.models) {
		return nil
	}
	return d.outer.models[w]
}

// Inward says that an update of gradients was made, which ends a series of outer steps: their state is
// dropped.
func (d *Descent) Inward() { d.outer = nil }

// OuterRule is the rule of the last outer step, as text; empty: there is no state of outer steps.
func (d *Descent) OuterRule() string {
	if d.outer == nil || d.outer.velocity == nil {
		return ""
	}
	return d.outer.of.String()
}

// unit is Unit, or 1.
func (d *Descent) unit() float64 {
	if d.Unit == 0 {
		return 1
	}
	return d.Unit
}

// Names of the slots of outer steps: what, then the rule that they are of.
const (
	outerVelocity = "outer.velocity "
	outerSum      = "outer.sum "
	outerShare    = "outer.share " // S, in the first element
)

// OuterSlot reports whether a slot is of outer steps, with their rule. An error: the name is not valid.
func OuterSlot(name string) (o Outer, ok bool, err error) {
	for _, prefix := range []string{outerVelocity, outerSum, outerShare} {
		if rule, ok := strings.CutPrefix(name, prefix); ok {
			if o, err = ParseOuter(rule); err != nil {
				err = fmt.Errorf("ps: the state vector %.80q: %w", name, err)
			}
			return o, true, err
		}
	}
	return o, false, nil
}

// OuterSlots returns the state of outer steps, of n elements each: for checkpoints, and for a shard that
// moves or is copied. None if the last update was of gradients. The vectors may be the rule's own.
func (d *Descent) OuterSlots(n int) (slots []Slot) {
	s := d.outer
	if s == nil || s.velocity == nil {
		return nil
	}
	slots = OuterSlots(s.of, n)
	slots[0].Data = s.velocity
	if s.sum != nil {
		slots[1].Data = s.sum
		slots[2].Data[0] = float32(s.share)
	}
	return slots
}

// OuterSlots returns the state of outer steps of n elements as it begins.
func OuterSlots(o Outer, n int) (slots []Slot) {
	if o.Momentum == 0 {
		return nil
	}
	prefixes := []string{outerVelocity}
	if o.Kind == OuterDelayed {
		prefixes = append(prefixes, outerSum, outerShare)
	}
	for _, p := range prefixes {
		slots = append(slots, Slot{p + o.String(), make([]float32, n)})
	}
	return slots
}

// SetOuterSlots copies what OuterSlots returned into the rule. Without slots the outer steps begin again.
func (d *Descent) SetOuterSlots(slots []Slot) error {
	if d.outer = nil; len(slots) == 0 {
		return nil
	}
	o, ok, err := OuterSlot(slots[0].Name)
	if err != nil {
		return err
	}
	n := len(slots[0].Data)
	s := newOuterState(o, n)
	same := func(a, b Slot) bool { return a.Name == b.Name && len(a.Data) == len(b.Data) }
	if !ok || s.velocity == nil || n == 0 || !slices.EqualFunc(slots, OuterSlots(o, n), same) {
		return fmt.Errorf("ps: %d vectors, the first %.80q, are not the state of outer steps", len(slots), slots[0].Name)
	}
	copy(s.velocity, slots[0].Data)
	if s.sum != nil {
		copy(s.sum, slots[1].Data)
		s.share = float64(slots[2].Data[0])
	}
	d.outer = s
	return nil
}
