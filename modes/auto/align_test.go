package auto

import (
	"math"
	"slices"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// What slows all workers at the same time makes SSGD wait once for it, whatever plan it was seen under, also where less
// is known of one of them than of the others: SSGD is priced at what its rounds take.
func TestCommonSlowness(t *testing.T) {
	const n, batch, steps = 4, 64, 40
	common := func(at time.Duration) float64 { // three seconds of seven are 2.5 times as slow
		if at%(7*time.Second) < 3*time.Second {
			return 2.5
		}
		return 1
	}
	for _, c := range []struct {
		name  string
		plan  modes.Plan
		ratio float64       // of worker 3 to the others
		joins time.Duration // when worker 3 joins
		off   float64
	}{
		{"ssgd", modes.SSGD(n), 1, 0, 0.03},
		{"ssgd, and one has come later", modes.SSGD(n), 1, 12 * time.Second, 0.08},
		{"asgd", modes.ASGD(n), 1, 0, 0.03},
		{"asgd, and one is slow", modes.ASGD(n), 2, 0, 0.08},
	} {
		k, err := New(Config{Workers: n, Batch: batch}, c.plan)
		if err != nil {
			t.Fatal(err)
		}
		b := modes.NewBarrier(c.plan, n, 0)
		due := make([]time.Duration, n)
		for w := range due {
			due[w] = math.MaxInt64
		}
		step := make([]int64, n)
		took := make([]time.Duration, n)
		release := func(w star.Worker, at time.Duration) {
			s := 0.4 * common(at)
			if w == 3 {
				s *= c.ratio
			}
			took[w] = price.Seconds(s * (1 + 0.02*float64((int64(w)*7+step[w]*5)%11)/11))
			due[w] = at + took[w]
		}
		for w := range star.Worker(n) {
			if w == 3 && c.joins > 0 {
				k.Leave(w)
				b.Leave(w)
				continue
			}
			release(w, 0)
		}
		now, joined := time.Duration(0), c.joins == 0
		for step[0] < steps {
			now = slices.Min(due)
			first := star.Worker(slices.Index(due, now))
			due[first] = math.MaxInt64
			k.Observe(star.Record{Worker: first, Step: step[first], Compute: took[first], Samples: batch})
			step[first]++
			for _, f := range b.Arrive(first) {
				k.Fired(now, f.Workers, batch*len(f.Workers))
				for w := range f.Released() {
					release(w, now)
				}
				if now >= c.joins && !joined {
					joined = true
					k.Join(now, 3)
					b.Join(3)
					release(3, now)
				}
			}
		}
		f, h, ok := k.Forecast(now)
		if !ok {
			t.Fatal("nothing is known")
		}
		p, err := price.Over(modes.SSGD(n), h, f)
		if err != nil {
			t.Fatal(err)
		}
		// What its rounds would have taken since the oldest iteration that is remembered; the slowest takes 2 % more of what
		// all share.
		want, rounds := 0.0, 0.0
		for at := price.Seconds(oldest(k)); at < now; rounds++ {
			d := 0.4 * c.ratio * common(at) * 1.018
			at += price.Seconds(d)
			want += d
		}
		want /= rounds
		if got := p.Interval.Seconds(); math.Abs(got/want-1) > c.off {
			t.Errorf("%s: ssgd is priced at a round in %.3f s, and it takes %.3f", c.name, got, want)
		}
	}
}

// oldest is when the first began of the iterations that k remembers.
func oldest(k *Controller) float64 {
	first := math.Inf(1)
	for w := range k.obs.workers {
		first = min(first, k.obs.workers[w].begins.inOrder()[0])
	}
	return first
}

// A trial compares whole rounds with what its plan and the one before make of these: it does not matter when it is
// asked, and nothing that was slow meanwhile is forgotten.
func TestTrialIsWhole(t *testing.T) {
	const n, batch = 4, 64
	plan := modes.SSGD(n)
	plan.Queue = 32
	k, err := New(Config{Workers: n, Batch: batch, Queue: 32}, plan)
	if err != nil {
		t.Fatal(err)
	}
	k.Noise(1e6)
	all := []star.Worker{0, 1, 2, 3}
	const fixed, each = 10 * time.Millisecond, time.Millisecond // of an iteration, and of a sample
	var now, took, ssgd time.Duration
	rounds := func(many int, slow time.Duration) {
		for range many {
			ws := make([]puller, n)
			for w := range ws {
				ws[w] = puller{size: batch / 32, part: each * batch / 32, fixed: fixed}
			}
			ws[3].part *= slow
			lasts, samples, taken := playQueue(ws, n*batch)
			for w, s := range taken {
				c := time.Duration(s) * ws[w].part / (batch / 32)
				k.Observe(star.Record{Worker: star.Worker(w), Compute: c, Push: fixed, Samples: int(s)})
			}
			now += lasts
			k.Fired(now, all, int(samples))
			took, ssgd = took+lasts, ssgd+fixed+slow*each*batch
		}
	}
	rounds(8, 2)
	k.trials.running = &trial{from: modes.SSGD(n), predicted: 0.6, begun: now + 1, had: make([][]iteration, n)}
	rounds(1, 2) // has begun before
	took, ssgd = 0, 0
	rounds(5, 2)
	rounds(7, 1)
	f, h, ok := k.Forecast(now + 60*time.Millisecond)
	if !ok {
		t.Fatal("nothing is known")
	}
	if f.Times[3] > f.Times[0]*11/10 {
		t.Errorf("worker 3 is expected to take %v, and the others %v: it has been as fast as they are for seven rounds", f.Times[3], f.Times[0])
	}
	if d, change := k.judge(now+60*time.Millisecond, h, f); change {
		t.Error(d.Why)
	}
	want := 1 - took.Seconds()/ssgd.Seconds()
	if v := k.Verdict(); v == nil || math.Abs(v.Seen-want) > 0.05 {
		t.Errorf("%+v, want a gain of %.3f", v, want)
	}
}
