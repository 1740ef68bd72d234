// Package outer is the rule of outer steps as a value: its text, its bounds. Plans (star/modes) name it and shards
// (star/ps/rule) apply it, and neither imports the other. It is pure.
package outer

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind is the kind of an outer step: what a job makes of the distances that workers have moved by
// local steps.
type Kind string

const (
	// Mean moves the parameters by the mean distance, and leaves the job's optimiser in the state
	// of those steps (rule.Strider). It is the zero value, and needs an optimiser of the SGD family.
	Mean Kind = ""

	// Nesterov is Nesterov's momentum on the distances: DiLoCo.
	Nesterov Kind = "nesterov"

	// Delayed applies momentum once in a round of all workers, and between them plain steps:
	// delayed Nesterov.
	Delayed Kind = "delayed"

	// Lookahead is Nesterov; workers that are late begin where momentum will have moved the
	// parameters when their distance arrives.
	Lookahead Kind = "lookahead"
)

// Rule is the rule of outer steps, which update the parameters of a job in which workers make local steps
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
// (T. Ajanthan et al.: Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training. MCDC workshop at
// ICLR 2025.)
//
// The zero value is the mean. Rules can be compared with ==.
type Rule struct {
	Kind Kind

	// Momentum is μ, 0 ≤ μ ≤ [MaxMomentum].
	Momentum float64

	// Rate is η, 0 < η ≤ [MaxRate]: 1 moves the parameters by the whole outer gradient.
	Rate float64
}

// Bounds of an Rule. Above this momentum a distance acts for more than ten thousand updates.
const (
	MaxMomentum = 0.9999
	MaxRate     = 100
)

// Published settings of DiLoCo, which Parse takes where none are given.
const (
	defaultMomentum = 0.9
	defaultRate     = 0.7
)

// Grammar is the input of [Parse], for help texts and errors.
const Grammar = "mean | nesterov | delayed | lookahead, the last three with (MOMENTUM,RATE), by default (0.9,0.7)"

// Parse reads mean, nesterov, nesterov(0.9,0.7), and likewise delayed and lookahead.
func Parse(s string) (Rule, error) {
	if s == "mean" {
		return Rule{}, nil
	}
	name, numbers, given := strings.Cut(s, "(")
	r := Rule{Kind(name), defaultMomentum, defaultRate}
	if given {
		inner, ok := strings.CutSuffix(numbers, ")")
		momentum, rate, both := strings.Cut(inner, ",")
		var err, err2 error
		r.Momentum, err = strconv.ParseFloat(momentum, 64)
		r.Rate, err2 = strconv.ParseFloat(rate, 64)
		if !ok || !both || err != nil || err2 != nil {
			return Rule{}, fmt.Errorf("(%.40s is not (MOMENTUM,RATE), such as (0.9,0.7)", numbers)
		}
	}
	if r.Kind == Mean {
		return Rule{}, fmt.Errorf("%.40q is not a rule of outer steps; want %s", s, Grammar)
	}
	return r, r.Validate()
}

// Validate reports whether r is a rule that shards can apply.
func (r Rule) Validate() error {
	switch {
	case r == Rule{}:
		return nil
	case r.Kind != Nesterov && r.Kind != Delayed && r.Kind != Lookahead:
		return fmt.Errorf("%.40q is not a rule of outer steps; want %s", string(r.Kind), Grammar)
	case !(r.Momentum >= 0 && r.Momentum <= MaxMomentum):
		return fmt.Errorf("momentum %v is not in 0..%v", r.Momentum, MaxMomentum)
	case !(r.Rate > 0 && r.Rate <= MaxRate):
		return fmt.Errorf("rate %v is not above 0 and at most %v", r.Rate, MaxRate)
	}
	return nil
}

// String is r in the grammar of [Parse], which reads the same numbers back.
func (r Rule) String() string {
	if r.Kind == Mean {
		return "mean"
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return string(r.Kind) + "(" + number(r.Momentum) + "," + number(r.Rate) + ")"
}

// MarshalText is String: plans in JSON have it.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is [Parse].
func (r *Rule) UnmarshalText(b []byte) (err error) {
	*r, err = Parse(string(b))
	return err
}
