package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

// A Pilot that keeps the records of one worker, and changes nothing.
type ear struct {
	Script
	worker  star.Worker
	records []star.Record
}

func (e *ear) Observe(r star.Record) {
	if r.Worker == e.worker {
		e.records = append(e.records, r)
	}
}

// rounder is a Learner that gets the samples of each round, and validations.
type rounder struct {
	counter
	rounds      []int
	validations int
}

func (r *rounder) Round(samples int) { r.rounds = append(r.rounds, samples) }
func (r *rounder) Validate() error   { r.validations++; return nil }
func (r *rounder) Validated() error  { return nil }

// A worker that comes back begins one latency later, and a full round is a round of all present workers.
func TestReturn(t *testing.T) {
	l, e := &rounder{}, &ear{worker: 1}
	_, err := Run(Config{Times: steady(100*ms, 100*ms), Plan: modes.ASGD(2), Learner: l, Pilot: e, Batch: 8, Latency: 10 * ms, Limit: 400 * ms,
		Failures: []Failure{{Worker: 1, At: 50 * ms, Back: 250 * ms}}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(l.rounds, []int{8, 16}) {
		t.Errorf("rounds of %v samples, want 8, then 16", l.rounds)
	}
	if len(e.records) != 1 || e.records[0].At != 360*ms {
		t.Errorf("records %+v, want one that ends at 360ms", e.records)
	}
}

// A worker's wait lasts until it is released, one latency after the update; workers that still wait at the end have
// waited until then.
func TestWaits(t *testing.T) {
	e := &ear{worker: 0}
	if _, err := Run(Config{Times: steady(100*ms, 300*ms), Learner: &counter{}, Pilot: e, Batch: 8, Latency: 10 * ms, Limit: 500 * ms}); err != nil {
		t.Fatal(err)
	}
	if len(e.records) != 2 || e.records[1].Wait != 210*ms {
		t.Errorf("records %+v, want a second one with a wait of 210ms", e.records)
	}
	r, err := Run(Config{Times: steady(100*ms, 300*ms), Learner: &counter{}, Batch: 8, Limit: 250 * ms})
	if err != nil || math.Abs(r.Waiting-150.0/500) > 1e-9 {
		t.Errorf("waiting is %v of the time (%v), want 0.3", r.Waiting, err)
	}
}

// The next validation begins when as many gradients as wanted have come since the last began.
func TestValidationsAreApart(t *testing.T) {
	l := &rounder{}
	if _, err := Run(Config{Times: steady(100 * ms), Learner: l, Batch: 8, Validation: &Validation{Every: 2, Time: 10 * ms}, Target: 6}); err != nil {
		t.Fatal(err)
	}
	if l.validations != 1+3 {
		t.Errorf("%d validations of 6 gradients, want one before them and 3", l.validations)
	}
}

// loaded workers wait for data before they compute.
type loaded []Spent

func (l loaded) Workers() int { return len(l) }

func (l loaded) Spend(w star.Worker, _ int64, _ time.Duration, _ float64) Spent { return l[w] }

// A worker that is ordered to stop has computed since it has its data, not since its release.
func TestCancelCountsComputing(t *testing.T) {
	l := &told{}
	p := modes.Backup(3, 1)
	p.Micro, p.ComputeDeadline = 4, time.Hour
	// Told at 101 ms, worker 2 has computed for 41 of 160 ms: it is at the second of four parts.
	if _, err := Run(Config{Times: loaded{{Compute: 100 * ms}, {Compute: 100 * ms}, {Load: 60 * ms, Compute: 160 * ms}}, Plan: p, Cancel: true, Learner: l, Batch: 8, Latency: ms, Target: 2}); err != nil {
		t.Fatal(err)
	}
	if len(l.dropped) != 1 || l.dropped[0].Samples != 4 {
		t.Errorf("dropped %+v, want 4 samples", l.dropped)
	}
}

// A worker that leaves while it waits for its data starts over when it is back.
func TestLeaveWhileLoading(t *testing.T) {
	e := &ear{worker: 1}
	if _, err := Run(Config{Times: loaded{{Compute: 100 * ms}, {Load: 60 * ms, Compute: 100 * ms}}, Plan: modes.ASGD(2), Learner: &counter{}, Pilot: e, Batch: 8, Network: apart(2, 1, 0, 0), Bytes: 1,
		Limit: 250 * ms, Failures: []Failure{{Worker: 1, At: 30 * ms, Back: 40 * ms}}}); err != nil {
		t.Fatal(err)
	}
	if len(e.records) != 1 || e.records[0].At != 200*ms {
		t.Errorf("records %+v, want one that ends at 200ms", e.records)
	}
}

// The bound's rounds follow each other: an episode counts from the round that begins in it.
func TestBoundOfEpisodes(t *testing.T) {
	got, err := Bound(Troubled{Times: steady(100*ms, 100*ms), Episodes: [][]Episode{nil, {{From: 100 * ms, To: time.Hour, Factor: 3}}}}, 4)
	if want := 1 - 2/(1/0.1+1/0.25)/0.25; err != nil || math.Abs(got-want) > 1e-9 {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
}

// The staleness of an update is the mean of its gradients'.
func TestTallyTakesTheMean(t *testing.T) {
	l := Tally{Kappa: 0.5}
	l.Begin(2, 16)
	if o := l.Update(3, []Gradient{{Basis: 2, Samples: 8}, {Basis: 0, Samples: 8}}); math.Abs(o.Progress-1/1.5) > 1e-12 {
		t.Errorf("progress %v, want 1/1.5", o.Progress)
	}
}

// What happens at the same time happens in a fixed order: gradients, validations, what is to be done, the network; the
// lowest number first.
func TestAgenda(t *testing.T) {
	want := []event{{1, flow, 9}, {2, arrival, 3}, {2, arrival, 4}, {2, validation, 0}, {2, timer, 1}, {2, timer, 2}, {2, flow, 0}, {3, arrival, 0}}
	var q agenda
	for i := range want {
		q.add(want[(i*5+3)%len(want)])
	}
	for _, w := range want {
		if e, ok := q.next(); e != w || !ok {
			t.Errorf("%v, want %v", e, w)
		}
	}
}

// Many events, close together or far apart or all at once, come in the order in which few would; also where those that
// come make others, sooner or later.
func TestAgendaOfMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q agenda
		var h heap
		draw := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		add := func(at time.Duration) {
			e := event{at: at, kind: kind(draw.IntN(4)), worker: draw.Int32N(1000)}
			q.add(e)
			h.add(e)
		}
		now := time.Duration(0)
		for range rapid.IntRange(1, 6).Draw(t, "phases") {
			width := time.Duration(rapid.SampledFrom([]int64{1, 100, 1e6, 1e12}).Draw(t, "width"))
			for range rapid.SampledFrom([]int{0, 10, few / 2, few + 1, 5 * few}).Draw(t, "come") {
				add(now + time.Duration(draw.Int64N(int64(width))))
			}
			if rapid.Bool().Draw(t, "outlier") {
				add(now + 1e6*width)
			}
			again := rapid.Float64Range(0, 0.9).Draw(t, "again") // of those that go
			for range rapid.SampledFrom([]int{10, few, 20 * few}).Draw(t, "go") {
				e, ok := q.next()
				if ok != (len(h) > 0) {
					t.Fatalf("something is next: %v; %d are there", ok, len(h))
				}
				if !ok {
					break
				}
				if want := h.next(); e != want {
					t.Fatalf("%v, want %v", e, want)
				}
				now = e.at
				if draw.Float64() < again {
					add(now + time.Duration(draw.Int64N(int64(width))))
				}
			}
		}
	})
}

