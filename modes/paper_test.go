package modes

import (
	"math"
	"testing"

	"star"
)

// toy is a parameter server for two parameters, fed by a Barrier: w ← w − η·Σ g/N.
// The published code divides by N in every mode (STAR artefact, training_sgd.py).
type toy struct {
	b    *Barrier
	w    [2]float64
	held map[star.Worker][2]float64
}

func newToy(p Plan) *toy {
	return &toy{b: NewBarrier(p, 4, 0), w: [2]float64{1, 2}, held: map[star.Worker][2]float64{}}
}

func (t *toy) apply(fs []Firing) {
	const η, n = 0.1, 4
	for _, f := range fs {
		for _, v := range f.Workers {
			g := t.held[v]
			t.w[0] -= η * g[0] / n
			t.w[1] -= η * g[1] / n
			delete(t.held, v)
		}
	}
}

func (t *toy) report(v star.Worker, g [2]float64) {
	t.held[v] = g
	t.apply(t.b.Arrive(v))
}

// The five reports of the oracle, in order.
var reports = []struct {
	worker star.Worker
	grad   [2]float64
}{
	{0, [2]float64{0.4, -0.2}},
	{1, [2]float64{0.8, 0.6}},
	{2, [2]float64{1, 1}},
	{3, [2]float64{-1, 0.5}},
	{0, [2]float64{0.2, 0.2}},
}

// The parameters after each report, recorded from the published parameter
// server, run with x set by hand (N = 4, w₀ = (1, 2), η = 0.1).
func TestUpdateSemantics(t *testing.T) {
	w0 := [2]float64{1, 2}
	full := [2]float64{0.97, 1.9525}
	for _, c := range []struct {
		plan    Plan
		after   [5][2]float64
		pending int
	}{
		{SSGD(4), [5][2]float64{w0, w0, w0, full, full}, 1},
		{XOrder(4, 2), [5][2]float64{w0, {0.97, 1.99}, {0.97, 1.99}, full, full}, 1},
		{XOrder(4, 1), [5][2]float64{{0.99, 2.005}, {0.97, 1.99}, {0.945, 1.965}, full, {0.965, 1.9475}}, 0},
		{ASGD(4), [5][2]float64{{0.99, 2.005}, {0.97, 1.99}, {0.945, 1.965}, full, {0.965, 1.9475}}, 0},
		// Ours: the published dynamic mode raises an error.
		{Grouped([]star.Worker{0, 1}, []star.Worker{2, 3}), [5][2]float64{w0, {0.97, 1.99}, {0.97, 1.99}, full, full}, 1},
	} {
		s := newToy(c.plan)
		for i, r := range reports {
			s.report(r.worker, r.grad)
			want(t, s, c.after[i], "%v after report %d", c.plan, i+1)
		}
		if len(s.held) != c.pending || len(s.b.Waiting()) != c.pending {
			t.Errorf("%v: %d gradients pending, %v waiting, want %d", c.plan, len(s.held), s.b.Waiting(), c.pending)
		}
	}
}

// x = 4 with three pending, then x = 2. The published code waits for one more report
// and takes all four; ours fires the three at once. The sum is the same.
func TestCarryOver(t *testing.T) {
	s := newToy(SSGD(4))
	for _, r := range reports[:3] {
		s.report(r.worker, r.grad)
	}
	want(t, s, [2]float64{1, 2}, "before the change")
	s.apply(s.b.Install(XOrder(4, 2)))
	want(t, s, [2]float64{0.945, 1.965}, "at the change")
	s.report(reports[3].worker, reports[3].grad)
	s.report(reports[4].worker, [2]float64{0, 0}) // makes the pair
	want(t, s, [2]float64{0.97, 1.9525}, "after the fourth")
}

func want(t *testing.T, s *toy, w [2]float64, format string, args ...any) {
	t.Helper()
	if math.Abs(s.w[0]-w[0]) > 1e-12 || math.Abs(s.w[1]-w[1]) > 1e-12 {
		t.Errorf(format+": parameters %v, want %v", append(args, s.w, w)...)
	}
}
