package coord

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/session"
	"star/modes"
	"star/runlog"
	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// hostile is a job of three correct workers and a fourth one that sends anything, or of correct workers and a spare
// server that does.
type hostile struct {
	*world
	mode   string
	ending bool // it was told to stop

	mu     sync.Mutex
	counts map[wire.Child]int // samples of batches, by worker and step
}

// hostileModes are the modes of the job meanwhile.
var hostileModes = []string{"ssgd", "asgd", "auto", "tree=0(1,2(3))", "tree=3(0(1),2)", "ring"}

// RealPilot makes the pilot of --mode auto, in a package that imports this one (realpilot_test.go).
var RealPilot func(workers int) Pilot

// attacked plays such a job. f may attack before all correct workers have joined (early), and while they train; then
// the job must stop, and be as it would have been.
func attacked(t *testing.T, mode string, f func(h *hostile), change ...func(*Config)) {
	t.Helper()
	cfg := Config{MaxWorkers: 4, Servers: 2, Steps: 1 << 30, MinWorkers: 3, EvalEvery: 0.5, Grace: 20 * time.Second, Pilot: &script{}, Save: func(c Checkpoint) (string, error) { return c.ID, nil }}
	for _, c := range change {
		c(&cfg)
	}
	switch mode {
	case "ring":
		cfg.Ring, cfg.Pilot = &RingConfig{Rule: "sgd"}, nil
	case "auto":
		cfg.Pilot = RealPilot(cfg.MaxWorkers)
	default:
		var err error
		if cfg.Plan, err = modes.Parse(mode, cfg.MaxWorkers); err != nil {
			t.Fatal(err)
		}
	}
	play(t, cfg, func(w *world) {
		h := &hostile{world: w, mode: mode, counts: map[wire.Child]int{}}
		f(h)
		if w.over == nil {
			return
		}
		before := 0
		if !h.ending {
			before = len(w.run.String())
			h.goesOn("after it all")
			if _, no := w.ask("stop"); no != "" {
				t.Error(no)
			}
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Errorf("the job ended with %v", w.err)
		}
		used := int64(0)
		_, err := runlog.Read(strings.NewReader(w.run.String()), "run.jsonl", func(l runlog.Line) error {
			switch e := l.Entry.(type) {
			case runlog.Fire:
				used = e.Samples
			case runlog.Leave:
				if e.Worker < 3 {
					t.Errorf("worker %d had to go: %s", e.Worker, e.Why)
				}
			case runlog.Eval:
				if !(e.Loss >= -1 && e.Loss < 10) || e.Accuracy < 0 || e.Accuracy > 1 {
					t.Errorf("evaluated as %+v", e)
				}
			case runlog.Summary:
				if e.Samples != used || e.Error != "" {
					t.Errorf("the summary counts %d samples, %d are in updates; %s", e.Samples, used, e.Error)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("the log cannot be read: %v", err)
		}
		if mode == "auto" && !h.ending && !strings.Contains(w.run.String(), `"type":"plan"`) {
			t.Error("the pilot has done nothing")
		}
		if used == 0 || len(w.run.String()) == before {
			t.Error("nothing was trained")
		}
	})
}

// goesOn requires updates within five minutes of the fake clock.
func (h *hostile) goesOn(after string) {
	h.t.Helper()
	synctest.Wait()
	version := func() int64 {
		select {
		case <-h.over:
			h.t.Fatalf("after %s the job is over: %v\n%s", after, h.err, h.logs)
		default:
		}
		return h.status().Version
	}
	from := version()
	for range 300 {
		time.Sleep(time.Second)
		synctest.Wait()
		if version() > from+1 {
			return
		}
	}
	h.t.Fatalf("after %s no update in 5 min; waiting for %s\n%.4000s", after, h.waiting(), tail(h.logs.String(), 4000))
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// honest adds correct workers: in a tree, in a ring, or without either.
func (h *hostile) honest(ranks ...int) {
	for _, r := range ranks {
		if h.mode == "ring" {
			h.ringWorker(r, "", nil)
		} else {
			h.treeWorker(r)
		}
	}
}

// treeWorker plays a worker that may be in a tree: its parent has its gradient a moment later.
func (h *hostile) treeWorker(rank int) {
	w := h.world
	w.wg.Go(func() {
		hi, me := hello(rank), star.Worker(rank)
		hi.Addr, hi.Buffers = fmt.Sprintf("door%d", rank), 2
		m, err := w.join(hi, enrolment)
		if err != nil {
			w.t.Errorf("worker %d: %v", rank, err)
			return
		}
		defer m.Close()
		m.Beat()
		session.Say(m, wire.Joined{Worker: me}, nil)
		step, branch, pushed := m.Welcome.Step, wire.Branch{Parent: -1, Step: -1}, int64(-1)
		orders := make(chan session.Order, 64)
		w.wg.Go(func() {
			defer close(orders)
			for {
				o, err := m.Order()
				if err != nil {
					w.t.Errorf("worker %d: %v", rank, err)
					return
				}
				orders <- o
				if o.Release.Action == wire.Stop {
					return
				}
			}
		})
		away := map[wire.Child]bool{}
		push := func(s int64) {
			if pushed < s {
				pushed = s
				w.stored(me, s)
			}
		}
		take := func(o session.Order) {
			switch o.Kind {
			case wire.KindBranch:
				branch = o.Branch
			case wire.KindDetach:
				away[wire.Child(o.Detach)] = true
				if o.Detach.Worker == me && o.Detach.Step < step {
					push(o.Detach.Step)
				}
			}
		}
		for o := range orders {
			take(o)
			if o.Kind != wire.KindRelease {
				continue
			}
			r := o.Release
			h.mu.Lock()
			h.counts[wire.Child{Worker: me, Step: step}] = r.Count
			h.mu.Unlock()
			switch r.Action {
			case wire.Stop:
				return
			case wire.Finish, wire.Evaluate:
				session.Say(m, wire.Buffers{Worker: me, Eval: r.Eval}, transport.Floats([]float32{1, 3}))
				for o := range orders {
					if take(o); o.Kind == wire.KindBuffers {
						if b := o.Payload; !bytes.Equal(b, transport.Floats([]float32{1, 3})) {
							w.t.Errorf("worker %d: the average of buffers is %v", rank, b)
						}
						break
					}
				}
				n := (r.To - r.From) / 1000
				session.Say(m, wire.EvalResult{Worker: me, Eval: r.Eval, Version: r.Version, LossSum: float64(n), Correct: n / 2, Count: n}, nil)
				if r.Action == wire.Finish {
					continue
				}
			}
			takes, told := time.Second+time.Duration(rank)*time.Millisecond, time.Duration(0)
			if h.mode == "auto" { // one is slow, so that the pilot acts
				if rank == 2 {
					takes *= 3
				}
				told = takes
			}
			for pace := time.After(takes); pace != nil; {
				select {
				case o, ok := <-orders:
					if !ok {
						return
					}
					take(o)
				case <-pace:
					pace = nil
				}
			}
			mine := branch.Step == step && !away[wire.Child{Worker: me, Step: step}]
			rec := star.Record{Worker: me, Step: step, Basis: r.Version, Samples: r.Count, Loss: 1, Norm2: 4, Compute: told}
			switch {
			case mine && branch.Parent >= 0:
			case mine && len(branch.Children) > 0:
				time.Sleep(50 * time.Millisecond) // for the children's
				b := wire.Bundle{Worker: me, Step: step, Members: []wire.Share{{Worker: me, Step: step, Samples: r.Count}}}
				h.mu.Lock()
				for _, c := range branch.Children { // a fourth one sends nothing
					if n := h.counts[c]; !away[c] && n > 0 {
						b.Members = append(b.Members, wire.Share{Worker: c.Worker, Step: c.Step, Samples: n})
					}
				}
				h.mu.Unlock()
				session.Say(m, b, nil)
				push(step)
			default:
				push(step)
			}
			session.Say(m, wire.Arrive{Record: rec}, nil)
			step++
		}
	})
}

// rogue is the fourth worker, or one of several that send anything.
type rogue struct {
	rank   star.Worker
	m      *session.Member
	step   int64
	rel    wire.Release
	ring   wire.Ring
	branch wire.Branch
}

// Phases in which the fourth worker attacks.
var phases = []string{"welcomed", "released", "arrived", "evaluating"}

// comes brings the fourth worker to a phase.
func (h *hostile) comes(phase string) *rogue {
	h.t.Helper()
	r, err := h.rogue(3, phase)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, tail(h.logs.String(), 2000))
	}
	return r
}

// rogue adds a worker with a rank, in a phase.
func (h *hostile) rogue(rank int, phase string) (*rogue, error) {
	hi, e, me := hello(rank), enrolment, star.Worker(rank)
	hi.Addr, hi.Buffers = fmt.Sprintf("door%d", rank), 2
	if h.mode == "ring" {
		hi.Addr, hi.Buffers, e.Rule = fmt.Sprintf("meet%d,door%d", rank, rank), 0, "sgd"
	}
	m, err := h.join(hi, e)
	if err != nil {
		return nil, fmt.Errorf("worker %d cannot join: %w", rank, err)
	}
	r := &rogue{rank: me, m: m, step: m.Welcome.Step, branch: wire.Branch{Parent: -1, Step: -1}}
	if phase == "welcomed" {
		return r, nil
	}
	session.Say(m, wire.Joined{Worker: me}, nil)
	there := func() bool {
		switch phase {
		case "evaluating":
			return r.rel.Count > 0 && r.rel.Action == wire.Evaluate
		case "finishing":
			return r.rel.Action == wire.Finish
		case "stopped":
			return r.rel.Action == wire.Stop
		}
		return r.rel.Count > 0
	}
	for !there() {
		if r.rel.Count > 0 { // not yet
			h.gradient(r)
		}
		if r.rel.Action == wire.Finish {
			if hi.Buffers > 0 {
				session.Say(m, wire.Buffers{Worker: me, Eval: r.rel.Eval}, transport.Floats([]float32{1, 3}))
			}
			session.Say(m, wire.EvalResult{Worker: me, Eval: r.rel.Eval, Version: r.rel.Version, LossSum: 1, Count: 1}, nil)
		}
		r.rel = wire.Release{}
		o, err := m.Order()
		if err != nil {
			return nil, fmt.Errorf("worker %d is not %s: %w", rank, phase, err)
		}
		switch o.Kind {
		case wire.KindBranch:
			r.branch = o.Branch
		case wire.KindRing:
			r.ring = o.Ring
			session.Say(m, wire.Formed{Worker: me, Generation: o.Ring.Generation, Version: max(o.Ring.From, h.status().Version)}, nil)
		case wire.KindRelease:
			r.rel = o.Release
		case wire.KindDetach:
			if o.Detach.Worker == me {
				h.stored(me, o.Detach.Step)
			}
		}
	}
	if phase == "arrived" {
		r.arrive()
	}
	return r, nil
}

func (r *rogue) arrive() {
	session.Say(r.m, wire.Arrive{Record: star.Record{Worker: r.rank, Step: r.step, Basis: r.rel.Version, Samples: r.rel.Count, Loss: 1, Norm2: 4}}, nil)
	r.step++
}

// gradient makes one as a correct worker would.
func (h *hostile) gradient(r *rogue) {
	time.Sleep(time.Second)
	top := r.branch.Step == r.step && r.branch.Parent < 0
	if h.mode != "ring" && r.branch.Step != r.step || top {
		if top {
			session.Say(r.m, wire.Bundle{Worker: r.rank, Step: r.step, Members: []wire.Share{{Worker: r.rank, Step: r.step, Samples: r.rel.Count}}}, nil)
		}
		h.stored(r.rank, r.step)
	}
	r.arrive()
	if h.mode == "ring" {
		session.Say(r.m, wire.Tally{Worker: r.rank, Generation: r.ring.Generation, Version: r.rel.Version + 1}, nil)
	}
}

// dropped reports whether the coordinator drops a member within some seconds. In either case its connection ends.
func dropped(m *session.Member) bool {
	defer m.Close()
	m.Conn.SetReadDeadline(time.Now().Add(3 * time.Second))
	for {
		f, err := m.Conn.Recv()
		if err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
		if err := m.Conn.Discard(); err != nil || f.Kind == wire.KindReject {
			return true
		}
	}
}

// honestly is a message of a kind as the fourth worker could send it.
func (r *rogue) honestly(k wire.Kind) wire.Message {
	return transporttest.Fill(transporttest.Of(k), map[string]any{
		"Worker": r.rank, "Rank": int(r.rank), "Step": r.step, "Basis": r.rel.Version, "Version": r.rel.Version, "Samples": max(r.rel.Count, 1), "Count": 1,
		"Generation": max(r.ring.Generation, 1), "Loss": 1., "Norm2": 4., "Cause": "not-finite", "Shard": -1, "Suspect": -1, "ID": "none", "Eval": max(r.rel.Eval, 1),
	})
}

// One impossible message of a worker or a server costs that member its connection, and the job goes on. The tests of
// package said have all messages that are impossible.
func TestOneWordOfAMember(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"a norm that no gradient has": wire.Arrive{Record: star.Record{Worker: 3, Samples: 4, Loss: 1, Norm2: 1e308}},
		"it leaves after a NaN":       wire.Leave{Worker: 3, Exit: 70, Reason: "NaN"},
		"not finite in another shard": wire.Stored{Shard: 0, Worker: 0, Step: 5, Sum2: math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			attacked(t, "ssgd", func(h *hostile) {
				h.server(0, 2, false)
				spare, err := session.Join(h.t.Context(), session.MemberConfig{Network: h.net, Addr: "coord", Hello: wire.Hello{
					Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1, Addr: "s1"}})
				if err != nil {
					t.Fatal(err)
				}
				h.honest(0, 1, 2)
				time.Sleep(5500 * time.Millisecond)
				from := h.comes("released").m
				if m.Kind() == wire.KindStored {
					defer from.Close()
					from = spare
				}
				session.Say(from, m, nil)
				if !dropped(from) {
					t.Error("it costs the sender nothing")
				}
				spare.Close()
			})
		})
	}
}

