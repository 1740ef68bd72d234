package said

import (
	"math"
	"testing"
	"time"

	"star"
	"star/coord/engine"
	"star/transport/wire"
)

// training is an engine at version 7 that has given out version 8. Worker w is at step w. Worker 1 is a rider of worker
// 0.
type training struct{ engine.Reader }

func (t *training) View() engine.View {
	return engine.View{State: engine.State{Version: 7, Next: 8, Seq: 9}, Reader: t}
}
func (*training) Worker(w star.Worker) engine.Worker     { return engine.Worker{Step: int64(w)} }
func (*training) Carries(member, rider star.Worker) bool { return member == 0 && rider == 1 }

// job has two servers, each with a shard of ten elements, and runs for a minute.
func job() View {
	return View{
		Elapsed: time.Minute, Engine: &training{}, Workers: 4, Params: 20, Tests: 2,
		Shards: []wire.ShardInfo{{Shard: 0, From: 0, To: 10}, {Shard: 1, From: 10, To: 20}},
		Hosts:  map[[2]int]bool{{0, 0}: true, {1, 1}: true},
		Move:   3, Eval: 5,
	}
}

// message is m as Read returns it.
func message(m wire.Message) *Message {
	e := Message{Kind: m.Kind(), Seldom: new(Seldom)}
	switch m := m.(type) {
	case wire.Arrive:
		e.Arrive = m
	case wire.Stored:
		e.Stored = m
	case wire.Norm:
		e.Norm = m
	case wire.Tally:
		e.Tally = m
	case wire.Computed:
		e.Computed = m
	case wire.Ready:
		e.Ready = m
	case wire.Joined:
		e.Joined = m
	case wire.Saved:
		e.Saved = m
	case wire.Buffers:
		e.Buffers = m
	case wire.Halt:
		e.Halt = m
	case wire.EvalResult:
		e.EvalResult = m
	case wire.Formed:
		e.Formed = m
	case wire.Bundle:
		e.Bundle = m
	case wire.Fault:
		e.Fault = m
	case wire.Compression:
		e.Compression = m
	case wire.Poison:
		e.Poison = m
	case wire.Moved:
		e.Moved = m
	case wire.Held:
		e.Held = m
	case wire.Standing:
		e.Standing = m
	}
	return &e
}

// record is one that worker 3 may have measured, changed.
func record(change func(*star.Record)) wire.Arrive {
	r := star.Record{Worker: 3, Step: 3, Basis: 8, Samples: 4, Loss: 1, Norm2: 4, At: time.Minute, Compute: time.Second}
	change(&r)
	return wire.Arrive{Record: r}
}

