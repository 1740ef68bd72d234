package command

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	nouns "star"
	"star/cmd/internal/chaos"
	"star/cmd/internal/launch"
	"star/cmd/internal/node"
	"star/coord"
	"star/coord/engine"
	"star/internal/compress"
	"star/internal/settings"
	"star/modes"
	"star/ps/rule"
	"star/runlog"
	"star/train/checkpoint"
	"star/train/optim"
)

// star-chaos compares a job with faults to a calm job without faults that makes the same updates. The run log has the
// gradients of each update, their samples and the version of their parameters, so one process can compute them again in
// order. The weight of a gradient follows from docs/theory.md, not from the log.
//
// Where shards receive each gradient unchanged, all values are bitwise equal: loss and norm of each gradient as its
// worker recorded them, and parameters and optimiser state in every checkpoint. A tree or a ring sums gradients in
// another order, and a codec changes them: then parameters may differ by a fraction of the distance from the initial
// parameters. What a codec leaves out is added to later gradients, or lost: then only the end is compared, which must
// be nearer to the end of the calm job than the beginning was.
//
// Unstable training amplifies rounding: with momentum, 1e-7 of the distance became 5e-3 in 1100 updates of one worker.
// The comparison measures this: a twin of the calm job makes the same updates with each element of a gradient rounded
// once, and parameters may differ by roundingFor times the difference of the twin.
const (
	apartSummed  = 1e-3 // rounding, amplified by later gradients; measured: 6e-7
	apartHalf    = 1e-2 // fp16, bf16; measured: 2e-5
	apartByte    = 0.1  // int8, int8-stochastic; measured: 0.013
	apartLeftOut = 1    // topk, powersgd, auto; measured: 0.11 to 0.25, early in a job 0.6

	roundingFor = 100 // measured: 0.01 to 4
	unstable    = 0.1 // of the distance: with a larger tolerance the comparison is meaningless
)

// rounded is the relative error of an element of a twin's gradient.
const rounded = 0x1p-22

// calmJob repeats the updates of a job's attempts.
type calmJob struct {
	*node.Calm
	twin   *node.Calm // nil: shards receive each gradient unchanged, or a codec changes them
	job    *settings.Job
	limit  time.Time
	begin  []float32
	apart  float64 // tolerance; 0: bitwise equal
	coded  bool    // a codec changes gradients
	last   int64   // only this version is compared; 0: all
	shards int
	plans  map[string]modes.Plan
	plan   string // of the previous update

	wanted []*wanted // the next gradients with known parameters
	past   map[int64][]float32
	states map[int64][]calmState // of the calm job, and of its twin

	updates, gradients, later int
	compared                  int
	worst, allowed            float64
}

type calmState struct {
	params []float32
	opt    optim.State
}

// wanted is a gradient of a coming update.
type wanted struct {
	chaos.Member
	use   int64 // version after the update
	part  int   // samples of each part of it, with a queue; 0: it was computed at once
	g     node.CalmGradient
	twin  node.CalmGradient
	right bool // it matches the record of its worker
}

var (
	errOutOfTime = errors.New("out of time")
	errNoCalm    = errors.New("not compared")
)

// unlike is a difference to the calm job.
type unlike struct{ what string }

func (u *unlike) Error() string { return u.what }

