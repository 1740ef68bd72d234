package worker_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/internal/ports"
	"star/job"
	"star/ps/rule"
	"star/runlog"
	"star/server"
	"star/train"
	"star/worker"
)

// Four workers that exchange their parameters in fragments, with momentum inside and outside, have the parameters of
// Streaming DiLoCo (A. Douillard et al., arXiv 2501.18512, 2025, algorithm 2) in one process, within 1e-5: after each
// H/F steps the next part is exchanged; it arrives H/F steps later, and is mixed with α = 1/2. The last exchange is of
// all parts.
func TestFragmentsLikeStreamingDiLoCo(t *testing.T) {
	const workers, batch, steps, mu, eta, rate, inner = 4, 4, 24, 0.6, 0.7, 0.05, 0.5
	for _, c := range []struct {
		mode             string
		local, fragments int
		shards           int
	}{
		{"ssgd local=6 outer=nesterov(0.6,0.7) fragments=3", 6, 3, 2},
		{"ssgd local=4 outer=nesterov(0.6,0.7) fragments=4", 4, 4, 1},
		{"ssgd local=24samples outer=nesterov(0.6,0.7) fragments=2", 6, 2, 3},
	} {
		models := make([]*lines, workers)
		result := train4(t, c.mode, c.shards, steps, rate, inner, models)
		each := c.local / c.fragments
		if result.Updates != int64(steps/each) || result.Samples != workers*batch*steps {
			t.Fatalf("%s: %d updates of %d samples", c.mode, result.Updates, result.Samples)
		}
		global, velocity := make([]float64, dimension), make([]float64, dimension)
		own, state := make([][]float64, workers), make([][]float64, workers)
		for k := range own {
			own[k], state[k] = slices.Clone(global), make([]float64, dimension)
		}
		// exchanged says whether the push of a round has an element.
		exchanged := func(round, i int) bool {
			for s := range c.shards {
				first, last := dimension*s/c.shards, dimension*(s+1)/c.shards
				from, to := rule.Part{Parts: c.fragments, Index: round % c.fragments}.Range(last - first)
				if i >= first+from && i < first+to {
					return true
				}
			}
			return round == steps/each-1
		}
		for round := range steps / each {
			outer := make([]float64, dimension)
			for k, m := range models {
				for _, b := range m.batches[round*each : (round+1)*each] {
					g := b.gradient(own[k])
					for i := range g {
						state[k][i] = inner*state[k][i] + g[i]
						own[k][i] -= rate * state[k][i]
					}
				}
				for i := range own[k] {
					if round > 0 && exchanged(round-1, i) {
						own[k][i] = (own[k][i] + global[i]) / 2
					}
				}
				for i := range outer {
					outer[i] += (global[i] - own[k][i]) / workers
				}
			}
			for i, g := range outer {
				if exchanged(round, i) {
					velocity[i] = mu*velocity[i] + g
					global[i] -= eta * (mu*velocity[i] + g)
				}
			}
		}
		most, moved := 0.0, 0.0
		for i, want := range global {
			moved = max(moved, math.Abs(want))
			for k, m := range models {
				if most = max(most, math.Abs(float64(m.params[i])-want)); !(most < 1e-5) {
					t.Fatalf("%s: parameter %d of worker %d is %v, want %v", c.mode, i, k, m.params[i], want)
				}
			}
		}
		if moved < 0.1 {
			t.Errorf("%s: the parameters have moved by %v only", c.mode, moved)
		}
	}
}

// A codec keeps what it leaves out of a fragment for the next exchange of the same one.
func TestFragmentsThroughCodecs(t *testing.T) {
	base := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", 2, 160, 0.05, 0, make([]*lines, 4))
	for _, codec := range []string{"int8", "int2", "topk=0.2", "powersgd=1", "fp16"} {
		models := make([]*lines, 4)
		got := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", 2, 160, 0.05, 0, models, codec)
		if got.Samples != base.Samples || !(got.TestLoss < 2*base.TestLoss+0.01) {
			t.Errorf("%s: a loss of %v after %d samples, without a codec %v after %d", codec, got.TestLoss, got.Samples, base.TestLoss, base.Samples)
		}
	}
}

