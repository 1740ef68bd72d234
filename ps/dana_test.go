package ps

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// dana is the rule with the optimiser of jobs.
func dana(t interface{ Fatal(...any) }, n, workers, threads int, mu, decay, clip float64) *rule.WorkerMomentum {
	o, err := optim.New(optim.Config{Name: optim.DANA, LR: 0.1, Momentum: mu, WeightDecay: decay}, n)
	if err != nil {
		t.Fatal(err)
	}
	return rule.NewWorkerMomentum(&rule.Descent{Optimizer: o, Schedule: rule.Constant(0.1), Clip: clip, Threads: threads}, workers, mu, decay)
}

// someOf is a random one of some of the workers, each with a gradient of n elements; with again, some bring several.
func someOf(r *rand.Rand, workers, n int, again bool) (gs []rule.Gradient) {
	for w := range workers {
		for r.IntN(2) == 0 {
			g := rule.Gradient{Worker: star.Worker(w), Weight: 1 / float32(workers), Vec: make([]float32, n)}
			for i := range g.Vec {
				g.Vec[i] = float32(r.NormFloat64())
			}
			if gs = append(gs, g); !again {
				break
			}
		}
	}
	return gs
}

func cloned(gs []rule.Gradient) []rule.Gradient {
	gs = slices.Clone(gs)
	for i := range gs {
		gs[i].Vec = slices.Clone(gs[i].Vec)
	}
	return gs
}

// The rule is algorithm 6 of the paper in double precision, with weights, clipping and decay: u = g + λw + μv, w ← w −
// η·Σ c·u; and Nesterov's in whole rounds, which begin with the mean of the velocities, where weights tell of them.
func TestWorkerMomentumIsDANASlim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers, n := rapid.IntRange(1, 5).Draw(t, "workers"), rapid.IntRange(1, 4).Draw(t, "n")
		mu, decay, clip := rapid.SampledFrom([]float64{0, 0.5, 0.9}).Draw(t, "mu"), rapid.SampledFrom([]float64{0, 0.01}).Draw(t, "decay"), rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "clip")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		rule := dana(t, n, workers, 1, mu, decay, clip)
		rule.Apart = rapid.Bool().Draw(t, "apart")
		w, want := make([]float32, n), make([]float64, n)
		for i := range w {
			w[i] = float32(r.NormFloat64())
			want[i] = float64(w[i])
		}
		v := make([][]float64, workers)
		for i := range v {
			v[i] = make([]float64, n)
		}
		for range 30 {
			gs := someOf(r, workers, n, true)
			if len(gs) == 0 {
				continue
			}
			norm := 0.0
			for i := range n {
				sum := 0.0
				for _, g := range gs {
					sum += float64(g.Weight) * float64(g.Vec[i])
				}
				norm += sum * sum
			}
			norm = math.Sqrt(norm)
			short := 1.0
			if clip > 0 && norm > clip {
				short = clip / norm
			}
			next, own := slices.Clone(want), gs
			all := float64(0)
			for _, g := range gs {
				all += float64(g.Weight)
			}
			if !rule.Apart && all > 1-1e-6 {
				for i := range next {
					mean, d := 0.0, decay*want[i]
					for _, g := range gs {
						mean += float64(g.Weight) / all * v[g.Worker][i]
						d += short * float64(g.Weight) * float64(g.Vec[i])
					}
					for k := range v {
						v[k][i] = mu*mean + d
					}
					next[i] -= 0.1 * (d + mu*v[0][i])
				}
				own = nil
			}
			for _, g := range own {
				for i, x := range g.Vec {
					d := short*float64(x) + decay*want[i]
					v[g.Worker][i] = mu*v[g.Worker][i] + d
					next[i] -= 0.1 * float64(g.Weight) * (d + mu*v[g.Worker][i])
				}
			}
			want = next
			if clip > 0 {
				rule.Step(w, rule.Combine(w, 0, gs), 0, norm)
			} else {
				rule.Update(w, w, 0, gs, 0)
			}
			for i := range w {
				if math.Abs(float64(w[i])-want[i]) > 1e-4*(1+math.Abs(want[i])) {
					t.Fatalf("element %d is %v, want %v", i, w[i], want[i])
				}
			}
		}
	})
}

