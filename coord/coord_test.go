package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/advice"
	"star/coord/architecture"
	"star/coord/engine"
	"star/coord/outbox"
	"star/coord/session"
	"star/internal/exactsum"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/modes"
	"star/ps/replica"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// world is a coordinator on fake time, with servers and workers that the test plays: they speak the protocol through a
// Pipe and compute nothing.
type world struct {
	t    *testing.T
	net  *transport.Pipe
	c    *Coordinator
	logs *syncBuffer // what the coordinator logs
	run  *syncBuffer // the run log

	result runlog.Result
	err    error
	over   chan struct{}
	stop   context.CancelFunc
	end    context.CancelCauseFunc // of Run
	newest int64                   // version that a ring has when it is formed, at least

	sum2 float64 // that shards report
	// the sum of squares that shards report for a slice; nil: they do not measure
	sums    func(s *fakeServer, worker star.Worker, step int64) float64
	servers []*fakeServer
	wg      sync.WaitGroup
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *syncBuffer) Close() error { return nil }
func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// play runs a test in a bubble. The end of play ends what f leaves running; what is still blocked then fails the test.
func play(t *testing.T, cfg Config, f func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: new(transport.Pipe), logs: new(syncBuffer), run: new(syncBuffer), over: make(chan struct{})}
		cfg.Job, cfg.Batch = "job", 4
		if cfg.Steps == 0 {
			cfg.Steps = 3
		}
		cfg.Log = slog.New(slog.NewTextHandler(w.logs, nil))
		cfg.RunLog = runlog.NewWriter(w.run)
		if cfg.Name == nil {
			cfg.Name = func(version, life int64) string { return fmt.Sprintf("c%d-%d", version, life) }
		}
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.c = c
		l, err := w.net.Listen("coord")
		if err != nil {
			t.Fatal(err)
		}
		serve, stop := context.WithCancel(t.Context())
		run, end := context.WithCancelCause(t.Context())
		w.stop, w.end = stop, end
		w.wg.Go(func() { transport.Serve(serve, l, transport.Config{}, c.Accept) })
		w.wg.Go(func() {
			defer close(w.over)
			w.result, w.err = c.Run(run)
		})
		defer func() { // also after Fatal
			end(errors.New("the test is over"))
			<-w.over
			stop()
			w.wg.Wait()
		}()
		f(w)
	})
}

// finished waits for the end of the job.
func (w *world) finished(within time.Duration) {
	w.t.Helper()
	select {
	case <-w.over:
		synctest.Wait() // let all goroutines read what was sent last
	case <-time.After(within):
		w.t.Fatalf("the job is not over after %v; it waits for %q\n%s", within, w.waiting(), w.logs)
	}
}

// failed checks how the job ended.
func (w *world) failed(exit int, words ...string) {
	w.t.Helper()
	var e interface{ ExitCode() int }
	if !errors.As(w.err, &e) || e.ExitCode() != exit {
		w.t.Fatalf("the job ended with %v, want exit code %d", w.err, exit)
	}
	for _, word := range words {
		if !strings.Contains(w.err.Error(), word) {
			w.t.Errorf("the job ended with %q, want it to name %q", w.err, word)
		}
	}
}

// ask sends a command as star ctl does.
func (w *world) ask(args ...string) (json.RawMessage, string) {
	w.t.Helper()
	conn, _, _, err := transport.Open(w.t.Context(), w.net, "coord",
		wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if err := transport.Send(conn, wire.Control{Args: args}, nil); err != nil {
		w.t.Fatal(err)
	}
	f, err := conn.Recv()
	if err != nil {
		w.t.Fatal(err)
	}
	m, err := wire.ParseReply(f.Header)
	if err != nil {
		w.t.Fatal(err)
	}
	body, err := transport.ReadAll(conn, f)
	if err != nil {
		w.t.Fatal(err)
	}
	return body, m.Err
}

func (w *world) status() (s Status) {
	w.t.Helper()
	body, _ := w.ask("status")
	if err := json.Unmarshal(body, &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) waiting() string {
	select {
	case <-w.over:
		return "nothing: it is over"
	default:
		return w.status().Waiting
	}
}

// lines of the run log of one type.
func (w *world) lines(kind string) []map[string]any { return w.log(kind) }

// log are the lines of the run log of some types, in order.
func (w *world) log(kinds ...string) (out []map[string]any) {
	for line := range strings.Lines(w.run.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) != nil {
			continue
		}
		if kind, _ := m["type"].(string); slices.Contains(kinds, kind) {
			out = append(out, m)
		}
	}
	return out
}

// fakeServer hosts shards that hold nothing.
type fakeServer struct {
	m     *session.Member
	own   []int // shards
	mu    sync.Mutex
	fires []wire.Fire
	saves []wire.Save
	mute  bool // does not answer any more
	full  bool // fails to write its parts of checkpoints
	last  error
	gone  chan struct{}
	sum2  float64 // of each shard's part of a sum

	hands  []wire.HandStage // of a shard that it holds
	adopts []wire.AdoptStage
	moving func(id int64, stage wire.AdoptStage) // of a shard that arrives; nil: not reported

	copies map[int]*replica.Copy // by shard, where they have some

	ref     bool // its shards report on a validation gradient, too
	applies []wire.Apply
}

func (s *fakeServer) seen() []wire.Fire {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Fire(nil), s.fires...)
}

// server joins with k shards and plays a server; quiet: its shards do not report that they are ready.
func (w *world) server(rank, k int, quiet bool) *fakeServer {
	s := &fakeServer{gone: make(chan struct{})}
	if w.c.cfg.Replicas > 1 {
		s.copies = map[int]*replica.Copy{}
	}
	w.servers = append(w.servers, s)
	m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: rank, Shards: k, Addr: fmt.Sprintf("s%d", rank)}})
	if err != nil {
		w.t.Fatalf("server %d: %v", rank, err)
	}
	s.m, s.sum2 = m, w.sum2
	w.wg.Go(func() {
		defer close(s.gone)
		defer m.Close()
		a, err := m.Assignment(w.t.Context(), time.Hour)
		if err != nil {
			s.last = err
			return
		}
		s.mu.Lock()
		for _, i := range a.Shards {
			s.own = append(s.own, i.Shard)
		}
		s.mu.Unlock()
		if !quiet {
			s.ready(0)
		}
		s.last = s.serve()
	})
	return s
}

func (s *fakeServer) ready(version int64) {
	for _, i := range s.own {
		session.Say(s.m, wire.Ready{Shard: i, Version: version}, nil)
	}
}

