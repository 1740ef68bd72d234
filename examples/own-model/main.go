// Own-model is a worker that trains a model of its own on data of its own: a network with one hidden layer learns which
// of two rings a point is of. docs/own-model.md says how to run it.
package main

import (
	"context"
	"math"
	"math/rand/v2"

	"star/train"
	"star/worker"
	"star/worker/launch"
)

func main() {
	launch.Main(func(c *worker.Config) error {
		c.Name, c.DataName = "rings-network", "rings"
		c.Model, c.Data, c.Test = newNetwork(c.Seed), rings{c.Seed, 20000}, rings{c.Seed + 1, 1000}
		return nil
	})
}

// rings are n points of two rings around the origin, made of the seed and their number.
type rings struct{ seed, n uint64 }

func (r rings) Len() int { return int(r.n) }

func (r rings) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Samples = b.X[:0], b.Y[:0], len(indices)
	for _, i := range indices {
		random, class := rand.New(rand.NewPCG(r.seed, uint64(i))), i%2
		radius, angle := 1+float64(class)+random.NormFloat64()/5, 2*math.Pi*random.Float64()
		b.X = append(b.X, float32(radius*math.Cos(angle)), float32(radius*math.Sin(angle)))
		b.Y = append(b.Y, int32(class))
	}
	return nil
}

const hidden = 16 // units

// network is tanh units of a point's two coordinates and 1, and a logistic one of theirs and 1.
type network struct{ params []float32 }

// newNetwork is the same in every worker.
func newNetwork(seed uint64) *network {
	random, m := rand.New(rand.NewPCG(seed, 0)), &network{make([]float32, 4*hidden+1)}
	for i := range 4 * hidden {
		m.params[i] = float32(random.NormFloat64())
	}
	return m
}

func (m *network) Params() []float32                { return m.params }
func (m *network) Buffers() []float32               { return nil }
func (m *network) BufferLayout() []train.TensorSpec { return nil }
func (m *network) Close() error                     { return nil }

func (m *network) Layout() []train.TensorSpec {
	return []train.TensorSpec{{Name: "hidden", Shape: []int{hidden, 3}}, {Name: "out", Shape: []int{hidden + 1}, Offset: 3 * hidden}}
}

// each computes the loss of every sample, and its derivative by the score, which is more than 0 for class 1. h are the
// units.
func (m *network) each(b train.Batch, f func(x, h []float32, loss, slope float64)) {
	h, out := make([]float32, hidden+1), m.params[3*hidden:]
	for i := range b.Samples {
		x, y, score := b.X[2*i:2*i+2], float64(b.Y[i]), 0.0
		for j := range h {
			if h[j] = 1; j < hidden {
				w := m.params[3*j:]
				h[j] = float32(math.Tanh(float64(w[0]*x[0] + w[1]*x[1] + w[2])))
			}
			score += float64(out[j] * h[j])
		}
		f(x, h, math.Log1p(math.Exp(-math.Abs(score)))+math.Max(score, 0)-y*score, 1/(1+math.Exp(-score))-y)
	}
}

func (m *network) Grad(_ context.Context, grad []float32, b train.Batch) (loss float64, err error) {
	clear(grad)
	m.each(b, func(x, h []float32, l, slope float64) {
		loss += l / float64(b.Samples)
		for j, v := range h {
			d := float32(slope) / float32(b.Samples)
			if grad[3*hidden+j] += d * v; j < hidden {
				d *= m.params[3*hidden+j] * (1 - v*v)
				grad[3*j], grad[3*j+1], grad[3*j+2] = grad[3*j]+d*x[0], grad[3*j+1]+d*x[1], grad[3*j+2]+d
			}
		}
	})
	return loss, nil
}

func (m *network) Eval(_ context.Context, b train.Batch) (r train.Result, err error) {
	m.each(b, func(_, _ []float32, loss, slope float64) {
		if r.LossSum, r.Count = r.LossSum+loss, r.Count+1; math.Abs(slope) < 0.5 {
			r.Correct++
		}
	})
	return r, nil
}
