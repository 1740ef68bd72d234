package optim

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// small are the tensors of a small model: two hidden matrices, one of them flattened, and the output.
var small = []Tensor{
	{"conv.weight", []int{6, 2, 2, 1}, 0}, {"conv.bias", []int{6}, 24}, {"fc1.weight", []int{5, 7}, 30}, {"fc1.bias", []int{5}, 65}, {"fc2.weight", []int{3, 5}, 70}, {"fc2.bias", []int{3}, 85},
}

const smallLen = 88

// dense is a matrix in float64, and its products are the textbook's: nothing is shared with package kernel.
type dense [][]float64

func zeros(rows, cols int) dense {
	m := make(dense, rows)
	for i := range m {
		m[i] = make([]float64, cols)
	}
	return m
}

func (a dense) times(b dense) dense {
	m := zeros(len(a), len(b[0]))
	for i := range m {
		for j := range m[i] {
			for k := range b {
				m[i][j] += a[i][k] * b[k][j]
			}
		}
	}
	return m
}

func (a dense) turned() dense {
	m := zeros(len(a[0]), len(a))
	for i := range a {
		for j, x := range a[i] {
			m[j][i] = x
		}
	}
	return m
}

// oracle is Muon of a matrix, and AdamW of a vector (one row), in float64.
type oracle struct {
	matrix            bool
	w, m, v           dense
	steps             int
	mu, decay, factor float64
}

func (o *oracle) step(g dense, lr, share float64) {
	o.steps++
	lr *= share * o.factor
	shrink := 1 - lr*o.decay
	mu, d := 0.9, zeros(len(g), len(g[0]))
	if o.matrix {
		mu = math.Pow(o.mu, share)
	}
	for i := range g {
		for j, x := range g[i] {
			o.m[i][j] = mu*o.m[i][j] + (1-mu)*x
			t := float64(o.steps)
			mean := o.m[i][j] / (1 - math.Pow(0.9, t))
			o.v[i][j] = 0.999*o.v[i][j] + 0.001*(share*x*x+(1-share)*mean*mean)
			d[i][j] = o.m[i][j] / (1 - math.Pow(0.9, t)) / (math.Sqrt(o.v[i][j]/(1-math.Pow(0.999, t))) + 1e-8)
			if o.matrix {
				d[i][j] = mu*o.m[i][j] + (1-mu)*x
			}
		}
	}
	if o.matrix {
		wide := len(d) <= len(d[0])
		if !wide {
			d = d.turned()
		}
		norm := 0.0
		for _, row := range d {
			for _, x := range row {
				norm += x * x
			}
		}
		for _, row := range d {
			for j := range row {
				row[j] /= max(math.Sqrt(norm), 1e-7)
			}
		}
		for range 5 {
			a := d.times(d.turned())
			aa := a.times(a)
			b := zeros(len(a), len(a))
			for i := range b {
				for j := range b {
					b[i][j] = -4.775*a[i][j] + 2.0315*aa[i][j]
				}
			}
			bd := b.times(d)
			for i := range d {
				for j := range d[i] {
					d[i][j] = 3.4445*d[i][j] + bd[i][j]
				}
			}
		}
		if !wide {
			d = d.turned()
		}
		lr *= 0.2 * math.Sqrt(float64(max(len(d), len(d[0]))))
	}
	for i := range o.w {
		for j := range o.w[i] {
			o.w[i][j] = shrink*o.w[i][j] - lr*d[i][j]
		}
	}
}

// The step is that of the papers, of wide, tall and flattened matrices, with groups, weight decay and shares of rounds.
func TestMuonAgainstOracle(t *testing.T) {
	c := Config{Name: Muon, LR: 0.02, WeightDecay: 0.1, Groups: []Group{{30, 70, 0.5, 0.3}}}.Shaped(small)
	if want := []Matrix{{0, 6, 4}, {30, 5, 7}}; !slices.Equal(c.Matrices, want) {
		t.Fatalf("matrices %v, want %v", c.Matrices, want)
	}
	o, err := New(c, smallLen)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	params := make([]float32, smallLen)
	for i := range params {
		params[i] = float32(r.NormFloat64())
	}
	cut := func(v []float32, s Tensor, matrix bool) dense {
		rows, cols := 1, 1
		for _, k := range s.Shape {
			cols *= k
		}
		if matrix {
			rows, cols = s.Shape[0], cols/s.Shape[0]
		}
		m := zeros(rows, cols)
		for i := range rows {
			for j := range cols {
				m[i][j] = float64(v[s.Offset+i*cols+j])
			}
		}
		return m
	}
	var own []*oracle
	for i, s := range small {
		matrix := i == 0 || i == 2
		w := cut(params, s, matrix)
		each := &oracle{matrix: matrix, w: w, m: zeros(len(w), len(w[0])), v: zeros(len(w), len(w[0])), mu: 0.95, decay: 0.1, factor: 1}
		if i == 2 || i == 3 {
			each.decay, each.factor = 0.3, 0.5
		}
		own = append(own, each)
	}
	for k := range 20 {
		g := make([]float32, smallLen)
		for i := range g {
			g[i] = float32(r.NormFloat64() * math.Pow(10, float64(k%5-2)))
		}
		lr, share := 0.05/(1+float64(k)), []float64{1, 0.25, 0.5}[k%3]
		o.Begin()
		for i := range o.Parts() {
			o.StepPart(i, params, g, lr, share)
		}
		for i, s := range small {
			each := own[i]
			each.step(cut(g, s, each.matrix), lr, share)
			for row, want := range each.w {
				for j, x := range want {
					if got := float64(params[s.Offset+row*len(want)+j]); math.Abs(got-x) > 2e-5*(1+math.Abs(x)) {
						t.Fatalf("step %d, %s, row %d, column %d: %.8g, want %.8g", k, s.Name, row, j, got, x)
					}
				}
			}
		}
	}
}

