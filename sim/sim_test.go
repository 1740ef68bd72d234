package sim

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/modes/price"
)

const ms = time.Millisecond

func steady(times ...time.Duration) Steady { return Steady{Iteration: times} }

// The cluster and modes' own event simulation see the same pace: interval, staleness, what is dropped.
func TestPaceAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "n")
		times := make([]time.Duration, n)
		for i := range times {
			times[i] = time.Duration(rapid.IntRange(50, 400).Draw(t, "ms")) * ms
		}
		var p modes.Plan
		switch x := rapid.IntRange(1, n).Draw(t, "x"); rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			p = modes.XOrder(n, x)
		case 1:
			p = modes.Backup(n, n-x)
		default:
			p = modes.ASGD(n)
		}
		const updates = 300
		want, err := price.Simulate(p, times, 0, updates)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Run(Config{Times: steady(times...), Plan: p, Learner: &counter{}, Batch: 1, Target: updates})
		if err != nil {
			t.Fatal(err)
		}
		interval := got.Time / updates
		if interval != want.Interval || got.Staleness != want.Staleness || !got.Reached {
			t.Fatalf("%v of %v: interval %v, staleness %v; want %v, %v", p, times, interval, got.Staleness, want.Interval, want.Staleness)
		}
		if d := float64(got.Dropped) / float64(got.Dropped+got.Gradients); math.Abs(d-want.Dropped) > 1e-12 {
			t.Fatalf("dropped %v, want %v", d, want.Dropped)
		}
	})
}

// counter counts updates.
type counter struct{ n float64 }

func (c *counter) Begin(int, int)           {}
func (c *counter) Release(star.Worker, int) {}
func (c *counter) Update(int64, []Gradient) Outcome {
	c.n++
	return Outcome{Progress: c.n}
}

// SSGD with one worker three times slower waits for it; the waiting adds up.
func TestWaiting(t *testing.T) {
	r, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms, 300*ms), Learner: &counter{}, Batch: 1, Target: 10, Latency: ms})
	if err != nil {
		t.Fatal(err)
	}
	if want := 10*300*ms + 9*ms; r.Time != want {
		t.Errorf("ten updates in %v, want %v", r.Time, want)
	}
	if want := 3 * 2000.0 / (4 * 3009); math.Abs(r.Waiting-want) > 1e-9 {
		t.Errorf("waiting %v of the time, want %v", r.Waiting, want)
	}
	if r.Gradients != 40 || r.Samples != 40 || r.Staleness != 0 {
		t.Errorf("%+v", r)
	}
}

// The bound of one worker s times slower among N is 1 − N/(s·(N−1)+1).
func TestBound(t *testing.T) {
	for _, s := range []int{1, 2, 3, 10} {
		times := make([]time.Duration, 8)
		for i := range times {
			times[i] = 100 * ms
		}
		times[7] *= time.Duration(s)
		got, err := Bound(steady(times...), 5)
		if err != nil {
			t.Fatal(err)
		}
		if want := 1 - 8/(float64(s)*7+1); math.Abs(got-want) > 1e-12 {
			t.Errorf("%d times slower: %v, want %v", s, got, want)
		}
	}
}

// Quadratic.Update is gradient descent: without noise and staleness a coordinate shrinks by 1 − η·h each round.
func TestQuadraticDescends(t *testing.T) {
	q := NewQuadratic(3, 100, 0, 0.5, 1)
	q.Begin(2, 20)
	gs := []Gradient{{Worker: 0, Samples: 5}, {Worker: 1, Samples: 15}}
	for v := range 4 {
		q.Release(0, 5)
		q.Release(1, 15)
		q.Update(int64(v+1), gs)
	}
	for i, w := range q.w {
		if want := math.Pow(1-0.5*q.Curvature[i], 4); math.Abs(w-want) > 1e-12 {
			t.Errorf("coordinate %d is %v, want %v", i, w, want)
		}
	}
}

