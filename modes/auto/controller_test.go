package auto_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/sim"
)

// pilot flies a simulated cluster by a Controller.
type pilot struct {
	c   *auto.Controller
	bad func(*star.Record) // spoils records
	ws  []star.Worker
}

func (p *pilot) Observe(r star.Record) {
	if p.bad != nil {
		p.bad(&r)
	}
	p.c.Observe(r)
}

func (p *pilot) Fired(at time.Duration, _ int64, gs []sim.Gradient, _ sim.Outcome) {
	p.ws = p.ws[:0]
	samples := 0
	for _, g := range gs {
		p.ws = append(p.ws, g.Worker)
		samples += g.Samples
	}
	p.c.Fired(at, p.ws, samples)
}

func (p *pilot) Decide(at time.Duration) (modes.Plan, string, bool) {
	d, change := p.c.Decide(at)
	return d.Plan, d.Why, change
}

// spend are times by worker, step and time.
type spend struct {
	n  int
	of func(w star.Worker, step int64, at time.Duration) time.Duration
	// Part of an iteration, 0 to 1, that does not depend on samples.
	fixed float64
}

func (s spend) Workers() int { return s.n }
func (s spend) Spend(w star.Worker, step int64, at time.Duration, load float64) sim.Spent {
	t := s.of(w, step, at)
	push := time.Duration(s.fixed * float64(t))
	return sim.Spent{Push: push, Compute: max(1, time.Duration(load*float64(t-push)))}
}

const batch = 64

func fly(t interface {
	Helper()
	Fatal(...any)
}, times sim.Times, noise float64, limit time.Duration, bad func(*star.Record)) (sim.Result, *auto.Controller) {
	t.Helper()
	n := times.Workers()
	c, err := auto.New(auto.Config{Workers: n, Batch: batch}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	c.Noise(noise)
	r, err := sim.Run(sim.Config{Times: times, Pilot: &pilot{c: c, bad: bad}, Learner: &sim.Tally{Noise: noise}, Batch: batch, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return r, c
}

// jitter is a number between 1−by and 1+by that depends on seed, worker and step alone.
func jitter(seed uint64, w star.Worker, step int64, by float64) float64 {
	x := seed*0x9e3779b97f4a7c15 + uint64(w)*0xbf58476d1ce4e5b9 + uint64(step)*0x94d049bb133111eb
	x ^= x >> 31
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	return 1 + by*(2*float64(x>>11)/(1<<53)-1)
}

// Times that only jitter never change the plan.
func TestNoFlappingOnNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		seed := rapid.Uint64().Draw(t, "seed")
		by := rapid.Float64Range(0, 0.04).Draw(t, "jitter")
		noise := rapid.SampledFrom([]float64{0, 300, 1e5}).Draw(t, "noise")
		r, c := fly(t, spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			return time.Duration(jitter(seed, w, step, by) * float64(100*time.Millisecond))
		}, fixed: .2}, noise, 12*time.Second, nil)
		if len(r.Switches) > 0 || !c.Plan().Equal(modes.SSGD(n)) {
			t.Errorf("%v", r.Switches)
		}
	})
}

// blips has each worker take 2.5 times as long in a quarter of its iterations, by chance.
func blips(w star.Worker, step int64) time.Duration {
	if jitter(5, w, step, 1) < 0.5 {
		return 250 * time.Millisecond
	}
	return 100 * time.Millisecond
}

