package said

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

// slack is how far a member's clock may be ahead: hosts sleep. Times in records are durations by the member's clock,
// which may have jumped during the measurement.
const slack = time.Hour

// largest32 is the square of the largest float32: no element of a vector adds more to the square of its norm.
const largest32 = math.MaxFloat32 * math.MaxFloat32

// Speaker describes the sender of a message. Fields after Rank are those of a worker.
type Speaker struct {
	Role     string // wire.RoleWorker and others
	Rank     int
	Welcomed bool
	Joined   bool
	Late     bool   // came to a job that has begun and takes no part yet
	Codec    string // of its gradients; empty without one
}

// View describes the job.
type View struct {
	Elapsed         time.Duration // since the run began
	Engine          Engine        // nil before the training begins
	Resumed         int64         // the version at which the training begins
	Workers         int           // ranks of workers
	Params, Buffers int64         // elements of the model
	Tests           int64         // samples of an evaluation, at least 1

	Shards []wire.ShardInfo
	Hosts  map[[2]int]bool // by server and shard: the server has, had or will get the shard

	Move        int64 // number of the newest move
	Eval        int64 // number of the newest evaluation; math.MaxInt64 if it is unknown
	Copies      bool  // shards have copies
	Replaceable bool  // another process can take over
}

// Engine is the part of the engine that Check uses.
type Engine interface {
	View() engine.View
}

// Check returns why a member may not send m; nil if it may. The error is for the log and for the member, which ends
// with exit code 78. The engine checks messages about a step or a ring further.
func Check(m *Message, from Speaker, v *View) error {
	if w, ok := m.speaker(); ok && int(w) != from.Rank && from.Role != wire.RoleServer {
		return fmt.Errorf("%v for worker %d, which is not its rank", m.Kind, w)
	}
	switch from.Role {
	case wire.RoleServer:
		return v.server(from.Rank, m)
	case wire.RoleWorker:
		return v.worker(&from, m)
	}
	return nil
}

// speaker is the worker that a message names as its sender. It returns false for a message without one: heartbeats, and
// reports of servers on shards.
func (m *Message) speaker() (w star.Worker, ok bool) {
	switch m.Kind {
	case wire.KindJoined:
		return m.Joined.Worker, true
	case wire.KindArrive:
		return m.Arrive.Record.Worker, true
	case wire.KindBuffers:
		return m.Buffers.Worker, true
	case wire.KindEvalResult:
		return m.EvalResult.Worker, true
	case wire.KindFormed:
		return m.Formed.Worker, true
	case wire.KindTally:
		return m.Tally.Worker, true
	case wire.KindComputed:
		return m.Computed.Worker, true
	case wire.KindFault:
		return m.Fault.Worker, true
	case wire.KindBundle:
		return m.Bundle.Worker, true
	case wire.KindCompression:
		return m.Compression.Worker, true
	case wire.KindHalt:
		return m.Halt.Worker, true
	}
	return 0, false
}

// worker checks a worker's message for what would do harm before it reaches the engine, or never reaches it.
func (v *View) worker(from *Speaker, e *Message) error {
	switch e.Kind {
	case wire.KindJoined:
		switch {
		case !from.Welcomed:
			return errors.New("joined before it was welcomed")
		case from.Joined:
			return errors.New("joined a second time")
		}
		return nil
	case wire.KindPing, wire.KindPong, wire.KindLeave:
		return nil
	}
	switch {
	case from.Late:
		return fmt.Errorf("unexpected frame %v from a worker that takes no part in the job yet", e.Kind)
	case e.Kind == wire.KindCompression: // of the first codec, before the start
		m := &e.Compression
		known := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-=.", r)
		}
		if from.Codec == "" || m.Codec == "" || strings.ContainsFunc(m.Codec, func(r rune) bool { return !known(r) }) {
			return fmt.Errorf("compression %.40q from a worker that enrolled with %q (--compress)", m.Codec, from.Codec)
		}
		return v.past("compression", m.Version)
	case v.Engine == nil:
		return fmt.Errorf("%v before the start", e.Kind)
	}
	switch e.Kind {
	case wire.KindArrive:
		return v.possible(&e.Arrive.Record)
	case wire.KindEvalResult:
		return v.evaluable(&e.EvalResult)
	case wire.KindBuffers:
		return v.asked(e.Buffers.Eval)
	case wire.KindPoison:
		m := &e.Poison
		switch own := int(m.Worker) == from.Rank; {
		case !own && !v.carries(star.Worker(from.Rank), m.Worker):
			return fmt.Errorf("poison of worker %d, for which it does not report", m.Worker)
		case m.Shard != -1:
			return fmt.Errorf("poison of shard %d: workers have no shards", m.Shard)
		case own && m.Step > v.Engine.View().Worker(m.Worker).Step+engine.RingAhead:
			return fmt.Errorf("poison of step %d, but it is at step %d", m.Step, v.Engine.View().Worker(m.Worker).Step)
		case math.Abs(m.Value) > largest32:
			return fmt.Errorf("poison with the value %g", m.Value)
		}
	}
	return nil
}