// In SSGD it is Nesterov's momentum, bit for bit, and no worker has a velocity of its own: also where the norm is asked
// for before, and after a plan in which workers had some.
func TestWorkerMomentumInSSGD(t *testing.T) {
	const n, workers = 7, 4
	for _, clip := range []float64{0, 0.5} {
		o, err := optim.New(optim.Config{Name: optim.Nesterov, LR: 0.1, Momentum: 0.9, WeightDecay: 0.01}, n)
		if err != nil {
			t.Fatal(err)
		}
		one, each := &rule.Descent{Optimizer: o, Schedule: rule.Constant(0.1), Clip: clip}, dana(t, n, workers, 1, 0.9, 0.01, clip)
		a, b := make([]float32, n), make([]float32, n)
		r := rand.New(rand.NewPCG(1, 2))
		for range 100 {
			var gs []rule.Gradient
			for len(gs) < workers {
				gs = someOf(r, workers, n, false)
			}
			if twin := cloned(gs); clip > 0 {
				one.Step(a, one.Combine(a, 0, twin), 0, 2)
				each.Step(b, each.Combine(b, 0, gs), 0, 2)
			} else {
				one.Update(a, a, 0, twin, 0)
				each.Update(b, b, 0, gs, 0)
			}
			if !slices.Equal(a, b) {
				t.Fatalf("%v, Nesterov's %v", b, a)
			}
			if len(each.Lasting(n)) != 1 {
				t.Fatal("workers have velocities of their own in SSGD")
			}
		}
		single := someOf(rand.New(rand.NewPCG(3, 4)), workers, n, false)[:1]
		each.Update(b, b, 0, single, 0)
		if len(each.Lasting(n)) != workers {
			t.Fatal("a worker has no velocity of its own after an update of its gradient alone")
		}
		for len(single) < workers {
			single = someOf(r, workers, n, false)
		}
		if each.Update(b, b, 0, single, 0); len(each.Lasting(n)) != 1 {
			t.Fatal("velocities are not one after a whole round")
		}
	}
}

// However velocities were split and made one, what is remembered moves the parameters as far, in the end, as if each
// worker had always had its own.
func TestWorkerMomentumReach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n, workers, mu = 2, 3, 0.5
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		a, b := dana(t, n, workers, 1, mu, 0, 0), dana(t, n, workers, 1, mu, 0, 0)
		b.Apart = true
		wa, wb := make([]float32, n), make([]float32, n)
		update := func(gs []rule.Gradient) {
			b.Update(wb, wb, 0, cloned(gs), 0)
			a.Update(wa, wa, 0, gs, 0)
		}
		for range 20 {
			for range r.IntN(4) {
				gs := someOf(r, workers, n, false)
				for len(gs) < workers {
					gs = someOf(r, workers, n, false)
				}
				update(gs)
			}
			for range r.IntN(8) {
				if gs := someOf(r, workers, n, false); len(gs) > 0 {
					update(gs)
				}
			}
		}
		for range 60 * workers { // until nothing is left, in any order
			update([]rule.Gradient{{Worker: star.Worker(r.IntN(workers)), Weight: 1. / workers, Vec: make([]float32, n)}})
		}
		for i := range wa {
			if math.Abs(float64(wa[i]-wb[i])) > 1e-4 {
				t.Fatalf("element %d is %v, with velocities of their own throughout %v", i, wa[i], wb[i])
			}
		}
	})
}

