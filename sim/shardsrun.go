package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/ps/rule"
	"star/transport/wire"
)

// shardsRun is a job with parameter servers that engine.Shards decides, as for a coordinator,
// instead of the Barrier alone: batches come from one stream, are handed out in order of rank, and
// again if their worker has left; workers report up a tree. The workers behave as in every run.
//
//	            ┌──────────── Detached ──────────────┐
//	            │                                    ▼
//	compute ──► parent: its children, itself ──► … ──► shards ──► Reported, Stored, Arrive ──► Fire, Release ──► parameters, from the shards or the parent
//
// The engine sees the shards as one: what all of them have stored is stored. A message of a worker
// arrives at once, and a message to it Config.Latency later.
type shardsRun struct {
	*run
	e  *engine.Shards
	at []reporter
}

// reporter is what an engine has told a worker, and what has become of it.
type reporter struct {
	release wire.Release
	// unused: it has a gradient that no Ready has used.
	unused bool
	told   bool // to stop after the part that it is at
	said   bool // Arrive

	// In a tree.
	parent  star.Worker
	waits   []star.Worker // children with a missing gradient
	shares  []wire.Share  // of the gradients that are present, except its own
	through bool          // with computing
	top     bool          // shards get its gradient and those of others
	feeds   []star.Worker // children that get their parameters from it, when it has them
}

// streaming is a worker's exchange in fragments (Plan.Fragments). All methods but released may be called with nil.
type streaming struct {
	on bool

	// The part of the parameters of its next or last push, and of the one before, which comes back first.
	of, back rule.Part

	// It begins its next batch when it has pushed this one.
	ahead bool

	// When it began the present batch, if before its release; -1: not before. credit is how long it had computed on it
	// by then, less what spend has taken.
	began  time.Duration
	credit time.Duration
}

// streams is the exchange of w in fragments; nil: it has none.
func (r *run) streams(w star.Worker) *streaming {
	if r.streaming == nil {
		return nil
	}
	return &r.streaming[w]
}

// released begins a release. pushed is when the worker began its last push.
func (s *streaming) released(rel *wire.Release, pushed time.Duration) {
	s.on = s.ahead || len(rel.Ahead) > 0
	if s.began, s.credit = -1, 0; s.ahead {
		s.began = pushed
	}
	s.back, s.of, s.ahead = s.of, rule.Part{Parts: rel.Fragments, Index: rel.Fragment}, len(rel.Ahead) > 0
}

// since is when the worker began the batch for which it has the parameters at a time.
func (s *streaming) since(at time.Duration) time.Duration {
	if s == nil || s.began < 0 {
		return at
	}
	return s.began
}

// begins says that the worker has the parameters for a batch, and when its last push began.
func (s *streaming) begins(at, pushed time.Duration) {
	if s != nil && s.began >= 0 {
		s.credit = at - pushed
	}
}

// spend takes up to d of the time that the worker has computed before.
func (s *streaming) spend(d time.Duration) time.Duration {
	if s == nil {
		return 0
	}
	d = min(d, s.credit)
	s.credit -= d
	return d
}

// sent and came are the bytes of a push and of the parameters after it, of all parameters' bytes.
func (s *streaming) sent(all float64) float64 {
	if s == nil {
		return all
	}
	return all / float64(max(1, s.of.Parts))
}

func (s *streaming) came(all float64) float64 {
	if s == nil {
		return all
	}
	return all / float64(max(1, s.back.Parts))
}

// startShards starts all workers, or the first validation.
func (r *run) startShards() error {
	n := len(r.workers)
	reachable := make([]bool, n)
	for w := range reachable {
		reachable[w] = true
	}
	r.streaming = make([]streaming, n)
	s := &shardsRun{run: r, at: make([]reporter, n)}
	s.e = engine.NewShards(engine.Config{Plan: r.plan, Workers: n, Shards: 1, Batch: r.Batch, Limit: math.MaxInt64 / 2, Cancel: r.Cancel, Reachable: reachable})
	r.sharded = s
	return r.start()
}

