package compress

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A codec that goes on with residual and memory sends the bytes of one that never stopped; without one of them it does
// not.
func TestMemoryGoesOn(t *testing.T) {
	const n = 3000
	ms := []Matrix{{0, 40, 50}, {2100, 10, 30}}
	fresh := map[string]func() Codec{
		"fp16":            func() Codec { return FP16 },
		"int8":            func() Codec { return new(Int8) },
		"int8-stochastic": func() Codec { return NewStochasticInt8(7) },
		"topk":            func() Codec { return NewTopShare(0.02) },
		"powersgd": func() Codec {
			c, err := newPowerSGD(n, ms, 2, 7)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	}
	for name, fresh := range fresh {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 4))
			grad := func() []float32 {
				g := make([]float32, n)
				for i := range g {
					g[i] = float32(rng.NormFloat64())
				}
				return g
			}
			c := fresh()
			f := NewFeedback(c, n)
			for range 3 {
				f.Encode(nil, grad())
			}
			later := fresh()
			if err := Recall(later, Remember(c)); err != nil {
				t.Fatal(err)
			}
			g := FeedbackOver(later, slices.Clone(f.Residual()))
			forgets := FeedbackOver(fresh(), slices.Clone(f.Residual()))
			same := true
			for step := range 3 {
				v := grad()
				want := f.Encode(nil, v)
				if !bytes.Equal(g.Encode(nil, v), want) {
					t.Fatalf("step %d after the memory was recalled: other bytes", step)
				}
				same = same && bytes.Equal(forgets.Encode(nil, v), want)
			}
			if remembers := name == "powersgd" || name == "int8-stochastic"; same == remembers {
				t.Errorf("without the memory the bytes are the same: %v", same)
			}
		})
	}
}

// A memory that does not fit is refused by name, and leaves the start as it was.
func TestRecallRefuses(t *testing.T) {
	c, err := newPowerSGD(2000, []Matrix{{0, 40, 50}}, 2, 7)
	if err != nil {
		t.Fatal(err)
	}
	before := Remember(c)
	bad := slices.Clone(before.Warm)
	bad[3] = float32(math.NaN())
	for _, m := range []Memory{{}, {Warm: bad}, {Warm: before.Warm[1:]}} {
		if err := Recall(c, m); err == nil {
			t.Errorf("a memory of %d values was taken", len(m.Warm))
		}
	}
	if after := Remember(c); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("a memory that was refused has changed something")
	}
}

// Workers that average with what they have recalled go on as if they had not stopped.
func TestAveragerGoesOn(t *testing.T) {
	const n = 2000
	ms := []Matrix{{0, 40, 50}}
	make2 := func() (as [2]*Averager) {
		for i := range as {
			a, err := newAverager(n, ms, 2, 9)
			if err != nil {
				t.Fatal(err)
			}
			as[i] = a
		}
		return as
	}
	round := func(as [2]*Averager, grads [2][]float32) []float32 {
		mean := func(x, y []float32) {
			for i := range x {
				x[i] = (x[i] + y[i]) / 2
				y[i] = x[i]
			}
		}
		mean(as[0].Project(grads[0]), as[1].Project(grads[1]))
		mean(as[0].Refine(), as[1].Refine())
		dst := make([]float32, n)
		as[1].Reconstruct(make([]float32, n))
		as[0].Reconstruct(dst)
		return dst
	}
	rng := rand.New(rand.NewPCG(5, 6))
	grads := func() (gs [2][]float32) {
		for i := range gs {
			gs[i] = make([]float32, n)
			for k := range gs[i] {
				gs[i][k] = float32(rng.NormFloat64())
			}
		}
		return gs
	}
	as := make2()
	for range 3 {
		round(as, grads())
	}
	bs := make2()
	for i := range bs {
		copy(bs[i].Residual(), as[i].Residual())
		if err := bs[i].Recall(as[i].Remember()); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		gs := grads()
		if !slices.Equal(round(as, gs), round(bs, gs)) {
			t.Fatal("another result after the memory was recalled")
		}
	}
}
