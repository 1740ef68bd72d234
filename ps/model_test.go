package ps

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/internal/exactsum"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// naive is the dumb machine: it keeps every gradient ever pushed, computes an
// update from scratch in plain loops, and sums squares in float64, which is exact for the small
// integers and halves that the test draws.
type naive struct {
	params []float32
	grads  map[star.Worker][]float32
	clip   float64
	lr     float32
}

func (m *naive) fire(gs []wire.Gradient) {
	gs = slices.Clone(gs)
	slices.SortFunc(gs, func(a, b wire.Gradient) int { return int(a.Worker - b.Worker) })
	sum := make([]float32, len(m.params))
	var norm2 float64
	for i := range sum {
		for k, g := range gs {
			p := float32(g.Weight * m.grads[g.Worker][i])
			if k == 0 {
				sum[i] = p
			} else {
				sum[i] = float32(sum[i] + p)
			}
		}
		norm2 += float64(sum[i]) * float64(sum[i])
	}
	if norm := math.Sqrt(norm2); m.clip > 0 && norm > m.clip {
		for i := range sum {
			sum[i] = float32(sum[i] * float32(m.clip/norm))
		}
	}
	for i := range sum {
		m.params[i] -= float32(m.lr * sum[i])
	}
}

// cluster is k shards that live through one history, as the coordinator sees to.
type cluster struct {
	t      *rapid.T
	ranges []Range
	shards []*Shard
	seq    int64
	ver    int64
}

func newCluster(t *rapid.T, params []float32, k int, rule func(n int) rule.Rule) *cluster {
	ranges, err := Split(int64(len(params)), k)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, ranges: ranges}
	for _, r := range ranges {
		s := NewShard(int(r.To-r.From), rule(int(r.To-r.From)), &heap{reading: rapid.Bool().Draw(t, "reading")})
		s.Load(slices.Clone(params[r.From:r.To]), 0)
		c.shards = append(c.shards, s)
	}
	return c
}

