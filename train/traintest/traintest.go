// Package traintest checks that a train.Model keeps its contract. Every model of
// this project passes Run; so should one that you write.
//
// The checks use the public interface alone. What they cannot see is whether the
// model is the one its name says: that takes a reference of its own.
package traintest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"star/train"
)

// A Kit says what to check.
type Kit struct {
	// New makes the model; each call the same one, with the same parameters.
	New func() (train.Model, error)

	// Input is what the model is fed.
	Input train.Input

	// Coupled says that in training the samples of a batch influence each
	// other's gradient, as with batch normalisation. The gradient of a batch is
	// then not the mean of the gradients of its parts.
	Coupled bool

	// Random says that two gradients of one batch differ, as with dropout.
	Random bool

	// Rate and Steps are the learning rate and the number of steps of plain
	// gradient descent that bring the loss on four samples below half of what it
	// was. Zero means 0.1 and 60.
	Rate  float64
	Steps int
}

// Batch is a synthetic batch: class prototypes with noise, or tokens that follow
// from the one before. The same seed gives the same batch.
func Batch(in train.Input, samples int, seed uint64) train.Batch {
	r := rand.New(rand.NewPCG(seed, 71))
	n := 1
	for _, d := range in.Shape {
		n *= d
	}
	b := train.Batch{Samples: samples}
	for range samples {
		if in.Tokens {
			t := int32(r.IntN(in.Classes))
			for range n {
				b.Tokens = append(b.Tokens, t)
				t = (t*3 + 1) % int32(in.Classes)
				b.Y = append(b.Y, t)
			}
			continue
		}
		y := r.IntN(in.Classes)
		p := rand.New(rand.NewPCG(uint64(y), 72))
		for range n {
			b.X = append(b.X, float32(p.NormFloat64()+0.5*r.NormFloat64()))
		}
		b.Y = append(b.Y, int32(y))
	}
	return b
}

// part is samples from (inclusive) to (exclusive) of b.
func part(in train.Input, b train.Batch, from, to int) train.Batch {
	p := train.Batch{Samples: to - from}
	x, y := len(b.X)/b.Samples, len(b.Y)/b.Samples
	if in.Tokens {
		p.Tokens = b.Tokens[from*y : to*y]
	} else {
		p.X = b.X[from*x : to*x]
	}
	p.Y = b.Y[from*y : to*y]
	return p
}

// Run checks the model of k.
func Run(t *testing.T, k Kit) {
	if k.Rate == 0 {
		k.Rate = 0.1
	}
	if k.Steps == 0 {
		k.Steps = 60
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T, Kit)
	}{
		{"layout", layout},
		{"repeatable", repeatable},
		{"overwrites", overwrites},
		{"sizes", sizes},
		{"parts", parts},
		{"slope", slope},
		{"eval", eval},
		{"not finite", notFinite},
		{"bad batch", badBatch},
		{"learns", learns},
		{"close", closes},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, k) })
	}
}

