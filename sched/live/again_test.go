package live

import (
	"strings"
	"testing"
)

// A name is free again when its jobs have failed, or were cancelled or declined: the next one is another job, and what was written of the first stays its own.
func TestAgain(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 1}})
	if err := q.Schedule("fifo", 1, 0); err != nil {
		t.Fatal(err)
	}
	var log []Event
	now := 0.
	apply := func(e Event) {
		t.Helper()
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
		log = append(log, e)
	}
	submit := func(name string) (string, error) {
		now++
		e, err := q.Submission(Spec{Name: q.Again(name), Samples: 10}, false, now)
		if err == nil {
			apply(e)
		}
		return e.Job, err
	}
	for i, c := range []struct {
		submit, as, then string
		end              State
	}{
		{submit: "a", as: "a"},
		{submit: "a", then: "there is such a job already, waiting"},
		{as: "a", end: Failed},
		{submit: "a", as: "a.2"},
		{submit: "a", then: "name a.2: there is such a job already, waiting"},
		{as: "a.2", end: Cancelled},
		{submit: "a.2", as: "a.3"},
		{as: "a.3", end: Declined},
		{submit: "a", as: "a.4"},
		{as: "a.4", end: Done},
		{submit: "a", then: "name a.4: there is such a job already, done"},
		{submit: "a-b", as: "a-b"},
		{submit: "a.b", then: "want lower-case letters"},
	} {
		if c.end != "" {
			now++
			apply(Event{At: now, Kind: KindStop, Job: c.as, State: c.end, Why: "so"})
			continue
		}
		got, err := submit(c.submit)
		if c.then == "" && (err != nil || got != c.as) || c.then != "" && (err == nil || !strings.Contains(err.Error(), c.then)) {
			t.Errorf("%d: %s is taken in as %q, %v, want %q, %q", i, c.submit, got, err, c.as, c.then)
		}
	}

	if later := q.Later("a"); later != nil {
		t.Errorf("all have ended, and %s goes on", later.Name)
	}
	apply(Event{At: now, Kind: KindStop, Job: "a-b", State: Failed})
	if _, err := submit("a-b"); err != nil || q.Later("a-b") != q.Job("a-b.2") || q.Later("a-b.2") != nil {
		t.Errorf("%v, a-b goes on as %v", err, q.Later("a-b"))
	}

	again := New([]*Host{{Name: "h", Slots: 1}})
	for _, e := range log {
		if err := again.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	var states []string
	for _, j := range again.Jobs {
		states = append(states, j.Name+" "+string(j.State))
	}
	if got := strings.Join(states, ", "); got != "a failed, a.2 cancelled, a.3 declined, a.4 done, a-b failed, a-b.2 waiting" {
		t.Error(got)
	}
}
