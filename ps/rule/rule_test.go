package rule

import (
	"math"
	"slices"
	"testing"

	"star"
	"star/train/optim"
)

// wholeOnly hides that an optimiser can step in ranges.
type wholeOnly struct{ Optimizer }

// One pass or two, one goroutine or several, in place or into a spare vector:
// the bits are the same.
func TestDescentPaths(t *testing.T) {
	const n = 4*enough + 17
	vec := func(seed float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Sin(seed + float64(i)))
		}
		return v
	}
	make := func(threads int) *Descent {
		o, err := optim.New(optim.Config{Name: optim.Adam, LR: 0.01}, n)
		if err != nil {
			t.Fatal(err)
		}
		return &Descent{Optimizer: o, Schedule: Constant(0.01), Threads: threads}
	}
	gradients := func(step int) (gs []Gradient) {
		for w := range 3 {
			gs = append(gs, Gradient{Weight: 1 / float32(w+2), Vec: vec(float64(10*step + w))})
		}
		return gs
	}
	const steps = 3
	want := vec(0)
	ref := make(1)
	for step := range steps {
		ref.Step(want, ref.Combine(want, 0, gradients(step)), 0, -1)
	}
	for _, c := range []struct {
		name string
		do   func() []float32
	}{
		{"two passes, 4 goroutines", func() []float32 {
			d, w := make(4), vec(0)
			for step := range steps {
				d.Step(w, d.Combine(w, 0, gradients(step)), 0, -1)
			}
			return w
		}},
		{"one pass, 1 goroutine, in place", func() []float32 {
			d, w := make(1), vec(0)
			for step := range steps {
				d.Update(w, w, 0, gradients(step), 0)
			}
			return w
		}},
		{"one pass, 3 goroutines, in place", func() []float32 {
			d, w := make(3), vec(0)
			for step := range steps {
				d.Update(w, w, 0, gradients(step), 0)
			}
			return w
		}},
		{"one pass, 4 goroutines, into a spare vector", func() []float32 {
			d, w, spare := make(4), vec(0), vec(99)
			for step := range steps {
				before := slices.Clone(w)
				d.Update(spare, w, 0, gradients(step), 0)
				if !slices.Equal(before, w) {
					t.Error("the old version was written to")
				}
				w, spare = spare, w
			}
			return w
		}},
		{"an optimiser of whole vectors, into a spare vector", func() []float32 {
			d, w, spare := make(4), vec(0), vec(99)
			d.Optimizer = wholeOnly{d.Optimizer}
			for step := range steps {
				d.Update(spare, w, 0, gradients(step), 0)
				w, spare = spare, w
			}
			return w
		}},
	} {
		got := c.do()
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Errorf("%s: element %d is %v, want %v", c.name, i, got[i], want[i])
				break
			}
		}
	}
}

// Clipping leaves short directions and infinite norms alone, and scales long
// ones to the limit.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		clip, norm float64
		want       float32
	}{{0, 100, 8}, {5, -1, 8}, {5, 4, 8}, {5, 5, 8}, {5, 10, 4}, {5, math.Inf(1), 8}, {5, math.NaN(), 8}} {
		w := []float32{0}
		d := &Descent{Optimizer: descending{}, Schedule: Constant(-1), Clip: c.clip}
		d.Step(w, []float32{8}, 0, c.norm)
		if w[0] != c.want {
			t.Errorf("clip %v, norm %v: a direction of 8 became %v, want %v", c.clip, c.norm, w[0], c.want)
		}
	}
}

// The schedule's clock is samples.
func TestScheduleBySamples(t *testing.T) {
	w := []float32{0}
	d := &Descent{Optimizer: descending{}, Schedule: samplesAsRate{}}
	d.Step(w, []float32{-1}, 640, -1)
	d.Update(w, w, 0, []Gradient{{Weight: 1, Vec: []float32{-1}}}, 60)
	if w[0] != 700 {
		t.Errorf("moved by %v, want 640 + 60", w[0])
	}
}

type samplesAsRate struct{}

func (samplesAsRate) At(samples int64) float64 { return float64(samples) }

func BenchmarkUpdate(b *testing.B) {
	const n = 1 << 20
	o, err := optim.New(optim.Config{Name: optim.SGD}, n)
	if err != nil {
		b.Fatal(err)
	}
	d := &Descent{Optimizer: o, Schedule: Constant(1e-3)}
	var gs []Gradient
	for range 4 {
		gs = append(gs, Gradient{Weight: 0.25, Vec: make([]float32, n)})
	}
	w := make([]float32, n)
	b.SetBytes(5 * 4 * n)
	b.ReportAllocs()
	for b.Loop() {
		d.Update(w, w, 0, gs, 0)
	}
}

