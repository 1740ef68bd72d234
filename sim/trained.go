package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"star"
	"star/pgns"
	"star/ps"
	"star/ps/rule"
	"star/transport/wire"
)

// Task is something that is trained: a model and its data. What it answers must depend on nothing but its arguments.
type Task interface {
	// Params are the parameters that training begins with. The caller keeps them.
	Params() []float32

	// Gradient writes to dst the gradient, at params, of the mean loss of the samples at positions [from,
	// from+samples) of the task's stream of samples.
	Gradient(dst, params []float32, from int64, samples int) error

	// Accuracy is the part, 0 to 1, of the task's fixed set of test samples that params get right.
	Accuracy(params []float32) (float64, error)
}

// Gauge is a Task that measures the progress of training after each update, from its number of
// samples. It is not asked for accuracies.
type Gauge interface {
	Task
	Progress(params []float32, samples int) float64
}

// Trained is the Learner that trains: real gradients of real models, on the parameters that each
// worker read, which the shard of the parameter servers makes into updates with the rule and the
// optimizer of real jobs. The weights are those of --update-scale n: wₖ = bₖ/B, B the samples of a
// full round. One shard represents any number of them, which changes no bit of the result.
//
// Gradients are worked out when they are applied; one that is dropped costs nothing, unless its rule uses it.
// Samples are handed out at releases, in order of the stream, as the coordinator does.
//
// Progress is the mean accuracy of the last three evaluations: one alone may be luck. A Trained is for one run.
type Trained struct {
	Task Task
	Rule rule.Rule // of this run alone: optimisers remember

	// Spec is what the shard makes of gradients before Rule, which must have a descent in it then; nil: nothing.
	Spec rule.Spec

	// Mean gives gradients the weights of a mean, bₖ by the samples of the update (--update-scale firing). auto has no
	// local steps then, as in a job.
	Mean bool

	// Solo makes what a worker keeps that trains by itself (Plan.Local). nil: workers send gradients.
	Solo func() *rule.Solo

	// Stride makes what a worker makes steps of its own with where the plan has it do so now, and compute
	// gradients at other times, and what it hands over is for a rule that can go on from there ([rule.Strider]).
	// nil: it can make none. Not with Solo.
	Stride func() *rule.Solo

	// Every is how many samples are applied between evaluations: samples and not updates, so that a mode of many
	// small updates is not looked at more often. 0: a full round.
	Every int

	// Evaluations are all accuracies so far; the first after Every samples.
	Evaluations []float64

	// Judged and Refused count the updates that were compared with a validation gradient, and those
	// of them that were not made.
	Judged, Refused int

	round  int
	cursor int64
	used   int64
	seq    int64

	version int64 // of the parameters
	shard   *ps.Shard
	mem     snapshots
	reads   []read
	fire    wire.Fire

	solos     []*rule.Solo
	strides   []*rule.Solo  // of workers with local steps in their last gradient
	turns     []pgns.Change // of the workers' gradients: what a controller knows of the noise where updates are of one
	streams   []streamed    // of workers that exchange fragments
	own       []float32     // parameters of the worker that trains by itself
	step      []float32     // a gradient of it
	descent   *rule.Descent
	planned   bool          // of LiveSpec
	zeno      rule.ZenoSpec // where there is one
	scores    bool          // the shard asks before it applies
	salvages  bool
	reference []float32 // on its way: the validation gradient
	checks    int64     // validation gradients so far
}

// validationFrom is where in the stream of samples validation batches lie: where training does not get to.
const validationFrom = int64(1) << 40

// read is what a worker computes with.
type read struct {
	of *snapshot
	// one version before, of a worker that may make steps of its own and has made none; nil: it is not known
	was     *snapshot
	version int64
	from    int64 // position of its samples
	n       int   // how many were handed out
}

// ErrDiverged is in the error of a run with parameters that are not finite.
var ErrDiverged = errors.New("sim: training diverged")

// evaluations that progress is the mean of.
const smoothed = 3

