package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
	"star/runlog"
)

// made is a job of one worker on each host, where some were slow.
func made(t *testing.T, name string, hosts []string, slow map[string]string, ended bool) *Job {
	t.Helper()
	j := NewJob(name)
	n := 0
	line := func(e runlog.Entry) {
		if err := j.Line(runlog.Line{Number: n + 1, T: time.Duration(n) * time.Second, Entry: e}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	line(runlog.Start{Job: "star", Config: json.RawMessage(`{"mode":"auto"}`)})
	for w, h := range hosts {
		line(runlog.Join{Worker: star.Worker(w), Peer: h + ":4000"})
	}
	line(runlog.Train{Workers: len(hosts), Shards: 1, Plan: "ssgd", Limit: 100})
	for w, h := range hosts {
		if cause := slow[h]; cause != "" {
			line(runlog.Verdict{Worker: star.Worker(w), Event: "slow", Slowdown: 2, Cause: cause})
		}
	}
	if ended {
		line(runlog.Summary{})
	}
	return j
}

func names(n int) (hosts []string) {
	for i := range n {
		hosts = append(hosts, fmt.Sprintf("node-%d", i))
	}
	return hosts
}

// A host that is slow in half of its jobs is chronic where the others are slow in one of ten, and those are unlucky.
func TestChronic(t *testing.T) {
	found, wrong := 0, 0
	const fleets = 200
	for seed := range uint64(fleets) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		f := Fleet{}
		for i, name := range names(16) {
			h := Host{Host: name, Jobs: 20}
			rate := 0.1
			if i == 3 {
				rate = 0.6
			}
			for range h.Jobs {
				if rnd.Float64() < rate {
					h.Slow++
				}
			}
			f.Hosts = append(f.Hosts, h)
		}
		f.judge()
		for i, h := range f.Hosts {
			switch {
			case h.Kind == "chronic" && i == 3:
				found++
			case h.Kind == "chronic":
				wrong++
			case (h.Kind == "unlucky") != (h.Slow > 0):
				t.Errorf("%+v", h)
			}
		}
	}
	t.Logf("%d of %d chronic hosts, %d others", found, fleets, wrong)
	if found < fleets*95/100 || wrong > fleets/20 {
		t.Errorf("%d of %d chronic hosts are found, and %d others", found, fleets, wrong)
	}
}

// Slow hosts of jobs: a life of a job is no other job, an unknown cause does not count, and a worker that came back on
// another host leaves its slow times with the first.
func TestFleet(t *testing.T) {
	hosts := names(4)
	var jobs []*Job
	for i := range 8 {
		jobs = append(jobs, made(t, fmt.Sprintf("job-%d", i), hosts, map[string]string{"node-1": "quota"}, i > 0))
	}
	jobs = append(jobs,
		made(t, "job-7", hosts, map[string]string{"node-1": "quota", "node-0": "unknown"}, true),
		made(t, "lonely", []string{"127.0.0.1", "127.0.0.1"}, nil, true),
		made(t, "moved", hosts, map[string]string{"node-2": "steal"}, false))
	moved := jobs[len(jobs)-1]
	if err := moved.Line(runlog.Line{Number: 99, T: time.Minute, Entry: runlog.Join{Worker: 2, Peer: "node-9:1"}}); err != nil {
		t.Fatal(err)
	}
	f := Of(jobs, "here")
	got := map[string]string{}
	for _, h := range f.Hosts {
		got[h.Host] = fmt.Sprintf("%d of %d %s %v %v", h.Slow, h.Jobs, h.Kind, h.Causes, h.Now)
	}
	want := map[string]string{
		"node-0": "0 of 9  map[] []", "node-1": "8 of 9 chronic map[quota:8] [job-0]", "node-2": "1 of 9 unlucky map[steal:1] [moved]",
		"node-3": "0 of 9  map[] []", "node-9": "0 of 1  map[] []", "here": "0 of 1  map[] []",
	}
	for h, w := range want {
		if got[h] != w {
			t.Errorf("%s: %q, want %q", h, got[h], w)
		}
	}
	if len(got) != len(want) || f.Hosts[0].Host != "node-1" || len(f.Jobs) != 10 || f.Jobs[0].Status != "running" || f.Jobs[9].Status != "ended" {
		t.Errorf("%v, %+v", got, f.Jobs)
	}
	var b strings.Builder
	if err := f.Text(&b, 3); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10 jobs, 2 running, on 6 hosts. Slow more often than the others: node-1 (slow in 8 of 9 jobs).", "and 7 jobs more", "node-1  9     8        ", "chronic  quota 8"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if _, err := json.Marshal(f); err != nil {
		t.Error(err)
	}
	moved.Quiet(true)
	if f := Of(jobs, "here"); f.Jobs[0].Job != "job-0" || strings.Count(fmt.Sprint(f.Jobs), "silent") != 1 {
		t.Errorf("%+v", f.Jobs)
	}
	if text, bad := new(Fleet).Headline(); bad || text != "0 jobs, 0 running, on 0 hosts. No host was slow." {
		t.Error(text)
	}
}