func (s *fakeServer) serve() error {
	conn := s.m.Hosted()
	for {
		f, err := conn.Recv()
		if err != nil {
			return err
		}
		if err := conn.Discard(); err != nil {
			return err
		}
		s.mu.Lock()
		mute := s.mute
		s.mu.Unlock()
		if mute {
			continue
		}
		switch f.Kind {
		case wire.KindView:
			m, err := wire.ParseView(f.Header)
			if err != nil {
				return err
			}
			v := replica.View{Term: m.Term, Primary: m.Holders[0].Rank}
			for _, h := range m.Holders[1:] {
				v.Followers = append(v.Followers, h.Rank)
			}
			s.mu.Lock()
			if c := s.copies[m.Shard]; c != nil {
				c.Take(v)
			} else if s.copies != nil {
				fresh := replica.NewCopy(s.m.Welcome.Rank, v, 0)
				s.copies[m.Shard] = &fresh
				if !slices.Contains(s.own, m.Shard) {
					session.Say(s.m, wire.Ready{Shard: m.Shard}, nil)
				}
			}
			s.mu.Unlock()
		case wire.KindAhead:
			m, err := wire.ParseAhead(f.Header)
			if err != nil {
				return err
			}
			if err := s.hold(m.Seq, replica.ToFollowers); err != nil {
				return err
			}
		case wire.KindFire:
			var m wire.Fire
			if err := m.Parse(f.Header); err != nil {
				return err
			}
			s.mu.Lock()
			s.fires = append(s.fires, m)
			s.mu.Unlock()
			if err := s.hold(m.Seq, replica.ToPrimaries); err != nil {
				return err
			}
			if m.Report {
				for _, i := range s.has() {
					session.Say(s.m, wire.Norm{Shard: i, Seq: m.Seq, Sum2: s.sum2}, nil)
				}
			}
			if m.NormFirst {
				s.sayNorms(m.Seq)
			}
		case wire.KindApply:
			m, err := wire.ParseApply(f.Header)
			if err != nil || m.Norm != 5 {
				return fmt.Errorf("the norm is %v, want 5 (%v)", m.Norm, err)
			}
			s.mu.Lock()
			s.applies = append(s.applies, m)
			s.mu.Unlock()
		case wire.KindSave:
			m, err := wire.ParseSave(f.Header)
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.saves = append(s.saves, m)
			s.mu.Unlock()
			for _, i := range s.has() {
				if c := s.copies[i]; c != nil && !c.Primary() {
					continue
				}
				if s.full {
					session.Say(s.m, wire.Saved{Shard: i, ID: m.ID, Err: "it is complete"}, nil)
					continue
				}
				session.Say(s.m, wire.Saved{Shard: i, ID: m.ID}, fmt.Appendf(nil, "%d", i))
			}
		case wire.KindHand:
			m, err := wire.ParseHand(f.Header)
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.hands = append(s.hands, m.Stage)
			s.mu.Unlock()
		case wire.KindAdopt:
			m, err := wire.ParseAdopt(f.Header)
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.adopts = append(s.adopts, m.Stage)
			s.mu.Unlock()
			if s.moving != nil {
				s.moving(m.Move, m.Stage)
			}
		case wire.KindPing:
			session.Say(s.m, wire.Pong{}, nil)
		case wire.KindLeave:
			return nil
		case wire.KindReject:
			m, _ := wire.ParseReject(f.Header)
			return &transport.RejectError{Exit: m.Exit, Reason: m.Reason}
		default:
			return fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// sayNorms reports the sums of a firing: 3 and 4, so that the total norm is 5.
func (s *fakeServer) sayNorms(seq int64) {
	for _, i := range s.has() {
		var sq exactsum.Squares
		sq.Add([]float32{3, 4}[i%2 : i%2+1])
		b := sq.AppendTo(nil)
		if s.ref {
			b = sq.AppendTo(b)
		}
		session.Say(s.m, wire.Norm{Shard: i, Seq: seq, Sum2: float64(i + 1)}, b)
	}
}

// has returns the shards that it holds, and those with a copy here.
func (s *fakeServer) has() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.own)
	for shard := range s.copies {
		all = append(all, shard)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hold has its copies take a firing, and reports it as a server does.
func (s *fakeServer) hold(seq int64, to replica.To) error {
	s.mu.Lock()
	copies := s.copies
	s.mu.Unlock()
	for shard, c := range copies {
		s.mu.Lock()
		word, term := c.Fire(1, seq, to), c.Term()
		s.mu.Unlock()
		switch word {
		case replica.New:
			session.Say(s.m, wire.Held{Shard: shard, Term: term, Seq: seq}, nil)
		case replica.NotYet:
			return fmt.Errorf("shard %d: firing %d came after firing %d", shard, seq, c.Last())
		}
	}
	return nil
}

// stored reports that every shard holds a gradient.
func (w *world) stored(worker star.Worker, step int64) {
	for _, s := range w.servers {
		s.mu.Lock()
		mute := s.mute
		s.mu.Unlock()
		for _, i := range s.has() {
			if !mute {
				m := wire.Stored{Shard: i, Worker: worker, Step: step, Sum2: -1}
				if w.sums != nil {
					m.Sum2 = w.sums(s, worker, step)
				}
				session.Say(s.m, m, nil)
			}
		}
	}
}

// fakeWorker joins and does not compute.
type fakeWorker struct {
	process string
	w       *world
	m       *session.Member
	rank    star.Worker
	step    int64
	used    []Span // batches
	pace    time.Duration
	times   bool // its records have its computing time

	norm2   float64 // of its gradients
	change  float64 // of each gradient from the previous one; 0: not reported
	parts   bool    // it computes batches in parts if the plan has a queue
	buffers []float32
	told    *session.Told
	err     error
	gone    chan struct{}
	retired bool

	// dies, if not nil, is called at each phase: released, evaluating, averaged, pushed,
	// arrived. A worker that dies closes its connection.
	dies func(phase string, r wire.Release) bool

	retires func(step int64) (exit int, reason string) // its Leave, after which it computes nothing; empty: it continues
}

func hello(rank int) wire.Hello {
	return wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "job", Rank: rank,
		Model: "m", ModelHash: "cafe", Params: 100}
}

func (w *world) join(h wire.Hello, e session.Enrolment) (*session.Member, error) {
	m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: h, Enrol: &e, DeadAfter: time.Minute})
	if err == nil && m.Welcome.Batch != w.c.cfg.Batch {
		w.t.Errorf("a worker was told a batch of %d samples, the job's is %d", m.Welcome.Batch, w.c.cfg.Batch)
	}
	return m, err
}

var enrolment = session.Enrolment{Data: "none", Samples: 40, Digest: "a", Tests: 10}

// worker joins and plays a worker until the job is over.
func (w *world) worker(rank int, change ...func(*fakeWorker)) *fakeWorker {
	f := &fakeWorker{w: w, rank: star.Worker(rank), gone: make(chan struct{}), pace: time.Second + time.Duration(rank)*time.Microsecond}
	for _, c := range change {
		c(f)
	}
	w.wg.Go(func() {
		defer close(f.gone)
		h := hello(rank)
		h.Buffers, h.Process = int64(len(f.buffers)), f.process
		e := enrolment
		e.Told = f.told
		m, err := w.join(h, e)
		if err != nil {
			f.err = err
			return
		}
		f.m, f.step = m, m.Welcome.Step
		defer m.Close()
		m.Beat()
		if f.ask("welcomed", wire.Release{}) {
			return
		}
		session.Say(m, wire.Joined{Worker: f.rank}, nil)
		if f.parts {
			f.err = f.trainInParts()
			return
		}
		f.err = f.train()
	})
	return f
}

func (f *fakeWorker) ask(phase string, r wire.Release) bool {
	return f.dies != nil && f.dies(phase, r)
}

// next returns the next release. It skips views, which do not matter to a worker without parameters.
func (f *fakeWorker) next() (wire.Release, error) {
	for f.w.c.cfg.Replicas > 1 {
		if o, err := f.m.Order(); err != nil || o.Kind == wire.KindRelease {
			return o.Release, err
		}
	}
	return f.m.Next()
}

func (f *fakeWorker) train() error {
	for {
		r, err := f.next()
		if err != nil || r.Action == wire.Stop {
			return err
		}
		if f.ask("released", r) {
			return nil
		}
		if r.Action != wire.Continue {
			if f.ask("evaluating", r) {
				return nil
			}
			if len(f.buffers) > 0 {
				b := append([]float32(nil), f.buffers...)
				if err := f.m.Average(r.Eval, b); err != nil {
					return err
				}
				copy(f.buffers, b)
				if f.ask("averaged", r) {
					return nil
				}
			}
			n := (r.To - r.From) / 1000
			session.Say(f.m, wire.EvalResult{Worker: f.rank, Eval: r.Eval, Version: r.Version, LossSum: float64(n), Correct: n / 2, Count: n}, nil)
		}
		if r.Action == wire.Finish || f.retired {
			continue
		}
		time.Sleep(f.pace)
		if f.retires != nil {
			if exit, reason := f.retires(f.step); reason != "" {
				f.retired = true
				f.m.Leave(exit, reason)
				continue
			}
		}
		if f.ask("computed", r) {
			return nil
		}
		f.w.stored(f.rank, f.step)
		if f.ask("pushed", r) {
			return nil
		}
		rec := star.Record{Worker: f.rank, Step: f.step, Basis: r.Version, Samples: r.Count, Loss: 1, Norm2: f.norm2}
		if f.times {
			rec.Compute = f.pace
		}
		if f.change != 0 && f.step > 0 {
			rec.Telemetry.Set(star.GradChange, f.change)
		}
		if err := session.Say(f.m, wire.Arrive{Record: rec}, nil); err != nil {
			return err
		}
		f.step++
		f.used = append(f.used, Span{Start: r.Start, Count: r.Count})
		if f.ask("arrived", r) {
			return nil
		}
	}
}

// accounted checks that every sample of the stream was applied once or dropped by the plan, and that the run log
// agrees.
func (w *world) accounted(limit int64) {
	w.t.Helper()
	if w.result.Samples+w.result.Wasted != limit {
		w.t.Errorf("%d samples used and %d dropped, want %d in all", w.result.Samples, w.result.Wasted, limit)
	}
	fires := w.lines("fire")
	if len(fires) == 0 {
		w.t.Fatal("no update in the run log")
	}
	if got := fires[len(fires)-1]["samples"].(float64); int64(got) != w.result.Samples {
		w.t.Errorf("the last update of the run log has %v samples, the summary %d", got, w.result.Samples)
	}
}

func TestRoundsOfEveryMode(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "x=2", "groups=0,1/2", "backup=1", "kbatch=4", "kbatch-async=2"} {
		t.Run(mode, func(t *testing.T) {
			plan, err := modes.Parse(mode, 3)
			if err != nil {
				t.Fatal(err)
			}
			play(t, Config{MaxWorkers: 3, Servers: 2, Plan: plan, Steps: 5}, func(w *world) {
				w.server(1, 1, false)
				w.server(0, 2, false)
				for i := range 3 {
					w.worker(i, func(f *fakeWorker) { f.pace *= time.Duration(1 + i) })
				}
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				w.accounted(60)
				r := w.result
				if !r.Evaluated || math.Abs(r.TestAccuracy-1./3) > 1e-9 || r.TestLoss != 1 {
					t.Errorf("evaluated %v: loss %v, accuracy %v", r.Evaluated, r.TestLoss, r.TestAccuracy)
				}
				if mode == "ssgd" && (r.Updates != 5 || r.Staleness.Max != 0 || r.Steps != 15) {
					t.Errorf("ssgd: %d updates of %d gradients, staleness up to %d", r.Updates, r.Steps, r.Staleness.Max)
				}
				if mode == "asgd" && (r.Updates != 15 || r.Staleness.Max == 0) {
					t.Errorf("asgd: %d updates, staleness up to %d", r.Updates, r.Staleness.Max)
				}
				// Both servers saw the same history, without gaps.
				a, b := w.servers[0].seen(), w.servers[1].seen()
				if len(a) == 0 || fmt.Sprint(a) != fmt.Sprint(b) {
					t.Errorf("the servers were told different things:\n%v\n%v", a, b)
				}
				for i, f := range a {
					if f.Seq != int64(i+1) {
						t.Errorf("fire %d has number %d", i, f.Seq)
					}
				}
				for _, s := range w.servers {
					<-s.gone
					if s.last != nil {
						t.Errorf("a server ended with %v", s.last)
					}
				}
			})
		})
	}
}

