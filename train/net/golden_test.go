package net

import (
	"context"
	"fmt"
	"math"
	"testing"

	"star/train"
	"star/train/traintest"
)

// initialBits are printed by TestInitialParameters when they differ.
const initialBits = "3df7a85f 3e318904 be6ac51b 3cf46912"

// Normal initial values: moments of many, the logarithm against package math, and the
// bits of a few, printed on linux/amd64.
func TestGauss(t *testing.T) {
	rng := generator(1, "gauss")
	var m [5]float64
	const n = 200000
	for range n {
		v := gauss(rng)
		for k := range m {
			m[k] += math.Pow(v, float64(k)) / n
		}
	}
	// Standard errors: 1/√n, √(2/n), √(15/n), √(96/n); five of each.
	for k, c := range []struct{ want, tol float64 }{{1, 1e-9}, {0, 0.012}, {1, 0.016}, {0, 0.044}, {3, 0.11}} {
		if math.Abs(m[k]-c.want) > c.tol {
			t.Errorf("moment %d is %v, want %v", k, m[k], c.want)
		}
	}
	for x := 1e-300; x < 1; x *= 1.37 {
		if got, want := logarithm(x), math.Log(x); math.Abs(got-want) > 2e-15*math.Abs(want)+1e-16 {
			t.Errorf("ln %v = %v, want %v", x, got, want)
		}
	}
	rng = generator(1, "gauss")
	if got, want := fmt.Sprintf("%016x %016x", math.Float64bits(gauss(rng)), math.Float64bits(gauss(rng))), gaussBits; got != want {
		t.Errorf("bits %s, want %s", got, want)
	}
}

const gaussBits = "bffe7f5002f48543 3fe5e9845aa049a2"

// reference is the perceptron 12-6-4-5 written out in float64, with no code in common
// with the package: the loss of a batch and its gradient.
func reference(w []float32, b train.Batch) (loss float64, grad []float64) {
	sizes := []int{12, 6, 4, 5}
	grad = make([]float64, len(w))
	for s := range b.Samples {
		acts := [][]float64{nil}
		for _, v := range b.X[s*12 : (s+1)*12] {
			acts[0] = append(acts[0], float64(v))
		}
		at := 0
		var starts []int
		for l := 0; l < 3; l++ {
			in, out := sizes[l], sizes[l+1]
			starts = append(starts, at)
			y := make([]float64, out)
			for o := range y {
				y[o] = float64(w[at+out*in+o])
				for i := range in {
					y[o] += float64(w[at+o*in+i]) * acts[l][i]
				}
				if l < 2 {
					y[o] = math.Max(y[o], 0)
				}
			}
			acts = append(acts, y)
			at += out*in + out
		}
		scores := acts[3]
		z := 0.0
		for _, v := range scores {
			z += math.Exp(v)
		}
		t := b.Y[s]
		loss += (math.Log(z) - scores[t]) / float64(b.Samples)
		d := make([]float64, 5)
		for j, v := range scores {
			d[j] = math.Exp(v) / z / float64(b.Samples)
		}
		d[t] -= 1 / float64(b.Samples)
		for l := 2; l >= 0; l-- {
			in, out, at := sizes[l], sizes[l+1], starts[l]
			dx := make([]float64, in)
			for o := range out {
				if l < 2 && acts[l+1][o] == 0 {
					continue
				}
				grad[at+out*in+o] += d[o]
				for i := range in {
					grad[at+o*in+i] += d[o] * acts[l][i]
					dx[i] += d[o] * float64(w[at+o*in+i])
				}
			}
			d = dx
		}
	}
	return loss, grad
}

func TestPerceptronAgainstReference(t *testing.T) {
	m, err := Build(Spec{Name: "mlp", Settings: map[string]string{"hidden": "6-4"}, Input: flat, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	g := make([]float32, len(m.Params()))
	for step := range 20 {
		b := traintest.Batch(flat, 1+step, uint64(step))
		loss, err := m.Grad(context.Background(), g, b)
		if err != nil {
			t.Fatal(err)
		}
		want, grad := reference(m.Params(), b)
		if math.Abs(loss-want) > 1e-6*(1+want) {
			t.Errorf("step %d: loss %v, want %v", step, loss, want)
		}
		for i := range g {
			if math.Abs(float64(g[i])-grad[i]) > 1e-5*(1+math.Abs(grad[i])) {
				t.Fatalf("step %d: gradient %d is %v, want %v", step, i, g[i], grad[i])
			}
			m.Params()[i] -= 0.1 * g[i]
		}
		r, err := m.Eval(context.Background(), b)
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := reference(m.Params(), b); math.Abs(r.LossSum/float64(r.Count)-want) > 1e-6*(1+want) {
			t.Errorf("step %d: Eval gives %v, want %v", step, r.LossSum/float64(r.Count), want)
		}
	}
}