func (k Kit) make(t *testing.T) train.Model {
	t.Helper()
	m, err := k.New()
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func grad(t *testing.T, m train.Model, b train.Batch) (float64, []float32) {
	t.Helper()
	dst := make([]float32, len(m.Params()))
	loss, err := m.Grad(context.Background(), dst, b)
	if err != nil {
		t.Fatalf("Grad of %d samples: %v", b.Samples, err)
	}
	return loss, dst
}

// layout: the tensors lie in order, without gaps, and have distinct names.
func layout(t *testing.T, k Kit) {
	m := k.make(t)
	for _, v := range []struct {
		name  string
		flat  []float32
		specs []train.TensorSpec
	}{{"Params", m.Params(), m.Layout()}, {"Buffers", m.Buffers(), m.BufferLayout()}} {
		at, seen := 0, map[string]bool{}
		for _, s := range v.specs {
			if s.Name == "" || seen[s.Name] {
				t.Errorf("%s: tensor name %q is empty or used twice", v.name, s.Name)
			}
			seen[s.Name] = true
			if s.Offset != at {
				t.Errorf("%s: tensor %s starts at %d, want %d", v.name, s.Name, s.Offset, at)
			}
			at = s.Offset + s.Len()
		}
		if at != len(v.flat) {
			t.Errorf("%s: the layout covers %d elements of %d", v.name, at, len(v.flat))
		}
	}
	if len(m.Params()) == 0 {
		t.Error("no parameters")
	}
	for i, w := range m.Params() {
		if f := float64(w); math.IsNaN(f) || math.IsInf(f, 0) {
			t.Fatalf("initial parameter %d is %v", i, w)
		}
	}
}

// repeatable: the same model on the same batches gives the same bits, and Params
// is one vector for life.
func repeatable(t *testing.T, k Kit) {
	a, b := k.make(t), k.make(t)
	if i := differ(a.Params(), b.Params()); i >= 0 {
		t.Fatalf("two models differ in initial parameter %d: %v and %v", i, a.Params()[i], b.Params()[i])
	}
	p := a.Params()
	for step := range 3 {
		batch := Batch(k.Input, 4, uint64(step))
		la, ga := grad(t, a, batch)
		lb, gb := grad(t, b, batch)
		if math.Float64bits(la) != math.Float64bits(lb) {
			t.Errorf("step %d: losses %v and %v", step, la, lb)
		}
		if i := differ(ga, gb); i >= 0 {
			t.Fatalf("step %d: gradients differ in element %d: %v and %v", step, i, ga[i], gb[i])
		}
		descend(a, ga, 0.01)
		descend(b, gb, 0.01)
	}
	if i := differ(a.Buffers(), b.Buffers()); i >= 0 {
		t.Errorf("buffers differ in element %d", i)
	}
	if &p[0] != &a.Params()[0] {
		t.Error("Params moved")
	}
	if k.Random {
		return
	}
	batch := Batch(k.Input, 4, 9)
	l1, g1 := grad(t, a, batch)
	l2, g2 := grad(t, a, batch)
	if i := differ(g1, g2); i >= 0 || l1 != l2 {
		t.Errorf("the same batch twice: losses %v and %v, gradients differ from element %d", l1, l2, i)
	}
}

// overwrites: what was in dst does not matter, and parameters are read only.
func overwrites(t *testing.T, k Kit) {
	a, b := k.make(t), k.make(t)
	batch := Batch(k.Input, 3, 1)
	_, clean := grad(t, a, batch)
	before := slices.Clone(b.Params())
	dirty := make([]float32, len(b.Params()))
	for i := range dirty {
		dirty[i] = float32(math.NaN())
	}
	if _, err := b.Grad(context.Background(), dirty, batch); err != nil {
		t.Fatal(err)
	}
	if i := differ(clean, dirty); i >= 0 {
		t.Errorf("element %d is %v over NaN and %v over 0", i, dirty[i], clean[i])
	}
	if i := differ(before, b.Params()); i >= 0 {
		t.Errorf("Grad changed parameter %d", i)
	}
	zero := true
	for _, v := range clean {
		zero = zero && v == 0
	}
	if zero {
		t.Error("the gradient is zero everywhere")
	}
}

// sizes: a batch of any size, also 1, in any order.
func sizes(t *testing.T, k Kit) {
	m := k.make(t)
	for i, n := range []int{1, 5, 2, 3, 7, 4, 1, 5} {
		loss, g := grad(t, m, Batch(k.Input, n, uint64(i)))
		if math.IsNaN(loss) || loss < 0 {
			t.Errorf("loss of %d samples is %v", n, loss)
		}
		for j, v := range g {
			if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
				t.Fatalf("gradient of %d samples: element %d is %v", n, j, v)
			}
		}
	}
}

// parts: the gradient of a batch is the mean of those of its halves, and so is
// the loss.
func parts(t *testing.T, k Kit) {
	if k.Coupled || k.Random {
		t.Skip("samples of this model's batches influence each other, or chance does")
	}
	m := k.make(t)
	b := Batch(k.Input, 8, 5)
	whole, g := grad(t, m, b)
	l1, g1 := grad(t, m, part(k.Input, b, 0, 4))
	l2, g2 := grad(t, m, part(k.Input, b, 4, 8))
	if d := math.Abs(whole - (l1+l2)/2); d > 1e-5*(1+whole) {
		t.Errorf("loss %v, of the halves %v and %v", whole, l1, l2)
	}
	var diff, norm float64
	for i := range g {
		d := float64(g[i]) - (float64(g1[i])+float64(g2[i]))/2
		diff += d * d
		norm += float64(g[i]) * float64(g[i])
	}
	// Sums of float32 in another order: 1e-5 of the norm is a hundred roundings.
	if math.Sqrt(diff) > 1e-5*math.Sqrt(norm) {
		t.Errorf("gradient differs from the mean of its halves by %.2g of its norm", math.Sqrt(diff/norm))
	}
}