// Whatever a worker does when it dies, the others end the job, and no sample is lost.
func TestDeathAtEachPhase(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "kbatch-async=5"} {
		for _, phase := range []string{"released", "computed", "pushed", "arrived", "evaluating", "averaged"} {
			t.Run(mode+"/"+phase, func(t *testing.T) {
				plan, _ := modes.Parse(mode, 3)
				play(t, Config{MaxWorkers: 3, Plan: plan, Steps: 10, EvalEvery: 1}, func(w *world) {
					w.server(0, 2, false)
					var ws []*fakeWorker
					for i := range 3 {
						ws = append(ws, w.worker(i, func(f *fakeWorker) {
							f.buffers = []float32{float32(i), 1}
							if i == 1 {
								f.dies = func(p string, r wire.Release) bool { return p == phase && f.step >= 3 }
							}
						}))
					}
					w.finished(time.Hour)
					if w.err != nil {
						t.Fatalf("%v\n%s", w.err, w.logs)
					}
					<-ws[1].gone
					if ws[1].step > 8 {
						t.Fatalf("worker 1 has not died in the middle: step %d", ws[1].step)
					}
					w.accounted(120)
					if strings.Contains(w.logs.String(), "msg=waiting") {
						t.Errorf("a job that goes on was taken for a stalled one:\n%s", w.logs)
					}
					leaves := w.lines("leave")
					if len(leaves) != 1 || leaves[0]["worker"] != 1. || leaves[0]["count"] != 4. {
						t.Errorf("the run log has of those that left: %v", leaves)
					}
					for _, i := range []int{0, 2} {
						if <-ws[i].gone; ws[i].err != nil {
							t.Errorf("worker %d: %v", i, ws[i].err)
						}
					}
				})
			})
		}
	}
}

func TestNoWorkerIsLeft(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Steps: 9}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0, func(f *fakeWorker) {
			f.dies = func(p string, _ wire.Release) bool { return p == "pushed" && f.step == 4 }
		})
		w.finished(time.Hour)
		w.failed(exitcode.Lost, "no worker is left", "worker 0")
	})
}

// If only the evaluation is missing, the training is done: the result is saved.
func TestLastWorkerDiesInTheLastEvaluation(t *testing.T) {
	saved := 0
	cfg := Config{MaxWorkers: 1, Steps: 3, Save: func(Checkpoint) (string, error) { saved++; return "here", nil }}
	play(t, cfg, func(w *world) {
		w.server(0, 1, false)
		w.worker(0, func(f *fakeWorker) {
			f.dies = func(p string, r wire.Release) bool { return p == "evaluating" && r.Action == wire.Finish }
		})
		w.finished(time.Hour)
		if w.err != nil || saved != 1 || w.result.Evaluated || w.result.Checkpoint != "here" {
			t.Errorf("ended with %v, %d checkpoints, evaluated %v", w.err, saved, w.result.Evaluated)
		}
		w.accounted(12)
	})
}

func TestJoinTimeoutNamesTheMissing(t *testing.T) {
	for name, c := range map[string]struct {
		start func(*world)
		words []string
	}{
		"worker": {func(w *world) { w.server(0, 1, false); w.server(1, 1, false); w.worker(0); w.worker(2) }, []string{"workers [1]"}},
		"server": {func(w *world) { w.server(1, 1, false); w.worker(0); w.worker(1); w.worker(2) }, []string{"servers [0]"}},
		"shards": {func(w *world) {
			w.server(0, 1, true)
			w.server(1, 1, false)
			for i := range 3 {
				w.worker(i)
			}
		}, []string{"the parameters of shards [0]"}},
		"link": {func(w *world) {
			w.server(0, 1, false)
			w.server(1, 1, false)
			w.worker(0)
			w.worker(1)
			w.worker(2, func(f *fakeWorker) {
				f.dies = func(p string, _ wire.Release) bool {
					time.Sleep(50 * time.Second)
					return true
				}
			})
		}, []string{"the connection to every shard of workers [2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, Config{MaxWorkers: 3, Servers: 2, JoinTimeout: 30 * time.Second}, func(w *world) {
				begun := time.Now()
				c.start(w)
				w.finished(time.Minute)
				if took := time.Since(begun); took != 30*time.Second {
					t.Errorf("after %v, want 30 s", took)
				}
				w.failed(exitcode.Lost, append(c.words, "join timeout")...)
				for _, s := range w.servers {
					var r *transport.RejectError
					if <-s.gone; !errors.As(s.last, &r) || r.Exit != exitcode.Lost || !strings.Contains(r.Reason, c.words[0]) {
						t.Errorf("a server was told %v", s.last)
					}
				}
			})
		})
	}
}

func TestSilentMembers(t *testing.T) {
	t.Run("worker", func(t *testing.T) {
		play(t, Config{MaxWorkers: 2, Steps: 5, DeadAfter: 20 * time.Second}, func(w *world) {
			w.server(0, 1, false)
			w.worker(0)
			silent, err := w.join(hello(1), enrolment)
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			session.Say(silent, wire.Joined{Worker: 1}, nil)
			w.finished(time.Minute)
			if w.err != nil {
				t.Fatal(w.err)
			}
			w.accounted(40)
			// It gets the reason when it wakes up.
			for err == nil {
				_, err = silent.Next()
			}
			var r *transport.RejectError
			if !errors.As(err, &r) || r.Exit != exitcode.Restart || !strings.Contains(r.Reason, "silent for more than 20s") {
				t.Errorf("it was told %v", err)
			}
		})
	})
	t.Run("slow worker is not dead", func(t *testing.T) {
		play(t, Config{MaxWorkers: 2, Steps: 2, DeadAfter: 20 * time.Second}, func(w *world) {
			w.server(0, 1, false)
			waits := w.worker(0)
			w.worker(1, func(f *fakeWorker) { f.pace = 10 * time.Minute })
			w.finished(time.Hour)
			if <-waits.gone; w.err != nil || waits.err != nil || w.result.Steps != 4 || w.result.Updates != 2 {
				t.Errorf("%d gradients in %d updates, %v, %v", w.result.Steps, w.result.Updates, w.err, waits.err)
			}
			if !strings.Contains(w.logs.String(), "worker 1 step 0") {
				t.Errorf("nothing names worker 1, which the others waited for:\n%s", w.logs)
			}
		})
	})
	t.Run("server", func(t *testing.T) {
		play(t, Config{MaxWorkers: 1, Servers: 2, Steps: 1000, DeadAfter: 20 * time.Second}, func(w *world) {
			w.server(0, 1, false)
			s := w.server(1, 1, false)
			w.worker(0)
			time.Sleep(5 * time.Second)
			s.mu.Lock()
			s.mute = true
			s.mu.Unlock()
			w.finished(time.Minute)
			w.failed(exitcode.Lost, "server 1", "silent for more than 20s")
		})
	})
	t.Run("server of an idle job", func(t *testing.T) {
		play(t, Config{MaxWorkers: 1, Steps: 1, DeadAfter: 20 * time.Second}, func(w *world) {
			w.server(0, 1, false)
			w.worker(0, func(f *fakeWorker) { f.pace = 20 * time.Minute })
			w.finished(time.Hour)
			if w.err != nil {
				t.Error(w.err)
			}
		})
	})
	t.Run("coordinator", func(t *testing.T) {
		play(t, Config{MaxWorkers: 2}, func(w *world) {
			s := w.server(0, 1, true)
			m, err := w.join(hello(0), enrolment)
			if err != nil {
				t.Fatal(err)
			}
			m.Beat()
			w.stop() // messages of members are not read any more, and not answered
			w.end(errors.New("gone"))
			if _, err := m.Next(); err == nil {
				t.Error("the worker does not notice")
			}
			m.Close()
			<-s.gone
			if s.last == nil {
				t.Error("the server does not notice")
			}
		})
	})
	t.Run("coordinator that says nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			net, l := piped(t)
			defer l.Close()
			for name, wait := range map[string]func(*session.Member) error{
				"worker": func(m *session.Member) error { m.Beat(); _, err := m.Next(); return err },
				"server": func(m *session.Member) error { _, err := m.Hosted().Recv(); return err },
			} {
				go func() {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					transport.ReadHello(conn, time.Second)
					transport.Send(conn, wire.Welcome{}, nil)
					time.Sleep(time.Hour)
					conn.Close()
				}()
				m, err := session.Join(t.Context(), session.MemberConfig{Network: net, Addr: "coord", Hello: hello(0), DeadAfter: 30 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				err = wait(m)
				var lost *session.LostError
				if took := time.Since(begun); !errors.As(err, &lost) || !strings.Contains(err.Error(), "silent for more than 30s") || took < 30*time.Second || took > 40*time.Second {
					t.Errorf("%s: %v after %v", name, err, took)
				}
				m.Close()
			}
			time.Sleep(2 * time.Hour)
		})
	})
}

// A gradient that no shard has received does not block the job forever.
func TestArriveWithoutPush(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 4}, func(w *world) {
		w.server(0, 2, false)
		w.worker(0)
		liar, err := w.join(hello(1), enrolment)
		if err != nil {
			t.Fatal(err)
		}
		defer liar.Close()
		liar.Beat()
		session.Say(liar, wire.Joined{Worker: 1}, nil)
		if _, err := liar.Next(); err != nil {
			t.Fatal(err)
		}
		session.Say(liar, wire.Arrive{Record: star.Record{Worker: 1, Samples: 4}}, nil)
		session.Say(w.servers[0].m, wire.Stored{Shard: 1, Worker: 1}, nil)
		_, err = liar.Next()
		var r *transport.RejectError
		if !errors.As(err, &r) || !strings.Contains(r.Reason, "step 0, but shards [0] do not hold it") {
			t.Errorf("it was told %v", err)
		}
		w.finished(5 * time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(32)
	})
}

