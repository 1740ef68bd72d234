package pgns_test

import (
	"math"
	"testing"

	"star/internal/kernel"
	"star/pgns"
	"star/train"
	"star/train/data"
	"star/train/net"
)

// φ that is measured from updates of four workers is within a factor of two of that of 2,000 single gradients, at three
// points of the training of five models. The constants of the estimator were chosen with other seeds and points.
func TestExactNoiseScale(t *testing.T) {
	if testing.Short() {
		t.Skip("trains five models")
	}
	const workers, seed = 4, 7
	points := map[int]bool{45: true, 90: true, 180: true}
	within, of := 0, 0
	for _, c := range []struct {
		model, data    string
		batch          int
		rate, momentum float32
	}{
		{"softmax", "digits:n=4000,test=100,seed=7", 32, 0.05, 0},
		{"mlp", "digits:n=4000,test=100,seed=7", 32, 0.02, 0.9},
		{"lenet", "digits:n=4000,test=100,seed=7", 32, 0.02, 0.9},
		{"lstm:layers=1,hidden=32,embed=16", "babble:n=60000,window=16,seed=7", 16, 0.5, 0.9},
		{"transformer:layers=1,heads=2,width=32", "babble:n=60000,window=16,seed=7", 16, 0.05, 0.9},
	} {
		set, _, err := data.Open(c.data, data.Options{})
		if err != nil {
			t.Fatal(err)
		}
		spec, err := net.Parse(c.model)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input, spec.Batch, spec.Seed = set.Input(), c.batch, seed
		m, err := net.Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		loader := data.NewLoader(set, data.Stream{Seed: seed})
		e, err := pgns.New(pgns.Config{})
		if err != nil {
			t.Fatal(err)
		}
		params := m.Params()
		g, sum, velocity := make([]float32, len(params)), make([]float32, len(params)), make([]float32, len(params))
		position := int64(0)
		for step := range 181 {
			clear(sum)
			u := pgns.Update{Round: workers * c.batch}
			for range workers {
				b, err := loader.Next(position, c.batch)
				if err != nil {
					t.Fatal(err)
				}
				position += int64(c.batch)
				if _, err := m.Grad(t.Context(), g, b); err != nil {
					t.Fatal(err)
				}
				u.Gradients = append(u.Gradients, pgns.Gradient{Norm2: kernel.SumSq(g), Samples: c.batch, Weight: 1. / workers, Basis: int64(step)})
				kernel.Axpy(1./workers, g, sum)
			}
			u.Sum2 = kernel.SumSq(sum)
			if _, err := e.Observe(u); err != nil {
				t.Fatal(err)
			}
			if points[step] {
				exact, got := exactScale(t, m, set), e.Noise().Scale
				t.Logf("%s, update %d: φ %.1f, exact %.1f", c.model, step, got, exact)
				of++
				if math.Abs(math.Log(got/exact)) <= math.Ln2 {
					within++
				}
			}
			for i := range velocity {
				velocity[i] = c.momentum*velocity[i] + sum[i]
				params[i] -= c.rate * velocity[i]
			}
		}
		loader.Close()
		m.Close()
	}
	if within < 13 { // 4 of them where each update counted by the length of its gradients
		t.Errorf("φ is within a factor of 2 at %d of %d points", within, of)
	}
}

// exactScale is φ of single gradients.
func exactScale(t *testing.T, m train.Model, set train.Data) float64 {
	const singles = 2000
	loader := data.NewLoader(set, data.Stream{Seed: 99})
	defer loader.Close()
	g, mean := make([]float32, len(m.Params())), make([]float64, len(m.Params()))
	squares := 0.0
	for i := range int64(singles) {
		b, err := loader.Next(i, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Grad(t.Context(), g, b); err != nil {
			t.Fatal(err)
		}
		squares += kernel.SumSq(g) / singles
		for k, x := range g {
			mean[k] += float64(x) / singles
		}
	}
	grad2 := 0.0
	for _, x := range mean {
		grad2 += x * x
	}
	variance := (squares - grad2) * singles / (singles - 1)
	return variance / max(grad2-variance/singles, 1e-300)
}
