package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train/optim"
)

// quick are the baselines with settings that fit short jobs.
var quick = map[string]string{"diloco": "diloco:steps=5,outer-lr=1,outer-momentum=0", "dropcompute": "dropcompute:after=5", "delayed-nesterov": "delayed-nesterov:steps=5,outer-lr=1,outer-momentum=0", "look-ahead": "look-ahead:steps=5,outer-lr=1,outer-momentum=0", "zeno++": "zeno++:rho=0,samples=16,every=5"}

func methods() (names []string) {
	for _, e := range baseline.Entries() {
		name := e.Name
		if q, ok := quick[name]; ok {
			name = q
		}
		names = append(names, name)
	}
	return names
}

// Without noise every baseline finds the minimum, by the production rules in the production shard.
func TestBaselinesFindTheMinimum(t *testing.T) {
	for _, name := range methods() {
		t.Run(name, func(t *testing.T) {
			c := Config{Times: Varied{Times: steady(100*ms, 110*ms, 120*ms, 300*ms), Sigma: 0.1, Seed: 1}, Learner: NewQuadratic(8, 5, 0, 0.2, 1), Batch: 16,
				Target: 6, Limit: time.Hour, Samples: 6000}
			if err := c.Use(name, optim.Config{}); err != nil {
				t.Fatal(err)
			}
			r, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Reached {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Every baseline learns a task of points on a plane, the same each time.
func TestBaselinesTrain(t *testing.T) {
	for _, name := range methods() {
		t.Run(name, func(t *testing.T) {
			run := func() (Result, []float32) {
				l := &Trained{Task: line{}}
				c := Config{Times: Varied{Times: steady(100*ms, 110*ms, 120*ms, 300*ms), Sigma: 0.2, Seed: 3}, Learner: l, Batch: 16,
					Target: 0.96, Limit: time.Hour, Latency: ms, Samples: 20_000}
				if err := c.Use(name, optim.Config{LR: 4}); err != nil {
					t.Fatal(err)
				}
				r, err := Run(c)
				if err != nil {
					t.Fatal(err)
				}
				return r, l.Params()
			}
			a, pa := run()
			b, pb := run()
			if !a.Reached || a.Time != b.Time || a.Samples != b.Samples || !slices.Equal(pa, pb) {
				t.Errorf("%+v, then %+v", a, b)
			}
		})
	}
}

// clocks checks that no worker begins an iteration more than slack ahead of the slowest.
type clocks struct {
	counter
	t                 *testing.T
	slack, ahead      int
	applied, released []int
}

func (c *clocks) Begin(workers, _ int) {
	c.applied, c.released = make([]int, workers), make([]int, workers)
}

func (c *clocks) Release(w star.Worker, _ int) {
	k := c.released[w]
	c.released[w]++
	ahead := k - slices.Min(c.applied)
	if c.ahead = max(c.ahead, ahead); ahead > c.slack {
		c.t.Errorf("worker %d begins iteration %d when the slowest has done %d: slack %d", w, k, slices.Min(c.applied), c.slack)
	}
}

func (c *clocks) Update(v int64, gs []Gradient) Outcome {
	for _, g := range gs {
		c.applied[g.Worker]++
	}
	return c.counter.Update(v, gs)
}

func TestSlackIsKept(t *testing.T) {
	for _, slack := range []int{0, 1, 3, 10} {
		l := &clocks{t: t, slack: slack}
		c := Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: 3}, Learner: l, Batch: 1, Target: 400}
		if err := c.Use(fmt.Sprintf("ssp:slack=%d", slack), optim.Config{}); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		if l.ahead != slack {
			t.Errorf("nobody was ever more than %d ahead, with slack %d and a slow worker", l.ahead, slack)
		}
	}
}

// told notes what becomes of gradients.
type told struct {
	counter
	applied, dropped []Gradient
	rest             []float64
}

func (l *told) Update(v int64, gs []Gradient) Outcome {
	l.applied = append(l.applied, gs...)
	return l.counter.Update(v, gs)
}

func (l *told) Drop(_ int64, g Gradient, rest float64) error {
	l.dropped, l.rest = append(l.dropped, g), append(l.rest, rest)
	return nil
}

// A worker stops after the part of its batch in which the cap has passed; the number of samples that it hands over and
// their arrival follow from that.
func TestCap(t *testing.T) {
	for _, test := range []struct {
		cap     time.Duration
		samples int
		took    time.Duration // 8 samples in 4 parts of 30 ms, and 40 ms for the push
	}{
		{ms, 2, 70 * ms}, {29 * ms, 2, 70 * ms}, {30 * ms, 4, 100 * ms}, {31 * ms, 4, 100 * ms}, {89 * ms, 6, 130 * ms}, {90 * ms, 8, 160 * ms}, {time.Hour, 8, 160 * ms},
	} {
		l := &told{}
		p := modes.SSGD(1)
		p.Micro, p.ComputeDeadline = 4, test.cap
		r, err := Run(Config{Times: Steady{Iteration: []time.Duration{160 * ms}, Fixed: 0.25}, Plan: p, Learner: l, Batch: 8, Target: 3})
		if err != nil {
			t.Fatal(err)
		}
		if l.applied[2].Samples != test.samples || r.Time != 3*test.took {
			t.Errorf("cap %v: %d samples, three iterations in %v; want %d, %v", test.cap, l.applied[2].Samples, r.Time, test.samples, 3*test.took)
		}
	}
}

// A worker that computes for an update that is made without it finishes its part of the batch, and goes on.
func TestCancel(t *testing.T) {
	l := &told{}
	c := Config{Times: steady(100*ms, 100*ms, 100*ms, 404*ms), Learner: l, Batch: 8, Latency: ms, Target: 4}
	p := modes.Backup(4, 1)
	p.Micro, p.ComputeDeadline = 4, time.Hour
	c.Plan, c.Cancel = p, true
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	// Updates are at 100, 201, 302, 403 ms; a part takes the slow one 101 ms. It hears of the first update at 101 ms, when
	// it has just begun its second part, and begins again at 203 ms; of the third at 303 ms, in its first part, with which
	// it is through at 304 ms.
	var samples []int
	for _, g := range l.dropped {
		samples = append(samples, g.Samples)
	}
	if want := []int{4, 2}; !slices.Equal(samples, want) || r.Time != 403*ms {
		t.Errorf("dropped gradients of %v samples, updates until %v; want %v, 403ms", samples, r.Time, want)
	}
	for _, rest := range l.rest {
		if rest != 0.25 {
			t.Errorf("the rest is %v of the workers", rest)
		}
	}
}

// A worker that gets the cancellation while its parameters are on their way makes only the first part of its batch.
func TestCancelWhilePulling(t *testing.T) {
	l := &told{}
	p := modes.Backup(3, 1)
	p.Micro, p.ComputeDeadline = 4, time.Hour
	n := apart(3, 1, 0, 0)
	n.Hosts[2].Bandwidth = 5_000_000
	// Updates are at 100, 200, … ms. The parameters reach worker 2 at 200 ms, it computes for 25 of 100 ms, and its
	// gradient arrives at 425 ms.
	r, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms), Plan: p, Cancel: true, Learner: l, Batch: 8, Network: n, Bytes: 1_000_000, Target: 5})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.dropped) != 1 || l.dropped[0].Samples != 2 || l.dropped[0].Basis != 0 || r.Dropped != 1 {
		t.Errorf("dropped %+v, want 2 samples of version 0", l.dropped)
	}
}

