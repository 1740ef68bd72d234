package net

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
	"weak"

	"star/train"
	"star/train/traintest"
)

// Defects of gorgonia v0.9.18, found by running it, and what keeps us from each. TestGraphsHoldOurOperationsAlone keeps
// all that sit in its operations away: SoftMax takes the first element of the tensor for the maximum of each row, and
// shares its hash with LogSoftMax; Sum and Mean over the last two axes of four, InverseSqrt, Log2 and Dropout with p =
// 0 have wrong gradients; GlobalAveragePool2D and LogSumExp panic in Grad; MaxPool2D of NaN indexes −1 on a goroutine
// where no caller can recover; BatchNorm forgets its running statistics when it enters training mode. The tests below
// it are about the rest, and about our replacements.
//
// That this test runs at all shows that go4.org/unsafe/assume-no-moving-gc is new
// enough for this Go: with the version that gorgonia asks for, every program that
// links it panics while it starts.

// all has a small spec for every registered model.
func all(t testing.TB) []Spec {
	small := map[string]Spec{
		"softmax":     {Input: flat},
		"mlp":         {Input: flat},
		"lenet":       {Input: mnist},
		"alexnet":     {Input: cifar, Settings: map[string]string{"width": "0.1", "hidden": "16", "dropout": "0.5"}},
		"vgg11":       {Input: cifar, Settings: map[string]string{"width": "0.05"}},
		"vgg13":       {Input: cifar, Settings: map[string]string{"width": "0.05"}},
		"vgg16":       {Input: cifar, Settings: map[string]string{"width": "0.05", "bn": "false"}},
		"resnet20":    {Input: cifar, Settings: map[string]string{"width": "0.2"}},
		"resnet32":    {Input: cifar, Settings: map[string]string{"width": "0.2", "projection": "true"}},
		"resnet56":    {Input: cifar, Settings: map[string]string{"width": "0.2"}},
		"mobilenetv2": {Input: cifar, Settings: map[string]string{"width": "0.1"}},
	}
	var specs []Spec
	for _, name := range Names() {
		s, ok := small[name]
		if !ok {
			s.Input = train.Input{Shape: []int{6}, Classes: 9, Tokens: true}
		}
		s.Name = name
		specs = append(specs, s)
	}
	return specs
}

func TestGraphsHoldOurOperationsAlone(t *testing.T) {
	for _, spec := range all(t) {
		m, err := declare(spec, true)
		if err != nil {
			t.Errorf("%s: %v", spec.Name, err)
			continue
		}
		for _, training := range []bool{true, false} {
			g, err := newGraph(m, 2, training)
			if err != nil {
				t.Errorf("%s: %v", spec.Name, err)
				continue
			}
			ours := 0
			for _, n := range g.expr.AllNodes() {
				switch op := n.Op().(type) {
				case nil: // an input
				case *layerOp, *gradOp, *pickOp, *lossOp, *lossGradOp:
					ours++
				default:
					if s := fmt.Sprintf("%T", op); s != "gorgonia.constantScalar" { // the 1 that a derivative begins with
						t.Errorf("%s: the graph holds %s", spec.Name, s)
					}
				}
			}
			if ours < 2 {
				t.Errorf("%s: the graph holds %d operations of ours", spec.Name, ours)
			}
		}
	}
}

// Gradients add up over runs of gorgonia's machine: a second run must not give twice
// the first. Neither may the value or the gradient of a parameter be a copy.
func TestGradDoesNotAccumulate(t *testing.T) {
	m, err := declare(Spec{Name: "mlp", Input: flat}, true)
	if err != nil {
		t.Fatal(err)
	}
	b := traintest.Batch(flat, 4, 1)
	if _, err := m.Grad(context.Background(), m.Gradient(), b); err != nil {
		t.Fatal(err)
	}
	first := slices.Clone(m.Gradient())
	if _, err := m.Grad(context.Background(), m.Gradient(), b); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first, m.Gradient()) {
		t.Error("the second gradient of the same batch differs from the first")
	}
	for _, l := range m.layout {
		p := m.named[l.Name]
		if unsafe.SliceData(p.W) != &m.params[l.Offset] || unsafe.SliceData(p.G) != &m.grad[l.Offset] {
			t.Errorf("%s is not a view of the flat vectors", l.Name)
		}
	}
}

// Rows of scores that lie far apart: gorgonia's SoftMax gives NaN from row 1 on.
func TestLossOfWideScores(t *testing.T) {
	l := newSoftmaxLoss(3, 3, true)
	got := l.forward([]float32{0, 1, 2, 1000, 0, -1000, -1e30, 3e38, 0}, []int32{2, 0, 1})
	// Row 0 by hand: log(1+e+e²)−2 = 0.40760596; the others are 0.
	if want := 0.40760596 / 3; math.Abs(got-want) > 1e-6 {
		t.Errorf("loss %v, want %v", got, want)
	}
	for i, v := range l.gradient() {
		if v != v {
			t.Errorf("gradient %d is NaN", i)
		}
	}
}

