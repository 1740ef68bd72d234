package coord

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/internal/exitcode"
	"star/modes"
	"star/transport/wire"
)

// A job of at most four workers begins with two. A third joins, takes the next free rank and does its part; a fifth is
// rejected.
func TestMoreWorkersComeLater(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "x=2", "ssp=2", "groups=0,2/1,3", "kbatch=2"} {
		t.Run(mode, func(t *testing.T) {
			plan, err := modes.Parse(mode, 4)
			if err != nil {
				t.Fatal(err)
			}
			play(t, Config{MaxWorkers: 4, Workers: 2, Plan: plan, Steps: 40, EvalEvery: 1}, func(w *world) {
				w.server(0, 2, false)
				w.worker(0)
				time.Sleep(time.Second)
				if got := w.waiting(); got != "1 more workers" {
					t.Errorf("it waits for %q", got)
				}
				w.worker(1)
				time.Sleep(5500 * time.Millisecond)
				if s := w.status(); s.Phase != "training" || s.Workers[2].State != "absent" || len(s.Workers) != 4 {
					t.Errorf("before anybody comes: %s, %+v", s.Phase, s.Workers)
				}
				var late []*fakeWorker
				for _, rank := range []int{2, 3} {
					f := w.worker(-1, func(f *fakeWorker) { f.rank = star.Worker(rank) })
					time.Sleep(3 * time.Second)
					synctest.Wait()
					if f.m == nil || f.m.Welcome.Rank != rank || f.m.Welcome.Step != 0 || f.m.Welcome.Version < 2 || f.m.Welcome.Seed {
						t.Fatalf("a later worker is welcomed with %+v, %v", f.m, f.err)
					}
					late = append(late, f)
				}
				if _, err := w.join(hello(-1), enrolment); err == nil || !strings.Contains(err.Error(), "all 4 workers") {
					t.Errorf("a fifth worker: %v", err)
				}
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatalf("%v\n%s", w.err, w.logs)
				}
				w.accounted(40 * 2 * 4) // steps of those that it begins with
				for _, f := range late {
					<-f.gone
					if f.err != nil || len(f.used) < 5 {
						t.Errorf("worker %d made %d steps, and ended with %v", f.rank, len(f.used), f.err)
					}
				}
				if got := fmt.Sprint(w.lines("train")[0]["absent"]); got != "[2 3]" {
					t.Errorf("the run log says that %s are absent", got)
				}
				if w.result.Workers != 4 {
					t.Errorf("%d workers in the summary", w.result.Workers)
				}
			})
		})
	}
}

// A job that wants two of three workers begins with two, waits when one leaves, and continues when another one joins.
func TestFewerThanWanted(t *testing.T) {
	for _, phase := range []string{"released", "computed", "pushed", "arrived"} {
		for _, mode := range []string{"ssgd", "asgd"} {
			t.Run(mode+" "+phase, func(t *testing.T) {
				plan, err := modes.Parse(mode, 3)
				if err != nil {
					t.Fatal(err)
				}
				play(t, Config{MaxWorkers: 3, MinWorkers: 2, Plan: plan, Steps: 20, JoinTimeout: time.Minute}, func(w *world) {
					w.server(0, 2, false)
					w.worker(0)
					first := w.worker(1, dying(phase, 4))
					<-first.gone
					time.Sleep(10 * time.Second)
					s := w.status()
					if s.Short != 2 || !strings.Contains(s.Waiting, "1 connected, at least 2 needed") {
						t.Errorf("short of %d, waiting for %q", s.Short, s.Waiting)
					}
					version := s.Version
					time.Sleep(30 * time.Second)
					if v := w.status().Version; v != version {
						t.Errorf("versions %d to %d were made meanwhile", version, v)
					}
					second := w.worker(-1, func(f *fakeWorker) { f.rank = 1 })
					w.finished(time.Hour)
					if w.err != nil {
						t.Fatalf("%v\n%s", w.err, w.logs)
					}
					w.accounted(20 * 3 * 4)
					<-second.gone
					if second.err != nil || len(second.used) < 5 {
						t.Errorf("the second worker 1 made %d steps, and ended with %v", len(second.used), second.err)
					}
					if a, b := w.lines("short"), w.lines("enough"); len(a) != 1 || len(b) != 1 || a[0]["workers"] != 1. || b[0]["least"] != 2. {
						t.Errorf("the run log has %v and %v", a, b)
					}
				})
			})
		}
	}
}

// A worker that dies while the job waits leaves nothing behind: what was held for it does not reach the next worker
// with its rank, and is computed once.
func TestDeathWhileWaiting(t *testing.T) {
	play(t, Config{MaxWorkers: 2, MinWorkers: 2, Steps: 20, JoinTimeout: time.Minute}, func(w *world) {
		w.server(0, 1, false)
		a := w.worker(0)
		b := w.worker(1, dying("released", 4))
		<-b.gone
		time.Sleep(5 * time.Second) // it has pushed, and waits
		synctest.Wait()
		a.m.Close()
		<-a.gone
		time.Sleep(5 * time.Second)
		if s := w.status(); s.Phase != "training" || s.Workers[0].State != "gone" || s.Workers[1].State != "gone" {
			t.Errorf("without workers: %s, %+v", s.Phase, s.Workers)
		}
		c := w.worker(-1, func(f *fakeWorker) { f.rank = 0 })
		time.Sleep(100 * time.Millisecond)
		d := w.worker(-1, func(f *fakeWorker) { f.rank = 1 })
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatalf("%v\n%s", w.err, w.logs)
		}
		w.accounted(20 * 2 * 4)
		<-c.gone
		<-d.gone
		seen := map[int64]bool{}
		for _, s := range slices.Concat(c.used, d.used) {
			if seen[s.Start] {
				t.Errorf("the batch at %d was computed twice by replacements", s.Start)
			}
			seen[s.Start] = true
		}
	})
}

