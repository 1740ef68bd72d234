package resource

import (
	"testing"
	"time"
)

// A life of two jobs on a host of 4 cores.
func TestLedgerLife(t *testing.T) {
	l := NewLedger(LedgerConfig{})
	if err := l.SetHost(0, "h", Usage{CPU: 4, NetIn: 1e9, NetOut: 1e9}); err != nil {
		t.Fatal(err)
	}
	costs := Costs{Freed: Usage{CPU: 0.5, NetIn: 1e7, NetOut: 1e7}, Sensitivity: Sensitivity{CPU: 4, Net: 2}}
	for _, name := range []string{"a", "b"} {
		if _, err := l.Register(0, Job{Name: name, Servers: []string{"h"}, Workers: []string{"h", "h"}, Costs: costs}); err != nil {
			t.Fatal(err)
		}
		if err := l.Report(0, Report{Job: name, Times: []time.Duration{time.Second, 3 * time.Second}, Use: map[string]Usage{"h": {CPU: 1.8}}}); err != nil {
			t.Fatal(err)
		}
	}
	q := Request{ID: 1, Job: "a", Mode: "asgd", Loss: 2 * time.Second, Needs: []Need{{"h", Usage{CPU: 1}}}}
	a, os, err := l.Request(time.Second, q)
	if err != nil || !a.Granted || len(os) != 1 || os[0].Job != "b" || !os[0].Early || os[0].Delay != 0 {
		t.Fatalf("%+v, %+v, %v", a, os, err)
	}
	if again, os, err := l.Request(2*time.Second, q); err != nil || again != a || os != nil {
		t.Errorf("again: %+v, %+v, %v", again, os, err)
	}
	if err := l.Report(10*time.Second, Report{Job: "b"}); err != nil {
		t.Fatal(err)
	}
	dead, os := l.Expire(17 * time.Second) // a was heard of last at 2 s
	if len(dead) != 1 || dead[0] != "a" || len(os) != 1 || os[0].Job != "b" || os[0].Early || os[0].Seq != 2 {
		t.Errorf("%v, %+v", dead, os)
	}
}

// A job that changes its mode has what it was granted before at its disposal, and no more; it keeps that if the answer
// is no.
func TestLedgerAnotherMode(t *testing.T) {
	l := NewLedger(LedgerConfig{})
	if err := l.SetHost(0, "h", Usage{CPU: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Register(0, Job{Name: "a", Servers: []string{"h"}, Costs: Costs{Sensitivity: Sensitivity{1, 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Report(0, Report{Job: "a", Use: map[string]Usage{"h": {CPU: 1}}}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		extra float64
		ok    bool
		use   float64 // afterwards
	}{{2, true, 3}, {3, true, 4}, {3.5, false, 4}, {1, true, 2}} {
		a, _, err := l.Request(time.Second, Request{ID: uint64(i + 1), Job: "a", Needs: []Need{{"h", Usage{CPU: c.extra}}}})
		if err != nil || a.Granted != c.ok || l.Hosts()[0].Use.CPU != c.use {
			t.Errorf("%v: %+v, %v, %+v", c.extra, a, err, l.Hosts())
		}
	}
}

// A host that stays over its capacity loses its youngest grant, after a while; the job says when it is back.
func TestLedgerWithdraws(t *testing.T) {
	l := NewLedger(LedgerConfig{Lease: time.Hour})
	if err := l.SetHost(0, "h", Usage{CPU: 4}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if _, err := l.Register(0, Job{Name: name, Servers: []string{"h"}, Costs: Costs{Sensitivity: Sensitivity{1, 1}}}); err != nil {
			t.Fatal(err)
		}
		if a, _, err := l.Request(0, Request{ID: 1, Job: name, Needs: []Need{{"h", Usage{CPU: 1}}}}); err != nil || !a.Granted {
			t.Fatal(a, err)
		}
	}
	if err := l.Measured(0, "h", Usage{CPU: 3}); err != nil { // by strangers
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   time.Duration
		back string
	}{{0, ""}, {9 * time.Second, ""}, {10 * time.Second, "b"}, {19 * time.Second, ""}, {20 * time.Second, "a"}, {40 * time.Second, ""}} {
		_, orders := l.Expire(c.at)
		got := ""
		for _, o := range orders {
			if got += o.Job; !o.Back {
				t.Errorf("%+v", o)
			}
		}
		if got != c.back {
			t.Errorf("at %v: %+v, want %q", c.at, orders, c.back)
		}
	}
	orders, err := l.Release(time.Minute, "b")
	if err != nil || len(orders) != 1 || orders[0].Back || l.Hosts()[0].Use.CPU != 4 {
		t.Errorf("%+v, %v, %+v", orders, err, l.Hosts())
	}
}