// slope: along its own direction the gradient is the slope of the loss, by
// central differences. float32 resolves the loss to about 1e-6 of itself, so the
// step is such that the loss moves by 1e-3 of itself; that leaves a curvature
// error that shrinks as the step does, so the best of three steps counts.
func slope(t *testing.T, k Kit) {
	if k.Random {
		t.Skip("the loss of this model depends on chance")
	}
	m := k.make(t)
	b := Batch(k.Input, 4, 6)
	loss, g := grad(t, m, b)
	var norm2 float64
	for _, v := range g {
		norm2 += float64(v) * float64(v)
	}
	start := slices.Clone(m.Params())
	at := func(step float64) float64 {
		for i := range start {
			m.Params()[i] = float32(float64(start[i]) + step*float64(g[i]))
		}
		l, _ := grad(t, m, b)
		return l
	}
	best := math.Inf(1)
	for _, move := range []float64{1e-2, 3e-3, 1e-3} {
		step := move * loss / norm2
		got := (at(step) - at(-step)) / (2 * step)
		best = min(best, math.Abs(got-norm2)/norm2)
	}
	if !(best < 0.02) {
		t.Errorf("the slope of the loss along the gradient is off by %.1f %%", 100*best)
	}
}

// eval: changes nothing, takes any size, and does not depend on how the samples
// are cut into batches.
func eval(t *testing.T, k Kit) {
	m := k.make(t)
	for i := range 3 {
		_, g := grad(t, m, Batch(k.Input, 4, uint64(i))) // moves the buffers
		descend(m, g, 0.01)
	}
	p, bufs := slices.Clone(m.Params()), slices.Clone(m.Buffers())
	b := Batch(k.Input, 70, 3)
	run := func(b train.Batch) train.Result {
		r, err := m.Eval(context.Background(), b)
		if err != nil {
			t.Fatalf("Eval of %d samples: %v", b.Samples, err)
		}
		return r
	}
	whole := run(b)
	if want := len(b.Y); whole.Count != want || whole.Correct < 0 || whole.Correct > want || !(whole.LossSum > 0) {
		t.Errorf("Eval: %+v, want a count of %d", whole, want)
	}
	var sum train.Result
	for from := 0; from < 70; {
		to := min(from+1+from*2, 70)
		r := run(part(k.Input, b, from, to))
		sum.LossSum += r.LossSum
		sum.Correct += r.Correct
		sum.Count += r.Count
		from = to
	}
	if math.Abs(sum.LossSum-whole.LossSum) > 1e-5*whole.LossSum || sum.Correct != whole.Correct || sum.Count != whole.Count {
		t.Errorf("Eval of the whole %+v, of its parts %+v", whole, sum)
	}
	if differ(p, m.Params()) >= 0 || differ(bufs, m.Buffers()) >= 0 {
		t.Error("Eval changed parameters or buffers")
	}
	_, g1 := grad(t, m, Batch(k.Input, 4, 4))
	n := k.make(t)
	copy(n.Params(), p)
	copy(n.Buffers(), bufs)
	_, g2 := grad(t, n, Batch(k.Input, 4, 4))
	if i := differ(g1, g2); i >= 0 && !k.Random {
		t.Errorf("the gradient depends on an evaluation before it, from element %d on", i)
	}
}

// notFinite: NaN and Inf are reported in the loss, the gradient or an error, and
// the model recovers when they are gone.
func notFinite(t *testing.T, k Kit) {
	m := k.make(t)
	b := Batch(k.Input, 4, 2)
	bufs := slices.Clone(m.Buffers())
	_, want := grad(t, m, b)
	ctx := context.Background()
	good := slices.Clone(m.Params())
	every := (len(m.Layout()) + 11) / 12 // a dozen tensors, the last among them
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for n, spec := range m.Layout() {
			if (len(m.Layout())-1-n)%every != 0 {
				continue
			}
			copy(m.Params(), good)
			for i := range spec.Len() {
				m.Params()[spec.Offset+i] = bad
			}
			g := make([]float32, len(good))
			loss, err := m.Grad(ctx, g, b)
			if err == nil && bad != bad && !seen(loss, g) {
				t.Errorf("tensor %s is %v, and neither loss nor gradient shows it", spec.Name, bad)
			}
			if _, err := m.Eval(ctx, b); err != nil {
				t.Logf("tensor %s is %v: Eval: %v", spec.Name, bad, err)
			}
			copy(m.Buffers(), bufs)
		}
	}
	copy(m.Params(), good)
	if !k.Input.Tokens {
		x := slices.Clone(b.X)
		for i := range x {
			x[i] = float32(math.NaN())
		}
		g := make([]float32, len(good))
		loss, err := m.Grad(ctx, g, train.Batch{X: x, Y: b.Y, Samples: b.Samples})
		if err == nil && !seen(loss, g) {
			t.Error("the input is NaN, and neither loss nor gradient shows it")
		}
		copy(m.Buffers(), bufs)
	}
	if k.Random {
		return
	}
	if _, g := grad(t, m, b); differ(want, g) >= 0 {
		t.Error("after NaN the model does not come back to its former gradient")
	}
}