// A message that is almost valid costs the sender its connection, too: a repetition, one step further than the job is,
// another worker's name, and numbers that are not finite in a payload.
func TestOneWordTooMany(t *testing.T) {
	for name, c := range map[string]struct {
		mode, phase string
		say         func(h *hostile, r *rogue)
	}{
		"joined twice": {"ssgd", "released", func(h *hostile, r *rogue) { session.Say(r.m, wire.Joined{Worker: r.rank}, nil) }},
		"the next version": {"ssgd", "released", func(h *hostile, r *rogue) {
			session.Say(r.m, wire.Arrive{Record: star.Record{Worker: r.rank, Step: r.step, Basis: h.status().Version + 1, Samples: r.rel.Count, Loss: 1, Norm2: 4}}, nil)
		}},
		"another one's report": {"tree=0(1,2(3))", "released", func(h *hostile, r *rogue) {
			step := h.c.engine.View().Worker(0).Step
			session.Say(r.m, wire.Bundle{Worker: 0, Step: step, Members: []wire.Share{{Worker: 0, Step: step, Samples: h.c.engine.View().Worker(0).Count}}}, nil)
		}},
		"the next evaluation": {"ssgd", "evaluating", func(h *hostile, r *rogue) {
			session.Say(r.m, wire.EvalResult{Worker: r.rank, Eval: r.rel.Eval + 1, Version: r.rel.Version, LossSum: 1, Count: 1}, nil)
		}},
		"buffers of another model": {"ssgd", "evaluating", func(h *hostile, r *rogue) {
			session.Say(r.m, wire.Buffers{Worker: r.rank, Eval: r.rel.Eval}, transport.Floats([]float32{1, 2, 3}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			attacked(t, c.mode, func(h *hostile) {
				h.server(0, 2, false)
				h.server(1, 0, false)
				h.honest(0, 1, 2)
				time.Sleep(5500 * time.Millisecond)
				r := h.comes(c.phase)
				synctest.Wait()
				c.say(h, r)
				if !dropped(r.m) {
					t.Error("it costs the sender nothing")
				}
			})
		})
	}
}

// harmless are fields in which a worker may send any value, and why. In all others the extreme values of the type, and
// values that are not finite, cost it the connection.
var harmless = map[string]string{
	"ping": "not read", "pong": "likewise",
	"arrive.Record.Transit":   "it does not go over the wire",
	"arrive.Record.Telemetry": "what is not finite counts as not measured",
	"arrive.Record.Loss=NaN":  "the loss of a gradient that was skipped",
	"arrive.Record.Norm2=NaN": "likewise",
	"arrive.Record.CPU=NaN":   "not measured",
	"eval-result.LossSum=NaN": "the training has diverged; one part that says so is left out",
	"poison.Value=NaN":        "there is no number for it",
	"tally.Sum2=NaN":          "the training has diverged",
	"tally.Carried[0].Step":   "it counts where the rider has that batch",
	"tally.Dropped[0].Step":   "likewise",
	"usage.Seq":               "a count that is not checked", "usage.Step": "likewise", "usage.Free": "likewise, of bytes",
}

// costs requires that an absurd message has cost its sender the connection.
func (h *hostile) costs(m *session.Member, name string) {
	h.t.Helper()
	if dropped(m) || !transporttest.Extreme(name) {
		return
	}
	for field := range harmless {
		if strings.HasPrefix(name, field) {
			return
		}
	}
	h.t.Errorf("%s costs its sender nothing", name)
}

// attack sends all absurd messages of a kind from a new worker for each, and requires that the job continues.
func (h *hostile) attack(empty wire.Message, comes func() (m *session.Member, base wire.Message)) {
	for name := range transporttest.Absurd(transporttest.Fill(empty, nil)) {
		m, base := comes()
		for now, msg := range transporttest.Absurd(base) {
			if now == name {
				session.Say(m, msg, nil)
			}
		}
		h.costs(m, name)
		h.goesOn(name)
		if strings.Contains(h.logs.String(), "unexpected frame "+empty.Kind().String()) {
			return // whatever is in it
		}
	}
}

func TestHostileWorkers(t *testing.T) {
	for _, mode := range hostileModes {
		for _, phase := range phases {
			if testing.Short() && (mode != "ssgd" || phase != "released") {
				continue
			}
			for _, empty := range transporttest.Messages {
				if empty.Kind() == wire.KindHalt {
					continue // a worker may end the job
				}
				t.Run(fmt.Sprint(mode, "/", phase, "/", empty.Kind()), func(t *testing.T) {
					attacked(t, mode, func(h *hostile) {
						h.server(0, map[bool]int{true: 0, false: 2}[mode == "ring"], false)
						h.server(1, 0, false)
						h.honest(0, 1, 2)
						time.Sleep(5 * time.Second)
						h.attack(empty, func() (*session.Member, wire.Message) {
							r := h.comes(phase)
							return r.m, r.honestly(empty.Kind())
						})
					})
				})
			}
		}
	}
}

// copied plays a job of three correct workers on two servers, each with a copy of both shards.
func copied(t *testing.T, f func(h *hostile, liar *fakeServer), change ...func(*Config)) {
	t.Helper()
	attacked(t, "ssgd", func(h *hostile) {
		h.sums = func(*fakeServer, star.Worker, int64) float64 { return 2 } // Norm2 is 4
		h.server(0, 1, false)
		f(h, h.server(1, 1, false))
	}, append(change, func(c *Config) { c.Replicas, c.MaxWorkers = 2, 3 })...)
}

// A server with copies of shards sends anything: it is dropped, the job continues with the other copies, and no worker
// is lost.
func TestHostileHolders(t *testing.T) {
	harmless := []string{
		// for a gradient that has not arrived: its last report counts; or it does not measure
		"stored.Sum2=NaN", "stored.Sum2=+Inf", "stored.Sum2=-",
		"held.Seq", "held.Term", // no more than it was offered, and under its own term
		"usage", "ping", "pong", "saved.ID", // of a checkpoint that there is not
		"poison.Step",                                       // of a direction: its step is the worker's present one
		"norm.Sum2=NaN", "norm.Sum2=+Inf", "norm.Sum2=-Inf", // the training may have diverged
	}
	for _, empty := range transporttest.Messages {
		if testing.Short() && empty.Kind() != wire.KindStored {
			continue
		}
		t.Run(empty.Kind().String(), func(t *testing.T) {
			base := transporttest.Fill(empty, map[string]any{
				"Shard": 1, "Worker": 1, "Rank": 1, "Samples": 4, "Count": 1, "Generation": 1, "Cause": "flipped", "ID": "c3-0", "Seq": 1, "Term": 1, "Move": 1, "Host": "h", "Job": "job",
			})
			for name, m := range transporttest.Absurd(base) {
				unknown := false
				copied(t, func(h *hostile, liar *fakeServer) {
					h.honest(0, 1, 2)
					time.Sleep(4500 * time.Millisecond)
					session.Say(liar.m, m, nil)
					select {
					case <-liar.gone:
					case <-time.After(3 * time.Second):
						if transporttest.Extreme(name) && !slices.ContainsFunc(harmless, func(s string) bool { return strings.HasPrefix(name, s) }) {
							t.Errorf("%s costs its sender nothing", name)
						}
					}
					h.goesOn(name)
					h.ask("checkpoint")
					h.goesOn(name)
					if h.c.measured.result.CheckpointError != "" {
						t.Errorf("after %s a checkpoint failed: %s", name, h.c.measured.result.CheckpointError)
					}
					unknown = strings.Contains(h.logs.String(), "unexpected frame "+empty.Kind().String())
				})
				if unknown || t.Failed() {
					return
				}
			}
		})
	}
}

// A server with copies that sends false reports on gradients, or invalid frames, is dropped and named.
func TestHolderThatLies(t *testing.T) {
	for name, c := range map[string]struct {
		sum   func(worker star.Worker, step int64) float64 // of each slice; nil: 2
		early func(m *session.Member)                      // before the job begins
		later func(m *session.Member)
		why   string
	}{
		"sums that are too large": {sum: func(star.Worker, int64) float64 { return 3 }, why: "squared norm of 3 for its slice"},
		"sums of nothing":         {sum: func(star.Worker, int64) float64 { return 0 }, why: "squared norm of 0 for its slice"},
		"gradients that are none": {sum: func(star.Worker, int64) float64 { return math.NaN() }, why: "squared norm of NaN for its slice"},
		"of one worker only": {sum: func(w star.Worker, step int64) float64 {
			if w == 1 && step == 5 {
				return 2.01
			}
			return 2
		}, why: "squared norm of 2.01 for its slice of the gradient of worker 1, step 5; others measured 2"},
		"ready with another version": {early: func(m *session.Member) { session.Say(m, wire.Ready{Shard: 0, Version: 99}, nil) }, why: "version 99"},
		"ready later, likewise":      {later: func(m *session.Member) { session.Say(m, wire.Ready{Shard: 0, Version: 99}, nil) }, why: "version 99"},
		"a wrong checksum": {later: func(m *session.Member) {
			m.Hosted().WriteFrame(wire.KindSaved, wire.Saved{Shard: 1, ID: "x"}.AppendTo(nil), []byte("null"), 7)
		}, why: "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			copied(t, func(h *hostile, liar *fakeServer) {
				h.sums = func(s *fakeServer, w star.Worker, step int64) float64 {
					if s == liar && c.sum != nil {
						return c.sum(w, step)
					}
					return 2
				}
				h.honest(0)
				time.Sleep(time.Second)
				if c.early != nil {
					c.early(liar.m)
					time.Sleep(time.Second)
				}
				h.honest(1, 2)
				time.Sleep(4500 * time.Millisecond)
				if c.later != nil {
					c.later(liar.m)
				}
				select {
				case <-liar.gone:
				case <-time.After(10 * time.Second):
					t.Error("it keeps its place")
				}
				h.goesOn(name)
				if said := h.logs.String(); !strings.Contains(said, c.why) || !strings.Contains(said, "server 1") && !strings.Contains(said, "server=1") {
					t.Errorf("%q is not said\n%s", c.why, tail(said, 3000))
				}
			})
		})
	}
}

