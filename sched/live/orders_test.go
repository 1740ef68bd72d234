package live

import (
	"strings"
	"testing"

	"star/sched"
)

// begun is a queue with a job that has workers, one on each host, which take part.
func begun(t *testing.T, policy string, hosts ...string) (*Queue, func(Event)) {
	t.Helper()
	var all []*Host
	for _, h := range hosts {
		all = append(all, &Host{Name: h, Slots: 1})
	}
	q := New(all)
	if err := q.Schedule(policy, 1, 0); err != nil {
		t.Fatal(err)
	}
	apply := applies(t, q)
	apply(Event{Kind: KindSubmit, Job: "a", Spec: &Spec{Name: "a", Samples: 1000, Workers: len(hosts), Min: 1, Max: len(hosts), Rates: map[int]float64{1: 10}}})
	doAll(t, q, 0, apply)
	j := q.Job("a")
	if len(j.Members) != len(hosts) {
		t.Fatalf("it has %d workers", len(j.Members))
	}
	for _, m := range j.Members {
		q.Joined(j, m.Rank, 1, 1)
	}
	return q, apply
}

// restarted is what a service makes of a queue that finds other hosts, and the workers that it had.
func restarted(t *testing.T, q *Queue, h *History, policy string, now float64, hosts ...*Host) (*Queue, func(Event)) {
	t.Helper()
	text, err := Save(q, h)
	if err != nil {
		t.Fatal(err)
	}
	n, _, err := Load(text, hosts)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Schedule(policy, 1, now); err != nil {
		t.Fatal(err)
	}
	for _, j := range n.Jobs {
		for _, m := range j.Members {
			n.Joined(j, m.Rank, now, now)
		}
	}
	return n, applies(t, n)
}

// A worker on a host that the service has no more goes on until another one takes its place, where one of its hosts has
// room.
func TestHostNoMore(t *testing.T) {
	q, _ := begun(t, "fifo", "old")
	q, apply := restarted(t, q, NewHistory(), "fifo", 2, &Host{Name: "new", Slots: 1})
	doAll(t, q, 3, apply)
	j := q.Job("a")
	if len(j.Members) != 2 || j.Members[0].Leaving || j.Members[1].Host != "new" || j.Members[1].Replaces != j.Members[0].ID {
		t.Fatalf("its workers: %+v", j.Members)
	}
	q.Joined(j, j.Members[1].Rank, 4, 4)
	if e, ok := q.Next(5); !ok || e.Kind != KindLeave || e.Member != 1 || !strings.Contains(e.Why, "new has taken its place") {
		t.Errorf("%+v", e)
	}
}

// What was decided about a job, and could not be written down, is not done when the job has ended meanwhile.
func TestDecidedTooLate(t *testing.T) {
	for _, kind := range []string{KindDecide, KindDecline} {
		q := New([]*Host{{Name: "h", Slots: 2}})
		if err := q.Schedule("edf-admission", 1, 0); err != nil {
			t.Fatal(err)
		}
		apply := applies(t, q)
		due := map[string]float64{KindDecide: 1000, KindDecline: 1}[kind]
		for _, name := range []string{"a", "b"} {
			apply(Event{Kind: KindSubmit, Job: name, Spec: &Spec{Name: name, Samples: 1000, Workers: 1, Min: 1, Max: 1, Deadline: due, Rates: map[int]float64{1: 10}}})
		}
		if e, ok := q.Next(1); !ok || e.Kind != kind || e.Job != "a" { // the disk is full
			t.Fatalf("%s: %+v", kind, e)
		}
		e, err := q.Cancellation("a", 2)
		if err != nil {
			t.Fatal(err)
		}
		apply(e)
		doAll(t, q, 3, func(e Event) {
			if apply(e); e.Job == "a" {
				t.Errorf("a was cancelled: %+v", e)
			}
		})
		if j := q.Job("a"); j.State != Cancelled || j.Want != 0 || j.Ended != 2 {
			t.Errorf("%s: a is %s at %v, wants %d", kind, j.State, j.Ended, j.Want)
		}
		if j := q.Job("b"); kind == KindDecide && j.State != Running || kind == KindDecline && j.State != Declined {
			t.Errorf("%s: b is %s", kind, j.State)
		}
	}
}

// For how long a job that ended by itself is not started again, and what came before, is not time that its start takes.
func TestStartAfterAgain(t *testing.T) {
	q, apply := begun(t, "fifo", "h")
	j := q.Job("a")
	apply(Event{At: 10, Kind: KindDecide, Job: "a", Workers: 2}) // a place that never becomes free
	apply(Event{At: 500, Kind: KindEnded, Job: "a"})
	apply(Event{At: 500, Kind: KindGone, Job: "a", Member: 1})
	doAll(t, q, 500.5, apply)
	if j.State != Waiting {
		t.Fatalf("it is %s half a second after its end", j.State)
	}
	doAll(t, q, 501.25, apply)
	if e := q.Started(j, 502, 502, 502); e.Kind != KindTook || e.What != tookResume || e.Took != 1 {
		t.Errorf("%+v, want a resume of 1 s, from 501 on, when it might begin", e)
	}
}

