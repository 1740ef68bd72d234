package rule

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"star"
	"star/internal/kernel"
)

// OuterKind is the kind of an outer step: what a job makes of the distances that workers have moved by
// local steps.
type OuterKind string

const (
	// OuterMean moves the parameters by the mean distance, and leaves the job's optimiser in the state
	// of those steps ([Strider]). It is the zero value, and needs an optimiser of the SGD family.
	OuterMean OuterKind = ""

	// OuterNesterov is Nesterov's momentum on the distances: DiLoCo.
	OuterNesterov OuterKind = "nesterov"

	// OuterDelayed applies momentum once in a round of all workers, and between them plain steps:
	// delayed Nesterov.
	OuterDelayed OuterKind = "delayed"

	// OuterLookahead is OuterNesterov; workers that are late begin where momentum will have moved the
	// parameters when their distance arrives.
	OuterLookahead OuterKind = "lookahead"
)

// Outer is the rule of outer steps, which update the parameters of a job in which workers make local steps
// (modes.Plan.Local). Worker k begins with the parameters w and ends with w_k; its distance is
// d_k = w − w_k, and a_k its share of the samples of a round of all workers. The outer gradient is
// g = Σ a_k·d_k over the workers of an update, and v the outer velocity, 0 at first.
//
// Nesterov (A. Douillard et al.: DiLoCo, arXiv 2311.08105, 2023, algorithm 1, with PyTorch's SGD as
// outer optimiser):
//
//	v ← μ·v + g
//	w ← w − η·(μ·v + g)
//
// Delayed. If an update has the distances of a part of the workers only, v decays several times in a
// round, and distances that are late meet a velocity that the others have made since. With Δ the sum of
// g, and S of a_k, since v was last changed:
//
//	Δ ← Δ + g,  S ← S + Σ a_k
//	S ≥ 1:  v ← μ·v + Δ,  w ← w − η·(μ·v + g),  Δ ← 0,  S ← 0
//	else:   w ← w − η·g
//
// Each distance still moves the parameters by η/(1−μ) of itself in total, and in updates of whole rounds it
// is the rule above. (B. Liu et al.: Asynchronous Local-SGD Training for Language Modeling, arXiv
// 2401.09135, 2024, algorithm 3 with c = 0. There S counts arrivals up to N, each with g/N: a_k is
// their 1/N by samples.)
//
// Look-ahead. Without further distances k updates multiply v by μᵏ and move the parameters to
//
//	y = w − η·v·Σ_{j=1..k} μ^{j+1} = w − η·v·μ²·(1 − μᵏ)/(1 − μ)
//
// A worker with a distance that was k updates late is sent y instead of w, so that it is likely to measure
// its next distance from where it will be applied. With k = 0 that is w, and the rule is Nesterov's.
// (T. Ajanthan et al.: Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training, 2025.)
//
// The zero value is the mean. Outer values can be compared with ==.
type Outer struct {
	Kind OuterKind

	// Momentum is μ, 0 ≤ μ ≤ [MaxOuterMomentum].
	Momentum float64

	// Rate is η, 0 < η ≤ [MaxOuterRate]: 1 moves the parameters by the whole outer gradient.
	Rate float64
}

// Bounds of an Outer. Above this momentum a distance acts for more than ten thousand updates.
const (
	MaxOuterMomentum = 0.9999
	MaxOuterRate     = 100
)

// Published settings of DiLoCo, which Parse takes where none are given.
const (
	defaultOuterMomentum = 0.9
	defaultOuterRate     = 0.7
)

// OuterGrammar is the input of [ParseOuter], for help texts and errors.
const OuterGrammar = "mean | nesterov | delayed | lookahead, the last three with (MOMENTUM,RATE), by default (0.9,0.7)"

// ParseOuter reads mean, nesterov, nesterov(0.9,0.7), and likewise delayed and lookahead.
func ParseOuter(s string) (Outer, error) {
	if s == "mean" {
		return Outer{}, nil
	}
	name, numbers, given := strings.Cut(s, "(")
	o := Outer{OuterKind(name), defaultOuterMomentum, defaultOuterRate}
	if given {
		inner, ok := strings.CutSuffix(numbers, ")")
		momentum, rate, both := strings.Cut(inner, ",")
		var err, err2 error
		o.Momentum, err = strconv.ParseFloat(momentum, 64)
		o.Rate, err2 = strconv.ParseFloat(rate, 64)
		if !ok || !both || err != nil || err2 != nil {
			return Outer{}, fmt.Errorf("(%.40s is not (MOMENTUM,RATE), such as (0.9,0.7)", numbers)
		}
	}
	if o.Kind == OuterMean {
		return Outer{}, fmt.Errorf("%.40q is not a rule of outer steps; want %s", s, OuterGrammar)
	}
	return o, o.Validate()
}

// Validate reports whether o is a rule that shards can apply.
func (o Outer) Validate() error {
	switch {
	case o == Outer{}:
		return nil
	case o.Kind != OuterNesterov && o.Kind != OuterDelayed && o.Kind != OuterLookahead:
		return fmt.Errorf("%.40q is not a rule of outer steps; want %s", string(o.Kind), OuterGrammar)
	case !(o.Momentum >= 0 && o.Momentum <= MaxOuterMomentum):
		return fmt.Errorf("momentum %v is not in 0..%v", o.Momentum, MaxOuterMomentum)
	case !(o.Rate > 0 && o.Rate <= MaxOuterRate):
		return fmt.Errorf("rate %v is not above 0 and at most %v", o.Rate, MaxOuterRate)
	}
	return nil
}

// String is o in the grammar of [ParseOuter], which reads the same numbers back.
func (o Outer) String() string {
	if o.Kind == OuterMean {
		return "mean"
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return string(o.Kind) + "(" + number(o.Momentum) + "," + number(o.Rate) + ")"
}

// MarshalText is String: plans in JSON have it.
func (o Outer) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is [ParseOuter].
func (o *Outer) UnmarshalText(b []byte) (err error) {
	*o, err = ParseOuter(string(b))
	return err
}

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
func (d *Descent) Outward(params []float32, version int64, gs []Gradient, o Outer) {
	if d.outer == nil || d.outer.of != o {
		d.outer = newOuterState(o, len(params))
	}
	s, share := d.outer, weights(gs)
	g := d.Combine(params, version, gs)
	kernel.Scale(float32(d.unit()), g)
	eta, mu := float32(o.Rate), float32(o.Momentum)
	switch {
	case s.velocity == nil:
		kernel.Axpy(-eta, g, params)
	case s.sum == nil:
		kernel.Momentum(params, g, s.velocity, eta, mu, 0, 0, true)
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

// OuterSlot reports whether a slot is of outer steps, and of which rule. An error: the name is not valid.
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
	slots = s.of.Slots(n)
	slots[0].Data = s.velocity
	if s.sum != nil {
		slots[1].Data = s.sum
		slots[2].Data[0] = float32(s.share)
	}
	return slots
}

// Slots returns the state of outer steps of n elements as it begins.
func (o Outer) Slots(n int) (slots []Slot) {
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
	if !ok || s.velocity == nil || n == 0 || !slices.EqualFunc(slots, o.Slots(n), same) {
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