// Whatever workers send at the end of the job, or after they were told that it is over, it ends as it would have: each
// message, with each field absurd, from its own worker.
func TestHostileWorkersAtTheEnd(t *testing.T) {
	unexpected := map[string]bool{} // kinds that are refused whatever is in them, by architecture and phase
	for _, mode := range hostileModes {
		for _, phase := range []string{"finishing", "stopped"} {
			if testing.Short() && (mode != "ssgd" || phase != "finishing") {
				continue
			}
			for _, empty := range transporttest.Messages {
				refused := fmt.Sprint(mode == "ring", phase, empty.Kind())
				if unexpected[refused] {
					continue
				}
				t.Run(fmt.Sprint(mode, "/", phase, "/", empty.Kind()), func(t *testing.T) {
					var names []string
					for name := range transporttest.Absurd((&rogue{rank: 3}).honestly(empty.Kind())) {
						names = append(names, name)
					}
					attacked(t, mode, func(h *hostile) {
						h.server(0, map[bool]int{true: 0, false: 2}[mode == "ring"], false)
						h.server(1, 0, false)
						h.honest(0, 1, 2)
						ended := 0
						for i, name := range names {
							h.wg.Go(func() {
								r, err := h.rogue(3+i, phase)
								if err != nil {
									t.Error(err)
									return
								}
								defer r.m.Close()
								for now, msg := range transporttest.Absurd(r.honestly(empty.Kind())) {
									if now == name {
										session.Say(r.m, msg, nil)
									}
								}
								if phase == "finishing" {
									h.costs(r.m, name)
								}
								h.mu.Lock()
								defer h.mu.Unlock()
								ended++
							})
						}
						time.Sleep(20 * time.Second)
						if h.status().Version < 3 {
							t.Fatalf("nothing is trained; waiting for %s", h.waiting())
						}
						if _, no := h.ask("stop"); no != "" {
							t.Error(no)
						}
						h.ending = true
						h.finished(time.Hour)
						time.Sleep(time.Minute)
						h.mu.Lock()
						defer h.mu.Unlock()
						if ended != len(names) {
							t.Errorf("%d of %d came as far", ended, len(names))
						}
						unexpected[refused] = strings.Contains(h.logs.String(), "unexpected frame "+empty.Kind().String())
					}, func(c *Config) {
						c.MaxWorkers, c.MinWorkers, c.EvalEvery = 3+len(names), 0, 0
					})
				})
			}
		}
	}
}

