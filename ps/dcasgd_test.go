package ps

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/ps/rule"
	"star/transport/wire"
)

func descent(lr float64) *rule.Descent {
	return &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(lr)}
}

// scalar is a shard of one element, with its firings in order.
type scalar struct {
	t    interface{ Fatal(...any) }
	s    *Shard
	seq  int64
	ver  int64
	step map[star.Worker]int64
}

func newScalar(t interface{ Fatal(...any) }, rule rule.Rule, w float32) *scalar {
	c := &scalar{t: t, s: NewShard(1, rule, keepAll{}), step: map[star.Worker]int64{}}
	c.s.Load([]float32{w}, 0)
	return c
}

// keepAll is a Memory that copies for every update.
type keepAll struct{}

func (keepAll) Writable(p []float32) []float32 { return make([]float32, len(p)) }
func (keepAll) Written()                       {}
func (keepAll) Free(v []float32)               { v[0] = float32(math.NaN()) } // no caller may read it any more

func (c *scalar) push(w star.Worker, basis int64, samples int, g float32) wire.Gradient {
	c.step[w]++
	if err := c.s.Push(rule.Gradient{Worker: w, Step: c.step[w], Basis: basis, Samples: samples, Vec: []float32{g}}); err != nil {
		c.t.Fatal(err)
	}
	return wire.Gradient{Worker: w, Step: c.step[w]}
}

func (c *scalar) fire(weight float32, use []wire.Gradient, late ...wire.Gradient) float64 {
	c.seq++
	for i := range use {
		use[i].Weight = weight
	}
	if len(use) > 0 {
		c.ver++
	}
	if err := c.s.Fire(&wire.Fire{Seq: c.seq, Version: c.ver, Gradients: use, Dropped: late}); err != nil {
		c.t.Fatal(err)
	}
	if _, ok := c.s.Next(); !ok {
		c.t.Fatal("nothing happened")
	}
	return float64(c.s.Params()[0])
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// w = 1, w_bak = 0.8, g = 0.5, η = 0.1, λ = 0.04: 1 − 0.1·(0.5 + 0.04·0.25·0.2) = 0.9498.
func TestDelayCompensation(t *testing.T) {
	d := rule.NewDelayCompensated(descent(0.1), 2, 1, 0.04, 0, false)
	d.Sent(1, []float32{0.8})
	got := d.Combine([]float32{1}, 3, []rule.Gradient{{Worker: 1, Weight: 1, Vec: []float32{0.5}}})
	w := []float32{1}
	d.Step(w, got, 0, -1)
	near(t, "w", float64(w[0]), 0.9498, 1e-7)

	// Another worker's parameters have no effect, and a worker that was sent nothing is not corrected.
	got = d.Combine([]float32{1}, 3, []rule.Gradient{{Worker: 0, Weight: 1, Vec: []float32{0.5}}})
	near(t, "uncorrected", float64(got[0]), 0.5, 0)

	// The weight comes after the correction: λ acts on the worker's mean gradient.
	got = d.Combine([]float32{1}, 3, []rule.Gradient{{Worker: 1, Weight: 0.25, Vec: []float32{0.5}}})
	near(t, "weighted", float64(got[0]), 0.25*0.502, 1e-7)

	// Adaptive, two steps: MS = 0.05·0.25 = 0.0125, then 0.95·0.0125 + 0.05·0.04 = 0.013875.
	a := rule.NewDelayCompensated(descent(0.1), 1, 1, 2, 0.95, true)
	a.Sent(0, []float32{0.8})
	got = a.Combine([]float32{1}, 0, []rule.Gradient{{Weight: 1, Vec: []float32{0.5}}})
	near(t, "adaptive", float64(got[0]), 0.5+2/math.Sqrt(0.0125+1e-7)*0.25*0.2, 1e-6)
	got = a.Combine([]float32{1}, 0, []rule.Gradient{{Weight: 1, Vec: []float32{0.2}}})
	near(t, "adaptive, second", float64(got[0]), 0.2+2/math.Sqrt(0.013875+1e-7)*0.04*0.2, 1e-6)
}

// The expected values follow the paper's algorithm 2 step by step: one worker after the other, in the order of arrival.
func TestDelayCompensationAgainstTheAlgorithm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "workers")
		const lr, lambda = 0.1, 0.5
		c := newScalar(t, rule.NewDelayCompensated(descent(lr), n, 1, lambda, 0, false), 1)
		w, bak := 1.0, make([]float64, n)
		basis := make([]int64, n)
		for i := range bak {
			bak[i] = w
			c.s.Read(star.Worker(i))
		}
		updates := 0
		for range rapid.IntRange(0, 30).Draw(t, "arrivals") {
			m := rapid.IntRange(0, n-1).Draw(t, "m")
			g := rapid.Float64Range(-1, 1).Draw(t, "g")
			got := c.fire(1, []wire.Gradient{c.push(star.Worker(m), basis[m], 1, float32(g))})
			w -= lr * (g + lambda*g*g*(w-bak[m]))
			bak[m], basis[m] = w, c.ver
			if updates++; c.s.Version() != int64(updates) || math.Abs(got-w) > 1e-4 {
				t.Fatalf("after %d arrivals: version %d, w = %v, want %v", updates, c.s.Version(), got, w)
			}
		}
	})
}