// A worker that sends an invalid message loses its membership, and nothing else changes.
func TestBrokenRules(t *testing.T) {
	nan := func(m wire.EvalResult) wire.EvalResult { m.Eval = 1; return m }
	for name, c := range map[string]struct {
		say    func(*session.Member) error
		reason string
	}{
		"arrive of another": {func(m *session.Member) error {
			return session.Say(m, wire.Arrive{Record: star.Record{Worker: 0, Samples: 4}}, nil)
		}, "arrive for worker 0"},
		"wrong step": {func(m *session.Member) error {
			return session.Say(m, wire.Arrive{Record: star.Record{Worker: 1, Step: 3, Samples: 4}}, nil)
		}, "step 3, expected step 0"},
		"wrong samples": {func(m *session.Member) error {
			return session.Say(m, wire.Arrive{Record: star.Record{Worker: 1, Samples: 1 << 30}}, nil)
		}, "samples, expected 4"},
		"stored": {func(m *session.Member) error { return session.Say(m, wire.Stored{Worker: 1}, nil) }, "unexpected frame stored"},
		"ready":  {func(m *session.Member) error { return session.Say(m, wire.Ready{Version: 9}, nil) }, "unexpected frame ready"},
		"norm":   {func(m *session.Member) error { return session.Say(m, wire.Norm{Seq: 1}, make([]byte, 64)) }, "unexpected frame norm"},
		"wrong buffers": {func(m *session.Member) error {
			return session.Say(m, wire.Buffers{Worker: 1, Eval: 1}, make([]byte, 12))
		}, "buffers of 12 bytes, expected 8"},
		"result, no buffers": {func(m *session.Member) error { return session.Say(m, nan(wire.EvalResult{Worker: 1}), nil) }, "before the buffers"},
		"more than all": {func(m *session.Member) error {
			return session.Say(m, nan(wire.EvalResult{Worker: 1, Correct: 3, Count: 2}), nil)
		}, "3 of 2 predictions"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, Config{MaxWorkers: 2, Steps: 20, EvalEvery: 0.2}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0, func(f *fakeWorker) { f.buffers = []float32{1, 2} })
				h := hello(1)
				h.Buffers = 2
				bad, err := w.join(h, enrolment)
				if err != nil {
					t.Fatal(err)
				}
				defer bad.Close()
				bad.Beat()
				session.Say(bad, wire.Joined{Worker: 1}, nil)
				if _, err := bad.Next(); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(name, "buffers") || name == "more than all" { // at an evaluation
					for step := int64(0); ; step++ {
						w.stored(1, step)
						session.Say(bad, wire.Arrive{Record: star.Record{Worker: 1, Step: step, Samples: 4}}, nil)
						r, err := bad.Next()
						if err != nil || step > 5 {
							t.Fatalf("no evaluation: %v, %v", r, err)
						}
						if r.Action == wire.Evaluate {
							break
						}
					}
				}
				c.say(bad)
				_, err = bad.Next()
				var r *transport.RejectError
				if !errors.As(err, &r) || r.Exit != exitcode.Disagree || !strings.Contains(r.Reason, c.reason) {
					t.Errorf("it was told %v, want %q", err, c.reason)
				}
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				w.accounted(160)
				for _, l := range w.lines("record") {
					if l["worker"] == 1. && l["samples"] != 4. || l["worker"] == 1. && l["step"].(float64) > 2 {
						t.Errorf("the run log has what was refused: %v", l)
					}
				}
			})
		})
	}
}

// The only worker of a job violates the protocol during an evaluation: the job ends.
func TestBrokenRuleOfTheLastWorker(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Steps: 50, EvalEvery: 0.1}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0, func(f *fakeWorker) {
			f.buffers = []float32{1, 2}
			f.dies = func(p string, r wire.Release) bool {
				if p == "evaluating" {
					f.buffers = f.buffers[:1]
				}
				return false
			}
		})
		w.finished(time.Hour)
		w.failed(exitcode.Lost, "buffers of 4 bytes, expected 8")
	})
}

func TestRefusals(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Servers: 2, MaxParams: 1000, JoinTimeout: time.Hour}, func(w *world) {
		w.server(0, 1000, true)
		refused := func(name string, exit int, word string, h wire.Hello, e session.Enrolment) {
			t.Helper()
			m, err := w.join(h, e)
			if err == nil {
				m.Close()
			}
			var r *transport.RejectError
			if !errors.As(err, &r) || r.Exit != exit || !strings.Contains(r.Reason, word) {
				t.Errorf("%s: %v, want exit %d and %q", name, err, exit, word)
			}
		}
		change := func(f func(*wire.Hello)) wire.Hello { h := hello(-1); f(&h); return h }
		refused("job", exitcode.Disagree, `this is job "job", not "zebra"`, change(func(h *wire.Hello) { h.Job = "zebra" }), enrolment)
		refused("too large", exitcode.Usage, "have memory", change(func(h *wire.Hello) { h.Params = 1 << 40 }), enrolment)
		refused("buffers", exitcode.Usage, "buffers", change(func(h *wire.Hello) { h.Buffers = 1 << 40 }), enrolment)
		refused("no parameters", exitcode.Usage, "cannot train", change(func(h *wire.Hello) { h.Params = 0 }), enrolment)
		refused("no data", exitcode.Usage, "cannot train", hello(-1), session.Enrolment{Data: "none"})
		refused("range", exitcode.Usage, "out of range", hello(2), enrolment)
		refused("server twice", exitcode.Usage, "server rank 0 is taken", change(func(h *wire.Hello) { h.Role, h.Rank = wire.RoleServer, 0 }), enrolment)
		refused("shards", exitcode.Usage, "1025 in the job", change(func(h *wire.Hello) { h.Role, h.Shards = wire.RoleServer, 25 }), enrolment)
		refused("role", exitcode.Usage, "unknown role", change(func(h *wire.Hello) { h.Role = "king" }), enrolment)

		first := w.worker(-1) // the coordinator chooses
		synctest.Wait()
		refused("hash", exitcode.Disagree, "beef", change(func(h *wire.Hello) { h.ModelHash = "beef" }), enrolment)
		refused("hash", exitcode.Disagree, "cafe", change(func(h *wire.Hello) { h.ModelHash = "beef" }), enrolment)
		refused("size", exitcode.Disagree, "99 parameters", change(func(h *wire.Hello) { h.Params = 99 }), enrolment)
		refused("data", exitcode.Disagree, "41 samples", hello(-1), session.Enrolment{Data: "none", Samples: 41})
		refused("other data", exitcode.Disagree, "some", hello(-1), session.Enrolment{Data: "some", Samples: 40})
		refused("other contents", exitcode.Disagree, "other contents", hello(-1), session.Enrolment{Data: "none", Samples: 40, Digest: "b"})
		refused("rank twice", exitcode.Usage, "worker rank 0 is taken", hello(0), enrolment)
		w.end(errors.New("enough"))
		<-first.gone
	})
}

// A worker that dies before the start leaves its rank and its duties to the next one, and the job does not start
// without it.
func TestAnotherSeeder(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 2}, func(w *world) {
		s := w.server(0, 1, true)
		first, err := w.join(hello(1), enrolment)
		if err != nil || !first.Welcome.Seed || first.Welcome.Rank != 1 {
			t.Fatalf("the first worker was welcomed with %+v, %v", first, err)
		}
		session.Say(first, wire.Joined{Worker: 1}, nil)
		synctest.Wait()
		first.Close()
		synctest.Wait()
		other := w.worker(0)
		synctest.Wait()
		if !other.m.Welcome.Seed {
			t.Error("the first worker is gone, and no other was told to send the parameters")
		}
		second, err := w.join(hello(1), enrolment)
		if err != nil || second.Welcome.Seed {
			t.Fatalf("a second seeder beside the first: %+v, %v", second, err)
		}
		second.Close()
		s.ready(0)
		synctest.Wait()
		if got := w.status(); got.Phase != "joining" || got.Waiting != "workers [1]" {
			t.Errorf("without worker 1 the job is %s and waits for %s", got.Phase, got.Waiting)
		}
		third := w.worker(1)
		w.finished(time.Minute)
		if w.err != nil || third.m.Welcome.Seed {
			t.Errorf("%v, seed %v", w.err, third.m.Welcome.Seed)
		}
	})
}

func TestJoinedBeforeWelcome(t *testing.T) {
	play(t, Config{MaxWorkers: 1}, func(w *world) {
		conn, err := w.net.Dial(w.t.Context(), "coord")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		e, _ := json.Marshal(enrolment)
		transport.Send(conn, hello(0), e)
		transport.Send(conn, wire.Joined{}, nil)
		f, err := conn.Recv()
		if err != nil || f.Kind != wire.KindReject {
			t.Fatalf("answered with %v, %v", f.Kind, err)
		}
		if m, _ := wire.ParseReject(f.Header); !strings.Contains(m.Reason, "before it was welcomed") {
			t.Error(m.Reason)
		}
	})
}

// The vector is cut without gaps, and a shard has at most one element more than another.
func TestRanges(t *testing.T) {
	for _, c := range []struct{ params, shards, want int64 }{{100, 3, 3}, {100, 1, 1}, {2, 5, 2}, {1023, 512, 512}} {
		play(t, Config{MaxWorkers: 1, Servers: 2}, func(w *world) {
			w.server(0, 1, true)
			if c.shards > 1 {
				w.server(1, int(c.shards-1), true)
			} else {
				w.server(1, 0, true)
			}
			h := hello(0)
			h.Params = c.params
			m, err := w.join(h, enrolment)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			at := int64(0)
			for i, s := range m.Welcome.Shards {
				n := s.To - s.From
				if s.Shard != i || s.From != at || n < c.params/c.want || n > c.params/c.want+1 {
					t.Errorf("%d parameters over %d: shard %d is %+v", c.params, c.shards, i, s)
				}
				at = s.To
			}
			if at != c.params || int64(len(m.Welcome.Shards)) != c.want {
				t.Errorf("%d parameters over %d: %d shards end at %d", c.params, c.shards, len(m.Welcome.Shards), at)
			}
		})
	}
}

