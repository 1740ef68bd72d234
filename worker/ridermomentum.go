package worker

import (
	"context"
	"math"

	"star"
	"star/allreduce"
	"star/internal/kernel"
)

// riderMomentum is rule.WorkerMomentum for riders of a ring: each rider has its own velocity, kept
// by the member that carries it. All members make the same update from the members' sum, with
// Nesterov momentum, and move the parameters by the riders' part, which is summed separately in
// rounds that carry riders:
//
//	v_r ← μ·v_r + g_r      w ← w − η·Σ c_r·(g_r + μ·v_r)
//
// A velocity takes in its gradient when the version is made, so a repeated round counts it once.
// With a new parent a velocity starts at zero.
type riderMomentum struct {
	mu float32
	// clip bounds the norm of c_r·g_r; 0: no bound.
	clip float64

	velocity map[star.Worker][]float32
	sum      []float32
	// used: sum is of the current round.
	used bool
	// hand are the gradients carried in it.
	hand []*riderGrad
	free func(*riderGrad)
}

// newRiderMomentum returns the state for vectors of n elements and momentum mu. free takes back
// gradients that are in a version, or void.
func newRiderMomentum(n int, mu, clip float64, free func(*riderGrad)) *riderMomentum {
	return &riderMomentum{mu: float32(mu), clip: clip, velocity: map[star.Worker][]float32{}, sum: make([]float32, n), free: free}
}

// begin starts a round. Gradients of a round that made no version are void.
func (m *riderMomentum) begin() {
	for _, g := range m.hand {
		m.free(g)
	}
	m.hand, m.used = m.hand[:0], false
}

// carry adds a rider's gradient, and keeps g. weight is c_r of the update rule. g's vector is scaled
// down to clip.
func (m *riderMomentum) carry(g *riderGrad, weight float32) {
	m.use()
	if norm := float64(weight) * math.Sqrt(kernel.SumSq(g.vec)); m.clip > 0 && norm > m.clip {
		kernel.Scale(float32(m.clip/norm), g.vec)
	}
	kernel.Axpy(weight*(1+m.mu), g.vec, m.sum)
	if v := m.velocity[g.Worker]; v != nil {
		kernel.Axpy(weight*m.mu*m.mu, v, m.sum)
	}
	m.hand = append(m.hand, g)
}

// use clears sum once per round.
func (m *riderMomentum) use() {
	if !m.used {
		clear(m.sum)
		m.used = true
	}
}

// exchange sums over all members. All members call it in a round that carries a rider of any of
// them. The error is that of the collective operation: the round is repeated.
func (m *riderMomentum) exchange(ctx context.Context, group *allreduce.Group) error {
	m.use()
	return allreduce.AllReduce(ctx, group, allreduce.Sum, m.sum)
}

// move applies the riders' part of an update with learning rate lr. It is called once per version:
// gradients enter the velocities, and their memory is freed.
func (m *riderMomentum) move(params []float32, lr float64) {
	if m.used {
		kernel.Axpy(-float32(lr), m.sum, params)
	}
	for _, g := range m.hand {
		v := m.velocity[g.Worker]
		if v == nil {
			v = make([]float32, len(g.vec))
			m.velocity[g.Worker] = v
		}
		kernel.Scale(m.mu, v)
		kernel.Axpy(1, g.vec, v)
	}
	m.begin()
}

// keep drops the velocities of all riders except ours.
func (m *riderMomentum) keep(ours func(w star.Worker) bool) {
	for w := range m.velocity {
		if !ours(w) {
			delete(m.velocity, w)
		}
	}
}
