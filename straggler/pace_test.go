package straggler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
)

// crowdJob is a job in which all workers may change at once. A step takes half a second.
type crowdJob struct {
	workers    int
	collective bool
	scatter    float64
	samples    int
	// change changes the record of a step
	change func(step int64, r *star.Record, rnd *rand.Rand)
	// do is called before a step
	do func(step int64, p *Pace)
}

// run makes steps, and returns the events with the steps at which they came.
func (j crowdJob) run(t testing.TB, seed uint64, steps int64) (events []PaceEvent, at []int64) {
	t.Helper()
	p, err := NewPace(Config{Workers: j.workers, Collective: j.collective})
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed, 46))
	p.Plan("ssgd")
	for w := range j.workers {
		p.Host(star.Worker(w), fmt.Sprintf("node-%d", w/2))
	}
	noisy := func(d time.Duration) time.Duration {
		f := math.Exp(j.scatter * rnd.NormFloat64())
		if rnd.IntN(200) == 0 {
			f *= 3
		}
		return time.Duration(float64(d) * f)
	}
	now := time.Duration(0)
	samples := j.samples
	if samples == 0 {
		samples = 32
	}
	for step := range steps {
		if j.do != nil {
			j.do(step, p)
		}
		rs := make([]star.Record, j.workers)
		longest := time.Duration(0)
		for w := range rs {
			r := &rs[w]
			*r = star.Record{Worker: star.Worker(w), Step: step, Basis: step, Samples: samples, CPU: 0.8, NetIn: 4e6, NetOut: 4e6,
				Load: noisy(10 * ms), Compute: noisy(400 * ms), Push: noisy(30 * ms), Transit: noisy(10 * ms), Pull: noisy(40 * ms)}
			if j.collective {
				r.Transit, r.Pull = 0, 0
			}
			m := &r.Telemetry
			m.Set(star.ComputeCPU, min(1, 0.97+0.02*rnd.NormFloat64()))
			m.Set(star.Steal, 0.01*rnd.Float64())
			m.Set(star.RunDelay, 0.02*rnd.Float64())
			m.Set(star.HostCPU, 0.5)
			m.Set(star.IOWait, 0.01*rnd.Float64())
			m.Set(star.Throttled, 0)
			if j.change != nil {
				j.change(step, r, rnd)
			}
			longest = max(longest, r.Own())
		}
		whole := longest
		for w := range rs {
			r := &rs[w]
			if j.collective {
				r.Push += longest - r.Own()
			} else {
				r.Wait = longest - r.Own()
			}
			whole = max(whole, r.Iteration())
		}
		now += whole
		for _, w := range rnd.Perm(j.workers) {
			rs[w].At = now
			if rs[w].Samples < 0 { // it is not there
				continue
			}
			for _, e := range p.Observe(now, &rs[w]) {
				events, at = append(events, e), append(at, step)
			}
		}
	}
	return events, at
}

// between makes a change from step 200 to 399.
func between(change func(r *star.Record)) func(int64, *star.Record, *rand.Rand) {
	return func(step int64, r *star.Record, _ *rand.Rand) {
		if step >= 200 && step < 400 {
			change(r)
		}
	}
}

