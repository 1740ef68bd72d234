package ps

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/transport"
	"star/transport/wire"
)

// successors are coordinators that take over one after the other.
type successors struct {
	coming chan nextCoordinator
	theirs transport.Listener
	net    *transport.Pipe
	asked  chan error // why the one before was lost
}

type nextCoordinator struct {
	term int64
	err  error
}

func (s *successors) again(ctx context.Context, why error) (transport.Conn, int64, error) {
	s.asked <- why
	select {
	case next := <-s.coming:
		if next.err != nil {
			return nil, 0, next.err
		}
		c, err := s.net.Dial(ctx, s.theirs.Addr())
		return c, next.term, err
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}

// take is the coordinator's end of the next connection.
func (s *successors) take(t *testing.T, term int64) transport.Conn {
	t.Helper()
	s.coming <- nextCoordinator{term: term}
	c, err := s.theirs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next is the next frame from the server, but no Stored.
func next(t *testing.T, c transport.Conn) (transport.Frame, []byte) {
	t.Helper()
	for {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		f, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		b, err := transport.ReadAll(c, f)
		if err != nil {
			t.Fatal(err)
		}
		if f.Kind != wire.KindStored {
			return f, b
		}
	}
}

func standing(t *testing.T, c transport.Conn) (m wire.Standing, fires []wire.Fire, notes []string) {
	t.Helper()
	f, list := next(t, c)
	m, err := wire.ParseStanding(f.Header)
	if err != nil {
		t.Fatalf("the first frame is %v: %v", f.Kind, err)
	}
	for len(list) > 0 {
		header, note, rest, err := transport.CutFrame(list)
		if err != nil {
			t.Fatal(err)
		}
		fire, err := wire.ParseFire(header)
		if err != nil {
			t.Fatal(err)
		}
		fires, notes, list = append(fires, fire), append(notes, string(note)), rest
	}
	return m, fires, notes
}

// awaitsNext is for a job with shards that look for the next coordinator at the address "next".
func awaitsNext(t *testing.T, net *transport.Pipe) *successors {
	t.Helper()
	l, err := net.Listen("next")
	if err != nil {
		t.Fatal(err)
	}
	return &successors{coming: make(chan nextCoordinator), theirs: l, net: net, asked: make(chan error, 8)}
}

// outlives runs a test of two shards that look for another coordinator, in fake time.
func outlives(t *testing.T, f func(t *testing.T, net *transport.Pipe, j *fakeJob, s *successors)) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		s := awaitsNext(t, net)
		j := start(t, jobConfig{net: net, addr: "shards", params: 10, shards: 2, workers: 2, quorum: 9, server: ServerConfig{Again: s.again}, noReader: true})
		defer func() {
			j.cancel()
			<-j.over
			j.coord.Close()
			s.theirs.Close()
			j.wg.Wait()
		}()
		f(t, net, j, s)
	})
}