// calm compares the results of a job's attempts with a calm job.
func (r *breaker) calm(ctx context.Context, attempts []*chaos.Attempt, took time.Duration) chaos.Invariant {
	const name = "parameters of a calm job that made the same updates"
	job := r.job
	pass := func(format string, a ...any) chaos.Invariant {
		return chaos.Invariant{Name: name, OK: true, Detail: fmt.Sprintf(format, a...)}
	}
	switch {
	case job.Resume != "":
		return pass("not compared: the job began with a checkpoint")
	case job.Baseline != "":
		return pass("not compared: a baseline makes updates of its own kind")
	case slices.ContainsFunc(attempts, func(l *chaos.Attempt) bool { return l.Missing != (runlog.Missing{}) }):
		return pass("not compared: a run log lacks updates")
	}
	began := slices.IndexFunc(attempts, func(l *chaos.Attempt) bool { return len(l.Updates) > 0 })
	if began < 0 {
		return pass("there are no updates")
	}
	if job.Arch == settings.AllReduce && job.Optimizer == optim.DANA {
		rides := func(u chaos.Update) bool {
			p, err := modes.Parse(u.Plan, job.Ranks())
			return err != nil || len(p.Groups) != 1 || len(p.Groups[0].Riders) > 0
		}
		if slices.ContainsFunc(attempts, func(l *chaos.Attempt) bool { return slices.ContainsFunc(l.Updates, rides) }) {
			return pass("not compared: riders of a ring have velocities of their own with dana")
		}
		shared := *job
		shared.Optimizer = optim.Nesterov
		job = &shared
	}
	c, err := node.NewCalm(job)
	if err != nil {
		return chaos.Invariant{Name: name, Detail: err.Error()}
	}
	defer c.Close()
	k := &calmJob{
		Calm: c, job: job, limit: time.Now().Add(max(time.Minute, 2*took)), begin: slices.Clone(c.Params()), shards: max(job.Shards, 1), plans: map[string]modes.Plan{},
		states: map[int64][]calmState{}, coded: job.Compress != "none",
	}
	loss := compress.LeftOut // auto may choose any
	if spec, err := compress.ParseSpec(job.Compress); err == nil {
		loss = spec.Loss
	}
	switch loss {
	case compress.Half:
		k.apart = apartHalf
	case compress.Byte:
		k.apart = apartByte
	case compress.LeftOut:
		k.apart, k.last = apartLeftOut, attempts[len(attempts)-1].Version
	}
	if k.apart == 0 && slices.ContainsFunc(attempts, func(l *chaos.Attempt) bool {
		return slices.ContainsFunc(l.Updates, func(u chaos.Update) bool { return u.Summed })
	}) {
		k.apart = apartSummed
	}
	if k.apart == apartSummed {
		if k.twin, err = node.NewCalm(job); err != nil {
			return chaos.Invariant{Name: name, Detail: err.Error()}
		}
		defer k.twin.Close()
	}
	k.keep(0)
	if ok, err := c.Steady(ctx); err != nil {
		return chaos.Invariant{Name: name, Detail: err.Error()}
	} else if !ok {
		return pass("not compared: the model draws at random (dropout) and cannot be repeated")
	}
	err = k.attempts(ctx, attempts, launch.Checkpoints(r.job))
	made := fmt.Sprintf("%d updates of %d gradients", k.updates, k.gradients)
	var u *unlike
	switch {
	case errors.As(err, &u):
		return chaos.Invariant{Name: name, Detail: u.what}
	case errors.Is(err, errOutOfTime):
		made = "the time was enough for " + made
	case errors.Is(err, errNoCalm) && k.updates > 0:
		return pass("%s; from there on %v", made, err)
	case errors.Is(err, errNoCalm):
		return pass("%v", err)
	case err != nil:
		return chaos.Invariant{Name: name, Detail: err.Error()}
	}
	if k.later > 0 {
		made += fmt.Sprintf(", %d of them with later parameters than said", k.later)
	}
	if k.apart > 0 {
		return pass("%s, %d checkpoints: at most %.2g of the way apart, %.2g allowed", made, k.compared, k.worst, k.allowed)
	}
	return pass("%s, %d checkpoints: the same bits", made, k.compared)
}

