package straggler

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	G "gorgonia.org/gorgonia"

	"star"
)

func BenchmarkObserve(b *testing.B) {
	for name, n := range map[string]int{"8": 8, "512": 512, "8-one-slow": 8} {
		b.Run(name, func(b *testing.B) {
			j := &job{rnd: rand.New(rand.NewPCG(1, 1)), workers: n}
			if name == "8-one-slow" {
				j.victim, j.hurt = 3, func(r *star.Record, _ int64, _ *rand.Rand) { r.Compute *= 2 }
			}
			d, _ := New(Config{Workers: n})
			var rs []star.Record
			for range 30 {
				for _, r := range j.iteration() {
					d.Observe(r)
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i == len(rs) {
					b.StopTimer()
					rs, i = j.iteration(), 0
					b.StartTimer()
				}
				d.Observe(rs[i])
				i++
			}
		})
	}
}

// One update over 20 windows of 25 steps of the artefact's run-time network: ours, and gorgonia's with the
// graph built once.
func BenchmarkTrain(b *testing.B) {
	const steps, rows = 25, 20
	b.Run("ours-float32", func(b *testing.B) { benchTrain[float32](b, steps, rows) })
	b.Run("ours-float64", func(b *testing.B) { benchTrain[float64](b, steps, rows) })
	b.Run("gorgonia-float64", func(b *testing.B) {
		params := make([]float64, runTime.Params())
		fill(params, runTime.tensors())
		x, want := waves[float64](math.Cos, steps, rows, 2), waves[float64](math.Sin, steps, rows, 3)
		g, ps, _, _, grads := gorgoniaGraph(b, runTime, params, x, want, steps, rows)
		vm := G.NewTapeMachine(g, G.BindDualValues(ps...))
		defer vm.Close()
		b.ReportAllocs()
		for b.Loop() {
			clear(grads)
			if err := vm.RunAll(); err != nil {
				b.Fatal(err)
			}
			vm.Reset()
		}
	})
}

func benchTrain[T Float](b *testing.B, steps, rows int) {
	n := NewNet[T](runTime)
	fill(n.Params, runTime.tensors())
	x, want := waves[T](math.Cos, steps, rows, 2), waves[T](math.Sin, steps, rows, 3)
	d := make([]T, len(want))
	var opt Adam[T]
	b.ReportAllocs()
	for b.Loop() {
		mse(d, n.Forward(x, steps, rows), want)
		clear(n.Grads)
		n.Backward(d)
		opt.Step(n.Params, n.Grads)
	}
}

// The roll-out that the issue of overhead is about: 30 steps ahead for 8 workers, the artefact's network.
func BenchmarkRollOut(b *testing.B) {
	n := NewNet[float32](runTime)
	fill(n.Params, runTime.tensors())
	b.Run("step", func(b *testing.B) { // from kept states: what the program does
		s, keep := n.NewState(8), n.NewState(8)
		x := make([]float32, 16)
		b.ReportAllocs()
		for b.Loop() {
			s.CopyFrom(keep)
			for range 30 {
				y := n.Step(s, x, 8)
				for r := range 8 {
					copy(x[r*2:r*2+2], y[r*3:])
				}
			}
		}
	})
	b.Run("window", func(b *testing.B) { // the artefact's way
		x := waves[float32](math.Cos, 25, 8, 2)
		for b.Loop() {
			rollWindow(n, x, 25, 8, 30)
		}
	})
}

// A record of one of eight workers, with all metrics of a host.
func BenchmarkPace(b *testing.B) {
	p, err := NewPace(Config{Workers: 8})
	if err != nil {
		b.Fatal(err)
	}
	r := star.Record{Samples: 32, Compute: 90 * time.Millisecond, Push: 5 * time.Millisecond, CPU: 1}
	for m := range star.Quota {
		r.Telemetry.Set(m, 0.1)
	}
	at := time.Duration(0)
	for i := 0; b.Loop(); i++ {
		r.Worker, r.Step = star.Worker(i%8), int64(i/8)
		at += 12 * time.Millisecond
		p.Observe(at, &r)
	}
}
