package coord

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/ending"
	"star/coord/session"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
)

// keeper records the checkpoints of a job.
func keeper(to *[]Checkpoint) func(Checkpoint) (string, error) {
	return func(c Checkpoint) (string, error) {
		*to = append(*to, c)
		return c.ID, nil
	}
}

// A job that must end makes a checkpoint of its last update, with the open batches to be repeated; later messages have
// no effect. Models with buffers are saved with those that workers send in time.
func TestStopSaves(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "x=2"} {
		for _, buffers := range []int{0, 2} {
			t.Run(fmt.Sprint(mode, " ", buffers), func(t *testing.T) {
				var saved []Checkpoint
				plan, _ := modes.Parse(mode, 3)
				play(t, Config{MaxWorkers: 3, Plan: plan, Steps: 1000, Grace: 20 * time.Second, Save: keeper(&saved)}, func(w *world) {
					w.server(0, 2, false)
					for i := range 3 {
						w.worker(i, func(f *fakeWorker) { f.pace *= time.Duration(1 + i); f.buffers = make([]float32, buffers) })
					}
					time.Sleep(15500 * time.Millisecond)
					told := errors.New("SIGTERM")
					w.c.Stop(told)
					w.finished(20 * time.Second)
					if !errors.Is(w.err, told) || len(saved) != 1 {
						t.Fatalf("ended with %v, %d checkpoints\n%s", w.err, len(saved), w.logs)
					}
					at, fires := saved[0], w.lines("fire")
					last := fires[len(fires)-1]
					if float64(at.Version) != last["version"] || float64(at.Samples) != last["samples"] || at.Samples != w.result.Samples || w.result.Checkpoint != at.ID {
						t.Errorf("saved is version %d of %d samples; the last update is %v, the summary has %d samples and %q", at.Version, at.Samples, last, w.result.Samples, w.result.Checkpoint)
					}
					redo := int64(0)
					for _, s := range at.Redo {
						redo += int64(s.Count)
					}
					if at.Samples+redo+w.result.Wasted != at.Cursor {
						t.Errorf("%d samples are applied and %d to be done again, of %d that were handed out", at.Samples, redo, at.Cursor)
					}
					if len(at.Buffers) != buffers {
						t.Errorf("%d buffers, want %d", len(at.Buffers), buffers)
					}
					if s := w.lines("stop"); len(s) != 1 || s[0]["why"] != "SIGTERM" {
						t.Errorf("the run log says %v", s)
					}
				})
			})
		}
	}
}

// Messages that do not arrive within the grace are not waited for.
func TestGraceEnds(t *testing.T) {
	t.Run("the disk", func(t *testing.T) {
		var never chan struct{}
		play(t, Config{MaxWorkers: 1, Steps: 1000, Grace: 20 * time.Second, Save: func(Checkpoint) (string, error) { <-never; return "", nil }}, func(w *world) {
			w.server(0, 1, false)
			w.worker(0)
			time.Sleep(5500 * time.Millisecond)
			never = make(chan struct{}) // of this bubble
			told, begun := errors.New("SIGTERM"), time.Now()
			w.c.Stop(told)
			w.finished(time.Minute)
			if took := time.Since(begun); !errors.Is(w.err, told) || took < 20*time.Second || took > 23*time.Second {
				t.Errorf("ended with %v after %v", w.err, took)
			}
			if !strings.Contains(w.logs.String(), "not complete within --grace") {
				t.Errorf("the log:\n%s", w.logs)
			}
			close(never)
		})
	})
	t.Run("buffers of one worker", func(t *testing.T) {
		var saved []Checkpoint
		play(t, Config{MaxWorkers: 2, Steps: 1000, Grace: 20 * time.Second, Save: keeper(&saved), Plan: modes.ASGD(2)}, func(w *world) {
			w.server(0, 1, false)
			w.worker(0, func(f *fakeWorker) { f.buffers = []float32{3} })
			w.worker(1, func(f *fakeWorker) { f.buffers = []float32{5}; f.pace = time.Hour })
			time.Sleep(5500 * time.Millisecond)
			w.c.Stop(errors.New("SIGTERM"))
			w.finished(time.Minute)
			if len(saved) != 1 || len(saved[0].Buffers) != 1 || saved[0].Buffers[0] != 3 {
				t.Errorf("saved %+v\n%s", saved, w.logs)
			}
		})
	})
	t.Run("none is given", func(t *testing.T) {
		var saved []Checkpoint
		play(t, Config{MaxWorkers: 1, Steps: 1000, Save: keeper(&saved)}, func(w *world) {
			w.server(0, 1, false)
			w.worker(0)
			time.Sleep(5500 * time.Millisecond)
			told, begun := errors.New("SIGTERM"), time.Now()
			w.c.Stop(told)
			w.finished(time.Minute)
			if !errors.Is(w.err, told) || len(saved) != 0 || time.Since(begun) > 0 {
				t.Errorf("%v, %d checkpoints after %v", w.err, len(saved), time.Since(begun))
			}
		})
	})
	t.Run("before the start", func(t *testing.T) {
		play(t, Config{MaxWorkers: 1, Steps: 1000, Grace: time.Hour, Save: keeper(new([]Checkpoint))}, func(w *world) {
			w.server(0, 1, false)
			told := errors.New("SIGTERM")
			w.c.Stop(told)
			w.finished(time.Second)
			if !errors.Is(w.err, told) {
				t.Error(w.err)
			}
		})
	})
}

