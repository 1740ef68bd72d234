package straggler

import (
	"math"
	"testing"
)

// The numbers of this file are the artefact's, computed with PyTorch 1.13 in float64 on
// weights that follow from a formula: element i of parameter tensor j is
// 0.1·sin(0.37·i + j).
func fill[T Float](params []T, tensors []int) {
	at := 0
	for j, n := range tensors {
		for i := range n {
			params[at] = T(0.1 * math.Sin(0.37*float64(i)+float64(j)))
			at++
		}
	}
}

func (m MLP) tensors() (ns []int) {
	for i := 1; i < len(m.Widths); i++ {
		ns = append(ns, m.Widths[i]*m.Widths[i-1], m.Widths[i])
	}
	return ns
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s = %.12f, want %.12f", what, got, want)
	}
}

var (
	runTime  = Shape{Inputs: 2, Hidden: 50, Layers: 2, Resources: 2, Head: []int{256, 128, 1}}
	training = Shape{Inputs: 3, Hidden: 64, Layers: 2, Resources: 3, Head: []int{256, 128, 1}}
	shallow  = Shape{Inputs: 1, Hidden: 32, Layers: 1, Resources: 1}
)

func TestParameterCounts(t *testing.T) {
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"LSTM with regression, run time", runTime.Params(), 65_095},
		{"LSTM with regression, training", training.Params(), 85_188},
		{"shallow LSTM", shallow.Params(), 4_513},
		{"regression of 2", MLP{Widths: []int{2, 512, 256, 1}}.Params(), 133_121},
		{"regression of 13", MLP{Widths: []int{13, 512, 256, 1}}.Params(), 138_753},
		{"classifier", MLP{Widths: []int{13, 32, 64, 1}}.Params(), 2_625},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d parameters, want %d", c.what, c.got, c.want)
		}
	}
	for _, s := range []Shape{runTime, training, shallow} {
		n := 0
		for _, k := range s.tensors() {
			n += k
		}
		if n != s.Params() || len(NewNet[float32](s).Params) != n {
			t.Errorf("%+v: tensors of %d elements, parameters %d", s, n, s.Params())
		}
	}
}

// waves is the input of the artefact's network: x[b,t,f] = cos(0.1·t·(f+1) + b).
func waves[T Float](of func(float64) float64, steps, rows, channels int) []T {
	var x []T
	for t := range steps {
		for b := range rows {
			for f := range channels {
				x = append(x, T(of(0.1*float64(t)*float64(f+1)+float64(b))))
			}
		}
	}
	return x
}

func TestRunTimeNetwork(t *testing.T) {
	n := NewNet[float64](runTime)
	fill(n.Params, runTime.tensors())
	y := n.Forward(waves[float64](math.Cos, 25, 2, 2), 25, 2)
	at := func(b, t int) []float64 { return y[(t*2+b)*3:] }
	for _, c := range []struct {
		b, t int
		want [3]float64
	}{
		{0, 0, [3]float64{0.019115900854, 0.002386323679, 0.271751622974}},
		{0, 24, [3]float64{-0.153023288598, -0.307766775974, 0.260658326543}},
		{1, 24, [3]float64{-0.213324768712, -0.356254866969, 0.260881994017}},
	} {
		for f, want := range c.want {
			near(t, "output", at(c.b, c.t)[f], want, 1e-9)
		}
	}
	times := rollWindow(n, waves[float64](math.Cos, 25, 1, 2), 25, 1, 30)
	if len(times) != 30 {
		t.Fatalf("%d predicted times", len(times))
	}
	near(t, "roll-out, step 0", times[0], 0.260658326543, 1e-9)
	near(t, "roll-out, step 1", times[1], 0.260437778977, 1e-9)
}

