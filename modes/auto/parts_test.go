package auto

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// records lets c observe the given number of records of each worker. Its equal share takes whole(w) seconds, a part
// costs q of that, and times scatter by the given factor.
func records(c *PartCosts, n, many int, samples, parts float64, q func(w int) float64, whole func(w int) float64, r *rand.Rand, scatter float64) {
	for range many {
		for w := range n {
			c.Observe(star.Worker(w), samples, parts, whole(w)*load(q(w), samples, parts, c.batch)*math.Exp(scatter*r.NormFloat64()))
		}
	}
}

func everybody(star.Worker) bool { return true }

func TestWhatAPartCosts(t *testing.T) {
	one := func(int) float64 { return 1 }
	all := func(q float64) func(int) float64 { return func(int) float64 { return q } }
	for _, c := range []struct {
		name string
		live func(c *PartCosts, n int, r *rand.Rand)
		want float64 // below 0: it is not known
		off  float64
	}{
		{"one size says nothing", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 30, 32, 1, all(0.1), one, r, 0)
		}, -1, 0},
		{"without scatter it is exact", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 32, 1, all(0.1), one, r, 0)
			records(c, n, 8, 32, 8, all(0.1), one, r, 0)
		}, 0.1, 1e-9},
		{"nothing", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 32, 1, all(0), one, r, 0.05)
			records(c, n, 8, 32, 8, all(0), one, r, 0.05)
		}, 0, 0.03},
		{"all of it", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 32, 1, all(1), one, r, 0.02)
			records(c, n, 8, 32, 4, all(1), one, r, 0.02)
		}, 1, 0.06},
		{"shares of different sizes say it as well", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 32, 1, all(0.3), one, r, 0)
			records(c, n, 8, 8, 1, all(0.3), one, r, 0)
		}, 0.3, 1e-9},
		{"between two queues", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 40, 10, all(0.05), one, r, 0)
			records(c, n, 8, 40, 2, all(0.05), one, r, 0)
		}, 0.05, 1e-9},
		{"who is sure of another one may have become slower just then", func(c *PartCosts, n int, r *rand.Rand) {
			q := func(w int) float64 { return []float64{0.05, 0.1, 0.1, 0.4}[w] }
			records(c, n, 8, 32, 1, q, one, r, 0.002)
			records(c, n, 8, 32, 8, q, one, r, 0.002)
		}, 0.1, 0.01},
		{"a quarter of the records took ten times as long", func(c *PartCosts, n int, r *rand.Rand) {
			k := 0
			now := func(int) float64 {
				if k++; k%4 == 0 {
					return 10
				}
				return 1
			}
			for w := range n {
				for i := range 17 {
					parts := 1.
					if i > 7 {
						parts = 8
					}
					c.Observe(star.Worker(w), 32, parts, now(w)*load(0.1, 32, parts, 32))
				}
			}
		}, 0.1, 1e-9},
		{"too noisy to be known", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 1, 32, 1, all(0.1), one, r, 0)
			records(c, n, 4, 27, 1, all(0.1), one, r, 0.3)
		}, -1, 0},
		{"all become slower at once, at another time", func(c *PartCosts, n int, r *rand.Rand) {
			twice := func(int) float64 { return 2 }
			records(c, n, 20, 32, 1, all(0.1), one, r, 0)
			records(c, n, 10, 32, 1, all(0.1), twice, r, 0)
			records(c, n, 10, 32, 8, all(0.1), twice, r, 0)
			records(c, n, 40, 32, 8, all(0.1), one, r, 0)
		}, 0.1, 1e-9},
		{"one becomes slow as the queue begins: the others know better", func(c *PartCosts, n int, r *rand.Rand) {
			late := func(w int) float64 { return []float64{1, 1, 1, 3}[w] }
			records(c, n, 10, 32, 1, all(0.02), one, r, 0.01)
			records(c, n, 10, 32, 8, all(0.02), late, r, 0.01)
		}, 0.02, 0.03},
		{"parts of many sizes, as runs of the stream end: two or three of 38 samples", func(c *PartCosts, n int, r *rand.Rand) {
			records(c, n, 8, 32, 1, all(0.1), one, r, 0.01)
			for i := range 30 {
				records(c, n, 1, 38, float64(2+i%2), all(0.1), one, r, 0.01)
				records(c, n, 1, 40, float64(2+i%3/2), all(0.1), one, r, 0.01)
			}
		}, 0.1, 0.05},
		{"another size comes once in a while: what was left", func(c *PartCosts, n int, r *rand.Rand) {
			for range 8 {
				records(c, n, 1, 32, 1, all(0.1), one, r, 0)
				records(c, n, 1, 5, 1, all(0.1), one, r, 0)
			}
			for range 8 {
				records(c, n, 2, 32, 8, all(0.1), one, r, 0)
				records(c, n, 1, 30, 10, all(0.1), one, r, 0)
			}
		}, 0.1, 1e-9},
	} {
		const n = 4
		c2 := NewPartCosts(n, 32)
		c.live(c2, n, rand.New(rand.NewPCG(1, 2)))
		got, ok := c2.Share(everybody)
		if ok != (c.want >= 0) || ok && math.Abs(got-c.want) > c.off {
			t.Errorf("%s: a part costs %.4f of an iteration, known: %v; want %.4f", c.name, got, ok, c.want)
		}
	}
}

