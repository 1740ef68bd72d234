package worker

import (
	"math"
	"testing"

	"star"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// A ring with Nesterov's momentum in its member, and with momentum of the riders' own, makes the updates that a shard
// makes of the same firings with a velocity for each worker.
func TestRiderMomentumIsThatOfShards(t *testing.T) {
	const n, mu, lr = 3, 0.9, 0.1
	descent := func(name string) *rule.Descent {
		o, err := optim.New(optim.Config{Name: name, LR: lr, Momentum: mu}, n)
		if err != nil {
			t.Fatal(err)
		}
		return &rule.Descent{Optimizer: o, Schedule: rule.Constant(lr)}
	}
	shard, ring := rule.NewWorkerMomentum(descent(optim.DANA), 3, mu, 0), descent(optim.Nesterov)
	shard.Apart = true // a ring has them apart in whole rounds, too
	freed := 0
	riders := newRiderMomentum(n, mu, 0, func(*riderGrad) { freed++ })
	want, got := []float32{1, -2, 3}, []float32{1, -2, 3}
	gradient := func(w, step int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Sin(float64(1 + w + 5*step + 31*i)))
		}
		return v
	}
	carried := 0
	for step := range 40 {
		gs := []rule.Gradient{{Worker: 0, Weight: 1. / 3, Vec: gradient(0, step)}}
		rides := func(w int) {
			riders.carry(&riderGrad{Push: wire.Push{Worker: star.Worker(w)}, vec: gradient(w, step)}, 1./3)
			carried++
		}
		if step%7 == 0 { // a round that has to be made again
			riders.begin()
			rides(1)
			rides(2)
		}
		riders.begin()
		for w := 1; w <= 2; w++ {
			if step%(w+1) == 0 {
				rides(w)
				gs = append(gs, rule.Gradient{Worker: star.Worker(w), Weight: 1. / 3, Vec: gradient(w, step)})
			}
		}
		own := gradient(0, step)
		for i := range own {
			own[i] /= 3
		}
		ring.Step(got, own, 0, -1)
		riders.move(got, lr)
		shard.Update(want, want, 0, gs, 0)
		for i := range want {
			if math.Abs(float64(got[i]-want[i])) > 1e-4 {
				t.Fatalf("step %d: element %d is %v, shards have %v", step, i, got[i], want[i])
			}
		}
	}
	if freed != carried {
		t.Errorf("%d gradients were carried, %d freed", carried, freed)
	}
	riders.keep(func(w star.Worker) bool { return w == 2 })
	if len(riders.velocity) != 1 || riders.velocity[2] == nil {
		t.Errorf("velocities of %v are kept", riders.velocity)
	}
}

// What a rider brings is clipped by itself.
func TestRiderMomentumClips(t *testing.T) {
	m := newRiderMomentum(1, 0, 0.5, func(*riderGrad) {})
	m.carry(&riderGrad{vec: []float32{8}}, 0.25)
	w := []float32{0}
	if m.move(w, 1); w[0] != -0.5 {
		t.Errorf("moved by %v, want -0.5", w[0])
	}
}
