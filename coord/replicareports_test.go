package coord

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/engine"
	"star/coord/session"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/ps/replica"
	"star/runlog"
	"star/transport/wire"
)

// twice gives the job of live copies: each shard is on both servers.
func (p *past) twice() {
	p.handover.Counts = map[int]int{0: 2, 1: 2}
	p.handover.Views = []replica.View{{Term: 1, Primary: 0, Followers: []int{1}}, {Term: 1, Primary: 1, Followers: []int{0}}}
}

// stakes adds a server that holds copies of both shards up to some firings, by shard, and keeps the Fires from keeps
// on; after is when it connects.
func (w *world) stakes(p past, rank int, keeps int64, held [2]int64, after ...time.Duration) *fakeServer {
	s := &fakeServer{gone: make(chan struct{}), own: []int{0, 1}, mute: len(after) > 0}
	w.servers = append(w.servers, s)
	w.wg.Go(func() {
		defer close(s.gone)
		for _, d := range after {
			time.Sleep(d)
		}
		m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
			Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: rank, Shards: 1, Addr: fmt.Sprintf("s%d", rank), Params: 100}})
		if err != nil {
			s.last = err
			return
		}
		s.mu.Lock()
		s.m, s.mute = m, false
		s.mu.Unlock()
		defer m.Close()
		s.copies = map[int]*replica.Copy{}
		seq := max(held[0], held[1])
		st := wire.Standing{Term: m.Welcome.Term, Seq: seq, Applied: p.answered(rank)}
		for shard, last := range held {
			if last < 0 {
				continue
			}
			c := replica.NewCopy(rank, p.handover.Views[shard], last)
			s.copies[shard] = &c
			session.Say(m, wire.Held{Shard: shard, Term: 1, Seq: last}, nil)
			st.Shards = append(st.Shards, wire.ShardVersion{Shard: shard, Version: last})
		}
		var frames []byte
		for _, f := range p.frames[keeps-1 : seq] {
			frames = append(frames, f...)
		}
		session.Say(m, st, frames)
		for _, seq := range p.repeats[rank] {
			s.sayNorms(seq)
		}
		s.last = s.serve()
	})
	return s
}

// A coordinator that takes over shards with copies brings all copies to the same end of the history, followers first,
// releases no worker before they hold it, and uses terms that are higher than all earlier ones.
func TestTakeOverCopies(t *testing.T) {
	for name, c := range map[string]struct {
		held [2][2]int64 // by server and shard
		end  int64
	}{
		"all hold all":                     {[2][2]int64{{3, 3}, {3, 3}}, 3},
		"one follower is ahead":            {[2][2]int64{{2, 3}, {2, 2}}, 3},
		"followers are ahead of primaries": {[2][2]int64{{1, 3}, {3, 1}}, 3},
		"no server has the last fires":     {[2][2]int64{{1, 1}, {1, 1}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := live(3, 40)
			p.twice()
			lease := newTestLease(7)
			play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 5, Lease: lease, Handover: &p.handover}, func(w *world) {
				a, b := w.stakes(p, 0, 1, c.held[0]), w.stakes(p, 1, 1, c.held[1])
				x, y := w.worker(0), w.worker(1)
				w.finished(time.Minute)
				if w.err != nil {
					t.Fatal(w.err)
				}
				if w.result.Samples != 40 || x.m.Welcome.Version != c.end {
					t.Errorf("%d samples, begun at version %d, want 40 and %d", w.result.Samples, x.m.Welcome.Version, c.end)
				}
				exactly(t, 40, p.applied[:2*c.end], x.used, y.used)
				for _, s := range []*fakeServer{a, b} {
					for shard, copied := range s.copies {
						if copied.Term() != 7<<32+1 || copied.Last() < c.end+2 {
							t.Errorf("a copy of shard %d has term %d and holds %d firings", shard, copied.Term(), copied.Last())
						}
						if copied.Last() != a.copies[0].Last() {
							t.Errorf("copies hold %d and %d firings", copied.Last(), a.copies[0].Last())
						}
					}
				}
				vs := lease.last().Views
				if len(vs) != 2 || vs[0].Term != 7<<32+1 || vs[0].Primary != 0 || vs[1].Primary != 1 || lease.last().Counts[0] != 2 {
					t.Errorf("noted is %+v", vs)
				}
			})
		})
	}
}

