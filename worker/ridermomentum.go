package worker

import (
	"context"
	"math"

	"star"
	"star/allreduce"
	"star/internal/kernel"
)

// riderMomentum is what rule.WorkerMomentum is to riders of a ring: each has a velocity of its own, with the member that carries it. All members make the same update
// of their own sum, whose velocity is Nesterov's, and move the parameters by what riders bring besides, which is summed apart in rounds that carry some:
//
//	v_r ← μ·v_r + g_r      w ← w − η·Σ c_r·(g_r + μ·v_r)
//
// A velocity takes its gradient in when the version is made, so a round that is made again counts it once. Another parent begins with a velocity of zero.
type riderMomentum struct {
	mu   float32
	clip float64 // of c_r·g_r; 0: none

	velocity map[star.Worker][]float32
	sum      []float32
	used     bool         // sum is of the round in hand
	hand     []*riderGrad // carried in it
	free     func(*riderGrad)
}

// newRiderMomentum is for vectors of n elements and momentum mu. free takes gradients back that are
// in a version, or void.
func newRiderMomentum(n int, mu, clip float64, free func(*riderGrad)) *riderMomentum {
	return &riderMomentum{mu: float32(mu), clip: clip, velocity: map[star.Worker][]float32{}, sum: make([]float32, n), free: free}
}

// begin begins a round. What the one before has carried without making a version is void.
func (m *riderMomentum) begin() {
	for _, g := range m.hand {
		m.free(g)
	}
	m.hand, m.used = m.hand[:0], false
}

// carry adds a rider's gradient. It keeps g. weight is c_r of the update rule; g's vector is
// shortened where it is longer than clip.
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

// use makes sum that of the round in hand, which is zero at first.
func (m *riderMomentum) use() {
	if !m.used {
		clear(m.sum)
		m.used = true
	}
}

// exchange makes sum that of all members. All members call it in a round that carries a rider of
// any of them. The error is that of the collective operation: the round is made again.
func (m *riderMomentum) exchange(ctx context.Context, group *allreduce.Group) error {
	m.use()
	return allreduce.AllReduce(ctx, group, allreduce.Sum, m.sum)
}

// move makes the riders' part of an update at the learning rate lr. It is called once for a
// version, when it is made: gradients go into the velocities, and back to their memory.
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

// keep forgets the velocities of all but these.
func (m *riderMomentum) keep(ours func(w star.Worker) bool) {
	for w := range m.velocity {
		if !ours(w) {
			delete(m.velocity, w)
		}
	}
}
