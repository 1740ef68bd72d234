package coord

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/session"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/modes"
	"star/ps/replica"
	"star/transport"
	"star/transport/wire"
)

// testLease is a lease that the test controls.
type testLease struct {
	term int64

	once sync.Once
	over chan struct{} // made in the bubble

	mu    sync.Mutex
	notes []Handover
	holds int
	lost  error // of Hold
	full  error // of SetNote
}

func newTestLease(term int64) *testLease { return &testLease{term: term} }

func (d *testLease) Term() int64           { return d.term }
func (d *testLease) Over() <-chan struct{} { return d.end() }

func (d *testLease) end() chan struct{} {
	d.once.Do(func() { d.over = make(chan struct{}) })
	return d.over
}

// Clock is an hour when bubbles begin.
func (d *testLease) Clock() time.Duration {
	return time.Hour + time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
}

func (d *testLease) Hold() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds++
	return d.lost
}

func (d *testLease) SetNote(b []byte) error {
	e, err := ParseHandover(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || d.full != nil {
		return cmp.Or(err, d.full)
	}
	d.notes = append(d.notes, *e)
	return nil
}

func (d *testLease) set(lost, full error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost, d.full = lost, full
}

func (d *testLease) last() Handover {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.notes[len(d.notes)-1]
}

// past is a job of two workers and two shards, SSGD, after some updates: the state of the first coordinator and the
// servers.
type past struct {
	handover Handover
	frames   [][]byte // by Fire
	applied  []Span   // by the updates

	told    [2]int64        // by server: the last firing with an Apply
	forgot  int64           // those up to it are not in Standings any more
	repeats map[int][]int64 // by rank: the firings for which the norm is sent again, after the Standing
}

// answered is what a server was told of norms, for 3 and 4.
func (p *past) answered(rank int) (as []wire.Apply) {
	for seq := p.forgot + 1; seq <= p.told[rank]; seq++ {
		as = append(as, wire.Apply{Seq: seq, Norm: 5, Factor: 1})
	}
	return as
}

// toldOnce checks that servers got one Apply for every firing that asks for the norm; perhaps none for the last one,
// because these workers end before they need its parameters.
func (p *past) toldOnce(t *testing.T, servers [2]*fakeServer) {
	t.Helper()
	for rank, s := range servers {
		due := map[int64]int{}
		for seq := p.told[rank] + 1; seq <= int64(len(p.frames)); seq++ {
			due[seq]++
		}
		for _, f := range s.seen() {
			if f.Seq > int64(len(p.frames)) && f.NormFirst {
				due[f.Seq]++
			}
		}
		for _, m := range s.applies {
			due[m.Seq]--
		}
		last := slices.Max(slices.Collect(maps.Keys(due)))
		for seq, n := range due {
			if n != 0 && (n != 1 || seq != last || last <= int64(len(p.frames))) {
				t.Errorf("server %d: %d norms of fire %d are missing", rank, n, seq)
			}
		}
	}
}

// live plays rounds of that job, with the scheduler alone.
func live(rounds, limit int64, change ...func(*engine.Config)) past {
	g := engine.Config{Plan: modes.SSGD(2), Workers: 2, Shards: 2, Batch: 4, Limit: limit, WithMetadata: true}
	for _, f := range change {
		f(&g)
	}
	l := engine.NewShards(g)
	var p past
	out := map[star.Worker]Span{}
	take := func(orders []engine.Ready) {
		for _, o := range orders {
			if o.Fire.Seq > 0 {
				p.frames = append(p.frames, transport.AppendFrame(nil, o.Fire.AppendTo(nil), o.Metadata))
				for _, g := range o.Fire.Gradients {
					p.applied = append(p.applied, out[g.Worker])
				}
			}
			for _, r := range o.Releases {
				out[r.Worker] = Span{Start: r.Start, Count: r.Count}
			}
		}
	}
	take(l.Begin(nil))
	for step := range rounds {
		for w := range star.Worker(2) {
			for shard := range 2 {
				o, _ := l.Stored(shard, w, step, replica.Sum{Sum2: 1})
				take(o)
			}
			_, o, err := l.Arrive(star.Record{Worker: w, Step: step, Samples: out[w].Count}, false)
			if err != nil {
				panic(err)
			}
			take(o)
		}
	}
	p.handover = Handover{Handover: takeover.Handover{
		Begun: time.Hour - time.Minute, Trains: time.Hour - 50*time.Second, Generation: 3, Limit: limit, Plan: modes.SSGD(2), Workers: []star.Worker{0, 1}, Steps: []int64{0, 0},
		Model: "m", ModelHash: "cafe", Params: 100, Owner: []int{0, 1}, Counts: map[int]int{0: 1, 1: 1},
		Shards: []wire.ShardInfo{{Shard: 0, Addr: "s0", From: 0, To: 50}, {Shard: 1, Addr: "s1", From: 50, To: 100}},
	}, Enrolment: enrolment}
	return p
}

// resumes adds a server that was given the Fires up to seq, and keeps those from keeps on.
func (w *world) resumes(p past, rank int, keeps, seq int64, change ...func(*wire.Standing)) *fakeServer {
	s := &fakeServer{gone: make(chan struct{}), own: []int{rank}}
	w.servers = append(w.servers, s)
	w.wg.Go(func() {
		defer close(s.gone)
		m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
			Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: rank, Shards: 1, Addr: "s", Params: 100}})
		if err != nil {
			s.last = err
			return
		}
		s.m = m
		defer m.Close()
		st := wire.Standing{Term: m.Welcome.Term, Seq: seq, Shards: []wire.ShardVersion{{Shard: rank, Version: seq}}, Applied: p.answered(rank)}
		for _, c := range change {
			c(&st)
		}
		session.Say(m, st, bytes.Join(p.frames[keeps-1:seq], nil))
		for _, seq := range p.repeats[rank] {
			s.sayNorms(seq)
		}
		s.last = s.serve()
	})
	return s
}