// The rest of the workers means the rest of the present workers.
func TestRestOfTheLiving(t *testing.T) {
	l := &told{}
	p := modes.Backup(5, 2)
	p.Micro, p.ComputeDeadline = 4, time.Hour
	if _, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms, 404*ms, 100*ms), Plan: p, Cancel: true, Learner: l, Batch: 8, Target: 4,
		Failures: []Failure{{Worker: 4, At: ms}}}); err != nil {
		t.Fatal(err)
	}
	for _, rest := range l.rest {
		if rest != 0.25 {
			t.Errorf("the rest is %v of the 4 workers, 3 of whom are in an update", rest)
		}
	}
	if len(l.rest) == 0 {
		t.Error("nothing was dropped")
	}
}

// hand learns by the formulas of the papers, in float64, with a full copy for each worker.
type hand struct {
	*byHand
	update func(h *hand, round float64, gs []Gradient)

	last, late  []float64
	lates       int
	factor      float64
	ref, coming []float64
	kept        map[[2]int64][]float64 // by worker and step
	version     int64
}

func (h *hand) Keep(g *Gradient) error {
	if h.kept == nil {
		h.kept = map[[2]int64][]float64{}
	}
	h.kept[[2]int64{int64(g.Worker), g.Step}] = h.gradient(*g)
	return nil
}