// Workers that are slow by turns are left alone where they share processors that are full: what they lose by
// waiting others use. A worker that stays slow is met there, too.
func TestCrowded(t *testing.T) {
	for _, c := range []struct {
		name    string
		busy    float64 // 0: not measured
		slow    bool    // worker 2, all the time
		changes bool
		after   time.Duration
		silent  int // the number of workers on hosts that do not say how busy they are
	}{
		{"by turns, each on a host of its own", 0.4, false, true, 0, 0},
		{"by turns, nothing measured", 0, false, true, 0, 0},
		{"by turns, one host", 0.9, false, false, 0, 0},
		{"by turns, one host, and half of the workers do not say", 0.9, false, false, 0, 2},
		{"one, on one host", 0.9, true, true, 2 * time.Second, 0},
		{"one, on a host of its own", 0.4, true, true, 0, 0},
	} {
		r, _ := fly(t, spend{n: 4, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			if w == 2 && c.slow {
				return 3 * blips(w, step)
			}
			return blips(w, step)
		}, fixed: .2}, 1e5, 40*time.Second, func(r *star.Record) {
			if c.busy > 0 && int(r.Worker) >= c.silent {
				r.Telemetry.Set(star.HostCPU, c.busy)
			}
		})
		if (len(r.Switches) > 0) != c.changes {
			t.Errorf("%s: %v", c.name, r.Switches)
		} else if c.changes && r.Switches[0].At < c.after {
			t.Errorf("%s: changed at %v, want after %v", c.name, r.Switches[0].At, c.after)
		}
	}
}

// A straggler that moves from worker to worker is answered on full hosts, too, where it stays with each for some
// seconds; one that moves faster than that is not to be told from threads that change places.
func TestCrowdedMoves(t *testing.T) {
	for _, c := range []struct {
		stays   time.Duration
		changes bool
	}{{8 * time.Second, true}, {time.Second, false}} {
		r, _ := fly(t, spend{n: 4, of: func(w star.Worker, step int64, at time.Duration) time.Duration {
			d := jitter(6, w, step, .03) * float64(100*time.Millisecond)
			if int64(w) == int64(at/c.stays)%4 {
				d *= 3
			}
			return time.Duration(d)
		}, fixed: .2}, 1e5, 40*time.Second, func(r *star.Record) { r.Telemetry.Set(star.HostCPU, 0.9) })
		if (len(r.Switches) > 0) != c.changes {
			t.Errorf("with each for %v: %v", c.stays, r.Switches)
		}
	}
}

// Full hosts keep a job from leaving SSGD, and not from coming back to it.
func TestCrowdedComesBack(t *testing.T) {
	p := modes.SSGD(4)
	p.Shares = []int{4, 4, 124, 124}
	c, err := auto.New(auto.Config{Workers: 4, Batch: batch}, p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(sim.Config{Times: spend{n: 4, of: func(star.Worker, int64, time.Duration) time.Duration { return 100 * time.Millisecond }},
		Plan: p, Batch: batch, Limit: 20 * time.Second, Learner: &sim.Tally{},
		Pilot: &pilot{c: c, bad: func(r *star.Record) { r.Telemetry.Set(star.HostCPU, 0.9) }}})
	if err != nil || len(r.Switches) != 1 || !c.Plan().Equal(modes.SSGD(4)) {
		t.Errorf("%v: %v (%v)", c.Plan(), r.Switches, err)
	}
}

// On full hosts a plan is not exchanged for another one, only for SSGD: what its workers take says nothing of other
// plans.
func TestCrowdedStays(t *testing.T) {
	for _, busy := range []float64{0.9, 0.4} {
		p := modes.XOrder(4, 3)
		c, err := auto.New(auto.Config{Workers: 4, Batch: batch, Queue: auto.QueueParts}, p)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(sim.Config{Times: spend{n: 4, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			d := jitter(7, w, step, .03) * float64(100*time.Millisecond)
			if w >= 2 {
				d *= 3
			}
			return time.Duration(d)
		}}, Plan: p, Batch: batch, Limit: 40 * time.Second, Learner: &sim.Tally{},
			Pilot: &pilot{c: c, bad: func(r *star.Record) { r.Telemetry.Set(star.HostCPU, busy) }}})
		if err != nil {
			t.Fatal(err)
		}
		others := 0
		for _, s := range r.Switches {
			if !s.Plan.Equal(modes.SSGD(4)) {
				others++
			}
		}
		if (others > 0) != (busy < 0.75) {
			t.Errorf("%.1f of the processors busy: %v", busy, r.Switches)
		}
	}
}

