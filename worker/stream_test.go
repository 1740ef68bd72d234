package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"star/internal/ports"
	"star/job"
	"star/job/process"
	"star/ps/rule"
	"star/runlog"
	"star/server"
	"star/train"
	"star/train/optim"
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
		{"ssgd local=6 outer=nesterov(0.6,0.7) fragments=3", 6, 3, ring},
		{"ssgd local=24samples outer=nesterov(0.6,0.7) fragments=2", 6, 2, ring},
		{"ssgd shares=6,4,4,2 local=6 outer=nesterov(0.6,0.7) fragments=3", 6, 3, ring},
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
			for s := range max(1, c.shards) {
				first, last := dimension*s/max(1, c.shards), dimension*(s+1)/max(1, c.shards)
				from, to := rule.Part{Parts: c.fragments, Index: round % c.fragments}.Range(last - first)
				if i >= first+from && i < first+to {
					return true
				}
			}
			return round == steps/each-1
		}
		for round := range steps / each {
			outer, weights := make([]float64, dimension), 0.0
			for k, m := range models {
				weight := float64(len(m.batches[round*each])) / dimension / (workers * batch)
				weights += weight
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
					outer[i] += weight * (global[i] - own[k][i])
				}
			}
			if math.Abs(weights-1) > 1e-9 {
				t.Fatalf("%s: the workers' batches are %v of a round", c.mode, weights)
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
	for _, shards := range []int{2, ring} {
		base := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", shards, 160, 0.05, 0, make([]*lines, 4))
		for _, codec := range []string{"int8", "int2", "topk=0.2", "powersgd=1", "fp16"} {
			models := make([]*lines, 4)
			got := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", shards, 160, 0.05, 0, models, codec)
			if got.Samples != base.Samples || !(got.TestLoss < 2*base.TestLoss+0.01) {
				t.Errorf("%s, %d shards: a loss of %v after %d samples, without a codec %v after %d", codec, shards, got.TestLoss, got.Samples, base.TestLoss, base.Samples)
			}
		}
	}
}

// Exchanges go on while workers compute: worker 0 does not end a step before worker 1 has got the part that both were
// exchanging meanwhile, and has begun a batch two exchanges later.
func TestFragmentsWhileComputing(t *testing.T) {
	for _, shards := range []int{2, ring} {
		models := make([]*lines, 4)
		train4(t, "ssgd local=8 outer=nesterov fragments=4", shards, 32, 0.05, 0, models, waits)
		if len(models[0].batches) != 32 {
			t.Errorf("%d shards: %d steps", shards, len(models[0].batches))
		}
	}
}

// A program may ask for the state of the optimizer as often as it wants, also while a part travels. With outer steps it
// is that of the worker's own steps, else that of the job's updates.
func TestRecall(t *testing.T) {
	for _, mode := range []string{"ssgd", "ssgd local=4 outer=nesterov", "ssgd local=8 outer=nesterov fragments=2"} {
		for _, shards := range []int{3, ring} {
			models := make([]*lines, 4)
			train4(t, mode, shards, 64, 0.05, 0.5, models, curious)
			for k, m := range models {
				if m.asked != 64 {
					t.Errorf("%s, %d shards: worker %d has asked %d times", mode, shards, k, m.asked)
				}
			}
		}
	}
}

// A member that leaves a ring with fragments, and one that joins it, cost no samples. At the end all have the same
// parameters.
func TestFragmentsWhenMembersChange(t *testing.T) {
	models := make([]*lines, 4)
	got := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", ring, 2000, 0.02, 0.5, models, leaves)
	base := train4(t, "ssgd local=8 outer=nesterov(0.3,1) fragments=4", ring, 2000, 0.02, 0.5, make([]*lines, 4))
	if got.Samples != base.Samples || !(got.TestLoss < 2*base.TestLoss+0.01) {
		t.Errorf("a loss of %v after %d samples, without changes %v after %d", got.TestLoss, got.Samples, base.TestLoss, base.Samples)
	}
	for k, m := range models {
		if !slices.Equal(m.params, models[0].params) || len(m.batches) == 0 {
			t.Errorf("worker %d has other parameters than worker 0, after %d steps", k, len(m.batches))
		}
	}
}

// A worker that comes back to a job with Muon gets the parameters of the servers, or parameters and state of the
// members of the ring: at the end all have the same bits, and each sample was applied.
func TestMuonWhenWorkersChange(t *testing.T) {
	if len(process.Shaped(optim.Config{Name: optim.Muon}, new(lines).Layout()).Matrices) == 0 {
		t.Fatal("the model has no matrix")
	}
	for _, shards := range []int{1, ring} {
		models := make([]*lines, 4)
		got := train4(t, "ssgd", shards, 2000, 0.005, 0.9, models, leaves, optim.Muon)
		if got.Samples != 4*4*2000 || !(got.TestLoss < 1) {
			t.Errorf("%d shards: a loss of %v after %d samples", shards, got.TestLoss, got.Samples)
		}
		for k, m := range models {
			if !slices.Equal(m.params, models[0].params) || len(m.batches) == 0 {
				t.Errorf("%d shards: worker %d has other parameters than worker 0, after %d steps", shards, k, len(m.batches))
			}
		}
	}
}

// The bytes of a job have those of buffers, which each worker sends and gets back at an evaluation.
func TestBytesOfBuffers(t *testing.T) {
	for _, shards := range []int{2, ring} {
		got := train4(t, "ssgd", shards, 5, 0.01, 0, make([]*lines, 4), buffers).BytesSent
		if want := int64(4 * 2 * 4 * many); got < want || got > want+want/10 {
			t.Errorf("%d shards: %d bytes, want %d and a few", shards, got, want)
		}
	}
}