func (h *hand) Forget(star.Worker) {}

func (h *hand) gradient(g Gradient) []float64 {
	d := make([]float32, len(h.now))
	h.byHand.Gradient(d, h.read[g.Worker], h.from[g.Worker], g.Samples)
	return wide(d)
}

func wide(d []float32) []float64 {
	v := make([]float64, len(d))
	for i, x := range d {
		v[i] = float64(x)
	}
	return v
}

func (h *hand) Update(_ int64, gs []Gradient) Outcome {
	h.update(h, h.round, gs)
	return Outcome{}
}

func (h *hand) Drop(version int64, g Gradient, rest float64) error {
	if g.Basis == version-1 {
		d := h.gradient(g)
		for i := range d {
			if h.lates == 0 {
				h.late[i] = 0
			}
			h.late[i] += d[i]
		}
		h.lates++
		h.factor = rest
	}
	return nil
}

func (h *hand) Begin(workers, round int) {
	h.byHand.Begin(workers, round)
	h.last, h.late = nil, make([]float64, len(h.now))
}

func (h *hand) Validate() error {
	d := make([]float32, len(h.now))
	h.byHand.Gradient(d, h.now, validationFrom+16*int64(len(h.coming)/len(h.now)), 16)
	h.coming = append(h.coming, wide(d)...)
	return nil
}

func (h *hand) Validated() error {
	h.ref = h.coming[len(h.coming)-len(h.now):]
	return nil
}

func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// What the shard makes of gradients in the simulator is what the papers say: DC-ASGD, LGC, local SGD, EASGD.
func TestRulesAgree(t *testing.T) {
	const lr, batch = 1.0, 8
	for _, test := range []struct {
		name   string
		update func(h *hand, round float64, gs []Gradient)
	}{
		{"dc-asgd:lambda=3", func(h *hand, round float64, gs []Gradient) {
			for _, g := range gs {
				d := h.gradient(g)
				for i, x := range d {
					h.now[i] -= float32(lr * float64(g.Samples) / round * (x + 3*x*x*float64(h.now[i]-h.read[g.Worker][i])))
				}
			}
		}},
		{"k-batch-async:k=5", func(h *hand, round float64, gs []Gradient) {
			for _, g := range gs {
				d := h.kept[[2]int64{int64(g.Worker), g.Step}]
				for i, x := range d {
					h.now[i] -= float32(lr * float64(g.Samples) / round * x)
				}
			}
		}},
		{"k-batch-sync:k=3", func(h *hand, round float64, gs []Gradient) {
			for _, g := range gs {
				if g.Basis != h.version {
					panic("a gradient on older parameters")
				}
				for i, x := range h.kept[[2]int64{int64(g.Worker), g.Step}] {
					h.now[i] -= float32(lr * float64(g.Samples) / round * x)
				}
			}
			h.version++
		}},
		{"lgc:k=3,blocks=4", func(h *hand, _ float64, gs []Gradient) {
			fast := make([]float64, len(h.now))
			for _, g := range gs {
				for i, x := range h.gradient(g) {
					fast[i] += x / float64(len(gs))
				}
			}
			for i, x := range fast {
				if h.lates > 0 {
					x += h.factor * (h.late[i]/float64(h.lates) - h.last[i])
				}
				h.now[i] -= float32(lr * x)
			}
			h.last, h.lates = fast, 0
		}},
		{"local-sgd:steps=3", func(h *hand, _ float64, gs []Gradient) {
			mean := make([]float64, len(h.now))
			for _, g := range gs {
				for i, x := range h.walk(g, 3, slices.Clone(h.read[g.Worker])) {
					mean[i] += x / float64(len(gs))
				}
			}
			for i, x := range mean {
				h.now[i] = float32(x)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var times []time.Duration
				for range 4 {
					times = append(times, time.Duration(rapid.IntRange(50, 400).Draw(t, "ms"))*ms)
				}
				c := Config{Times: Varied{Times: steady(times...), Sigma: 0.3, Seed: 5}, Batch: batch, Latency: ms, Limit: 3 * time.Second, Learner: &Trained{Task: line{}, Every: 1 << 30}}
				if err := c.Use(test.name, optim.Config{LR: lr}); err != nil {
					t.Fatal(err)
				}
				trained := c.Learner.(*Trained)
				r, err := Run(c)
				if err != nil {
					t.Fatal(err)
				}
				h := &hand{byHand: &byHand{lr: lr}, update: test.update}
				c.Learner = h
				if _, err := Run(c); err != nil {
					t.Fatal(err)
				}
				for i, w := range trained.Params() {
					if math.Abs(float64(w-h.now[i])) > 1e-4*(1+math.Abs(float64(w))) {
						t.Fatalf("parameter %d after %d updates is %v, by hand %v", i, r.Updates, w, h.now[i])
					}
				}
			})
		})
	}
}

