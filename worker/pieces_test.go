package worker

import (
	"math"
	"testing"

	"star"
	"star/internal/process"
	"star/member"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train"
	"star/train/optim"
	"star/transport"
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

// pointModel has one parameter.
type pointModel struct{ train.Model }

func (pointModel) Params() []float32 { return []float32{1} }

// A worker keeps the parameters of before only where it is about to make its first own steps, from those of one update later.
func TestKeepsTheStepThatItsOwnFollow(t *testing.T) {
	for _, c := range []struct {
		name           string
		local          int
		version, basis int64
		samples        int // of the last gradient
		strides        bool
		baseline       bool
		want           bool
	}{
		{"first own steps", 4, 8, 7, 16, false, false, true},
		{"a gradient", 0, 8, 7, 16, false, false, false},
		{"two updates later", 4, 9, 7, 16, false, false, false},
		{"no gradient before", 4, 1, 0, 0, false, false, false},
		{"it makes such steps", 4, 8, 7, 16, true, false, false},
		{"a baseline's", 4, 8, 7, 16, false, true, false},
	} {
		w := worker{model: pointModel{}}
		w.before = []float32{1} // of a release before
		if c.strides {
			w.stride = new(rule.Solo)
		}
		if c.baseline {
			w.local = new(rule.Solo)
		}
		w.keep(transport.Release{Local: c.local, Version: c.version}, star.Record{Basis: c.basis, Samples: c.samples})
		if got := w.before != nil; got != c.want {
			t.Errorf("%s: kept %v, want %v", c.name, got, c.want)
		}
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
