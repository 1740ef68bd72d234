package live

import (
	"slices"
	"strings"
	"testing"
)

// A name is free again when its jobs have failed, or were cancelled or declined: the next one is another job, and what
// was written of the first stays its own.
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

// A job leaves the queue when it has ended and all of its workers have, the oldest first; one that did keeps its name
// where it has a folder.
func TestArchive(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 4}})
	for i, e := range []Event{
		{Kind: KindSubmit, Job: "done", Spec: &Spec{Name: "done"}}, {Kind: KindSubmit, Job: "runs", Spec: &Spec{Name: "runs"}},
		{Kind: KindSubmit, Job: "busy", Spec: &Spec{Name: "busy"}}, {Kind: KindSubmit, Job: "late", Spec: &Spec{Name: "late"}},
		{Kind: KindBegin, Job: "done", Life: 1}, {Kind: KindBegin, Job: "busy", Life: 1}, {Kind: KindAdd, Job: "busy", Member: 1, Host: "h"},
		{Kind: KindEnded, Job: "done", State: Done}, {Kind: KindEnded, Job: "busy", State: Done}, {Kind: KindStop, Job: "late", State: Cancelled},
	} {
		if e.At = float64(i); q.Apply(e) != nil {
			t.Fatal(e)
		}
	}
	if e, ok := q.Archival(6, 9, 20); ok {
		t.Errorf("too early: %v", e.Jobs)
	}
	if e, _ := q.Archival(20, 1, 20); !slices.Equal(e.Jobs, []string{"done"}) {
		t.Errorf("one at a time: %v", e.Jobs)
	}
	e, ok := q.Archival(20, 9, 20)
	if !ok || !slices.Equal(e.Jobs, []string{"done", "late"}) {
		t.Fatalf("%v leave", e.Jobs)
	}
	for _, wrong := range []string{"busy", "runs", "nobody"} {
		if err := q.Apply(Event{At: 20, Kind: KindArchive, Jobs: []string{wrong}}); err == nil {
			t.Errorf("%s leaves the queue", wrong)
		}
	}
	if err := q.Apply(e); err != nil || len(q.Jobs) != 2 || q.Job("done") != nil || q.Job("busy") == nil {
		t.Fatalf("%v, %d jobs are left", err, len(q.Jobs))
	}
	q.Past = func(name string) bool { return name == "done" || name == "done.2" }
	for name, want := range map[string]string{"done": "done.3", "late": "late", "runs": "runs", "new": "new"} {
		if got := q.Again(name); got != want {
			t.Errorf("%s is taken in as %s, want %s", name, got, want)
		}
	}
}