// Shards outlive their coordinator. They tell the next one what they were given, turn away from one with a lower term,
// and go on where the one before ended.
func TestAnotherCoordinator(t *testing.T) {
	outlives(t, func(t *testing.T, net *transport.Pipe, j *fakeJob, s *successors) {
		params, grad := make([]float32, 10), make([]float32, 10)
		grad[0], grad[9] = 1, 1
		work := func(w int) *Link {
			link, err := j.dial(net, w, append([]float32(nil), params...))
			if err != nil {
				t.Fatal(err)
			}
			return link
		}
		a := work(0)
		defer func() { a.Close() }()
		if err := a.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range j.shards {
			if f, _ := next(t, j.coord); f.Kind != wire.KindReady {
				t.Fatalf("%v, want ready", f.Kind)
			}
		}
		push := func(link *Link, step, basis int64) {
			if err := link.Push(t.Context(), step, basis, 1, grad); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		fire := func(c transport.Conn, seq int64, note string, used ...wire.Gradient) {
			m := wire.Fire{Seq: seq, Version: seq, Gradients: used}
			c.SetWriteDeadline(time.Now().Add(time.Second))
			if err := transport.Send(c, m, []byte(note)); err != nil {
				t.Fatal(err)
			}
		}
		push(a, 0, 0)
		fire(j.coord, 1, "one", wire.Gradient{Worker: 0, Step: 0, Weight: 1})
		if v, err := a.Wait(t.Context(), 1); err != nil || v != 1 {
			t.Fatalf("version %d, %v", v, err)
		}
		push(a, 1, 1) // stored, and never fired by this one
		j.coord.Close()
		if why := <-s.asked; why == nil {
			t.Error("looks for another one without a reason")
		}

		second := s.take(t, 4)
		m, fires, notes := standing(t, second)
		if m.Term != 4 || m.Seq != 1 || len(m.Shards) != 2 || m.Shards[0].Version != 1 || m.Shards[1].Version != 1 {
			t.Errorf("it stands as %+v", m)
		}
		if len(fires) != 1 || fires[0].Seq != 1 || len(fires[0].Gradients) != 1 || notes[0] != "one" {
			t.Errorf("it was given %+v, %q", fires, notes)
		}
		a.Close() // the worker connects again, as it does
		a = work(0)
		if _, err := a.Pull(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		transport.Send(second, wire.Fire{Seq: 2, Version: 1, Dropped: []wire.Gradient{{Worker: 0, Step: 1}}, Quiet: []star.Worker{0}}, nil)
		push(a, 2, 1)
		second.SetWriteDeadline(time.Now().Add(time.Second))
		if err := transport.Send(second, wire.Fire{Seq: 3, Version: 2, Gradients: []wire.Gradient{{Worker: 0, Step: 2, Weight: 1}}}, []byte("three")); err != nil {
			t.Fatal(err)
		}
		if v, err := a.Wait(t.Context(), 2); err != nil || v != 2 {
			t.Fatalf("version %d, %v", v, err)
		}

		second.Close()
		<-s.asked
		stale := s.take(t, 2)
		if _, err := stale.Recv(); err == nil {
			t.Error("a coordinator of a lower term is answered")
		}
		stale.Close()
		if why := <-s.asked; !strings.Contains(why.Error(), "term 2") {
			t.Errorf("looks further because of %q", why)
		}

		third := s.take(t, 5)
		if m, fires, notes := standing(t, third); m.Seq != 3 || len(fires) != 3 || fires[1].Seq != 2 || notes[1] != "" || notes[2] != "three" {
			t.Errorf("it stands as %+v, and was given %+v, %q", m, fires, notes)
		}
		transport.Send(third, wire.Leave{}, nil)
		<-j.over
		if j.err != nil {
			t.Errorf("Run ended with %v", j.err)
		}
		third.Close()
	})
}

// A norm that was sent to the coordinator before, and not answered, is sent to the next one, too; a shard that has the
// answer sends that instead.
func TestAnotherCoordinatorDecidesNorms(t *testing.T) {
	outlives(t, func(t *testing.T, net *transport.Pipe, j *fakeJob, s *successors) {
		link, err := j.dial(net, 0, make([]float32, 10))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { link.Close() }()
		if err := link.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		say := func(c transport.Conn, m wire.Message) {
			t.Helper()
			c.SetWriteDeadline(time.Now().Add(time.Second))
			if err := transport.Send(c, m, nil); err != nil {
				t.Fatal(err)
			}
		}
		kinds := func(c transport.Conn, k wire.Kind, n int) (parts []string) {
			t.Helper()
			for range n {
				f, b := next(t, c)
				if f.Kind != k {
					t.Fatalf("%v, want %v", f.Kind, k)
				}
				parts = append(parts, string(f.Header)+string(b))
			}
			slices.Sort(parts)
			return parts
		}
		grad := make([]float32, 10)
		grad[0], grad[9] = 3, 4
		update := func(c transport.Conn, step int64) {
			t.Helper()
			if err := link.Push(t.Context(), step, step, 1, grad); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			say(c, wire.Fire{Seq: step + 1, Version: step + 1, NormFirst: true, Gradients: []wire.Gradient{{Worker: 0, Step: step, Weight: 1}}})
		}
		kinds(j.coord, wire.KindReady, 2)
		update(j.coord, 0)
		kinds(j.coord, wire.KindNorm, 2)
		say(j.coord, wire.Apply{Seq: 1, Norm: 5, Factor: 1})
		if v, err := link.Wait(t.Context(), 1); err != nil || v != 1 {
			t.Fatalf("version %d, %v", v, err)
		}
		update(j.coord, 1)
		before := kinds(j.coord, wire.KindNorm, 2)
		j.coord.Close()
		<-s.asked

		second := s.take(t, 4)
		if m, fires, _ := standing(t, second); m.Seq != 2 || len(fires) != 2 || !slices.Equal(m.Applied, []wire.Apply{{Seq: 1, Norm: 5, Factor: 1}}) {
			t.Errorf("it stands as %+v, and was given %d fires", m, len(fires))
		}
		if again := kinds(second, wire.KindNorm, 2); !slices.Equal(again, before) {
			t.Errorf("it says %q, and said %q", again, before)
		}
		say(second, wire.Apply{Seq: 2, Norm: 5, Factor: .5})
		if v, err := link.Wait(t.Context(), 2); err != nil || v != 2 {
			t.Fatalf("version %d, %v", v, err)
		}
		second.Close()
		<-s.asked

		third := s.take(t, 5)
		if m, _, _ := standing(t, third); len(m.Applied) != 2 || m.Applied[1].Factor != .5 {
			t.Errorf("it stands as %+v", m)
		}
		synctest.Wait()
		say(third, wire.Ping{Seq: 9})
		kinds(third, wire.KindPong, 1) // and nothing before
		say(third, wire.Leave{})
		<-j.over
		if j.err != nil {
			t.Errorf("Run ended with %v", j.err)
		}
		third.Close()
	})
}

// A server that finds no coordinator ends with the reason.
func TestNoOtherCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody := errors.New("nobody is left")
		net := new(transport.Pipe)
		s := &successors{coming: make(chan nextCoordinator, 1), net: net, asked: make(chan error, 1)}
		s.coming <- nextCoordinator{err: nobody}
		j := start(t, jobConfig{net: net, addr: "shards", params: 10, shards: 1, workers: 1, server: ServerConfig{Again: s.again}, noReader: true})
		j.coord.Close()
		<-j.over
		if !errors.Is(j.err, nobody) {
			t.Errorf("Run ended with %v", j.err)
		}
		j.cancel()
		j.wg.Wait()
	})
}

