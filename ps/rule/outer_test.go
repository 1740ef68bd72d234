package rule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star"
	"star/internal/outer"
)

// naiveOuter is the rules of Outer in float64, written from the equations of its comment, one element at a time.
type naiveOuter struct {
	Outer
	w, v, sum float64
	share     float64
}

func (o *naiveOuter) update(ds, as []float64, late []int) (sent []float64) {
	g, share := 0.0, 0.0
	for k, d := range ds {
		g += as[k] * d
		share += as[k]
	}
	switch o.Kind {
	case OuterNesterov, OuterLookahead:
		o.v = o.Momentum*o.v + g
		o.w -= o.Rate * (o.Momentum*o.v + g)
	case OuterDelayed:
		o.sum += g
		o.share += share
		if o.share >= 1-1e-6 {
			o.v = o.Momentum*o.v + o.sum
			o.w -= o.Rate * (o.Momentum*o.v + g)
			o.sum, o.share = 0, 0
		} else {
			o.w -= o.Rate * g
		}
	}
	for _, k := range late {
		// Momentum alone, update by update, instead of the closed form.
		w, v := o.w, o.v
		for ; o.Kind == OuterLookahead && k > 0; k-- {
			v *= o.Momentum
			w -= o.Rate * o.Momentum * v
		}
		sent = append(sent, w)
	}
	return sent
}

func ruleOf(kind outer.Kind, momentum, rate float64) Outer {
	return Outer{Kind: kind, Momentum: momentum, Rate: rate}
}

// The fast rules agree with the naive ones on random lives: updates of some workers, distances that are late, shares by
// samples, and a state that is saved and read back in between.
func TestOuterAgreesWithTheEquations(t *testing.T) {
	for _, o := range []Outer{
		ruleOf(OuterNesterov, 0.9, 0.7), ruleOf(OuterNesterov, 0, 1), ruleOf(OuterDelayed, 0.9, 0.7), ruleOf(OuterDelayed, 0, 0.5), ruleOf(OuterLookahead, 0.8, 0.7),
	} {
		t.Run(o.String(), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(7, 8))
			const n, workers, unit = 37, 5, 0.3
			params := make([]float32, n)
			naive := make([]naiveOuter, n)
			for i := range params {
				params[i] = float32(rng.NormFloat64())
				naive[i] = naiveOuter{Outer: o, w: float64(params[i])}
			}
			d := &Descent{Optimizer: nil, Schedule: Constant(9), Threads: 1, Unit: unit}
			basis := make([]int64, workers)
			for version := range int64(60) {
				var gs []Gradient
				var as []float64
				var late []int
				for w := range workers {
					if rng.IntN(3) == 0 && (w < workers-1 || len(gs) > 0) {
						continue
					}
					a := float64(1+w) / 15 // by samples: they sum to 1 over all workers
					g := Gradient{Worker: star.Worker(w), Basis: basis[w], Weight: float32(a), Vec: make([]float32, n)}
					for i := range g.Vec {
						g.Vec[i] = float32(rng.NormFloat64())
					}
					gs, as, late = append(gs, g), append(as, a), append(late, int(version-basis[w]))
					basis[w] = version + 1
				}
				sent := make([][]float64, n)
				for i := range naive {
					ds := make([]float64, len(gs))
					for k := range gs {
						ds[k] = unit * float64(gs[k].Vec[i])
					}
					sent[i] = naive[i].update(ds, as, late)
				}
				d.Outward(params, version, gs, o)
				for i := range params {
					if math.Abs(float64(params[i])-naive[i].w) > 2e-5*(1+math.Abs(naive[i].w)) {
						t.Fatalf("version %d: parameter %d is %v, want %v", version, i, params[i], naive[i].w)
					}
					for k, g := range gs {
						got := params
						if m := d.OuterModel(g.Worker); m != nil {
							got = m
						}
						if math.Abs(float64(got[i])-sent[i][k]) > 2e-5*(1+math.Abs(sent[i][k])) {
							t.Fatalf("version %d: worker %d, %d updates late, is sent %v, want %v", version, g.Worker, late[k], got[i], sent[i][k])
						}
					}
				}
				if version%7 == 3 { // to another shard, or a checkpoint
					next := &Descent{Schedule: Constant(9), Threads: 1, Unit: unit}
					if err := next.SetOuterSlots(d.OuterSlots(n)); err != nil {
						t.Fatal(err)
					}
					d = next
				}
			}
		})
	}
}

// In updates of whole rounds the three rules are one.
func TestOuterRulesAgreeOnWholeRounds(t *testing.T) {
	run := func(kind outer.Kind) []float32 {
		rng := rand.New(rand.NewPCG(1, 2))
		d, params := &Descent{Threads: 1}, make([]float32, 11)
		for version := range int64(20) {
			gs := make([]Gradient, 4)
			for w := range gs {
				gs[w] = Gradient{Worker: star.Worker(w), Basis: version, Weight: 0.25, Vec: make([]float32, len(params))}
				for i := range gs[w].Vec {
					gs[w].Vec[i] = float32(rng.NormFloat64())
				}
			}
			d.Outward(params, version, gs, ruleOf(kind, 0.9, 0.7))
		}
		return params
	}
	want := run(OuterNesterov)
	if got := run(OuterLookahead); !slices.Equal(got, want) {
		t.Errorf("look-ahead: %v, want %v", got, want)
	}
	for i, v := range run(OuterDelayed) {
		if math.Abs(float64(v-want[i])) > 1e-5*(1+math.Abs(float64(want[i]))) {
			t.Errorf("delayed: parameter %d is %v, want %v", i, v, want[i])
		}
	}
}

