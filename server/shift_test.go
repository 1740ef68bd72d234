package server

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"star/cluster/placement"
	"star/coord"
)

// measuredJob is a job of two workers on b, a shard on a and one on b, and a spare server on c.
func measuredJob() coord.Status {
	return coord.Status{
		Phase: "training", Mode: "ssgd", Rate: 100, Samples: 400, Limit: 1400,
		Workers: []coord.WorkerStatus{
			{Worker: 0, State: "computing", Site: "b", Step: 40, Iteration: 2, Own: 0.5, CPU: 0.9, NetIn: 400, NetOut: 200},
			{Worker: 1, State: "waiting", Site: "b", Step: 41, Iteration: 2, Own: 0.75, CPU: 0.8, NetIn: 400, NetOut: 200},
			{Worker: 2, State: "gone"},
		},
		Servers: []coord.ServerStatus{
			{Server: 0, Site: "a", Load: &coord.ServerLoad{Host: "first", CPU: 0.25, NetIn: 150, NetOut: 300, HostCPU: 1.25, HostNetIn: 350, HostNetOut: 400, Cores: 4, LinkIn: 1000, LinkOut: 2000, Free: 1e6, Inflow: 500}},
			{Server: 1, Site: "b", Load: &coord.ServerLoad{CPU: 0.5, NetIn: 0, NetOut: 0, HostCPU: 2.2, HostNetIn: 300, HostNetOut: 150, Cores: 4, LinkIn: 1000, LinkOut: 1000}},
			{Server: 2, Site: "c", Load: &coord.ServerLoad{HostCPU: 9, HostNetIn: 5000, Cores: 4, LinkIn: 1000}},
			{Server: 3, Site: "c", Gone: true, Load: &coord.ServerLoad{}},
			{Server: 4, Site: "d"},
		},
		Shards: []coord.ShardStatus{{Shard: 0, Server: 0, Bytes: 300}, {Shard: 1, Server: 1, Bytes: 100}},
	}
}

// What a status says becomes what moves are priced by: sites with what others leave, shards with what they cost.
func TestRunningOf(t *testing.T) {
	inf := math.Inf(1)
	r, why := runningOf(measuredJob(), 3, "adam")
	if why != "" {
		t.Fatal(why)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	want := placement.Running{
		Sites: []placement.Site{
			// The workers: 1.7 cores, and three quarters of 400 bytes in and 200 out in 2 s each cross the link. No
			// other process uses it, nor a processor.
			{Name: "b", In: 1000, Out: 1000, CPU: 4, Memory: inf},
			// Others use 1 core, 200 in and 100 out.
			{Name: "first", In: 800, Out: 1900, CPU: 3, Memory: 1e6, Seen: 500},
			// Full: a tenth of the link, no processor.
			{Name: "c", In: 100, Out: inf, CPU: 0, Memory: inf},
		},
		Servers: []int{1, 0, 2, -1, -1}, Workers: []int{0, 0},
		Shards: []placement.Part{
			{Server: 0, Gradient: 150, Params: 300, State: 900, CPU: 0.5},
			{Server: 1, Gradient: 50, Params: 100, State: 300, CPU: 1},
		},
		Compute: 750 * time.Millisecond, Together: true, Plan: "ssgd", Round: 2 * time.Second, Done: 40, Left: 10 * time.Second,
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
	st := measuredJob()
	st.Mode = "asgd"
	st.Workers[2] = coord.WorkerStatus{Worker: 2, State: "computing", Site: "e", Step: 3, Iteration: 9, Own: 8}
	r, why = runningOf(st, 3, "sgd")
	if why != "" || r.Together || r.Compute != 750*time.Millisecond || r.Round != 2*time.Second || r.Done != 3 || r.Shards[0].State != 300 || len(r.Workers) != 3 || r.Sites[r.Workers[2]].Name != "e" {
		t.Errorf("%q: %+v", why, r)
	}
	for want, change := range map[string]func(*coord.Status){
		"no shards":        func(s *coord.Status) { s.Shards = nil },
		"not every":        func(s *coord.Status) { s.Workers[1].Iteration = 0 },
		"no worker":        func(s *coord.Status) { s.Workers = s.Workers[2:] },
		`"ludicrous"`:      func(s *coord.Status) { s.Mode = "ludicrous" },
		"not every worker": func(s *coord.Status) { s.Workers[0].Site = "" },
	} {
		st := measuredJob()
		change(&st)
		if _, why := runningOf(st, 3, "sgd"); !strings.Contains(why, want) {
			t.Errorf("%q, want %q", why, want)
		}
	}
}