// Label −1 does not count, in training and in evaluation.
func TestIgnoredLabels(t *testing.T) {
	m, err := declare(Spec{Name: "mlp", Input: flat}, true)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	b := traintest.Batch(flat, 4, 1)
	b.Y[1], b.Y[3] = -1, -1
	some := make([]float32, len(m.params))
	loss, err := m.Grad(ctx, some, b)
	if err != nil {
		t.Fatal(err)
	}
	c := train.Batch{X: append(slices.Clone(b.X[:12]), b.X[24:36]...), Y: []int32{b.Y[0], b.Y[2]}, Samples: 2}
	want, err := m.Grad(ctx, m.Gradient(), c)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(loss-want) > 1e-6 {
		t.Errorf("loss %v, without the ignored samples %v", loss, want)
	}
	for i := range some {
		if math.Abs(float64(some[i]-m.grad[i])) > 1e-6 {
			t.Fatalf("gradient %d is %v, without the ignored samples %v", i, some[i], m.grad[i])
		}
	}
	r, err := m.Eval(ctx, b)
	if err != nil || r.Count != 2 {
		t.Errorf("Eval: %+v, %v; want a count of 2", r, err)
	}
	for i := range b.Y {
		b.Y[i] = -1
	}
	if loss, err := m.Grad(ctx, some, b); loss != 0 || err != nil || slices.ContainsFunc(some, func(v float32) bool { return v != 0 }) {
		t.Errorf("no label counts: loss %v, %v, want zero and a gradient of zero", loss, err)
	}
}

// NaN through max pooling kills a process that uses gorgonia's.
func TestNaNThroughPoolingComesBack(t *testing.T) {
	m, err := Build(Spec{Name: "lenet", Input: mnist})
	if err != nil {
		t.Fatal(err)
	}
	b := traintest.Batch(mnist, 2, 1)
	for i := range b.X {
		b.X[i] = float32(math.NaN())
	}
	g := make([]float32, len(m.Params()))
	if loss, err := m.Grad(context.Background(), g, b); err == nil && loss == loss {
		t.Errorf("loss of NaN is %v", loss)
	}
}

// A panic in a layer comes back as an error.
func TestPanicInLayerIsAnError(t *testing.T) {
	m, err := declare(Spec{Name: "mlp", Input: flat, Batch: 4}, true)
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.graph(4)
	if err != nil {
		t.Fatal(err)
	}
	g.loss.cols = 1 << 40 // the loss will slice beyond its scores
	b := traintest.Batch(flat, 4, 1)
	_, err = m.Grad(context.Background(), m.Gradient(), b)
	if err == nil || !strings.Contains(err.Error(), "softmax cross-entropy") {
		t.Errorf("%v; want an error that names the layer", err)
	}
	g.loss.cols = 5
	if _, err := m.Grad(context.Background(), m.Gradient(), b); err != nil {
		t.Errorf("the run after a panic: %v", err)
	}
}

// Layers before the first parameters take no part in the derivative.
func TestModelThatBeginsWithoutParameters(t *testing.T) {
	in := train.Input{Shape: []int{1, 4, 4}, Classes: 3}
	d := definition{
		name: "pool first",
		fits: features,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			t := newStack(b, b.Input)
			t.pool("pool", Window{Size: 2})
			t.linear("fc", b.Vocab, Identity)
			return t.layers, t.err
		},
	}
	traintest.Run(t, traintest.Kit{Input: in, New: func() (train.Model, error) { return d.declare(Spec{Input: in}, true) }})
	m, err := d.declare(Spec{Input: in}, true)
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.graph(2)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.expr.AllNodes() {
		if op, ok := n.Op().(*gradOp); ok && op.id == 0 {
			t.Error("the graph holds the derivative of the pooling")
		}
	}
}

// A model keeps the graphs of the batch sizes it used last, and no more.
func TestGraphsAreKept(t *testing.T) {
	m, err := declare(Spec{Name: "softmax", Input: flat}, true)
	if err != nil {
		t.Fatal(err)
	}
	use := func(n int) *graph {
		g, err := m.graph(n)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	four, five := use(4), use(5)
	if use(4) != four || use(5) != five || use(4) != four {
		t.Error("a graph that is kept was made again")
	}
	use(6) // drops 5, which was used before 4
	if use(4) != four {
		t.Error("the graph of 4 was dropped")
	}
	if use(5) == five {
		t.Error("the graph of 5 was kept")
	}
	if len(m.graphs) != keep {
		t.Errorf("%d graphs are kept, want %d", len(m.graphs), keep)
	}
}

// A graph that is dropped must go, with all its activations.
func TestDroppedGraphsAreFreed(t *testing.T) {
	m, err := declare(Spec{Name: "mlp", Input: flat}, true)
	if err != nil {
		t.Fatal(err)
	}
	var first weak.Pointer[graph]
	for n := 1; n <= keep+1; n++ {
		if _, err := m.Grad(context.Background(), m.Gradient(), traintest.Batch(flat, n, 1)); err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			first = weak.Make(m.graphs[0])
		}
	}
	for range 3 {
		runtime.GC()
	}
	if first.Value() != nil {
		t.Error("the graph of the first batch size is still in memory")
	}
	runtime.KeepAlive(m)
}