// The history keeps the newest Fires in their order, and no more than a frame has room for.
func TestHistory(t *testing.T) {
	p := newHistory(1, 0)
	n := cap(p.frames)
	for seq := range int64(3 * n) {
		p.add(seq, wire.Fire{Seq: seq}.AppendTo(nil), []byte{byte(seq)})
	}
	list, want := p.appendTo(nil), int64(2*n)
	for ; len(list) > 0; want++ {
		header, note, rest, err := transport.CutFrame(list)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := wire.ParseFire(header); err != nil || f.Seq != want || note[0] != byte(want) {
			t.Fatalf("fire %d with note %v, %v; want %d", f.Seq, note, err, want)
		}
		list = rest
	}
	for seq := range int64(3 * n) {
		p.apply(wire.Apply{Seq: seq})
	}
	if as := p.answers(); len(as) != n || as[0].Seq != int64(2*n) || as[n-1].Seq != int64(3*n-1) {
		t.Errorf("%d Applys, want %d: %v", len(as), n, as)
	}
	if want != int64(3*n) || p.seq != int64(3*n-1) {
		t.Errorf("the last is %d, %d; want %d", want-1, p.seq, 3*n-1)
	}
	large := make([]byte, historyBytes/4)
	for seq := range int64(6) {
		p.add(seq, wire.Fire{Seq: seq}.AppendTo(nil), large)
	}
	if b := p.appendTo(nil); len(b) > historyBytes || len(b) < historyBytes/2 {
		t.Errorf("%d bytes of at most %d", len(b), historyBytes)
	}
}

