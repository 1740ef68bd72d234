package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShare plans by hand: rates 1, 1.5 and 2 on 1, 2 and 4 GPUs, slots of 60 s.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		iterations, deadline float64
		first                int
		spans                []span
		want                 string
		missed               bool
	}{
		{100, 120, 0, []span{{0, 4}}, "[{0 120 1}]", false},
		{130, 120, 0, []span{{0, 4}}, "[{0 120 2}]", false},
		{230, 120, 0, []span{{0, 4}}, "[{0 120 4}]", false},
		{250, 120, 0, []span{{0, 4}}, "[{0 120 4} {120 180 4}]", true},
		{180, 100, 0, []span{{0, 4}}, "[{0 120 4}]", false}, // 100 s of the two slots count
		{201, 100, 0, []span{{0, 4}}, "[{0 120 4}]", true},
		// Others have three GPUs in the first minute: 60 iterations on one, 70 on two.
		{130, 120, 0, []span{{0, 1}, {60, 4}}, "[{0 60 1} {60 120 2}]", false},
		// In the last minute two GPUs make 90 of them, one would not; before, none is needed.
		{90, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 1} {60 120 1}]", false},
		{90, 120, 0, []span{{0, 0}, {60, 4}}, "[{0 60 0} {60 120 2}]", false},
		{160, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 2} {60 120 2}]", false},
		{200, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 4} {60 120 4}]", false},
		// With four GPUs now, one is enough later.
		{130, 120, 4, []span{{0, 4}, {60, 4}}, "[{0 60 4} {60 120 1}]", false},
		// Two GPUs from 20 on are enough, so before that half of them are.
		{130, 120, 0, []span{{0, 4}, {20, 4}}, "[{0 20 1} {20 120 2}]", false},
		{50, never, 0, []span{{0, 0}, {60, 4}}, "[{0 60 0} {60 120 1}]", false},
	} {
		e := &elastic{slot: 60, gpus: 4}
		f := &flex{Outcome: Outcome{Job: &Job{Deadline: c.deadline, Rates: []float64{1, 1.5, 2}}}, left: c.iterations, levels: 3}
		p := e.share(f, &c.spans, c.first, nil)
		if got := fmt.Sprint(p.pieces); got != c.want || p.missed != c.missed {
			t.Errorf("%v iterations by %v: %v, missed %v; want %v, %v", c.iterations, c.deadline, got, p.missed, c.want, c.missed)
		}
	}
}

// TestShareWithCosts plans a job that waits although it has run: going on costs 10 s, which its plan must have.
func TestShareWithCosts(t *testing.T) {
	for _, c := range []struct {
		left, deadline float64
		spans          []span
		want           string
		missed         bool
	}{
		// the last minute alone is too short
		{60, 180, []span{{0, 4}, {60, 4}, {120, 4}}, "[{0 60 0} {60 120 1} {120 180 1}]", false},
		{50, 180, []span{{0, 4}, {60, 4}, {120, 4}}, "[{0 120 0} {120 180 1}]", false},
		{60, 120, []span{{0, 0}, {60, 4}}, "[{0 60 0} {60 120 2}]", false}, // two GPUs at once: 10 s and 40 s
		{190, 180, []span{{0, 4}}, "[{0 180 2}]", false},
		{80, 60, []span{{0, 1}, {30, 1}}, "[{0 30 1} {30 60 1} {60 120 1}]", true},
	} {
		e := &elastic{slot: 60, gpus: 4, resize: 10}
		f := &flex{Outcome: Outcome{Job: &Job{Deadline: c.deadline, Rates: []float64{1, 1.5, 2}, Iterations: 1000}}, left: c.left, levels: 3, was: 1}
		p := e.share(f, &c.spans, 0, nil)
		if got := fmt.Sprint(p.pieces); got != c.want || p.missed != c.missed {
			t.Errorf("%v iterations by %v: %v, missed %v; want %v, %v", c.left, c.deadline, got, p.missed, c.want, c.missed)
		}
	}
}

// TestElasticFlow has random traces of jobs, with the promise that an admitted job ends by its deadline.
func TestElasticFlow(t *testing.T) {
	declined, ended := 0, 0
	for seed := range uint64(61) {
		if seed == 60 {
			seed = 421 // there a plan changes sooner than the next round would be
		}
		r := rand.New(rand.NewPCG(seed, 2))
		for _, o := range runElastic(elasticJobs(r, 30, 400), Cluster{Nodes: 1, GPUs: 8}, Options{Policy: "ef-admission", Slot: 60, Start: float64(seed % 4 * 10)}) {
			switch {
			case o.Declined():
				declined++
			case o.End > o.Deadline+1: // ends are rounded up to seconds
				t.Errorf("seed %d: job %s was let in and ended at %v, after %v", seed, o.ID, o.End, o.Deadline)
			default:
				ended++
			}
			if o.BestEffort && o.Declined() {
				t.Errorf("seed %d: job %s, which is best effort, was declined", seed, o.ID)
			}
		}
	}
	if declined == 0 || ended == 0 {
		t.Errorf("%d declined, %d ended: the traces decide nothing", declined, ended)
	}
}