// A context that ends in the middle of a run stops it, and errors.Is knows why.
func TestRunStopsWithItsContext(t *testing.T) {
	m, err := declare(Spec{Name: "mlp", Input: flat}, true)
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.graph(4)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	if err := g.run(context.Background()); err != nil {
		t.Errorf("the run after it: %v", err)
	}
}

// Gorgonia's numbering of groups races when two graphs are built at once; -race
// shows whether ours do.
func TestModelsAreBuiltAndRunConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			m, err := Build(Spec{Name: "lenet", Input: mnist, Seed: uint64(i)})
			if err != nil {
				t.Error(err)
				return
			}
			for n := 1; n < 4; n++ {
				if _, err := m.Grad(context.Background(), make([]float32, len(m.Params())), traintest.Batch(mnist, n, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Building another graph, for another batch size or for evaluation, must not touch
// the running statistics, and evaluation must use them.
func TestRunningStatisticsSurvive(t *testing.T) {
	in := train.Input{Shape: []int{3, 8, 8}, Classes: 4}
	m, err := Build(Spec{Name: "resnet20", Input: in, Settings: map[string]string{"width": "0.2"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	g := make([]float32, len(m.Params()))
	if _, err := m.Grad(ctx, g, traintest.Batch(in, 4, 1)); err != nil {
		t.Fatal(err)
	}
	stats := slices.Clone(m.Buffers())
	b := traintest.Batch(in, 4, 2)
	before, err := m.Eval(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(stats, m.Buffers()) {
		t.Error("Eval changed the running statistics")
	}
	for i := range m.Buffers() {
		m.Buffers()[i] *= 1.5
	}
	after, err := m.Eval(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	if before.LossSum == after.LossSum {
		t.Error("Eval does not use the running statistics")
	}
	copy(m.Buffers(), stats)
	if _, err := m.(*network).graph(7); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(stats, m.Buffers()) {
		t.Error("building a graph changed the running statistics")
	}
	for _, s := range m.BufferLayout() {
		if len(s.Shape) != 1 || s.Shape[0] > 64 {
			t.Errorf("%s has shape %v, want one value for each channel", s.Name, s.Shape)
		}
	}
}

// Initial parameters come from our own generator and are the same everywhere. The
// values were printed by this program on linux/amd64.
func TestInitialParameters(t *testing.T) {
	m, err := Build(Spec{Name: "mlp", Input: flat, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := m.Params()
	got := fmt.Sprintf("%08x %08x %08x %08x", math.Float32bits(p[0]), math.Float32bits(p[1]), math.Float32bits(p[1000]), math.Float32bits(p[len(p)-1]))
	if want := initialBits; got != want {
		t.Errorf("bits of parameters 0, 1, 1000 and the last: %s, want %s", got, want)
	}
	bound := float32(1 / math.Sqrt(12)) // PyTorch: U(−1/√fan_in, 1/√fan_in)
	w := p[:12*256]
	var sq float64
	for _, v := range w {
		if v < -bound || v > bound {
			t.Fatalf("weight %v is beyond ±%v", v, bound)
		}
		sq += float64(v) * float64(v)
	}
	// The variance of U(−b, b) is b²/3; of 3072 draws within 5 %.
	if got, want := sq/float64(len(w)), 1.0/36; math.Abs(got-want) > 0.05*want {
		t.Errorf("variance %v, want %v", got, want)
	}
	n, err := Build(Spec{Name: "mlp", Input: flat, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(p, n.Params()) {
		t.Error("two seeds give the same parameters")
	}
}

// After the first step our layers allocate nothing; what is left is gorgonia's
// machine, which depends on the number of nodes and not on the batch.
func TestStepAllocatesLittle(t *testing.T) {
	// One processor, so that the pools of package kernel stay where they are.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, name := range []string{"mlp", "lenet", "resnet20:width=0.25"} {
		spec, err := Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		spec.Input = mnist
		m, err := Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		g := m.(interface{ Gradient() []float32 }).Gradient()
		b := traintest.Batch(mnist, 8, 1)
		step := func() {
			if _, err := m.Grad(context.Background(), g, b); err != nil {
				t.Fatal(err)
			}
		}
		step()
		step()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			step()
		}
		runtime.ReadMemStats(&after)
		bytes, count := (after.TotalAlloc-before.TotalAlloc)/10, (after.Mallocs-before.Mallocs)/10
		nodes := uint64(len(m.Layout())*3 + 20)
		t.Logf("%s: %d allocations and %d bytes a step", name, count, bytes)
		// One list of inputs of 16 bytes each, and a few words, for each node;
		// the smallest activation of these models is larger than this bound.
		if count > 4*nodes || bytes > 400*nodes {
			t.Errorf("%s: %d allocations and %d bytes a step with about %d nodes", name, count, bytes, nodes)
		}
	}
}