// What the norms of its gradients say of the noise is what Noise says.
func TestQuadraticNoise(t *testing.T) {
	q := NewQuadratic(50, 10, 0.7, 0, 3)
	const n, b = 8, 16
	q.Begin(n, n*b)
	for w := range n {
		q.Release(star.Worker(w), b)
	}
	var grad2, trace float64
	gs := make([]Gradient, n)
	for step := range 2000 {
		for w := range gs {
			gs[w] = Gradient{Worker: star.Worker(w), Step: int64(step), Samples: b}
		}
		o := q.Update(int64(step+1), gs)
		each := 0.0
		for _, g := range gs {
			each += g.Norm2 / n
		}
		grad2 += (n*o.Norm2 - each) / (n - 1)
		trace += (each - o.Norm2) * n * b / (n - 1)
	}
	if got, want := trace/grad2, q.Noise(); math.Abs(got-want) > 0.03*want {
		t.Errorf("noise scale %v by the norms, want %v", got, want)
	}
}

// The same seed gives the same run; another one another.
func TestDeterminism(t *testing.T) {
	run := func(seed uint64) Result {
		r, err := Run(Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: seed}, Plan: modes.XOrder(3, 2),
			Learner: NewQuadratic(8, 10, 0.1, 0.2, seed), Batch: 32, Limit: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b, c := run(1), run(1), run(2)
	if a.Progress != b.Progress || a.Updates != b.Updates || a.Time != b.Time {
		t.Errorf("%+v and %+v from one seed", a, b)
	}
	if a.Progress == c.Progress {
		t.Errorf("progress %v from two seeds", a.Progress)
	}
}

// The cost of a gradient as the cluster grows: 100 updates of half the workers.
// What is known of a worker are two lines of the processor's cache, so that none lies across three.
func TestWorkerSize(t *testing.T) {
	if size := unsafe.Sizeof(worker{}); size != 128 {
		t.Errorf("a worker takes %d bytes, want 128", size)
	}
}

func BenchmarkRun(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		times := make([]time.Duration, n)
		for i := range times {
			times[i] = time.Duration(100+i%37) * ms
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			gradients := int64(0)
			for b.Loop() {
				r, err := Run(Config{Times: Varied{Times: steady(times...), Sigma: 0.1}, Plan: modes.XOrder(n, n/2), Learner: &Tally{Noise: 1000}, Batch: 32, Target: 100})
				if err != nil {
					b.Fatal(err)
				}
				gradients += r.Gradients
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(gradients), "ns/gradient")
		})
	}
}

// alarmed is a Pilot that wants to be asked so long after each time that it was.
type alarmed struct {
	Script
	after time.Duration
	asked []time.Duration
}

func (a *alarmed) Next(at time.Duration) time.Duration { return at + a.after }

func (a *alarmed) Decide(at time.Duration) (modes.Plan, string, bool) {
	a.asked = append(a.asked, at)
	if at < 450*ms {
		return modes.Plan{}, "", false
	}
	return a.Script.Decide(at)
}

// A Watcher is asked when it wants to be, though nothing arrives, and what it decides then is done.
func TestWatcher(t *testing.T) {
	p := &alarmed{after: 150 * ms, Script: Script{Changes: []Change{{Plan: modes.ASGD(2)}}}}
	r, err := Run(Config{Times: steady(100*ms, 1000*ms), Learner: &counter{}, Pilot: p, Batch: 1, Limit: 700 * ms})
	if err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{100 * ms, 250 * ms, 400 * ms, 550 * ms}; !slices.Equal(p.asked[:4], want) {
		t.Errorf("asked at %v, want %v first", p.asked, want)
	}
	if len(r.Switches) != 1 || r.Switches[0].At != 550*ms || r.Updates != 2 { // the waiting gradient, and one at 650 ms
		t.Errorf("%d updates, %+v", r.Updates, r.Switches)
	}
}

// A Script's change is made at its time, between two arrivals, too.
func TestScriptAt(t *testing.T) {
	r, err := Run(Config{Times: steady(100*ms, 1000*ms), Learner: &counter{}, Pilot: &Script{Changes: []Change{{At: 550 * ms, Plan: modes.ASGD(2)}}}, Batch: 1, Limit: 700 * ms})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Switches) != 1 || r.Switches[0].At != 550*ms || r.Updates != 2 { // the waiting gradient, and one at 650 ms
		t.Errorf("%d updates, %+v", r.Updates, r.Switches)
	}
}