// All workers slow down together: one episode, with the right beginning, end, part, factor, cause and hosts.
func TestPaceSlow(t *testing.T) {
	for _, c := range []struct {
		name       string
		collective bool
		factor     float64
		part       string
		cause      Cause
		says       string
		hurt       func(r *star.Record)
	}{
		{"quota", false, 1.8, "compute", Quota, "CPU quota held it back", func(r *star.Record) {
			stretch(&r.Compute, 2)
			r.Telemetry.Set(star.Throttled, 0.5)
			r.Telemetry.Set(star.ComputeCPU, 0.48)
		}},
		{"steal", false, 1.8, "compute", Steal, "CPU steal 4", func(r *star.Record) {
			stretch(&r.Compute, 2)
			r.Telemetry.Set(star.Steal, 0.5)
			r.Telemetry.Set(star.ComputeCPU, 0.48)
		}},
		{"other processes", true, 1.55, "compute", Contention, "waited for a processor", func(r *star.Record) {
			stretch(&r.Compute, 1.6)
			r.Telemetry.Set(star.RunDelay, 0.4)
			r.Telemetry.Set(star.ComputeCPU, 0.6)
			r.Telemetry.Set(star.HostCPU, 1)
		}},
		{"hot GPUs", true, 1.45, "compute", GPU, "before 1980: too hot", func(r *star.Record) {
			stretch(&r.Compute, 1.5)
			r.Telemetry.Set(star.GPUThrottle, 0x20)
			r.Telemetry.Set(star.GPUClock, 1200)
		}},
		{"hot processors", false, 1.4, "compute", Compute, "slower processors or memory, or more work for each sample", func(r *star.Record) { stretch(&r.Compute, 1.5) }},
		{"asleep", false, 1.8, "compute", Compute, "blocked in its own code (sleep", func(r *star.Record) {
			stretch(&r.Compute, 2)
			r.Telemetry.Set(star.ComputeCPU, 0.48)
		}},
		{"shared storage", true, 1.7, "load", Data, "hosts waited for disks ", func(r *star.Record) {
			r.Load += 300 * ms
			r.Telemetry.Set(star.IOWait, 0.4)
		}},
		{"a shared link, servers", false, 1.6, "push", NetworkOut, "network out: push 3", func(r *star.Record) { r.Transit += 300 * ms }},
		{"a shared link, parameters", false, 1.6, "pull", NetworkIn, "network in: pull 3", func(r *star.Record) { r.Pull += 300 * ms }},
		{"a shared link, a ring", true, 1.7, "push", NetworkOut, "network out: push 3", func(r *star.Record) { r.Push += 300 * ms }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const runs = 10
			right := 0
			for seed := range uint64(runs) {
				change := between(c.hurt)
				job := crowdJob{workers: 4, collective: c.collective, scatter: 0.08, change: func(step int64, r *star.Record, rnd *rand.Rand) {
					r.Telemetry.Set(star.GPUClock, 1980)
					r.Telemetry.Set(star.GPUThrottle, 0)
					change(step, r, rnd)
				}}
				events, at := job.run(t, seed, 600)
				var kinds []Kind
				for _, e := range events {
					kinds = append(kinds, e.Kind)
				}
				if len(events) < 2 || events[0].Kind != Slow || events[len(events)-1].Kind != Recovered || len(events) > 3 {
					t.Errorf("seed %d: %v", seed, events)
					continue
				}
				s := events[len(events)-2].Slowdown
				if at[0] < 205 || at[0] > 280 || at[len(at)-1] > 470 {
					t.Errorf("seed %d: events at %v: %v", seed, at, kinds)
				}
				if since := s.Since.Seconds() / 0.5; since < 170 || since > 240 { // steps take a little more
					t.Errorf("seed %d: since %v", seed, s.Since)
				}
				if s.Part != c.part || math.Abs(s.Factor-c.factor) > 0.15 || s.Workers != 4 || strings.Join(s.Hosts, " ") != "node-0 node-1" {
					t.Errorf("seed %d: %v, want %s, %.2fx", seed, s, c.part, c.factor)
				}
				if s.Cause == c.cause && strings.Contains(s.String(), c.says) {
					right++
				} else {
					t.Logf("seed %d: %v", seed, s)
				}
			}
			if right < runs*9/10 {
				t.Errorf("the right cause in %d of %d", right, runs)
			}
		})
	}
}