// Staleness that may cost twice as much as believed: by the believed cost ASGD saves 8 % here, and SSGD is not left for
// it. If ASGD already runs and saves something by the believed cost, SSGD comes back by the same measure.
func TestCautious(t *testing.T) {
	const n = 8
	for _, c := range []struct {
		jitter         float64
		plan           modes.Plan
		believed, dear float64 // what ASGD saves at least as believed, and at most if staleness is twice as dear
		changes        int
	}{{.21, modes.SSGD(n), 0.07, 0.07, 0}, {.15, modes.ASGD(n), 0.03, 0.005, 1}} {
		k, err := auto.New(auto.Config{Workers: n, Batch: batch}, c.plan)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(sim.Config{Times: spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			return time.Duration(jitter(1, w, step, c.jitter) * float64(100*time.Millisecond))
		}}, Plan: c.plan, Pilot: &pilot{c: k}, Learner: &sim.Tally{}, Batch: batch, Limit: 20 * time.Second})
		if err != nil || len(r.Switches) != c.changes || !k.Plan().Equal(modes.SSGD(n)) {
			t.Errorf("from %v: %v (%v)", c.plan, r.Switches, err)
		}
		f, h, _ := k.Forecast(20 * time.Second)
		gain := func() float64 {
			home, err := price.Over(modes.SSGD(n), h, f)
			if err != nil {
				t.Fatal(err)
			}
			asgd, err := price.Over(modes.ASGD(n), h, f)
			if err != nil {
				t.Fatal(err)
			}
			return 1 - asgd.Cost.Seconds()/home.Cost.Seconds()
		}
		believed := gain()
		f.Rate = price.CautiousRate
		if dear := gain(); believed < c.believed || dear > c.dear {
			t.Errorf("from %v: ASGD saves %.3f as believed, %.3f if staleness is dearer: this test says nothing", c.plan, believed, dear)
		}
	}
}

// Five iterations are not needed to see that a worker takes three times as long; they are needed if it did so only
// once.
func TestObvious(t *testing.T) {
	first := func(n int, by float64, slow func(step int64) bool) time.Duration {
		r, _ := fly(t, spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			d := time.Duration(600*jitter(9, w, step, .01)) * time.Millisecond
			if w == 2 && slow(step) {
				f := by
				if step == 0 {
					f = max(by, 2) // it has something to build
				}
				d = time.Duration(f * float64(d))
			}
			return d
		}, fixed: .1}, 300, time.Minute, nil)
		if len(r.Switches) == 0 {
			return time.Hour
		}
		return r.Switches[0].At
	}
	always := func(int64) bool { return true }
	if at := first(8, 3, always); at < 1900*time.Millisecond || at > 2*1900*time.Millisecond {
		t.Errorf("three times as slow: changed at %v, want at the end of the second round", at)
	}
	for only := range int64(3) {
		if at := first(8, 3, func(step int64) bool { return step == only }); at < 4*600*time.Millisecond+1800*time.Millisecond {
			t.Errorf("slow in iteration %d alone: changed at %v, before the fifth round", only, at)
		}
	}
	// Not half longer than most, or not worth 20 %: that can wait until more is known.
	if at := first(8, 1.45, always); at < 5*850*time.Millisecond || at > time.Minute {
		t.Errorf("1.45 times as slow: changed at %v, want after the fifth round", at)
	}
	if at := first(3, 1.6, always); at < 940*time.Millisecond || at > 3*960*time.Millisecond {
		t.Errorf("1.6 times as slow, one of three: changed at %v, want within the third round", at)
	}
}

// Workers that were seen twice cannot be ordered among those that are alike: the first plan is made against the one
// slow worker, does not wait for it, and has no shares.
func TestFirstPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(4, 12).Draw(t, "n")
		seed := rapid.Uint64().Draw(t, "seed")
		who := star.Worker(rapid.IntRange(0, n-1).Draw(t, "who"))
		slow := rapid.Float64Range(1.8, 5).Draw(t, "slow")
		r, _ := fly(t, spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			d := 600 * jitter(seed, w, step, .05)
			if w == who {
				d *= slow
			}
			return time.Duration(d * float64(time.Millisecond))
		}, fixed: 0}, 300, 10*time.Second, nil)
		if len(r.Switches) == 0 {
			t.Fatal("no change")
		}
		p := r.Switches[0].Plan
		if p.Shares != nil {
			t.Errorf("shares by two iterations of each: %v", p)
		}
		for _, g := range p.Groups {
			if slices.Contains(g.Members, who) && len(g.Members) > 1 && g.Quorum == len(g.Members) || len(g.Riders) > n/2 {
				t.Errorf("%v, where worker %d is slow", p, who)
			}
		}
	})
}

