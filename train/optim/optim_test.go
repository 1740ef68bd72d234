package optim

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

var all = []Config{
	{},
	{Name: SGD, WeightDecay: 0.01},
	{Name: Momentum, WeightDecay: 0.01},
	{Name: Nesterov, WeightDecay: 0.01},
	{Name: Adam, WeightDecay: 0.01},
	{Name: AdamW, WeightDecay: 0.01},
}

// testdata/record_torch.py records what torch.optim does with the same numbers.
func TestAgainstTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/torch.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		LR    []float64
		Grads [][]float32
		Cases []struct {
			Config Config
			Start  []float32
			After  [][]float32
		}
	}
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	if len(rec.Cases) < 10 {
		t.Fatalf("%d cases recorded", len(rec.Cases))
	}
	for _, c := range rec.Cases {
		o, err := New(c.Config, len(c.Start))
		if err != nil {
			t.Fatal(err)
		}
		p := slices.Clone(c.Start)
		for i, g := range rec.Grads {
			o.Step(p, g, rec.LR[i])
			for j := range p {
				// Roundings in another order: a few units in the last place of the
				// parameter and of the steps that led to it.
				if got, want := float64(p[j]), float64(c.After[i][j]); math.Abs(got-want) > 2e-6*(1+math.Abs(want)) {
					t.Fatalf("%+v, step %d, parameter %d: %.9g, torch has %.9g", c.Config, i+1, j, got, want)
				}
			}
		}
	}
}

// With powers of two everything is exact: two steps by hand.
func TestByHand(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   [2]float32 // of one parameter, from 1, with gradient 2 at rate 0.25
	}{
		{Config{Name: SGD}, [2]float32{0.5, 0}},
		{Config{Name: SGD, WeightDecay: 0.5}, [2]float32{1 - 0.25*2.5, 0.375 - 0.25*2.1875}},
		// v = 2, then 0.5·2 + 2 = 3.
		{Config{Name: Momentum, Momentum: 0.5}, [2]float32{0.5, -0.25}},
		// steps 2 + 0.5·2 = 3, then 2 + 0.5·3 = 3.5.
		{Config{Name: Nesterov, Momentum: 0.5}, [2]float32{0.25, -0.625}},
	} {
		o, err := New(c.config, 1)
		if err != nil {
			t.Fatal(err)
		}
		p := []float32{1}
		for i, want := range c.want {
			o.Step(p, []float32{2}, 0.25)
			if p[0] != want {
				t.Errorf("%+v, step %d: %v, want %v", c.config, i+1, p[0], want)
			}
		}
	}
}

// Any cut of the vector, over shards or over goroutines, gives the same bits.
func TestShardsChangeNoBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(all).Draw(t, "config")
		n := rapid.IntRange(1, 200).Draw(t, "n")
		cuts := append(rapid.SliceOfN(rapid.IntRange(0, n), 0, 5).Draw(t, "cuts"), 0, n)
		slices.Sort(cuts)
		rnd := rapid.Float32Range(-3, 3)
		whole := rapid.SliceOfN(rnd, n, n).Draw(t, "params")
		parts := slices.Clone(whole)
		one, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		inPieces := slices.Clone(whole)
		pieces, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		var shards []*Optimizer
		for i := 1; i < len(cuts); i++ {
			o, err := New(c, cuts[i]-cuts[i-1])
			if err != nil {
				t.Fatal(err)
			}
			shards = append(shards, o)
		}
		for step := range 3 {
			g := make([]float32, n)
			for i := range g {
				g[i] = float32(math.Sin(float64(i*7+step*13))) * whole[(i+step)%n]
			}
			one.Step(whole, g, 0.1)
			for i, o := range shards {
				o.Step(parts[cuts[i]:cuts[i+1]], g[cuts[i]:cuts[i+1]], 0.1)
			}
			pieces.Begin()
			var wg sync.WaitGroup
			for i := range shards {
				from, to := cuts[i], cuts[i+1]
				wg.Go(func() { pieces.StepRange(inPieces[from:to], g[from:to], from, 0.1) })
			}
			wg.Wait()
		}
		for i := range whole {
			if math.Float32bits(whole[i]) != math.Float32bits(parts[i]) {
				t.Fatalf("%+v cut at %v: element %d is %v, of the whole %v", c, cuts, i, parts[i], whole[i])
			}
			if math.Float32bits(whole[i]) != math.Float32bits(inPieces[i]) {
				t.Fatalf("%+v in pieces cut at %v: element %d is %v, of the whole %v", c, cuts, i, inPieces[i], whole[i])
			}
		}
	})
}

