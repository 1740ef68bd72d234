package ps

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"star"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// A gradient of weight 0 is left out, whatever is in it; where there is no other one, the update is made of zeros.
func TestLeftOut(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		vecs    [][]float32
		weights []float32
		want    []float32
	}{
		"the first":   {[][]float32{{nan, 1}, {1, 2}, {3, 4}}, []float32{0, 1, 1}, []float32{-4, -6}},
		"the last":    {[][]float32{{1, 2}, {3, 4}, {nan, nan}}, []float32{1, 1, 0}, []float32{-4, -6}},
		"all but one": {[][]float32{{nan, 2}, {3, 4}, {1, float32(math.Inf(1))}}, []float32{0, 1, 0}, []float32{-3, -4}},
		"all":         {[][]float32{{nan, 2}, {3, nan}}, []float32{0, 0}, []float32{0, 0}},
		"the only":    {[][]float32{{nan, 2}}, []float32{0}, []float32{0, 0}},
	} {
		for _, norm := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				mem := &heap{}
				s := NewShard(2, &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(1)}, mem)
				s.Watch()
				s.Load(make([]float32, 2), 0)
				f := wire.Fire{Seq: 1, Version: 1, NormFirst: norm}
				for w, v := range c.vecs {
					if err := s.Push(rule.Gradient{Worker: star.Worker(w), Vec: slices.Clone(v)}); err != nil {
						t.Fatal(err)
					}
					f.Gradients = append(f.Gradients, wire.Gradient{Worker: star.Worker(w), Weight: c.weights[w]})
				}
				if err := s.Fire(&f); err != nil {
					t.Fatal(err)
				}
				ev, ok := s.Next()
				if norm {
					if sum := ev.Squares.Float64(); sum-sum != 0 {
						t.Fatalf("the norm is %v", sum)
					}
					if err := s.Apply(1, math.Sqrt(ev.Squares.Float64()), 1); err != nil {
						t.Fatal(err)
					}
					ev, ok = s.Next()
				}
				if !ok || ev.Kind != Updated || ev.Version != 1 || len(ev.Workers) != len(c.vecs) {
					t.Fatalf("%+v, %v", ev, ok)
				}
				if p := s.Params(); p[0] != c.want[0] || p[1] != c.want[1] {
					t.Errorf("parameters %v, want %v", p, c.want)
				}
				if mem.freed != len(c.vecs) {
					t.Errorf("%d of %d vectors came back", mem.freed, len(c.vecs))
				}
			})
		}
	}
}

// The shard reports a worker with gradients that point against the others, once, and again when they stop doing so. A
// gradient of an older version is not compared.
func TestTurned(t *testing.T) {
	const n = 600
	rnd := rand.New(rand.NewPCG(1, 2))
	s := NewShard(n, &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(0)}, &heap{})
	s.Watch()
	s.Load(make([]float32, n), 0)
	var turns []Event
	flipped := false // as the coordinator has it
	for step := range int64(200) {
		f := wire.Fire{Seq: step + 1, Version: step + 1}
		for w := range 4 {
			v := make([]float32, n)
			for i := range v {
				v[i] = 1 + float32(rnd.NormFloat64())
				if w == 2 && step < 100 || w == 3 {
					v[i] = -v[i]
				}
			}
			g := wire.Gradient{Worker: star.Worker(w), Step: step, Weight: 0.25}
			if w == 2 && flipped {
				g.Weight = 0
			}
			basis := step
			if w == 3 {
				basis = step - 1 // stale, and flipped: not compared
			}
			if err := s.Push(rule.Gradient{Worker: star.Worker(w), Step: step, Basis: basis, Vec: v}); err != nil {
				t.Fatal(err)
			}
			f.Gradients = append(f.Gradients, g)
		}
		if err := s.Fire(&f); err != nil {
			t.Fatal(err)
		}
		for {
			ev, ok := s.Next()
			if !ok {
				break
			}
			if ev.Kind == Turned {
				if len(ev.Workers) != 1 || ev.Workers[0] != 2 || (ev.Turn.Cosine < 0) != ev.Turn.Flipped {
					t.Errorf("step %d: %+v", step, ev)
				}
				flipped = ev.Turn.Flipped
				turns = append(turns, ev)
			}
		}
	}
	if len(turns) != 2 || !turns[0].Turn.Flipped || turns[1].Turn.Flipped || turns[0].Version > 64 || turns[1].Version <= 100 {
		t.Errorf("worker 2 is flipped for 100 updates of 200; told: %+v", turns)
	}
}

// A shard says of every gradient how long it is, and of what is not finite that it is not; without Measure, nothing.
func TestStoredSaysTheLength(t *testing.T) {
	for _, measure := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			pipe := &transport.Pipe{}
			j := start(t, jobConfig{net: pipe, addr: "ps", params: 4, shards: 1, workers: 3, noReader: true, server: ServerConfig{Measure: measure}})
			for w, c := range []struct {
				grad []float32
				want float64
			}{{[]float32{1, 2, 3, 4}, 30}, {[]float32{0, 0, float32(math.NaN()), 0}, math.NaN()}, {[]float32{3e38, 3e38, 0, float32(math.Inf(-1))}, math.Inf(1)}} {
				if !measure {
					c.want = -1
				}
				l, err := j.dial(pipe, w, make([]float32, 4))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if err := l.Init(t.Context()); err != nil { // the second one changes nothing
					t.Fatal(err)
				}
				if err := l.Push(t.Context(), 0, 0, 1, c.grad); err != nil {
					t.Fatal(err)
				}
				for {
					f, err := j.coord.Recv()
					if err != nil {
						t.Fatal(err)
					}
					if f.Kind != wire.KindStored {
						continue
					}
					m, err := wire.ParseStored(f.Header)
					if err != nil || int(m.Worker) != w || m.Sum2 != c.want && !(math.IsNaN(c.want) && math.IsNaN(m.Sum2)) {
						t.Errorf("of %v: %+v, %v; want %v", c.grad, m, err, c.want)
					}
					break
				}
			}
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
