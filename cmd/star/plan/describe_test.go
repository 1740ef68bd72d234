package plan

import (
	"math"
	"strings"
	"testing"
	"time"

	nouns "star"
	"star/cluster/inventory"
	"star/runlog"
)

// Demands are those of the records, as a file of jobs reads them.
func TestDescribe(t *testing.T) {
	const ms = time.Millisecond
	d := new(described)
	tell := func(entry runlog.Entry) { d.observe(runlog.Line{Entry: entry}) }
	tell(runlog.Start{Job: "lm"})
	tell(runlog.Train{Workers: 3, Shards: 4, Params: 1_000_000}) // one of the three never joins
	record := func(w int, wait time.Duration, out float64) {
		r := nouns.Record{Worker: nouns.Worker(w), Load: 10 * ms, Compute: 50 * ms, Injected: 20 * ms, Push: 10 * ms, Wait: wait, Pull: 30*ms - wait, CPU: 0.5, NetIn: 4e6, NetOut: out}
		r.Telemetry.Set(nouns.GPUUse, 0.25)
		r.Telemetry.Set(nouns.GPUMemory, 0.5)
		tell(runlog.Record{Record: r})
	}
	for range warmUp { // these do not count
		record(0, 0, 1e12)
		record(1, 0, 1e12)
	}
	var b strings.Builder
	if err := d.yaml(&b); err == nil || !strings.Contains(err.Error(), "job lm: the log has no iteration after the first 2") {
		t.Errorf("%v: %s", err, b.String())
	}
	for range 5 {
		record(0, 10*ms, 2e6)
		record(1, 20*ms, 4e6)
		tell(runlog.Fire{Workers: []nouns.Worker{0, 1}})
	}
	record(0, 10*ms, 1e9) // one that is not like the others
	tell(runlog.Fire{Dropped: []nouns.Worker{0}})
	b.WriteString("jobs:\n")
	if err := d.yaml(&b); err != nil {
		t.Fatal(err)
	}
	jobs, err := inventory.ParseJobs("j", []byte(b.String()), nil)
	if err != nil || len(jobs) != 1 || len(jobs[0].Servers) != 4 || len(jobs[0].Workers) != 2 {
		t.Fatalf("%v\n%s", err, b.String())
	}
	s, w := jobs[0].Servers[3], jobs[0].Workers[1]
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-3*want {
			t.Errorf("%s is %v, want %v\n%s", what, got, want, b.String())
		}
	}
	near("worker's cpu", w.Demand.CPU, 0.5)
	near("worker's net in", w.Demand.NetIn, 40e6)
	near("worker's net out", w.Demand.NetOut, 30e6) // 2 and 4 MB in 100 ms
	near("server's net in", s.Demand.NetIn, 15e6)   // a quarter of both
	near("server's net out", s.Demand.NetOut, 20e6)
	near("worker's active", w.Phases.Active.Seconds(), 0.04)
	near("worker's idle", w.Phases.Idle.Seconds(), 0.06)
	near("worker's gpu", w.GPU, 0.25)
	near("worker's gpu-active", w.Phases.GPU.Seconds(), 0.025)
	// A server has 1 MB of parameters, and makes 10 updates of 2 gradients a second.
	near("server's state", s.State, 2e6)
	near("server's memory", s.Demand.Memory, 5e6)
	server, _ := inventory.Size{Params: 4e6, Iteration: 100 * ms, Servers: 4, Workers: 2, Quorum: 2}.Tasks()
	near("server's cpu", s.Demand.CPU, server.Demand.CPU)
	near("server's phases", (s.Phases.Active + s.Phases.Idle).Seconds(), 0.1)
	if !strings.Contains(b.String(), "50.0 % was taken at most") {
		t.Error(b.String())
	}
}

// A job without servers has none in the file, and one that does not use the GPU of its host wants none.
func TestDescribeRing(t *testing.T) {
	d := new(described)
	d.observe(runlog.Line{Entry: runlog.Start{Job: "ring"}})
	d.observe(runlog.Line{Entry: runlog.Train{Workers: 1, Params: 10}})
	for range 5 {
		r := nouns.Record{Compute: time.Second, CPU: 1}
		r.Telemetry.Set(nouns.GPUUse, 0.001)
		r.Telemetry.Set(nouns.GPUMemory, 0.5)
		d.observe(runlog.Line{Entry: runlog.Record{Record: r}})
	}
	var b strings.Builder
	if err := d.yaml(&b); err != nil || strings.Contains(b.String(), "servers") || strings.Contains(b.String(), "gpu") || strings.Contains(b.String(), "GPU") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
