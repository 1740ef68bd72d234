package rule

import (
	"math"

	"star"
	"star/internal/exactsum"
)

// ZenoForm selects one of the published scores. They decide differently; docs/baselines.md has the
// table.
type ZenoForm string

const (
	// ZenoPaper penalises the rescaled gradient; ε is a limit, and η the current learning rate.
	ZenoPaper ZenoForm = "paper"

	// ZenoCIFAR is the authors' program for CIFAR-10. It penalises the gradient as it came; ε is
	// multiplied by η, and η is the initial learning rate.
	ZenoCIFAR ZenoForm = "cifar_code"

	// ZenoLM is their program for language models. It is like ZenoCIFAR, but only shortens
	// gradients, and ε is not multiplied.
	ZenoLM ZenoForm = "lm_code"
)

// Zeno decides by Zeno++ whether a gradient is applied. With v the gradient of a trusted validation
// batch, g the candidate and g̃ = (|v|/|g|)·g:
//
//	score = η·⟨v, g̃⟩ − ρ·|g̃|²,    accepted if score ≥ −η·ε, and then w ← w − η·g̃
//
// C. Xie, S. Koyejo, I. Gupta: Zeno++: Robust Fully Asynchronous SGD. ICML 2020 (arXiv 1903.07020),
// algorithm 1. Norms and the product are over all shards, so the coordinator decides once for the
// job.
type Zeno struct {
	Rho, Eps float64
	Form     ZenoForm // empty means ZenoPaper
}

// Evidence is what is known of a candidate.
type Evidence struct {
	Dot  float64 // ⟨v, g⟩
	Norm float64 // |g|
	Ref  float64 // |v|
	Rate float64 // η, now
	// η at the beginning of the job.
	First float64
}

// Verdict is the decision about a candidate.
type Verdict struct {
	// Accepted if Score ≥ Limit.
	Score, Limit float64
	Accept       bool
	// |g̃|/|g|; 0 if not accepted.
	Factor float64
}

// Judge decides. It never accepts a candidate that is zero or not finite, nor anything if v is.
func (z Zeno) Judge(e Evidence) Verdict {
	factor := e.Ref / e.Norm
	var v Verdict
	switch z.Form {
	case ZenoCIFAR:
		v.Score = e.First*factor*e.Dot - z.Rho*e.Norm*e.Norm + e.First*z.Eps
	case ZenoLM:
		factor = min(factor, 1)
		v.Score = e.First*factor*e.Dot - z.Rho*e.Norm*e.Norm + z.Eps
	default:
		v.Score = e.Rate*factor*e.Dot - z.Rho*e.Ref*e.Ref
		// Avoids -0 if ε is 0.
		v.Limit = 0 - e.Rate*z.Eps
	}
	v.Accept = v.Score >= v.Limit && e.Norm > 0 && e.Ref > 0 && finite(e.Norm) && finite(e.Ref)
	if v.Accept {
		v.Factor = factor
	}
	return v
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Validated is the rule of a shard under [Zeno]. It keeps the shard's part of v and computes what
// the score needs of a direction. v comes as the gradient of an additional worker, the validator,
// which no update waits for.
type Validated struct {
	Then      *Descent
	Validator star.Worker

	// ref is nil before the first one.
	ref     []float32
	squares exactsum.Squares
}

// Late implements [Salvager]: the validator's gradient replaces v.
func (v *Validated) Late(_ int64, g Gradient) {
	if g.Worker != v.Validator {
		return
	}
	v.set(g.Vec)
}

func (v *Validated) set(vec []float32) {
	v.ref = append(v.ref[:0], vec...)
	v.squares = exactsum.Squares{}
	v.squares.Add(v.ref)
}

// Score implements [Scorer]. Without a v both are 0.
func (v *Validated) Score(dir []float32) (dot float64, ref *exactsum.Squares) {
	for i, x := range v.ref {
		// Exact: only the sum rounds.
		dot += float64(x) * float64(dir[i])
	}
	return dot, &v.squares
}

// Combine implements [Rule].
func (v *Validated) Combine(params []float32, version int64, gs []Gradient) []float32 {
	return v.Then.Combine(params, version, gs)
}

// Step implements [Rule].
func (v *Validated) Step(params, dir []float32, samples int64, norm float64) {
	v.Then.Step(params, dir, samples, norm)
}

// Slots implements [Stateful]. Without a v, its first element is NaN.
func (v *Validated) Slots(n int) []Slot {
	ref := v.ref
	if len(ref) == 0 {
		ref = make([]float32, n)
		ref[0] = float32(math.NaN())
	}
	return []Slot{{"zeno.validation", ref}}
}

// SetSlots implements [Stateful].
func (v *Validated) SetSlots(slots []Slot) error {
	if len(slots) == 1 && slots[0].Data[0] == slots[0].Data[0] {
		v.set(append([]float32(nil), slots[0].Data...))
	}
	return nil
}

// Lasting implements [Stateful]: a resumed job begins with a new v.
func (v *Validated) Lasting(int) []Slot { return nil }

func (r *Validated) inner() *Descent { return r.Then }

// ZenoSpec has the settings of a [Validated]. A job with it has a validator, with the rank after
// those of the workers.
type ZenoSpec struct {
	Zeno
	// Every is the number of gradients received between two of the validator's.
	Every   int
	Samples int // of a validation batch
}

// Make implements [Spec].
func (s ZenoSpec) Make(then *Descent, workers, _ int) Rule {
	return &Validated{Then: then, Validator: star.Worker(workers)}
}
