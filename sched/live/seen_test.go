package live

import (
	"strings"
	"testing"
)

// A worker that does not take part is not waited for without limit if the job has gone on without it or if it never
// came. A worker that came back, or that is ordered to leave, is.
func TestLost(t *testing.T) {
	w := newWorld(t, "fifo", 1, Host{Name: "a", Slots: 2})
	if err := w.submit(Spec{Name: "j", Samples: 100_000, Workers: 2, Rates: map[int]float64{1: 100}}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	j := w.q.Job("j")
	first, second := j.Members[0], j.Members[1]
	w.q.Joined(j, first.Rank, w.now, w.now)
	check := func(when string, m *Member, now float64, want string) {
		t.Helper()
		if got := w.q.Lost(j, m, now); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	check("it takes part", first, w.now+2*longestStart, "")
	check("it is on its way", second, w.now+longestStart, "")
	check("it never came", second, w.now+longestStart+1, "not taken part for 10 min")
	w.q.Left(j, first.Rank, w.now, w.now)
	check("the job goes on without it", first, w.now, "continued without it")
	w.q.Joined(j, first.Rank, w.now, w.now)
	check("it has come back", first, w.now, "")
	w.q.Left(j, first.Rank, w.now, w.now)
	w.commit(Event{At: w.now, Kind: KindLeave, Job: "j", Member: first.ID})
	check("it is told to leave", first, w.now, "")
}

// A job is as fast as it is seen to be, and so is the next one that does the same, under policies that must know it.
func TestRates(t *testing.T) {
	w := newWorld(t, "edf", 1, Host{Name: "a", Slots: 1})
	if _, err := w.q.Submission(Spec{Name: "x", Samples: 10}, true, 0); err == nil || !strings.Contains(err.Error(), "give samples/s") {
		t.Errorf("nothing is known of how fast it is: %v", err)
	}
	s := Spec{Name: "j", Samples: 3000, Rates: map[int]float64{1: 50}, Settings: map[string]string{"model": "m"}}
	if err := w.submit(s); err != nil {
		t.Fatal(err)
	}
	for range 4 * 12 {
		w.settle()
		w.step(func(string) float64 { return 1 })
	}
	if got := w.q.Job("j").Measured[1]; got != 100 {
		t.Errorf("%v samples/s are measured on one worker, which computes 100", got)
	}
	s.Name, s.Rates = "k", nil
	if e, err := w.q.Submission(s, true, w.now); err != nil || e.Spec.Rates[1] != 100 {
		t.Errorf("the same again: %+v, %v", e.Spec, err)
	}
	s.Settings = map[string]string{"model": "n"}
	if _, err := w.q.Submission(s, true, w.now); err == nil {
		t.Error("another model is taken for as fast")
	}
}

// A log that this program did not write is refused, with the event that cannot have been.
func TestImpossibleEvents(t *testing.T) {
	for want, e := range map[string]Event{
		"submitted twice":   {Kind: KindSubmit, Job: "j", Spec: &Spec{Name: "j"}},
		"or has no spec":    {Kind: KindSubmit, Job: "k"},
		"was not submitted": {Kind: KindBegin, Job: "k"},
		"no worker 7":       {Kind: KindGone, Job: "j", Member: 7},
		"unknown kind":      {Kind: "dream", Job: "j"},
	} {
		q := New([]*Host{{Name: "h", Slots: 1}})
		if err := q.Apply(Event{Kind: KindSubmit, Job: "j", Spec: &Spec{Name: "j", Samples: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := q.Apply(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// What two workers have made is not counted as made by the one that is left, though the log is read after the other one
// has gone.
func TestSeenLate(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 2}})
	if err := q.Schedule("edf", 1, 0); err != nil {
		t.Fatal(err)
	}
	apply := func(e Event) {
		t.Helper()
		e.Job = "a"
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	apply(Event{Kind: KindSubmit, Spec: &Spec{Name: "a", Samples: 10_000, Workers: 2, Min: 1, Max: 2, Rates: map[int]float64{1: 100, 2: 200}}})
	apply(Event{Kind: KindBegin, Life: 1})
	for i := range 2 {
		apply(Event{Kind: KindAdd, Member: i + 1, Host: "h", Rank: i})
		q.Joined(q.Job("a"), i, 0, 0)
	}
	j := q.Job("a")
	for at := 0.; at < 60; at++ {
		now := at + 1.3
		if at == 19 {
			apply(Event{At: 20, Kind: KindLeave, Member: 2})
			apply(Event{At: 20.2, Kind: KindGone, Member: 2})
		}
		q.Started(j, at, at, now)
		if e := q.Seen(j, int64(100*at+100*min(at, 20)), at, now); e.Kind != "" {
			t.Errorf("at %v: %v, as it says it is", now, e.Rates)
		}
	}
	if j.stable.workers != 1 || j.stable.at < 21 {
		t.Errorf("%+v", j.stable)
	}
}
