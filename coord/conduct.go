package coord

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"star"
	"star/coord/engine"
	"star/transport/wire"
)

// What a member says is held against what it can know, before anybody acts on it: whose word it is,
// whether it is its own, and whether an honest program could have measured it. Who says anything
// else loses its connection, and nothing of it reaches the barrier, an average, or the run log.
//
// What this cannot notice is a lie that could be true. So nothing that a single worker says of
// itself ends the job (left), and where several say the same thing most of them are right (compare,
// ring.agreed, exclude).

// slack is by how much the clock of a member may be ahead of ours: hosts sleep. Times of records
// are durations by the member's clock, which may have jumped while they were measured.
const slack = time.Hour

// largest32 is the square of the largest float32: no element of a vector adds more to the square of
// its norm.
const largest32 = math.MaxFloat32 * math.MaxFloat32

// wellFormed says what is wrong with a message of a member, if anything is. It changes nothing. The
// error is for the log, and for the member, which ends with exit code 78.
func (c *Coordinator) wellFormed(p *peer, e *event) error {
	if w, ok := e.speaker(); ok && int(w) != p.rank && p.role != wire.RoleServer {
		return fmt.Errorf("%v of worker %d, which it is not", e.kind, w)
	}
	switch p.role {
	case wire.RoleServer:
		return c.serverSays(p, e)
	case wire.RoleWorker:
		return c.workerSays(p, e)
	}
	return nil
}

// speaker is the worker in whose name a message is. ok is false for what is said in nobody's name:
// heartbeats, and what servers say of shards.
func (e *event) speaker() (w star.Worker, ok bool) {
	switch e.kind {
	case wire.KindJoined:
		return e.joined.Worker, true
	case wire.KindArrive:
		return e.arrive.Record.Worker, true
	case wire.KindBuffers:
		return e.buffers.Worker, true
	case wire.KindEvalResult:
		return e.eval.Worker, true
	case wire.KindFormed:
		return e.formed.Worker, true
	case wire.KindTally:
		return e.tally.Worker, true
	case wire.KindComputed:
		return e.computed.Worker, true
	case wire.KindFault:
		return e.fault.Worker, true
	case wire.KindBundle:
		return e.bundle.Worker, true
	case wire.KindCompression:
		return e.codec.Worker, true
	case wire.KindHalt:
		return e.halt.Worker, true
	}
	return 0, false
}

// workerSays is for workers. What belongs to a step or a ring is the engine's to judge; here is
// what would do harm before it gets there, or never gets there.
func (c *Coordinator) workerSays(p *peer, e *event) error {
	switch e.kind {
	case wire.KindJoined:
		switch {
		case !p.welcomed:
			return errors.New("joined before it was welcomed")
		case c.joined[p.rank]:
			return errors.New("joined a second time")
		}
		return nil
	case wire.KindPing, wire.KindPong, wire.KindLeave:
		return nil
	}
	switch {
	case c.isLate(p):
		return fmt.Errorf("unexpected frame %v from a worker that has no part in the job yet", e.kind)
	case e.kind == wire.KindCompression: // of the first codec, before the start
		m := &e.codec
		known := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-=.", r)
		}
		if p.codec == "" || m.Codec == "" || strings.ContainsFunc(m.Codec, func(r rune) bool { return !known(r) }) {
			return fmt.Errorf("compression %.40q of a worker that came with %q (--compress)", m.Codec, p.codec)
		}
		return c.past("compression", m.Version)
	case c.engine == nil:
		return fmt.Errorf("%v before the start", e.kind)
	}
	switch e.kind {
	case wire.KindArrive:
		return c.possible(&e.arrive.Record)
	case wire.KindEvalResult:
		return c.evaluable(&e.eval)
	case wire.KindBuffers:
		return c.asked(e.buffers.Eval)
	case wire.KindPoison:
		m := &e.poison
		switch own := int(m.Worker) == p.rank; {
		case !own && !c.engine.Carries(star.Worker(p.rank), m.Worker):
			return fmt.Errorf("poison of worker %d, for which it does not speak", m.Worker)
		case m.Shard != -1:
			return fmt.Errorf("poison of shard %d, which a worker has not", m.Shard)
		case own && m.Step > c.engine.Worker(m.Worker).Step+engine.RingAhead:
			return fmt.Errorf("poison of step %d, and it is at step %d", m.Step, c.engine.Worker(m.Worker).Step)
		case math.Abs(m.Value) > largest32:
			return fmt.Errorf("poison of the value %g", m.Value)
		}
	}
	return nil
}