// Adam at 1e-3 on the whole batch.
func TestRunTimeNetworkLearns(t *testing.T) {
	n := NewNet[float64](runTime)
	fill(n.Params, runTime.tensors())
	x, want := waves[float64](math.Cos, 25, 2, 2), waves[float64](math.Sin, 25, 2, 3)
	d := make([]float64, len(want))
	var opt Adam[float64]
	losses := map[int]float64{0: 0.741474854696, 1: 0.692478890211, 2: 0.651182498482, 10: 0.491715209158}
	for i := range 11 {
		loss := mse(d, n.Forward(x, 25, 2), want)
		if v, ok := losses[i]; ok {
			near(t, "loss", loss, v, 1e-9)
		}
		clear(n.Grads)
		n.Backward(d)
		opt.Step(n.Params, n.Grads)
	}
}

func TestOlderNetworks(t *testing.T) {
	in := make([]float64, 13)
	in[0], in[1+3], in[11], in[12] = 0.5, 1, 0.05, 0.3
	for _, c := range []struct {
		m    MLP
		want float64
	}{
		{MLP{Widths: []int{13, 512, 256, 1}}, 0.291897391523},
		{MLP{Widths: []int{13, 32, 64, 1}, Sigmoid: true}, 0.512440145158},
	} {
		params := make([]float64, c.m.Params())
		fill(params, c.m.tensors())
		near(t, "perceptron", newPerceptron(c.m, params, nil).forward(in, 1)[0], c.want, 1e-9)
	}
	n := NewNet[float64](shallow)
	fill(n.Params, shallow.tensors())
	y := n.Forward(waves[float64](math.Cos, 20, 1, 1), 20, 1)
	near(t, "shallow LSTM", y[19], -0.243974107691, 1e-9)
}

func TestStandardise(t *testing.T) {
	s := Scale{}
	s.Fit([]float64{2, 3, 7, 8, 12, 13, 14, 9, 5, 7}, 2)
	for i, want := range []float64{8, 8} {
		near(t, "mean", s.Mean[i], want, 1e-12)
	}
	for i, want := range []float64{4.427189, 3.224903} {
		near(t, "standard deviation", s.Std[i], want, 5e-7)
	}
	row := []float64{2, 3}
	s.Apply(row)
	near(t, "first row", row[0], -1.3552618, 1e-7)
	near(t, "first row", row[1], -1.5504342, 1e-7)
	s.Undo(row)
	near(t, "undone", row[0], 2, 1e-12)
	near(t, "undone", row[1], 3, 1e-12)
	// What never changes says nothing.
	s.Fit([]float64{5, 5, 5}, 1)
	row = []float64{7}
	if s.Apply(row); row[0] != 0 {
		t.Errorf("a constant channel becomes %v", row[0])
	}
}

// The artefact prints 0.667 and 1 here: the true-negative rate.
func TestRates(t *testing.T) {
	var c Confusion
	for i, pred := range []bool{false, false, true, false} {
		c.Add(pred, []bool{false, false, false, true}[i])
	}
	near(t, "FPR", c.FalsePositiveRate(), 1.0/3, 1e-15)
	near(t, "accuracy", c.Accuracy(), 0.5, 0)
	near(t, "precision", c.Precision(), 0, 0)
}

// rollWindow is the artefact's roll-out: steps times the whole window x [length × rows ×
// Inputs] goes through the network from the zero state, the predicted inputs
// of its last step are appended and the oldest are dropped. It returns the times
// [steps × rows]. It changes x. Inputs and Resources must be the same number.
func rollWindow[T Float](n *Net[T], x []T, length, rows, steps int) []T {
	k := n.Shape.Inputs
	if k != n.Shape.Resources || n.head == nil {
		panic("straggler: a roll-out needs a network that predicts its inputs and a time")
	}
	times := make([]T, 0, steps*rows)
	for range steps {
		y := n.Forward(x, length, rows)[(length-1)*rows*(k+1):]
		copy(x, x[rows*k:])
		for r := range rows {
			copy(x[((length-1)*rows+r)*k:], y[r*(k+1):r*(k+1)+k])
			times = append(times, y[r*(k+1)+k])
		}
	}
	return times
}
