package sched

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// played is a job as playLive sees it.
type played struct {
	*Job
	left, end, since float64
	n                int
	why              string
	lag              float64 // s until it makes progress
}

// playLive lets a Live decide about jobs that run as they declare, each start taking the given seconds without
// progress, in virtual time, as a service would. The service is restarted before each decision for which restart
// returns true.
func playLive(t *testing.T, policy string, gpus int, slot, start float64, jobs []*Job, restart func() bool) map[string]*played {
	t.Helper()
	all := map[string]*played{}
	l, err := NewLive(policy, gpus, slot, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Lags(start)
	rate := func(p *played) float64 {
		if p.n == 0 {
			return 0
		}
		return Speed(p.Rates, p.n)
	}
	due := slices.Clone(jobs)
	now := 0.
	for steps := 0; ; steps++ {
		if steps > 100_000 {
			t.Fatal("no end")
		}
		next := max(l.Wake(), now)
		if math.IsInf(l.Wake(), 1) {
			next = never
		}
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		for _, p := range all {
			if p.n > 0 {
				next = min(next, p.end)
			}
		}
		if math.IsInf(next, 1) {
			return all
		}
		now = next
		for _, id := range slices.Sorted(maps.Keys(all)) {
			p := all[id]
			if p.n > 0 {
				p.left -= max(0, now-p.since-p.lag) * rate(p)
				p.lag = max(0, p.lag-(now-p.since))
			}
			if p.since = now; p.n > 0 && p.end <= now {
				p.n, p.left = 0, 0
				l.End(p.ID)
			}
		}
		for len(due) > 0 && due[0].Submit <= now {
			all[due[0].ID] = &played{Job: due[0], left: due[0].Iterations, lag: start, end: never, since: now}
			l.Arrive(due[0])
			due = due[1:]
		}
		for _, p := range all {
			if p.left > 0 && p.why == "" {
				l.Set(p.ID, p.left, p.lag)
			}
		}
		if l.Wake() > now {
			continue
		}
		if restart != nil && restart() {
			var rs []Running
			for _, j := range jobs {
				if p := all[j.ID]; p != nil && p.left > 0 && p.why == "" {
					rs = append(rs, Running{Job: j, Left: p.left, GPUs: p.n, Lag: p.lag, Begun: p.left < p.Iterations || p.n > 0})
				}
			}
			if l, err = NewLive(policy, gpus, slot, now, rs); err != nil {
				t.Fatal(err)
			}
			l.Lags(start)
			for _, r := range rs {
				l.Set(r.ID, r.Left, all[r.ID].lag)
			}
		}
		used := 0
		for _, d := range l.Decide(now) {
			p := all[d.Job]
			if d.Why == "" {
				t.Errorf("%s: no reason", d.Job)
			}
			if d.GPUs == 0 {
				p.lag = start
			} else if p.n > 0 && d.GPUs > p.n {
				p.lag += start * (1 - rate(p)/Speed(p.Rates, d.GPUs))
			}
			if p.n = d.GPUs; d.Declined {
				p.why = d.Why
			}
		}
		for _, p := range all {
			if used += p.n; p.n > 0 {
				if p.end = now + p.lag + p.left/rate(p); l.e != nil { // its simulator counts whole seconds
					p.end = now + math.Ceil(p.lag+p.left/rate(p))
				}
			}
		}
		if used > gpus {
			t.Fatalf("%s: %d of %d GPUs", policy, used, gpus)
		}
	}
}

// flexible makes jobs with deadlines that can run on 1 to 4 GPUs.
func flexible(r *rand.Rand, n int) (jobs []*Job) {
	at := 0.
	for i := range n {
		at += float64(r.IntN(20))
		work := float64(10 + r.IntN(60))
		j := &Job{ID: fmt.Sprintf("j%02d", i), Submit: at, GPUs: 1 << r.IntN(3), Batch: 64, Iterations: 100 * work, Rates: []float64{100, 180, 300}}
		j.Duration = j.Iterations / Speed(j.Rates, j.GPUs)
		j.Deadline = at + math.Round(work*(0.4+2*r.Float64()))
		jobs = append(jobs, j)
	}
	return jobs
}

// What a Live has jobs do is what the simulator says, where they run as they say, and start at once or after a time.
func TestLiveAsSimulated(t *testing.T) {
	for seed := range uint64(30) {
		start := float64(seed % 3 * 3)
		for _, policy := range LivePolicies() {
			jobs := flexible(rand.New(rand.NewPCG(seed, 1)), 12)
			out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 4}}, Options{Policy: policy, Slot: 5, Start: start})
			if err != nil {
				t.Fatal(err)
			}
			live := playLive(t, policy, 4, 5, start, jobs, nil)
			for i, o := range out {
				p := live[jobs[i].ID]
				if o.Why != p.why {
					t.Errorf("seed %d, %s: %s: declined %q, simulated %q", seed, policy, o.ID, p.why, o.Why)
				}
				// there each preemption costs the simulated job 40 s
				if o.Declined() || policy == "srtf" || policy == "srsf" || policy == "tiresias" {
					continue
				}
				if math.Abs(p.end-o.End) > 1 {
					t.Errorf("seed %d, %s: %s ends at %.1f, simulated %.1f", seed, policy, o.ID, p.end, o.End)
				}
			}
		}
	}
}

// However often the service is restarted, nothing is lost, and an admitted job is not declined.
func TestLiveRestarts(t *testing.T) {
	for seed := range uint64(30) {
		for _, policy := range LivePolicies() {
			r := rand.New(rand.NewPCG(seed, 2))
			for id, p := range playLive(t, policy, 4, 5, float64(seed%3), flexible(r, 12), func() bool { return r.IntN(3) == 0 }) {
				if p.why == "" && (p.left > 0 || math.IsInf(p.end, 1)) {
					t.Errorf("seed %d, %s: %s never ended", seed, policy, id)
				}
				if p.why != "" && p.left < p.Iterations {
					t.Errorf("seed %d, %s: %s was declined after it had begun: %s", seed, policy, id, p.why)
				}
			}
		}
	}
}

