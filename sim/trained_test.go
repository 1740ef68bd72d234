package sim

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/ps/rule"
)

// line is the task of finding which of two halves of a plane points are in: logistic regression on points that follow
// from their position.
type line struct{ far float64 }

func (l line) point(at int64) (x [3]float64, y float64) {
	u, v := math.Mod(0.754877666*float64(at)+0.1, 1)-0.5, math.Mod(0.569840291*float64(at)+0.7, 1)-0.5
	if 2*u-v > 0.1 {
		y = 1
	}
	return [3]float64{u, v, 1}, y
}

func (l line) score(p []float32, x [3]float64) float64 {
	return 1 / (1 + math.Exp(-float64(p[0])*x[0]-float64(p[1])*x[1]-float64(p[2])*x[2]))
}

func (l line) Params() []float32 { return []float32{0, 0, 0} }

func (l line) Gradient(dst, params []float32, from int64, samples int) error {
	clear(dst)
	for k := range int64(samples) {
		x, y := l.point(from + k)
		d := (l.score(params, x) - y + l.far) / float64(samples)
		for i := range dst {
			dst[i] += float32(d * x[i])
		}
	}
	return nil
}

func (l line) Accuracy(params []float32) (float64, error) {
	right := 0.0
	for k := range int64(400) {
		if x, y := l.point(1e6 + k); (l.score(params, x) > 0.5) == (y == 1) {
			right++
		}
	}
	return right / 400, nil
}

// plain is what an optimiser without memory does.
type plain struct{}

func (plain) Step(params, grad []float32, lr float64) {
	for i := range params {
		params[i] -= float32(lr) * grad[i]
	}
}

func descent(lr float64) rule.Rule {
	return &rule.Descent{Optimizer: plain{}, Schedule: rule.Constant(lr), Threads: 1}
}

// byHand learns as Trained must, with a full copy for each worker: w ← w − η·Σ (bₖ/B)·gₖ(wₖ).
type byHand struct {
	line
	lr, round float64
	now       []float32
	read      [][]float32
	from      []int64
	cursor    int64
}

func (h *byHand) Begin(workers, round int) {
	h.now, h.round = h.Params(), float64(round)
	h.read, h.from = make([][]float32, workers), make([]int64, workers)
}

func (h *byHand) Release(w star.Worker, samples int) {
	h.read[w], h.from[w] = slices.Clone(h.now), h.cursor
	h.cursor += int64(samples)
}

func (h *byHand) Update(_ int64, gs []Gradient) Outcome {
	sum := make([]float64, len(h.now))
	for _, g := range gs {
		d := make([]float32, len(h.now))
		h.Gradient(d, h.read[g.Worker], h.from[g.Worker], g.Samples)
		for i := range d {
			sum[i] += float64(g.Samples) / h.round * float64(d[i])
		}
	}
	for i := range sum {
		h.now[i] -= float32(h.lr * sum[i])
	}
	return Outcome{}
}

// Whatever the plan and the times, the shard makes of the gradients what the formula says, each on what its worker had
// read.
func TestTrainedAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		times := make([]time.Duration, n)
		for i := range times {
			times[i] = time.Duration(rapid.IntRange(50, 400).Draw(t, "ms")) * ms
		}
		x := rapid.IntRange(1, n).Draw(t, "x")
		p := rapid.SampledFrom([]modes.Plan{modes.SSGD(n), modes.ASGD(n), modes.XOrder(n, x), modes.Backup(n, n-x)}).Draw(t, "plan")
		if rapid.Bool().Draw(t, "uneven") {
			p = p.Clone()
			for range n {
				p.Shares = append(p.Shares, rapid.IntRange(1, 20).Draw(t, "share"))
			}
		}
		c := Config{Times: Varied{Times: steady(times...), Sigma: 0.3, Seed: 5}, Plan: p, Batch: 8, Limit: 4 * time.Second}
		trained, hand := &Trained{Task: line{}, Rule: descent(2)}, &byHand{lr: 2}
		c.Learner = trained
		a, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		c.Learner = hand
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		for i, w := range trained.Params() {
			if math.Abs(float64(w-hand.now[i])) > 1e-4*(1+math.Abs(float64(w))) {
				t.Fatalf("parameter %d after %d updates is %v, by hand %v", i, a.Updates, w, hand.now[i])
			}
		}
		if most := int(a.Samples) / (8 * n); len(trained.Evaluations) > most || 3*len(trained.Evaluations) < most {
			t.Fatalf("%d evaluations in %d samples", len(trained.Evaluations), a.Samples)
		}
		if most := n + 2 + len(p.Groups)*n; len(trained.mem.free) > most {
			t.Fatalf("%d spare vectors for %d workers", len(trained.mem.free), n)
		}
	})
}

// A run ends when three evaluations have the target in the mean, the same one each time; and the same bits.
func TestTrainedReaches(t *testing.T) {
	run := func() (Result, *Trained) {
		l := &Trained{Task: line{}, Rule: descent(8)}
		r, err := Run(Config{Times: Varied{Times: steady(100*ms, 110*ms, 300*ms), Sigma: 0.2, Seed: 3}, Plan: modes.XOrder(3, 2), Learner: l,
			Batch: 16, Target: 0.97, Limit: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return r, l
	}
	a, la := run()
	b, lb := run()
	if !a.Reached || a.Progress < 0.97 || a.Time != b.Time || a.Samples != b.Samples || !slices.Equal(la.Params(), lb.Params()) {
		t.Errorf("%+v with %v, then %+v with %v", a, la.Params(), b, lb.Params())
	}
	last := la.Evaluations[len(la.Evaluations)-3:]
	if m := (last[0] + last[1] + last[2]) / 3; m != a.Progress {
		t.Errorf("progress %v after %v", a.Progress, last)
	}
	if len(la.Evaluations) < 4 {
		t.Errorf("it was too easy: %v", la.Evaluations)
	}
}

// The norms that the controller learns the noise of are those of means over samples.
func TestTrainedNorms(t *testing.T) {
	l := &Trained{Task: line{}, Rule: descent(0)}
	l.Begin(3, 60) // a third worker is on its way
	gs := []Gradient{{Worker: 0, Samples: 10}, {Worker: 1, Samples: 30}}
	for _, g := range gs {
		l.Release(g.Worker, g.Samples)
	}
	o := l.Update(1, gs)
	whole, part := make([]float32, 3), make([]float32, 3)
	line{}.Gradient(whole, line{}.Params(), 0, 40)
	line{}.Gradient(part, line{}.Params(), 10, 30)
	norm2 := func(v []float32) (s float64) {
		for _, x := range v {
			s += float64(x) * float64(x)
		}
		return s
	}
	if math.Abs(o.Norm2-norm2(whole)) > 1e-6*o.Norm2 || math.Abs(gs[1].Norm2-norm2(part)) > 1e-6*gs[1].Norm2 {
		t.Errorf("%v of the mean and %v of a gradient, want %v and %v", o.Norm2, gs[1].Norm2, norm2(whole), norm2(part))
	}
}

func TestTrainedDiverges(t *testing.T) {
	_, err := Run(Config{Times: steady(100*ms, 100*ms), Learner: &Trained{Task: line{far: math.Inf(1)}, Rule: descent(1)}, Batch: 4, Target: 0.9})
	if !errors.Is(err, ErrDiverged) {
		t.Errorf("error %v", err)
	}
}