// carries reports whether a member of a ring adds the gradients of a rider.
func (v *View) carries(member, rider star.Worker) bool {
	ring, ok := v.Engine.(interface {
		Carries(member, rider star.Worker) bool
	})
	return ok && ring.Carries(member, rider)
}

// past rejects a report about a version that does not exist yet. A ring member may report a granted round before it is
// complete, so the newest version is the newest that any worker may have been granted.
func (v *View) past(what string, version int64) error {
	newest := v.Resumed
	if v.Engine != nil {
		newest = v.Engine.View().Next
	}
	if version > newest {
		return fmt.Errorf("%s at version %d of the parameters, but the newest is %d", what, version, newest)
	}
	return nil
}

// possible rejects a record that its worker cannot have measured. The limits are far above what a correct worker
// measures, and low enough that sums and squares of the values stay finite.
func (v *View) possible(r *star.Record) error {
	most := v.Elapsed + slack
	for _, d := range []struct {
		name string
		is   time.Duration
	}{
		{"at", r.At}, {"compute", r.Compute}, {"load", r.Load}, {"push", r.Push}, {"wait", r.Wait}, {"pull", r.Pull},
		{"injected", r.Injected},
	} {
		if d.is < 0 || d.is > most {
			return fmt.Errorf("a record with a %s of %v in a job that has run for %v",
				d.name, d.is, v.Elapsed.Round(time.Second))
		}
	}
	// An iteration may exchange the model many times.
	bytes := float64(64*(int64(v.Workers)+2)*(v.Params+v.Buffers)) + 1<<30
	for _, f := range []struct {
		name      string
		is        float64
		low, high float64
		unknown   bool // it may be NaN
	}{
		{"loss", r.Loss, -largest32, largest32, true},
		{"norm2", r.Norm2, 0, float64(v.Params) * largest32, true},
		{"cpu", r.CPU, 0, 1e9, true},
		{"net_in", r.NetIn, 0, bytes, false},
		{"net_out", r.NetOut, 0, bytes, false},
	} {
		if !(f.is >= f.low && f.is <= f.high) && !(f.unknown && math.IsNaN(f.is)) {
			return fmt.Errorf("a record with a %s of %g, want %.3g to %.3g", f.name, f.is, f.low, f.high)
		}
	}
	for m := range star.NumMetrics {
		is, ok := r.Telemetry.Get(m)
		if ok && m != star.GradChange && math.Abs(is) > 1e18 || ok && m == star.GradChange && is < 0 {
			return fmt.Errorf("a record with a %v of %g", m, is)
		}
	}
	return v.past("a gradient", r.Basis)
}