// A distance moves the parameters by η/(1−μ) of itself in total, whatever the rule and the updates that it was in.
func TestOuterGain(t *testing.T) {
	for _, kind := range []outer.Kind{OuterNesterov, OuterDelayed, OuterLookahead} {
		d, params, o := &Descent{Threads: 1}, []float32{0}, ruleOf(kind, 0.5, 0.7)
		for k := range int64(200) {
			g := Gradient{Worker: star.Worker(k % 4), Basis: max(0, k-3), Weight: 0.25, Vec: []float32{0}}
			if k < 4 {
				g.Vec[0] = 1
			}
			d.Outward(params, k, []Gradient{g}, o)
		}
		if want := -0.7 / (1 - 0.5); math.Abs(float64(params[0])-want) > 1e-5 {
			t.Errorf("%s: the parameter has moved by %v, want %v", kind, params[0], want)
		}
	}
}

// Velocity begins at zero with another rule, and after an update of gradients.
func TestOuterBeginsAgain(t *testing.T) {
	step := func(d *Descent, params []float32, o Outer) {
		d.Outward(params, 0, []Gradient{{Weight: 1, Vec: []float32{1}}}, o)
	}
	first := ruleOf(OuterNesterov, 0.9, 1)
	d, params := &Descent{Threads: 1}, []float32{0}
	step(d, params, first)
	for _, next := range []func() Outer{
		func() Outer { return ruleOf(OuterNesterov, 0.9, 0.5) },
		func() Outer { d.Inward(); return first },
	} {
		o := next()
		params[0] = 0
		if step(d, params, o); math.Abs(float64(params[0])+o.Rate*1.9) > 1e-6 {
			t.Errorf("%v: moved by %v, want %v", o, params[0], -o.Rate*1.9)
		}
	}
	if d.Inward(); len(d.OuterSlots(1)) != 0 {
		t.Error("there is state of outer steps after an update of gradients")
	}
}

func TestOuterSlotsRefuse(t *testing.T) {
	for _, names := range [][]string{
		{"sgd.velocity"}, {"outer.velocity sideways(0.9,0.7)"}, {"outer.velocity nesterov(0,0.7)"}, {"outer.velocity delayed(0.9,0.7)"},
		{"outer.sum nesterov(0.9,0.7)"}, {"outer.velocity nesterov(0.9,0.7)", "outer.velocity nesterov(0.9,0.7)"}, {"outer.velocity mean"},
	} {
		var slots []Slot
		for _, n := range names {
			slots = append(slots, Slot{n, []float32{1, 2}})
		}
		d := &Descent{}
		if err := d.SetOuterSlots(slots); err == nil || d.outer != nil {
			t.Errorf("%q: %v, %v", names, err, d.outer)
		}
	}
}

// A worker's local steps with clipping are those of the reference, and its distance is what it has moved.
func TestSoloDistance(t *testing.T) {
	s := &Solo{Schedule: Constant(0.5), Unit: 0.25, Clip: 1, Make: func() (Optimizer, error) { return plainStep{}, nil }}
	params := []float32{1, 2}
	if err := s.Begin(params); err != nil {
		t.Fatal(err)
	}
	s.Step(params, []float32{3, 4}, 0)       // clipped to 0.6, 0.8
	s.Step(params, []float32{0.2, -0.4}, 32) // not clipped
	out := make([]float32, 2)
	s.Distance(params, out)
	want := []float64{0.5 * (0.6 + 0.2), 0.5 * (0.8 - 0.4)}
	for i := range out {
		if math.Abs(float64(out[i])*0.25-want[i]) > 1e-6 {
			t.Errorf("moved by %v, want %v", float64(out[i])*0.25, want[i])
		}
	}
}

type plainStep struct{}

func (plainStep) Step(params, grad []float32, lr float64) {
	for i, g := range grad {
		params[i] -= float32(lr) * g
	}
}

// Distances of parts of the vector move only these, with the velocity of these, whatever else is in the update.
func TestOuterParts(t *testing.T) {
	o := ruleOf(OuterNesterov, 0.9, 0.7)
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 23
	params := make([]float32, n)
	naive := make([]naiveOuter, n)
	for i := range params {
		params[i] = float32(rng.NormFloat64())
		naive[i] = naiveOuter{Outer: o, w: float64(params[i])}
	}
	d := &Descent{Threads: 1, Unit: 0.3}
	for version := range int64(200) {
		var gs []Gradient
		for w := range 1 + rng.IntN(4) {
			of := Part{}
			if parts := rng.IntN(n + 1); parts > 0 {
				of = Part{parts, rng.IntN(parts)}
			}
			g := Gradient{Worker: star.Worker(w), Basis: version, Weight: 0.25, Of: of, Vec: make([]float32, n)}
			for i := range g.Vec {
				g.Vec[i] = float32(rng.NormFloat64())
			}
			gs = append(gs, g)
		}
		for i := range naive {
			var ds, as []float64
			for _, g := range gs {
				if from, to := g.Of.Range(n); i >= from && i < to {
					ds, as = append(ds, 0.3*float64(g.Vec[i])), append(as, 0.25)
				}
			}
			if len(ds) > 0 {
				naive[i].update(ds, as, nil)
			}
		}
		d.Outward(params, version, gs, o)
		for i := range params {
			if math.Abs(float64(params[i])-naive[i].w) > 2e-5*(1+math.Abs(naive[i].w)) {
				t.Fatalf("version %d: parameter %d is %v, want %v", version, i, params[i], naive[i].w)
			}
		}
	}
}