// testdata/record_muon.py records what torch.optim.Muon and AdamW do.
func TestMuonAgainstTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/muon.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		LR     []float64
		Shapes [][]int
		Grads  [][]float32
		Cases  []struct {
			Config Config
			Start  []float32
			After  [][]float32
		}
	}
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	var tensors []Tensor
	n := 0
	for i, shape := range rec.Shapes {
		tensors = append(tensors, Tensor{fmt.Sprint(i), shape, n})
		size := 1
		for _, k := range shape {
			size *= k
		}
		n += size
	}
	tensors = append(tensors, Tensor{"head", []int{1, 1}, n})
	n++
	for _, c := range rec.Cases {
		o, err := New(c.Config.Shaped(tensors), n)
		if err != nil {
			t.Fatal(err)
		}
		p := slices.Clone(c.Start)
		for i, g := range rec.Grads {
			o.Step(p, g, rec.LR[i])
			for j := range p {
				if got, want := float64(p[j]), float64(c.After[i][j]); math.Abs(got-want) > 1e-5*(1+math.Abs(want)) {
					t.Fatalf("%+v, step %d, parameter %d: %.9g, torch has %.9g", c.Config, i+1, j, got, want)
				}
			}
		}
	}
	if len(rec.Cases) < 2 {
		t.Errorf("%d cases recorded", len(rec.Cases))
	}
}

// Cut between matrices, at any place, over shards, a step has the bits of the whole vector, also after a shard is made
// again from its state. A cut in a matrix is an error.
func TestMuonShards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tensors []Tensor
		n := 0
		for i := range rapid.IntRange(1, 6).Draw(t, "tensors") {
			shape := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 3).Draw(t, "shape")
			tensors = append(tensors, Tensor{fmt.Sprint(i), shape, n})
			size := 1
			for _, k := range shape {
				size *= k
			}
			n += size
		}
		c := Config{Name: Muon, LR: 0.1, WeightDecay: 0.01}.Shaped(tensors)
		whole, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		cuts := append(rapid.SliceOfN(rapid.IntRange(0, n), 0, 4).Draw(t, "cuts"), 0, n)
		slices.Sort(cuts)
		var shards []*Optimizer
		for i := 1; i < len(cuts); i++ {
			from, to := cuts[i-1], cuts[i]
			within := slices.ContainsFunc(c.Matrices, func(m Matrix) bool {
				return m.From < from && from < m.To() || m.From < to && to < m.To()
			})
			o, err := New(c.Cut(from, to), to-from)
			if from == to {
				o, err = New(Config{Name: SGD}, 0)
			} else if within {
				if err == nil || !strings.Contains(err.Error(), "part of a matrix") {
					t.Fatalf("elements %d to %d of %v: %v", from, to, c.Matrices, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			shards = append(shards, o)
		}
		a := make([]float32, n)
		for i := range a {
			a[i] = float32(math.Sin(float64(i)))
		}
		b := slices.Clone(a)
		for step := range 4 {
			g := make([]float32, n)
			for i := range g {
				g[i] = float32(math.Cos(float64(7*i + 13*step)))
			}
			whole.Step(a, g, 0.1)
			for i, o := range shards {
				from, to := cuts[i], cuts[i+1]
				if step == 2 && from < to {
					moved, err := New(c.Cut(from, to), to-from)
					if err != nil {
						t.Fatal(err)
					}
					if err := moved.SetState(o.State()); err != nil {
						t.Fatal(err)
					}
					o, shards[i] = moved, moved
				}
				o.Step(b[from:to], g[from:to], 0.1)
			}
		}
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				t.Fatalf("cut at %v: element %d is %v, of the whole %v", cuts, i, b[i], a[i])
			}
		}
	})
}