// A coordinator that takes over gives every server the Fires that it lacks, has no sample computed twice, and leaves
// none out.
func TestTakeOver(t *testing.T) {
	const rounds, limit = 3, 40
	p := live(rounds, limit)
	lease := newTestLease(7)
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: lease, Handover: &p.handover}, func(w *world) {
		ahead, behind := w.resumes(p, 0, 1, rounds), w.resumes(p, 1, 1, rounds-1)
		a, b := w.worker(0), w.worker(1)
		w.finished(time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if fs := behind.seen(); fs[0].Seq != rounds || len(fs[0].Gradients) != 2 {
			t.Errorf("the server that lacked fire %d was given %+v first", rounds, fs[0])
		}
		if fs := ahead.seen(); fs[0].Seq != rounds+1 || len(fs[0].Gradients) != 0 || len(fs[0].Dropped) == 0 || fs[0].Version != rounds {
			t.Errorf("the server that had all was given %+v first, want one that only drops", fs[0])
		}
		x, y := ahead.seen(), behind.seen()[1:]
		if len(x) != len(y) {
			t.Fatalf("the servers were given %d and %d fires", len(x), len(y))
		}
		for i := range x {
			if x[i].Seq != y[i].Seq || x[i].Version != y[i].Version {
				t.Errorf("the servers were given different fires: %+v, %+v", x[i], y[i])
			}
		}
		var dropped []wire.Gradient
		for _, f := range x {
			dropped = append(dropped, f.Dropped...)
		}
		for rank := range star.Worker(2) { // what shards may hold of the time before
			if !slices.ContainsFunc(dropped, func(g wire.Gradient) bool { return g.Worker == rank && g.Step == rounds }) {
				t.Errorf("step %d of worker %d is not dropped: %v", rounds, rank, dropped)
			}
		}
		if a.m.Welcome.Step != rounds+1 || a.m.Welcome.Version != rounds || a.m.Welcome.Term != 7 || a.m.Welcome.Generation != 3 || a.m.Welcome.Seed {
			t.Errorf("a worker is welcomed with %+v", a.m.Welcome)
		}
		exactly(t, limit, p.applied, a.used, b.used)
		if w.result.Wall < 50 || w.result.Wall > 60 || lease.last().Begun != p.handover.Begun || lease.last().Trains != p.handover.Trains {
			t.Errorf("the training took %g s; noted is that it has begun at %v and trains since %v", w.result.Wall, lease.last().Begun, lease.last().Trains)
		}
		if w.result.Samples != limit || w.result.Updates != limit/8 {
			t.Errorf("%d samples in %d updates, want %d in %d", w.result.Samples, w.result.Updates, limit, limit/8)
		}
		if terms := w.lines("term"); len(terms) != 1 || terms[0]["version"] != float64(rounds) || terms[0]["seq"] != float64(rounds) || terms[0]["t"].(float64) < 60 || terms[0]["t"].(float64) > 70 {
			t.Errorf("the run log says %v", terms)
		}
		if recalls := w.lines("recall"); len(recalls) != rounds {
			t.Errorf("the run log has %d updates that shards have told of, want %d", len(recalls), rounds)
		}
		if at := w.lines("fire")[0]["t"].(float64); at < 60 {
			t.Errorf("the first update is at %v s of a run that began a minute ago", at)
		}
	})
}