// Saved and restored in the middle, an optimiser goes on as if nothing had been.
func TestStateRoundTrip(t *testing.T) {
	for _, c := range all {
		const n = 17
		a, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		p, g := make([]float32, n), make([]float32, n)
		step := func(o *Optimizer, p []float32, k int) {
			for i := range g {
				g[i] = float32(math.Sin(float64(i + k)))
			}
			o.Step(p, g, 0.1)
		}
		for k := range 5 {
			step(a, p, k)
		}
		b, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.SetState(a.State()); err != nil {
			t.Fatal(err)
		}
		if got := b.State().Steps; got != 5 {
			t.Errorf("%+v: %d steps in the state, want 5", c, got)
		}
		q := slices.Clone(p)
		for k := 5; k < 8; k++ {
			step(a, p, k)
			step(b, q, k) // would change a, if SetState had kept its vectors
		}
		if !slices.Equal(p, q) {
			t.Errorf("%+v: after the restore %v, without it %v", c, q, p)
		}
	}
}

func TestSetStateRefuses(t *testing.T) {
	o, err := New(Config{Name: Adam}, 3)
	if err != nil {
		t.Fatal(err)
	}
	o.Step([]float32{1, 2, 3}, []float32{1, 1, 1}, 0.1)
	v := func(n int) []float32 { return make([]float32, n) }
	for _, c := range []struct {
		state State
		says  string
	}{
		{State{Name: AdamW, Slots: []Slot{{"exp_avg", v(3)}, {"exp_avg_sq", v(3)}}}, `that of "adamw"`},
		{State{Name: Adam, Slots: []Slot{{"exp_avg", v(3)}}}, "1 slots, expected 2"},
		{State{Name: Adam, Slots: []Slot{{"exp_avg", v(3)}, {"x", v(3)}}}, `slot 1 of adam is "x"`},
		{State{Name: Adam, Slots: []Slot{{"exp_avg", v(3)}, {"exp_avg_sq", v(4)}}}, "4 elements, expected 3"},
		{State{Name: Adam, Steps: -1, Slots: []Slot{{"exp_avg", v(3)}, {"exp_avg_sq", v(3)}}}, "-1 steps"},
	} {
		if err := o.SetState(c.state); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.state, err, c.says)
		}
	}
	if s := o.State(); s.Steps != 1 || s.Slots[0].Data[0] == 0 {
		t.Errorf("a refused state changed the optimiser: %+v", s)
	}
}

func TestConfigRefuses(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		config Config
		says   string
	}{
		{Config{Name: "sdg"}, `unknown optimiser "sdg": want sgd, momentum`},
		{Config{LR: -1}, "learning rate is -1"},
		{Config{LR: nan}, "learning rate is NaN"},
		{Config{LR: math.Inf(1)}, "learning rate is +Inf"},
		{Config{Name: Momentum, Momentum: 1}, "momentum is 1"},
		{Config{Name: Nesterov, Momentum: -0.1}, "momentum is -0.1"},
		{Config{Name: SGD, Momentum: 0.9}, "sgd takes no momentum"},
		{Config{Name: Adam, Momentum: 0.9}, "adam takes no momentum"},
		{Config{Name: Adam, Beta1: 1}, "beta1 is 1"},
		{Config{Name: Adam, Beta2: nan}, "beta2 is NaN"},
		{Config{Name: Adam, Epsilon: -1}, "epsilon is -1"},
		{Config{WeightDecay: -1}, "weight decay is -1"},
		{Config{Schedule: "cosine"}, "cosine"},
	} {
		_, err := New(c.config, 1)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.says)
		}
	}
	if _, err := New(Config{}, -1); err == nil {
		t.Error("-1 parameters: no error")
	}
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		config Config
		lr     float64
		slots  int
	}{
		{Config{}, 0.01, 0},
		{Config{Name: Momentum}, 0.01, 1},
		{Config{Name: Nesterov}, 0.01, 1},
		{Config{Name: Adam}, 0.001, 2},
		{Config{Name: AdamW}, 0.001, 2},
		{Config{Name: AdamW, LR: 0.5}, 0.5, 2},
	} {
		rate, err := c.config.Rate()
		if err != nil || rate.At(0) != c.lr {
			t.Errorf("%+v: learning rate %v (%v), want %v", c.config, rate.At(0), err, c.lr)
		}
		o, err := New(c.config, 3)
		if err != nil {
			t.Fatal(err)
		}
		if s := o.State(); len(s.Slots) != c.slots || !reflect.DeepEqual(o.Config(), c.config.WithDefaults()) || o.Config().LR != c.lr {
			t.Errorf("%+v: %d slots, %+v", c.config, len(s.Slots), o.Config())
		}
	}
}

