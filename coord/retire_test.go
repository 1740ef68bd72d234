package coord

import (
	"errors"
	"strings"
	"testing"
	"time"

	"star/exitcode"
	"star/modes"
	"star/transport"
)

// retiring is a worker that says at a step, with an exit code, that it computes nothing more.
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

// A job whose workers have all left is saved: with success where the last one left in good order, which then evaluates.
func TestEveryWorkerRetires(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd"} {
		for _, c := range []struct {
			name        string
			first, last int // exit codes
			want        int
			hangUp      bool // the last one is not there for the end
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
				play(t, Config{Workers: 2, Least: c.least, Plan: plan, Steps: 100, Save: func(k Checkpoint) (string, error) {
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
					if c.least > 0 { // which waits for others to come
						at = 4
					}
					first := w.worker(0, retiring(4, c.first))
					last := w.worker(1, retiring(at, c.last), func(f *fakeWorker) {
						f.dies = func(string, transport.Release) bool { return c.hangUp && f.step == 9 }
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

// A worker that was misused ends the job for all, with its exit code, and a checkpoint.
func TestMisuseEndsTheJob(t *testing.T) {
	play(t, Config{Workers: 3, Steps: 100, Grace: time.Minute, Save: func(k Checkpoint) (string, error) { return k.ID, nil }}, func(w *world) {
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

// A worker may have the job end in good order for all.
func TestHalt(t *testing.T) {
	play(t, Config{Workers: 3, Steps: 100}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1, func(f *fakeWorker) {
			f.dies = func(phase string, _ transport.Release) bool {
				if phase == "arrived" && f.step == 5 {
					Say(f.m, transport.Halt{Worker: 1, Reason: "good enough"}, nil)
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