// A member that must end is released after a while, if the job can continue without it; otherwise the job is saved and
// ends.
func TestMuster(t *testing.T) {
	leave := func(m *session.Member, rank int) {
		m.Leave(143, fmt.Sprintf("worker %d: SIGTERM", rank))
	}
	for name, c := range map[string]struct {
		cfg     Config
		workers []int // that leave
		server  bool  // leaves too
		ends    string
	}{
		"one worker":           {Config{}, []int{1}, false, ""},
		"one, at once":         {Config{LeaveAtOnce: true}, []int{1}, false, ""},
		"one, and all must be": {Config{StopOnFailure: true}, []int{1}, false, "--on-failure stop"},
		"all workers":          {Config{}, []int{0, 1}, false, "every worker was told to end"},
		"a server":             {Config{}, nil, true, "server 1 has shards and was told to end"},
	} {
		t.Run(name, func(t *testing.T) {
			var saved []Checkpoint
			c.cfg.MaxWorkers, c.cfg.Servers, c.cfg.Steps, c.cfg.Grace, c.cfg.Save = 2, 2, 40, 20*time.Second, keeper(&saved)
			play(t, c.cfg, func(w *world) {
				w.server(0, 1, false)
				s := w.server(1, 1, false)
				ws := []*fakeWorker{w.worker(0), w.worker(1)}
				time.Sleep(5500 * time.Millisecond)
				synctest.Wait()
				for _, r := range c.workers {
					leave(ws[r].m, r)
				}
				if c.server {
					leave(s.m, 1)
				}
				if c.ends != "" {
					w.finished(20 * time.Second)
					w.failed(exitcode.Lost, c.ends)
					if len(saved) != 1 || saved[0].Samples != w.result.Samples || saved[0].Samples == 0 {
						t.Errorf("saved %+v", saved)
					}
					return
				}
				time.Sleep(ending.MusterTime / 2)
				if left := len(w.lines("leave")) > 0; left != c.cfg.LeaveAtOnce {
					t.Errorf("before the others could have been told it was let go: %v", left)
				}
				<-ws[1].gone
				var refused *transport.RejectError
				if !errors.As(ws[1].err, &refused) || refused.Exit != 143 {
					t.Errorf("it is let go with %v", ws[1].err)
				}
				w.finished(time.Hour)
				w.accounted(320)
				if w.err != nil || len(w.lines("leave")) != 1 {
					t.Errorf("%v; lines: %v", w.err, w.lines("leave"))
				}
			})
		})
	}
}