func TestResumedJob(t *testing.T) {
	cfg := Config{MaxWorkers: 2, Steps: 8, EvalEvery: 0.5, ResumeHash: "cafe", ResumeData: &session.Enrolment{Data: "none", Samples: 40, Digest: "a"}, Resume: Progress{Version: 5, Samples: 24, Cursor: 32, Redo: []Span{{Start: 16, Count: 8}}}}
	play(t, cfg, func(w *world) {
		s := w.server(0, 1, true)
		refused := hello(0)
		refused.ModelHash = "beef"
		if _, err := w.join(refused, enrolment); err == nil || !strings.Contains(err.Error(), "cafe") || !strings.Contains(err.Error(), "beef") {
			t.Errorf("another model than the checkpoint's: %v", err)
		}
		for _, e := range []session.Enrolment{{Data: "none", Samples: 41}, {Data: "some", Samples: 40}, {Data: "none", Samples: 40, Digest: "b"}} {
			var rejected *transport.RejectError
			if _, err := w.join(hello(0), e); !errors.As(err, &rejected) || rejected.Exit != exitcode.Disagree || !strings.Contains(err.Error(), "--resume-other-data") {
				t.Errorf("other data than the checkpoint's, %+v: %v", e, err)
			}
		}
		a, b := w.worker(0), w.worker(1)
		synctest.Wait()
		s.ready(5)
		w.finished(time.Hour)
		if w.err != nil || a.m.Welcome.Seed || b.m.Welcome.Seed || a.m.Welcome.Version != 5 {
			t.Errorf("%v, welcomed with %+v", w.err, a.m.Welcome)
		}
		if fmt.Sprint(a.used, b.used) != "[{16 4} {32 4} {40 4} {48 4} {56 4}] [{20 4} {36 4} {44 4} {52 4} {60 4}]" {
			t.Errorf("batches %v and %v", a.used, b.used)
		}
		if f := s.seen(); f[0].Version != 6 || f[0].Samples != 24 {
			t.Errorf("first update: %+v", f[0])
		}
		if e := w.lines("eval"); len(e) != 2 || e[0]["from_version"] != 8. { // after 40 samples, and at the end
			t.Errorf("evaluations %v", e)
		}
	})
	play(t, cfg, func(w *world) {
		w.server(0, 1, false) // at version 0
		w.worker(0)
		w.finished(time.Minute)
		w.failed(exitcode.Disagree, "shard 0 is at version 0", "resumes at 5")
	})
}

// A job that resumes at its end evaluates, and ends again.
func TestResumedAtTheEnd(t *testing.T) {
	saved := 0
	cfg := Config{MaxWorkers: 2, Steps: 4, Resume: Progress{Version: 4, Samples: 32, Cursor: 32}, Save: func(Checkpoint) (string, error) { saved++; return "", nil }}
	play(t, cfg, func(w *world) {
		s := w.server(0, 1, true)
		w.worker(0)
		w.worker(1)
		synctest.Wait()
		s.ready(4)
		w.finished(time.Minute)
		if w.err != nil || !w.result.Evaluated || saved != 1 || w.result.Updates != 0 {
			t.Errorf("%v, evaluated %v, %d checkpoints, %d updates", w.err, w.result.Evaluated, saved, w.result.Updates)
		}
	})
}

// An evaluation of a model with buffers completes, and covers all of the test set, even if a worker that has not sent
// its buffers is released only when others send gradients, and these wait for the average.
func TestAverageWithoutWaitingWorkers(t *testing.T) {
	for _, c := range []struct{ mode, then string }{{"ssgd", ""}, {"asgd", ""}, {"x=2", ""}, {"groups=0,1/2", ""}, {"backup=1", ""}, {"asgd ahead=1", ""}, {"asgd", "ssgd"}, {"asgd", "x=2"}} {
		t.Run(c.mode+" "+c.then, func(t *testing.T) {
			plan, err := modes.Parse(c.mode, 3)
			if err != nil {
				t.Fatal(err)
			}
			play(t, Config{MaxWorkers: 3, Steps: 40, EvalEvery: 0.5, Plan: plan}, func(w *world) {
				w.server(0, 1, false)
				for i, value := range []float32{10, 20, 30} {
					w.worker(i, func(f *fakeWorker) {
						f.buffers = []float32{value}
						if i == 2 {
							f.pace = 6500 * time.Millisecond
						}
						f.dies = func(p string, r wire.Release) bool {
							if p == "averaged" && r.Eval == 1 {
								if b := f.buffers[0]; b != 20 && b != 15 {
									t.Errorf("worker %d has the average %v, want that of 10, 20 and 30 or of the present ones", i, b)
								}
							}
							return false
						}
					})
				}
				if c.then != "" {
					time.Sleep(5500 * time.Millisecond) // worker 2 computes, the others wait for its buffers
					synctest.Wait()
					if _, no := w.ask("mode", c.then); no != "" {
						t.Error(no)
					}
				}
				w.finished(15 * time.Minute)
				if w.err != nil {
					t.Fatalf("%v\n%s", w.err, w.logs)
				}
				evals := w.lines("eval")
				if len(evals) < 4 {
					t.Fatalf("%d evaluations", len(evals))
				}
				for _, e := range evals[:3] { // at the end there may be workers without a batch
					if e["count"].(float64) < 9 {
						t.Errorf("evaluated: %v", e)
					}
				}
			})
		})
	}
}

// A worker that dies between its buffers and the average does not count twice.
func TestDeathBeforeTheAverage(t *testing.T) {
	play(t, Config{MaxWorkers: 3, Plan: modes.ASGD(3), Steps: 20, EvalEvery: 0.1}, func(w *world) {
		w.server(0, 1, false)
		w.worker(2, func(f *fakeWorker) { f.buffers, f.pace = []float32{30}, 10*time.Second })
		w.worker(0, func(f *fakeWorker) {
			f.buffers = []float32{10}
			f.dies = func(p string, r wire.Release) bool {
				if p == "averaged" && r.Eval == 1 {
					// 20 of the worker that died, 30 of the one that joined last.
					if f.buffers[0] != 20 {
						t.Errorf("the average is %v, want that of 10, 20 and 30", f.buffers[0])
					}
					f.buffers[0] = 10
				}
				return false
			}
		})
		h := hello(1)
		h.Buffers = 1
		m, err := w.join(h, enrolment)
		if err != nil {
			t.Fatal(err)
		}
		m.Beat()
		session.Say(m, wire.Joined{Worker: 1}, nil)
		for step := int64(0); ; step++ {
			r, err := m.Next()
			if err != nil {
				t.Fatal(err)
			}
			if r.Action == wire.Evaluate {
				session.Say(m, wire.Buffers{Worker: 1, Eval: r.Eval}, transport.Floats([]float32{20}))
				break
			}
			time.Sleep(100 * time.Millisecond)
			w.stored(1, step)
			session.Say(m, wire.Arrive{Record: star.Record{Worker: 1, Step: step, Samples: r.Count}}, nil)
		}
		time.Sleep(time.Second)
		m.Close()
		time.Sleep(time.Second)
		if w.status().Workers[2].Step != 0 {
			t.Error("worker 2 has already been released: this tests nothing")
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Error(w.err)
		}
		w.accounted(240)
	})
}

// A coordinator that was suspended itself does not count the others as gone.
func TestStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{MaxWorkers: 1, Batch: 1, Steps: 1})
		if err != nil {
			t.Fatal(err)
		}
		a, b := transport.Pipe{}, time.Now()
		l, _ := a.Listen("x")
		go a.Dial(t.Context(), "x")
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p := &peer{conn: outbox.New(conn, time.Second, c.log), role: wire.RoleWorker, welcomed: true, heard: b}
		c.peers.workers[0] = p
		for _, at := range []struct {
			sec  int
			gone bool
		}{{0, false}, {1, false}, {601, false}, {602, false}, {640, false}, {665, true}} {
			if at.sec > 602 { // the seconds between
				c.run.ticked = b.Add(time.Duration(at.sec-1) * time.Second)
			}
			if err := c.tick(b.Add(time.Duration(at.sec) * time.Second)); err != nil {
				t.Fatal(err)
			}
			if p.gone != at.gone {
				t.Fatalf("after %d s, suspended from 1 to 601: gone %v", at.sec, p.gone)
			}
		}
	})
}

// The coordinator closes connections that members leave open: its process ends.
func TestNoMemberDelaysTheEnd(t *testing.T) {
	play(t, Config{MaxWorkers: 1, JoinTimeout: 10 * time.Second}, func(w *world) {
		deaf, err := w.net.Dial(w.t.Context(), "coord")
		if err != nil {
			t.Fatal(err)
		}
		defer deaf.Close()
		e, _ := json.Marshal(enrolment)
		transport.Send(deaf, hello(0), e)
		tool, _, _, err := transport.Open(w.t.Context(), w.net, "coord", wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tool.Close()
		w.finished(time.Minute)
		w.stop()
		all := make(chan struct{})
		go func() { w.wg.Wait(); close(all) }()
		select {
		case <-all:
		case <-time.After(10 * time.Second):
			t.Error("connections are still served 10 s after the end of the job")
		}
	})
}

// A tool that names a job is only accepted by that job, so that it cannot stop another job on the same port.
func TestToolOfAnotherJob(t *testing.T) {
	play(t, Config{MaxWorkers: 1}, func(w *world) {
		for job, refused := range map[string]bool{"": false, "job": false, "other": true} {
			conn, _, _, err := transport.Open(w.t.Context(), w.net, "coord", wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Job: job, Rank: -1}, nil)
			if err == nil {
				conn.Close()
			}
			var r *transport.RejectError
			if errors.As(err, &r) != refused || refused && (r.Exit != exitcode.Disagree || r.Reason != `this is job "job", not "other" (--job)`) {
				t.Errorf("a tool that wants job %q: %v", job, err)
			}
		}
	})
}