// An explicit zero is a zero, whatever the optimiser and the schedule.
func TestGivenZero(t *testing.T) {
	for _, c := range []Config{
		{LR: 0},
		{Name: Momentum, Momentum: 0.5},
		{Name: Nesterov, Momentum: 0},
		{Name: AdamW, WeightDecay: 0.1},
		{Name: SGD, Schedule: "warmup=10,cosine=100,min=0.5"},
	} {
		c.Given = true
		rate, err := c.Rate()
		if err != nil || rate.At(0) != 0 || rate.At(50) != 0 {
			t.Errorf("%+v: learning rate %v and %v, %v", c, rate.At(0), rate.At(50), err)
		}
		o, err := New(c, 2)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := o.Config(); got.LR != 0 || got.Momentum != c.Momentum {
			t.Errorf("%+v became %+v", c, got)
		}
		w := []float32{1, -2}
		for range 3 {
			o.Step(w, []float32{3, 4}, rate.At(50))
		}
		if w[0] != 1 || w[1] != -2 {
			t.Errorf("%+v: three steps lead to %v", c, w)
		}
	}
	if _, err := (Config{Given: true, Schedule: "cosine"}).Rate(); err == nil {
		t.Error("a schedule that is none, with a learning rate of 0: no error")
	}
}

// A step on the wrong vector is a mistake of the caller, not of a peer.
func TestMistakesPanic(t *testing.T) {
	o, err := New(Config{Name: Adam}, 4)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, 9)
	for name, f := range map[string]func(){
		"short":           func() { o.Step(v[:3], v[:3], 1) },
		"gradient":        func() { o.Step(v[:4], v[:3], 1) },
		"range beyond":    func() { o.StepRange(v[:3], v[:3], 2, 1) },
		"range before":    func() { o.StepRange(v[:2], v[:2], -1, 1) },
		"range, gradient": func() { o.StepRange(v[:2], v[:1], 0, 1) },
	} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "optim: ") {
					t.Errorf("%s: panic %v, want one of this package", name, r)
				}
			}()
			f()
		}()
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	p, g := make([]float32, 1000), make([]float32, 1000)
	for _, c := range all {
		o, err := New(c, len(p))
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(20, func() { o.Step(p, g, 0.1) }); n != 0 {
			t.Errorf("%+v: %v allocations per step", c, n)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	p, g := make([]float32, 1<<20), make([]float32, 1<<20)
	for i := range g {
		g[i] = float32(i%7) - 3
	}
	for _, name := range []string{SGD, Momentum, Nesterov, Adam, AdamW} {
		b.Run(name, func(b *testing.B) {
			o, err := New(Config{Name: name}, len(p))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(4 * len(p)))
			b.ReportAllocs()
			for b.Loop() {
				o.Step(p, g, 1e-3)
			}
		})
	}
}

// The learning rate over the life of a job of 60 000 samples.
func ExampleParseSchedule() {
	s, err := ParseSchedule("warmup=1000,cosine=60000,min=0.01", 0.1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, samples := range []int64{0, 500, 1000, 30500, 60000, 90000} {
		fmt.Printf("%d %.4f\n", samples, s.At(samples))
	}
	// Output:
	// 0 0.0010
	// 500 0.0505
	// 1000 0.1000
	// 30500 0.0505
	// 60000 0.0010
	// 90000 0.0010
}