// A rule that is moved goes on as if it had not been: one life with the state taken out and put into a new rule, one
// without.
func TestStateMoves(t *testing.T) {
	makers := map[string]func() rule.Stateful{
		"dc-asgd":    func() rule.Stateful { return rule.NewDelayCompensated(descent(0.1), 3, 1, 0.5, 0.9, true) },
		"lgc":        func() rule.Stateful { return &rule.LiveCompensated{Then: descent(0.1)} },
		"lgc, sizes": func() rule.Stateful { return &rule.LiveCompensated{Then: descent(0.1), Sizes: true} },
	}
	for name, make := range makers {
		for moveAt := range 6 {
			attempt := func(move bool) (out []float64) {
				now := make()
				c := newScalar(t, now, 1)
				c.s.Read(0)
				c.s.Read(1) // worker 2 is sent nothing at first
				for i := range 6 {
					if move && i == moveAt {
						moved := make()
						if err := moved.SetSlots(now.Slots(1)); err != nil {
							t.Fatal(err)
						}
						now, c.s.rule, c.s.fused, c.s.witness, c.s.salvage = moved, moved, nil, nil, nil
						c.s.fused, _ = rule.Rule(moved).(rule.Fused)
						c.s.witness, _ = rule.Rule(moved).(rule.Witness)
						c.s.salvage, _ = rule.Rule(moved).(rule.Salvager)
					}
					late := c.push(star.Worker(2), c.ver-1, i%3, float32(i)/7)
					late.Weight = 1. / 3
					if i%2 == 1 {
						c.fire(0, nil, late)
						late = wire.Gradient{}
					}
					use := []wire.Gradient{c.push(0, c.ver, 2, 0.3+float32(i)/5), c.push(1, c.ver, 2, 0.9-float32(i)/3)}
					if late.Step > 0 {
						c.fire(0, nil, late)
					}
					out = append(out, c.fire(0.5, use))
				}
				return out
			}
			if got, want := fmt.Sprint(attempt(true)), fmt.Sprint(attempt(false)); got != want {
				t.Errorf("%s, moved before round %d: %v, want %v", name, moveAt, got, want)
			}
		}
	}
	square := func(v *rule.Validated) float64 {
		_, s := v.Score([]float32{1})
		return s.Float64()
	}
	z := &rule.Validated{Then: descent(0.1), Validator: 2}
	if fresh := (&rule.Validated{}); fresh.SetSlots(z.Slots(1)) != nil || square(fresh) != 0 {
		t.Errorf("a rule without v moved: |v|² = %v", square(fresh))
	}
	z.Late(0, rule.Gradient{Worker: 2, Vec: []float32{3}})
	fresh := &rule.Validated{Validator: 2}
	if err := fresh.SetSlots(z.Slots(1)); err != nil || square(fresh) != 9 {
		t.Errorf("|v|² moved as %v, %v", square(fresh), err)
	}
	if err := makers["dc-asgd"]().SetSlots([]rule.Slot{{Name: "lgc.fast", Data: []float32{1}}}); err == nil {
		t.Error("dc-asgd took the state of lgc")
	}
	if err := makers["lgc"]().SetSlots([]rule.Slot{{Name: "dc-asgd.ms", Data: []float32{1}}}); err == nil {
		t.Error("lgc took the state of dc-asgd")
	}
}
