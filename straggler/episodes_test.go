package straggler_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/sim"
	"star/straggler"
)

const members = 4

// injured are the times of workers; from one time to another, one worker computes factor times as long. Single times
// vary lognormally, with a heavy tail.
type injured struct {
	compute, push float64 // seconds
	spread        float64 // standard deviation of the logarithm
	seed          uint64
	victim        star.Worker
	factor        float64
	from, to      time.Duration
}

func (i injured) Workers() int { return members }

func (i injured) Spend(w star.Worker, step int64, at time.Duration, load float64) sim.Spent {
	rnd := rand.New(rand.NewPCG(i.seed<<8|uint64(w), uint64(step)<<20^uint64(load*1024)))
	noisy := func(s float64) float64 {
		s *= math.Exp(i.spread * rnd.NormFloat64())
		if rnd.Float64() < 0.02 {
			s *= 1 + 2*rnd.Float64()
		}
		return s
	}
	compute := noisy(i.compute) * (0.03 + 0.97*load) // each part of a batch costs 3 %
	if w == i.victim && at >= i.from && at < i.to {
		compute *= i.factor
	}
	return sim.Spent{Compute: max(1, time.Duration(compute*1e9)), Push: time.Duration(noisy(i.push) * 1e9)}
}

// idle is a sim.Learner that learns nothing.
type idle struct{}

func (idle) Begin(int, int)                               {}
func (idle) Release(star.Worker, int)                     {}
func (idle) Draw(star.Worker, int)                        {}
func (idle) Update(int64, []sim.Gradient) (o sim.Outcome) { return o }

// observer shows a detector the records of a simulated job. The plan changes at given times.
type observer struct {
	detector *straggler.Detector
	plans    []modes.Plan
	at       []time.Duration
	now      time.Duration
	saw      func(at time.Duration, e straggler.Event)
}

func (o *observer) Observe(r star.Record) {
	o.now = max(o.now, r.At)
	for _, e := range o.detector.Observe(r) {
		o.saw(o.now, e)
	}
}

func (o *observer) Fired(at time.Duration, _ int64, _ []sim.Gradient, _ sim.Outcome) { o.now = at }

func (o *observer) Decide(at time.Duration) (p modes.Plan, why string, change bool) {
	if len(o.at) == 0 || at < o.at[0] {
		return p, "", false
	}
	p, o.plans, o.at = o.plans[0], o.plans[1:], o.at[1:]
	o.detector.Plan(p.Local, p.Queue+p.Micro > 0)
	return p, "it is time", true
}

// An injury is one episode in every plan, also while the plan changes. There are 63 injuries for each plan: of 1.5x, 2x
// and 3x, short and long, in jobs with long iterations, with short ones, and with ones that are mostly exchange. In the
// last, computing for 1.5x as long makes an iteration only an eighth longer: some of these injuries are not found.
func TestOneEpisodeInEveryPlan(t *testing.T) {
	runs := 21
	if testing.Short() {
		runs = 6
	}
	kinds := []injured{{compute: 0.1, push: 0.01, spread: 0.08}, {compute: 0.003, push: 0.006, spread: 0.3}, {compute: 0.02, push: 0.06, spread: 0.15}}
	for _, c := range []struct {
		ring   bool
		plans  []string
		missed int // at most
	}{
		{plans: []string{"ssgd"}, missed: 5},
		{plans: []string{"ssgd queue=8"}, missed: 4},
		{plans: []string{"ssgd local=2"}},
		{plans: []string{"ssgd local=4"}},
		{plans: []string{"ssgd local=8"}},
		{plans: []string{"x=2"}},
		{plans: []string{"asgd"}, missed: 1},
		{plans: []string{"groups=0,1/2,3"}, missed: 3},
		{plans: []string{"ssgd micro=8 cap=CAP"}, missed: 4},
		{plans: []string{"ssgd"}, ring: true, missed: 5},
		{plans: []string{"ssgd queue=8"}, ring: true, missed: 5},
		{plans: []string{"ssgd", "ssgd queue=8", "ssgd"}, missed: 4},
		{plans: []string{"ssgd", "ssgd local=8", "ssgd"}},
		{plans: []string{"ssgd", "asgd", "ssgd"}, missed: 3},
		{plans: []string{"ssgd", "groups=0-2/3", "x=2"}, missed: 3},
		{plans: []string{"ssgd queue=8", "ssgd", "ssgd queue=8"}, missed: 4},
		{plans: []string{"ssgd local=8", "ssgd queue=8", "ssgd local=4"}},
		{plans: []string{"ssgd", "ssgd local=8", "ssgd queue=8", "asgd", "ssgd local=4", "x=2", "ssgd local=16", "ssgd"}},
	} {
		t.Run(fmt.Sprint(c.plans, c.ring), func(t *testing.T) {
			t.Parallel()
			injuries, episodes, missed, wrong, left := 0, 0, 0, 0, 0
			for _, kind := range kinds {
				for run := range runs {
					i := kind
					i.seed, i.victim, i.factor = uint64(run)+1, star.Worker(run%members), []float64{1.5, 2, 3}[run%3]
					whole := i.compute + i.push
					if c.ring {
						whole = i.compute
					}
					hurt := time.Duration(min(400*whole, 25) * 1e9)
					hurt *= time.Duration(1 + run%2)
					i.from, i.to = hurt/2, hurt/2+hurt
					var plans []modes.Plan
					var at []time.Duration
					for k, text := range c.plans {
						if text == "ssgd micro=8 cap=CAP" {
							text = fmt.Sprintf("ssgd micro=8 cap=%v", time.Duration(1.05*i.compute*1e9))
						}
						p, err := modes.Parse(text, members)
						if err != nil {
							t.Fatal(err)
						}
						plans = append(plans, p)
						at = append(at, i.from+time.Duration(float64(k)/float64(len(c.plans))*float64(hurt)))
					}
					d, err := straggler.New(straggler.Config{Workers: members, Collective: c.ring})
					if err != nil {
						t.Fatal(err)
					}
					d.Plan(plans[0].Local, plans[0].Queue+plans[0].Micro > 0)
					found := 0
					o := &observer{detector: d, plans: plans[1:], at: at[1:], saw: func(at time.Duration, e straggler.Event) {
						switch {
						case e.Kind != straggler.Slow:
						case e.Worker == i.victim && at >= i.from && at <= i.to:
							found++
						default:
							wrong++
							t.Logf("%v x, %v: %v (injury from %v to %v)", i.factor, at, e, i.from, i.to)
						}
					}}
					job := sim.Config{Times: i, Plan: plans[0], Pilot: o, Learner: idle{}, Batch: 32, Engine: true, Limit: i.to + hurt*3/2}
					if c.ring {
						job.Ring, job.Bytes = &sim.Ring{}, 1e6
					}
					if _, err := sim.Run(job); err != nil {
						t.Fatal(err)
					}
					injuries++
					episodes += found
					if found == 0 {
						missed++
					}
					left += len(d.Verdicts())
				}
			}
			t.Logf("%d injuries, %d episodes, %d missed, %d without an injury, %d not over", injuries, episodes, missed, wrong, left)
			if 10*episodes > 11*(injuries-missed) || missed > c.missed || wrong > 1 || left > 4 {
				t.Errorf("%d of %d injuries missed, want at most %d; %d episodes, want at most 1.1 for each other injury; %d episodes without an injury, want at most 1; %d not over, want at most 4",
					missed, injuries, c.missed, episodes, wrong, left)
			}
		})
	}
}