// Updates that wait for the norm of their gradient (--clip) get it from the coordinator that takes over: an Apply that
// some servers got is passed on to the others, and others are decided again. No shard gets one twice.
func TestTakeOverDecidesNorms(t *testing.T) {
	const limit = 40
	for name, c := range map[string]struct {
		fires, told [2]int64 // by server
		repeats     map[int][]int64
		forgot      int64
	}{
		"no server was told":         {[2]int64{3, 3}, [2]int64{2, 2}, map[int][]int64{0: {3}, 1: {3}}, 0},
		"what was long ago":          {[2]int64{3, 3}, [2]int64{2, 2}, map[int][]int64{0: {3}, 1: {3}}, 1},
		"one says it twice":          {[2]int64{3, 3}, [2]int64{2, 2}, map[int][]int64{0: {3, 3}, 1: {3, 3}}, 0},
		"one was told":               {[2]int64{3, 3}, [2]int64{3, 2}, map[int][]int64{1: {3}}, 0},
		"one has not got the fire":   {[2]int64{3, 2}, [2]int64{2, 2}, map[int][]int64{0: {3}}, 0},
		"two wait, one has got both": {[2]int64{3, 2}, [2]int64{1, 1}, map[int][]int64{0: {2}, 1: {2}}, 0},
		"all were told":              {[2]int64{3, 3}, [2]int64{3, 3}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := live(3, limit, func(g *engine.Config) { g.Norm = true })
			p.told, p.repeats, p.forgot = c.told, c.repeats, c.forgot
			play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Norm: true, Lease: newTestLease(7), Handover: &p.handover}, func(w *world) {
				var servers [2]*fakeServer
				for rank := range servers {
					servers[rank] = w.resumes(p, rank, 1, c.fires[rank])
				}
				a, b := w.worker(0), w.worker(1)
				if name == "two wait, one has got both" {
					synctest.Wait() // server 0 has not summed fire 3 before it was told of fire 2
					servers[0].sayNorms(3)
				}
				w.finished(time.Minute)
				if w.err != nil {
					t.Fatal(w.err)
				}
				exactly(t, limit, p.applied, a.used, b.used)
				p.toldOnce(t, servers)
				for seq := int64(1); seq <= 3; seq++ {
					if w.c.measured.norms.Expects(seq) {
						t.Errorf("it still waits for the norm of fire %d", seq)
					}
				}
			})
		})
	}
}

