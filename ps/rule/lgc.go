package rule

import (
	"fmt"

	"star/internal/exactsum"
)

// LiveCompensated is the rule of LGC: an update consists of the first K of N gradients, and of what
// the other workers had computed in the round before when that round was closed,
//
//	u    = gF + comp
//	comp = ((N − K)/N)·(gS − gF) of the round before; 0 if no other worker had computed anything
//
// with gF the mean over the first K, and gS the mean over those of the others that had at least one
// block. So two consecutive updates together apply the mean over all N of a round, half of it late.
// u goes to Then, so clipping and momentum act on it.
//
// The weights of the gradients must be those of a mean (package coord), the plan one that drops
// late gradients, and the Weight of a late gradient (N − K)/N. A late gradient is used if it is of
// the round before, else ignored: compensation is never older than one round. With Sizes the factor
// is n_S/(n_F + n_S), and gS is weighted by samples.
//
// It costs two vectors of the shard's length. Its state moves with a shard; after a restart of the
// job the first round has no compensation.
//
// J. Xu, S.-L. Huang, L. Song, T. Lan: Live Gradient Compensation for Evading Stragglers in Distributed Learning.
// INFOCOM 2021. docs/baselines.md lists the differences.
type LiveCompensated struct {
	Then  *Descent
	Sizes bool

	// fast is gF of the last round; empty: there was none.
	fast []float32
	// live is the sum of late gradients.
	live []float32
	// count is their number, or that of their samples.
	count  float64
	factor float64 // (N − K)/N
	// samples counts those in fast.
	samples float64

	sum2    float64
	measure bool
}

// Late implements [Salvager].
func (l *LiveCompensated) Late(version int64, g Gradient) {
	if g.Basis != version-1 || g.Samples < 1 || len(l.fast) == 0 {
		return
	}
	w := 1.0
	if l.Sizes {
		w = float64(g.Samples)
	}
	if l.count == 0 {
		if len(l.live) == 0 {
			l.live = make([]float32, len(g.Vec))
		}
		clear(l.live)
	}
	for i, x := range g.Vec {
		l.live[i] += float32(float32(w) * x)
	}
	l.count += w
	l.factor = float64(g.Weight)
}

// Combine implements [Rule].
func (l *LiveCompensated) Combine(params []float32, version int64, gs []Gradient) []float32 {
	samples := 0.0
	for _, g := range gs {
		samples += float64(g.Samples)
	}
	dir := l.Then.Combine(params, version, gs)
	if len(l.fast) == 0 {
		l.fast = make([]float32, len(dir))
	}
	if l.count == 0 {
		copy(l.fast, dir)
	} else {
		if l.Sizes {
			l.factor = l.count / (l.samples + l.count)
		}
		factor, mean := float32(l.factor), float32(1/l.count)
		for i, g := range dir {
			comp := float32(l.live[i]*mean) - l.fast[i]
			dir[i], l.fast[i] = g+float32(factor*comp), g
		}
	}
	l.count, l.samples = 0, samples
	if l.measure {
		var s exactsum.Squares
		s.Add(dir)
		l.sum2 = s.Float64()
	}
	return dir
}

// Step implements [Rule].
func (l *LiveCompensated) Step(params, dir []float32, samples int64, norm float64) {
	l.Then.Step(params, dir, samples, norm)
}

// Measure implements [Measurer].
func (l *LiveCompensated) Measure(on bool) { l.measure = on }

// Sum2 implements [Measurer]: of u.
func (l *LiveCompensated) Sum2() float64 { return l.sum2 }

// Slots implements [Stateful]. The scalars are in a vector of their own.
func (l *LiveCompensated) Slots(n int) []Slot {
	vec := func(v []float32) []float32 {
		if len(v) == 0 {
			return make([]float32, n)
		}
		return v
	}
	marks := func(x float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(x)
		}
		return v
	}
	had := 0.0
	if len(l.fast) > 0 {
		had = 1 + l.samples
	}
	return []Slot{
		{"lgc.fast", vec(l.fast)}, {"lgc.live", vec(l.live)},
		{"lgc.count", marks(l.count)}, {"lgc.factor", marks(l.factor)}, {"lgc.samples", marks(had)},
	}
}

// SetSlots implements [Stateful].
func (l *LiveCompensated) SetSlots(slots []Slot) error {
	if len(slots) == 0 {
		return nil // restarted job
	}
	names := [...]string{"lgc.fast", "lgc.live", "lgc.count", "lgc.factor", "lgc.samples"}
	for i, name := range names {
		if len(slots) != len(names) || slots[i].Name != name {
			return fmt.Errorf("ps: %d state vectors are from another rule than lgc; give every star-ps the same --baseline", len(slots))
		}
	}
	l.fast, l.samples = nil, 0
	if had := slots[4].Data[0]; had > 0 {
		l.fast, l.samples = append(l.fast, slots[0].Data...), float64(had)-1
	}
	l.live = append([]float32(nil), slots[1].Data...)
	l.count, l.factor = float64(slots[2].Data[0]), float64(slots[3].Data[0])
	return nil
}

// Lasting implements [Stateful].
func (l *LiveCompensated) Lasting(int) []Slot { return nil }

// LiveTerm computes what one member of an all-reduce adds to a round of LGC. One sum over all
// members is then exactly u. Each member keeps its own last gradient and whether it was among the
// first.
type LiveTerm struct {
	last []float32
	role role
}

type role uint8

const (
	idle role = iota // finished no block
	fast
	slow
)

// Term writes to dst what the member adds to this round's sum: from g if it is among the first in
// this round, and from its last gradient. first is how many are among the first, members how many
// there are. lastFirst is how many were among the first in the round before, and lastLive how many
// of the others had at least one block.
//
//	x = 1[F]·g/K + 1[last S]·g'·(N − K')/(N·|S'|) − 1[last F]·g'·(N − K')/(N·K')
//
// A nil g means that the member is not among the first in this round.
func (t *LiveTerm) Term(dst, g []float32, members, first, lastFirst, lastLive int) {
	clear(dst)
	if g != nil {
		c := float32(1 / float64(first))
		for i, x := range g {
			dst[i] = float32(c * x)
		}
	}
	if lastLive == 0 || t.role == idle || len(t.last) == 0 {
		return
	}
	rest := float64(members-lastFirst) / float64(members)
	c := float32(rest / float64(lastLive))
	if t.role == fast {
		c = float32(-rest / float64(lastFirst))
	}
	for i, x := range t.last {
		dst[i] += float32(c * x)
	}
}

// Keep records what the member had in the round that has ended: its gradient, or that of the
// finished blocks; nil: none.
func (t *LiveTerm) Keep(g []float32, first bool) {
	switch {
	case g == nil:
		t.role = idle
		return
	case first:
		t.role = fast
	default:
		t.role = slow
	}
	t.last = append(t.last[:0], g...)
}

func (r *LiveCompensated) inner() *Descent { return r.Then }

// LiveSpec has the settings of a [LiveCompensated]. A job with it weights the gradients of each
// update as a mean.
type LiveSpec struct {
	Sizes bool
	// Planned divides the gradient of a stopped worker by the planned samples, not by those
	// computed.
	Planned bool
}

// Make implements [Spec].
func (s LiveSpec) Make(then *Descent, _, _ int) Rule {
	return &LiveCompensated{Then: then, Sizes: s.Sizes}
}