// evaluable rejects an impossible part of an evaluation. A loss of NaN is accepted: the model may have diverged.
func (v *View) evaluable(e *wire.EvalResult) error {
	const each = 1 << 20 // predictions of one sample, such as the characters of a text
	switch {
	case e.Correct < 0 || e.Correct > e.Count:
		return fmt.Errorf("%d of %d predictions are right", e.Correct, e.Count)
	case e.Count/each > v.Tests:
		return fmt.Errorf("%d predictions for %d samples", e.Count, v.Tests)
	case math.IsInf(e.LossSum, 0) || math.Abs(e.LossSum) > float64(max(e.Count, 1))*math.MaxFloat32:
		return fmt.Errorf("a loss of %g in %d predictions", e.LossSum, e.Count)
	case e.Took < 0 || e.Took > v.Elapsed+slack:
		return fmt.Errorf("an evaluation of %v in a job that has run for %v", e.Took, v.Elapsed.Round(time.Second))
	}
	if err := v.asked(e.Eval); err != nil {
		return err
	}
	return v.past("evaluated", e.Version)
}

// asked rejects the number of an evaluation that has not begun.
func (v *View) asked(eval int64) error {
	if eval > v.Eval {
		return fmt.Errorf("evaluation %d, but the last one was %d", eval, v.Eval)
	}
	return nil
}

// server checks a message of a server, which reports on its shards. A squared norm may be infinite, because the
// gradient may be; a finite one is at most the maximum for a slice of that length.
func (v *View) server(rank int, e *Message) error {
	switch e.Kind {
	case wire.KindReady:
		if err := v.speaksFor(rank, e.Kind, e.Ready.Shard); err != nil || v.Engine == nil {
			return err
		}
		return v.past("a shard is ready", e.Ready.Version)
	case wire.KindStored:
		m := &e.Stored
		if err := v.speaksFor(rank, e.Kind, m.Shard); err != nil {
			return err
		}
		if s := v.Shards[m.Shard]; m.Sum2 > 1.01*float64(s.To-s.From)*largest32 && !math.IsInf(m.Sum2, 1) {
			return fmt.Errorf("a slice of %d elements with the squared norm %g", s.To-s.From, m.Sum2)
		}
		if v.Engine != nil && int(m.Worker) < v.Workers {
			if step := v.Engine.View().Worker(m.Worker).Step; m.Step > step+1 {
				return fmt.Errorf("holds step %d of worker %d, which is at step %d", m.Step, m.Worker, step)
			}
		}
	case wire.KindNorm:
		m := &e.Norm
		if err := v.speaksFor(rank, e.Kind, m.Shard); err != nil {
			return err
		}
		if math.Abs(m.Sum2) > float64(v.Params)*largest32 && !math.IsInf(m.Sum2, 0) {
			return fmt.Errorf("a norm with the square %g", m.Sum2)
		}
		if v.Engine != nil && m.Seq > v.Engine.View().Seq {
			return fmt.Errorf("a norm for fire %d, but the last one is %d", m.Seq, v.Engine.View().Seq)
		}
	case wire.KindSaved:
		return v.speaksFor(rank, e.Kind, e.Saved.Shard)
	case wire.KindPoison:
		m := &e.Poison
		if !(math.Abs(m.Value) <= 1.01) {
			return fmt.Errorf("poison with the mean cosine %g", m.Value)
		}
		return v.speaksFor(rank, e.Kind, m.Shard)
	case wire.KindHeld:
		return v.speaksFor(rank, e.Kind, e.Held.Shard)
	case wire.KindMoved:
		m := &e.Moved
		if m.Move < 1 || m.Move > v.Move {
			return fmt.Errorf("a move %d of %d", m.Move, v.Move)
		}
		if v.Engine != nil {
			return v.past("a shard has moved", m.Version)
		}
	case wire.KindStanding:
		if !v.Replaceable {
			return errors.New("it reported its state for a takeover, but no other process can take over")
		}
	}
	return nil
}

// speaksFor rejects a server's report on a shard that it never had and was not to get. A report on a shard that it had
// before may have been in flight. After a takeover the coordinator does not know which servers had copies before; it
// ignores reports on copies that do not count.
func (v *View) speaksFor(rank int, kind wire.Kind, shard int) error {
	if shard < 0 || shard >= len(v.Shards) {
		return fmt.Errorf("%v for shard %d of %d", kind, shard, len(v.Shards))
	}
	if !v.Hosts[[2]int{rank, shard}] && (!v.Copies || !v.Replaceable) {
		return fmt.Errorf("%v for shard %d, which it does not have", kind, shard)
	}
	return nil
}