// Copies report to the next coordinator what they hold, including firings that only followers received. They do not
// repeat what they have done already, and a checkpoint that the one before asked for is written for the next one.
func TestAnotherCoordinatorOfCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		s := awaitsNext(t, net)
		saved := 0
		j := start(t, jobConfig{net: net, addr: "shards", params: 10, shards: 1, workers: 2, quorum: 9, noReader: true, server: ServerConfig{
			Again: s.again, Copies: true, Hello: wire.Hello{Rank: 1},
			Load: func(wire.ShardInfo) ([]float32, int64, error) { return make([]float32, 10), 0, nil },
			Save: func(SaveRequest) ([]byte, error) { saved++; return []byte("1"), nil },
		}})
		defer func() {
			j.cancel()
			<-j.over
			j.coord.Close()
			s.theirs.Close()
			j.wg.Wait()
		}()
		tellHim := func(c transport.Conn, m wire.Message, note string) {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			if err := transport.Send(c, m, []byte(note)); err != nil {
				t.Fatal(err)
			}
		}
		kinds := func(c transport.Conn, want ...wire.Kind) (last transport.Frame) {
			for _, k := range want {
				if last, _ = next(t, c); last.Kind != k {
					t.Fatalf("%v, want %v", last.Kind, k)
				}
			}
			return last
		}
		held := func(c transport.Conn, term, seq int64) {
			f := kinds(c, wire.KindHeld)
			if m, err := wire.ParseHeld(f.Header); err != nil || m.Term != term || m.Seq != seq {
				t.Fatalf("it holds %+v, %v; want %d under term %d", m, err, seq, term)
			}
		}
		view := func(c transport.Conn, term int64, holders ...int) {
			m := wire.View{Shard: 0, Term: term, From: 0, To: 10}
			for _, h := range holders {
				m.Holders = append(m.Holders, wire.Holder{Rank: h, Addr: "a"})
			}
			tellHim(c, m, "")
		}
		kinds(j.coord, wire.KindReady)
		view(j.coord, 3, 0, 1) // it follows
		tellHim(j.coord, wire.Ahead{Seq: 1}, "one")
		held(j.coord, 3, 1)
		tellHim(j.coord, wire.Fire{Seq: 1}, "for primaries")
		tellHim(j.coord, wire.Ahead{Seq: 2}, "two")
		held(j.coord, 3, 2)
		j.coord.Close()
		<-s.asked

		second := s.take(t, 4)
		held(second, 3, 2)
		if m, fires, notes := standing(t, second); m.Seq != 2 || len(fires) != 2 || notes[0] != "one" || notes[1] != "two" {
			t.Errorf("it stands as %+v, and was given %+v, %q", m, fires, notes)
		}
		view(second, 9, 1, 0) // now it is the primary
		tellHim(second, wire.Fire{Seq: 2}, "two")
		tellHim(second, wire.Fire{Seq: 3}, "three")
		held(second, 9, 3)
		tellHim(second, wire.Save{Seq: 3, Version: 0, ID: "c"}, "")
		kinds(second, wire.KindSaved)
		second.Close()
		<-s.asked

		third := s.take(t, 5)
		held(third, 9, 3)
		standing(t, third)
		tellHim(third, wire.Save{Seq: 3, Version: 0, ID: "c"}, "")
		kinds(third, wire.KindSaved)
		tellHim(third, wire.Leave{}, "")
		<-j.over
		if j.err != nil || saved != 2 {
			t.Errorf("Run ended with %v; %d parts were saved, want 2", j.err, saved)
		}
		third.Close()
	})
}