// attempts repeats the updates of all attempts. An attempt continues from the state at its first version.
func (k *calmJob) attempts(ctx context.Context, attempts []*chaos.Attempt, place string) error {
	found, err := checkpoint.List(place)
	if err != nil {
		return err
	}
	for i, l := range attempts {
		if len(l.Updates) == 0 {
			continue
		}
		st, ok := k.states[l.From]
		if !ok {
			return &unlike{fmt.Sprintf("%s begins with version %d, which no life before has come to", l.Name, l.From)}
		}
		for i, c := range k.both() {
			if err := c.Back(st[i].params, st[i].opt); err != nil {
				return err
			}
		}
		starts := map[int64]bool{}
		for _, later := range attempts[i+1:] {
			starts[later.From] = len(later.Updates) > 0 || starts[later.From]
		}
		saved := map[int64]string{} // by version
		for _, f := range found {
			own := slices.Contains(l.SavedAs, f.Name)
			if f.Complete && (own || unclaimed(attempts, f.Name) && lastBefore(attempts, i, f.Version)) {
				saved[f.Version] = checkpoint.Join(place, f.Name)
			}
		}
		if err := k.attempt(ctx, l, starts, saved); err != nil {
			return err
		}
	}
	return nil
}

// unclaimed reports whether no attempt's log has a checkpoint: the attempt that wrote it was killed before it could log
// it.
func unclaimed(attempts []*chaos.Attempt, name string) bool {
	return !slices.ContainsFunc(attempts, func(l *chaos.Attempt) bool { return slices.Contains(l.SavedAs, name) })
}

// lastBefore reports whether a later attempt begins with version, and attempts[i] is the last attempt before it that
// reached version. Earlier attempts may have reached it too, if a later one started from the beginning.
func lastBefore(attempts []*chaos.Attempt, i int, version int64) bool {
	reached := func(l *chaos.Attempt) bool { return l.From < version && version <= l.Version }
	if !reached(attempts[i]) {
		return false
	}
	for _, l := range attempts[i+1:] {
		if len(l.Updates) > 0 && l.From == version {
			return true
		}
		if reached(l) {
			return false
		}
	}
	return false
}

