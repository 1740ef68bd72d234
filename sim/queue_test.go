package sim

import (
	"math"
	"slices"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
	"star/transport/wire"
)

// drawn notes the contents of updates, and their samples.
type drawn struct {
	counter
	next    int64
	updates [][]Gradient
	total   []int64 // of the stream, after each
}

func (d *drawn) Draw(_ star.Worker, samples int) { d.next += int64(samples) }
func (d *drawn) Update(v int64, gs []Gradient) Outcome {
	d.updates, d.total = append(d.updates, slices.Clone(gs)), append(d.total, d.next)
	return d.counter.Update(v, gs)
}

func queued(n, parts int) modes.Plan {
	p := modes.SSGD(n)
	p.Queue = parts
	return p
}

// Parts are of one piece of the stream each, as workers cut them.
func TestPartsOfPieces(t *testing.T) {
	r := wire.Release{Count: 5, Part: 2, More: []wire.Piece{{Start: 40, Count: 1}, {Start: 90, Count: 4}}}
	var ends []int
	for done := 0; done < 10; ends = append(ends, done) {
		done = partEnd(&r, done)
	}
	if !slices.Equal(ends, []int{2, 4, 5, 6, 8, 10}) {
		t.Error(ends)
	}
}

// The pace of a queue is that by which modes prices it: with workers that always take the same time, each round is the
// one that is played there.
func TestQueuePace(t *testing.T) {
	times := []time.Duration{100 * ms, 130 * ms, 70 * ms, 300 * ms}
	want, err := price.PaceOf(queued(4, 8), times)
	if err != nil {
		t.Fatal(err)
	}
	l := &drawn{}
	const rounds = 20
	r, err := Run(Config{Times: steady(times...), Plan: queued(4, 8), Learner: l, Batch: 64, Target: rounds})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Time / rounds; math.Abs(got.Seconds()/want.Interval.Seconds()-1) > 1e-6 {
		t.Fatalf("a round each %v, by its price %v", got, want.Interval)
	}
	for i, gs := range l.updates {
		sum := 0
		for _, g := range gs {
			sum += g.Samples
			if share := float64(g.Samples) / 256; math.Abs(share-want.Shares[g.Worker]) > 1e-9 {
				t.Fatalf("update %d has %v of worker %d, by its price %v", i, share, g.Worker, want.Shares[g.Worker])
			}
		}
		if sum != 256 || l.total[i] != int64(256*(i+1)) {
			t.Fatalf("update %d has %d samples, and %d of the stream are gone; want 256 and %d", i, sum, l.total[i], 256*(i+1))
		}
	}
}

// Every update is that of SSGD over the same samples, whichever workers have computed them.
func TestQueueIsSSGD(t *testing.T) {
	run := func(p modes.Plan, times ...time.Duration) *Trained {
		l := &Trained{Task: line{}, Rule: descent(2)}
		if _, err := Run(Config{Times: steady(times...), Plan: p, Learner: l, Batch: 8, Limit: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	// In 3 s: 15 rounds of SSGD of 0.2 s, and of the queue of parts of 40, 40 and 100 ms; the slow worker takes two of
	// these parts and the others five.
	a, b := run(modes.SSGD(3), 200*ms, 200*ms, 200*ms), run(queued(3, 4), 160*ms, 160*ms, 400*ms)
	if a.used != b.used || a.used < 300 {
		t.Fatalf("%d samples with SSGD, %d with the queue", a.used, b.used)
	}
	for i, w := range a.Params() {
		if v := b.Params()[i]; math.Abs(float64(v-w)) > 1e-5*(1+math.Abs(float64(w))) {
			t.Fatalf("parameter %d is %v, with SSGD %v", i, v, w)
		}
	}
}

// When a worker is gone the others do its part of the round, and a round is a round of the workers that are left.
func TestQueueLosesWorker(t *testing.T) {
	l := &drawn{}
	r, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms), Plan: queued(3, 10), Learner: l, Batch: 100, Target: 12,
		Failures: []Failure{{Worker: 2, At: 355 * ms, Back: 700 * ms}}})
	if err != nil || !r.Reached {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, gs := range l.updates {
		sum := 0
		for _, g := range gs {
			sum += g.Samples
		}
		want := map[bool]int{true: 300, false: 200}[len(gs) == 3]
		if sum < want || sum > want+20 || len(gs) < 2 {
			t.Fatalf("update %d has %d samples of %d workers; want %d and at most a part of each of two more", i, sum, len(gs), want)
		}
	}
}

// Over links a queue takes what it takes without, where nothing limits them.
func TestQueueOverLinks(t *testing.T) {
	run := func(n *Network) Result {
		r, err := Run(Config{Times: steady(100*ms, 130*ms, 300*ms), Plan: queued(3, 8), Learner: &drawn{}, Batch: 64, Target: 10, Network: n, Bytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := run(nil), run(&Network{Hosts: []Host{{Workers: []star.Worker{0, 1, 2}, Servers: 1}}})
	if d := a.Time - b.Time; d < -time.Microsecond || d > time.Microsecond || a.Samples != b.Samples {
		t.Fatalf("%v and %d samples without links, %v and %d with", a.Time, a.Samples, b.Time, b.Samples)
	}
}

// No worker begins a part that is beyond the round once it has received that the last one was taken, however long that
// takes compared with parts: two workers with parts of 2 samples of 8 are done with a round of 16 in four parts each,
// not five.
func TestQueueHearsOfItsEnd(t *testing.T) {
	queue := modes.SSGD(2)
	queue.Queue = 4
	for _, latency := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		h := &records{}
		r, err := Run(Config{Times: steady(100*ms, 102*ms), Plan: queue, Pilot: h, Learner: &Tally{Noise: 100}, Batch: 8, Limit: 10 * time.Second, Latency: latency})
		if err != nil {
			t.Fatal(err)
		}
		if want := r.Updates * 16; r.Samples != want {
			t.Errorf("latency %v: %d samples in %d updates, want %d", latency, r.Samples, r.Updates, want)
		}
	}
}
