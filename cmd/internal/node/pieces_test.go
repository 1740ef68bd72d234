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