// Begin implements Learner.
func (t *Trained) Begin(workers, round int) {
	params := t.Task.Params()
	t.round, t.reads = round, make([]read, workers)
	t.mem = snapshots{n: len(params), cur: &snapshot{vec: params}}
	made := t.Rule
	t.descent = rule.Inner(made)
	if t.Spec != nil {
		made = t.Spec.Make(t.descent, workers, len(params))
		live, _ := t.Spec.(rule.LiveSpec)
		t.planned = live.Planned
		t.zeno, _ = t.Spec.(rule.ZenoSpec)
	}
	t.turns = make([]pgns.Change, workers)
	_, t.scores = made.(rule.Scorer)
	_, t.salvages = made.(rule.Salvager)
	if t.Solo != nil {
		t.solos = make([]*rule.Solo, workers)
		for w := range t.solos {
			t.solos[w] = t.Solo()
		}
	}
	t.strides, t.streams = make([]*rule.Solo, workers), make([]streamed, workers)
	t.shard = ps.NewShard(len(params), made, &t.mem)
	t.shard.Load(params, 0)
	if t.Every <= 0 {
		t.Every = round
	}
}

// Release implements Learner.
func (t *Trained) Release(w star.Worker, samples int) {
	r := &t.reads[w]
	t.mem.drop(r.was)
	was := r.of
	if t.Stride == nil || t.strides[w] != nil || r.version+1 != t.version {
		t.mem.drop(was)
		was = nil
	}
	if own := t.shard.Model(w); own != nil {
		of := &snapshot{vec: t.mem.take(), readers: 1}
		copy(of.vec, own)
		*r = read{of: of, was: was, version: t.version, from: t.cursor, n: samples}
		t.cursor += int64(samples)
		return
	}
	t.mem.cur.readers++
	*r = read{of: t.mem.cur, was: was, version: t.version, from: t.cursor, n: samples}
	t.cursor += int64(samples)
	t.shard.Read(w)
}

// Draw implements Drawer.
func (t *Trained) Draw(w star.Worker, samples int) {
	t.reads[w].from, t.reads[w].n = t.cursor, samples
	t.cursor += int64(samples)
}

// compute writes to vec what the worker of g pushes, and the reported length into g.
func (t *Trained) compute(vec []float32, g *Gradient) error {
	r := &t.reads[g.Worker]
	switch {
	case t.Stride != nil:
		if err := t.stride(vec, g, r); err != nil {
			return fmt.Errorf("sim: step %d of worker %d: %w", g.Step, g.Worker, err)
		}
	case (g.Local > 0) != (t.solos != nil):
		return fmt.Errorf("sim: step %d of worker %d has %d steps of its own: plan and learner must agree on whether workers train by themselves", g.Step, g.Worker, g.Local)
	case g.Local > 0:
		if err := t.train(vec, g, r, t.solos[g.Worker]); err != nil {
			return fmt.Errorf("sim: step %d of worker %d: %w", g.Step, g.Worker, err)
		}
	default:
		if err := t.Task.Gradient(vec, r.of.vec, r.from, g.Samples); err != nil {
			return fmt.Errorf("sim: step %d of worker %d: %w", g.Step, g.Worker, err)
		}
		if t.planned && g.Samples < r.n {
			for i := range vec {
				vec[i] *= float32(g.Samples) / float32(r.n)
			}
		}
	}
	norm2 := 0.0
	for _, x := range vec {
		norm2 += float64(x) * float64(x)
	}
	if math.IsNaN(norm2) || math.IsInf(norm2, 0) {
		return fmt.Errorf("%w: the gradient of step %d of worker %d has a norm of %v", ErrDiverged, g.Step, g.Worker, math.Sqrt(norm2))
	}
	if g.Local == 0 {
		g.Change, _ = t.turns[g.Worker].Next(vec)
	} else {
		t.turns[g.Worker] = pgns.Change{}
	}
	if g.Norm2 = norm2; g.Local > 0 {
		g.Norm2 = 0 // it is the norm of no gradient
	}
	return nil
}

// stride has a worker make its own steps, or forget those that it has made and compute a gradient.
func (t *Trained) stride(vec []float32, g *Gradient, r *read) error {
	s := &t.strides[g.Worker]
	if g.Local == 0 {
		*s = nil
		return t.Task.Gradient(vec, r.of.vec, r.from, g.Samples)
	}
	if *s == nil {
		*s = t.Stride()
		if r.was != nil {
			if err := (*s).Follow(r.was.vec, r.of.vec, r.from); err != nil {
				return err
			}
		}
	}
	if g.Streams {
		return t.stream(vec, g, r, *s)
	}
	t.streams[g.Worker] = streamed{}
	return t.train(vec, g, r, *s)
}

