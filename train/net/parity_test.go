package net

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"star/internal/kernel"
	"star/train"
)

// A curve is a file of testdata/torch: what testdata/torch_parity.py recorded.
// The formulas below are those of its head.
type curve struct {
	Torch   string  `json:"torch"`
	Model   string  `json:"model"`
	Shape   []int   `json:"shape"`
	Classes int     `json:"classes"`
	Tokens  bool    `json:"tokens"`
	Batch   int     `json:"batch"`
	LR      float64 `json:"lr"`
	Params  []struct {
		Name     string  `json:"name"`
		Shape    []int   `json:"shape"`
		Base     float64 `json:"base"`
		Scale    float64 `json:"scale"`
		GradNorm float64 `json:"gradnorm"`
	} `json:"params"`
	Loss []float64 `json:"loss"`
	Eval float64   `json:"eval"`
}

// lowbias32 is a bijection of 32-bit integers found by C. Wellons's hash
// prospector (2018).
func lowbias32(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	x *= 0x846ca68b
	return x ^ x>>16
}

func hashed(stream, i int) uint32 { return lowbias32(uint32(i) + uint32(stream)*0x9e3779b9) }

// symmetric is uniform in [-1, 1).
func symmetric(stream, i int) float64 { return float64(hashed(stream, i))/(1<<31) - 1 }

// fill sets the initial parameters.
func (c curve) fill(t *testing.T, m train.Model) {
	t.Helper()
	layout := m.Layout()
	if len(layout) != len(c.Params) {
		t.Fatalf("model has %d tensors, PyTorch's has %d:\n%v\n%v", len(layout), len(c.Params), layout, c.Params)
	}
	for p, want := range c.Params {
		got := layout[p]
		if !slices.Equal(got.Shape, want.Shape) {
			t.Fatalf("tensor %d is %s %v, PyTorch's is %s %v", p, got.Name, got.Shape, want.Name, want.Shape)
		}
		w := m.Params()[got.Offset : got.Offset+got.Len()]
		for i := range w {
			w[i] = float32(want.Base + float64(want.Scale*symmetric(p+1, i)))
		}
	}
}

// batch is the one of a step.
func (c curve) batch(step int) train.Batch {
	n := 1
	for _, d := range c.Shape {
		n *= d
	}
	b := train.Batch{Samples: c.Batch}
	for s := step * c.Batch; s < (step+1)*c.Batch; s++ {
		if c.Tokens {
			tok := int32(hashed(1003, s*(n+1)) % uint32(c.Classes))
			for j := 1; j <= n; j++ {
				b.Tokens = append(b.Tokens, tok)
				tok = (5*tok + 3 + int32(hashed(1003, s*(n+1)+j)%2)) % int32(c.Classes)
				b.Y = append(b.Y, tok)
			}
			continue
		}
		y := int(hashed(1002, s) % uint32(c.Classes))
		b.Y = append(b.Y, int32(y))
		for i := range n {
			b.X = append(b.X, float32(float64(0.5*symmetric(1000, s*n+i))+float64(0.5*symmetric(1001, y*n+i/8))))
		}
	}
	return b
}

// Our models are PyTorch's: from the same parameters, on the same batches, with the same plain SGD, the loss of each of
// 100 steps (fewer for VGG-11 and MobileNetV2) is the same within 1e-3 relative, and so is that of evaluation mode
// afterwards, which uses the running statistics; the norm of the first gradient of every tensor is the same within
// 1e-4.
func TestParity(t *testing.T) {
	if testing.Short() {
		t.Skip("about numbers, not about races")
	}
	files, err := filepath.Glob("testdata/torch/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded curves in testdata/torch: %v", err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c curve
			if err := json.Unmarshal(text, &c); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if n := len(c.Loss); n != 100 && name != "vgg11.json" && name != "mobilenetv2.json" {
				t.Fatalf("%s holds %d steps, not 100", file, n)
			}
			c.compare(t)
		})
	}
}

func (c curve) compare(t *testing.T) {
	spec, err := Parse(c.Model)
	if err != nil {
		t.Fatal(err)
	}
	spec.Input = train.Input{Shape: c.Shape, Classes: c.Classes, Tokens: c.Tokens}
	spec.Batch = c.Batch
	m, err := Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c.fill(t, m)

	w, g := m.Params(), make([]float32, len(m.Params()))
	lr := float32(c.LR)
	steps := len(c.Loss)
	if kernel.Name() == "go" && spec.Name == "resnet20" {
		steps = 20 // without assembly all of it takes half a minute
	}
	worst, worstNorm, whole := 0.0, 0.0, 0.0
	for _, p := range c.Params {
		whole = math.Hypot(whole, p.GradNorm)
	}
	for step, want := range c.Loss[:steps] {
		loss, err := m.Grad(context.Background(), g, c.batch(step))
		if err != nil {
			t.Fatal(err)
		}
		off := math.Abs(loss-want) / math.Abs(want)
		worst = max(worst, off)
		if !(off <= 1e-3) {
			t.Fatalf("step %d: loss %v, PyTorch %s has %v: %.1e apart", step, loss, c.Torch, want, off)
		}
		if step == 0 {
			for p, tensor := range m.Layout() {
				sum := 0.0
				for _, v := range g[tensor.Offset : tensor.Offset+tensor.Len()] {
					sum += float64(v) * float64(v)
				}
				got, want := math.Sqrt(sum), c.Params[p].GradNorm
				// A bias before a batch normalisation has no gradient but rounding.
				off := math.Abs(got-want) / (want + whole/100)
				worstNorm = max(worstNorm, off)
				if !(off <= 1e-4) {
					t.Errorf("gradient of %s has norm %v, PyTorch's has %v", tensor.Name, got, want)
				}
			}
		}
		for i, d := range g {
			w[i] -= lr * d
		}
	}
	if steps < len(c.Loss) {
		return
	}
	after, err := m.Eval(context.Background(), c.batch(len(c.Loss)))
	if err != nil {
		t.Fatal(err)
	}
	mean := after.LossSum / float64(after.Count)
	if off := math.Abs(mean-c.Eval) / c.Eval; !(off <= 1e-3) {
		t.Errorf("loss in evaluation mode is %v, PyTorch %s has %v: %.1e apart", mean, c.Torch, c.Eval, off)
	}
	t.Logf("loss %.4f → %.4f, at most %.1e from PyTorch %s; gradient norms at most %.1e",
		c.Loss[0], c.Loss[len(c.Loss)-1], worst, c.Torch, worstNorm)
}