// A coordinator that must end lets others continue, unless too few processes that may coordinate stay.
func TestYield(t *testing.T) {
	for name, c := range map[string]struct {
		leave []int
		yield bool
	}{"alone": {nil, true}, "with another one": {[]int{2}, false}} {
		t.Run(name, func(t *testing.T) {
			var saved []Checkpoint
			play(t, Config{MaxWorkers: 1, Servers: 4, Coordinators: 3, Lease: newTestLease(1), Steps: 1000, Grace: 20 * time.Second, Save: keeper(&saved)}, func(w *world) {
				var candidates []*fakeServer
				for i := range 3 {
					candidates = append(candidates, w.server(i, 0, false))
				}
				w.server(3, 1, false)
				w.worker(0)
				time.Sleep(5500 * time.Millisecond)
				told := errors.New("SIGTERM")
				yield := w.c.Yield(told)
				for _, i := range c.leave {
					candidates[i].m.Leave(143, "SIGTERM")
				}
				if c.yield {
					<-yield
					return
				}
				w.finished(20 * time.Second)
				if !errors.Is(w.err, told) || len(saved) != 1 {
					t.Errorf("%v, %d checkpoints\n%s", w.err, len(saved), w.logs)
				}
			})
		})
	}
}

// In a job with several coordinators, a ring in which all members must end continues with their replacements: one
// member with the parameters stays until another one has them. Without a replacement a checkpoint is made after half of
// the grace.
func TestMusterOfARing(t *testing.T) {
	for name, c := range map[string]struct {
		coordinators int
		back         bool // worker 0 comes again
		stays        bool // worker 0 was not told
		want         string
	}{
		"they come again": {coordinators: 1, back: true},
		"one stays":       {coordinators: 1, stays: true},
		"no replacement":  {coordinators: 1, want: "every worker was told to end"},
		"one coordinator": {back: true, want: "every worker was told to end"},
	} {
		t.Run(name, func(t *testing.T) {
			var saved []Checkpoint
			cfg := Config{MaxWorkers: 2, Steps: 40, Ring: &RingConfig{Rule: "sgd"}, Coordinators: c.coordinators, JoinTimeout: time.Minute, Grace: 20 * time.Second, Save: keeper(&saved)}
			if c.coordinators > 0 {
				cfg.Lease = newTestLease(1)
			}
			play(t, cfg, func(w *world) {
				w.server(0, 0, false)
				ws := []*ringTold{w.ringWorker(0, "", nil), w.ringWorker(1, "", nil)}
				time.Sleep(5500 * time.Millisecond)
				synctest.Wait()
				told := time.Now()
				for i, f := range ws {
					if i == 1 || !c.stays {
						f.set(func() { f.leaves = true })
						f.m.Leave(143, "SIGTERM")
					}
				}
				time.Sleep(5 * time.Second)
				left := func(f *ringTold) (at time.Time) {
					f.set(func() { at = f.left })
					return at
				}
				switch {
				case c.want != "" && c.coordinators == 0:
				case c.stays && left(ws[1]).IsZero():
					t.Errorf("worker 1 is not let go, though worker 0 stays\n%s", w.logs)
				case !c.stays && (left(ws[0]).IsZero() || !left(ws[1]).IsZero()):
					t.Errorf("let go: %v and %v; want one of them", left(ws[0]), left(ws[1]))
				}
				if c.back && c.coordinators > 0 {
					w.ringWorker(0, "", nil, nil)
					time.Sleep(5 * time.Second)
					if left(ws[1]).IsZero() {
						t.Error("worker 1 is not let go, though worker 0 has the parameters")
					}
				}
				w.finished(5 * time.Minute)
				if c.want == "" {
					if w.err != nil || w.result.Samples != 320 {
						t.Errorf("%v, %d samples\n%s", w.err, w.result.Samples, w.logs)
					}
					return
				}
				w.failed(exitcode.Lost, c.want)
				if took := time.Since(told); len(saved) == 0 || saved[len(saved)-1].Samples != w.result.Samples || c.coordinators > 0 && (took < 10*time.Second || took > 15*time.Second) {
					t.Errorf("saved %+v of %d samples, after %v", saved, w.result.Samples, took)
				}
			})
		})
	}
}