func TestServerIsLost(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Servers: 2, Steps: 1000}, func(w *world) {
		w.server(0, 1, false)
		s := w.server(1, 1, false)
		w.worker(0)
		time.Sleep(5 * time.Second)
		s.m.Close()
		w.finished(time.Minute)
		w.failed(exitcode.Lost, "server 1 (s1) is lost")
	})
}

// A process that must end ends for that reason, even if it first learns of a loss that follows from it.
func TestEndingTakesServersAlong(t *testing.T) {
	for range 20 { // the order of the two is random
		play(t, Config{MaxWorkers: 1, Servers: 1, Steps: 1000}, func(w *world) {
			s := w.server(0, 1, false)
			w.worker(0)
			time.Sleep(5 * time.Second)
			told := errors.New("SIGTERM")
			w.end(told)
			s.m.Close()
			w.finished(time.Minute)
			if w.err != told {
				t.Fatalf("the job ended with %v, want %v", w.err, told)
			}
		})
	}
}

// A server that is lost before its assignment may come back.
func TestServerComesBack(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Servers: 2, Steps: 2}, func(w *world) {
		s := w.server(0, 1, false)
		synctest.Wait()
		s.m.Close()
		synctest.Wait()
		w.servers = nil
		w.server(0, 1, false)
		w.server(1, 1, false)
		w.worker(0)
		w.finished(time.Minute)
		if w.err != nil {
			t.Error(w.err)
		}
	})
}

func TestCommands(t *testing.T) {
	plan := modes.SSGD(2)
	plan.Shares = []int{4, 3}
	cfg := Config{MaxWorkers: 2, Plan: plan, Steps: 1000, Save: func(c Checkpoint) (string, error) { return c.ID, nil }}
	play(t, cfg, func(w *world) {
		if _, no := w.ask("mode", "asgd"); !strings.Contains(no, "has not begun") || !strings.Contains(no, "servers [0]") {
			t.Errorf("mode before the start: %q", no)
		}
		if s := w.status(); s.Phase != "joining" || s.Workers[1].State != "absent" {
			t.Errorf("status before the start: %+v", s)
		}
		w.server(0, 1, false)
		ws := []*fakeWorker{w.worker(0), w.worker(1, func(f *fakeWorker) { f.pace *= 5 })}
		time.Sleep(12500 * time.Millisecond)
		if s := w.status(); s.Phase != "training" || s.Version != 2 || s.Samples != 14 || s.Workers[0].State != "waiting" || s.Workers[1].State != "computing" {
			t.Errorf("status: %+v", s)
		}
		for _, args := range [][]string{{"mode", "x=9"}, {"mode"}, {"dance"}, {}, {"mode", "asgd", "now"}} {
			if _, no := w.ask(args...); no == "" {
				t.Errorf("%q was accepted", args)
			}
		}
		// Worker 0 waits; in ASGD it would not.
		if body, no := w.ask("mode", "asgd"); no != "" || !bytes.Contains(body, []byte(`"from":"ssgd shares=4,3"`)) {
			t.Errorf("mode asgd: %s %s", body, no)
		}
		time.Sleep(time.Millisecond)
		if s := w.status(); s.Version != 3 || s.Mode != "asgd shares=4,3" || s.Switches != 1 {
			t.Errorf("after the change: %+v", s)
		}
		w.ask("mode", "asgd") // no change
		if _, no := w.ask("checkpoint"); no != "" {
			t.Error(no)
		}
		time.Sleep(10 * time.Second)
		if got := w.lines("checkpoint"); len(got) != 1 || got[0]["id"] != "c3-0" {
			t.Errorf("checkpoints %v", got)
		}
		done := w.status().Workers[0].Step
		if _, no := w.ask("stop"); no != "" {
			t.Error(no)
		}
		w.finished(time.Minute)
		for i, f := range ws {
			<-f.gone
			if i == 0 && f.step > done+1 {
				t.Errorf("worker 0 made %d steps after the stop", f.step-done)
			}
			if last := f.used[len(f.used)-1]; last.Count != plan.Shares[i] {
				t.Errorf("worker %d has a share of %d samples after the change of mode, want %d", i, last.Count, plan.Shares[i])
			}
		}
		if w.err != nil || w.result.Switches != 1 || w.result.Samples >= 8000 {
			t.Errorf("%v: %d switches, %d samples", w.err, w.result.Switches, w.result.Samples)
		}
		if got := w.lines("checkpoint"); len(got) != 2 {
			t.Errorf("checkpoints %v", got)
		}
		if got := w.lines("stop"); len(got) != 1 || got[0]["limit"] != float64(w.result.Samples) {
			t.Errorf("stops %v, want one at the %d samples of the result", got, w.result.Samples)
		}
		if got := w.lines("plan"); len(got) != 1 {
			t.Errorf("changes of plan %v", got)
		}
	})
}

// tuned is a Pilot with thresholds.
type tuned struct{ script }

func (*tuned) Thresholds() map[string]float64 {
	return map[string]float64{advice.ModeGain: 0.07, advice.VerdictRatio: 0.2}
}

// Thresholds are changed while the job runs, all that are requested or none; the pilot and the log get the changes.
func TestSetThresholds(t *testing.T) {
	pilot := new(tuned)
	cfg := Config{MaxWorkers: 2, Steps: 1000, Pilot: pilot, CheckpointEvery: time.Hour, Save: func(c Checkpoint) (string, error) { return c.ID, nil }}
	play(t, cfg, func(w *world) {
		if _, no := w.ask("set", "mode-gain=0.2"); !strings.Contains(no, "has not begun") {
			t.Errorf("set before the start: %q", no)
		}
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1)
		time.Sleep(5 * time.Second)
		for _, args := range [][]string{{"set", "mode-gain=2"}, {"set", "mode-gain"}, {"set", "mode-gain=0.2", "colour=1"}, {"set", "mode-dwell=4"}} {
			if _, no := w.ask(args...); no == "" {
				t.Errorf("%q was accepted", args)
			}
		}
		if body, no := w.ask("set"); no != "" || !bytes.Contains(body, []byte(`"name":"mode-gain","value":0.07`)) || !bytes.Contains(body, []byte(`"name":"checkpoint-every","value":3600`)) {
			t.Errorf("set: %s %s", body, no)
		}
		if n := len(w.lines("checkpoint")); n != 0 {
			t.Errorf("%d checkpoints", n)
		}
		body, no := w.ask("set", "mode-gain=0.2", "checkpoint-every=10s", "eval-every=0.1")
		if no != "" || !bytes.Contains(body, []byte(`"value":0.2,"from":0.07,"text":"0.07 → 0.2"`)) {
			t.Errorf("set: %s %s", body, no)
		}
		w.ask("set", "mode-gain=0.2") // no change
		time.Sleep(35 * time.Second)
		if n := len(w.lines("checkpoint")); n != 3 {
			t.Errorf("%d checkpoints in 35 s, one every 10 s", n)
		}
		if len(w.lines("eval")) < 2 {
			t.Errorf("evaluations %v", w.lines("eval"))
		}
		w.ask("stop")
		w.finished(time.Minute)
		synctest.Wait()
		if sets := w.lines("set"); len(sets) != 3 || sets[0]["name"] != "mode-gain" || sets[0]["value"] != 0.2 || sets[0]["from"] != 0.07 || sets[0]["why"] != "star ctl" {
			t.Errorf("%v", sets)
		}
		told := 0
		for _, l := range pilot.told {
			if e, ok := l.Entry.(runlog.Set); ok && e.Name == "mode-gain" && e.Value == 0.2 {
				told++
			}
		}
		if told != 1 {
			t.Errorf("the pilot was told %d times", told)
		}
	})
}

func TestCheckpointWithBuffers(t *testing.T) {
	var all []Checkpoint
	cfg := Config{MaxWorkers: 2, Steps: 10, EvalEvery: 1, CheckpointEvery: 3 * time.Second, Generation: 7,
		Save: func(c Checkpoint) (string, error) { all = append(all, c); return c.ID, nil }}
	play(t, cfg, func(w *world) {
		w.server(0, 2, false)
		for i := range 2 {
			w.worker(i, func(f *fakeWorker) { f.buffers = []float32{float32(2 * i), 7} })
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if len(all) < 3 {
			t.Fatalf("%d checkpoints", len(all))
		}
		for _, c := range all {
			if fmt.Sprint(c.Buffers) != "[1 7]" || len(c.Parts) != 2 || string(c.Parts[1]) != "1" || c.Generation != 7 || c.ModelHash != "cafe" {
				t.Errorf("checkpoint %+v", c)
			}
			redo := 0
			for _, s := range c.Redo {
				redo += s.Count
			}
			if c.Samples+int64(redo) != c.Cursor {
				t.Errorf("checkpoint %s: %d samples and %d to be done again do not make %d", c.ID, c.Samples, redo, c.Cursor)
			}
		}
		if last := all[len(all)-1]; last.Version != 10 || last.Samples != 80 || len(last.Redo) != 0 {
			t.Errorf("the last checkpoint: %+v", last)
		}
		if n := len(w.lines("eval")); n != 2 { // after 40 samples, and at the end
			t.Errorf("%d evaluations in the run log, want 2", n)
		}
	})
}

// A checkpoint that is requested after the last batch gets no buffers any more; the job ends anyway.
func TestCheckpointAtTheEnd(t *testing.T) {
	for after := range 12 {
		cfg := Config{MaxWorkers: 2, Plan: modes.ASGD(2), Steps: 3, Save: func(c Checkpoint) (string, error) { return c.ID, nil }}
		play(t, cfg, func(w *world) {
			w.server(0, 1, false)
			for i := range 2 {
				w.worker(i, func(f *fakeWorker) { f.buffers = []float32{1}; f.pace *= time.Duration(i + 1) })
			}
			time.Sleep(time.Duration(after) * 500 * time.Millisecond)
			select {
			case <-w.over:
			default:
				w.ask("checkpoint")
			}
			w.finished(time.Hour)
			if w.err != nil || w.result.Checkpoint == "" {
				t.Errorf("asked after %d half seconds: %v, checkpoint %q", after, w.err, w.result.Checkpoint)
			}
			w.accounted(24)
		})
	}
}

func TestEvaluationsInTime(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Steps: 20, EvalEvery: 0.3}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.finished(time.Hour)
		var at []float64
		for _, l := range w.lines("eval") {
			at = append(at, l["to_version"].(float64)*4)
		}
		if strings.Contains(w.logs.String(), "msg=waiting") {
			t.Errorf("a job that goes on was taken for a stalled one:\n%s", w.logs)
		}
		if fmt.Sprint(at) != "[16 28 40 52 64 76 80]" { // a release after 12, 24, 36, …
			t.Errorf("evaluated the parameters after %v samples", at)
		}
	})
}

