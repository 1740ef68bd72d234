package rule

import (
	"fmt"
	"math"

	"star"
	"star/internal/kernel"
)

// Gossip is AD-PSGD: each worker has its own model xᵢ. When a worker's gradient arrives, which it
// computed on the xᵢ that it was sent, its model is averaged with that of one other worker and
// makes the step:
//
//	xᵢ, xⱼ ← (xᵢ + xⱼ)/2        xᵢ ← xᵢ − η·gᵢ
//
// The models are on the shards, which execute firings one by one in the same order. So averaging is
// atomic, cannot deadlock, and any pairs are possible. The shard's parameters are the mean of all
// models; they are evaluated and saved. A worker that asks for parameters, because it is new or
// comes back, is sent the mean, which becomes its model. Weights of gradients are ignored. The step
// is plain SGD: there is one optimiser, without state.
//
// X. Lian, W. Zhang, C. Zhang, J. Liu: Asynchronous Decentralized Parallel Stochastic Gradient Descent. ICML 2018,
// algorithm 1.
type Gossip struct {
	Then  *Descent
	Graph Graph

	// models is by worker; nil: equal to the parameters so far.
	models [][]float32
	n      int
	// dirs has the gradients of a Combine, for its Step.
	dirs []Gradient
}

// Graph says which workers average with each other.
type Graph string

const (
	Complete Graph = "complete" // any pair
	// The next or the previous one, by rank.
	Circle Graph = "ring"
)

// NewGossip makes the rule of a shard of n elements for a number of workers.
func NewGossip(then *Descent, workers, n int, graph Graph) *Gossip {
	return &Gossip{Then: then, Graph: graph, models: make([][]float32, workers), n: n}
}

// Partner returns the worker with which w averages in the update that makes a version; w itself if
// it is the only worker. It depends only on its arguments, so all shards choose the same.
func (g Graph) Partner(version int64, w star.Worker, workers int) star.Worker {
	if workers < 2 {
		return w
	}
	// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators. OOPSLA 2014).
	x := (uint64(version)<<12 | uint64(w)) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	away := 1 + int(x%uint64(workers-1))
	if g == Circle {
		away = 1
		if x%2 == 1 {
			away = workers - 1
		}
	}
	return star.Worker((int(w) + away) % workers)
}

// Model implements [Personal].
func (g *Gossip) Model(w star.Worker) []float32 {
	if w < 0 || int(w) >= len(g.models) {
		return nil
	}
	return g.models[w]
}

// Sent implements [Witness]: a worker that was sent the mean continues from it.
func (g *Gossip) Sent(w star.Worker, params []float32) {
	if w >= 0 && int(w) < len(g.models) {
		g.models[w] = append(g.models[w][:0], params...)
	}
}

// begin gives a model to each worker of gs that has none.
func (g *Gossip) begin(params []float32) {
	for w, m := range g.models {
		if m == nil {
			g.Sent(star.Worker(w), params)
		}
	}
}

// step is one worker's part of the update that makes a version.
func (g *Gossip) step(version int64, w star.Worker, grad []float32, lr float64) {
	if w < 0 || int(w) >= len(g.models) {
		return
	}
	x := g.models[w]
	if j := g.Graph.Partner(version, w, len(g.models)); j != w {
		y := g.models[j]
		for i, a := range x {
			mean := (a + y[i]) / 2
			x[i], y[i] = mean, mean
		}
	}
	g.Then.Optimizer.Step(x, grad, lr)
}

// mean writes the mean of all models to params, summed in order of rank.
func (g *Gossip) mean(params []float32) {
	c := 1 / float32(len(g.models))
	copy(params, g.models[0])
	for _, m := range g.models[1:] {
		for i, x := range m {
			params[i] += x
		}
	}
	kernel.Scale(c, params)
}

// Update implements [Fused].
func (g *Gossip) Update(next, params []float32, version int64, gs []Gradient, samples int64) {
	g.begin(params)
	for _, x := range gs {
		g.step(version+1, x.Worker, x.Vec, g.Then.Schedule.At(samples))
	}
	g.mean(next)
}

// Combine implements [Rule]. The direction is the sum of the gradients; it is used only for
// measuring.
func (g *Gossip) Combine(params []float32, version int64, gs []Gradient) []float32 {
	g.begin(params)
	g.dirs = g.dirs[:0]
	for _, x := range gs {
		g.dirs = append(g.dirs, Gradient{Worker: x.Worker, Basis: version + 1, Vec: append([]float32(nil), x.Vec...)})
	}
	return g.Then.Combine(params, version, gs)
}

// Step implements [Rule].
func (g *Gossip) Step(params, _ []float32, samples int64, norm float64) {
	c := float32(1)
	if clip := g.Then.Clip; clip > 0 && norm > clip && !math.IsInf(norm, 1) {
		c = float32(clip / norm)
	}
	for _, x := range g.dirs {
		kernel.Scale(c, x.Vec)
		g.step(x.Basis, x.Worker, x.Vec, g.Then.Schedule.At(samples))
	}
	g.dirs = g.dirs[:0]
	g.mean(params)
}

// Slots implements [Stateful]. The slot of a worker without a model has NaN.
func (g *Gossip) Slots(n int) []Slot {
	var out []Slot
	for w, m := range g.models {
		if m == nil {
			m = make([]float32, n)
			m[0] = float32(math.NaN())
		}
		out = append(out, Slot{Name: fmt.Sprintf("ad-psgd.model.%d", w), Data: m})
	}
	return out
}

// SetSlots implements [Stateful].
func (g *Gossip) SetSlots(slots []Slot) error {
	for _, s := range slots {
		var w int
		if _, err := fmt.Sscanf(s.Name, "ad-psgd.model.%d", &w); err != nil || w < 0 || w >= len(g.models) || len(s.Data) != g.n {
			return fmt.Errorf("ps: %q of %d elements is not a state vector of ad-psgd with %d workers; give every star-ps the same --baseline", s.Name, len(s.Data), len(g.models))
		}
		if g.models[w] = nil; s.Data[0] == s.Data[0] {
			g.Sent(star.Worker(w), s.Data)
		}
	}
	return nil
}

// Lasting implements [Stateful]: in a resumed job every worker begins with the mean.
func (g *Gossip) Lasting(int) []Slot { return nil }

func (r *Gossip) inner() *Descent { return r.Then }

// GossipSpec has the settings of a [Gossip].
type GossipSpec struct{ Graph Graph }

// Make implements [Spec].
func (s GossipSpec) Make(then *Descent, workers, n int) Rule {
	return NewGossip(then, workers, n, s.Graph)
}