// ring is the number of shards of a ring.
const ring = 0

// many is how many buffers.
const many = 100_000

// Options of train4 beside codecs and optim.Muon.
const (
	leaves  = "leaves"  // the last worker leaves after 20 steps, and comes back
	waits   = "waits"   // the first worker does not end step 10 before the second one begins step 12
	buffers = "buffers" // the models have many buffers
	curious = "curious" // the models ask for the state of the optimizer in each step
)

// train4 runs a job of four workers in this process, with models that it makes.
func train4(t *testing.T, mode string, shards int, steps int64, rate, momentum float64, models []*lines, options ...string) (result runlog.Result) {
	t.Helper()
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	rules := job.Rule{Optimizer: "momentum", LR: rate, Momentum: momentum, Poison: "fatal"}
	asks := slices.Contains(options, curious)
	for _, o := range options {
		switch o {
		case optim.Muon:
			rules.Optimizer = o
		case curious, leaves, waits, buffers:
		default:
			rules.Compress = o
		}
	}
	arch := job.PS
	if shards == ring {
		arch = job.AllReduce
	}
	out, network := t.TempDir(), job.Network{Listen: addr, Coordinator: addr}
	errs, back, far := make(chan error), make(chan struct{}), make(chan struct{})
	for k := range models {
		models[k] = &lines{params: make([]float32, dimension), asks: asks}
		if slices.Contains(options, buffers) {
			models[k].buffers = make([]float32, many)
		}
		if slices.Contains(options, waits) && k < 2 {
			models[k].before = func(step int) error {
				switch {
				case k == 1 && step == 12:
					close(far)
				case k == 0 && step == 10:
					select {
					case <-far:
					case <-time.After(time.Minute):
						return errors.New("the other worker waits for this one")
					}
				}
				return nil
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		if slices.Contains(options, leaves) {
			models[k].back = back
			if k == len(models)-1 {
				models[k].after, models[k].leave = 20, leave
			}
		}
		run := func(ctx context.Context, m *lines) error {
			return worker.Run(ctx, worker.Config{
				Job:   job.Job{Arch: arch, Rank: k, Batch: 4, Seed: 1, Rule: rules, Files: job.Files{Out: out}, Network: job.Network{Coordinator: addr}},
				Model: m, Name: "lines", Data: points{}, Test: points{},
			})
		}
		go func() {
			err := run(ctx, models[k])
			if ctx.Err() != nil { // it comes back, without parameters
				models[k] = &lines{params: make([]float32, dimension), begun: sync.OnceFunc(func() { close(back) })}
				err = run(t.Context(), models[k])
				for err != nil && strings.Contains(err.Error(), "is taken") { // the job has not noticed yet that it left
					time.Sleep(10 * time.Millisecond)
					err = run(t.Context(), models[k])
				}
			}
			errs <- err
		}()
	}
	err = server.Run(t.Context(), server.Config{
		Job:      job.Job{Arch: arch, Workers: len(models), Batch: 4, Seed: 1, Rule: rules, Network: network, Files: job.Files{Out: out}},
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
	buffers []float32
	batches []batch

	before func(step int) error
	after  int // number of batches after which it leaves; 0: it stays
	leave  func()
	back   chan struct{} // closed when the worker that left computes again; until then steps take a while
	begun  func()
	asks   bool // for the state of the job's optimizer
	recall func(context.Context) (*train.Experience, error)
	asked  int
}

func (m *lines) Asks(recall func(context.Context) (*train.Experience, error)) { m.recall = recall }
func (m *lines) Over(context.Context)                                         {}

func (m *lines) Params() []float32 { return m.params }
func (m *lines) Layout() []train.TensorSpec {
	return []train.TensorSpec{{Name: "a", Shape: []int{3, 7}}, {Name: "b", Shape: []int{3, 4}, Offset: 21}}
}
func (m *lines) Buffers() []float32 { return m.buffers }
func (m *lines) BufferLayout() []train.TensorSpec {
	if m.buffers == nil {
		return nil
	}
	return []train.TensorSpec{{Name: "mean", Shape: []int{len(m.buffers)}}}
}
func (m *lines) Close() error { return nil }

func (m *lines) wide() []float64 {
	w := make([]float64, len(m.params))
	for i, p := range m.params {
		w[i] = float64(p)
	}
	return w
}

func (m *lines) Grad(ctx context.Context, dst []float32, b train.Batch) (float64, error) {
	if m.before != nil {
		if err := m.before(len(m.batches)); err != nil {
			return 0, err
		}
	}
	if m.begun != nil {
		m.begun()
	}
	if m.back != nil {
		select {
		case <-m.back:
		case <-time.After(5 * time.Millisecond):
		}
	}
	if m.asks {
		e, err := m.recall(ctx)
		if err != nil {
			return 0, err
		}
		if v := e.Slots["momentum_buffer"]; e.Steps != int64(m.asked) || len(v) != dimension || (v[0] != 0) != (m.asked > 0) {
			return 0, fmt.Errorf("after %d steps the optimizer remembers %d, and %v", m.asked, e.Steps, v)
		}
		m.asked++
	}
	if m.batches = append(m.batches, slices.Clone(batch(b.X))); len(m.batches) == m.after {
		m.leave()
	}
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
