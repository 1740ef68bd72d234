package service

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"star/job"
	"star/sched/live"
)

// agreed is what services have agreed on.
type agreed struct {
	note  []byte
	added [][]byte
	lost  bool
}

func (a *agreed) SetNote(note []byte) error {
	if a.lost {
		return errors.New("lost")
	}
	a.note, a.added = note, nil
	return nil
}

func (a *agreed) Add(more []byte) error {
	if a.lost {
		return errors.New("lost")
	}
	a.added = append(a.added, more)
	return nil
}

func (a *agreed) Held() bool  { return !a.lost }
func (a *agreed) Hold() error { return errors.New("lost") }

// The service that decides next rebuilds the queue from the agreed log, which does not grow with the events of its
// jobs.
func TestAgreedBook(t *testing.T) {
	began := time.Unix(1e9, 0).UTC()
	hosts := []*live.Host{{Name: "h", Slots: 2}}
	a := new(agreed)
	b := &agreedBook{lead: a, hosts: hosts, log: slog.New(slog.DiscardHandler)}
	if err := b.note(head{Format: queueFormat, Time: began}); err != nil {
		t.Fatal(err)
	}
	q, h := live.New(fresh(hosts)), live.NewHistory()
	at, shortened := 0., 0
	happens := func(e live.Event) {
		t.Helper()
		at++
		e.At = at
		before := len(a.added)
		if err := b.add(e); err != nil {
			t.Fatal(err)
		}
		if len(a.added) <= before {
			shortened++
		}
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
		h.Add(e)
	}
	same := func() (saved []byte) {
		t.Helper()
		next := &agreedBook{hosts: hosts}
		nq, nh, events, err := next.read("dir", a.note, a.added)
		if err != nil || !next.head.Time.Equal(began) {
			t.Fatal(next.head.Time, err)
		}
		for _, e := range events {
			if err := nq.Apply(e); err != nil {
				t.Fatal(err)
			}
			nh.Add(e)
		}
		got, err := live.Save(nq, nh)
		if err != nil {
			t.Fatal(err)
		}
		want, err := live.Save(q, h)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("after %g events, %g of them in the queue's place, %v:\n%s\nwant\n%s", at, at-float64(len(events)), err, got, want)
		}
		return got
	}
	for i := range 20 {
		name := fmt.Sprint("job-", i)
		happens(live.Event{Kind: live.KindSubmit, Job: name, Spec: &live.Spec{Name: name, Samples: 10, Workers: 1, Min: 1, Max: 1}})
		happens(live.Event{Kind: live.KindBegin, Job: name, Life: 1, Addr: "127.0.0.1:7070"})
		for id := range 100 {
			happens(live.Event{Kind: live.KindAdd, Job: name, Member: id + 1, Host: "h"})
			happens(live.Event{Kind: live.KindGone, Job: name, Member: id + 1, Why: "it ended with exit code 1"})
		}
		saved := same()
		kept := len(a.note)
		for _, text := range a.added {
			kept += len(text)
		}
		if most := 2*len(saved) + shortenAt + 1000; kept > most {
			t.Errorf("%d bytes are kept for a queue of %d", kept, len(saved))
		}
	}
	if shortened < 2 {
		t.Errorf("the queue has taken the place of its events %d times", shortened)
	}
	a.lost = true
	if err := b.add(live.Event{Kind: live.KindStop, Job: "job-0", State: live.Cancelled}); !errors.Is(err, errLost) || b.held() {
		t.Errorf("added by who does not decide any more: %v", err)
	}
}

// A caller that asks while none of several services decides gets an error that says what to do.
func TestUndecided(t *testing.T) {
	for _, c := range []struct {
		missing   []string
		full      error
		why, want string
	}{
		{[]string{"service 1 (b:1)", "service 2 (c:1)"}, nil, "", "1 of 3 are there, missing service 1 (b:1), service 2 (c:1): start services until 2 are there; running jobs continue"},
		{[]string{"service 2 (c:1)"}, nil, "", "2 of 3 are there, missing service 2 (c:1): they elect one, for which all must be there the first time: ask again in some seconds; running jobs continue"},
		{nil, errors.New("no room"), "service 0 (a:1): timeout", "3 of 3 are there; this one cannot write: no room; service 0 (a:1): timeout: they elect one, for which all must be there the first time: ask again in some seconds; running jobs continue"},
	} {
		if err := undecided(c.missing, 3, c.full, c.why); err.Error() != "no service decides: "+c.want || job.ExitCode(err) != 69 {
			t.Errorf("%v: %v", c.missing, err)
		}
	}
}