// begin starts all workers, including those that returned before.
func (s *shardsRun) begin(at time.Duration) error {
	if err := s.carry(at, at, s.e.Begin(nil), nil); err != nil {
		return err
	}
	for w := range s.workers {
		if k := star.Worker(w); !s.workers[w].gone && !s.e.Worker(k).Live {
			if err := s.joined(at, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// carry does what the engine has ready at a time. What it says to workers reaches them when it is due.
func (s *shardsRun) carry(at, due time.Duration, os []engine.Ready, err error) error {
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	for i := range os {
		if err := s.do(at, due, &os[i]); err != nil {
			return err
		}
	}
	return nil
}

// do does one thing that is ready.
func (s *shardsRun) do(at, due time.Duration, o *engine.Ready) error {
	if k := o.Grace.Number; k > 0 {
		s.after(at+o.Grace.For, func(at time.Duration) error { return s.carry(at, at+s.Latency, s.e.Lapse(k), nil) })
		return nil
	}
	if o.Evict != nil {
		return fmt.Errorf("sim: %w", o.Evict.Why)
	}
	if err := s.update(at, o); err != nil {
		return err
	}
	for _, d := range o.Detached {
		s.after(due, func(at time.Duration) error { return s.detached(at, d.Worker, d.Msg) })
	}
	for _, c := range o.Cancels {
		s.stop(at, c.Worker)
	}
	branches := map[star.Worker]*wire.Branch{}
	for i := range o.Branches {
		branches[o.Branches[i].Worker] = &o.Branches[i]
	}
	s.released = s.released[:0]
	var relayed []star.Worker
	version := o.Fire.Version
	for _, rel := range o.Releases {
		m := &s.workers[rel.Worker]
		if m.waits {
			s.waiting += at - m.arrived
			m.waited = due - m.arrived
		}
		m.waits = false
		version = rel.Version
		x := &s.at[rel.Worker]
		*x = reporter{release: rel, parent: modes.Direct}
		if b := branches[rel.Worker]; b != nil {
			x.parent, x.top = star.Worker(b.Parent), star.Worker(b.Parent) == modes.Direct
			for _, c := range b.Children {
				x.waits = append(x.waits, c.Worker)
			}
			if b.Relay && s.net != nil {
				relayed = append(relayed, rel.Worker)
				continue
			}
		}
		s.released = append(s.released, rel.Worker)
	}
	for _, w := range relayed {
		p := s.at[w].parent
		s.at[p].feeds = append(s.at[p].feeds, w)
		s.prepare(w, version)
		s.net.at[w].released = due
	}
	if len(o.Members) == 0 && len(s.released) == 0 {
		return nil
	}
	return s.goOn(due, version, len(o.Members))
}

// update is what becomes of gradients.
func (s *shardsRun) update(at time.Duration, o *engine.Ready) error {
	for _, rel := range o.Releases { // workers that continue before their gradient is used
		x := &s.at[rel.Worker]
		dropped := slices.ContainsFunc(o.Dropped, func(g wire.Gradient) bool { return g.Worker == rel.Worker })
		if x.unused && !dropped && s.nonBlocking(rel.Worker) {
			if err := s.keep(rel.Worker); err != nil {
				return err
			}
			x.unused = false
		}
	}
	s.applied = s.applied[:0]
	var outer rule.Outer
	if o.Fire.Outer != "" {
		var err error
		if outer, err = rule.ParseOuter(o.Fire.Outer); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	for i, member := range o.Members {
		w := member.Worker
		g := s.gradient(w)
		if kept := s.banks[w]; len(kept) > 0 && kept[0].Step == member.Step {
			g, s.banks[w] = kept[0], kept[1:]
		} else {
			s.at[w].unused = false
		}
		if o.Fire.Outer != "" {
			g.Outer, g.Weight = outer, member.Weight
		}
		s.applied = append(s.applied, g)
		s.stale += o.Stale[i]
		s.result.Samples += int64(g.Samples)
	}
	if len(s.applied) > 0 {
		if err := s.run.update(at, o.Fire.Version); err != nil {
			return err
		}
	}
	var dropped []star.Worker
	for _, g := range o.Dropped {
		s.at[g.Worker].unused = false
		dropped = append(dropped, g.Worker)
	}
	return s.drop(o.Fire.Version, dropped)
}

// nonBlocking says whether w goes on before its gradient is used.
func (s *shardsRun) nonBlocking(w star.Worker) bool {
	return slices.ContainsFunc(s.plan.Groups, func(g modes.Group) bool { return g.NonBlocking && slices.Contains(g.Members, w) })
}

// arrive is a gradient that is where it was sent: with its parent, or with every shard.
func (s *shardsRun) arrive(at time.Duration, w star.Worker, rec star.Record) error {
	x := &s.at[w]
	x.unused = true
	if x.parent != modes.Direct {
		return s.handOver(at, w, rec)
	}
	if x.top {
		os, err := s.e.Reported(wire.Bundle{Worker: w, Step: rec.Step, Members: append([]wire.Share{s.share(w, rec.Step)}, x.shares...)})
		if err := s.carry(at, at+s.Latency, os, err); err != nil {
			return err
		}
	}
	return s.stored(at, w, rec)
}

// stored is a gradient that every shard holds.
func (s *shardsRun) stored(at time.Duration, w star.Worker, rec star.Record) error {
	said := s.at[w].said // before it may be released
	os, err := s.e.Stored(0, w, rec.Step)
	if err := s.carry(at, at+s.Latency, os, err); err != nil || said {
		return err
	}
	return s.say(at, w, rec)
}

// say tells that a worker's gradient is where it was sent.
func (s *shardsRun) say(at time.Duration, w star.Worker, rec star.Record) error {
	s.at[w].said = true
	_, os, err := s.e.Arrive(rec, false)
	return s.carry(at, at+s.Latency, os, err)
}

func (s *shardsRun) share(w star.Worker, step int64) wire.Share {
	return wire.Share{Worker: w, Step: step, Samples: s.at[w].release.Count}
}

// handOver brings a gradient, and those that have come with it, to the parent in the tree. A lost
// parent takes none: the engine decides which workers report alone.
func (s *shardsRun) handOver(at time.Duration, w star.Worker, rec star.Record) error {
	x := &s.at[w]
	p := &s.at[x.parent]
	i := slices.Index(p.waits, w)
	if s.workers[x.parent].gone || i < 0 {
		return nil
	}
	p.waits = slices.Delete(p.waits, i, i+1)
	p.shares = append(append(p.shares, s.share(w, rec.Step)), x.shares...)
	parent := x.parent
	if err := s.say(at, w, rec); err != nil {
		return err
	}
	return s.forward(at, parent)
}

// inner says whether w sends its gradient on with those of others.
func (s *shardsRun) inner(w star.Worker) bool { x := &s.at[w]; return len(x.waits)+len(x.shares) > 0 }

// ready is a worker with children that has computed.
func (s *shardsRun) ready(at time.Duration, w star.Worker) error {
	s.at[w].through = true
	return s.forward(at, w)
}

// forward sends on what is here, when everything is.
func (s *shardsRun) forward(at time.Duration, w star.Worker) error {
	if x := &s.at[w]; !x.through || len(x.waits) > 0 {
		return nil
	}
	s.at[w].through = false
	return s.push(at, w)
}

// push sends a worker's gradient to its parent, or to the shards.
func (s *shardsRun) push(at time.Duration, w star.Worker) error {
	m := &s.workers[w]
	if s.net != nil {
		return s.net.push(at, w)
	}
	m.due = at + m.spent.Push
	s.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
	return nil
}

// detached takes a gradient off the way that its branch says.
func (s *shardsRun) detached(at time.Duration, w star.Worker, d wire.Detach) error {
	x, m := &s.at[w], &s.workers[w]
	switch {
	case m.gone:
		return nil
	case d.Worker != w:
		if i := slices.Index(x.waits, d.Worker); i >= 0 && s.step(d.Worker) == d.Step {
			x.waits = slices.Delete(x.waits, i, i+1)
			return s.forward(at, w)
		}
		return nil
	case s.step(w) != d.Step:
		return nil
	}
	x.parent, x.top, x.waits, x.shares = modes.Direct, false, nil, nil
	if x.through {
		return s.forward(at, w)
	}
	if !x.unused {
		return nil // it computes, or its gradient is on its way
	}
	rec := star.Record{Worker: w, Step: d.Step, Basis: m.basis, Samples: m.samples}
	attempt := s.attempt(w)
	return s.resend(at, w, func(at time.Duration) error {
		if s.attempt(w) != attempt || s.step(w) != d.Step {
			return nil
		}
		return s.stored(at, w, rec)
	})
}

// resend sends the gradient of a worker to the shards once more.
func (s *shardsRun) resend(at time.Duration, w star.Worker, done func(at time.Duration) error) error {
	m := &s.workers[w]
	if s.net == nil {
		s.result.Bytes += float64(s.Bytes)
		s.after(at+m.spent.Push, done)
		return nil
	}
	s.net.at[w].missing = len(s.net.shards)
	s.net.toShards(at+m.spent.Push, w, func(at time.Duration, host int) error {
		s.after(at+s.net.delay(host, s.net.shards[0].host), done)
		return nil
	})
	return nil
}

// step is the one that the engine has for w.
func (s *shardsRun) step(w star.Worker) int64 { return s.e.Worker(w).Step }

// attempt counts the times that w was gone.
func (s *shardsRun) attempt(w star.Worker) int64 { return int64(s.attempts[w]) }

// another has w, which is through with a part, go on with the next one, unless it was told to stop or has nothing left.
func (s *shardsRun) another(at time.Duration, w star.Worker) (bool, error) {
	m, x := &s.workers[w], &s.at[w]
	os, err := s.e.Computed(wire.Computed{Worker: w, Version: m.basis, Samples: m.samples})
	if err := s.carry(at, at+s.Latency, os, err); err != nil {
		return false, err
	}
	if x.told || s.net != nil && s.net.at[w].halt || m.samples >= x.whole() {
		return false, nil
	}
	m.part = int32(partEnd(&x.release, m.samples) - m.samples)
	return true, nil
}

// whole is how many samples w has at most.
func (x *reporter) whole() int {
	n := x.release.Count
	for _, p := range x.release.More {
		n += p.Count
	}
	return n
}

// stop tells w to stop after the part of its batch that it is at.
func (s *shardsRun) stop(at time.Duration, w star.Worker) {
	switch m := &s.workers[w]; {
	case s.net != nil:
		s.net.cancel(at+s.Latency, w)
	case m.part > 0:
		step, attempt := s.step(w), s.attempt(w)
		s.after(at+s.Latency, func(time.Duration) error {
			if s.step(w) == step && s.attempt(w) == attempt {
				s.at[w].told = true
			}
			return nil
		})
	default:
		s.cancelOne(at, w)
	}
}

// fed has the children of w that get their parameters from it get them, or from the shards, if it is gone.
func (s *shardsRun) fed(at time.Duration, w star.Worker, gone bool) {
	feeds := s.at[w].feeds
	s.at[w].feeds = nil
	if gone && len(feeds) > 0 {
		s.net.fired(at, 0, feeds)
		return
	}
	for _, c := range feeds {
		s.result.Bytes += float64(s.Bytes)
		s.net.send(at, s.net.home[w], s.net.home[c], float64(s.Bytes), c, func(at time.Duration) error { return s.net.begin(at, c) })
	}
}

// leave is the loss of a worker.
func (s *shardsRun) leave(at time.Duration, w star.Worker) error {
	s.attempts[w]++
	if s.net != nil {
		s.fed(at, w, true)
		if p := s.at[w].parent; p != modes.Direct {
			s.at[p].feeds = slices.DeleteFunc(s.at[p].feeds, func(c star.Worker) bool { return c == w })
		}
	}
	s.at[w].unused, s.at[w].through = false, false
	return s.carry(at, at+s.Latency, s.e.Leave(w), nil)
}

// joined is the return of one, which may have to wait until what it computed in its earlier attempt is used.
func (s *shardsRun) joined(at time.Duration, w star.Worker) error {
	switch {
	case !s.begun:
		return nil
	case s.e.Lingers(w):
		attempt := s.attempt(w)
		s.after(at+time.Millisecond, func(at time.Duration) error {
			if s.attempt(w) != attempt || s.workers[w].gone {
				return nil
			}
			return s.joined(at, w)
		})
		return nil
	}
	os := s.e.Join(w, true)
	s.workers[w].step = s.step(w)
	return s.carry(at, at+s.Latency, os, nil)
}