// Workers that were seen a few times are distinguished if their times differ by a fifth. A worker with times closer to
// others' has the iterations of all of them, and later its own.
func TestAlike(t *testing.T) {
	c, err := auto.New(auto.Config{Workers: 5, Batch: batch}, modes.SSGD(5))
	if err != nil {
		t.Fatal(err)
	}
	own := []time.Duration{100, 102, 104, 110, 300}
	for step := range int64(20) {
		for w, d := range own {
			d *= time.Millisecond
			c.Observe(star.Record{Worker: star.Worker(w), Step: step, Compute: d, Samples: batch})
		}
		if step < 1 {
			continue
		}
		f, h, ok := c.Forecast(time.Hour) // no worker computes
		if !ok {
			t.Fatal("nothing is known")
		}
		for w, d := range own {
			want := 104 * time.Millisecond // the mean of the first four
			if w == 4 || step >= 8 {
				want = d * time.Millisecond
			}
			if (f.Times[w] - want).Abs() > time.Microsecond {
				t.Errorf("after %d iterations worker %d is expected to take %v, want %v", step+1, w, f.Times[w], want)
			}
			if others := len(slices.Compact(slices.Sorted(slices.Values(h[w])))); others > 1 != (w < 4 && step < 8) {
				t.Errorf("after %d iterations worker %d has %v", step+1, w, h[w])
			}
			if h[w][0] != d*time.Millisecond {
				t.Errorf("after %d iterations worker %d has %v, its own are to be the first", step+1, w, h[w])
			}
		}
	}
}

// Three iterations in a row that are half longer than the median are a new level, six that are a fifth longer, and two
// are neither: what was before is no longer part of what a worker is expected to take.
func TestNewLevel(t *testing.T) {
	for _, c := range []struct {
		factor  float64
		times   int
		forgets bool
	}{{3, 2, false}, {3, 3, true}, {1.3, 5, false}, {1.3, 6, true}, {0.7, 5, false}, {0.7, 6, true}, {0.3, 3, false}, {1.1, 20, false}} {
		k, err := auto.New(auto.Config{Workers: 1, Batch: batch}, modes.SSGD(1))
		if err != nil {
			t.Fatal(err)
		}
		for step := range int64(20 + c.times) {
			d := 100 * time.Millisecond
			if step >= 20 {
				d = time.Duration(c.factor * float64(d))
			}
			k.Observe(star.Record{Step: step, Compute: d, Samples: batch})
		}
		_, h, ok := k.Forecast(time.Hour)
		if !ok {
			t.Fatal("nothing is known")
		}
		if old := slices.Contains(h[0], 100*time.Millisecond); old == c.forgets {
			t.Errorf("%d iterations of %v times the median: the times before are remembered: %v", c.times, c.factor, old)
		}
		if c.forgets && len(h[0]) != c.times {
			t.Errorf("%d iterations of %v times the median: %d are remembered", c.times, c.factor, len(h[0]))
		}
	}
}

// If a worker is slow again and again, the controller does not return to SSGD each time; once no worker is slow any
// more, it returns in the end. A plan made for one worker does not help if another worker is slow each time.
func TestComesBackSlower(t *testing.T) {
	for _, rotates := range []bool{false, true} {
		const period, n = 60 * time.Second, 5
		r, c := fly(t, spend{n: n, of: func(w star.Worker, step int64, at time.Duration) time.Duration {
			d := jitter(4, w, step, .03) * float64(400*time.Millisecond)
			turn := int(at / period)
			if !rotates {
				turn = 0
			}
			if int(w) == turn%n && at%period > period/2 && at < 10*period {
				d *= 3
			}
			return time.Duration(d)
		}, fixed: .1}, 300, 20*period, nil)
		home := 0
		var last sim.Switch
		for _, s := range r.Switches {
			if s.Plan.Equal(modes.SSGD(n)) {
				home++
			} else {
				last = s
			}
		}
		if home > 3 {
			t.Errorf("rotates %v: SSGD came back %d times in 10 periods, want a few times at most: %v", rotates, home, r.Switches)
		}
		if !c.Plan().Equal(modes.SSGD(n)) {
			t.Errorf("rotates %v: nobody is slow for 10 periods, and still %v: %v", rotates, c.Plan(), r.Switches)
		}
		for _, g := range last.Plan.Groups {
			if rotates && (len(g.Riders) > 0 || last.Plan.Shares != nil || len(last.Plan.Groups) > 1 && len(g.Members) > 1) {
				t.Errorf("all workers are slow by turns, and the last plan is %v", last)
			}
		}
	}
}