// exactly checks that every sample was used once.
func exactly(t *testing.T, limit int64, lists ...[]Span) {
	t.Helper()
	seen := make([]int, limit)
	for _, spans := range lists {
		for _, s := range spans {
			for q := s.Start; q < s.Start+int64(s.Count); q++ {
				seen[q]++
			}
		}
	}
	for q, n := range seen {
		if n != 1 {
			t.Errorf("sample %d was used %d times", q, n)
			return
		}
	}
}

// From the handover a coordinator can end the job, begin it if no update was made yet, and continue without a worker
// that does not come.
func TestTakeOverAtTheEdges(t *testing.T) {
	t.Run("at the end", func(t *testing.T) {
		p := live(5, 40)
		play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
			w.resumes(p, 0, 1, 5)
			w.resumes(p, 1, 1, 5)
			a, b := w.worker(0), w.worker(1)
			w.finished(time.Minute)
			if w.err != nil || len(a.used)+len(b.used) > 0 || w.result.Samples != 40 {
				t.Errorf("%v; %d samples, used again: %v %v", w.err, w.result.Samples, a.used, b.used)
			}
		})
	})
	t.Run("before the first update", func(t *testing.T) {
		p := live(0, 40)
		play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
			w.resumes(p, 0, 1, 0)
			w.resumes(p, 1, 1, 0)
			a, b := w.worker(0), w.worker(1)
			w.finished(time.Minute)
			if w.err != nil || a.m.Welcome.Step != 1 {
				t.Errorf("%v; the next step is %d, want 1: step 0 was handed out", w.err, a.m.Welcome.Step)
			}
			exactly(t, 40, a.used, b.used)
		})
	})
	t.Run("a worker is gone, too", func(t *testing.T) {
		p := live(3, 40)
		play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
			w.resumes(p, 0, 1, 3)
			w.resumes(p, 1, 1, 3)
			begun := time.Now()
			a := w.worker(0)
			w.finished(time.Minute)
			if w.err != nil {
				t.Fatal(w.err)
			}
			exactly(t, 40, p.applied, a.used)
			if first := w.lines("fire")[0]["t"].(float64) - 60; first > (takeover.AbsentWorkers + 4*time.Second).Seconds() {
				t.Errorf("the first update came after %v s (%v in all)", first, time.Since(begun))
			}
		})
	})
	t.Run("shards are assigned, nothing more", func(t *testing.T) {
		p := live(0, 0)
		p.handover.Trains, p.handover.Workers, p.handover.Steps = 0, nil, nil
		lease := newTestLease(2)
		play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: lease, Handover: &p.handover}, func(w *world) {
			w.resumes(p, 0, 1, 0, func(s *wire.Standing) { s.Shards[0].Version = -1 }) // waits for Init
			s := w.server(1, 1, false)                                                 // was not assigned its part yet
			a, b := w.worker(0), w.worker(1)
			synctest.Wait()
			if !a.m.Welcome.Seed && !b.m.Welcome.Seed {
				t.Error("no worker is to send the parameters")
			}
			w.servers[0].ready(0)
			w.finished(time.Minute)
			if w.err != nil || len(s.own) != 1 || s.own[0] != 1 || lease.last().Trains == 0 {
				t.Errorf("%v; the new server has %v", w.err, s.own)
			}
			exactly(t, 40, a.used, b.used)
		})
	})
}

// A worker that has waited too long for its Welcome reconnects, perhaps before the coordinator has noticed the end of
// its first try: it must try again, not that its settings are wrong.
func TestWorkerTriesAgainDuringATakeOver(t *testing.T) {
	p := live(3, 40)
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
		w.worker(0)
		synctest.Wait()
		_, err := w.join(hello(0), enrolment)
		var refused *transport.RejectError
		if !errors.As(err, &refused) || refused.Exit != exitcode.Restart {
			t.Errorf("it was told %v", err)
		}
		w.end(errors.New("enough"))
		<-w.over
	})
}

