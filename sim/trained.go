package sim

import (
	"errors"
	"fmt"
	"math"

	"star"
	"star/ps"
	"star/transport"
)

// Task is something that is trained: a model and its data. What it answers must depend on nothing but its arguments.
type Task interface {
	// Params are the parameters that training begins with. The caller keeps them.
	Params() []float32

	// Gradient writes to dst the gradient, at params, of the mean loss of the samples at positions [from, from+samples) of the task's
	// stream of samples.
	Gradient(dst, params []float32, from int64, samples int) error

	// Accuracy is the part, 0 to 1, of the task's fixed set of test samples that params get right.
	Accuracy(params []float32) (float64, error)
}

// Trained is the Learner that trains: real gradients of real models, on the parameters that each worker read, which the
// shard of the parameter servers makes into updates with the rule and the optimiser of real jobs. The weights are those of --update-scale n: wₖ = bₖ/B, B the samples
// of a full round. One shard stands for any number of them, which changes no bit of the result.
//
// Gradients are worked out when they are applied; one that is dropped costs nothing. Samples are handed out at releases, in order of
// the stream, as the coordinator does.
//
// Progress is the mean accuracy of the last three evaluations: one alone may be luck. A Trained is for one run.
type Trained struct {
	Task Task
	Rule ps.Rule // of this run alone: optimisers remember
	// Every is how many samples are applied between evaluations: samples and not updates, so that a mode of many small updates
	// is not looked at more often. 0: a full round.
	Every int

	// Evaluations are all accuracies so far; the first after Every samples.
	Evaluations []float64

	round  int
	cursor int64
	used   int64
	seq    int64
	shard  *ps.Shard
	mem    snapshots
	reads  []read
	fire   transport.Fire
}

// read is what a worker computes with.
type read struct {
	of   *snapshot
	from int64 // position of its samples
}

// ErrDiverged is in the error of a run whose parameters are no numbers any more.
var ErrDiverged = errors.New("sim: training diverged")

// evaluations that progress is the mean of.
const smoothed = 3

// Begin implements Learner.
func (t *Trained) Begin(workers, round int) {
	params := t.Task.Params()
	t.round, t.reads = round, make([]read, workers)
	t.mem = snapshots{n: len(params), cur: &snapshot{vec: params}}
	t.shard = ps.NewShard(len(params), t.Rule, &t.mem)
	t.shard.Load(params, 0)
	if t.Every <= 0 {
		t.Every = round
	}
}

// Release implements Learner.
func (t *Trained) Release(w star.Worker, samples int) {
	r := &t.reads[w]
	t.mem.drop(r.of)
	t.mem.cur.readers++
	*r = read{of: t.mem.cur, from: t.cursor}
	t.cursor += int64(samples)
}

// Update implements Learner.
func (t *Trained) Update(version int64, gs []Gradient) Outcome {
	t.seq++
	t.fire = transport.Fire{Seq: t.seq, Version: version, Samples: t.used, Gradients: t.fire.Gradients[:0], Report: true}
	samples := 0
	for i := range gs {
		g := &gs[i]
		r := &t.reads[g.Worker]
		vec := t.mem.take()
		if err := t.Task.Gradient(vec, r.of.vec, r.from, g.Samples); err != nil {
			return Outcome{Err: fmt.Errorf("sim: step %d of worker %d: %w", g.Step, g.Worker, err)}
		}
		g.Norm2 = 0
		for _, x := range vec {
			g.Norm2 += float64(x) * float64(x)
		}
		if math.IsNaN(g.Norm2) || math.IsInf(g.Norm2, 0) {
			return Outcome{Err: fmt.Errorf("%w: the gradient of step %d of worker %d has a norm of %v", ErrDiverged, g.Step, g.Worker, math.Sqrt(g.Norm2))}
		}
		if err := t.shard.Push(ps.Gradient{Worker: g.Worker, Step: g.Step, Basis: g.Basis, Samples: g.Samples, Vec: vec}); err != nil {
			return Outcome{Err: err}
		}
		samples += g.Samples
		t.fire.Gradients = append(t.fire.Gradients, transport.Gradient{Worker: g.Worker, Step: g.Step, Weight: float32(float64(g.Samples) / float64(t.round))})
	}
	if err := t.shard.Fire(&t.fire); err != nil {
		return Outcome{Err: err}
	}
	ev, ok := t.shard.Next()
	if !ok || ev.Kind != ps.Updated || ev.Version != version {
		return Outcome{Err: fmt.Errorf("sim: the shard has not made version %d: its rule waits for other shards, of which there are none here", version)}
	}
	var o Outcome
	if ev.Report {
		scale := float64(t.round) / float64(samples) // the shard's sum has weights bₖ/B
		o.Norm2 = ev.Sum2 * scale * scale
	}
	before := t.used / int64(t.Every)
	t.used += int64(samples)
	if t.used/int64(t.Every) > before {
		a, err := t.Task.Accuracy(t.shard.Params())
		if err != nil {
			return Outcome{Err: fmt.Errorf("sim: evaluation of version %d: %w", version, err)}
		}
		t.Evaluations = append(t.Evaluations, a)
	}
	o.Progress = t.Accuracy()
	return o
}

// Accuracy is the mean of the last three evaluations; 0 before there are so many.
func (t *Trained) Accuracy() float64 {
	n := len(t.Evaluations)
	if n < smoothed {
		return 0
	}
	sum := 0.0
	for _, a := range t.Evaluations[n-smoothed:] {
		sum += a
	}
	return sum / smoothed
}

// Params are the present parameters. They belong to the Learner.
func (t *Trained) Params() []float32 { return t.shard.Params() }

// snapshot is a version of the parameters that workers compute with.
type snapshot struct {
	vec     []float32
	readers int
}

// snapshots is the memory of the shard: as many versions as workers are behind by, not one for each worker.
type snapshots struct {
	n    int
	cur  *snapshot
	free [][]float32
}

func (m *snapshots) take() []float32 {
	if k := len(m.free) - 1; k >= 0 {
		v := m.free[k]
		m.free = m.free[:k]
		return v
	}
	return make([]float32, m.n)
}

// drop says that a reader of s is done with it.
func (m *snapshots) drop(s *snapshot) {
	if s == nil {
		return
	}
	if s.readers--; s.readers == 0 && s != m.cur {
		m.Free(s.vec)
	}
}

// Writable implements ps.Memory.
func (m *snapshots) Writable(params []float32) []float32 {
	if m.cur.readers == 0 {
		return params
	}
	m.cur = &snapshot{vec: m.take()}
	return m.cur.vec
}

// Written implements ps.Memory.
func (m *snapshots) Written() {}

// Free implements ps.Memory.
func (m *snapshots) Free(vec []float32) { m.free = append(m.free, vec) }
