package tenant

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"star"
	"star/cluster/resource"
	"star/coord"
	"star/job"
	"star/job/process"
	"star/modes"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }

// What a ring moves, before anything is measured: rounds of 4 members are 6 gradients each way, and a rider's is 2.
func TestRingPrior(t *testing.T) {
	times := []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}
	ssgd, err := process.LoadOf(modes.SSGD(4), times)
	if err != nil {
		t.Fatal(err)
	}
	d := ringPrior(250, 4)                                                     // 1000 bytes
	if u := d.At(travel(ssgd)); !near(u.NetIn, 15000) || u.NetOut != u.NetIn { // 2.5 rounds a second
		t.Errorf("ssgd moves %+v, want 15000 bytes/s", u)
	}
	rider := resource.Load{Updates: 10, Gradients: 42.5} // a member too few and a rider: as if 4 were members
	if u := d.At(travel(rider)); !near(u.NetIn, 65000) {
		t.Errorf("with a rider it moves %+v, want 10·6·1000 and 2.5·2·1000", u)
	}
	ring := Session{job: &job.Job{Workers: 4}, status: coord.Status{Params: 250, Workers: make([]coord.WorkerStatus, 4)}}
	extra := ring.ringExtra(rider, ssgd)
	if !near(extra.NetIn, 50000) || !near(extra.NetOut, 50000) || !near(extra.CPU, 100000/resource.ReceivePrior+7.5*4*1000/resource.ApplyPrior) {
		t.Errorf("beyond ssgd: %+v", extra)
	}
	if u := ring.ringExtra(ssgd, rider); u != (resource.Usage{}) {
		t.Errorf("less than ssgd is %+v", u)
	}
}

// A ring of four on two hosts exchanges a third of what arithmetic says with other hosts, and computes: that is what it
// is seen to do, and so what it is going to do in another mode.
func TestRingLearns(t *testing.T) {
	const params = 250
	ring := &Session{job: &job.Job{Workers: 4, Arch: job.AllReduce}, log: slog.New(slog.DiscardHandler), status: coord.Status{Params: params, Workers: make([]coord.WorkerStatus, 4)}}
	workers := make([]coord.WorkerStatus, 4)
	for i := range workers {
		workers[i] = coord.WorkerStatus{Worker: i, Iteration: 0.5, CPU: 0.8, Telemetry: map[string]float64{star.FarIn.String(): 500, star.FarOut.String(): 500}}
	}
	now := progress{at: time.Unix(0, 0)}
	run := func(looks int, rounds int64) { // of two seconds
		for range looks {
			now.at = now.at.Add(2 * time.Second)
			now.version += rounds
			for i := range workers {
				workers[i].Step += rounds
				now.steps += rounds
			}
			ring.ring.look(workers)
			now.ring = ring.ring.sum
			ring.learn(now)
		}
	}
	ssgd, mode := resource.Load{Updates: 2, Gradients: 8}, resource.Load{Updates: 4, Gradients: 16}
	arithmetic := ring.ringExtra(mode, ssgd)
	run(2, 4) // where it began is unknown
	if u := ring.ringExtra(mode, ssgd); u != arithmetic {
		t.Errorf("after one measurement %+v, want what arithmetic says, %+v", u, arithmetic)
	}
	workers[2].Step -= 5 // another process in its place
	run(20, 4)
	// 8 gradients a second of 500 bytes and 0.4 processor seconds each; twice as many, twice the use.
	for name, got := range map[string][2]float64{"in": {ring.ringExtra(mode, ssgd).NetIn, 4000}, "out": {ring.ringExtra(mode, ssgd).NetOut, 4000}, "processors": {ring.ringExtra(mode, ssgd).CPU, 3.2}} {
		if got[0] < 0.95*got[1] || got[0] > 1.05*got[1] {
			t.Errorf("%s: %v more, want %v; arithmetic says %+v", name, got[0], got[1], arithmetic)
		}
	}
	// A worker that does not say makes all that comes unknown.
	workers[1].Telemetry = nil
	seen := ring.learner.Seen()
	run(5, 4)
	if n := ring.learner.Seen(); n != seen {
		t.Errorf("%d measurements of a worker that does not say what it exchanges", n-seen)
	}
}