// Many workers are released in the order of their ranks, not of their arrival.
func TestManyAreSorted(t *testing.T) {
	r := &run{workers: make([]worker, 200)}
	for _, ws := range [][]star.Worker{{130, 5, 199, 64, 0, 63}, {7, 6}, {}} {
		r.released = slices.Clone(ws)
		r.sort()
		slices.Sort(ws)
		if !slices.Equal(r.released, ws) {
			t.Errorf("%v, want %v", r.released, ws)
		}
	}
}

// A record's time is the end of computing, before the push.
func TestRecordedEnd(t *testing.T) {
	e := &ear{worker: 1}
	if _, err := Run(Config{Times: Steady{Iteration: []time.Duration{100 * ms, 50 * ms}, Fixed: 0.2}, Learner: &counter{}, Pilot: e, Batch: 8, Limit: 250 * ms}); err != nil {
		t.Fatal(err)
	}
	if len(e.records) != 3 || e.records[0].At != 40*ms || e.records[1].At != 140*ms {
		t.Errorf("records %+v, want ends at 40ms, 140ms and 240ms", e.records)
	}
}

// In a ring, a rider's gradient and its next parameters cross the rider's link.
func TestRiderCrossesItsLink(t *testing.T) {
	n := apart(3, 0, 0, 0)
	n.Hosts[2].Bandwidth = 10_000_000
	p := modes.SSGD(3)
	p.Groups = []modes.Group{{Members: []star.Worker{0, 1}, Quorum: 2, Riders: []star.Worker{2}}}
	e := &ear{worker: 2}
	// Updates are at 100, 200, … ms. Worker 2 computes until 90 ms, and 1 MB is with a member at 190 ms. The parameters
	// are there at 300 ms.
	if _, err := Run(Config{Times: steady(100*ms, 100*ms, 90*ms), Plan: p, Learner: &counter{}, Pilot: e, Batch: 8, Network: n, Ring: &Ring{}, Bytes: 1_000_000, Limit: 600 * ms}); err != nil {
		t.Fatal(err)
	}
	if len(e.records) != 2 || e.records[0].At != 90*ms || e.records[1].At.Round(ms) != 390*ms {
		t.Errorf("records %+v, want ends at 90ms and 390ms", e.records)
	}
}
