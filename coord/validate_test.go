package coord

import (
	"errors"
	"slices"
	"testing"
	"time"

	"star/coord/session"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// fakeValidator answers a limited number of releases.
type fakeValidator struct {
	m     *session.Member
	steps []int64
	bases []int64
	gone  chan struct{}
	err   error
}

func validatorHello() wire.Hello {
	h := hello(-1)
	h.Role = wire.RoleValidator
	return h
}

// validator joins a validator that is lost after a number of gradients; 0: before the first, negative: never.
func (w *world) validator(after int, pace time.Duration) *fakeValidator {
	w.t.Helper()
	v := &fakeValidator{gone: make(chan struct{})}
	m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: validatorHello(), DeadAfter: time.Minute})
	if err != nil {
		w.t.Fatalf("validator: %v", err)
	}
	v.m = m
	w.wg.Go(func() {
		defer close(v.gone)
		defer m.Close()
		m.Beat()
		step := m.Welcome.Step
		session.Say(m, wire.Joined{Worker: 2}, nil)
		for n := 0; ; n++ {
			r, err := m.Next()
			if err != nil || r.Action == wire.Stop || n == after {
				v.err = err
				return
			}
			time.Sleep(pace)
			v.steps, v.bases = append(v.steps, step), append(v.bases, r.Version)
			w.stored(2, step)
			step++
		}
	})
	return v
}

// validated is a job of two workers and two shards under ASGD in which every third update is rejected.
func validated(t *testing.T, seen *[]Evidence, f func(*world, *fakeServer)) {
	n := 0
	cfg := Config{MaxWorkers: 2, Plan: modes.ASGD(2), Steps: 20, Validation: &Validation{Every: 4, Judge: func(e Evidence) Verdict {
		*seen = append(*seen, e)
		if n++; n%3 == 0 {
			return Verdict{Score: -1}
		}
		return Verdict{Score: 1, Factor: 0.5}
	}}}
	play(t, cfg, func(w *world) {
		s := w.server(0, 2, false)
		s.mu.Lock()
		s.ref = true
		s.mu.Unlock()
		f(w, s)
	})
}

func (s *fakeServer) factors() (fs []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.applies {
		fs = append(fs, a.Factor)
	}
	return fs
}

// Every update is judged once, from the reports of all shards; the first judged one follows the first validation
// gradient.
func TestValidation(t *testing.T) {
	var seen []Evidence
	validated(t, &seen, func(w *world, s *fakeServer) {
		w.worker(0)
		w.worker(1)
		v := w.validator(-1, 1500*time.Millisecond)
		w.finished(time.Hour)
		<-v.gone
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(2 * 20 * 4)
		// These workers need no parameters to evaluate, so the job may be over before the last norm is back.
		if len(seen) < 39 || len(seen) > 40 || w.result.Updates != 40 {
			t.Fatalf("%d of %d updates were judged, want 40 of 40", len(seen), w.result.Updates)
		}
		for i, e := range seen { // weights are 1/2: of the mean gradient everything is twice as much
			if e.Dot != 6 || e.Norm != 10 || e.Ref != 5 || e.Samples != int64(4*i) {
				t.Fatalf("update %d was judged by %+v", i, e)
			}
		}
		for i, f := range s.factors() {
			if want := []float64{0.5, 0.5, 0}[i%3]; f != want {
				t.Errorf("update %d was applied with %v, want %v", i, f, want)
			}
		}
		if v.bases[0] != 0 || v.bases[1] < 4 || len(v.bases) < 6 {
			t.Errorf("validation gradients of versions %v, want a new one after every 4 gradients", v.bases)
		}
		if fs := s.seen(); len(fs[0].Dropped) != 1 || fs[0].Dropped[0].Worker != 2 || len(fs[0].Gradients) != 0 || len(fs[0].Quiet) != 1 {
			t.Errorf("the first fire is %+v, want the validator's gradient dropped, for no worker", fs[0])
		}
		// The last gradient may come when the job is over.
		lines, judged := w.lines("validation"), w.lines("judgement")
		if n := len(v.steps) - len(lines); n < 0 || n > 1 || len(judged) != len(seen) {
			t.Errorf("%d validations and %d judgements in the run log, want %d and %d", len(lines), len(judged), len(v.steps), len(seen))
		}
		for i, l := range lines {
			if int64(l["version"].(float64)) != v.bases[i] {
				t.Errorf("validation %d is %v, want version %d", i, l, v.bases[i])
			}
		}
	})
}