// A server that learns that the job is over ends well.
func TestOverBeforeItWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		s := &successors{coming: make(chan nextCoordinator, 1), net: net, asked: make(chan error, 1)}
		s.coming <- nextCoordinator{err: ErrOver}
		j := start(t, jobConfig{net: net, addr: "shards", params: 10, shards: 1, workers: 1, server: ServerConfig{Again: s.again}, noReader: true})
		j.coord.Close()
		<-j.over
		if j.err != nil {
			t.Errorf("Run ended with %v", j.err)
		}
		j.cancel()
		j.wg.Wait()
	})
}

// A worker that came back after the last Fire has pushed a gradient that the next coordinator does not know of. It
// pushes it once more, over another connection, while the memory is full of the gradients of all workers and that one,
// and all that could make room is the update that waits for it.
func TestGradientThatNobodyKnowsOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, workers = 50, 3
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: 2, workers: workers, quorum: workers, noReader: true})
		ctx := context.Background()
		grad := make([]float32, n)
		var links [workers]*Link
		dial := func(w int) {
			l, err := j.dial(pipe, w, make([]float32, n))
			if err != nil {
				t.Fatal(err)
			}
			if links[w] = l; w == 0 {
				if err := l.Init(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := l.Pull(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
		push := func(w int) {
			if err := links[w].Push(ctx, 7, 0, 1, grad); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for w := range workers {
			dial(w)
		}
		push(1)
		links[1].Close()
		dial(1)
		push(0)
		push(2)
		push(1)
		fire := wire.Fire{Seq: 1, Version: 1}
		for w := range star.Worker(workers) {
			fire.Gradients = append(fire.Gradients, wire.Gradient{Worker: w, Step: 7, Weight: 1. / workers})
		}
		time.Sleep(time.Second)
		j.tell(fire)
		if v, err := links[1].Wait(ctx, 1); err != nil || v != 1 {
			t.Errorf("version %d, %v", v, err)
		}
		for _, l := range links {
			l.Close()
		}
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A shard that was sent to another server, whole, and is still here because a worker does not know of the other one:
// when its move is given up, or the coordinator is lost, it goes on.
func TestGivenUpWhenAllIsSent(t *testing.T) {
	for name, stages := range map[string][]wire.HandStage{"moves": {wire.Give}, "copied": {wire.Lend}, "copied and counted": {wire.Lend, wire.Shared}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := new(transport.Pipe)
				s := awaitsNext(t, net)
				j := start(t, jobConfig{net: net, addr: "shards", params: 10, shards: 1, workers: 1, quorum: 9, noReader: true, server: ServerConfig{
					Again: s.again, Copies: true, Hello: wire.Hello{Rank: 1},
					Load: func(wire.ShardInfo) ([]float32, int64, error) { return make([]float32, 10), 0, nil },
				}})
				if f, _ := next(t, j.coord); f.Kind != wire.KindReady {
					t.Fatal(f.Kind)
				}
				coord := j.coord
				j.tell(wire.View{Shard: 0, Term: 3, From: 0, To: 10, Holders: []wire.Holder{{Rank: 1, Addr: "shards"}}})
				l, err := j.dial(net, 0, make([]float32, 10))
				if err != nil {
					t.Fatal(err)
				}
				handover, _, _, err := transport.Open(t.Context(), net, "shards", wire.Hello{Service: wire.ServiceShard, Role: wire.RoleServer, Job: "test", Rank: 2, Params: 10}, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i, stage := range stages {
					j.tell(wire.Hand{Stage: stage})
					if i == 0 {
						if f, _ := next(t, handover); f.Kind != wire.KindState {
							t.Fatal(f.Kind)
						}
					}
					synctest.Wait()
				}
				if name == "moves" {
					j.tell(wire.Hand{Stage: wire.Keep})
				} else {
					j.coord.Close()
					<-s.asked
					coord = s.take(t, 4)
					if f, _ := next(t, coord); f.Kind != wire.KindHeld {
						t.Errorf("%v, want what it holds", f.Kind)
					}
					standing(t, coord)
				}
				coord.SetWriteDeadline(time.Now().Add(time.Second))
				if err := transport.Send(coord, wire.Fire{Seq: 1}, nil); err != nil {
					t.Fatal(err)
				}
				if f, _ := next(t, coord); f.Kind != wire.KindHeld {
					t.Errorf("%v, want that it holds a firing", f.Kind)
				}
				l.Close()
				handover.Close()
				j.cancel()
				<-j.over
				coord.Close()
				s.theirs.Close()
				j.wg.Wait()
			})
		})
	}
}

// lends starts a shard with one worker that lends a copy to a successor, which has read the State and no more.
func lends(t *testing.T, params int) (j *fakeJob, worker *Link, successor transport.Conn) {
	t.Helper()
	net := new(transport.Pipe)
	j = start(t, jobConfig{net: net, addr: "shards", params: params, shards: 1, workers: 1, quorum: 9, noReader: true, server: ServerConfig{
		Copies: true, Hello: wire.Hello{Rank: 1},
		Load: func(wire.ShardInfo) ([]float32, int64, error) { return make([]float32, params), 0, nil },
	}})
	j.tell(wire.View{Shard: 0, Term: 3, From: 0, To: int64(params), Holders: []wire.Holder{{Rank: 1, Addr: "shards"}}})
	worker, err := j.dial(net, 0, make([]float32, params))
	if err != nil {
		t.Fatal(err)
	}
	successor, _, _, err = transport.Open(t.Context(), net, "shards", wire.Hello{Service: wire.ServiceShard, Role: wire.RoleServer, Job: "test", Rank: 2, Params: int64(params)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	j.tell(wire.Hand{Stage: wire.Lend})
	if f, _ := next(t, successor); f.Kind != wire.KindState {
		t.Fatal(f.Kind)
	}
	j.tell(wire.Hand{Stage: wire.Shared})
	return j, worker, successor
}

// update has the worker push a gradient with all elements equal to step + 1, and the coordinator fire it.
func update(t *testing.T, j *fakeJob, worker *Link, params int, step int64) {
	t.Helper()
	grad := make([]float32, params)
	for i := range grad {
		grad[i] = float32(step + 1)
	}
	if err := worker.Push(t.Context(), step, step, 1, grad); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	j.tell(wire.Fire{Seq: step + 1, Version: step + 1, Gradients: []wire.Gradient{{Worker: 0, Step: step, Weight: 1}}})
	if v, err := worker.Wait(t.Context(), step+1); err != nil || v != step+1 {
		t.Fatalf("version %d, %v", v, err)
	}
}

// A shard that lends a copy passes on the gradients of workers that do not know of the copy, and goes on with
// updates meanwhile: what it passes on is not what later gradients have been read into.
func TestPassedGradientsKeepTheirValues(t *testing.T) {
	const params, steps = 3 << 19, 3 // a gradient is more than a Pipe takes without a reader
	synctest.Test(t, func(t *testing.T) {
		j, worker, successor := lends(t, params)
		for step := range int64(steps) {
			update(t, j, worker, params, step)
		}
		for step := range int64(steps) {
			f, payload := next(t, successor)
			m, err := wire.ParsePush(f.Header)
			if err != nil || m.Step != step {
				t.Fatalf("%v: %+v, %v, want step %d", f.Kind, m, err, step)
			}
			want := transport.Floats([]float32{float32(step + 1)})
			for i := 0; i < len(payload); i += 4 {
				if !bytes.Equal(payload[i:i+4], want) {
					t.Fatalf("element %d of the gradient of step %d is %x, want %x", i/4, step, payload[i:i+4], want)
				}
			}
		}
		worker.Close()
		successor.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A server that was to have a copy and is gone does not keep the shard from its updates.
func TestUpdatesGoOnWithoutTheSuccessor(t *testing.T) {
	const params, steps = 10, 20
	synctest.Test(t, func(t *testing.T) {
		j, worker, successor := lends(t, params)
		successor.Close()
		for step := range int64(steps) {
			update(t, j, worker, params, step)
		}
		j.tell(wire.Hand{Stage: wire.Keep})
		worker.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}
