package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train/optim"
)

// memoryless are iterations with a computing time that is exponential with a mean of a second, after a minimum of
// least.
type memoryless struct {
	workers int
	least   time.Duration
}

func (m memoryless) Workers() int { return m.workers }

func (m memoryless) Spend(w star.Worker, step int64, _ time.Duration, load float64) Spent {
	x := rand.New(rand.NewPCG(uint64(w)+1, uint64(step))).ExpFloat64()
	return Spent{Compute: max(1, time.Duration(load*(float64(m.least)+x*1e9)))}
}

// The time of an update that Dutta, Joshi, Ghosh, Dube and Nagpurkar (AISTATS 2018, section 3) work out for exponential
// iterations of rate r = 1 among N = 4: K-sync (H_N − H_(N−K))/r, K-batch-sync and K-batch-async K/(N·r), ASGD 1/(N·r).
// Here a cancelled worker stops after its current block, of 100. K-async waits for as long as K-sync if iterations are
// memoryless.
func TestErrorRuntime(t *testing.T) {
	const updates, within = 2500, 0.05
	interval := func(name string, times Times) float64 {
		t.Helper()
		c := Config{Times: times, Learner: &Tally{}, Batch: 100, Target: updates}
		if err := c.Use(name, optim.Config{}); err != nil {
			t.Fatal(err)
		}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		return r.Time.Seconds() / updates
	}
	ksync := []float64{0.25, 0.583333, 1.083333, 2.083333}
	for k := 1; k <= 4; k++ {
		for name, want := range map[string]float64{
			fmt.Sprintf("k-sync:k=%d,blocks=100", k):       ksync[k-1],
			fmt.Sprintf("k-async:k=%d", k):                 ksync[k-1],
			fmt.Sprintf("k-batch-sync:k=%d,blocks=100", k): float64(k) / 4,
			fmt.Sprintf("k-batch-async:k=%d", k):           float64(k) / 4,
			"asgd":                                         0.25,
		} {
			if got := interval(name, memoryless{workers: 4}); math.Abs(got/want-1) > within {
				t.Errorf("%s: an update takes %.4f s, want %.4f", name, got, want)
			}
		}
	}
	// Without cancelling, workers lose time with gradients that are dropped.
	if a, b := interval("k-sync:k=2,blocks=100", memoryless{workers: 4}), interval("k-sync:k=2,blocks=1", memoryless{workers: 4}); !(b > 1.2*a) {
		t.Errorf("an update takes %.4f s, without cancelling %.4f", a, b)
	}
	// Iterations that are new take longer than the rest of those that are under way: K-async is quicker.
	for k := 1; k < 4; k++ {
		times := memoryless{workers: 4, least: time.Second}
		if sync, async := interval(fmt.Sprintf("k-sync:k=%d,blocks=100", k), times), interval(fmt.Sprintf("k-async:k=%d", k), times); !(async < 0.95*sync) {
			t.Errorf("K = %d: %.4f s by K-async, %.4f by K-sync", k, async, sync)
		}
	}
}

// flips changes between SSGD and ASGD at given times, when a gradient arrives.
type flips struct {
	Script
	at    []time.Duration
	plans []modes.Plan
	now   modes.Plan
}

func (f *flips) Decide(at time.Duration) (modes.Plan, string, bool) {
	if len(f.at) == 0 || at < f.at[0] {
		return modes.Plan{}, "", false
	}
	f.at = f.at[1:]
	f.plans = append(f.plans[1:], f.plans[0])
	f.now = f.plans[0]
	return f.now, "", true
}