// Each row is a message and the error that goes to its sender; empty: it is accepted.
var (
	ofWorker3 = []struct {
		name string
		says wire.Message
		err  string
		from func(*Speaker)
		view func(*View)
	}{
		{name: "a record", says: record(func(r *star.Record) {})},
		{name: "a loss of NaN",
			says: record(func(r *star.Record) { r.Loss, r.Norm2, r.CPU = math.NaN(), math.NaN(), math.NaN() })},
		{name: "a norm that no gradient has", says: record(func(r *star.Record) { r.Norm2 = 1e308 }),
			err: "a record with a norm2 of 1e+308, want 0 to 2.32e+78"},
		{name: "traffic of NaN", says: record(func(r *star.Record) { r.NetIn = math.NaN() }),
			err: "a record with a net_in of NaN, want 0 to 1.07e+09"},
		{name: "more traffic than the model is worth", says: record(func(r *star.Record) { r.NetOut = 1e12 }),
			err: "a record with a net_out of 1e+12, want 0 to 1.07e+09"},
		{name: "a time before the job", says: record(func(r *star.Record) { r.At = -time.Hour }),
			err: "a record with a at of -1h0m0s in a job that has run for 1m0s"},
		{name: "a clock that is ahead", says: record(func(r *star.Record) { r.Wait = time.Hour + time.Minute })},
		{name: "an iteration of 30 years", says: record(func(r *star.Record) { r.Compute = 1e9 * time.Second }),
			err: "a record with a compute of 277777h46m40s in a job that has run for 1m0s"},
		{name: "telemetry that is too large",
			says: record(func(r *star.Record) { r.Telemetry.Set(star.ComputeCPU, -1<<64) }),
			err:  "a record with a compute_cpu of -1.8446744073709552e+19"},
		{name: "a negative change of the gradient",
			says: record(func(r *star.Record) { r.Telemetry.Set(star.GradChange, -1) }),
			err:  "a record with a grad_change of -1"},
		{name: "a large change of the gradient",
			says: record(func(r *star.Record) { r.Telemetry.Set(star.GradChange, 1e30) })},
		{name: "a version that was not given out", says: record(func(r *star.Record) { r.Basis = 9 }),
			err: "a gradient at version 9 of the parameters, but the newest is 8"},
		{name: "a record before the training", says: record(func(r *star.Record) {}), err: "arrive before the start",
			view: func(v *View) { v.Engine = nil }},
		{name: "a record of a worker without a part in the job", says: record(func(r *star.Record) {}),
			err:  "unexpected frame arrive from a worker that takes no part in the job yet",
			from: func(s *Speaker) { s.Late = true }},

		{name: "another worker's record", says: wire.Arrive{}, err: "arrive for worker 0, which is not its rank"},
		{name: "another worker's join", says: wire.Joined{}, err: "joined for worker 0, which is not its rank"},
		{name: "another worker's buffers", says: wire.Buffers{}, err: "buffers for worker 0, which is not its rank"},
		{name: "another worker's evaluation", says: wire.EvalResult{}, err: "eval-result for worker 0, which is not its rank"},
		{name: "another worker's ring", says: wire.Formed{}, err: "formed for worker 0, which is not its rank"},
		{name: "another worker's tally", says: wire.Tally{}, err: "tally for worker 0, which is not its rank"},
		{name: "another worker's part of a batch", says: wire.Computed{}, err: "computed for worker 0, which is not its rank"},
		{name: "another worker's fault", says: wire.Fault{}, err: "fault for worker 0, which is not its rank"},
		{name: "another worker's report", says: wire.Bundle{}, err: "bundle for worker 0, which is not its rank"},
		{name: "another worker's compression", says: wire.Compression{Codec: "int8"},
			err: "compression for worker 0, which is not its rank"},
		{name: "another worker's halt", says: wire.Halt{}, err: "halt for worker 0, which is not its rank"},

		{name: "a join", says: wire.Joined{Worker: 3}, from: func(s *Speaker) { s.Joined, s.Late = false, true }},
		{name: "a join before the welcome", says: wire.Joined{Worker: 3}, err: "joined before it was welcomed",
			from: func(s *Speaker) { s.Joined, s.Welcomed = false, false }},
		{name: "a second join", says: wire.Joined{Worker: 3}, err: "joined a second time"},
		{name: "a heartbeat before it has a part in the job", says: wire.Ping{},
			from: func(s *Speaker) { s.Late = true }},

		{name: "a codec", says: wire.Compression{Worker: 3, Version: 8, Codec: "topk=0.01"},
			from: func(s *Speaker) { s.Codec = "topk" }},
		{name: "a codec before the training", says: wire.Compression{Worker: 3, Version: 2, Codec: "int8"},
			from: func(s *Speaker) { s.Codec = "int8" }, view: func(v *View) { v.Engine, v.Resumed = nil, 2 }},
		{name: "a codec of a version after the one that is resumed",
			says: wire.Compression{Worker: 3, Version: 3, Codec: "int8"},
			err:  "compression at version 3 of the parameters, but the newest is 2",
			from: func(s *Speaker) { s.Codec = "int8" }, view: func(v *View) { v.Engine, v.Resumed = nil, 2 }},
		{name: "a codec without a name", says: wire.Compression{Worker: 3, Why: "it is there"},
			err:  `compression "" from a worker that enrolled with "int8" (--compress)`,
			from: func(s *Speaker) { s.Codec = "int8" }},
		{name: "a codec with a strange name", says: wire.Compression{Worker: 3, Codec: "int8\n"},
			err:  `compression "int8\n" from a worker that enrolled with "int8" (--compress)`,
			from: func(s *Speaker) { s.Codec = "int8" }},
		{name: "a codec in a job without one", says: wire.Compression{Worker: 3, Codec: "int8"},
			err: `compression "int8" from a worker that enrolled with "" (--compress)`},

		{name: "an evaluation",
			says: wire.EvalResult{Worker: 3, Eval: 5, Version: 8, LossSum: math.NaN(), Correct: 2, Count: 2}},
		{name: "more right than there are", says: wire.EvalResult{Worker: 3, Correct: 3, Count: 2},
			err: "3 of 2 predictions are right"},
		{name: "less than none right", says: wire.EvalResult{Worker: 3, Correct: -1, Count: 2},
			err: "-1 of 2 predictions are right"},
		{name: "more predictions than samples have", says: wire.EvalResult{Worker: 3, Count: 3 << 20},
			err: "3145728 predictions for 2 samples"},
		{name: "an infinite loss", says: wire.EvalResult{Worker: 3, Count: 2, LossSum: math.Inf(-1)},
			err: "a loss of -Inf in 2 predictions"},
		{name: "a loss that no float32 has", says: wire.EvalResult{Worker: 3, LossSum: 1e39},
			err: "a loss of 1e+39 in 0 predictions"},
		{name: "an evaluation longer than the job", says: wire.EvalResult{Worker: 3, Took: 2 * time.Hour},
			err: "an evaluation of 2h0m0s in a job that has run for 1m0s"},
		{name: "the next evaluation", says: wire.EvalResult{Worker: 3, Eval: 6},
			err: "evaluation 6, but the last one was 5"},
		{name: "an evaluation of a version to come", says: wire.EvalResult{Worker: 3, Version: 9},
			err: "evaluated at version 9 of the parameters, but the newest is 8"},
		{name: "buffers", says: wire.Buffers{Worker: 3, Eval: 5}},
		{name: "buffers of the next evaluation", says: wire.Buffers{Worker: 3, Eval: 6},
			err: "evaluation 6, but the last one was 5"},
		{name: "buffers of an evaluation of the coordinator before", says: wire.Buffers{Worker: 3, Eval: 99},
			view: func(v *View) { v.Eval = math.MaxInt64 }},

		{name: "poison", says: wire.Poison{Worker: 3, Shard: -1, Step: 5, Value: 2}},
		{name: "another worker's poison", says: wire.Poison{Worker: 1, Shard: -1},
			err: "poison of worker 1, for which it does not report"},
		{name: "its rider's poison", says: wire.Poison{Worker: 1, Shard: -1, Step: 99},
			from: func(s *Speaker) { s.Rank = 0 }},
		{name: "poison of a shard", says: wire.Poison{Worker: 3, Shard: 0},
			err: "poison of shard 0: workers have no shards"},
		{name: "poison of a step to come", says: wire.Poison{Worker: 3, Shard: -1, Step: 6},
			err: "poison of step 6, but it is at step 3"},
		{name: "poison larger than float32", says: wire.Poison{Worker: 3, Shard: -1, Value: -1e300},
			err: "poison with the value -1e+300"},
	}

	ofServer0 = []struct {
		name string
		says wire.Message
		err  string
		view func(*View)
	}{
		{name: "its shard is ready", says: wire.Ready{Shard: 0, Version: 8}},
		{name: "its shard is ready before the training", says: wire.Ready{Shard: 0, Version: 99},
			view: func(v *View) { v.Engine = nil }},
		{name: "a shard that the job does not have", says: wire.Ready{Shard: 2}, err: "ready for shard 2 of 2"},
		{name: "a version to come is ready", says: wire.Ready{Shard: 0, Version: 9},
			err: "a shard is ready at version 9 of the parameters, but the newest is 8"},
		{name: "a gradient", says: wire.Stored{Shard: 0, Worker: 1, Step: 2, Sum2: math.Inf(1)}},
		{name: "a gradient that is not finite", says: wire.Stored{Shard: 0, Worker: 1, Step: 2, Sum2: math.NaN()}},
		{name: "a slice that is too large", says: wire.Stored{Shard: 0, Worker: 1, Sum2: 1e300},
			err: "a slice of 10 elements with the squared norm 1e+300"},
		{name: "a gradient of a step to come", says: wire.Stored{Shard: 0, Worker: 1, Step: 3},
			err: "holds step 3 of worker 1, which is at step 1"},
		{name: "a gradient of the validator", says: wire.Stored{Shard: 0, Worker: 4, Step: 99}},
		{name: "a norm", says: wire.Norm{Shard: 0, Seq: 9, Sum2: math.Inf(-1)}},
		{name: "a norm that is too large", says: wire.Norm{Shard: 0, Seq: 9, Sum2: -1e300},
			err: "a norm with the square -1e+300"},
		{name: "a norm for a firing to come", says: wire.Norm{Shard: 0, Seq: 10},
			err: "a norm for fire 10, but the last one is 9"},
		{name: "its direction is flipped", says: wire.Poison{Shard: 0, Value: -1}},
		{name: "a mean cosine of 2", says: wire.Poison{Shard: 0, Value: 2}, err: "poison with the mean cosine 2"},
		{name: "a mean cosine of NaN", says: wire.Poison{Shard: 0, Value: math.NaN()},
			err: "poison with the mean cosine NaN"},
		{name: "a move", says: wire.Moved{Move: 3, Shard: 1, Version: 8}},
		{name: "the next move", says: wire.Moved{Move: 4}, err: "a move 4 of 3"},
		{name: "move 0", says: wire.Moved{}, err: "a move 0 of 3"},
		{name: "a move to a version to come", says: wire.Moved{Move: 3, Version: 9},
			err: "a shard has moved at version 9 of the parameters, but the newest is 8"},
		{name: "a report to a successor", says: wire.Standing{}, view: func(v *View) { v.Replaceable = true }},
		{name: "a report to a coordinator without successors", says: wire.Standing{},
			err: "it reported its state for a takeover, but no other process can take over"},

		{name: "the other server's shard is ready", says: wire.Ready{Shard: 1},
			err: "ready for shard 1, which it does not have"},
		{name: "the other server's gradient", says: wire.Stored{Shard: 1, Sum2: math.NaN()},
			err: "stored for shard 1, which it does not have"},
		{name: "the other server's norm", says: wire.Norm{Shard: 1}, err: "norm for shard 1, which it does not have"},
		{name: "the other server's part of a checkpoint", says: wire.Saved{Shard: 1, Err: "the disk is full"},
			err: "saved for shard 1, which it does not have"},
		{name: "the other server's direction", says: wire.Poison{Shard: 1}, err: "poison for shard 1, which it does not have"},
		{name: "the other server's firings", says: wire.Held{Shard: 1}, err: "held for shard 1, which it does not have"},
		{name: "a copy that this coordinator does not know", says: wire.Held{Shard: 1},
			view: func(v *View) { v.Copies, v.Replaceable = true, true }},
		{name: "a copy that no coordinator before has made", says: wire.Held{Shard: 1},
			err:  "held for shard 1, which it does not have",
			view: func(v *View) { v.Copies = true }},
	}
)