// What all have become slower by as the queue began looks like dear parts. The next change of size tells.
func TestPartsAreNotSlowness(t *testing.T) {
	const n = 4
	c := NewPartCosts(n, 32)
	r := rand.New(rand.NewPCG(3, 4))
	none := func(int) float64 { return 0 }
	records(c, n, 10, 32, 1, none, func(int) float64 { return 1 }, r, 0.02)
	slower := func(int) float64 { return 1.5 }
	records(c, n, 10, 32, 8, none, slower, r, 0.02)
	first, _ := c.Share(everybody)
	records(c, n, 10, 32, 2, none, slower, r, 0.02)
	second, ok := c.Share(everybody)
	if !ok || first < 0.05 || second > 0.6*first {
		t.Fatalf("a part costs %v of an iteration, and after parts of another size %v: want much less", first, second)
	}
}

// A worker with a new process has no past.
func TestPartsOfWhoHasComeAnew(t *testing.T) {
	c := NewPartCosts(2, 32)
	r := rand.New(rand.NewPCG(5, 6))
	one := func(int) float64 { return 1 }
	some := func(int) float64 { return 0.2 }
	records(c, 2, 8, 32, 1, some, one, r, 0)
	records(c, 2, 8, 32, 8, some, one, r, 0)
	c.forget(0)
	if got, ok := c.Share(everybody); !ok || math.Abs(got-0.2) > 1e-9 {
		t.Fatalf("%v: want what the other one has shown", got)
	}
	c.forget(1)
	if got, ok := c.Share(everybody); ok {
		t.Fatalf("%v of nobody", got)
	}
}

// drawn plays a job of four workers under the controller, the last of them three times as slow. Each round runs as type
// queue does it, and a part costs q of an iteration. tell: records say how many parts an iteration has.
func drawn(t *testing.T, q float64, exchange time.Duration, rounds int, tell bool) (plans []string, took time.Duration, last *Controller) {
	const n, batch = 4, 32
	c, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Ring: true, Own: star.Record.Own}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	c.Noise(1e6)
	r := rand.New(rand.NewPCG(7, 8))
	whole := []float64{0.1, 0.1, 0.1, 0.3}
	all := []star.Worker{0, 1, 2, 3}
	now := time.Duration(0)
	for step := range rounds {
		p := c.Plan()
		var ws []puller
		total := 0.0
		y := make([]float64, n)
		for w := range n {
			y[w] = whole[w] * math.Exp(0.02*r.NormFloat64())
			size := float64(p.Part(star.Worker(w), batch))
			ws = append(ws, puller{size: size, part: price.Seconds(y[w] * load(q, size, 1, batch))})
			total += float64(p.Share(star.Worker(w), batch))
		}
		lasts, samples, taken := playQueue(ws, total)
		now += lasts + exchange
		for w := range n {
			k := taken[w]
			parts := math.Round(k / ws[w].size)
			rec := star.Record{Worker: star.Worker(w), Step: int64(step), At: now, Samples: int(k), Compute: price.Seconds(y[w] * load(q, k, parts, batch)), Push: exchange}
			if tell {
				rec.Telemetry.Set(star.Parts, parts)
			}
			c.Observe(rec)
		}
		c.Fired(now, all, int(samples))
		if d, change := c.Decide(now); change {
			plans = append(plans, d.Plan.String())
		}
		if v := c.Verdict(); v != nil && v.Reverted {
			plans = append(plans, "reverted")
		}
	}
	return plans, now, c
}

