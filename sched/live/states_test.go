package live

import (
	"slices"
	"testing"
)

// until lets time pass until something is so.
func (w *world) until(what string, so func() bool) {
	w.t.Helper()
	for i := 0; !so(); i++ {
		if i > 4000 {
			w.t.Fatalf("%.2f: never %s: %s", w.now, what, w.trail.String())
		}
		w.step(func(string) float64 { return 1 })
	}
}

// In each state that a job x can be in, each possible event happens; then all goes well. The job is done, with all of
// its samples, or cancelled if a user has cancelled it.
func TestEachStateAndEvent(t *testing.T) {
	trains := func(w *world) {
		j := w.q.Job("x")
		w.until("trains", func() bool { return j.State == Running && j.joined() == 2 && j.Samples > 200 })
	}
	slow := func(w *world) {
		trains(w)
		w.learned(w.q.Verdict(w.q.Job("x"), 0, 2, "slow", w.now, w.now))
		w.settle()
	}
	preempted := func(w *world) { // by a shorter one
		trains(w)
		if err := w.submit(Spec{Name: "y", Samples: 900, Workers: 3, Rates: map[int]float64{1: 100}}); err != nil {
			w.t.Fatal(err)
		}
	}
	states := []struct {
		name string
		to   func(w *world)
		is   func(j *Job) bool
	}{
		{"waits for places", func(w *world) {}, func(j *Job) bool { return j.State == Waiting && j.Life == 0 && j.Want == 2 }},
		{"starts", func(w *world) { w.open() }, func(j *Job) bool { return j.State == Running && j.joined() == 0 && len(j.Members) == 2 }},
		{"trains", trains, func(j *Job) bool { return j.State == Running && j.joined() == 2 }},
		{"has lost a worker", func(w *world) { trains(w); w.gone("x", 1); w.settle() }, func(j *Job) bool { return j.State == Running && len(j.staying()) == 2 && j.joined() == 1 }},
		{"moves", slow, func(j *Job) bool { return len(j.Members) == 3 && j.Members[2].Replaces == 1 && !j.Members[2].Joined }},
		{"has moved", func(w *world) { slow(w); w.until("moved", func() bool { return w.q.Job("x").Members[0].Leaving }) }, func(j *Job) bool { return len(j.Members) == 3 && j.Members[0].Leaving }},
		{"is preempted", preempted, func(j *Job) bool { return j.State == Stopping && j.after == Waiting }},
		{"is preempted and has lost a worker", func(w *world) { preempted(w); w.gone("x", 1) }, func(j *Job) bool { return j.State == Stopping && len(j.Members) == 1 }},
		{"was preempted", func(w *world) { preempted(w); w.until("stopped", func() bool { return w.q.Job("x").State == Waiting }) }, func(j *Job) bool { return j.State == Waiting && j.Life == 1 && j.Want == 0 }},
		{"ended by itself", func(w *world) { trains(w); w.over("x", "") }, func(j *Job) bool { return j.State == Waiting && j.again > 0 }},
		{"has all samples", func(w *world) { w.until("ends", func() bool { return w.q.Job("x").finishing() }) }, func(j *Job) bool { return j.State == Running && j.finishing() }},
	}
	events := []struct {
		name string
		do   func(w *world)
	}{
		{"nothing", func(w *world) {}},
		{"the service begins again", func(w *world) { w.restart() }},
		{"it begins under another policy", func(w *world) { w.policy = "edf"; w.restart() }},
		{"it begins without a host, then with it", func(w *world) {
			all := w.hosts
			w.hosts = all[1:]
			w.restart()
			for range 40 {
				w.step(func(string) float64 { return 1 })
			}
			w.hosts = all
			w.restart()
		}},
		{"x is cancelled", nil},
		{"others are cancelled", func(w *world) {
			for _, j := range w.q.Jobs[1:] {
				if c, err := w.q.Cancellation(j.Name, w.now); err == nil {
					w.commit(c)
				}
			}
		}},
		{"its coordinator ends", func(w *world) { w.over("x", "") }},
		{"a worker ends", func(w *world) {
			if j := w.q.Job("x"); len(j.Members) > 0 {
				w.gone("x", j.Members[len(j.Members)-1].ID)
			}
		}},
		{"nothing can be started for a while", func(w *world) {
			for _, h := range w.hosts {
				w.close(h.Name, "drained")
			}
			for range 100 {
				w.step(func(string) float64 { return 1 })
			}
			w.open()
		}},
	}
	for _, s := range states {
		for _, e := range events {
			t.Run(s.name+"/"+e.name, func(t *testing.T) {
				w := newWorld(t, "srtf", 5, Host{Name: "a", Slots: 1, Closed: "drained"}, Host{Name: "b", Slots: 1, Closed: "drained"}, Host{Name: "c", Slots: 1, Closed: "drained"})
				w.learns, w.linger = true, 2
				if err := w.submit(Spec{Name: "x", Samples: 3000, Workers: 2, Rates: map[int]float64{1: 100}}); err != nil {
					t.Fatal(err)
				}
				if s.name != "waits for places" {
					w.open()
				}
				s.to(w)
				j := w.q.Job("x")
				if !s.is(j) {
					t.Fatalf("x is %s: %s", j.State, w.trail.String())
				}
				cancelled := e.do == nil
				if cancelled {
					c, err := w.q.Cancellation("x", w.now)
					if err != nil {
						t.Fatal(err)
					}
					w.commit(c)
				} else {
					e.do(w)
				}
				w.settle()
				w.open()
				w.until("idle", func() bool {
					return w.idle() && !slices.ContainsFunc(w.q.Jobs, func(j *Job) bool { return len(j.Members) > 0 })
				})
				for _, j := range w.q.Jobs {
					switch {
					case j.Name == "x" && cancelled:
						if j.State != Cancelled && s.name != "has all samples" {
							t.Errorf("x is %s, and was cancelled\n%s", j.State, w.trail.String())
						}
					case j.Name != "x" && j.State == Cancelled && e.name == "others are cancelled":
					case j.State != Done || w.done[j.Name] != j.Spec.Samples || len(j.Members) > 0 || j.Want != 0:
						t.Errorf("%s is %s with %d samples, %d workers, wants %d: %s\n%s", j.Name, j.State, w.done[j.Name], len(j.Members), j.Want, j.Why, w.trail.String())
					}
				}
			})
		}
	}
}

// open has all hosts be used.
func (w *world) open() {
	for _, h := range w.hosts {
		w.close(h.Name, "")
	}
	w.settle()
}
