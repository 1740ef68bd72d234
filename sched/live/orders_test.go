package live

import (
	"math"
	"strings"
	"testing"
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

// A worker on a host that the service has no more goes on until another one takes its place, where one of its hosts has room.
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