// A job that begins with fewer workers than planned accepts a worker that has not connected to every shard yet.
func TestBeginsWhileOthersConnect(t *testing.T) {
	play(t, Config{MaxWorkers: 2, MinWorkers: 1, Steps: 20}, func(w *world) {
		w.server(0, 1, false)
		connects := func(d time.Duration) func(*fakeWorker) {
			return func(f *fakeWorker) {
				f.dies = func(phase string, _ wire.Release) bool {
					if phase == "welcomed" {
						time.Sleep(d)
					}
					return false
				}
			}
		}
		w.worker(0, connects(time.Second))
		late := w.worker(1, connects(4500*time.Millisecond))
		time.Sleep(3 * time.Second)
		if s := w.status(); s.Phase != "training" || s.Workers[1].State != "joining" {
			t.Errorf("%s, %+v", s.Phase, s.Workers)
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatalf("%v\n%s", w.err, w.logs)
		}
		w.accounted(20 * 2 * 4)
		<-late.gone
		if late.err != nil || len(late.used) < 5 {
			t.Errorf("worker 1 made %d steps, and ended with %v", len(late.used), late.err)
		}
	})
}

// A job that waits too long ends and names the number of workers.
func TestWaitsForWorkersInVain(t *testing.T) {
	play(t, Config{MaxWorkers: 2, MinWorkers: 2, Steps: 20, JoinTimeout: time.Minute}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		b := w.worker(1, dying("computed", 4))
		<-b.gone
		at := time.Now()
		w.finished(time.Hour)
		w.failed(exitcode.Lost, "only 1 workers are left, at least 2", "1m0s", "; the last loss: worker 1: ")
		if took := time.Since(at); took < time.Minute || took > 70*time.Second {
			t.Errorf("it waited for %v", took)
		}
	})
}

// With backup=B an update does not wait for B of the present workers, however many they are.
func TestBackupFollowsTheWorkers(t *testing.T) {
	plan, err := modes.Parse("backup=1", 4)
	if err != nil {
		t.Fatal(err)
	}
	play(t, Config{MaxWorkers: 4, Workers: 2, Plan: plan, Steps: 60}, func(w *world) {
		w.server(0, 1, false)
		slow := func(f *fakeWorker) { f.pace = 10 * time.Second }
		w.worker(0)
		w.worker(1, slow)
		time.Sleep(5500 * time.Millisecond)
		if v := w.status().Version; v < 4 {
			t.Errorf("with one of two that is slow: version %d", v)
		}
		w.worker(2)
		time.Sleep(5 * time.Second)
		if got := w.status().Mode; got != "backup=2" { // of four ranks: two of the three are waited for
			t.Errorf("with three there: mode %s", got)
		}
		for _, f := range w.lines("fire") {
			if n := len(f["workers"].([]any)); n > 2 {
				t.Errorf("an update of %d workers", n)
			}
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatalf("%v\n%s", w.err, w.logs)
		}
		w.accounted(60 * 2 * 4)
	})
}

func TestSizesThatCannotBe(t *testing.T) {
	for _, c := range []Config{
		{MaxWorkers: 2, Workers: 3}, {MaxWorkers: 2, Workers: -1}, {MaxWorkers: 4, Workers: 2, MinWorkers: 3}, {MaxWorkers: 4, MinWorkers: 5}, {MaxWorkers: 4, MinWorkers: -1},
	} {
		c.Batch, c.Steps = 4, 1
		if _, err := New(c); err == nil {
			t.Errorf("%d workers, first %d, least %d: accepted", c.MaxWorkers, c.Workers, c.MinWorkers)
		}
	}
}

// In a job that another process may take over, the last worker may leave: a successor would wait for workers, and so
// does the present coordinator, whether workers die or must end.
func TestLastWorkerWhereOthersMayCoordinate(t *testing.T) {
	for name, c := range map[string]struct{ back, told bool }{
		"it comes back": {back: true}, "no replacement": {}, "it was told to end, and comes back": {back: true, told: true}, "it was told to end": {told: true},
	} {
		t.Run(name, func(t *testing.T) {
			var saved []Checkpoint
			play(t, Config{MaxWorkers: 2, Servers: 2, Coordinators: 1, Steps: 20, Lease: newTestLease(1), JoinTimeout: time.Minute, Grace: 20 * time.Second, Save: keeper(&saved)}, func(w *world) {
				w.server(0, 0, false)
				w.server(1, 1, false)
				var a, b *fakeWorker
				if c.told {
					a, b = w.worker(0), w.worker(1)
					time.Sleep(5500 * time.Millisecond)
					synctest.Wait()
					a.m.Leave(143, "SIGTERM")
					b.m.Leave(143, "SIGTERM")
				} else {
					a, b = w.worker(0, dying("computed", 4)), w.worker(1, dying("computed", 4))
				}
				<-a.gone
				<-b.gone
				time.Sleep(5 * time.Second)
				if c.back {
					w.worker(-1, func(f *fakeWorker) { f.rank = 0 })
					time.Sleep(100 * time.Millisecond)
					w.worker(-1, func(f *fakeWorker) { f.rank = 1 })
				}
				w.finished(time.Hour)
				switch {
				case !c.back:
					w.failed(exitcode.Lost, "only 0 workers are left, at least 1", "1m0s", "; the last loss: worker ")
					if c.told && (len(saved) != 1 || saved[0].Samples == 0) {
						t.Errorf("saved %+v", saved)
					}
				case w.err != nil:
					t.Fatalf("%v\n%s", w.err, w.logs)
				default:
					w.accounted(20 * 2 * 4)
				}
			})
		})
	}
}
