package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"star"
	"star/cluster/resource/host"
	"star/coord"
	"star/job"
	"star/job/process"
	"star/modes"
)

func TestLoadOf(t *testing.T) {
	ms := func(vs ...int) (ds []time.Duration) {
		for _, v := range vs {
			ds = append(ds, time.Duration(v)*time.Millisecond)
		}
		return ds
	}
	for _, c := range []struct {
		plan  modes.Plan
		times []time.Duration
		u, g  float64
	}{
		{modes.SSGD(4), ms(100, 100, 100, 200), 5, 20},
		{modes.ASGD(4), ms(100, 100, 100, 200), 35, 35},
		{modes.ASGD(4), ms(100, 100, 0, 200), 30, 30}, // worker 2 might come back, as slow as the slowest
		{modes.Grouped([]star.Worker{0, 1, 2}, []star.Worker{3}), ms(100, 100, 100, 200), 15, 35},
	} {
		l, err := process.LoadOf(c.plan, c.times)
		if err != nil || l.Updates < 0.999*c.u || l.Updates > 1.001*c.u || l.Gradients < 0.999*c.g || l.Gradients > 1.001*c.g {
			t.Errorf("%v: %+v, %v; want %v and %v", c.plan, l, err, c.u, c.g)
		}
	}
	if _, err := process.LoadOf(modes.SSGD(2), ms(0, 0)); err == nil {
		t.Error("a load of nobody")
	}
}

// A link of 1 MB/s in each direction, parameters of 40 kB, four workers that take 1 s, one of them 4 s: SSGD moves 40
// kB/s, ASGD would move 130. When the link turns out to carry less, ASGD is taken back.
func TestSteward(t *testing.T) {
	s := newLocalAdmission(&Config{Job: job.Job{Workers: 4, Batch: 8, Servers: 1, Host: job.Host{CapacityCPU: 4, CapacityNet: 1}}})
	s.sampler = host.Start(host.Config{Heartbeat: time.Hour})
	defer s.sampler.Close()
	st := new(coord.Status)
	for _, busy := range []float64{1, 1, 1, 4} {
		st.Workers = append(st.Workers, coord.WorkerStatus{State: "computing", Busy: busy, Peer: "192.0.2.1:7000"})
	}
	var failed error
	s.ask = func(_ context.Context, out *coord.Status) error {
		*out = *st
		return failed
	}
	type reply struct {
		ok  bool
		why string
	}
	answers := make(chan reply, 1)
	ask := func(p modes.Plan) reply {
		s.Ask(p, func(ok bool, why string) { answers <- reply{ok, why} })
		return <-answers
	}
	if r := ask(modes.ASGD(4)); !r.ok || !strings.Contains(r.why, "not known yet") {
		t.Errorf("before anybody has said what is trained: %+v", r)
	}
	st.Params = 10000
	if r := ask(modes.ASGD(4)); !r.ok {
		t.Errorf("130 kB/s of 1 MB/s, before anything is measured: %+v", r)
	}
	s.watch, s.job.CapacityNet = nil, 0.1
	if r := ask(modes.ASGD(4)); r.ok || !strings.Contains(r.why, "0.13 MB/s of incoming network, now 0 MB/s, and others leave 0.1 MB/s") {
		t.Errorf("130 kB/s of 100, before anything is measured: %+v", r)
	}
	s.job.CapacityNet = 1
	s.Yield()
	at := time.Now()
	look := func(version int64) {
		from := measured{at: at, version: version, samples: 32 * version}
		to := measured{at: at.Add(4 * time.Second), used: time.Millisecond, version: version + 1, samples: 32 * (version + 1)}
		s.look(st, from, to)
	}
	for v := range int64(12) {
		look(v)
	}
	if r := ask(modes.ASGD(4)); !r.ok {
		t.Errorf("130 kB/s of 1 MB/s: %+v", r)
	}
	s.job.CapacityNet = 0.1
	for v := range int64(admissionPatience - 1) {
		look(v)
	}
	select {
	case r := <-answers:
		t.Fatalf("too soon: %+v", r)
	default:
	}
	look(99)
	if r := <-answers; r.ok || !strings.Contains(r.why, "0.13 MB/s of incoming network, now 0.04 MB/s, and others leave 0.1 MB/s") {
		t.Errorf("taken back with %+v", r)
	}
	for v := range int64(2 * admissionPatience) {
		look(v) // says nothing more
	}
	if r := ask(modes.ASGD(4)); r.ok {
		t.Errorf("130 kB/s of 100: %+v", r)
	}
	if r := ask(modes.SSGD(4)); !r.ok {
		t.Errorf("40 kB/s of 100: %+v", r)
	}
	failed = errors.New("over")
	if r := ask(modes.SSGD(4)); r.ok || !strings.Contains(r.why, "over") {
		t.Errorf("without a status: %+v", r)
	}
	for peer, want := range map[string]bool{"127.0.0.1:7": true, "[::1]:7": true, "192.0.2.1:7": false, "": false, "pipe": false} {
		if s.here(peer) != want {
			t.Errorf("%q is here: %v", peer, !want)
		}
	}
}