// One pass or two, one goroutine or several, one shard or two, and across a checkpoint or a move: the bits are the
// same.
func TestWorkerMomentumPaths(t *testing.T) {
	const enough = 128 << 10 // elements for a goroutine of their own
	const n, workers, steps = 3*enough + 17, 3, 4
	gradients := func(step int) []rule.Gradient {
		r := rand.New(rand.NewPCG(7, uint64(step)))
		gs := someOf(r, workers, n, false)
		if len(gs) == 0 {
			gs = append(gs, rule.Gradient{Weight: 1, Vec: make([]float32, n)})
		}
		return gs
	}
	cut := func(gs []rule.Gradient, from, to int) []rule.Gradient {
		for i := range gs {
			gs[i].Vec = gs[i].Vec[from:to]
		}
		return gs
	}
	begin := func() []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = float32(math.Sin(float64(i)))
		}
		return w
	}
	want := begin()
	ref := dana(t, n, workers, 1, 0.9, 0.01, 0)
	for step := range steps {
		ref.Step(want, ref.Combine(want, 0, gradients(step)), 0, -1)
	}
	for name, do := range map[string]func() []float32{
		"one pass, 1 goroutine, in place": func() []float32 {
			d, w := dana(t, n, workers, 1, 0.9, 0.01, 0), begin()
			for step := range steps {
				d.Update(w, w, 0, gradients(step), 0)
			}
			return w
		},
		"one pass, 3 goroutines, into a spare vector, measured": func() []float32 {
			d, w := dana(t, n, workers, 3, 0.9, 0.01, 0), begin()
			d.Measure(true)
			for step := range steps {
				next := make([]float32, n)
				d.Update(next, w, 0, gradients(step), 0)
				w = next
			}
			return w
		},
		"ahead and settled, then at once, 3 goroutines": func() []float32 {
			d, w := dana(t, n, workers, 3, 0.9, 0.01, 0), begin()
			for step := range steps {
				gs := gradients(step)
				if step%2 == 1 { // as a firing that a worker is in twice
					d.Update(w, w, 0, gs, 0)
					continue
				}
				if !d.Ahead(w, w, 0, gs, 0) {
					t.Fatal("not ahead")
				}
				d.Settle(gs)
			}
			return w
		},
		"a shard": func() []float32 {
			d, w := dana(t, n, workers, 2, 0.9, 0.01, 0), begin()
			freed := 0
			s := NewShard(n, d, counted{&freed})
			s.Load(w, 0)
			for step := range steps {
				f := wire.Fire{Seq: int64(step + 1), Version: int64(step + 1)}
				gs := gradients(step)
				for _, g := range gs {
					g.Step = int64(step)
					if err := s.Push(g); err != nil {
						t.Fatal(err)
					}
					f.Gradients = append(f.Gradients, wire.Gradient{Worker: g.Worker, Step: g.Step, Weight: g.Weight})
				}
				if err := s.Fire(&f); err != nil {
					t.Fatal(err)
				}
				before := freed
				if ev, ok := s.Next(); !ok || ev.Kind != Updated || freed != before {
					t.Fatalf("%v, %v, %d vectors freed before velocities are brought up to date", ev.Kind, ok, freed-before)
				}
				if _, ok := s.Next(); ok || freed != before+len(gs) {
					t.Fatalf("%d vectors freed, want %d", freed-before, len(gs))
				}
			}
			return w
		},
		"an optimiser that steps as a whole": func() []float32 {
			d, w := dana(t, n, workers, 1, 0.9, 0.01, 0), begin()
			d.Then.Optimizer = whole{d.Then.Optimizer}
			for step := range steps {
				d.Update(w, w, 0, gradients(step), 0)
			}
			return w
		},
		"two shards": func() []float32 {
			w := begin()
			for _, part := range [][2]int{{0, enough + 5}, {enough + 5, n}} {
				d := dana(t, part[1]-part[0], workers, 2, 0.9, 0.01, 0)
				for step := range steps {
					d.Update(w[part[0]:part[1]], w[part[0]:part[1]], 0, cut(gradients(step), part[0], part[1]), 0)
				}
			}
			return w
		},
		"moved, then resumed": func() []float32 {
			d, w := dana(t, n, workers, 1, 0.9, 0.01, 0), begin()
			for step := range steps {
				d.Update(w, w, 0, gradients(step), 0)
				slots, next := d.Slots(n), dana(t, n, workers, 1, 0.9, 0.01, 0)
				if step%2 == 1 {
					slots = d.Lasting(n)
				}
				if err := next.SetSlots(slots); err != nil {
					t.Fatal(err)
				}
				d = next
			}
			return w
		},
		"with a direction that is refused in between": func() []float32 {
			d, w := dana(t, n, workers, 1, 0.9, 0.01, 0), begin()
			for step := range steps {
				d.Combine(w, 0, gradients(100+step)) // no Step
				d.Step(w, d.Combine(w, 0, gradients(step)), 0, -1)
			}
			return w
		},
	} {
		if got := do(); !slices.Equal(got, want) {
			t.Errorf("%s: other bits", name)
		}
	}
}

// whole hides that an optimiser can step in parts.
type whole struct{ rule.Optimizer }

// counted is a Memory for parameters without a reader, which counts the vectors that come back.
type counted struct{ freed *int }

func (counted) Writable(params []float32) []float32 { return params }
func (counted) Written()                            {}
func (c counted) Free([]float32)                    { *c.freed++ }

// Two gradients of a worker in one update: the second is sent off with the velocity that the first has left, so nothing
// is put off.
func TestWorkerMomentumIsNotAheadOfItself(t *testing.T) {
	d := dana(t, 1, 2, 1, 0.9, 0, 0)
	w := []float32{1}
	if d.Ahead(w, w, 0, []rule.Gradient{{Worker: 1, Weight: 1, Vec: []float32{1}}, {Worker: 1, Step: 1, Weight: 1, Vec: []float32{1}}}, 0) || w[0] != 1 {
		t.Errorf("ahead, to %v", w[0])
	}
}

// What is measured is Σ c·g: velocities are not part of it.
func TestWorkerMomentumMeasuresGradients(t *testing.T) {
	d := dana(t, 1, 1, 1, 0.9, 0, 0)
	d.Measure(true)
	w := []float32{0}
	for range 3 {
		d.Update(w, w, 0, []rule.Gradient{{Weight: 0.5, Vec: []float32{2}}}, 0)
		if d.Sum2() != 1 {
			t.Fatalf("the square of the sum is %v, want 1", d.Sum2())
		}
	}
	if got := w[0]; got == 0 {
		t.Fatal("nothing moved")
	}
}