// A service that is started again with fewer places than a job asks for, that has run, stops the job, and keeps it
// until there are as many; others go on meanwhile.
func TestFewerPlaces(t *testing.T) {
	for _, policy := range []string{"fifo", "srtf", "tiresias"} {
		q, apply := begun(t, policy, "x", "y")
		apply(Event{At: 1, Kind: KindSubmit, Job: "b", Spec: &Spec{Name: "b", Samples: 1000, Workers: 1, Min: 1, Max: 1, Rates: map[int]float64{1: 10}}})
		x := func() *Host { return &Host{Name: "x", Slots: 1} }
		q, apply = restarted(t, q, NewHistory(), policy, 61, x())
		doAll(t, q, 62, apply)
		a := q.Job("a")
		if a.State != Stopping || a.Want != 0 {
			t.Fatalf("%s: a, of two workers on one place, is %s and wants %d", policy, a.State, a.Want)
		}
		q, apply = restarted(t, q, NewHistory(), policy, 63, x()) // while it saves itself
		doAll(t, q, 64, apply)
		a = q.Job("a")
		if a.State != Stopping {
			t.Fatalf("%s: a is %s after another start", policy, a.State)
		}
		apply(Event{At: 65, Kind: KindEnded, Job: "a", Samples: 10})
		for _, id := range []int{1, 2} {
			apply(Event{At: 65, Kind: KindGone, Job: "a", Member: id})
		}
		for _, now := range []float64{66, 120, 180} { // tiresias decides at full minutes
			doAll(t, q, now, apply)
		}
		if b := q.Job("b"); b.State != Running {
			t.Errorf("%s: b is %s: %s", policy, b.State, q.Why(b, 180))
		}
		if a.State != Waiting {
			t.Errorf("%s: a is %s: %s", policy, a.State, a.Why)
		}
		q, apply = restarted(t, q, NewHistory(), policy, 181, x(), &Host{Name: "y", Slots: 1}, &Host{Name: "z", Slots: 1})
		for _, now := range []float64{182, 240, 300} {
			doAll(t, q, now, apply)
		}
		if a = q.Job("a"); a.State != Running || a.Life != 2 {
			t.Errorf("%s: with as many places a is %s: %s", policy, a.State, q.Why(a, 300))
		}
	}
}

// A worker that was decided on long before there was a place for it has as long to take part as any other, and reports
// about the previous worker of its rank do not count for it.
func TestAddedLate(t *testing.T) {
	q, apply := begun(t, "fifo", "h")
	j := q.Job("a")
	j.Spec.Workers = 2
	apply(Event{At: 10, Kind: KindDecide, Job: "a", Workers: 2})
	q.Hosts[0].Slots = 2
	apply(Event{At: 1000, Kind: KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1})
	m := j.Members[1]
	for now, lost := range map[float64]bool{1001: false, 1000 + longestStart: false, 1001 + longestStart: true} {
		if why := q.Lost(j, m, now); (why != "") != lost {
			t.Errorf("at %v it is lost: %q", now, why)
		}
	}
	if q.Verdict(j, 1, 2, "slow", 500, 1001); m.slow != "" {
		t.Errorf("it is slow since before it was there: %s", m.slow)
	}
	q.Started(j, 2, 2, 2)
	if e := q.Joined(j, 1, 1002, 1002); e.Kind != KindTook || e.Took != 992 {
		t.Errorf("%+v, want what it took from the decision on", e)
	}
}

// A worker has ended, and its log is read when another one has its rank, late or after a restart: that other worker has
// not left, nor does it take part.
func TestReadLate(t *testing.T) {
	q, apply := begun(t, "fifo", "h")
	j := q.Job("a")
	apply(Event{At: 20, Kind: KindGone, Job: "a", Member: 1})
	apply(Event{At: 22, Kind: KindAdd, Job: "a", Member: 2, Host: "h"})
	q.Joined(j, 0, 19.5, 23)
	q.Left(j, 0, 19.75, 23)
	m := j.Members[0]
	if why := q.Lost(j, m, 24); why != "" || m.Joined {
		t.Errorf("it is lost: %q, or it takes part: %v", why, m.Joined)
	}
	q.Joined(j, 0, 40, 40)
	q.Left(j, 0, 50, 50)
	if why := q.Lost(j, m, 51); why == "" {
		t.Error("when it has left itself it is not lost")
	}
}

// A service that is started again under another policy knows nothing of how fast jobs are that came without rates. One
// that runs goes on, one that waits is not declined, until they are measured.
func TestNoRates(t *testing.T) {
	for _, policy := range sched.LivePolicies() {
		q := New([]*Host{{Name: "h", Slots: 2}})
		if err := q.Schedule("fifo", 1, 0); err != nil {
			t.Fatal(err)
		}
		apply := applies(t, q)
		for _, name := range []string{"a", "b"} {
			apply(Event{Kind: KindSubmit, Job: name, Spec: &Spec{Name: name, Samples: 1000, Workers: 2, Min: 1, Max: 2, Deadline: 300}})
		}
		doAll(t, q, 0, apply)
		q, apply = restarted(t, q, NewHistory(), policy, 61, &Host{Name: "h", Slots: 2})
		doAll(t, q, 62, apply)
		a, b := q.Job("a"), q.Job("b")
		if a.State != Running || a.Want < 1 || b.State == Declined {
			t.Errorf("%s: a is %s and wants %d, b is %s: %s", policy, a.State, a.Want, b.State, b.Why)
		}
		apply(Event{At: 70, Kind: KindRates, Job: "a", Rates: map[int]float64{a.Want: 5 * float64(a.Want)}})
		doAll(t, q, 120, apply)
		if a.Want+b.Want < 1 { // srtf and srsf have b, which is not measured, go first
			t.Errorf("%s: a is %s when it was measured, b is %s: %s", policy, a.State, b.State, a.Why)
		}
	}
}