// The last gradient may be dropped while an evaluation waits for its worker, with another one due: no worker would be
// left for that one, and the end follows instead.
func TestEvaluationDueAtTheEnd(t *testing.T) {
	for slow := time.Duration(1); slow <= 12; slow++ {
		play(t, Config{MaxWorkers: 3, Plan: modes.Backup(3, 1), Steps: 8, EvalEvery: 0.4}, func(w *world) {
			w.server(0, 1, false)
			for i := range 3 {
				w.worker(i, func(f *fakeWorker) {
					if i == 2 {
						f.pace *= slow
					}
				})
			}
			w.finished(time.Hour)
			if w.err != nil || !w.result.Evaluated {
				t.Errorf("a worker %d times slower: evaluated %v, %v", slow, w.result.Evaluated, w.err)
			}
			w.accounted(96)
		})
	}
}

// The store of checkpoints of a test refuses to overwrite one, as the real one does.
func once(all *[]string) func(Checkpoint) (string, error) {
	return func(c Checkpoint) (string, error) {
		if slices.Contains(*all, c.ID) {
			return "", fmt.Errorf("%s: %w", c.ID, os.ErrExist)
		}
		*all = append(*all, c.ID)
		return "in/" + c.ID, nil
	}
}

// No checkpoint is written twice, whatever the request: the existing one is used.
func TestCheckpointOfTheSameVersion(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked []time.Duration // when star ctl asks
		want  string
	}{
		// Updates at 1 s and 2 s; worker 2's only gradient is dropped at 7 s.
		{"asked twice", []time.Duration{1200, 1800}, "[c1-0 c2-0]"},
		{"asked in each version", []time.Duration{1200, 2200}, "[c1-0 c2-0]"},
		{"before the end, which comes without an update", []time.Duration{3200}, "[c2-0]"},
		{"both", []time.Duration{1200, 1400, 3200, 3400, 5000}, "[c1-0 c2-0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []string
			play(t, Config{MaxWorkers: 3, Plan: modes.Backup(3, 1), Samples: 20, Save: once(&all)}, func(w *world) {
				w.server(0, 2, false)
				for i := range 3 {
					w.worker(i, func(f *fakeWorker) {
						if i == 2 {
							f.pace = 7 * time.Second
						}
					})
				}
				w.saves(c.asked, &all, c.want)
			})
		})
	}
}

// With all-reduce a checkpoint is of the present version, and the last one may be that of the end.
func TestCheckpointOfTheSameRound(t *testing.T) {
	for _, c := range []struct {
		name  string
		asked []time.Duration
		want  string
	}{
		{"at the end", nil, "[c3-0]"},
		{"asked twice", []time.Duration{200, 400}, "[c2-0 c3-0]"}, // rounds are granted ahead; the second waits for the first
		{"in the last round", []time.Duration{2200}, "[c3-0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []string
			play(t, Config{MaxWorkers: 2, Samples: 24, Ring: &RingConfig{Rule: "sgd"}, Save: once(&all)}, func(w *world) {
				w.server(0, 0, false)
				for i := range 2 {
					w.ringWorker(i, "", nil)
				}
				w.saves(c.asked, &all, c.want)
			})
		})
	}
}

// saves requests checkpoints at times in ms from now, and compares the list at the end.
func (w *world) saves(asked []time.Duration, all *[]string, want string) {
	w.t.Helper()
	begun := time.Now()
	for _, at := range asked {
		time.Sleep(time.Until(begun.Add(at * time.Millisecond)))
		if _, no := w.ask("checkpoint"); no != "" {
			w.t.Error(no)
		}
	}
	w.finished(time.Hour)
	if fmt.Sprint(*all) != want || len(w.lines("checkpoint")) != len(*all) {
		w.t.Fatalf("checkpoints %v in %d lines, want %s\n%s", *all, len(w.lines("checkpoint")), want, w.logs)
	}
	if w.err != nil || w.result.CheckpointError != "" || w.result.Checkpoint != "in/"+(*all)[len(*all)-1] {
		w.t.Errorf("%v, %q, checkpoint %q", w.err, w.result.CheckpointError, w.result.Checkpoint)
	}
}

// ringWorker joins and plays a member of a ring until the job is over. A round takes it a second, adding up no time.
// saving, if not nil, is called with each Save that is due; if it returns false, the worker dies. stand, if not nil, is
// its progress under another coordinator; the ring has the newest version of its members (newest). told receives its
// messages.
func (w *world) ringWorker(rank int, codec string, saving func(m *session.Member, s wire.Save) bool, stand ...*session.Stand) *ringTold {
	told := new(ringTold)
	w.wg.Go(func() {
		h, e, me := hello(rank), enrolment, star.Worker(rank)
		h.Addr, e.Rule, e.Codec = fmt.Sprintf("meet%d,door%d", rank, rank), "sgd", codec
		version := int64(0)
		if len(stand) > 0 {
			e.Stand, version = stand[0], -1
			if stand[0] != nil {
				version = stand[0].Version
			}
		}
		m, err := w.join(h, e)
		if err != nil {
			w.t.Errorf("worker %d: %v", rank, err)
			return
		}
		defer m.Close()
		m.Beat()
		session.Say(m, wire.Joined{Worker: me}, nil)
		var ring wire.Ring
		var saves []wire.Save
		told.set(func() { told.welcome, told.m = m.Welcome, m })
		for {
			o, err := m.Order()
			var refused *transport.RejectError
			leaves := false
			if told.set(func() { leaves = told.leaves }); leaves && errors.As(err, &refused) {
				told.set(func() { told.left = time.Now() })
				return
			}
			if err != nil {
				w.t.Errorf("worker %d: %v", rank, err)
				return
			}
			r := o.Release
			switch {
			case o.Kind == wire.KindRing:
				if ring = o.Ring; ring.Now {
					saves = nil // as a worker forgets all orders
				}
				told.set(func() { told.rings = append(told.rings, ring) })
				version = max(version, w.newest, ring.From)
				session.Say(m, wire.Formed{Worker: me, Generation: ring.Generation, Version: version}, nil)
			case o.Kind == wire.KindSave:
				if saves = append(saves, o.Save); o.Save.Seq == 0 && o.Save.Version != version {
					w.t.Errorf("worker %d was told to save version %d and has %d", rank, o.Save.Version, version)
				}
			case r.Action == wire.Stop:
				return
			case r.Action == wire.Finish:
				session.Say(m, wire.EvalResult{Worker: me, Eval: r.Eval, Version: version, Count: 1}, nil)
			default:
				if r.Action == wire.Evaluate {
					session.Say(m, wire.Tally{Worker: me, Generation: ring.Generation, Version: version, Hash: 1 + version}, nil)
					session.Say(m, wire.EvalResult{Worker: me, Eval: r.Eval, Version: version, Count: 1}, nil)
				}
				told.set(func() { told.metadata = append(told.metadata, o.Payload) })
				if metadata, err := engine.ParseRingMetadata(o.Payload, m.Welcome.Workers); err == nil && metadata.Version > w.c.cfg.Resume.Version &&
					!strings.Contains(w.run.String(), fmt.Sprintf(`"version":%d,"workers":`, metadata.Version)) {
					w.t.Errorf("worker %d remembers that version %d is complete, and the log does not say so yet", rank, metadata.Version)
				}
				time.Sleep(time.Second)
				session.Say(m, wire.Arrive{Record: star.Record{Worker: me, Step: version, Basis: version, Samples: r.Count, Loss: 1}}, nil)
				version++
				session.Say(m, wire.Tally{Worker: me, Generation: ring.Generation, Version: version}, nil)
			}
			for len(saves) > 0 && saves[0].Version <= version {
				if saving != nil {
					if !saving(m, saves[0]) {
						return
					}
					saves = saves[1:]
					continue
				}
				session.Say(m, wire.Saved{ID: saves[0].ID}, []byte("1"))
				saves = saves[1:]
			}
		}
	})
	return told
}

// ringTold has the messages that a ringWorker got.
type ringTold struct {
	m        *session.Member
	mu       sync.Mutex
	welcome  wire.Welcome
	rings    []wire.Ring
	metadata [][]byte
	leaves   bool      // it was told to end
	left     time.Time // when it was released; zero: it was not
}