// A server without shards reports on shards of others: before the job begins, and while it trains.
func TestHostileServers(t *testing.T) {
	for _, early := range []bool{true, false} {
		for _, empty := range transporttest.Messages {
			if testing.Short() && (early || empty.Kind() != wire.KindStored) {
				continue
			}
			t.Run(fmt.Sprintf("early %v/%v", early, empty.Kind()), func(t *testing.T) {
				base := transporttest.Fill(empty, map[string]any{
					"Worker": 1, "Rank": 1, "Samples": 4, "Count": 1, "Generation": 1, "Cause": "flipped", "Err": "the disk is full", "ID": "c3-0", "Seq": 1, "Move": 1, "Host": "h", "Job": "job",
				})
				var variants []wire.Message
				names := []string{"as it is"}
				variants = append(variants, base)
				for name, m := range transporttest.Absurd(base) {
					names, variants = append(names, name), append(variants, m)
				}
				for i, m := range variants {
					over := false
					attacked(t, "ssgd", func(h *hostile) {
						h.server(0, 2, false)
						spare, err := session.Join(h.t.Context(), session.MemberConfig{Network: h.net, Addr: "coord", Hello: wire.Hello{
							Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1, Addr: "s1"}})
						if err != nil {
							t.Fatal(err)
						}
						defer spare.Close()
						if !early {
							h.honest(0, 1, 2)
							time.Sleep(4500 * time.Millisecond)
						}
						session.Say(spare, m, nil)
						h.costs(spare, names[i])
						if early {
							time.Sleep(time.Second)
							if m, err := session.Join(h.t.Context(), session.MemberConfig{Network: h.net, Addr: "coord", Hello: wire.Hello{
								Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1, Addr: "s1"}}); err == nil {
								defer m.Close()
								m.Beat()
							} else {
								t.Fatalf("after %s no server can take the place of server 1: %v", names[i], err)
							}
							h.honest(0, 1, 2)
							time.Sleep(5 * time.Second)
						}
						h.ask("checkpoint")
						h.goesOn(names[i])
						if h.c.measured.result.CheckpointError != "" {
							t.Errorf("after %s a checkpoint failed: %s", names[i], h.c.measured.result.CheckpointError)
						}
						over = strings.Contains(h.logs.String(), "unexpected frame "+empty.Kind().String())
					})
					if over || t.Failed() {
						return
					}
				}
			})
		}
	}
}