// walk makes the given number of steps of SGD.
func (h *hand) walk(g Gradient, steps int, params []float32) []float64 {
	d := make([]float32, len(params))
	for _, p := range rule.Pieces(h.from[g.Worker], g.Samples, steps) {
		h.byHand.Gradient(d, params, p.Start, p.Count)
		for i := range d {
			params[i] -= float32(h.lr) * d[i]
		}
	}
	return wide(params)
}

// Zeno++ by hand: the same gradients are refused, the others as long as the validation gradient. With ρ = 0 and ε
// without end it is ASGD with gradients of that length.
func TestZenoAgrees(t *testing.T) {
	for _, test := range []struct{ rho, eps float64 }{{0.5, 0}, {0.5, 0.3}, {0, 1e6}} {
		t.Run(fmt.Sprintf("rho=%v,eps=%v", test.rho, test.eps), func(t *testing.T) { zenoAgrees(t, test.rho, test.eps) })
	}
}

func zenoAgrees(t *testing.T, rho, eps float64) {
	rapid.Check(t, func(t *rapid.T) {
		var times []time.Duration
		for range 3 {
			times = append(times, time.Duration(rapid.IntRange(50, 400).Draw(t, "ms"))*ms)
		}
		const lr = 4.0
		c := Config{Times: Varied{Times: steady(times...), Sigma: 0.3, Seed: 5}, Batch: 2, Limit: 4 * time.Second, Learner: &Trained{Task: line{}, Every: 1 << 30}}
		if err := c.Use(fmt.Sprintf("zeno++:rho=%v,eps=%v,samples=16,every=3", rho, eps), optim.Config{LR: lr}); err != nil {
			t.Fatal(err)
		}
		trained := c.Learner.(*Trained)
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		h := &hand{byHand: &byHand{lr: lr}, update: func(h *hand, round float64, gs []Gradient) {
			g := h.gradient(gs[0])
			factor := math.Sqrt(dot(h.ref, h.ref) / dot(g, g))
			if lr*factor*dot(h.ref, g)-rho*dot(h.ref, h.ref) < -lr*eps {
				refused++
				return
			}
			for i, x := range g {
				h.now[i] -= float32(lr * float64(gs[0].Samples) / round * factor * x)
			}
		}}
		c.Learner = h
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		if trained.Judged != int(r.Updates) || trained.Refused != refused || rho == 0 && refused > 0 {
			t.Fatalf("%d of %d updates judged, %d refused, by hand %d", trained.Judged, r.Updates, trained.Refused, refused)
		}
		for i, w := range trained.Params() {
			if math.Abs(float64(w-h.now[i])) > 1e-3*(1+math.Abs(float64(w))) {
				t.Fatalf("parameter %d after %d updates is %v, by hand %v", i, r.Updates, w, h.now[i])
			}
		}
	})
}