func (r *ringTold) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func TestFailedCheckpoint(t *testing.T) {
	full := errors.New("no space left on device")
	play(t, Config{MaxWorkers: 1, Steps: 3, Save: func(Checkpoint) (string, error) { return "", full }}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.finished(time.Hour)
		w.failed(exitcode.Failure, "checkpoint", full.Error())
		if w.result.CheckpointError == "" || w.result.Samples != 12 || w.result.Error != "" {
			t.Errorf("%+v", w.result)
		}
	})
}

func TestNormBeforeUpdate(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 4, Norm: true}, func(w *world) {
		s := w.server(0, 2, false) // checks the norm: 5, of slices [3] and [4]
		w.worker(0)
		w.worker(1)
		w.finished(time.Hour)
		if <-s.gone; s.last != nil || w.err != nil {
			t.Errorf("%v, %v", s.last, w.err)
		}
	})
}

// A worker with gradients that are not finite is broken if it is alone with that. If most have them, the training has
// diverged.
func TestDivergence(t *testing.T) {
	for broken, want := range []int{0, 0, exitcode.Diverged, exitcode.Diverged} {
		t.Run(fmt.Sprint(broken, " of 3"), func(t *testing.T) {
			play(t, Config{MaxWorkers: 3, Steps: 40}, func(w *world) {
				w.server(0, 1, false)
				for i := range 3 {
					w.worker(i, func(f *fakeWorker) {
						f.dies = func(p string, _ wire.Release) bool {
							if i >= broken || f.step < 3 || p != "computed" {
								return false
							}
							f.m.Leave(exitcode.Diverged, "the gradient of worker "+fmt.Sprint(i)+" is NaN at step 3")
							return true
						}
					})
				}
				w.finished(time.Hour)
				if want != 0 {
					w.failed(want, "is NaN at step 3")
				} else if w.err != nil {
					t.Error(w.err)
				} else {
					w.accounted(3 * 40 * 4)
				}
			})
		})
	}
	for name, cfg := range map[string]Config{"--poison fatal": {Poison: poison.Fatal}, "--on-failure stop": {StopOnFailure: true}} {
		t.Run(name, func(t *testing.T) {
			cfg.MaxWorkers, cfg.Steps = 3, 40
			play(t, cfg, func(w *world) {
				w.server(0, 1, false)
				for i := range 3 {
					w.worker(i, func(f *fakeWorker) {
						f.dies = func(p string, _ wire.Release) bool {
							return i == 1 && f.step == 3 && p == "computed" && f.m.Leave(exitcode.Diverged, "NaN") == nil
						}
					})
				}
				w.finished(time.Hour)
				w.failed(exitcode.Diverged, "worker 1", "NaN")
			})
		})
	}
}

// Weights count live workers, not those that are gone.
func TestWeightsAfterADeath(t *testing.T) {
	play(t, Config{MaxWorkers: 4, Steps: 10}, func(w *world) {
		s := w.server(0, 1, false)
		for i := range 4 {
			w.worker(i, func(f *fakeWorker) {
				f.dies = func(p string, _ wire.Release) bool { return i == 3 && f.step == 2 && p == "computed" }
			})
		}
		w.finished(time.Hour)
		weights := map[float32]bool{}
		for _, f := range s.seen() {
			for _, g := range f.Gradients {
				weights[g.Weight] = true
				if g.Worker == 3 && g.Weight != 0.25 {
					t.Errorf("worker 3 had weight %v", g.Weight)
				}
			}
		}
		if !weights[0.25] || !weights[float32(1./3)] {
			t.Errorf("weights %v, want 1/4 and, after the death, 1/3", weights)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]Config{
		"workers": {Batch: 1, Steps: 1},
		"batch":   {MaxWorkers: 1, Steps: 1},
		"end":     {MaxWorkers: 1, Batch: 1},
		"scale":   {MaxWorkers: 1, Batch: 1, Steps: 1, Scale: "big"},
		"plan":    {MaxWorkers: 1, Batch: 1, Steps: 1, Plan: modes.SSGD(3)},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	_, err := New(Config{MaxWorkers: 1, Batch: 1, Steps: 1 << 62})
	if err != nil {
		t.Error(err)
	}
}

func TestEndOfHugeNumbers(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want int64
	}{
		{Config{Steps: 1 << 62}, 1<<63 - 1},
		{Config{Steps: 1 << 62, Epochs: 2}, 80},
		{Config{Steps: 3, Epochs: 1e300}, 24},
		{Config{Samples: 7, Steps: 3}, 7},
		{Config{Epochs: 0.51}, 21},
	} {
		k := &Coordinator{arch: architecture.Of(&Config{}), cfg: c.cfg}
		k.members.Terms.Set(wire.Hello{}, enrolment)
		if got := k.job().End(8); got != c.want {
			t.Errorf("%+v ends at %d, want %d", c.cfg, got, c.want)
		}
	}
}

// At the end all workers wait, and the buffers of all are in the average.
func TestFinalAverageIsOfAll(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "x=2", "backup=1"} {
		plan, err := modes.Parse(mode, 3)
		if err != nil {
			t.Fatal(err)
		}
		play(t, Config{MaxWorkers: 3, Steps: 4, Plan: plan}, func(w *world) {
			w.server(0, 1, false)
			averages := make([]float32, 3)
			for i, value := range []float32{10, 20, 60} {
				w.worker(i, func(f *fakeWorker) {
					f.buffers = []float32{value}
					f.dies = func(p string, _ wire.Release) bool {
						if p == "averaged" {
							averages[i] = f.buffers[0]
						}
						return false
					}
				})
			}
			w.finished(15 * time.Minute)
			if w.err != nil {
				t.Fatalf("%v\n%s", w.err, w.logs)
			}
			if want := []float32{30, 30, 30}; !slices.Equal(averages, want) {
				t.Errorf("%s: workers have the averages %v, want %v", mode, averages, want)
			}
		})
	}
}

// piped is a network within this process, with a listener at the coordinator's address.
func piped(t *testing.T) (*transport.Pipe, transport.Listener) {
	t.Helper()
	net := new(transport.Pipe)
	l, err := net.Listen("coord")
	if err != nil {
		t.Fatal(err)
	}
	return net, l
}

// A process that finds no coordinator checks at each try whether the end of the job is recorded.
func TestJoinOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		_, err := session.Join(t.Context(), session.MemberConfig{Network: new(transport.Pipe), Addr: "gone", JoinTimeout: time.Hour, Over: func() string {
			if tries++; tries < 3 {
				return ""
			}
			return "run.jsonl"
		}})
		var over *session.OverError
		if !errors.As(err, &over) || err.Error() != "the job is over according to run.jsonl" || tries != 3 {
			t.Errorf("after %d tries: %v", tries, err)
		}
	})
}

// Errors that another try would meet again end the search at once, with their reason.
func TestJoinMeetsTheSameAgain(t *testing.T) {
	answer := func(conn transport.Conn, w wire.Welcome) {
		transport.ReadHello(conn, time.Second)
		transport.Send(conn, w, nil)
	}
	long := hello(0)
	long.Job = strings.Repeat("j", 300)
	for _, c := range []struct {
		name   string
		hello  wire.Hello
		say    func(transport.Conn)
		dials  int
		exit   int
		reason string
	}{
		{"an answer that cannot be read", hello(0), func(conn transport.Conn) { answer(conn, wire.Welcome{Trailing: 1}) }, 1, exitcode.Disagree, "the last 1 bytes of a payload of 0"},
		{"an answer of an unknown kind", hello(0), func(conn transport.Conn) { conn.WriteFrame(250, nil, nil, 0) }, 1, exitcode.Disagree, "unknown kind of frame: 250"},
		{"a welcome that the coordinator cannot send", hello(0), func(conn transport.Conn) {
			box := outbox.New(conn, time.Second, slog.New(slog.DiscardHandler))
			new(outbox.Sender).Send(box, func() error {
				return box.WriteFrame(wire.KindWelcome, make([]byte, wire.MaxHeader+1), nil, 0)
			})
			box.Wait()
		}, 1, exitcode.Failure, "too large: welcome with 65537 bytes of header (at most 65536)"},
		{"a hello that cannot be sent", long, nil, 0, exitcode.Usage, "job: 300 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net, l := piped(t)
				defer l.Close()
				dials := 0
				go func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						dials++
						c.say(conn)
					}
				}()
				_, err := session.Join(t.Context(), session.MemberConfig{Network: net, Addr: "coord", Hello: c.hello, JoinTimeout: time.Hour})
				var final interface{ ExitCode() int }
				if !errors.As(err, &final) || final.ExitCode() != c.exit || !strings.Contains(err.Error(), c.reason) || dials != c.dials {
					t.Errorf("after %d connections: %v; want %d, exit code %d and %q", dials, err, c.dials, c.exit, c.reason)
				}
			})
		})
	}
}

// The address of a server is determined at each try: it is not known before the name of the coordinator is.
func TestJoinReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, l := piped(t)
		defer l.Close()
		said := make(chan wire.Hello, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			h, _, _ := transport.ReadHello(conn, time.Second)
			said <- h
			transport.Send(conn, wire.Welcome{}, nil)
		}()
		tries := 0
		m, err := session.Join(t.Context(), session.MemberConfig{Network: net, Addr: "coord", Reached: func(context.Context) (string, error) {
			if tries++; tries < 3 {
				return "", errors.New("no such host")
			}
			return "10.0.0.2:7070", nil
		}, Hello: wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if h := <-said; h.Addr != "10.0.0.2:7070" || tries != 3 {
			t.Errorf("it says it is at %q after %d tries, want 10.0.0.2:7070 after 3", h.Addr, tries)
		}
	})
}