// Without a validator the job continues without judgement; a new one is asked at once, and judges from its first
// gradient on.
func TestValidatorIsLost(t *testing.T) {
	var seen []Evidence
	validated(t, &seen, func(w *world, s *fakeServer) {
		w.worker(0)
		w.worker(1)
		first := w.validator(2, 100*time.Millisecond) // after 2 gradients, at version 8
		<-first.gone
		time.Sleep(4 * time.Second)
		before := len(w.lines("judgement"))
		if _, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: hello(-1), Enrol: &enrolment}); err == nil {
			t.Error("a third worker is let in as the validator")
		}
		next := w.validator(-1, 100*time.Millisecond)
		w.finished(time.Hour)
		<-next.gone
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(2 * 20 * 4)
		fs := s.factors()
		unjudged := 0
		for _, f := range fs {
			if f == 1 {
				unjudged++
			}
		}
		if len(fs) < 39 || unjudged < 6 || unjudged > 12 || len(seen)+unjudged != len(fs) || len(seen) <= before {
			t.Errorf("factors %v: %d judged, %d before, %d not", fs, len(seen), before, unjudged)
		}
		if from := slices.Index(fs, 1); slices.Contains(fs[from:from+unjudged], 0.5) || slices.Contains(fs[from+unjudged:], 1) {
			t.Errorf("factors %v: want one stretch without judgement", fs)
		}
		if !slices.Equal(first.steps, []int64{0, 1}) || len(next.steps) < 2 || next.steps[0] != 3 {
			t.Errorf("steps %v, then %v: want numbers that no earlier gradient had", first.steps, next.steps)
		}
		lost := 0
		for _, l := range w.lines("validation") {
			if l["lost"] != nil {
				lost++
			}
		}
		if lost != 1 {
			t.Errorf("the run log tells of %d losses, want 1", lost)
		}
	})
}

// Workers wait for the first validation gradient, but not for one that never comes.
func TestValidatorIsLostAtFirst(t *testing.T) {
	var seen []Evidence
	validated(t, &seen, func(w *world, s *fakeServer) {
		w.worker(0)
		w.worker(1)
		time.Sleep(time.Second)
		if len(s.seen()) > 0 || w.c == nil {
			t.Error("workers began without a validator")
		}
		w.validator(0, 0)
		w.finished(time.Hour)
		if w.err != nil {
			t.Fatal(w.err)
		}
		w.accounted(2 * 20 * 4)
		if len(seen) != 0 || slices.ContainsFunc(s.factors(), func(f float64) bool { return f != 1 }) {
			t.Errorf("%d updates judged, factors %v", len(seen), s.factors())
		}
	})
}

// A validator that is lost before the job begins can come back; a job without validation rejects one with the reason.
func TestValidatorsRefused(t *testing.T) {
	var seen []Evidence
	validated(t, &seen, func(w *world, s *fakeServer) {
		join := func(change func(*wire.Hello)) error {
			h := validatorHello()
			change(&h)
			m, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: h, DeadAfter: time.Minute})
			if err == nil {
				m.Close()
			}
			return err
		}
		w.worker(0)
		time.Sleep(time.Second)
		if err := join(func(*wire.Hello) {}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		var no *transport.RejectError
		if err := join(func(h *wire.Hello) { h.ModelHash = "beef" }); !errors.As(err, &no) || no.Exit != exitcode.Disagree {
			t.Errorf("another model: %v", err)
		}
		time.Sleep(time.Second)
		v := w.validator(-1, time.Second)
		if err := join(func(*wire.Hello) {}); !errors.As(err, &no) || no.Exit != exitcode.Usage {
			t.Errorf("a second one: %v", err)
		}
		w.worker(1)
		w.finished(time.Hour)
		<-v.gone
		if w.err != nil || len(seen) < 39 || v.err != nil {
			t.Errorf("%v, %v; %d judged", w.err, v.err, len(seen))
		}
	})
	play(t, Config{MaxWorkers: 1}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		_, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: validatorHello()})
		var no *transport.RejectError
		if !errors.As(err, &no) || no.Exit != exitcode.Disagree {
			t.Errorf("a validator where nothing is judged: %v", err)
		}
		w.finished(time.Hour)
	})
}