// LGC that waits for all workers is SSGD, to the bit.
func TestLGCOfAll(t *testing.T) {
	run := func(name string) []float32 {
		l := &Trained{Task: line{}}
		c := Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: 3}, Learner: l, Batch: 16, Limit: 20 * time.Second}
		if err := c.Use(name, optim.Config{LR: 4}); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		return l.Params()
	}
	if a, b := run("ssgd"), run("lgc:k=3"); !slices.Equal(a, b) {
		t.Errorf("%v, and by LGC %v", a, b)
	}
}

// A Quadratic and the same as a task of a shard make the same progress.
func TestNoisyIsQuadratic(t *testing.T) {
	run := func(l Learner) Result {
		r, err := Run(Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: 3}, Plan: modes.XOrder(3, 2), Learner: l, Batch: 16, Target: 3, Limit: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	q := NewQuadratic(8, 5, 0, 0.2, 1)
	q.round = 48
	a, b := run(NewQuadratic(8, 5, 0, 0.2, 1)), run(&Trained{Task: noisy{q}, Rule: descent(0.2)})
	if a.Time != b.Time || math.Abs(a.Progress-b.Progress) > 1e-4 {
		t.Errorf("%+v, in a shard %+v", a, b)
	}
}

func TestUseRejects(t *testing.T) {
	for name, want := range map[string]string{
		"x=9":            "x is",
		"best":           "best",
		"lgc:k=9":        "k=9",
		"zeno++:rho=-1":  "rho=-1",
		"lb-bsp:magic=1": "magic",
		"dc-asgd":        "has none",
		"diloco":         "has none",
	} {
		c := Config{Times: steady(100*ms, 100*ms), Learner: &Tally{}, Batch: 8, Limit: time.Second}
		if err := c.Use(name, optim.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	l := &Trained{Task: line{}, Rule: descent(1)}
	p := modes.SSGD(2)
	p.Local = 2
	if _, err := Run(Config{Times: steady(100*ms, 100*ms), Plan: p, Learner: l, Batch: 8, Limit: time.Second}); err == nil || !strings.Contains(err.Error(), "train by themselves") {
		t.Errorf("local steps without a worker's optimiser: %v", err)
	}
}

// A quadratic by itself has no gradients that could be kept.
func TestKeptGradientsNeedAShard(t *testing.T) {
	_, err := Run(Config{Times: steady(100*ms, 110*ms), Plan: modes.Batches(2, 3, true), Learner: NewQuadratic(8, 5, 0, 0.2, 1), Batch: 16, Limit: time.Second})
	if err == nil || !strings.Contains(err.Error(), "none to keep") {
		t.Errorf("error %v", err)
	}
}

// A worker that leaves takes its kept gradients along: updates are of the others' gradients.
func TestKeptGradientsOfWhoIsGone(t *testing.T) {
	l := &told{}
	if _, err := Run(Config{Times: steady(100*ms, 110*ms, 310*ms), Plan: modes.Batches(3, 4, false), Learner: l, Batch: 8, Limit: 2 * time.Second,
		Failures: []Failure{{Worker: 0, At: 150 * ms, Back: 700 * ms}}}); err != nil {
		t.Fatal(err)
	}
	back := false
	for _, g := range l.applied {
		if g.Worker == 0 && g.Step == 0 {
			t.Fatalf("%+v was applied after its worker was gone", g)
		}
		back = back || g.Worker == 0
	}
	if !back {
		t.Error("nothing of worker 0 was applied after it was back")
	}
	if len(l.applied) < 8 {
		t.Errorf("%d gradients applied", len(l.applied))
	}
}