// Hidden matrices are orthogonalised; embeddings, the output layer and vectors are not.
func TestShaped(t *testing.T) {
	for _, c := range []struct {
		name    string
		tensors string // NAME:ROWSxCOLS…
		want    string
	}{
		{"perceptron", "fc1.weight:4x8 fc1.bias:4 fc2.weight:3x4 fc2.bias:3", "fc1.weight:4x8"},
		{"softmax regression", "linear.weight:3x4 linear.bias:3", ""},
		{"convolutions", "conv1.weight:6x1x5x5 conv2.weight:16x6x5x5 norm.weight:16 fc.weight:10x16", "conv1.weight:6x25 conv2.weight:16x150"},
		{"Transformer", "embed.weight:65x8 position.weight:16x8 blocks.0.linear1.weight:16x8 head.weight:65x8", "blocks.0.linear1.weight:16x8"},
		{"tied", "transformer.wte.weight:65x8 transformer.wpe.weight:16x8 transformer.h.0.mlp.c_proj.weight:8x32", "transformer.h.0.mlp.c_proj.weight:8x32"},
		{"head in between", "lm_head.weight:65x8 a.weight:8x8 b.weight:8x8", "a.weight:8x8"},
		{"vectors", "a:1x7 b:7x1 c:9 d: e:0x3 f:3x3 g:2x2", "f:3x3"},
	} {
		var tensors []Tensor
		names := map[int]string{}
		at := 0
		for word := range strings.FieldsSeq(c.tensors) {
			name, shape, _ := strings.Cut(word, ":")
			x := Tensor{Name: name, Offset: at}
			size := 1
			for text := range strings.SplitSeq(shape, "x") {
				var k int
				if _, err := fmt.Sscan(text, &k); err == nil {
					x.Shape = append(x.Shape, k)
					size *= k
				}
			}
			if size > 0 {
				names[at] = name
			}
			tensors = append(tensors, x)
			at += size
		}
		config := Config{Name: Muon}.Shaped(tensors)
		var got []string
		for _, m := range config.Matrices {
			got = append(got, fmt.Sprintf("%s:%dx%d", names[m.From], m.Rows, m.Cols))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", c.name, text, c.want)
		}
		if _, err := New(config, at); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestMuonNeedsShapes(t *testing.T) {
	for _, tensors := range [][]Tensor{nil, {}} {
		if _, err := New(Config{Name: Muon}.Shaped(tensors), 5); err == nil || !strings.Contains(err.Error(), "layout") || !strings.Contains(err.Error(), "--optimizer adamw") {
			t.Errorf("without shapes: %v", err)
		}
	}
	o, err := New(Config{Name: Muon}.Shaped(small), smallLen)
	if err != nil {
		t.Fatal(err)
	}
	if c := o.Config(); !o.Whole() || o.Strides() || c.Momentum != 0.95 || c.LR != 0.001 || c.Gain() != 1 || !c.Adaptive() {
		t.Errorf("%+v", o.Config())
	}
	defer func() {
		if recover() == nil {
			t.Error("a step on a range of elements")
		}
	}()
	o.StepRange(make([]float32, 4), make([]float32, 4), 0, 1)
}

// A gradient of zeros moves nothing, however small the numbers are; NaN stays in its matrix.
func TestMuonAtTheEdges(t *testing.T) {
	for _, c := range []struct {
		value float32
		moves bool
	}{{0, false}, {1e-30, false}, {1e-3, true}, {1e15, true}} {
		o, err := New(Config{Name: Muon}.Shaped(small), smallLen)
		if err != nil {
			t.Fatal(err)
		}
		p, g := make([]float32, smallLen), make([]float32, smallLen)
		for i := range 24 {
			g[i] = c.value * float32(1+i%5)
		}
		o.Step(p, g, 0.1)
		moved := slices.ContainsFunc(p[:24], func(x float32) bool { return math.Abs(float64(x)) > 1e-4 })
		if bad := slices.ContainsFunc(p, func(x float32) bool { return x-x != 0 }); moved != c.moves || bad {
			t.Errorf("gradient of %g: %v", c.value, p[:24])
		}
		g[3] = float32(math.NaN())
		o.Step(p, g, 0.1)
		if p[0] == p[0] || p[40] != p[40] || p[86] != p[86] {
			t.Errorf("after NaN: %v", p)
		}
	}
}

func TestMuonAllocatesNothing(t *testing.T) {
	o, err := New(Config{Name: Muon}.Shaped(small), smallLen)
	if err != nil {
		t.Fatal(err)
	}
	p, g := make([]float32, smallLen), make([]float32, smallLen)
	for range 100 { // scratch grows to its size
		o.Step(p, g, 0.1)
	}
	if n := testing.AllocsPerRun(20, func() { o.Step(p, g, 0.1) }); n != 0 {
		t.Errorf("%v allocations per step", n)
	}
}