// The fence of Sync-Switch: workers that take 1, 1.01, 1.5 and 1.51 s go over to ASP at 1.2 s and back at 2.6 s, where
// the released program makes an update of 2 of 4 gradients. Here, wherever the changes are: while BSP is in force no
// update is partial, and no worker is lost.
func TestFence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "n")
		times := []time.Duration{1000 * ms, 1010 * ms, 1500 * ms, 1510 * ms}
		at := []time.Duration{1200 * ms, 2600 * ms}
		if n != 4 {
			times, at = nil, nil
			for range n {
				times = append(times, time.Duration(rapid.IntRange(500, 2000).Draw(t, "ms"))*ms)
			}
			for range rapid.IntRange(1, 6).Draw(t, "changes") {
				at = append(at, time.Duration(rapid.IntRange(0, 9000).Draw(t, "at"))*ms)
			}
			slices.Sort(at)
		}
		pilot := &flips{at: at, plans: []modes.Plan{modes.SSGD(n), modes.ASGD(n)}, now: modes.SSGD(n)}
		synchronous, seen := 0, make([]int, n)
		l := &fenced{update: func(gs []Gradient) {
			for _, g := range gs {
				seen[g.Worker]++
			}
			if pilot.now.Groups[0].Quorum < n {
				return
			}
			if synchronous++; len(gs) != n {
				t.Fatalf("an update of BSP is of %d of %d gradients", len(gs), n)
			}
		}}
		r, err := Run(Config{Times: steady(times...), Learner: l, Pilot: pilot, Batch: 1, Limit: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if n == 4 && synchronous < 10 || len(r.Switches) == 0 || slices.Min(seen) < 5 {
			t.Fatalf("%d updates of BSP, %d changes, gradients %v", synchronous, len(r.Switches), seen)
		}
	})
}

type fenced struct {
	counter
	update func(gs []Gradient)
}

func (l *fenced) Update(v int64, gs []Gradient) Outcome {
	l.update(gs)
	return l.counter.Update(v, gs)
}

// ramp is a task with gradients that identify their worker: at position from they are of[from], whatever the
// parameters.
type ramp struct {
	of map[int64]float32
}

func (r ramp) Params() []float32 { return []float32{0} }

func (r ramp) Gradient(dst, _ []float32, from int64, _ int) error {
	dst[0] = r.of[from]
	return nil
}

func (r ramp) Accuracy([]float32) (float64, error) { return 0, nil }

// LB-BSP: shares 192, 64, 128, 128 and gradients 1, 5, 2, 3 make a step of 2.25, not of their mean, 2.75. Backup
// workers, 4 of 5: the mean of the first four.
func TestWeightedSteps(t *testing.T) {
	shares := modes.SSGD(4)
	shares.Shares = []int{192, 64, 128, 128}
	for name, test := range map[string]struct {
		c    Config
		task ramp
		mean bool
		want float32
	}{
		"lb-bsp": {Config{Times: steady(100*ms, 100*ms, 100*ms, 100*ms), Plan: shares, Batch: 128}, ramp{map[int64]float32{0: 1, 192: 5, 256: 2, 384: 3}}, false, 2.25},
		"backup": {Config{Times: steady(100*ms, 100*ms, 900*ms, 100*ms, 200*ms), Plan: modes.Backup(5, 1), Batch: 10},
			ramp{map[int64]float32{0: 1, 10: 2, 20: 100, 30: 4, 40: 5}}, true, 3},
	} {
		l := &Trained{Task: test.task, Rule: descent(1), Mean: test.mean}
		test.c.Learner, test.c.Limit = l, 250*ms
		if name == "lb-bsp" {
			test.c.Limit = 150 * ms
		}
		if _, err := Run(test.c); err != nil {
			t.Fatal(err)
		}
		if got := -l.Params()[0]; got != test.want {
			t.Errorf("%s: a step of %v, want %v", name, got, test.want)
		}
	}
}

// plainly learns by a scheme's formulas with a list of models, in float64.
type plainly struct {
	line
	n      int
	centre []float64
	models [][]float64 // of the workers
	read   [][]float64 // what each was sent
	from   []int64
	cursor int64
	sent   func(p *plainly, w int)
	made   func(p *plainly, version int64, gs []Gradient)
}

func (p *plainly) Begin(n, _ int) {
	p.n, p.centre = n, wide(p.Params())
	p.models, p.read, p.from = make([][]float64, n), make([][]float64, n), make([]int64, n)
}

func (p *plainly) Release(w star.Worker, samples int) {
	if p.models[w] == nil {
		p.models[w] = slices.Clone(p.centre)
	}
	if p.sent != nil {
		p.sent(p, int(w))
	}
	p.read[w], p.from[w] = slices.Clone(p.models[w]), p.cursor
	p.cursor += int64(samples)
}

func (p *plainly) Update(v int64, gs []Gradient) Outcome {
	p.made(p, v, gs)
	return Outcome{}
}