// If parts are expensive, auto goes on from a queue of eight to fewer or to shares, and takes what these take. If they
// cost nothing, or no record says how many there are, it stays.
func TestControllerOfDearParts(t *testing.T) {
	cheap, _, c := drawn(t, 0, 5*time.Millisecond, 400, true)
	if c.Plan().Queue != QueueParts {
		t.Errorf("where parts cost nothing its plans are %q", cheap)
	}
	old, slow, c := drawn(t, 0.1, 5*time.Millisecond, 400, false)
	if c.Plan().Queue != 0 && c.Plan().Queue != QueueParts {
		t.Errorf("where nobody says how many parts there are its plans are %q", old)
	}
	dear, fast, c := drawn(t, 0.1, 5*time.Millisecond, 400, true)
	if c.Plan().Queue > 2 || c.Plan().Equal(modes.SSGD(4)) {
		t.Errorf("where a part costs a tenth of an iteration its plans are %q", dear)
	}
	if fast.Seconds() > 0.95*slow.Seconds() {
		t.Errorf("it takes %v with %q, and %v with %q where nothing is known of parts", fast, dear, slow, old)
	}
	t.Logf("%q, %q %v, %q %v", cheap, old, slow, dear, fast)
}

// An exchange that is in no price is seen of every plan: what the trial of the plan before has shown of it counts when
// the next one is judged.
func TestTrialsBesideTrials(t *testing.T) {
	const n, batch = 4, 64
	from, plan := modes.SSGD(n), modes.SSGD(n)
	from.Queue, plan.Queue = 2, 8
	for _, c := range []struct {
		exchange time.Duration
		reverted bool
	}{{0, false}, {50 * time.Millisecond, false}, {90 * time.Millisecond, true}} { // 50 of both, or 50 of the plan before and 90 of this one
		k, err := New(Config{Workers: n, Batch: batch, Queue: 8, Ring: true, Own: star.Record.Own}, plan)
		if err != nil {
			t.Fatal(err)
		}
		var now time.Duration
		rounds := func(many int) {
			for range many {
				var ws []puller
				for w := range n {
					size := float64(plan.Part(star.Worker(w), batch))
					ws = append(ws, puller{size: size, part: []time.Duration{1, 1, 1, 3}[w] * time.Duration(size) * time.Millisecond})
				}
				lasts, samples, taken := playQueue(ws, n*batch)
				for w, s := range taken {
					k.Observe(star.Record{Worker: star.Worker(w), Compute: []time.Duration{1, 1, 1, 3}[w] * time.Duration(s) * time.Millisecond, Samples: int(s)})
				}
				now += lasts + c.exchange
				k.Fired(now, []star.Worker{0, 1, 2, 3}, int(samples))
			}
		}
		rounds(8)
		k.trials.running = &trial{from: from, predicted: 0.1, begun: now + 1, had: make([][]iteration, n)}
		rounds(12)
		f, h, _ := k.Forecast(now)
		before, err := price.Over(from, h, f)
		if err != nil {
			t.Fatal(err)
		}
		if took := before.Interval; c.exchange > 0 {
			k.trials.corrections = []correction{{from, took.Seconds() / (took + 50*time.Millisecond).Seconds(), now + time.Hour}}
		}
		if d, change := k.judge(now, h, f); change != c.reverted {
			t.Errorf("exchanges of %v: reverted: %v %s", c.exchange, change, d.Why)
		}
	}
}

// Under a queue all workers take the same time, and the slow one gets fewer samples. That it would take longer for a
// share is still seen.
func TestQueueFits(t *testing.T) {
	plan := modes.SSGD(3)
	plan.Queue = 8
	c, err := New(Config{Workers: 3, Batch: 16, Queue: 8}, plan)
	if err != nil {
		t.Fatal(err)
	}
	samples := []int{20, 20, 8}
	for step := range int64(20) {
		for w, k := range samples {
			k := k + int(step)%2*k/4 // in the same time
			took := map[int]time.Duration{0: 1125, 1: 1125, 2: 1350}[w] * time.Millisecond
			c.Observe(star.Record{Worker: star.Worker(w), Step: step, Samples: k, Compute: took, Push: 100 * time.Millisecond})
		}
	}
	f, _, ok := c.Forecast(time.Minute)
	// about: 0.1 s and 16 samples
	want := []time.Duration{900 * time.Millisecond, 900 * time.Millisecond, 2500 * time.Millisecond}
	for w := range want {
		if d := f.Times[w] - want[w]; !ok || d < -want[w]/8 || d > want[w]/8 {
			t.Fatalf("an equal share is expected to take %v, %v; want %v", f.Times, ok, want)
		}
	}
}