func seen(loss float64, g []float32) bool {
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return true
	}
	for _, v := range g {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return true
		}
	}
	return false
}

// badBatch: what does not fit is an error, not a panic.
func badBatch(t *testing.T, k Kit) {
	m := k.make(t)
	ctx := context.Background()
	ok := Batch(k.Input, 2, 0)
	dst := make([]float32, len(m.Params()))
	with := func(f func(b *train.Batch)) train.Batch {
		b := ok
		b.X, b.Tokens, b.Y = slices.Clone(ok.X), slices.Clone(ok.Tokens), slices.Clone(ok.Y)
		f(&b)
		return b
	}
	for name, b := range map[string]train.Batch{
		"empty":                with(func(b *train.Batch) { *b = train.Batch{} }),
		"negative size":        with(func(b *train.Batch) { b.Samples = -1 }),
		"more samples claimed": with(func(b *train.Batch) { b.Samples = 3 }),
		"label too large":      with(func(b *train.Batch) { b.Y[1] = int32(k.Input.Classes) }),
		"label negative":       with(func(b *train.Batch) { b.Y[1] = -2 }),
		"labels missing":       with(func(b *train.Batch) { b.Y = b.Y[:len(b.Y)-1] }),
		"rows cut": with(func(b *train.Batch) {
			if k.Input.Tokens {
				b.Tokens = b.Tokens[1:]
			} else {
				b.X = b.X[1:]
			}
		}),
		"the other kind": with(func(b *train.Batch) {
			b.X, b.Tokens = make([]float32, len(b.Tokens)), make([]int32, len(b.X))
		}),
		"token negative": with(func(b *train.Batch) {
			if k.Input.Tokens {
				b.Tokens[0] = -1
			} else {
				b.Y[0] = math.MinInt32
			}
		}),
		"token outside": with(func(b *train.Batch) {
			if k.Input.Tokens {
				b.Tokens[0] = int32(k.Input.Classes)
			} else {
				b.Y[0] = math.MaxInt32
			}
		}),
	} {
		if _, err := m.Grad(ctx, dst, b); err == nil {
			t.Errorf("Grad of a batch that is bad (%s): no error", name)
		}
		if _, err := m.Eval(ctx, b); err == nil {
			t.Errorf("Eval of a batch that is bad (%s): no error", name)
		}
	}
	if _, err := m.Grad(ctx, dst[1:], ok); err == nil {
		t.Error("Grad into a vector that is too short: no error")
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := m.Grad(stopped, dst, ok); err == nil {
		t.Error("Grad with a context that is done: no error")
	}
	if _, err := m.Eval(stopped, ok); err == nil {
		t.Error("Eval with a context that is done: no error")
	}
	if _, err := m.Grad(ctx, dst, ok); err != nil {
		t.Errorf("a good batch after bad ones: %v", err)
	}
}

// learns: gradient descent halves the loss on four samples.
func learns(t *testing.T, k Kit) {
	m := k.make(t)
	b := Batch(k.Input, 4, 8)
	first, last := 0.0, 0.0
	for step := range k.Steps {
		loss, g := grad(t, m, b)
		if step == 0 {
			first = loss
		}
		if last = loss; last < first/2 {
			return
		}
		descend(m, g, k.Rate)
	}
	t.Errorf("the loss went from %v to %v in %d steps", first, last, k.Steps)
}

// closes: Close may be called twice, and a closed model says so.
func closes(t *testing.T, k Kit) {
	m := k.make(t)
	b := Batch(k.Input, 2, 0)
	grad(t, m, b)
	for i := range 2 {
		if err := m.Close(); err != nil {
			t.Errorf("Close number %d: %v", i+1, err)
		}
	}
	if _, err := m.Grad(context.Background(), make([]float32, len(m.Params())), b); err == nil {
		t.Error("Grad of a closed model: no error")
	}
	if _, err := m.Eval(context.Background(), b); err == nil {
		t.Error("Eval of a closed model: no error")
	}
}

func descend(m train.Model, g []float32, rate float64) {
	p := m.Params()
	for i, v := range g {
		p[i] -= float32(rate) * v
	}
}

// differ returns the first element with different bits, or -1.
func differ(a, b []float32) int {
	if len(a) != len(b) {
		panic(fmt.Sprintf("traintest: vectors of %d and %d elements", len(a), len(b)))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
