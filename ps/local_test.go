package ps

import (
	"math"
	"testing"

	"star"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// On a quadratic workers that make steps of their own and then average come to where the same workers come by an update
// after each of those steps: all of it is linear, parameters and velocities, so the mean of what workers do is what is
// done to the mean (Woodworth et al. 2020, section 3). Gradients are λ(w − w*) and noise, and the workers' velocities
// are their own and stay so.
func TestStepsOfTheirOwnOnAQuadratic(t *testing.T) {
	const workers, steps, rounds, n = 4, 6, 5, 3
	curvature := [n]float32{0.5, 2, 8}
	noise := func(w, k, i int) float32 { return float32(math.Sin(float64(1 + 31*w + 7*k + 3*i))) }
	gradient := func(dst, params []float32, w, k int) {
		for i := range dst {
			dst[i] = curvature[i]*(params[i]-1) + noise(w, k, i)
		}
	}
	begin := func() []float32 { return []float32{5, -3, 2} }
	for _, c := range []optim.Config{{LR: 0.05}, {Name: optim.Momentum, LR: 0.02}, {Name: optim.Nesterov, LR: 0.02}, {Name: optim.DANA, LR: 0.02}, {Name: optim.Momentum, LR: 0.02, WeightDecay: 0.1}} {
		t.Run(c.WithDefaults().Name, func(t *testing.T) {
			own := c.Shared()
			o, err := optim.New(own, n)
			if err != nil {
				t.Fatal(err)
			}
			want, mean, g := begin(), make([]float32, n), make([]float32, n)
			for k := range rounds * steps {
				clear(mean)
				for w := range workers {
					gradient(g, want, w, k)
					for i := range g {
						mean[i] += g[i] / workers
					}
				}
				o.Step(want, mean, c.LR)
			}

			s := strideShard(t, c, n, begin())
			solos := make([]*rule.Solo, workers)
			for w := range solos {
				solos[w] = &rule.Solo{Gain: c.Gain(), Schedule: rule.Constant(c.LR), Make: func() (rule.Optimizer, error) { return optim.New(own, n) }}
			}
			for r := range rounds {
				f := wire.Fire{Seq: int64(r + 1), Version: int64(r + 1), Samples: int64(r * steps * workers), Local: steps}
				for w := range workers {
					params, out := append([]float32(nil), s.Params()...), make([]float32, n)
					if err := solos[w].Begin(params); err != nil {
						t.Fatal(err)
					}
					for k := range steps {
						gradient(g, params, w, r*steps+k)
						solos[w].Step(params, g, 0)
					}
					solos[w].End(params, out)
					if err := s.Push(rule.Gradient{Worker: star.Worker(w), Step: int64(r), Basis: int64(r), Samples: steps, Vec: out}); err != nil {
						t.Fatal(err)
					}
					f.Gradients = append(f.Gradients, wire.Gradient{Worker: star.Worker(w), Step: int64(r), Weight: 1. / workers})
				}
				if err := s.Fire(&f); err != nil {
					t.Fatal(err)
				}
				if ev, ok := s.Next(); !ok || ev.Kind != Updated || ev.Version != f.Version {
					t.Fatalf("round %d: %+v, %v", r, ev, ok)
				}
			}
			for i, p := range s.Params() {
				if math.Abs(float64(p-want[i])) > 2e-5 {
					t.Errorf("parameter %d is %v, by updates after each step %v", i, p, want[i])
				}
			}
		})
	}
}

func strideShard(t *testing.T, c optim.Config, n int, params []float32) *Shard {
	t.Helper()
	o, err := optim.New(c, n)
	if err != nil {
		t.Fatal(err)
	}
	d := &rule.Descent{Optimizer: o, Schedule: rule.Constant(c.LR)}
	r := rule.Rule(d)
	if c.Name == optim.DANA {
		r = rule.NewWorkerMomentum(d, 4, o.Config().Momentum, c.WeightDecay)
	}
	s := NewShard(n, r, keepAll{})
	s.Load(params, 0)
	return s
}

// Workers that begin steps of their own go on from the last step of the shards' parameters. With heavy ball, on a
// quadratic, they reach the result of SSGD with the same number of additional updates; with Nesterov's momentum they
// get much closer to it than from a velocity of zero. Without earlier steps they begin with no velocity.
func TestStepsOfTheirOwnFollow(t *testing.T) {
	const before, steps = 5, 4
	gradient := func(dst, params []float32) { dst[0], dst[1] = 0.5*(params[0]-1), 3*(params[1]-1) }
	for _, c := range []struct {
		optim.Config
		off float64 // of what is lost from a velocity of zero
	}{{optim.Config{Name: optim.Momentum, LR: 0.02}, 1e-4}, {optim.Config{Name: optim.Nesterov, LR: 0.02}, 0.25}, {optim.Config{LR: 0.02}, 0}} {
		o, err := optim.New(c.Config, 2)
		if err != nil {
			t.Fatal(err)
		}
		now, was, g := []float32{5, -3}, make([]float32, 2), make([]float32, 2)
		for range before {
			copy(was, now)
			gradient(g, now)
			o.Step(now, g, c.LR)
		}
		own := func(follow bool, was []float32) (to []float32) {
			s := &rule.Solo{Gain: c.Gain(), Schedule: rule.Constant(c.LR), Make: func() (rule.Optimizer, error) { return optim.New(c.Config, 2) }}
			if follow {
				if err := s.Follow(was, now, 0); err != nil {
					t.Fatal(err)
				}
			}
			to = append(to, now...)
			if err := s.Begin(to); err != nil {
				t.Fatal(err)
			}
			for range steps {
				gradient(g, to)
				s.Step(to, g, 0)
			}
			return to
		}
		zero, follow, still := own(false, nil), own(true, was), own(true, now)
		want := append([]float32(nil), now...)
		for range steps {
			gradient(g, want)
			o.Step(want, g, c.LR)
		}
		for i := range want {
			lost, left := math.Abs(float64(zero[i]-want[i])), math.Abs(float64(follow[i]-want[i]))
			if left > c.off*lost || still[i] != zero[i] {
				t.Errorf("%s: parameter %d comes to %v, SSGD to %v, from a velocity of zero to %v, from a step of zero to %v", c.Name, i, follow[i], want[i], zero[i], still[i])
			}
		}
	}
	// At a rate of zero nothing is known of a velocity.
	s := &rule.Solo{Gain: 10, Schedule: rule.Constant(0), Make: func() (rule.Optimizer, error) { return optim.New(optim.Config{Name: optim.Momentum, LR: 1}, 1) }}
	if err := s.Follow([]float32{1}, []float32{2}, 0); err != nil {
		t.Fatal(err)
	}
	p := []float32{2}
	if err := s.Begin(p); err != nil {
		t.Fatal(err)
	}
	if s.Step(p, []float32{0}, 0); p[0] != 2 {
		t.Errorf("at a rate of zero it moves to %v", p[0])
	}
}

// Without momentum what a worker hands over is the mean of its gradients; with momentum 0.9, of steps with one and the
// same gradient, it grows towards that, as SSGD's steps do. And the shards' velocity is the mean one of the round, with
// which SSGD goes on.
func TestStrideGoesOn(t *testing.T) {
	const mu, lr, steps = 0.9, 0.1, 3
	v, moved := 0.0, 0.0 // by hand: heavy ball with gradients of 1
	for range steps {
		v = mu*v + 1
		moved += lr * v
	}
	c := optim.Config{Name: optim.Momentum, LR: lr, Momentum: mu}
	solo := &rule.Solo{Gain: c.Gain(), Schedule: rule.Constant(lr), Make: func() (rule.Optimizer, error) { return optim.New(c, 1) }}
	params, out := []float32{2}, []float32{0}
	if err := solo.Begin(params); err != nil {
		t.Fatal(err)
	}
	for range steps {
		solo.Step(params, []float32{1}, 0)
	}
	solo.End(params, out)
	if want := moved / (steps * lr) * (1 - mu); math.Abs(float64(out[0])-want) > 1e-6 {
		t.Fatalf("handed over %v, want %v", out[0], want)
	}
	o, err := optim.New(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := &rule.Descent{Optimizer: o, Schedule: rule.Constant(lr)}
	from := []float32{2}
	if d.Stride(from, []rule.Gradient{{Weight: 1, Vec: out}}, steps, 0); math.Abs(float64(from[0])-(2-moved)) > 1e-6 {
		t.Errorf("the parameter is %v, want %v", from[0], 2-moved)
	}
	if v, want := o.State().Slots[0].Data[0], moved/(steps*lr); math.Abs(float64(v)-want) > 1e-6 {
		t.Errorf("the velocity is %v, want the mean one, %v", v, want)
	}
}

// A shard with a rule that cannot go on from such steps refuses them.
func TestStrideIsRefused(t *testing.T) {
	s := strideShard(t, optim.Config{LR: 1}, 1, []float32{1})
	if err := s.Push(rule.Gradient{Vec: []float32{1}}); err != nil {
		t.Fatal(err)
	}
	f := &wire.Fire{Seq: 1, Version: 1, Gradients: []wire.Gradient{{Weight: 1}}, Local: 2, NormFirst: true}
	if err := s.Fire(f); err == nil {
		t.Error("a firing of steps with the norm first is accepted")
	}
	o, _ := optim.New(optim.Config{LR: 1}, 1)
	s = NewShard(1, &rule.LiveCompensated{Then: &rule.Descent{Optimizer: o, Schedule: rule.Constant(1)}}, keepAll{})
	s.Load([]float32{1}, 0)
	if err := s.Push(rule.Gradient{Vec: []float32{1}}); err != nil {
		t.Fatal(err)
	}
	f.NormFirst = false
	if err := s.Fire(f); err == nil {
		t.Error("a rule that knows of no steps makes an update of them")
	}
}
