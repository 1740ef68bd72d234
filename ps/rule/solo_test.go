package rule

import (
	"math"
	"testing"
)

// descending is SGD.
type descending struct{}

func (descending) Step(params, grad []float32, lr float64) {
	for i, g := range grad {
		params[i] -= float32(lr) * g
	}
}

// A step of EASGD: d = α(x − c) goes to the centre, x becomes x − η·g(x) − d; local SGD hands over w − wᵢ. The spring
// pulls once a round.
func TestSolo(t *testing.T) {
	for _, c := range []struct{ pull, own, centre, params, out float32 }{
		{0.25, 3, 1, 3 - 0.1*2 - 0.5 - 0.1*4, -0.5}, // d = 0.25·(3 − 1)
		{0, 0, 1, 1 - 0.1*2 - 0.1*4, 0.1*2 + 0.1*4},
	} {
		l := &Solo{Pull: float64(c.pull), Make: func() (Optimizer, error) { return descending{}, nil }, Schedule: Constant(0.1), own: []float32{c.own}}
		for range 2 { // the second round is like the first: its own parameters are where it put them
			params, out := []float32{c.centre}, make([]float32, 1)
			l.own[0] = c.own
			if err := l.Begin(params); err != nil {
				t.Fatal(err)
			}
			l.Step(params, []float32{2}, 0)
			l.Step(params, []float32{4}, 0)
			l.End(params, out)
			if math.Abs(float64(params[0]-c.params)) > 1e-6 || math.Abs(float64(out[0]-c.out)) > 1e-6 {
				t.Errorf("pull %v: %v and %v handed over, want %v and %v", c.pull, params[0], out[0], c.params, c.out)
			}
			if c.pull > 0 && l.own[0] != params[0] {
				t.Errorf("pull %v: the worker goes on from %v, not from %v", c.pull, l.own[0], params[0])
			}
			if l.Back(params); params[0] != c.centre {
				t.Errorf("pull %v: back at %v, want %v", c.pull, params[0], c.centre)
			}
			params[0] = 7 // what others have made of it
			if l.Back(params); params[0] != 7 {
				t.Errorf("pull %v: back at %v a second time", c.pull, params[0])
			}
		}
	}
}

// A worker that resets its optimiser has a new one in each round; one that does not keeps the first.
func TestSoloOptimisers(t *testing.T) {
	for _, reset := range []bool{false, true} {
		made := 0
		l := &Solo{Reset: reset, Schedule: Constant(0.1), Make: func() (Optimizer, error) { made++; return descending{}, nil }}
		for range 3 {
			if err := l.Begin([]float32{1}); err != nil {
				t.Fatal(err)
			}
		}
		if want := map[bool]int{false: 1, true: 3}[reset]; made != want {
			t.Errorf("reset %v: %d optimisers in three rounds, want %d", reset, made, want)
		}
	}
}

// A batch in pieces is all of the batch, in order, and no piece is empty.
func TestPieces(t *testing.T) {
	for count := 1; count < 20; count++ {
		for k := 1; k < 25; k++ {
			at := int64(100)
			for _, p := range Pieces(100, count, k) {
				if p.Start != at || p.Count < 1 || p.Count > (count+k-1)/k {
					t.Fatalf("%d in %d: piece %+v at %d", count, k, p, at)
				}
				at += int64(p.Count)
			}
			if at != 100+int64(count) {
				t.Fatalf("%d in %d pieces: %d samples", count, k, at-100)
			}
		}
	}
}