// A job is taken over twice without an update in between, and a worker joined meanwhile. Pushes from that time are
// dropped, and no step is used a second time: copies of shards would confuse the gradients.
func TestTakenOverTwice(t *testing.T) {
	const rounds, limit = 3, 40
	p := live(rounds, limit)
	first := newTestLease(7)
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: first, Handover: &p.handover}, func(w *world) {
		w.resumes(p, 0, 1, rounds)
		w.resumes(p, 1, 1, rounds)
		w.worker(0)
		b := w.worker(1, dying("released", rounds+1))
		<-b.gone
		synctest.Wait() // the coordinator knows
		b = w.worker(1)
		time.Sleep(500 * time.Millisecond)
		close(first.end())
		<-w.over
		if b.m.Welcome.Step != rounds+2 {
			t.Errorf("a worker that comes again is welcomed with step %d, want %d", b.m.Welcome.Step, rounds+2)
		}
	})
	p.handover = first.last()
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(8), Handover: &p.handover}, func(w *world) {
		s := w.resumes(p, 0, 1, rounds)
		w.resumes(p, 1, 1, rounds)
		a, b := w.worker(0), w.worker(1)
		w.finished(time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if a.m.Welcome.Step != rounds+2 || b.m.Welcome.Step != rounds+3 {
			t.Errorf("workers are welcomed with steps %d and %d, want %d and %d", a.m.Welcome.Step, b.m.Welcome.Step, rounds+2, rounds+3)
		}
		var dropped []wire.Gradient
		for _, f := range s.seen() {
			dropped = append(dropped, f.Dropped...)
		}
		want := []wire.Gradient{{Worker: 0, Step: rounds}, {Worker: 0, Step: rounds + 1}, {Worker: 1, Step: rounds}, {Worker: 1, Step: rounds + 1}, {Worker: 1, Step: rounds + 2}}
		if !slices.Equal(dropped, want) {
			t.Errorf("dropped are %v, want %v", dropped, want)
		}
		exactly(t, limit, p.applied, a.used, b.used)
	})
}

// An incomplete history ends the job, with the reason.
func TestTakeOverRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		keeps, seq int64
		change     func(*wire.Standing)
		exit       int
		words      string
	}{
		"no server has the last fires": {3, 1, nil, exitcode.Lost, "lacks fire 2"},
		"a shard without parameters":   {1, 3, func(s *wire.Standing) { s.Shards[0].Version = -1 }, exitcode.Disagree, "shard 1"},
		"another shard":                {1, 3, func(s *wire.Standing) { s.Shards[0].Shard = 0 }, exitcode.Disagree, "shard 0"},
		"no shard":                     {1, 3, func(s *wire.Standing) { s.Shards = nil }, exitcode.Lost, "0 of its 1 shards"},
		"norms that it cannot answer":  {1, 3, nil, exitcode.Disagree, "--clip"},
	} {
		t.Run(name, func(t *testing.T) {
			p := live(3, 40, func(g *engine.Config) { g.Norm = c.words == "--clip" })
			play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
				w.resumes(p, 0, c.keeps, 3)
				w.resumes(p, 1, 1, c.seq, func(s *wire.Standing) {
					if c.change != nil {
						c.change(s)
					}
				})
				w.finished(time.Minute)
				w.failed(c.exit, c.words)
			})
		})
	}
}

// A server that restarted and lost its shards is not accepted in its old place.
func TestFreshServerInATakenJob(t *testing.T) {
	p := live(3, 40)
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
		_, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", JoinTimeout: time.Second, Hello: wire.Hello{
			Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1, Shards: 1, Addr: "s"}})
		if err == nil && w.c.takeover.Here(1) {
			t.Error("it reports for a shard that it does not have")
		}
		w.end(errors.New("enough"))
		<-w.over
	})
}

