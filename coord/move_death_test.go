package coord

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/session"
	"star/internal/exitcode"
	"star/transport/wire"
)

// A server dies, or falls silent, during a move, while the shard's state is copied and updates wait for it. If it is
// the new server, the move is given up: the old one continues with its state, every waiting update is made once, and no
// sample is lost. If it is the old one, the shard is lost with it, and the job ends with that reason.
func TestServerDiesDuringTheCopy(t *testing.T) {
	for _, c := range []struct {
		name   string
		strike func(from, to *fakeServer)
		lost   bool
		why    string
	}{
		{"the new one dies", func(_, to *fakeServer) { to.m.Close() }, false, "server 2 is lost"},
		{"the new one says nothing", func(_, to *fakeServer) {}, false, "server 2: nothing was heard of it in time"},
		{"the new one has no memory", func(_, to *fakeServer) {}, false, "server 2: no memory"},
		{"the old one dies", func(from, _ *fakeServer) { from.m.Close() }, true, "server 1 (s1) is lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, Config{MaxWorkers: 2, Servers: 3, Steps: 60}, func(w *world) {
				a, from := w.server(0, 1, false), w.server(1, 1, false)
				to := w.server(2, 0, false)
				during := 0
				to.moving = func(id int64, stage wire.AdoptStage) {
					if stage != wire.Prepare {
						return
					}
					session.Say(to.m, wire.Moved{Move: id, Shard: 1, Stage: wire.Prepared}, nil)
					w.wg.Go(func() {
						time.Sleep(5 * time.Second) // a round takes one: something waits by now
						during = len(w.lines("fire"))
						if c.name == "the new one has no memory" {
							session.Say(to.m, wire.Moved{Move: id, Shard: 1, Stage: wire.Loaded, Err: "no memory"}, nil)
						}
						c.strike(from, to)
					})
				}
				w.worker(0)
				w.worker(1)
				time.Sleep(3500 * time.Millisecond)
				before := len(from.seen())
				_, said := w.ask("move", "1", "2")
				if !strings.Contains(said, c.why) && !c.lost {
					t.Errorf("star ctl move got %q, want %q", said, c.why)
				}
				w.finished(5 * time.Minute)
				if c.lost {
					w.failed(exitcode.Lost, c.why)
					return
				}
				if w.err != nil {
					t.Fatal(w.err)
				}
				w.accounted(2 * 4 * 60)
				moves := w.lines("move")
				if len(moves) != 1 || !strings.Contains(moves[0]["error"].(string), c.why) {
					t.Errorf("the run log has the moves %v", moves)
				}
				if want := []wire.HandStage{wire.Give, wire.Keep}; !slices.Equal(from.hands, want) {
					t.Errorf("the old server got %v, want %v", from.hands, want)
				}
				if len(from.seen()) != len(a.seen()) || len(from.seen()) != 60 {
					t.Errorf("shard 0 has made %d updates and shard 1 %d, want 60", len(a.seen()), len(from.seen()))
				}
				for i, f := range from.seen() {
					if f.Seq != a.seen()[i].Seq {
						t.Errorf("update %d of shard 1 is fire %d, of shard 0 %d", i, f.Seq, a.seen()[i].Seq)
					}
				}
				if during > before+1 {
					t.Errorf("%d updates before the copy, %d in the middle of it", before, during)
				}
			})
		})
	}
}

// While a server prepares for a shard, all workers leave: workers that replace them do not wait for the move, which
// would wait for them.
func TestMoveWithoutWorkers(t *testing.T) {
	play(t, Config{MaxWorkers: 2, MinWorkers: 1, Servers: 3, Steps: 60, JoinTimeout: time.Minute}, func(w *world) {
		w.server(0, 1, false)
		w.server(1, 1, false)
		to := w.server(2, 0, false)
		to.moving = func(id int64, stage wire.AdoptStage) {
			if stage == wire.Prepare {
				w.wg.Go(func() {
					time.Sleep(10 * time.Second)
					session.Say(to.m, wire.Moved{Move: id, Shard: 1, Stage: wire.Prepared}, nil)
				})
			}
		}
		a, b := w.worker(0), w.worker(1)
		time.Sleep(3500 * time.Millisecond)
		said := make(chan string, 1)
		w.wg.Go(func() {
			_, no := w.ask("move", "1", "2")
			said <- no
		})
		time.Sleep(time.Second)
		synctest.Wait()
		a.m.Close()
		b.m.Close()
		<-a.gone
		<-b.gone
		if no := <-said; !strings.Contains(no, "the job waits for workers") {
			t.Errorf("star ctl move got %q", no)
		}
		if _, no := w.ask("move", "1", "2"); !strings.Contains(no, "the job waits for workers: 0 connected, at least 1 needed") {
			t.Errorf("star ctl move without a worker got %q", no)
		}
		begun := time.Now()
		for rank := range 2 {
			w.worker(-1, func(f *fakeWorker) { f.rank = star.Worker(rank) })
			time.Sleep(100 * time.Millisecond) // so that each gets the rank that it says
		}
		for len(w.lines("join")) < 4 && time.Since(begun) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("replacements waited for %v\n%s", d, w.logs)
		}
		w.finished(5 * time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(2 * 4 * 60)
	})
}