// steps is how far w comes in its own steps of SGD, from what it was sent; with the first of them it is pulled.
func (p *plainly) steps(g Gradient, lr float64, pull ...float64) []float64 {
	x := slices.Clone(p.read[g.Worker])
	d := make([]float32, len(x))
	for _, piece := range rule.Pieces(p.from[g.Worker], g.Samples, max(1, g.Local)) {
		at := make([]float32, len(x))
		for i := range x {
			at[i] = float32(x[i])
		}
		p.Gradient(d, at, piece.Start, piece.Count)
		for i := range x {
			x[i] -= lr * float64(d[i])
			if pull != nil {
				x[i] -= pull[i]
			}
		}
		pull = nil
	}
	return x
}

// What becomes of models of the workers' own in the simulator is what the papers say: AD-PSGD, EASGD in both forms,
// DiLoCo, post-local SGD.
func TestModelsOfTheirOwn(t *testing.T) {
	const lr, batch = 1.0, 8
	// join has the worker read the centre.
	join := func(p *plainly, w int) { p.models[w] = slices.Clone(p.centre) }
	for _, test := range []struct {
		name string
		make func() *plainly
	}{
		{"ad-psgd:graph=ring", func() *plainly { return gossips(rule.Circle, lr) }},
		{"ad-psgd", func() *plainly { return gossips(rule.Complete, lr) }},
		// x ← x − η·g(x) − d, c ← c + Σ d, d = α·(x − c), α = β/N (equations 5 and 6).
		{"easgd:sync=yes,steps=1,beta=0.8", func() *plainly { return springs(0.8, lr) }},
		{"easgd:sync=yes,steps=3,beta=0.8", func() *plainly { return springs(0.8, lr) }},
		{"easgd:steps=3,beta=0.8", func() *plainly { return springs(0.8, lr) }},
		{"diloco:steps=3", func() *plainly {
			var buf []float64
			return &plainly{sent: join, made: func(p *plainly, _ int64, gs []Gradient) {
				if buf == nil {
					buf = make([]float64, len(p.centre))
				}
				for i := range p.centre {
					delta := 0.0
					for _, g := range gs {
						delta += (p.centre[i] - p.steps(g, lr)[i]) / float64(len(gs))
					}
					buf[i] = 0.9*buf[i] + delta
					p.centre[i] -= 0.7 * (delta + 0.9*buf[i])
				}
			}}
		}},
		{"post-local-sgd:steps=4,switch=0.3", func() *plainly {
			return &plainly{sent: join, made: func(p *plainly, _ int64, gs []Gradient) {
				mean := make([]float64, len(p.centre))
				for _, g := range gs {
					for i, x := range p.steps(g, lr) {
						mean[i] += x / float64(len(gs))
					}
				}
				p.centre = mean
			}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cases := 0
			rapid.Check(t, func(t *rapid.T) {
				if cases++; cases > 25 {
					return
				}
				var times []time.Duration
				for range rapid.IntRange(1, 5).Draw(t, "n") {
					times = append(times, time.Duration(rapid.IntRange(50, 400).Draw(t, "ms"))*ms)
				}
				trained := &Trained{Task: line{}, Every: 1 << 30}
				config := func(l Learner) Config {
					c := Config{Times: Varied{Times: steady(times...), Sigma: 0.3, Seed: 5}, Batch: batch, Latency: ms, Limit: 6 * time.Second, Learner: trained, Samples: int64(len(times)) * batch * 6}
					if err := c.Use(test.name, optim.Config{LR: lr}); err != nil {
						t.Fatal(err)
					}
					c.Learner = l
					return c
				}
				r, err := Run(config(trained))
				if err != nil {
					t.Fatal(err)
				}
				p := test.make()
				if _, err := Run(config(p)); err != nil {
					t.Fatal(err)
				}
				if r.Updates < 3 || name(test.name) == "post-local-sgd" && len(r.Switches) != 1 {
					t.Fatalf("%d updates, changes %v", r.Updates, r.Switches)
				}
				for i, w := range trained.Params() {
					if math.Abs(float64(w)-p.centre[i]) > 1e-4*(1+math.Abs(float64(w))) {
						t.Fatalf("parameter %d after %d updates is %v, by hand %v", i, r.Updates, w, p.centre[i])
					}
				}
			})
		})
	}
}

func name(method string) string {
	spec, err := baseline.Parse(method)
	if err != nil {
		return ""
	}
	return spec.Entry.Name
}

// gossips is AD-PSGD: a worker's model is averaged with another one's, then takes the step that its gradient says,
// which was computed on what it was sent.
func gossips(graph rule.Graph, lr float64) *plainly {
	return &plainly{made: func(p *plainly, v int64, gs []Gradient) {
		for _, g := range gs {
			w := int(g.Worker)
			x := p.steps(g, lr)
			if j := int(graph.Partner(v, g.Worker, p.n)); j != w {
				for i := range p.centre {
					m := (p.models[w][i] + p.models[j][i]) / 2
					p.models[w][i], p.models[j][i] = m, m
				}
			}
			for i := range x {
				p.models[w][i] += x[i] - p.read[w][i]
			}
		}
		for i := range p.centre {
			p.centre[i] = 0
			for _, m := range p.models {
				p.centre[i] += m[i] / float64(p.n)
			}
		}
	}}
}

// springs is EASGD: in an exchange a worker's model and the centre move towards each other by d, the model at once, the
// centre when the worker's next push arrives.
func springs(beta, lr float64) *plainly {
	pull := make(map[int][]float64)
	return &plainly{
		sent: func(p *plainly, w int) {
			d := make([]float64, len(p.centre))
			for i, c := range p.centre {
				d[i] = beta / float64(p.n) * (p.models[w][i] - c)
			}
			pull[w] = d
		},
		made: func(p *plainly, _ int64, gs []Gradient) {
			for _, g := range gs {
				w := int(g.Worker)
				for i, x := range p.steps(g, lr, pull[w]...) {
					p.models[w][i] = x
					p.centre[i] += pull[w][i]
				}
			}
		},
	}
}

// A controller hears of the noise where every update is of one gradient, by how each worker's gradients differ: as in a
// real job.
func TestNoiseOfSingleGradients(t *testing.T) {
	l := &spied{Trained: Trained{Task: line{}, Rule: descent(1)}, t: t, last: map[star.Worker][]float32{}}
	noise, err := NewNoise(3, 16)
	if err != nil {
		t.Fatal(err)
	}
	scale, version := 0.0, int64(0)
	pilot := &heard{fired: func(gs []Gradient, o Outcome) {
		if len(gs) != 1 {
			t.Fatalf("an update of %d gradients", len(gs))
		}
		version++
		if s, _, _, ok := noise.Fired(version, gs, o); ok {
			scale = s
		}
	}}
	r, err := Run(Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: 3}, Plan: modes.ASGD(3), Learner: l, Pilot: pilot, Batch: 16, Limit: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if l.compared < int(r.Updates)-3 || r.Updates < 100 {
		t.Errorf("%d of %d gradients were compared with the one before", l.compared, r.Updates)
	}
	// The noise scale of the last parameters, of many batches of 16 at once.
	var mean, norms float64
	sum := make([]float64, 3)
	const batches = 400
	for k := range int64(batches) {
		d := make([]float32, 3)
		line{}.Gradient(d, l.Params(), 1<<20+16*k, 16)
		for i, x := range d {
			sum[i] += float64(x) / batches
			norms += float64(x) * float64(x) / batches
		}
	}
	mean = dot(sum, sum)
	want := 16 * (norms - mean) / mean
	if !(scale > want/4 && scale < want*4) {
		t.Errorf("noise scale %v, of the last parameters %v", scale, want)
	}
}

// spied holds what workers tell against their gradients.
type spied struct {
	Trained
	t        *testing.T
	last     map[star.Worker][]float32
	compared int
}

func (l *spied) Update(v int64, gs []Gradient) Outcome {
	g := gs[0]
	d := make([]float32, 3)
	r := l.reads[g.Worker]
	line{}.Gradient(d, r.of.vec, r.from, g.Samples)
	o := l.Trained.Update(v, gs)
	if before := l.last[g.Worker]; before != nil {
		want := 0.0
		for i := range d {
			want += float64(d[i]-before[i]) * float64(d[i]-before[i])
		}
		if math.Abs(gs[0].Change-want) > 1e-5*want {
			l.t.Errorf("step %d of worker %d differs by %v from the one before, want %v", g.Step, g.Worker, gs[0].Change, want)
		}
		l.compared++
	}
	l.last[g.Worker] = d
	return o
}

// heard is a Pilot that only listens.
type heard struct {
	Script
	fired func(gs []Gradient, o Outcome)
}

func (h *heard) Fired(_ time.Duration, _ int64, gs []Gradient, o Outcome) { h.fired(gs, o) }