// A lost lease ends Run at once, without an order or a message to the members.
func TestDeposed(t *testing.T) {
	gone := errors.New("gone")
	for name, take := range map[string]func(w *world, d *testLease){
		"it is over": func(_ *world, d *testLease) { close(d.end()) },
		"no lease":   func(_ *world, d *testLease) { d.set(gone, nil) },
		"no agreement": func(w *world, d *testLease) {
			d.set(nil, gone)
			w.c.in.post(inside(wire.KindControl, internal{control: []string{"mode", "asgd"}, reply: make(chan reply, 1)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			lease := newTestLease(1)
			play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 100, Lease: lease}, func(w *world) {
				a, b := w.server(0, 0, false), w.server(1, 1, false)
				x := w.worker(0)
				w.worker(1)
				time.Sleep(3500 * time.Millisecond)
				synctest.Wait()
				before := len(b.seen())
				if before == 0 || lease.last().Trains == 0 || len(lease.last().Workers) != 2 {
					t.Fatalf("%d fires, and noted is %+v", before, lease.last())
				}
				take(w, lease)
				w.finished(5 * time.Second)
				if !errors.Is(w.err, ErrLeaseLost) {
					t.Errorf("Run ended with %v", w.err)
				}
				<-a.gone
				<-b.gone
				<-x.gone
				var lost *session.LostError
				if !errors.As(b.last, &lost) || !errors.As(x.err, &lost) {
					t.Errorf("a server was told %v, a worker %v; want nothing but the end of the connection", b.last, x.err)
				}
				conn, _, _, err := transport.Open(w.t.Context(), w.net, "coord", wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "job", Rank: 1}, nil)
				if elsewhere := new(*transport.ElsewhereError); !errors.As(err, elsewhere) {
					t.Errorf("a later member got %v, %v; want that another process coordinates", conn, err)
				}
				if after := len(b.seen()); after != before {
					t.Errorf("%d fires after it was lost", after-before)
				}
				if plan := lease.last().Plan.String(); plan != "ssgd" {
					t.Errorf("the plan that was noted is %s", plan)
				}
			})
		})
	}
}

// Changes of the handover are agreed on before they take effect.
func TestWhatIsNoted(t *testing.T) {
	lease := newTestLease(1)
	play(t, Config{MaxWorkers: 2, Servers: 1, Steps: 100, Lease: lease}, func(w *world) {
		time.Sleep(2 * time.Second)
		w.server(0, 1, false)
		w.worker(0)
		b := w.worker(1, dying("released", 6))
		time.Sleep(3500 * time.Millisecond)
		if e := lease.last(); e.Begun != time.Hour || e.Trains < time.Hour+2*time.Second || e.Trains > time.Hour+3*time.Second {
			t.Errorf("noted is that it has begun at %v and trains since %v", e.Begun, e.Trains)
		}
		if _, no := w.ask("mode", "asgd"); no != "" {
			t.Fatal(no)
		}
		if e := lease.last(); e.Plan.String() != "asgd" || !e.Manual {
			t.Errorf("noted is %v, %v", e.Plan, e.Manual)
		}
		if _, no := w.ask("set", "eval-every=2"); no != "" {
			t.Fatal(no)
		}
		if e := lease.last(); e.Set["eval-every"] != 2 {
			t.Errorf("noted thresholds are %v", e.Set)
		}
		<-b.gone
		synctest.Wait()
		if e := lease.last(); !slices.Equal(e.Workers, []star.Worker{0}) {
			t.Errorf("workers %v are noted, want only 0", e.Workers)
		}
		if _, no := w.ask("move", "0", "0"); !strings.Contains(no, "cannot move") {
			t.Errorf("a move: %q", no)
		}
		if _, no := w.ask("stop"); no != "" {
			t.Fatal(no)
		}
		w.finished(time.Minute)
		if e := lease.last(); e.Limit != w.result.Samples+w.result.Wasted {
			t.Errorf("the end is noted as %d, the job made %d", e.Limit, w.result.Samples)
		}
		text, err := json.Marshal(lease.last())
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseHandover(text)
		if err != nil || !back.Plan.Equal(lease.last().Plan) || back.Limit != lease.last().Limit || len(back.Enrolment.Layout) != len(enrolment.Layout) {
			t.Errorf("%+v, %v", back, err)
		}
	})
}
