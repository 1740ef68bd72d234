package node

import (
	"math"
	"testing"

	"star/modes/baseline"
	"star/train/optim"
)

// DiLoCo's outer step: θ = 1 with workers at 0.8 and 0.6 becomes 0.601 (Nesterov 0.9, rate 0.7).
func TestOuterStep(t *testing.T) {
	o, err := optim.New(outer(baseline.Outer{Rate: 0.7, Momentum: 0.9}), 1)
	if err != nil {
		t.Fatal(err)
	}
	theta := []float32{1}
	o.Step(theta, []float32{(1-0.8)/2 + (1-0.6)/2}, 0.7)
	if math.Abs(float64(theta[0])-0.601) > 1e-6 {
		t.Errorf("θ is %v, want 0.601", theta[0])
	}
}

// A step of EASGD: d = α(x − c) goes to the centre, x becomes x − η·g(x) − d; local SGD hands over w − wᵢ.
func TestLocalSteps(t *testing.T) {
	sgd := func() (*optim.Optimizer, error) { return optim.New(optim.Config{Name: optim.SGD, LR: 0.1}, 1) }
	rate, err := optim.Config{Name: optim.SGD, LR: 0.1}.Rate()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ pull, own, centre, params, out float32 }{
		{0.25, 3, 1, 3 - 0.1*2 - 0.5, -0.5}, // d = 0.25·(3 − 1)
		{0, 0, 1, 1 - 0.1*2, 0.1 * 2},
	} {
		l := &local{Local: baseline.Local{Pull: float64(c.pull)}, make: sgd, rate: rate, from: make([]float32, 1), own: []float32{c.own}}
		l.opt, _ = sgd()
		params, out := []float32{c.centre}, make([]float32, 1)
		if err := l.begin(params); err != nil {
			t.Fatal(err)
		}
		l.step(params, []float32{2}, 0, true)
		l.end(params, out)
		if math.Abs(float64(params[0]-c.params)) > 1e-6 || math.Abs(float64(out[0]-c.out)) > 1e-6 {
			t.Errorf("pull %v: %v and %v handed over, want %v and %v", c.pull, params[0], out[0], c.params, c.out)
		}
	}
}

// A batch in pieces is all of the batch, in order, and no piece is empty.
func TestCut(t *testing.T) {
	for count := 1; count < 20; count++ {
		for k := 1; k < 25; k++ {
			at := int64(100)
			for _, p := range cut(100, count, k) {
				if p.start != at || p.count < 1 || p.count > (count+k-1)/k {
					t.Fatalf("%d in %d: piece %+v at %d", count, k, p, at)
				}
				at += int64(p.count)
			}
			if at != 100+int64(count) {
				t.Fatalf("%d in %d pieces: %d samples", count, k, at-100)
			}
		}
	}
}