// A job that is cancelled while it waits takes nothing from others.
func TestLiveCancelled(t *testing.T) {
	for _, policy := range LivePolicies() {
		l, err := NewLive(policy, 4, 5, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		job := func(id string, gpus int) *Job {
			return &Job{ID: id, GPUs: gpus, Batch: 64, Iterations: 1000, Duration: 100, Deadline: never, Rates: []float64{1, 2, 4}, BestEffort: true}
		}
		l.Arrive(job("a", 4))
		l.Decide(0.2) // the clock of a service is never exact
		l.Decide(60.2)
		if l.GPUs("a") != 4 {
			t.Errorf("%s: a has %d", policy, l.GPUs("a"))
		}
		l.Arrive(job("b", 4))
		l.Arrive(job("c", 4))
		l.Decide(120.2)
		l.End("b")
		l.End("a")
		for now := 180.2; l.GPUs("c") == 0; now += 60 {
			if now > 600 {
				t.Fatalf("%s: c never runs", policy)
			}
			l.Decide(now)
		}
		if l.s != nil && l.s.Free() != 0 {
			t.Errorf("%s: %d free beside a job of 4", policy, l.s.Free())
		}
	}
}

// A decision says why.
func TestLiveSays(t *testing.T) {
	l, err := NewLive("ef-admission", 4, 5, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Arrive(&Job{ID: "a", Batch: 64, Iterations: 1000, Deadline: 100, Rates: []float64{10, 20, 40}})
	l.Arrive(&Job{ID: "b", Batch: 64, Iterations: 1000, Deadline: 10, Rates: []float64{10, 20, 40}})
	l.Arrive(&Job{ID: "past", Batch: 64, Iterations: 1000, Deadline: -3.5, Rates: []float64{10, 20, 40}})
	var text []string
	for _, d := range l.Decide(0) {
		text = append(text, fmt.Sprintln(d.Job, d.GPUs, d.Declined, d.Why))
	}
	want := `b 0 true would end after its deadline: on 4 GPUs it takes 25 s, and it has 10 s
past 0 true would end after its deadline: on 4 GPUs it takes 25 s, and its deadline was 4 s ago
a 4 false starts on 4 GPUs: the least share that meets each deadline, the rest where it helps most; done in 25 s at this rate, deadline in 100 s`
	if got := strings.TrimSpace(strings.Join(text, "")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := NewLive("lucid", 4, 5, 0, nil); err == nil || !strings.Contains(err.Error(), "tiresias") {
		t.Errorf("lucid: %v", err)
	}
}

// A job that would end in time, if not with a fraction of a second to spare, is let in, whatever fractions its times
// have.
func TestLiveFractions(t *testing.T) {
	for f := 0.; f < 1; f += 0.05 {
		l, err := NewLive("ef-admission", 4, 5, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		arrives := func(id string, at, samples, within float64, rates ...float64) {
			l.Arrive(&Job{ID: id, Submit: at, Deadline: at + within, Iterations: samples, Batch: 64, Rates: rates})
			for _, d := range l.Decide(at + 0.02) {
				if d.Declined {
					t.Errorf("%.2f: %s is declined: %s", f, d.Job, d.Why)
				}
			}
		}
		arrives("a", 13+f, 21280, 80, 155, 308, 605)
		arrives("b", 19+f, 4672, 101, 155)
	}
}

// An admitted job ends by its deadline, and a job that could end in time is admitted, also if that depends on less than
// a second.
func TestLiveHangsOnFractions(t *testing.T) {
	for _, c := range []struct {
		at, takes, within float64
		declined          bool
	}{
		{5.9, 10.8, 10.5, true},
		{5.9, 10.4, 10.5, false},
		{6.0, 10.2, 10.9, false},
		{6.5, 10.9, 10.8, true},
	} {
		l, err := NewLive("ef-admission", 1, 5, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.Arrive(&Job{ID: "a", Submit: c.at, Deadline: c.at + c.within, Iterations: 100 * c.takes, Batch: 64, Rates: []float64{100}})
		ds := l.Decide(c.at)
		if len(ds) != 1 || ds[0].Declined != c.declined {
			t.Errorf("%+v: %+v", c, ds)
		}
	}
}

// A job that is a little later than it was thought to be is no reason to decline others.
func TestLiveLateByItself(t *testing.T) {
	for _, takes := range []float64{10, 80} {
		l, err := NewLive("ef-admission", 2, 5, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.Arrive(&Job{ID: "a", Deadline: 51, Iterations: 5000, Batch: 64, Rates: []float64{100}})
		l.Decide(0)
		l.Set("a", 4200, 0) // 42 s, and it has 41
		l.Arrive(&Job{ID: "b", Submit: 10, Deadline: 80, Iterations: 100 * takes, Batch: 64, Rates: []float64{100, 110}})
		ds := l.Decide(10)
		if declined := takes > 70; len(ds) != 1 || ds[0].Declined != declined || !declined && ds[0].GPUs != 1 {
			t.Errorf("%v s of work: %+v", takes, ds)
		}
	}
}

func TestSpeed(t *testing.T) {
	rates := []float64{10, 20, 30}
	for n, want := range map[int]float64{0: 0, 1: 10, 2: 20, 3: 25, 4: 30, 8: 30} {
		if got := Speed(rates, n); got != want {
			t.Errorf("on %d: %g, want %g", n, got, want)
		}
	}
}
