package worker

import (
	"math"
	"testing"

	"star/internal/process"
	"star/member"
	"star/modes/baseline"
	"star/train/optim"
)

// DiLoCo's outer step: θ = 1 with workers at 0.8 and 0.6 becomes 0.601 (Nesterov 0.9, rate 0.7).
func TestOuterStep(t *testing.T) {
	o, err := optim.New(process.Outer(baseline.Outer{Rate: 0.7, Momentum: 0.9}), 1)
	if err != nil {
		t.Fatal(err)
	}
	theta := []float32{1}
	o.Step(theta, []float32{(1-0.8)/2 + (1-0.6)/2}, 0.7)
	if math.Abs(float64(theta[0])-0.601) > 1e-6 {
		t.Errorf("θ is %v, want 0.601", theta[0])
	}
}

// A worker that trains by itself has one velocity, so with dana it is Nesterov's: what the optimiser of that name does alone is a plain step.
func TestLocalStepsOfDANA(t *testing.T) {
	var worker worker
	err := worker.byBaseline(&member.Job{Batch: 8, Rule: member.Rule{Baseline: "local-sgd:steps=4", Optimizer: optim.DANA, LR: 0.1, Momentum: 0.9}}, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	o, err := worker.local.Make()
	if err != nil {
		t.Fatal(err)
	}
	w := []float32{0}
	for range 2 {
		o.Step(w, []float32{1}, 0.1)
	}
	if want := -0.1 * (1.9 + 1 + 0.9*1.9); math.Abs(float64(w[0])-want) > 1e-6 {
		t.Errorf("two steps go to %v, Nesterov's to %v", w[0], want)
	}
}