// Updates that wait for the norm of their gradient get it, whichever server with copies was told it, or reported it.
func TestTakeOverCopiesDecidesNorms(t *testing.T) {
	for name, c := range map[string]struct {
		held    [2][2]int64 // by server and shard
		told    [2]int64    // by server
		repeats map[int][]int64
	}{
		"no server was told":           {[2][2]int64{{3, 3}, {3, 3}}, [2]int64{2, 2}, map[int][]int64{0: {3}, 1: {3}}},
		"one was told":                 {[2][2]int64{{3, 3}, {3, 3}}, [2]int64{3, 2}, map[int][]int64{1: {3}}},
		"one follower is ahead":        {[2][2]int64{{2, 3}, {2, 2}}, [2]int64{2, 2}, nil},
		"a follower was ahead, waited": {[2][2]int64{{2, 3}, {2, 2}}, [2]int64{2, 2}, map[int][]int64{0: {3}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := live(3, 40, func(g *engine.Config) { g.Norm = true })
			p.twice()
			p.told, p.repeats = c.told, c.repeats
			play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 5, Norm: true, Lease: newTestLease(7), Handover: &p.handover}, func(w *world) {
				// what the first says comes too early
				servers := [2]*fakeServer{w.stakes(p, 0, 1, c.held[0]), w.stakes(p, 1, 1, c.held[1], time.Second)}
				a, b := w.worker(0), w.worker(1)
				w.finished(time.Minute)
				if w.err != nil {
					t.Fatal(w.err)
				}
				exactly(t, 40, p.applied, a.used, b.used)
				p.toldOnce(t, servers)
			})
		})
	}
}

// A server that does not connect is given up, because others have copies. A shard without any connected holder is
// waited for.
func TestTakeOverWithoutAServer(t *testing.T) {
	t.Run("the others have copies", func(t *testing.T) {
		p := live(3, 40)
		p.twice()
		lease := newTestLease(7)
		play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 5, Lease: lease, Handover: &p.handover}, func(w *world) {
			begun := time.Now()
			b := w.stakes(p, 1, 1, [2]int64{3, 2})
			x, y := w.worker(0), w.worker(1)
			time.Sleep(takeover.AbsentServers - time.Second)
			synctest.Wait()
			if len(b.seen()) > 0 {
				t.Errorf("something is fired after %v", time.Since(begun))
			}
			w.finished(time.Minute)
			if w.err != nil {
				t.Fatal(w.err)
			}
			exactly(t, 40, p.applied, x.used, y.used)
			var events []string
			for _, l := range w.lines("replica") {
				events = append(events, fmt.Sprint(l["event"], l["shard"], l["server"]))
			}
			if want := []string{"promoted0 0", "lost1 0"}; !slices.Equal(events, want) {
				t.Errorf("the run log has %v, want %v", events, want)
			}
			if _, err := runlog.Read(strings.NewReader(w.run.String()), "run", func(runlog.Line) error { return nil }); err != nil {
				t.Error(err)
			}
			if v := lease.last().Views[0]; v.Primary != 1 || len(v.Followers) > 0 {
				t.Errorf("noted is %+v", v)
			}
		})
	})
	t.Run("no server has one", func(t *testing.T) {
		p := live(3, 40)
		p.twice()
		p.handover.Views[0].Followers, p.handover.Counts = nil, map[int]int{0: 2, 1: 1}
		play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 5, Lease: newTestLease(7), Handover: &p.handover, JoinTimeout: 20 * time.Second}, func(w *world) {
			w.stakes(p, 1, 1, [2]int64{-1, 3})
			w.worker(0)
			w.finished(time.Minute)
			w.failed(exitcode.Lost, "servers [0]")
		})
	})
}

// A server drops copies that are no longer counted, and gets no firing for them: a copy that was in flight when the
// coordinator was lost, and everything that a server has that comes back after the others continued without it.
func TestCopiesThatCountNoMore(t *testing.T) {
	p := live(3, 40)
	p.twice()
	p.handover.Views[0] = replica.View{Term: 4, Primary: 1} // server 0 was dropped, and does not know it
	p.handover.Counts = map[int]int{0: 1, 1: 2}
	play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 1 + 1, Steps: 5, Lease: newTestLease(7), Handover: &p.handover}, func(w *world) {
		a := w.stakes(p, 0, 1, [2]int64{2, 3})
		w.stakes(p, 1, 1, [2]int64{3, 3})
		w.worker(0)
		w.worker(1)
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		forgot := slices.Clone(a.adopts)
		a.mu.Unlock()
		if !slices.Contains(forgot, wire.Forget) {
			t.Errorf("it was told %v, want to forget", forgot)
		}
		w.end(fmt.Errorf("enough"))
		<-w.over
	})
}