// attempt repeats the updates of one attempt. It keeps the states at versions in starts and compares those of
// checkpoints.
func (k *calmJob) attempt(ctx context.Context, l *chaos.Attempt, starts map[int64]bool, saved map[int64]string) error {
	basis := map[int64][]*wanted{}
	updates := make([][]*wanted, len(l.Updates))
	for i, u := range l.Updates {
		for _, m := range u.Members {
			w := &wanted{Member: m, use: u.Version}
			if p := k.planOf(u); p.Queue > 0 {
				w.part = p.Part(nouns.Worker(m.Worker), k.job.Batch)
			}
			basis[m.Basis] = append(basis[m.Basis], w)
			updates[i] = append(updates[i], w)
		}
	}
	k.wanted, k.past = nil, map[int64][]float32{}
	at := l.From
	for i, u := range l.Updates {
		if err := k.reached(ctx, at, basis[at]); err != nil {
			return err
		}
		if u.Version != at+1 {
			return fmt.Errorf("%w: the log of %s lacks updates behind version %d", errNoCalm, l.Name, at)
		}
		gs, err := k.weighted(ctx, u, updates[i])
		if err != nil {
			return err
		}
		k.twinUpdate(u, updates[i], gs)
		k.Update(u.Before, gs)
		k.updates++
		k.gradients += len(gs)
		at = u.Version
		if starts[at] {
			k.keep(at)
		}
		if dir, ok := saved[at]; ok {
			if err := k.compare(dir, at); err != nil {
				return err
			}
		}
		if time.Now().After(k.limit) {
			return errOutOfTime
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// both are the calm job and its twin.
func (k *calmJob) both() []*node.Calm {
	if k.twin == nil {
		return []*node.Calm{k.Calm}
	}
	return []*node.Calm{k.Calm, k.twin}
}

// keep saves the states at a version.
func (k *calmJob) keep(version int64) {
	var at []calmState
	for _, c := range k.both() {
		params, opt := c.State()
		at = append(at, calmState{params, opt})
	}
	k.states[version] = at
}

// twinUpdate makes an update of the twin with the weights of the calm job; gradients of a sum are rounded.
func (k *calmJob) twinUpdate(u chaos.Update, members []*wanted, gs []node.Weighted) {
	if k.twin == nil {
		return
	}
	twins := slices.Clone(gs)
	for i, m := range members { // in the order of gs
		if m.twin.Vec == nil {
			m.twin.Vec = slices.Clone(m.g.Vec)
		}
		twins[i].CalmGradient = m.twin
		if u.Summed && len(gs) > 1 {
			for j := range m.twin.Vec {
				if (int64(j)+u.Version)%2 == 0 {
					m.twin.Vec[j] *= 1 + rounded
				}
			}
		}
	}
	k.twin.Update(u.Before, twins)
}

// reached computes the gradients for the current version, and repeats those that do not match their records: shards may
// have sent the worker later parameters.
func (k *calmJob) reached(ctx context.Context, version int64, fresh []*wanted) error {
	open := false
	for _, w := range k.wanted {
		if !w.right && w.use > version {
			g, err := gradient(ctx, k.Calm, k.Params(), w)
			if err != nil {
				return err
			}
			if k.as(w, g) {
				w.right, w.g, g = true, g, w.g
				k.later++
				if err := k.twinOf(ctx, w); err != nil {
					return err
				}
			}
			k.Free(g)
		}
		open = open || !w.right
	}
	for _, w := range fresh {
		g, err := gradient(ctx, k.Calm, k.Params(), w)
		if err != nil {
			return err
		}
		w.g, w.right = g, k.as(w, g)
		if err := k.twinOf(ctx, w); err != nil {
			return err
		}
		k.wanted = append(k.wanted, w)
		open = open || !w.right
	}
	if !open {
		clear(k.past)
	} else if k.shards > 1 && len(k.past) < pastBytes/(4*max(len(k.begin), 1)) {
		k.past[version] = slices.Clone(k.Params())
	}
	return nil
}

// planOf is the plan of an update.
func (k *calmJob) planOf(u chaos.Update) modes.Plan {
	plan, ok := k.plans[u.Plan]
	if !ok {
		plan, _ = modes.Parse(u.Plan, k.job.Ranks()) // else with equal shares
		k.plans[u.Plan] = plan
	}
	return plan
}

// twinOf computes the gradient of w with the twin's parameters.
func (k *calmJob) twinOf(ctx context.Context, w *wanted) (err error) {
	if k.twin == nil {
		return nil
	}
	if w.twin.Vec != nil {
		k.twin.Free(w.twin)
	}
	w.twin, err = gradient(ctx, k.twin, k.twin.Params(), w)
	return err
}

// gradient computes the gradient of w with any parameters.
func gradient(ctx context.Context, c *node.Calm, params []float32, w *wanted) (node.CalmGradient, error) {
	if w.part == 0 {
		return c.Gradient(ctx, params, w.Start, w.Samples)
	}
	first := int64(w.Samples)
	for _, s := range w.More {
		first -= s[1]
	}
	var parts []rule.Piece
	for _, s := range append([][2]int64{{w.Start, first}}, w.More...) {
		for at := int64(0); at < s[1]; at += int64(w.part) {
			parts = append(parts, rule.Piece{Start: s[0] + at, Count: int(min(int64(w.part), s[1]-at))})
		}
	}
	return c.Parts(ctx, params, parts)
}

// as reports whether a gradient matches the record of its worker.
func (k *calmJob) as(w *wanted, g node.CalmGradient) bool {
	switch {
	case !w.Said || k.coded || math.IsNaN(w.Loss) && math.IsNaN(g.Loss):
		return true
	case k.apart == 0:
		return w.Loss == g.Loss && w.Norm2 == g.Norm2
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 10*k.apart*math.Max(math.Abs(b), 1e-2) }
	return near(w.Loss, g.Loss)
}

// weighted are the gradients of an update with their weights.
func (k *calmJob) weighted(ctx context.Context, u chaos.Update, members []*wanted) ([]node.Weighted, error) {
	plan := k.planOf(u)
	if plan.Local > 0 || plan.Micro > 0 {
		return nil, fmt.Errorf("%w: %s makes gradients of several", errNoCalm, u.Plan)
	}
	if k.plan != "" && k.plan != u.Plan && max(plan.Queue, k.plans[k.plan].Queue) > 0 {
		return nil, fmt.Errorf("%w behind version %d: of what parts its gradients are is not known where %s becomes %s", errNoCalm, u.Version-1, k.plan, u.Plan)
	}
	k.plan = u.Plan
	round, total := 0, 0
	for _, w := range u.Live {
		if plan.Shares == nil {
			round += k.job.Batch
		} else {
			round += plan.Shares[w]
		}
	}
	for _, m := range members {
		total += m.Samples
	}
	if u.Round > 0 {
		if u.Round < total && plan.Queue == 0 || u.Round > k.job.Ranks()*k.job.Batch && plan.Shares == nil {
			return nil, &unlike{fmt.Sprintf("update %d of %d samples says that a round has %d", u.Version, total, u.Round)}
		}
		round = u.Round
	}
	slices.SortFunc(members, func(a, b *wanted) int { return a.Worker - b.Worker })
	var gs []node.Weighted
	for _, m := range members {
		if m.g.Vec == nil {
			return nil, &unlike{fmt.Sprintf("update %d uses a gradient of worker %d of version %d of the parameters, which its life has not come to", u.Version, m.Worker, m.Basis)}
		}
		if !m.right {
			if err := k.torn(ctx, m); err != nil {
				return nil, err
			}
		}
		k.wanted = slices.DeleteFunc(k.wanted, func(w *wanted) bool { return w == m })
		c := coord.Scale(k.job.UpdateScale).Weight(float64(m.Samples), float64(total), float64(round),
			float64(engine.Round(plan, k.job.Batch, k.job.Workers)), u.Version-1-m.Basis)
		if m.Out {
			c = 0
		}
		gs = append(gs, node.Weighted{CalmGradient: m.g, Worker: m.Worker, Weight: c})
	}
	return gs, nil
}

// Shards may send a worker different versions if it reads parameters during updates: when it joins the job
// (ps.Link.Pull), or when its connection to a shard ended and it reads from a copy that is further (ps.replicaSet). No
// log has these versions; tornTime bounds the search for them.
const tornTime = 20 * time.Second

// pastBytes bounds the memory of the parameters that are kept for that.
const pastBytes = 1 << 29

// torn searches for the two versions that shards sent a worker. It wraps errNoCalm at the timeout; other errors mean
// that no pair fits.
func (k *calmJob) torn(ctx context.Context, m *wanted) error {
	var versions []int64
	for v := range k.past {
		if v >= m.Basis {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	end := time.Now().Add(tornTime)
	for pair := range likely(len(versions)) {
		if found, err := k.tornOf(ctx, m, versions[pair[0]], versions[pair[1]]); found || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w behind %d updates: which parameters worker %d was sent between versions %d and %d is not known", errNoCalm, k.updates, m.Worker, m.Basis, m.use)
		}
	}
	return &unlike{fmt.Sprintf("the gradient of worker %d at step %d, in update %d, is of other parameters than version %d: its loss was %v and its norm² %v, in a calm job %v and %v",
		m.Worker, m.Step, m.use, m.Basis, m.Loss, m.Norm2, m.g.Loss, m.g.Norm2)}
}

// likely are all pairs i < j < n. Pairs with 0 are first, since a shard that answered at once sent the basis; other
// pairs are close.
func likely(n int) iter.Seq[[2]int] {
	return func(yield func([2]int) bool) {
		for j := 1; j < n; j++ {
			if !yield([2]int{0, j}) {
				return
			}
		}
		for gap := 1; gap < n; gap++ {
			for i := 1; i+gap < n; i++ {
				if !yield([2]int{i, i + gap}) {
					return
				}
			}
		}
	}
}

// tornOf reports whether m matches its record if some shards sent version a of the parameters and others version b; m.g
// is then that gradient.
func (k *calmJob) tornOf(ctx context.Context, m *wanted, a, b int64) (bool, error) {
	n := len(k.begin)
	params := make([]float32, n)
	for mask := 1; mask < 1<<min(k.shards, 6)-1; mask++ {
		for s := range k.shards {
			from, to, v := n*s/k.shards, n*(s+1)/k.shards, a
			if mask>>min(s, 5)&1 == 1 {
				v = b
			}
			copy(params[from:to], k.past[v][from:to])
		}
		g, err := gradient(ctx, k.Calm, params, m)
		if err != nil {
			return false, err
		}
		if k.as(m, g) {
			k.Free(m.g)
			m.g, m.right = g, true
			m.twin = node.CalmGradient{} // its past parameters are not kept
			k.later++
			return true, nil
		}
		k.Free(g)
	}
	return false, nil
}

// from is the distance of parameters from the calm job's, relative to the distance from the initial parameters.
func (k *calmJob) from(params []float32) float64 {
	var off, way float64
	for i, v := range k.Params() {
		off += square(float64(params[i]) - float64(v))
		way += square(float64(v) - float64(k.begin[i]))
	}
	return math.Sqrt(off / math.Max(way, math.SmallestNonzeroFloat64))
}

// compare compares the checkpoint of a version with the calm job.
func (k *calmJob) compare(dir string, version int64) error {
	if k.last > 0 && version != k.last {
		return nil
	}
	c, err := checkpoint.Open(dir)
	if err != nil {
		return nil // the checkpoint invariant reports it
	}
	s, err := c.Shard(0, c.Manifest().Params)
	if err != nil {
		return err
	}
	if len(s.Params) != len(k.Params()) {
		return &unlike{fmt.Sprintf("%s has %d parameters, the model %d", dir, len(s.Params), len(k.Params()))}
	}
	k.compared++
	if k.apart > 0 {
		apart, allowed := k.from(s.Params), k.apart
		if k.twin != nil && !(apart <= allowed) {
			twin := k.from(k.twin.Params())
			if allowed = max(allowed, roundingFor*twin); allowed > unstable {
				k.compared--
				return fmt.Errorf("%w: at version %d a rounding has become %.2g of the way, as training is not stable", errNoCalm, version, twin)
			}
		}
		if !(apart <= allowed) {
			return &unlike{fmt.Sprintf("%s: the parameters of version %d are %.3g of the way since the beginning apart from those of a calm job, at most %.2g", dir, version, apart, allowed)}
		}
		k.worst, k.allowed = max(k.worst, apart), max(k.allowed, allowed)
		return nil
	}
	if err := sameVector(dir, "parameters", version, s.Params, k.Params()); err != nil {
		return err
	}
	_, opt := k.State()
	for _, slot := range opt.Slots {
		i := slices.IndexFunc(s.Slots, func(o checkpoint.Slot) bool { return o.Name == slot.Name })
		if i < 0 {
			return &unlike{fmt.Sprintf("%s: version %d is without the optimiser's %s", dir, version, slot.Name)}
		}
		if err := sameVector(dir, slot.Name, version, s.Slots[i].Data, slot.Data); err != nil {
			return err
		}
	}
	return nil
}

func square(x float64) float64 { return x * x }

// sameVector describes the first difference of two vectors.
func sameVector(dir, what string, version int64, got, want []float32) error {
	n, first := 0, -1
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			if n++; first < 0 {
				first = i
			}
		}
	}
	if n == 0 {
		return nil
	}
	return &unlike{fmt.Sprintf("%s: %s of version %d differ in %d of %d elements from those of a calm job, first element %d: %v, want %v",
		dir, what, version, n, len(want), first, got[first], want[first])}
}