// train4 runs a job of four workers in this process, with models that it makes.
func train4(t *testing.T, mode string, shards int, steps int64, rate, momentum float64, models []*lines, codec ...string) (result runlog.Result) {
	t.Helper()
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	rules := job.Rule{Optimizer: "momentum", LR: rate, Momentum: momentum}
	if len(codec) > 0 {
		rules.Compress = codec[0]
	}
	out, network := t.TempDir(), job.Network{Listen: addr, Coordinator: addr}
	errs := make(chan error)
	for k := range models {
		models[k] = &lines{params: make([]float32, dimension)}
		go func() {
			errs <- worker.Run(t.Context(), worker.Config{
				Job:   job.Job{Rank: k, Batch: 4, Seed: 1, Rule: rules, Files: job.Files{Out: out}, Network: job.Network{Coordinator: addr}},
				Model: models[k], Name: "lines", Data: points{}, Test: points{},
			})
		}()
	}
	err = server.Run(t.Context(), server.Config{
		Job:      job.Job{Workers: len(models), Batch: 4, Seed: 1, Rule: rules, Network: network, Files: job.Files{Out: out}},
		Shards:   shards,
		Training: server.Training{Steps: steps},
		Policy:   server.Policy{Mode: mode},
		Report:   func(r runlog.Result) error { result = r; return nil },
	})
	for range models {
		if e := <-errs; err == nil {
			err = e
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", mode, err)
	}
	return result
}

const dimension = 33

// points are 96 points x with y = w·x, for a drawn w.
type points struct{}

func (points) Len() int { return 96 }

func (points) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Samples = b.X[:0], b.Y[:0], len(indices)
	for _, i := range indices {
		rng := rand.New(rand.NewPCG(uint64(i), 3))
		for range dimension {
			b.X = append(b.X, float32(rng.NormFloat64()))
		}
		b.Y = append(b.Y, 0)
	}
	return nil
}

// batch is the points of a mini-batch.
type batch []float32

// gradient is that of the mean of ½(w·x − y)².
func (b batch) gradient(w []float64) []float64 {
	g := make([]float64, dimension)
	n := len(b) / dimension
	for s := range n {
		x := b[s*dimension : (s+1)*dimension]
		e := 0.0
		for i, v := range x {
			e += (w[i] - target(i)) * float64(v)
		}
		for i, v := range x {
			g[i] += e * float64(v) / float64(n)
		}
	}
	return g
}

func target(i int) float64 { return math.Sin(float64(i)) }

// lines is a linear model that remembers its batches.
type lines struct {
	params  []float32
	batches []batch
}

func (m *lines) Params() []float32 { return m.params }
func (m *lines) Layout() []train.TensorSpec {
	return []train.TensorSpec{{Name: "a", Shape: []int{3, 7}}, {Name: "b", Shape: []int{12}, Offset: 21}}
}
func (m *lines) Buffers() []float32               { return nil }
func (m *lines) BufferLayout() []train.TensorSpec { return nil }
func (m *lines) Close() error                     { return nil }

func (m *lines) wide() []float64 {
	w := make([]float64, len(m.params))
	for i, p := range m.params {
		w[i] = float64(p)
	}
	return w
}

func (m *lines) Grad(_ context.Context, dst []float32, b train.Batch) (float64, error) {
	m.batches = append(m.batches, slices.Clone(batch(b.X)))
	for i, g := range batch(b.X).gradient(m.wide()) {
		dst[i] = float32(g)
	}
	return 1, nil
}

func (m *lines) Eval(_ context.Context, b train.Batch) (r train.Result, err error) {
	w := m.wide()
	for s := range b.Samples {
		e := 0.0
		for i, v := range b.X[s*dimension : (s+1)*dimension] {
			e += (w[i] - target(i)) * float64(v)
		}
		r.LossSum += e * e / 2
	}
	r.Count = b.Samples
	return r, nil
}
