package coord

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// dying is a worker that dies when it reaches a step in a phase.
func dying(phase string, step int64) func(*fakeWorker) {
	return func(f *fakeWorker) {
		f.dies = func(at string, _ wire.Release) bool { return at == phase && f.step == step }
	}
}

// A worker that died comes back under its rank while the job runs: wherever it died, every sample is applied once, and
// the new one does its part.
func TestReturn(t *testing.T) {
	for _, mode := range []string{"ssgd", "asgd", "x=2", "groups=0,1/2"} {
		for _, phase := range []string{"released", "computed", "pushed", "arrived"} {
			t.Run(mode+" "+phase, func(t *testing.T) {
				plan, err := modes.Parse(mode, 3)
				if err != nil {
					t.Fatal(err)
				}
				play(t, Config{MaxWorkers: 3, Plan: plan, Steps: 40, EvalEvery: 1}, func(w *world) {
					w.server(0, 2, false)
					w.worker(0)
					w.worker(2)
					first := w.worker(1, dying(phase, 5))
					<-first.gone
					time.Sleep(3 * time.Second)
					if s := w.status().Workers[1].State; s != "gone" {
						t.Errorf("the state of worker 1 is %q", s)
					}
					second := w.worker(-1, func(f *fakeWorker) { f.rank = 1 })
					w.finished(time.Hour)
					if w.err != nil {
						t.Fatalf("%v\n%s", w.err, w.logs)
					}
					w.accounted(480)
					joins := w.lines("join")
					if len(joins) != 4 || joins[3]["worker"] != 1.0 || joins[3]["t"].(float64) < 8 {
						t.Errorf("joins in the run log: %v", joins)
					}
					if second.err != nil || len(second.used) < 10 {
						t.Errorf("the one that came back made %d steps, and ended with %v", len(second.used), second.err)
					}
				})
			})
		}
	}
}

// Which workers may join a job that has begun, and which may not.
func TestReturnRefused(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 30}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		first := w.worker(1, dying("released", 3))
		time.Sleep(time.Second)
		if _, err := w.join(hello(0), enrolment); err == nil || !strings.Contains(err.Error(), "rank 0 is taken") {
			t.Errorf("a second worker 0: %v", err)
		}
		<-first.gone
		synctest.Wait() // until the coordinator knows
		h := hello(-1)
		h.ModelHash = "d00d"
		if _, err := w.join(h, enrolment); err == nil || !strings.Contains(err.Error(), "different models") {
			t.Errorf("another model: %v", err)
		}
		// A worker that is welcomed and leaves again changes nothing; nor does one that sends an unexpected message.
		m, err := w.join(hello(1), enrolment)
		if err != nil {
			t.Fatal(err)
		}
		if m.Welcome.Step != 4 || m.Welcome.Version < 3 || m.Welcome.Seed {
			t.Errorf("welcomed with %+v", m.Welcome)
		}
		if s := w.status().Workers[1].State; s != "joining" {
			t.Errorf("the state of worker 1 is %q", s)
		}
		if _, err := w.join(hello(1), enrolment); err == nil || !strings.Contains(err.Error(), "rank 1 is taken") {
			t.Errorf("two that come for one rank: %v", err)
		}
		m.Close()
		time.Sleep(time.Millisecond)
		if m, err = w.join(hello(1), enrolment); err != nil {
			t.Fatal(err)
		}
		session.Say(m, wire.Leave{Worker: 1, Exit: 143, Reason: "SIGTERM"}, nil)
		m.Close()
		time.Sleep(time.Millisecond)
		second := w.worker(1)
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(240)
		if second.err != nil || len(second.used) == 0 {
			t.Errorf("%d steps, %v", len(second.used), second.err)
		}
	})
}

// A worker that connects and sends nothing is not waited for, and does not make the job fail.
func TestReturnInSilence(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 200, StopOnFailure: false, DeadAfter: 10 * time.Second}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		first := w.worker(1, dying("released", 3))
		<-first.gone
		synctest.Wait() // until the coordinator knows
		m, err := w.join(hello(1), enrolment)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		time.Sleep(time.Minute)
		if s := w.status().Workers[1].State; s != "gone" {
			t.Errorf("after a minute of silence the state of worker 1 is %q", s)
		}
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(1600)
	})
}

// A process that sends Hello again, because it could not use its Welcome, does not collide with its own earlier
// attempt, before and during the training.
func TestComesAgain(t *testing.T) {
	for name, begun := range map[string]bool{"before": false, "in the training": true} {
		t.Run(name, func(t *testing.T) {
			play(t, Config{MaxWorkers: 2, Steps: 30}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0)
				if begun {
					first := w.worker(1, dying("released", 3))
					<-first.gone
				}
				synctest.Wait()
				again := hello(1)
				again.Process = "one"
				m, err := w.join(again, enrolment)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				other := hello(1)
				other.Process = "another"
				if _, err := w.join(other, enrolment); err == nil || !strings.Contains(err.Error(), "rank 1 is taken") {
					t.Errorf("another process: %v", err)
				}
				second := w.worker(1, func(f *fakeWorker) { f.process = "one" })
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				w.accounted(240)
				if second.err != nil || len(second.used) == 0 {
					t.Errorf("%d steps, %v", len(second.used), second.err)
				}
			})
		})
	}
}

// With Attended the wait for members has no limit.
func TestAttended(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 3, JoinTimeout: 30 * time.Second, Attended: true}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		time.Sleep(10 * time.Minute)
		if s := w.waiting(); s != "workers [1]" {
			t.Errorf("waits for %q", s)
		}
		w.worker(1)
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if n := strings.Count(w.logs.String(), "still waiting"); n != 5 { // after 0.5, 1, 2, 4 and 8 minutes
			t.Errorf("said %d times that it waits\n%s", n, w.logs)
		}
	})
}