// State of another rule, or of more workers than there are.
func TestWorkerMomentumState(t *testing.T) {
	d := dana(t, 2, 2, 1, 0.9, 0, 0)
	if err := d.SetSlots([]rule.Slot{{Name: "dc-asgd.ms", Data: make([]float32, 2)}}); err == nil {
		t.Error("the state of another rule was taken")
	}
	three := dana(t, 2, 3, 1, 0.9, 0, 0).Slots(2)
	three[1].Data = []float32{3, 4}
	if err := d.SetSlots(three); err != nil {
		t.Fatal(err)
	}
	if got := d.Slots(2); len(got) != 2 || !slices.Equal(got[1].Data, []float32{3, 4}) {
		t.Errorf("slots %v", got)
	}
}

// TestWorkerMomentumBears is what makes the rule worth its memory: how steep a direction may be, in ν = η·λ/(1 − μ), so
// that workers that take turns (a round-robin ASGD) go down it. Heavy ball bears 2(1+μ)/(1−μ) = 38 in SSGD and 1/d ≈
// 1.3 in turns; Nesterov's limit in SSGD is 2(1+μ)/((1+2μ)(1−μ)) = 13.6.
func TestWorkerMomentumBears(t *testing.T) {
	const mu = 0.9
	bears := func(nu float64, workers int, made func() rule.Rule) bool {
		r := made()
		w, eta := []float32{1}, 0.1
		curvature := nu * (1 - mu) / eta
		read := make([]float32, workers)
		for i := range read {
			read[i] = 1
		}
		for range 300 {
			for i := range read {
				g := rule.Gradient{Worker: star.Worker(i), Weight: 1 / float32(workers), Vec: []float32{float32(curvature) * read[i]}}
				r.Step(w, r.Combine(w, 0, []rule.Gradient{g}), 0, -1)
				read[i] = w[0]
				if math.Abs(float64(w[0])) > 1e6 {
					return false
				}
			}
		}
		return math.Abs(float64(w[0])) < 0.1
	}
	heavy := func() rule.Rule {
		o, err := optim.New(optim.Config{Name: optim.Momentum, LR: 0.1, Momentum: mu}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return &rule.Descent{Optimizer: o, Schedule: rule.Constant(0.1)}
	}
	for _, c := range []struct {
		name     string
		workers  int
		rule     func() rule.Rule
		from, to float64 // it bears from, and not to
	}{
		{"one worker", 1, func() rule.Rule { return dana(t, 1, 1, 1, mu, 0, 0) }, 13.4, 13.7},
		{"eight in turns", 8, func() rule.Rule { return dana(t, 1, 8, 1, mu, 0, 0) }, 7.5, 7.9},
		{"eight in turns, heavy ball", 8, heavy, 1.2, 1.35},
	} {
		if !bears(c.from, c.workers, c.rule) {
			t.Errorf("%s: does not bear %v", c.name, c.from)
		}
		if bears(c.to, c.workers, c.rule) {
			t.Errorf("%s: bears %v", c.name, c.to)
		}
	}
}

// An update of four gradients of a quarter of a million elements: what velocities cost beside one.
func BenchmarkWorkerMomentum(b *testing.B) {
	const n, workers = 1 << 18, 4
	o, err := optim.New(optim.Config{Name: optim.Nesterov, LR: 0.1, Momentum: 0.9}, n)
	if err != nil {
		b.Fatal(err)
	}
	var gs []rule.Gradient
	for w := range workers {
		gs = append(gs, rule.Gradient{Worker: star.Worker(w), Weight: 1. / workers, Vec: make([]float32, n)})
	}
	each, other := dana(b, n, workers, 1, 0.9, 0, 0), dana(b, n, workers, 1, 0.9, 0, 0)
	each.Apart, other.Apart = true, true                     // as in updates of less than a round
	b.Run("one for each worker, ahead", func(b *testing.B) { // what workers wait for
		w := make([]float32, n)
		b.SetBytes(4 * n * workers)
		for b.Loop() {
			each.Ahead(w, w, 0, gs, 0)
		}
	})
	b.Run("one for each worker, settling", func(b *testing.B) {
		b.SetBytes(4 * n * workers)
		for b.Loop() {
			each.Settle(gs)
		}
	})
	for name, rule := range map[string]rule.Fused{"one velocity": &rule.Descent{Optimizer: o, Schedule: rule.Constant(0.1), Threads: 1}, "one for each worker": other, "whole rounds": dana(b, n, workers, 1, 0.9, 0, 0)} {
		b.Run(name, func(b *testing.B) {
			w := make([]float32, n)
			b.SetBytes(4 * n * workers)
			for b.Loop() {
				rule.Update(w, w, 0, gs, 0)
			}
		})
	}
}