// A plan of shares, or one that leaves a worker behind, is given up for what is seen only where that is less than was
// priced: not because the reason for it has gone meanwhile.
func TestNoRevertOfWhatHeld(t *testing.T) {
	r, _ := fly(t, spend{n: 6, of: func(w star.Worker, step int64, at time.Duration) time.Duration {
		d := jitter(8, w, step, .03) * float64(200*time.Millisecond)
		if w == 2 && at > 10*time.Second && at < 14*time.Second {
			d *= 3
		}
		return time.Duration(d)
	}, fixed: .1}, 300, time.Minute, nil)
	if len(r.Switches) < 2 {
		t.Fatalf("%v, want there and back", r.Switches)
	}
	for _, s := range r.Switches {
		if strings.Contains(s.Why, "back to") {
			t.Errorf("%v", s)
		}
	}
}

// counter counts the decisions that it is asked for.
type counter struct{ asked int }

func (c *counter) Decide(f price.Forecast) (price.Decision, error) {
	c.asked++
	d, err := price.Of(modes.SSGD(len(f.Times)), f)
	return price.Decision{Plan: modes.SSGD(len(f.Times)), Cost: d.Cost}, err
}

// A job of many workers is not priced again in a round in which all workers take what they took before, and is priced
// at once when a worker does not.
func TestLooksWhenSomethingChanges(t *testing.T) {
	for _, n := range []int{64, 100} {
		d := new(counter)
		c, err := auto.New(auto.Config{Workers: n, Batch: 1, Decider: d}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		var all []star.Worker
		for w := range n {
			all = append(all, star.Worker(w))
		}
		at, step := time.Duration(0), int64(0)
		rounds := func(k int, slow float64) int {
			was := d.asked
			for range k {
				for w := range n {
					took := 200 * time.Millisecond
					if w == 7 {
						took = time.Duration(float64(took) * slow)
					}
					c.Observe(star.Record{Worker: star.Worker(w), Step: step, Compute: took, Samples: 1})
				}
				step++
				at += 200 * time.Millisecond
				c.Fired(at, all, n)
				c.Decide(at)
			}
			return d.asked - was
		}
		rounds(33, 1)
		want, least := 40, 3 // decisions in 40 rounds, and in 4 with a worker that becomes slow
		if n > 64 {
			want = 5
		}
		if got := rounds(40, 1); got != want {
			t.Errorf("%d workers: %d decisions in 40 rounds in which nothing changed, want %d", n, got, want)
		}
		if got := rounds(4, 3); got < least {
			t.Errorf("%d workers: %d decisions in 4 rounds in which worker 7 became slow, want at least %d", n, got, least)
		}
	}
}

// A worker that gets slow is met with another plan, at once and for long; when it is as fast as
// the others again, SSGD comes back: when staying has cost the cost of the change, three rounds of at most 63 % of 300
// ms, at a hundredth at least.
func TestThereAndBack(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		n := 3 + rnd.IntN(3)
		who := star.Worker(rnd.IntN(n))
		slow := 1.8 + 1.2*rnd.Float64()
		const from, to = 5 * time.Second, 12 * time.Second
		r, c := fly(t, spend{n: n, of: func(w star.Worker, step int64, at time.Duration) time.Duration {
			d := jitter(seed, w, step, .03) * float64(100*time.Millisecond)
			if w == who && at >= from && at < to {
				d *= slow
			}
			return time.Duration(d)
		}, fixed: float64(rnd.IntN(3)) / 2}, 500, to+75*time.Second, nil)
		if len(r.Switches) < 2 || len(r.Switches) > 8 {
			t.Errorf("seed %d: %d changes: %v", seed, len(r.Switches), r.Switches)
			continue
		}
		first := r.Switches[0]
		if first.At < from || first.At > from+6*time.Second || !strings.Contains(first.Why, fmt.Sprintf("worker %d takes", who)) {
			t.Errorf("seed %d: the first change: %v", seed, first)
		}
		if !c.Plan().Equal(modes.SSGD(n)) {
			t.Errorf("seed %d: at the end %v: %v", seed, c.Plan(), r.Switches)
		}
		for i, s := range r.Switches[1:] {
			if s.At-r.Switches[i].At < time.Second { // ten rounds
				t.Errorf("seed %d: changes at %v and %v", seed, r.Switches[i].At, s.At)
			}
		}
	}
}