// The sum of squares of the direction, in one pass or two, whatever the number of
// goroutines, and only of what Combine or Update make.
func TestDescentMeasures(t *testing.T) {
	const n = 3*enough + 5
	o, err := optim.New(optim.Config{Name: optim.SGD, LR: 0.1}, n)
	if err != nil {
		t.Fatal(err)
	}
	for _, threads := range []int{1, 4} {
		for name, opt := range map[string]Optimizer{"ranges": o, "whole": wholeOnly{o}} {
			d := &Descent{Optimizer: opt, Schedule: Constant(0.1), Threads: threads, Clip: 1}
			gs := func() (gs []Gradient) {
				for w := range 3 {
					v := make([]float32, n)
					for i := range v {
						v[i] = float32(math.Sin(float64(w*n + i)))
					}
					gs = append(gs, Gradient{Weight: 0.25 * float32(w+1), Vec: v})
				}
				return gs
			}
			want := 0.0
			g := gs()
			for i := range n {
				x := float64(0.25*g[0].Vec[i] + 0.5*g[1].Vec[i] + 0.75*g[2].Vec[i])
				want += x * x
			}
			check := func(how string) {
				if got := d.Sum2(); math.Abs(got-want) > 1e-4*want {
					t.Errorf("%s, %d goroutines, %s: %v, want %v", name, threads, how, got, want)
				}
			}
			d.Measure(true)
			params := make([]float32, n)
			d.Update(params, params, 0, gs(), 0)
			check("one pass")
			dir := d.Combine(params, 0, gs())
			check("sum")
			d.Step(params, dir, 0, math.Sqrt(want))
			check("after the step")
			d.Measure(false)
			d.Update(params, params, 0, gs()[:1], 0)
			check("not measured")
		}
	}
}

// recorder is a WholeOptimizer that adds the gradient times rate and share.
type recorder struct {
	parts  int
	shares []float64
}

func (r *recorder) Step(params, grad []float32, lr float64) { panic("a step without a share") }
func (r *recorder) Whole() bool                             { return true }
func (r *recorder) Begin()                                  { r.shares = append(r.shares, 0) }
func (r *recorder) Parts() int                              { return r.parts }
func (r *recorder) StepPart(i int, params, grad []float32, lr, share float64) {
	if i == 0 {
		r.shares[len(r.shares)-1] = share
	}
	n := len(params) / r.parts
	for k := i * n; k < (i+1)*n; k++ {
		params[k] += grad[k] * float32(lr*share)
	}
}

// An optimiser of whole tensors makes its steps in parts, and knows which part of a round an update is.
func TestWhole(t *testing.T) {
	const parts = 5
	for _, n := range []int{parts, 5 * enoughWhole} {
		o := &recorder{parts: parts}
		d := &Descent{Optimizer: o, Schedule: Constant(2), Clip: 100, Threads: 3}
		params, next := make([]float32, n), make([]float32, n)
		gradients := func(weights ...float32) (gs []Gradient) {
			for w, weight := range weights {
				gs = append(gs, Gradient{Worker: star.Worker(w), Weight: weight, Vec: slices.Repeat([]float32{1}, n)})
			}
			return gs
		}
		d.Update(next, params, 0, gradients(0.25), 0)
		d.Update(next, next, 1, gradients(1./3, 1./3, 1./3), 0)
		d.Step(next, d.Combine(next, 2, gradients(0.5, 0.25)), 0, 1)
		d.Weigh(0.5)
		d.Step(next, slices.Repeat([]float32{1}, n), 0, 1)
		d.Step(next, slices.Repeat([]float32{1}, n), 0, 1) // the caller has weighed nothing
		if want := []float64{0.25, 1, 0.75, 0.5, 1}; !slices.Equal(o.shares, want) {
			t.Errorf("shares %v, want %v", o.shares, want)
		}
		for i, x := range next {
			if want := float32(2 * (0.25*0.25 + 1 + 0.75*0.75 + 0.5 + 1)); math.Abs(float64(x-want)) > 1e-5 || params[i] != 0 {
				t.Fatalf("element %d of %d is %v, want %v", i, n, x, want)
			}
		}
	}
}