func TestWhatAWorkerMaySay(t *testing.T) {
	for _, c := range ofWorker3 {
		t.Run(c.name, func(t *testing.T) {
			from, v := Speaker{Role: wire.RoleWorker, Rank: 3, Welcomed: true, Joined: true}, job()
			if c.from != nil {
				c.from(&from)
			}
			if c.view != nil {
				c.view(&v)
			}
			expect(t, Check(message(c.says), from, &v), c.err)
		})
	}
}

func TestWhatAServerMaySay(t *testing.T) {
	for _, c := range ofServer0 {
		t.Run(c.name, func(t *testing.T) {
			v := job()
			if c.view != nil {
				c.view(&v)
			}
			expect(t, Check(message(c.says), Speaker{Role: wire.RoleServer, Rank: 0}, &v), c.err)
		})
	}
}

// TestAValidatorSpeaksForItself checks the one rule for members of other roles.
func TestAValidatorSpeaksForItself(t *testing.T) {
	v := job()
	expect(t, Check(message(wire.Joined{Worker: 4}), Speaker{Role: wire.RoleValidator, Rank: 4}, &v), "")
	expect(t, Check(message(wire.Joined{Worker: 3}), Speaker{Role: wire.RoleValidator, Rank: 4}, &v),
		"joined for worker 3, which is not its rank")
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("the error is %q, want %q", got, want)
	}
}

// TestCheckAllocatesNothing checks the messages of every iteration.
func TestCheckAllocatesNothing(t *testing.T) {
	v := job()
	for _, c := range []struct {
		from Speaker
		says wire.Message
	}{
		{Speaker{Role: wire.RoleWorker, Rank: 3, Welcomed: true, Joined: true}, record(func(*star.Record) {})},
		{Speaker{Role: wire.RoleWorker, Rank: 3, Welcomed: true, Joined: true}, wire.Tally{Worker: 3}},
		{Speaker{Role: wire.RoleServer}, wire.Stored{Worker: 1, Step: 1}},
		{Speaker{Role: wire.RoleServer}, wire.Norm{Seq: 9}},
	} {
		m := message(c.says)
		if n := testing.AllocsPerRun(100, func() {
			if err := Check(m, c.from, &v); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("the check of %v makes %v allocations", m.Kind, n)
		}
	}
}