// streamed is the parameters of a worker that exchanges fragments, and what it has exchanged last.
type streamed struct {
	own  []float32
	sent rule.Part
}

// stream has a worker make its steps from its own parameters, mix in what has come back of its last exchange, and make
// the distance of the next part.
func (t *Trained) stream(vec []float32, g *Gradient, r *read, s *rule.Solo) error {
	k := &t.streams[g.Worker]
	begins := k.own == nil || k.sent.Parts == 0
	if begins {
		k.own = append(k.own[:0], r.of.vec...)
	}
	if err := t.steps(k.own, g, r, s); err != nil {
		return err
	}
	if from, to := k.sent.Range(len(vec)); !begins {
		rule.Mix(k.own[from:to], r.of.vec[from:to])
	}
	k.sent = g.Of
	s.DistanceFrom(r.of.vec, k.own, vec)
	return nil
}

// steps makes the steps of a worker on params.
func (t *Trained) steps(params []float32, g *Gradient, r *read, s *rule.Solo) error {
	if err := s.Begin(params); err != nil {
		return err
	}
	t.step = append(t.step[:0], params...)
	for _, p := range rule.Pieces(r.from, g.Samples, g.Local) {
		if err := t.Task.Gradient(t.step, params, p.Start, p.Count); err != nil {
			return err
		}
		s.Step(params, t.step, p.Start)
	}
	return nil
}

// train has a worker make its own steps.
func (t *Trained) train(vec []float32, g *Gradient, r *read, s *rule.Solo) error {
	t.own = append(t.own[:0], r.of.vec...)
	if err := t.steps(t.own, g, r, s); err != nil {
		return err
	}
	if g.Moved {
		s.Distance(t.own, vec)
	} else {
		s.End(t.own, vec)
	}
	return nil
}

// weights are those of the gradients in an update.
func (t *Trained) weights(gs []Gradient) (each func(g *Gradient) float32) {
	whole := float64(t.round)
	if t.Mean {
		whole = 0
		for i := range gs {
			whole += perStep(&gs[i])
		}
	}
	return func(g *Gradient) float32 { return float32(perStep(g) / whole) }
}

// perStep are the samples of one step of a gradient's worker.
func perStep(g *Gradient) float64 { return float64(g.Samples) / float64(max(1, g.Local)) }

// push works a gradient out and has the shard store it.
func (t *Trained) push(g *Gradient) error {
	vec := t.mem.take()
	if err := t.compute(vec, g); err != nil {
		return err
	}
	return t.shard.Push(rule.Gradient{Worker: g.Worker, Step: g.Step, Basis: g.Basis, Samples: g.Samples, Of: g.Of, Vec: vec})
}

// Keep implements Keeper.
func (t *Trained) Keep(g *Gradient) error {
	t.shard.Store(math.MaxInt)
	return t.push(g)
}

// Forget implements Keeper.
func (t *Trained) Forget(w star.Worker) {
	t.shard.Forget(w)
	t.streams[w] = streamed{}
}

// Drop implements Salvager. What a rule has no use for is not worked out, unless its worker goes on from there.
func (t *Trained) Drop(version int64, g Gradient, rest float64) error {
	if !t.salvages && t.solos == nil {
		return nil
	}
	vec := t.mem.take()
	if err := t.compute(vec, &g); err != nil {
		return err
	}
	if !t.salvages {
		t.mem.Free(vec)
		return nil
	}
	return t.salvage(version, rule.Gradient{Worker: g.Worker, Step: g.Step, Basis: g.Basis, Samples: g.Samples, Vec: vec}, float32(rest))
}

// salvage has the shard drop a gradient.
func (t *Trained) salvage(version int64, g rule.Gradient, weight float32) error {
	if err := t.shard.Push(g); err != nil {
		return err
	}
	t.seq++
	if err := t.shard.Fire(&wire.Fire{Seq: t.seq, Version: version, Samples: t.used,
		Dropped: []wire.Gradient{{Worker: g.Worker, Step: g.Step, Weight: weight}}, Quiet: []star.Worker{g.Worker}}); err != nil {
		return err
	}
	_, err := t.next(version)
	return err
}