// Telemetry that cannot be true: SSGD, and nothing else until it can.
func TestBadTelemetry(t *testing.T) {
	slow := spend{n: 4, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
		d := 100 * time.Millisecond
		if w == 3 {
			d *= 3
		}
		return time.Duration(jitter(1, w, step, .02) * float64(d))
	}}
	good, _ := fly(t, slow, 500, 40*time.Second, nil)
	if len(good.Switches) == 0 {
		t.Fatal("a slow worker changes nothing")
	}
	for name, bad := range map[string]func(*star.Record){
		"negative":    func(r *star.Record) { r.Compute = -time.Second },
		"zero":        func(r *star.Record) { r.Compute, r.Push = 0, 0 },
		"a long time": func(r *star.Record) { r.Compute = math.MaxInt64 / 2 },
		"overflow":    func(r *star.Record) { r.Compute, r.Load = math.MaxInt64, math.MaxInt64 },
		"no samples":  func(r *star.Record) { r.Samples = 0 },
	} {
		for _, from := range []int64{0, 200} {
			broken := 0
			r, c := fly(t, slow, 500, 40*time.Second, func(r *star.Record) {
				if r.Worker == 1 && r.Step >= from {
					bad(r)
					broken++
				}
			})
			if !c.Plan().Equal(modes.SSGD(4)) || broken == 0 {
				t.Errorf("%s from step %d: %v, %v", name, from, c.Plan(), r.Switches)
			}
			if from == 0 && len(r.Switches) > 0 {
				t.Errorf("%s: %v", name, r.Switches)
			}
			if last := len(r.Switches) - 1; from > 0 && (last < 1 || !strings.Contains(r.Switches[last].Why, "worker 1 sends invalid records")) {
				t.Errorf("%s from step %d: %v", name, from, r.Switches)
			}
		}
	}
	c, _ := auto.New(auto.Config{Workers: 4, Batch: 1}, modes.SSGD(4))
	c.Noise(math.NaN())
	c.Noise(-1)
	c.Noise(math.Inf(1))
	c.Drift(math.NaN(), 1)
	c.Drift(1, math.NaN())
	c.Observe(star.Record{Worker: 99})
	if _, change := c.Decide(time.Hour); change {
		t.Error("decided without knowing anything")
	}
}

// A plan that does not bring what was promised is given up again, and not tried again soon.
func TestRevert(t *testing.T) {
	lie := &liar{plan: modes.XOrder(4, 2)}
	c, err := auto.New(auto.Config{Workers: 4, Batch: batch, Decider: lie}, modes.SSGD(4))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	times := spend{n: 4, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
		// A worker that is slow in SSGD is fast; all get slow when they do not wait: a shared link.
		if n > 0 {
			return 400 * time.Millisecond
		}
		return 100 * time.Millisecond
	}}
	// the records do not show it
	p := &pilot{c: c, bad: func(r *star.Record) { r.Push, r.Compute = 0, 100*time.Millisecond }}
	var changes []string
	r, err := sim.Run(sim.Config{Times: times, Batch: batch, Limit: 60 * time.Second, Learner: &sim.Tally{},
		Pilot: &watch{p, func(why string) { n = 1 - n; changes = append(changes, why) }}})
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) < 2 || !strings.Contains(changes[1], "back to ssgd: x=2 was predicted to gain") {
		t.Fatalf("%v", changes)
	}
	if len(changes) > 10 { // it is left alone for longer each time
		t.Errorf("%d changes: %v", len(changes), r.Switches)
	}
	if len(changes) >= 5 {
		if a, b := r.Switches[2].At-r.Switches[1].At, r.Switches[4].At-r.Switches[3].At; b < a*3/2 {
			t.Errorf("tried again after %v, then after %v", a, b)
		}
	}
}