// What is no slowdown of the job makes no event.
func TestPaceOtherChanges(t *testing.T) {
	for _, c := range []struct {
		name string
		job  crowdJob
	}{
		{"batch", crowdJob{workers: 4, change: between(func(r *star.Record) {
			r.Samples *= 2
			stretch(&r.Compute, 2.6) // and longer than twice
		})}},
		{"local steps", crowdJob{workers: 4, change: between(func(r *star.Record) {
			r.Samples *= 4
			stretch(&r.Compute, 4)
			stretch(&r.Load, 4)
		}), do: func(step int64, p *Pace) {
			p.Plan([]string{"ssgd", "ssgd local=4"}[one(step >= 200 && step < 400)])
		}}},
		{"plan", crowdJob{workers: 4, change: between(func(r *star.Record) {
			stretch(&r.Compute, 1.4)
			stretch(&r.Pull, 3)
		}), do: func(step int64, p *Pace) {
			p.Plan([]string{"ssgd", "asgd"}[one(step >= 200 && step < 400)])
		}}},
		{"evaluations", crowdJob{workers: 4, change: func(step int64, r *star.Record, _ *rand.Rand) {
			if step > 200 && step%20 == 3 {
				r.Compute += 10 * time.Second
			}
		}}},
		{"checkpoints of the first worker in a ring", crowdJob{workers: 4, collective: true, change: func(step int64, r *star.Record, _ *rand.Rand) {
			if step > 200 && step%15 == 3 && r.Worker == 0 {
				r.Compute += 10 * time.Second
			}
		}}},
		{"a slow worker", crowdJob{workers: 4, change: between(func(r *star.Record) {
			if r.Worker == 2 {
				stretch(&r.Compute, 3)
			}
		})}},
		{"a slow worker in a ring", crowdJob{workers: 12, collective: true, change: between(func(r *star.Record) {
			if r.Worker == 2 {
				stretch(&r.Compute, 3)
			}
		})}},
		{"samples that vary", crowdJob{workers: 4, change: func(_ int64, r *star.Record, rnd *rand.Rand) {
			n := 8 + rnd.IntN(48)
			stretch(&r.Compute, float64(n)/32)
			r.Samples = n
		}}},
		{"fewer workers, which wait longer for a server", crowdJob{workers: 4, change: func(step int64, r *star.Record, _ *rand.Rand) {
			if step >= 200 && step < 400 {
				if stretch(&r.Pull, 6); r.Worker == 3 {
					r.Samples = -1
				}
			}
		}, do: func(step int64, p *Pace) {
			if step == 200 {
				p.Leave(3)
			}
		}}},
		{"a short one", crowdJob{workers: 4, change: func(step int64, r *star.Record, _ *rand.Rand) {
			if step >= 200 && step < 210 {
				stretch(&r.Compute, 2)
			}
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(4) {
				c.job.scatter = 0.08
				if events, at := c.job.run(t, seed, 600); len(events) > 0 {
					t.Errorf("seed %d: %v at %v", seed, events, at)
				}
			}
		})
	}
}

// A drift of a thousandth of the first pace in a block becomes no normal pace. One that comes back is over.
func TestPaceDrift(t *testing.T) {
	job := crowdJob{workers: 4, scatter: 0.08, change: func(step int64, r *star.Record, _ *rand.Rand) {
		stretch(&r.Compute, 1+0.6*float64(min(max(step-400, 0), 5000))/5000)
		if step > 6500 {
			stretch(&r.Compute, 1/1.6)
		}
	}}
	for seed := range uint64(3) {
		events, at := job.run(t, seed, 7000)
		if len(events) != 2 || at[0] > 5500 || events[0].Part != "compute" || events[1].Kind != Recovered || at[1] < 6500 {
			t.Errorf("seed %d: %v at %v", seed, events, at)
		}
	}
}

// A slowdown that lasts while the plan changes is one, and its end is seen under the other plan.
func TestPaceThroughPlans(t *testing.T) {
	for _, plans := range []string{"ssgd asgd asgd", "ssgd asgd ssgd"} {
		job := crowdJob{workers: 4, scatter: 0.08, change: between(func(r *star.Record) { stretch(&r.Compute, 2) }), do: func(step int64, p *Pace) {
			p.Plan(strings.Fields(plans)[one(step >= 300)+one(step >= 500)])
		}}
		for seed := range uint64(4) {
			events, at := job.run(t, seed, 700)
			if len(events) != 2 || events[0].Kind != Slow || events[1].Kind != Recovered || at[1] < 400 || at[1] > 500 {
				t.Errorf("%s, seed %d: %v at %v", plans, seed, events, at)
			}
		}
	}
}

// A slowdown ends with its cause, too, where the plan changes shortly before, at the same time, or again and again, so
// that under the plan in force too little was seen to compare with. Under the other plans steps take other times.
func TestPaceEndsUnderANewPlan(t *testing.T) {
	const ends = 400
	for _, c := range []struct {
		name    string
		changes []int64 // steps at which another plan begins
	}{
		{"long before", []int64{300}},
		{"while the new plan's past is learned", []int64{370}},
		{"shortly before", []int64{392}},
		{"at the same time", []int64{ends}},
		{"twice", []int64{350, 380}},
		{"twice in a short time", []int64{350, 360, ends - 1}},
		{"and after", []int64{380, 420, 440}},
	} {
		for _, slow := range []func(r *star.Record){
			func(r *star.Record) { stretch(&r.Compute, 2) },
			func(r *star.Record) { stretch(&r.Push, 12) },
			func(r *star.Record) { stretch(&r.Compute, 1.6); stretch(&r.Pull, 6) },
		} {
			for _, collective := range []bool{false, true} {
				job := crowdJob{workers: 4, scatter: 0.08, collective: collective}
				plan := func(step int64) (n int) {
					for _, at := range c.changes {
						n += one(step >= at)
					}
					return n
				}
				job.do = func(step int64, p *Pace) { p.Plan(fmt.Sprint("plan ", plan(step))) }
				job.change = func(step int64, r *star.Record, _ *rand.Rand) {
					if step >= 200 && step < ends {
						slow(r)
					}
					if plan(step)%2 == 1 { // parts of a queue, and less to wait for at the servers
						stretch(&r.Compute, 1.05)
						stretch(&r.Push, 0.7)
					}
				}
				for seed := range uint64(3) {
					events, at := job.run(t, seed, 800)
					n := len(events)
					if n < 2 || events[0].Kind != Slow || events[n-1].Kind != Recovered || at[n-1] < 300 || at[n-1] > 500 {
						t.Errorf("%s, ring %v, seed %d: %v at %v", c.name, collective, seed, events, at)
					}
				}
			}
		}
	}
}

// In calm jobs, where one iteration in 200 takes three times as long by chance, a slowdown is found in none of 5,000
// blocks (40,000 iterations of each worker), whatever the scatter of the other iterations. Where all workers are
// sometimes faster and sometimes slower together, by a tenth and for about 20 iterations, at most one is.
func TestPaceInCalm(t *testing.T) {
	if testing.Short() {
		t.Skip("240,000 steps")
	}
	for _, c := range []struct {
		workers         int
		scatter, common float64
	}{{4, 0.01, 0}, {4, 0.1, 0}, {4, 0.2, 0}, {1, 0.2, 0}, {4, 0.1, 0.1}, {1, 0.3, 0}} {
		state, last := 0.0, int64(-1)
		job := crowdJob{workers: c.workers, scatter: c.scatter, change: func(step int64, r *star.Record, rnd *rand.Rand) {
			if step != last {
				last = step
				state = 0.95*state + math.Sqrt(1-0.95*0.95)*rnd.NormFloat64()
			}
			stretch(&r.Compute, math.Exp(c.common*state))
		}}
		alarms := 0
		const steps = 40000 // 5,000 blocks
		events, _ := job.run(t, 1, steps)
		for _, e := range events {
			if e.Kind == Slow {
				alarms++
			}
		}
		t.Logf("%+v: %d alarms", c, alarms)
		if alarms > one(c.common > 0) {
			t.Errorf("%+v: %d alarms in %d blocks: %v", c, alarms, steps/fullBlock, events)
		}
	}
}

// A job of thousands of workers is judged by some of them, and a Pace does not take what is impossible.
func TestPaceLimits(t *testing.T) {
	job := crowdJob{workers: 300, scatter: 0.1, change: between(func(r *star.Record) { stretch(&r.Compute, 2) })}
	if events, _ := job.run(t, 1, 450); len(events) != 2 || events[0].Workers != 60 || !strings.Contains(events[0].String(), "hosts more") {
		t.Errorf("%v", events)
	}
	p, err := NewPace(Config{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []star.Record{{Worker: 2, Compute: 1}, {Worker: -1, Compute: 1}, {Compute: -1}, {}} {
		if e := p.Observe(time.Second, &r); e != nil || p.began >= 0 {
			t.Errorf("%+v: %v", r, e)
		}
	}
	p.Host(9, "x")
	p.Leave(9)
	if _, slow := p.Slow(); slow {
		t.Error("slow")
	}
	if _, err := NewPace(Config{}); err == nil {
		t.Error("no workers")
	}
}