func (c *cluster) push(w star.Worker, step int64, g []float32) {
	for i, s := range c.shards {
		vec := slices.Clone(g[c.ranges[i].From:c.ranges[i].To])
		if err := s.Push(rule.Gradient{Worker: w, Step: step, Vec: vec}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) fire(gs []wire.Gradient, norm bool) {
	c.seq++
	c.ver++
	var total exactsum.Squares
	for _, s := range c.shards {
		if err := s.Fire(&wire.Fire{Seq: c.seq, Version: c.ver, Samples: 10 * c.seq, Gradients: gs, NormFirst: norm}); err != nil {
			c.t.Fatal(err)
		}
		ev, ok := s.Next()
		if want := map[bool]EventKind{false: Updated, true: Summed}[norm]; !ok || ev.Kind != want {
			c.t.Fatalf("firing %d: event %v, want %v", c.seq, ev.Kind, want)
		}
		if norm {
			total.Merge(ev.Squares)
		}
	}
	if !norm {
		return
	}
	for _, s := range c.shards {
		if _, ok := s.Next(); ok {
			c.t.Fatalf("firing %d: an event before the norm is known", c.seq)
		}
		if err := s.Apply(c.seq, math.Sqrt(total.Float64()), 1); err != nil {
			c.t.Fatal(err)
		}
		if ev, ok := s.Next(); !ok || ev.Kind != Updated {
			c.t.Fatalf("firing %d: no update after the norm", c.seq)
		}
	}
}

func (c *cluster) params() (v []float32) {
	for _, s := range c.shards {
		v = append(v, s.Params()...)
	}
	return v
}

// attempt draws a random run: which workers push, which are fired together, with which weights. It passes every event
// to all listeners.
func attempt(t *rapid.T, n, workers int, number *rapid.Generator[float32], push func(star.Worker, int64, []float32), fire func([]wire.Gradient)) {
	steps := make([]int64, workers)
	var waiting []star.Worker
	for range rapid.IntRange(1, 25).Draw(t, "firings") {
		for w := range star.Worker(workers) {
			if !slices.Contains(waiting, w) && rapid.IntRange(0, 3).Draw(t, "pushes") > 0 {
				push(w, steps[w], rapid.SliceOfN(number, n, n).Draw(t, "gradient"))
				waiting = append(waiting, w)
			}
		}
		if len(waiting) == 0 {
			continue
		}
		waiting = rapid.Permutation(waiting).Draw(t, "order")
		k := rapid.IntRange(1, len(waiting)).Draw(t, "quorum")
		var gs []wire.Gradient
		for _, w := range waiting[:k] {
			gs = append(gs, wire.Gradient{
				Worker: w, Step: steps[w],
				Weight: rapid.SampledFrom([]float32{1, 0.5, 0.25, 1.5, 1.0 / 3}).Draw(t, "weight"),
			})
			steps[w]++
		}
		fire(gs)
		waiting = slices.Clone(waiting[k:])
	}
}

// Any number of shards does, to the bit, what the dumb machine does, whatever
// the modes, orders, weights and clipping.
func TestShardsAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		k := rapid.IntRange(1, n).Draw(t, "k")
		workers := rapid.IntRange(1, 6).Draw(t, "workers")
		clip := rapid.SampledFrom([]float64{0, 0.5, 3}).Draw(t, "clip")
		small := rapid.Custom(func(t *rapid.T) float32 { return float32(rapid.IntRange(-40, 40).Draw(t, "x")) / 2 })
		params := rapid.SliceOfN(small, n, n).Draw(t, "params")
		c := newCluster(t, params, k, func(int) rule.Rule {
			return &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(0.125), Clip: clip}
		})
		m := &naive{params: slices.Clone(params), grads: map[star.Worker][]float32{}, clip: clip, lr: 0.125}
		attempt(t, n, workers, small, func(w star.Worker, step int64, g []float32) {
			c.push(w, step, g)
			m.grads[w] = g
		}, func(gs []wire.Gradient) {
			// The weight of a third makes inexact sums; then only the naive norm may
			// differ in its last bit, and the comparison is left to the next test.
			if clip > 0 && slices.ContainsFunc(gs, func(g wire.Gradient) bool { return g.Weight == 1.0/3 }) {
				for i := range gs {
					gs[i].Weight = 0.5
				}
			}
			c.fire(gs, clip > 0)
			m.fire(gs)
			if got := c.params(); !slices.Equal(got, m.params) {
				t.Fatalf("%d shards: %v\nnaive: %v", k, got, m.params)
			}
			m.params = slices.Clone(c.params())
		})
	})
}

// k shards and one shard give the same bits with every optimiser, with numbers
// of all magnitudes.
func TestShardsAgainstOne(t *testing.T) {
	number := rapid.Custom(func(t *rapid.T) float32 {
		return float32(math.Ldexp(rapid.Float64Range(-1, 1).Draw(t, "m"), rapid.IntRange(-12, 12).Draw(t, "e")))
	})
	for _, name := range []string{optim.SGD, optim.Momentum, optim.Nesterov, optim.Adam, optim.AdamW} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 100).Draw(t, "n")
				k := rapid.IntRange(1, min(n, 9)).Draw(t, "k")
				clip := rapid.SampledFrom([]float64{0, 0.01, 2}).Draw(t, "clip")
				cfg := optim.Config{Name: name, LR: 0.01, WeightDecay: 1e-3}
				rule := func(n int) rule.Rule {
					o, err := optim.New(cfg, n)
					if err != nil {
						t.Fatal(err)
					}
					s, err := cfg.Rate()
					if err != nil {
						t.Fatal(err)
					}
					return &rule.Descent{Optimizer: o, Schedule: s, Clip: clip}
				}
				params := rapid.SliceOfN(number, n, n).Draw(t, "params")
				one, many := newCluster(t, params, 1, rule), newCluster(t, params, k, rule)
				attempt(t, n, 4, number, func(w star.Worker, step int64, g []float32) {
					one.push(w, step, g)
					many.push(w, step, g)
				}, func(gs []wire.Gradient) {
					one.fire(gs, clip > 0)
					many.fire(gs, clip > 0)
					for i, v := range many.params() {
						if w := one.params()[i]; math.Float32bits(v) != math.Float32bits(w) {
							t.Fatalf("firing %d, element %d of %d: %v with %d shards, %v with one", one.seq, i, n, v, k, w)
						}
					}
				})
			})
		})
	}
}