// liar promises half the cost for a plan.
type liar struct{ plan modes.Plan }

func (l *liar) Decide(f price.Forecast) (price.Decision, error) {
	d, err := price.Of(modes.SSGD(len(f.Times)), f)
	return price.Decision{Plan: l.plan, Cost: d.Cost / 2, Why: "a lie"}, err
}

type watch struct {
	*pilot
	changed func(why string)
}

func (w *watch) Decide(at time.Duration) (modes.Plan, string, bool) {
	p, why, change := w.pilot.Decide(at)
	if change {
		w.changed(why)
	}
	return p, why, change
}

// Deadlines follow what is measured.
func TestDeadline(t *testing.T) {
	c, _ := auto.New(auto.Config{Workers: 2, Batch: 1}, modes.SSGD(2))
	if _, ok := c.Deadline(0); ok {
		t.Error("a deadline without a measurement")
	}
	for step := range int64(40) {
		d := 100 * time.Millisecond
		if step%2 == 0 {
			d = 110 * time.Millisecond
		}
		c.Observe(star.Record{Worker: 0, Step: step, Compute: d, Samples: 1})
		c.Observe(star.Record{Worker: 1, Step: step, Compute: 10 * d, Samples: 1})
	}
	a, ok := c.Deadline(0)
	b, _ := c.Deadline(1)
	// 105 ms, deviation 5 ms
	if want := 105*time.Millisecond + time.Duration(10*1.4826*5*float64(time.Millisecond)); !ok || (a-want).Abs() > time.Microsecond || (b-10*a).Abs() > time.Microsecond {
		t.Errorf("%v and %v, want %v and ten times that", a, b, want)
	}
}

// Where iterations hardly vary, a deadline leaves half more than the longest that was seen.
func TestDeadlineOfSteadyWorkers(t *testing.T) {
	c, _ := auto.New(auto.Config{Workers: 1, Batch: 1}, modes.SSGD(1))
	for step := range int64(20) {
		d := 100 * time.Millisecond
		if step == 7 {
			d = 120 * time.Millisecond
		}
		c.Observe(star.Record{Step: step, Compute: d, Samples: 1})
	}
	if d, ok := c.Deadline(0); !ok || (d-180*time.Millisecond).Abs() > time.Microsecond {
		t.Errorf("%v, want 180ms", d)
	}
}

// waverer wants another plan every other time.
type waverer struct{ times int }

func (w *waverer) Decide(f price.Forecast) (price.Decision, error) {
	n := len(f.Times)
	d, err := price.Of(modes.SSGD(n), f)
	if w.times++; w.times%2 == 0 {
		return price.Decision{Plan: modes.SSGD(n), Cost: d.Cost}, err
	}
	return price.Decision{Plan: modes.ASGD(n), Cost: d.Cost * 4 / 5}, err
}

// Nothing is done for a decider that changes its mind, where it promises less than would justify to be rash.
func TestConfirm(t *testing.T) {
	w := new(waverer)
	c, err := auto.New(auto.Config{Workers: 3, Batch: batch, Decider: w}, modes.SSGD(3))
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(sim.Config{Times: spend{n: 3, of: func(star.Worker, int64, time.Duration) time.Duration { return 100 * time.Millisecond }},
		Batch: batch, Limit: 20 * time.Second, Learner: &sim.Tally{}, Pilot: &pilot{c: c}})
	if err != nil || len(r.Switches) > 0 || w.times < 50 {
		t.Errorf("%v after %d decisions (%v)", r.Switches, w.times, err)
	}
}