// Validate implements Validator.
func (t *Trained) Validate() error {
	if !t.scores {
		return fmt.Errorf("sim: a validation for a rule that has no use for one: %T", t.Rule)
	}
	t.reference = t.mem.take()
	err := t.Task.Gradient(t.reference, t.shard.Params(), validationFrom+t.checks*int64(t.zeno.Samples), t.zeno.Samples)
	if err != nil {
		return fmt.Errorf("sim: validation gradient %d: %w", t.checks, err)
	}
	return nil
}

// Validated implements Validator.
func (t *Trained) Validated() error {
	g := rule.Gradient{Worker: star.Worker(len(t.reads)), Step: t.checks, Samples: t.zeno.Samples, Vec: t.reference}
	t.checks++
	return t.salvage(t.shard.Version(), g, 0)
}

// next is what the shard has made of a firing, judged if it asks for that.
func (t *Trained) next(version int64) (ps.Event, error) {
	ev, ok := t.shard.Next()
	if ok && ev.Kind == ps.Summed {
		sum2, factor := ev.Squares.Float64(), 1.0
		if t.scores {
			weight := 0.0
			for _, g := range t.fire.Gradients {
				weight += float64(g.Weight)
			}
			v := t.zeno.Judge(rule.Evidence{Dot: ev.Dot / weight, Norm: math.Sqrt(sum2) / weight, Ref: math.Sqrt(ev.Ref.Float64()),
				Rate: t.descent.Schedule.At(t.used), First: t.descent.Schedule.At(0)})
			factor = v.Factor
			if t.Judged++; factor == 0 {
				t.Refused++
			}
		}
		if err := t.shard.Apply(ev.Seq, math.Sqrt(sum2), factor); err != nil {
			return ev, err
		}
		ev, ok = t.shard.Next()
		ev.Report, ev.Sum2 = true, sum2
	}
	if !ok || ev.Kind != ps.Updated || ev.Version != version {
		return ev, fmt.Errorf("sim: the shard has not made version %d: its rule waits for other shards, which a simulation does not have", version)
	}
	return ev, nil
}

// Update implements Learner.
func (t *Trained) Update(version int64, gs []Gradient) Outcome {
	t.seq++
	t.fire = wire.Fire{Seq: t.seq, Version: version, Samples: t.used, Gradients: t.fire.Gradients[:0], Report: true,
		NormFirst: t.scores || t.descent != nil && t.descent.Clip > 0}
	samples := 0
	weight := t.weights(gs)
	if t.fire.Local = gs[0].Local; t.solos != nil || slices.ContainsFunc(gs, func(g Gradient) bool { return g.Local != gs[0].Local }) {
		t.fire.Local = 0
		if each := weight; t.solos == nil { // some bring gradients: see engine.Shards
			weight = func(g *Gradient) float32 { return each(g) * float32(max(1, g.Local)) }
		}
	}
	if gs[0].Outer.Kind != rule.OuterMean {
		t.fire.Local, t.fire.NormFirst, t.fire.Outer = 0, false, gs[0].Outer.String()
		weight = func(g *Gradient) float32 { return g.Weight }
	}
	for i := range gs {
		g := &gs[i]
		if !g.Kept {
			if err := t.push(g); err != nil {
				return Outcome{Err: err}
			}
		}
		samples += g.Samples
		t.fire.Gradients = append(t.fire.Gradients, wire.Gradient{Worker: g.Worker, Step: g.Step, Weight: weight(g)})
	}
	if err := t.shard.Fire(&t.fire); err != nil {
		return Outcome{Err: err}
	}
	ev, err := t.next(version)
	if err != nil {
		return Outcome{Err: err}
	}
	var o Outcome
	if ev.Report && t.solos == nil && !slices.ContainsFunc(gs, func(g Gradient) bool { return g.Local > 0 }) {
		scale := float64(t.round) / float64(samples) // the shard's sum has weights bₖ/B
		if t.Mean {
			scale = 1
		}
		o.Norm2 = ev.Sum2 * scale * scale
	}
	t.version = version
	before := t.used / int64(t.Every)
	t.used += int64(samples)
	if gauge, ok := t.Task.(Gauge); ok {
		o.Progress = gauge.Progress(t.shard.Params(), samples)
		return o
	}
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

// Accuracy is the mean of the last three evaluations; 0 before the third.
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

// Bytes implements Sized: parameters are float32.
func (t *Trained) Bytes() int64 { return 4 * int64(t.mem.n) }

// Round implements Rounder.
func (t *Trained) Round(samples int) { t.round = max(1, samples) }
