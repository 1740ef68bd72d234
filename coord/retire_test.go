package coord

import (
	"errors"
	"strings"
	"testing"
	"time"

	"star/coord/session"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// retiring is a worker that leaves at a step with an exit code and computes nothing more.
func retiring(at int64, exit int) func(*fakeWorker) {
	return func(f *fakeWorker) {
		f.buffers = []float32{1}
		f.retires = func(step int64) (int, string) {
			if step < at {
				return 0, ""
			}
			return exit, "its loop is over"
		}
	}
}

// A job that all workers have left is saved: successfully if the last one left normally, which then evaluates.
func TestEveryWorkerRetires(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd"} {
		for _, c := range []struct {
			name        string
			first, last int // exit codes
			want        int
			hangUp      bool // the last one disconnects before the end
			least       int
		}{
			{name: "in good order"},
			{name: "in good order, with a least number", least: 2},
			{name: "the first has failed", first: 1},
			{name: "the last has failed", last: 1, want: exitcode.Lost},
			{name: "all have failed", first: 1, last: 1, want: exitcode.Lost},
			{name: "the last has hung up", hangUp: true, want: exitcode.Lost},
			{name: "misused", last: exitcode.Usage, want: exitcode.Usage},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				plan, err := modes.Parse(mode, 2)
				if err != nil {
					t.Fatal(err)
				}
				saved := 0
				play(t, Config{MaxWorkers: 2, MinWorkers: c.least, Plan: plan, Steps: 100, Save: func(k Checkpoint) (string, error) {
					saved++
					var redo int64
					for _, s := range k.Redo {
						redo += int64(s.Count)
					}
					if k.Samples+redo != k.Cursor {
						t.Errorf("the checkpoint has %d samples, %d to be done again, and the cursor at %d", k.Samples, redo, k.Cursor)
					}
					return k.ID, nil
				}}, func(w *world) {
					w.server(0, 1, false)
					at := int64(9)
					if c.least > 0 { // which waits for other workers
						at = 4
					}
					first := w.worker(0, retiring(4, c.first))
					last := w.worker(1, retiring(at, c.last), func(f *fakeWorker) {
						f.dies = func(string, wire.Release) bool { return c.hangUp && f.step == 9 }
					})
					w.finished(time.Hour)
					<-first.gone
					<-last.gone
					var r *transport.RejectError
					if !errors.As(first.err, &r) || r.Exit != c.first || !strings.Contains(r.Reason, "goes on without") {
						t.Errorf("the first was told %v", first.err)
					}
					if !c.hangUp && saved != 1 || w.result.Samples < 4*8 {
						t.Errorf("%d checkpoints, %d samples\n%s", saved, w.result.Samples, w.logs)
					}
					if c.want != 0 {
						w.failed(c.want)
						if w.result.Evaluated || w.result.Ended != "" {
							t.Errorf("evaluated %v, ended by %q", w.result.Evaluated, w.result.Ended)
						}
						return
					}
					if w.err != nil {
						t.Fatal(w.err)
					}
					if last.err != nil || !w.result.Evaluated || !strings.Contains(w.result.Ended, "worker 1: its loop is over") {
						t.Errorf("%v, evaluated %v, ended by %q", last.err, w.result.Evaluated, w.result.Ended)
					}
				})
			})
		}
	}
}

// A batch that has killed two workers is put aside: the third continues without it, and the log, the result and the
// checkpoint have it. Without any worker left the job is saved without it.
func TestPutAside(t *testing.T) {
	for _, c := range []struct {
		name    string
		workers int
		cut     bool // the connection ends without a reason
		told    int  // exit code of the failure; 0: 1
		want    int64
		exit    int
	}{
		{name: "the third goes on", workers: 3, want: 4},
		{name: "connections end", workers: 3, cut: true, want: 4},
		{name: "no worker is left", workers: 2, want: 4, exit: exitcode.Lost},
		{name: "they lose another member", workers: 4, told: exitcode.Lost, exit: exitcode.Lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			var saved Checkpoint
			play(t, Config{MaxWorkers: c.workers, Plan: modes.ASGD(c.workers), Steps: 8, Save: func(k Checkpoint) (string, error) {
				saved = k
				return k.ID, nil
			}}, func(w *world) {
				w.server(0, 1, false)
				for i := range c.workers {
					w.worker(i, func(f *fakeWorker) {
						deadly := false
						f.buffers = []float32{1}
						f.dies = func(phase string, r wire.Release) bool {
							deadly = r.Action == wire.Continue && r.Start <= 20 && 20 < r.Start+int64(r.Count)
							return phase == "computed" && deadly && c.cut
						}
						f.retires = func(int64) (int, string) {
							if deadly && !c.cut {
								return max(c.told, 1), "the program failed: one sample"
							}
							return 0, ""
						}
					})
				}
				w.finished(time.Hour)
				if c.exit != 0 {
					w.failed(c.exit)
				} else if w.err != nil {
					t.Fatal(w.err)
				}
				r := w.result
				lines := w.lines("aside")
				if r.Aside != c.want || r.Wasted != c.want || (len(lines) > 0) != (c.want > 0) {
					t.Fatalf("%d samples put aside, %d dropped, want %d; %v\n%s", r.Aside, r.Wasted, c.want, lines, w.logs)
				}
				if c.want > 0 && (lines[0]["start"] != 20. || lines[0]["count"] != 4. || !c.cut && !strings.Contains(lines[0]["why"].(string), "one sample")) {
					t.Errorf("%v", lines[0])
				}
				var redo int64
				for _, s := range saved.Redo {
					redo += int64(s.Count)
					if c.want > 0 && s.Start < 24 && 20 < s.Start+int64(s.Count) {
						t.Errorf("the checkpoint has %v handed out again", s)
					}
				}
				if saved.ID == "" || saved.Samples+redo+c.want != saved.Cursor {
					t.Errorf("the checkpoint %q has %d samples, %d to be done again and %d put aside, and the cursor at %d",
						saved.ID, saved.Samples, redo, c.want, saved.Cursor)
				}
				if c.exit == 0 {
					w.accounted(int64(8 * c.workers * 4))
				}
			})
		})
	}
}

// A worker that was misused ends the job for all workers, with its exit code, and a checkpoint.
func TestMisuseEndsTheJob(t *testing.T) {
	play(t, Config{MaxWorkers: 3, Steps: 100, Grace: time.Minute, Save: func(k Checkpoint) (string, error) { return k.ID, nil }}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1, retiring(5, exitcode.Usage), func(f *fakeWorker) { f.buffers = nil })
		w.worker(2)
		w.finished(time.Hour)
		w.failed(exitcode.Usage, "worker 1: its loop is over")
		if w.result.Checkpoint == "" || w.result.Updates > 7 {
			t.Errorf("checkpoint %q, %d updates", w.result.Checkpoint, w.result.Updates)
		}
	})
}

// A worker may end the job successfully for all workers.
func TestHalt(t *testing.T) {
	play(t, Config{MaxWorkers: 3, Steps: 100}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1, func(f *fakeWorker) {
			f.dies = func(phase string, _ wire.Release) bool {
				if phase == "arrived" && f.step == 5 {
					session.Say(f.m, wire.Halt{Worker: 1, Reason: "good enough"}, nil)
				}
				return false
			}
		})
		w.worker(2)
		w.finished(time.Hour)
		if w.err != nil || !w.result.Evaluated || w.result.Ended != "worker 1: good enough" || w.result.Updates < 5 || w.result.Updates > 7 {
			t.Errorf("%v, %+v", w.err, w.result)
		}
		w.accounted(w.result.Samples)
	})
}