// The holders of copies are agreed on before they take effect: without agreement no member learns it.
func TestViewsAreNoted(t *testing.T) {
	for name, agreed := range map[string]bool{"agreed": true, "not agreed": false} {
		t.Run(name, func(t *testing.T) {
			p := live(3, 400)
			p.twice()
			lease := newTestLease(7)
			play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 50, Lease: lease, Handover: &p.handover}, func(w *world) {
				a, b := w.stakes(p, 0, 1, [2]int64{3, 3}), w.stakes(p, 1, 1, [2]int64{3, 3})
				w.worker(0)
				w.worker(1)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				term := b.term(0)
				if !agreed {
					lease.set(nil, fmt.Errorf("no majority"))
				}
				a.m.Conn.Close()
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				switch v := lease.last().Views[0]; {
				case agreed && (v.Primary != 1 || v.Term != b.term(0) || b.term(0) <= term):
					t.Errorf("noted is %+v, told is term %d", v, b.term(0))
				case !agreed && b.term(0) != term:
					t.Errorf("a view of term %d was sent without agreement", b.term(0))
				}
				w.end(fmt.Errorf("enough"))
				<-w.over
			})
		})
	}
}

func (s *fakeServer) term(shard int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copies[shard].Term()
}

// A server that was cut off and comes back to the same coordinator drops its copies, and gets new ones.
func TestServerWithCopiesComesBack(t *testing.T) {
	p := live(3, 400)
	p.twice()
	handover := p.handover // the coordinator's own: it changes it
	handover.Counts, handover.Views = maps.Clone(handover.Counts), slices.Clone(handover.Views)
	play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 50, Lease: newTestLease(7), Handover: &handover}, func(w *world) {
		w.stakes(p, 0, 1, [2]int64{3, 3})
		b := w.stakes(p, 1, 1, [2]int64{3, 3})
		again := w.stakes(p, 0, 1, [2]int64{3, 3}, 5*time.Second) // the connection before is still there
		w.worker(0)
		w.worker(1)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		again.mu.Lock()
		told := slices.Clone(again.adopts)
		again.mu.Unlock()
		if len(told) < 3 || told[0] != wire.Forget || told[1] != wire.Forget || !slices.Contains(told[2:], wire.Prepare) {
			t.Errorf("it was told %v, want to forget both copies and to prepare for one", told)
		}
		if b.term(0) <= 7<<32+1 {
			t.Errorf("the other copy has term %d", b.term(0))
		}
		w.end(fmt.Errorf("enough"))
		<-w.over
	})
}

// losesWhileCopiesWait loses a worker while updates wait for the copies of a server, which no longer reports what it
// holds.
func (w *world) losesWhileCopiesWait(y *fakeWorker, b *fakeServer) {
	for w.status().Version < 5 {
		time.Sleep(500 * time.Millisecond)
	}
	synctest.Wait()
	b.mu.Lock()
	b.copies = nil
	b.mu.Unlock()
	time.Sleep(3 * time.Second)
	y.m.Close()
	<-y.gone
	time.Sleep(time.Second)
}

// An ordered update waits for copies while a worker that takes part in it is lost. The run log has the update first:
// the loss took nothing from it.
func TestLogTellsInTheOrderOfDecisions(t *testing.T) {
	p := live(3, 80)
	p.twice()
	play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 10, Lease: newTestLease(7), Handover: &p.handover}, func(w *world) {
		w.stakes(p, 0, 1, [2]int64{3, 3})
		b := w.stakes(p, 1, 1, [2]int64{3, 3})
		w.worker(0, func(f *fakeWorker) { f.pace = time.Second })
		y := w.worker(1, func(f *fakeWorker) { f.pace = time.Second })
		w.losesWhileCopiesWait(y, b)
		b.m.Close()
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		held, left := map[float64]bool{}, false
		for line := range strings.Lines(w.run.String()) {
			var m struct {
				Type    string
				Worker  float64
				Workers json.RawMessage
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			switch m.Type {
			case "record":
				held[m.Worker] = true
			case "leave":
				left = true
				delete(held, m.Worker)
			case "fire":
				var ws []float64
				json.Unmarshal(m.Workers, &ws)
				for _, v := range ws {
					if !held[v] {
						t.Errorf("an update of worker %v, and no server has its gradient: %s", v, line)
					}
					delete(held, v)
				}
			}
		}
		if !left {
			t.Error("no worker was lost")
		}
	})
}

// A worker is lost while its next release waits for copies. Its replacement does not get that release: it has its own
// batch, and another worker computes the lost one.
func TestWorkerIsReplacedWhileCopiesWait(t *testing.T) {
	p := live(3, 80)
	p.twice()
	play(t, Config{MaxWorkers: 2, Servers: 2, Replicas: 2, Steps: 10, Lease: newTestLease(7), Handover: &p.handover}, func(w *world) {
		w.stakes(p, 0, 1, [2]int64{3, 3})
		b := w.stakes(p, 1, 1, [2]int64{3, 3})
		x, y := w.worker(0), w.worker(1)
		w.losesWhileCopiesWait(y, b)
		z := w.worker(1)
		time.Sleep(time.Second)
		b.m.Close()
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if len(z.used) == 0 || w.result.Samples != 80 {
			t.Errorf("%d samples, the new worker has %v", w.result.Samples, z.used)
		}
		exactly(t, 80, p.applied[:6], x.used, y.used, z.used)
	})
}