// TestAllot has two jobs with time enough, and checks which of them gets the remaining GPUs.
func TestAllot(t *testing.T) {
	well, badly, no, least := []float64{1, 1.9, 3.8}, []float64{1, 1.05, 1.1}, []float64{1, 1, 1}, []float64{0, 1.5, 1.6}
	for _, c := range []struct {
		gpus int
		a, b []float64
		want [2]int
	}{
		{5, well, badly, [2]int{4, 1}},
		{5, badly, well, [2]int{1, 4}},
		{4, well, well, [2]int{2, 2}},
		{3, badly, badly, [2]int{2, 1}},
		{8, no, well, [2]int{1, 4}},
		{3, least, no, [2]int{2, 1}},
		{1, well, well, [2]int{1, 0}},
	} {
		e := &elastic{slot: 60, gpus: c.gpus}
		for _, rates := range [][]float64{c.a, c.b} {
			e.runnable = append(e.runnable, &flex{Outcome: Outcome{Job: &Job{Deadline: 9000, Rates: rates}}, left: 3000, levels: 3})
		}
		elasticFlow{}.allot(e)
		if got := [2]int{e.runnable[0].n, e.runnable[1].n}; got != c.want {
			t.Errorf("%d GPUs, %v and %v: %v, want %v", c.gpus, c.a, c.b, got, c.want)
		}
	}
	f := &flex{n: 1, plan: plan{pieces: []piece{{0, 60, 1}, {60, 120, 1}, {120, 180, 2}}}}
	if at := (elasticFlow{}).wake(&elastic{runnable: []*flex{f}}); at != 120 {
		t.Errorf("the plan changes at %v, want 120", at)
	}
	if f.plan.missed = true; !f.breaks() {
		t.Error("a job that becomes late is not seen")
	}
	if f.kept.missed = true; f.breaks() {
		t.Error("a job that was late already breaks nothing new")
	}
}

// TestLeast declines a job that runs on four GPUs or not at all.
func TestLeast(t *testing.T) {
	jobs := []*Job{{ID: "a", Iterations: 10, Rates: []float64{0, 0, 1}, Batch: 8, Deadline: 1000}}
	for _, policy := range []string{"edf", "edf-admission", "ef", "ef-admission"} {
		if o := runElastic(jobs, Cluster{Nodes: 1, GPUs: 3}, Options{Policy: policy, Slot: 60})[0]; o.Why != "needs at least 4 GPUs, and the cluster has 3" {
			t.Errorf("%s: on 3 GPUs: %q", policy, o.Why)
		}
		if o := runElastic(jobs, Cluster{Nodes: 1, GPUs: 4}, Options{Policy: policy, Slot: 60})[0]; o.End != 10 {
			t.Errorf("%s: on 4 GPUs it ended at %v %s", policy, o.End, o.Why)
		}
	}
}

// admitOneByOne is admit as it is described: all jobs are planned for each one that comes.
func admitOneByOne(p elasticFlow, e *elastic, new []*flex) (in []*flex) {
	for _, f := range new {
		jobs := append(slices.Concat(e.runnable, in), f)
		p.plan(e, jobs)
		i := slices.IndexFunc(jobs, (*flex).breaks)
		if i < 0 || f.BestEffort {
			in = append(in, f)
			continue
		}
		late := jobs[i]
		if f.breaks() {
			late = f
		}
		if p.beside(e, jobs[:len(jobs)-1], f) {
			in = append(in, f)
		} else {
			f.decline(e, late)
		}
	}
	return in
}

// What admission does without planning all jobs for each one has the same result: which jobs are admitted, why others
// are not, and the plans after it.
func TestAdmitIsAsOneByOne(t *testing.T) {
	p := elasticFlow{admission: true}
	declined := 0
	for seed := range uint64(300) {
		var es [2]*elastic
		var says [2]string
		for k, admit := range []func(*elastic, []*flex) []*flex{p.admit, func(e *elastic, new []*flex) []*flex { return admitOneByOne(p, e, new) }} {
			r := rand.New(rand.NewPCG(seed, 9))
			e := &elastic{slot: 60, gpus: 1 << r.IntN(5), policy: p, resize: float64(r.IntN(2) * 5)}
			es[k] = e
			latest := 0.
			for round := range 4 {
				e.now = float64(round) * 60
				for _, f := range e.runnable {
					f.keep(e.now)
					f.last, f.was = e.now, f.n
					if f.left -= 60 * f.rate(f.n); r.IntN(9) == 0 { // slower than thought
						f.left += 40 * f.rate(max(f.n, 1))
					}
					f.left = max(f.left, 1)
				}
				var new []*flex
				for range r.IntN(12) {
					j := &Job{ID: fmt.Sprintf("%d-%d", round, len(new)), Rates: []float64{1, 1.8, 3, 4}, Iterations: float64(10 + r.IntN(500))}
					switch latest += float64(r.IntN(200)); r.IntN(5) {
					case 0:
						j.Deadline, j.BestEffort = math.Inf(1), true
					case 1:
						j.Deadline, j.BestEffort = e.now+float64(r.IntN(600)), true
					case 2:
						j.Deadline = math.Inf(1)
					case 3:
						j.Deadline = e.now + float64(60+r.IntN(900))
					default:
						j.Deadline = latest
					}
					new = append(new, &flex{Outcome: begins(j), left: j.Iterations, levels: 4, last: e.now, lag: float64(r.IntN(3))})
				}
				e.runnable = append(e.runnable, admit(e, new)...)
				p.allot(e)
				for _, f := range append(slices.Clone(e.runnable), new...) {
					if f.Declined() {
						declined++
					}
					says[k] += fmt.Sprintf("%s %d %q %v\n", f.ID, f.n, f.Why, f.plan)
				}
			}
		}
		if says[0] != says[1] {
			t.Fatalf("seed %d:\n%s\none by one:\n%s", seed, says[0], says[1])
		}
	}
	if declined == 0 {
		t.Error("no job is declined")
	}
}