// past says what is wrong with a version that is told of something that has happened. In a ring a
// round that was granted may be told of before it is complete, so the newest is the newest that
// anybody may have been given.
func (c *Coordinator) past(what string, version int64) error {
	newest := c.cfg.Resume.Version
	if c.engine != nil {
		newest = c.engine.State().Next
	}
	if version > newest {
		return fmt.Errorf("%s at version %d of the parameters, and the newest is %d", what, version, newest)
	}
	return nil
}

// possible says what is wrong with a record, which its worker may have measured or not. Bounds are
// far above what an honest worker could measure, and low enough that sums and squares of them stay
// finite.
func (c *Coordinator) possible(r *star.Record) error {
	most := c.elapsed() + slack
	for _, d := range []struct {
		name string
		is   time.Duration
	}{{"at", r.At}, {"compute", r.Compute}, {"load", r.Load}, {"push", r.Push}, {"wait", r.Wait}, {"pull", r.Pull}, {"injected", r.Injected}} {
		if d.is < 0 || d.is > most {
			return fmt.Errorf("a record with a %s of %v in a job that has run for %v", d.name, d.is, c.elapsed().Round(time.Second))
		}
	}
	bytes := float64(64*(int64(c.cfg.Workers)+2)*(c.hello.Params+c.hello.Buffers)) + 1<<30 // of an iteration: what is exchanged, many times
	for _, v := range []struct {
		name      string
		is        float64
		low, high float64
		unknown   bool // it may be no number
	}{
		{"loss", r.Loss, -largest32, largest32, true},
		{"norm2", r.Norm2, 0, float64(c.hello.Params) * largest32, true},
		{"cpu", r.CPU, 0, 1e9, true},
		{"net_in", r.NetIn, 0, bytes, false},
		{"net_out", r.NetOut, 0, bytes, false},
	} {
		if !(v.is >= v.low && v.is <= v.high) && !(v.unknown && math.IsNaN(v.is)) {
			return fmt.Errorf("a record with a %s of %g, want %.3g to %.3g", v.name, v.is, v.low, v.high)
		}
	}
	for m := range star.NumMetrics {
		if v, ok := r.Telemetry.Get(m); ok && m != star.GradChange && math.Abs(v) > 1e18 || ok && m == star.GradChange && v < 0 {
			return fmt.Errorf("a record with a %v of %g", m, v)
		}
	}
	return c.past("a gradient", r.Basis)
}

// evaluable says what is wrong with a part of an evaluation. A loss that is no number is taken: the
// model may have diverged.
func (c *Coordinator) evaluable(e *wire.EvalResult) error {
	const each = 1 << 20 // predictions of one sample, such as the characters of a text
	switch tests := max(c.enrolled.Tests, c.enrolled.Samples, 1); {
	case e.Correct < 0 || e.Correct > e.Count:
		return fmt.Errorf("%d predictions of %d are right", e.Correct, e.Count)
	case e.Count/each > tests:
		return fmt.Errorf("%d predictions of %d samples", e.Count, tests)
	case math.IsInf(e.LossSum, 0) || math.Abs(e.LossSum) > float64(max(e.Count, 1))*math.MaxFloat32:
		return fmt.Errorf("a loss of %g in %d predictions", e.LossSum, e.Count)
	case e.Took < 0 || e.Took > c.elapsed()+slack:
		return fmt.Errorf("an evaluation of %v in a job that has run for %v", e.Took, c.elapsed().Round(time.Second))
	}
	if err := c.asked(e.Eval); err != nil {
		return err
	}
	return c.past("evaluated", e.Version)
}

// asked says what is wrong with the number of an evaluation that somebody has made.
func (c *Coordinator) asked(eval int64) error {
	if c.takeover == nil && eval > c.rounds.Number() {
		return fmt.Errorf("evaluation %d, and the last one was %d", eval, c.rounds.Number())
	}
	return nil
}

// serverSays is for servers: they speak for shards that they have. A squared norm may be infinite,
// of a gradient that is; but not larger than a slice of that length can have otherwise.
func (c *Coordinator) serverSays(p *peer, e *event) error {
	switch e.kind {
	case wire.KindReady:
		if err := c.speaksFor(p, e.kind, e.ready.Shard); err != nil || c.engine == nil {
			return err
		}
		return c.past("a shard is ready", e.ready.Version)
	case wire.KindStored:
		m := &e.stored
		if err := c.speaksFor(p, e.kind, m.Shard); err != nil {
			return err
		}
		if s := c.shards[m.Shard]; m.Sum2 > 1.01*float64(s.To-s.From)*largest32 && !math.IsInf(m.Sum2, 1) {
			return fmt.Errorf("a slice of %d elements with the squared norm %g", s.To-s.From, m.Sum2)
		}
		if c.engine != nil && int(m.Worker) < len(c.workers) {
			if step := c.engine.Worker(m.Worker).Step; m.Step > step+1 {
				return fmt.Errorf("holds step %d of worker %d, which is at step %d", m.Step, m.Worker, step)
			}
		}
	case wire.KindNorm:
		if err := c.speaksFor(p, e.kind, e.norm.Shard); err != nil {
			return err
		}
		if math.Abs(e.norm.Sum2) > float64(c.hello.Params)*largest32 && !math.IsInf(e.norm.Sum2, 0) {
			return fmt.Errorf("a norm with the square %g", e.norm.Sum2)
		}
		if c.engine != nil && e.norm.Seq > c.engine.State().Seq {
			return fmt.Errorf("a norm for fire %d, and the last one is %d", e.norm.Seq, c.engine.State().Seq)
		}
	case wire.KindSaved:
		return c.speaksFor(p, e.kind, e.saved.Shard)
	case wire.KindPoison:
		m := &e.poison
		if !(math.Abs(m.Value) <= 1.01) {
			return fmt.Errorf("poison with the mean cosine %g", m.Value)
		}
		return c.speaksFor(p, e.kind, m.Shard)
	case wire.KindHeld:
		return c.speaksFor(p, e.kind, e.held.Shard)
	case wire.KindMoved:
		m := &e.moved
		if m.Move < 1 || m.Move > c.mover.Last() {
			return fmt.Errorf("a move %d, of %d", m.Move, c.mover.Last())
		}
		if c.engine != nil {
			return c.past("a shard has moved", m.Version)
		}
	case wire.KindStanding:
		if !c.replaceable() {
			return errors.New("it stands to a coordinator that nobody else can replace")
		}
	}
	return nil
}

// speaksFor says what is wrong if a server speaks for a shard: it never had it, nor was to get it.
// What it says of one that it had may have been on its way. Where copies are taken over, nobody
// knows all that were there before: the word of those that do not count is not heeded.
func (c *Coordinator) speaksFor(p *peer, kind wire.Kind, shard int) error {
	if shard < 0 || shard >= len(c.shards) {
		return fmt.Errorf("%v of shard %d, of %d", kind, shard, len(c.shards))
	}
	if !c.hosts[[2]int{p.rank, shard}] && (!c.copies.On() || !c.replaceable()) {
		return fmt.Errorf("%v of shard %d, which it has not", kind, shard)
	}
	return nil
}
