package rule

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// v = (3, 4), η = 0.1. The scores of the code forms were printed by the authors' programs.
func TestZenoScores(t *testing.T) {
	const rejected = 0
	for _, c := range []struct {
		g                [2]float64
		rho, eps         float64
		form             ZenoForm
		score, direction float64 // length of g̃, or rejected
	}{
		{[2]float64{6, 8}, .001, 0, ZenoPaper, 2.475, 5},
		{[2]float64{6, 8}, .001, 0, ZenoCIFAR, 2.4, 5},
		{[2]float64{6, 8}, .001, 0, ZenoLM, 2.4, 5},
		{[2]float64{-60, -80}, .001, 0, ZenoPaper, -2.525, rejected},
		{[2]float64{-60, -80}, .001, 0, ZenoCIFAR, -12.5, rejected},
		{[2]float64{-60, -80}, .001, 0, ZenoLM, -12.5, rejected},
		{[2]float64{4, -3}, .001, 0, ZenoPaper, -.025, rejected},
		{[2]float64{4, -3}, .001, 0, ZenoCIFAR, -.025, rejected},
		{[2]float64{4, -3}, .001, 0, ZenoLM, -.025, rejected},
		{[2]float64{4, -3}, .001, .1, ZenoPaper, -.025, rejected},
		{[2]float64{4, -3}, .001, .1, ZenoCIFAR, -.015, rejected},
		{[2]float64{4, -3}, .001, .1, ZenoLM, .075, 5},
		{[2]float64{300, 400}, .001, 0, ZenoPaper, 2.475, 5},
		{[2]float64{300, 400}, .001, 0, ZenoCIFAR, -247.5, rejected},
		{[2]float64{300, 400}, .001, 0, ZenoLM, -247.5, rejected},
		{[2]float64{.6, .8}, .001, 0, ZenoLM, .499, 1}, // only ever made shorter
	} {
		norm := math.Hypot(c.g[0], c.g[1])
		v := Zeno{c.rho, c.eps, c.form}.Judge(Evidence{Dot: 3*c.g[0] + 4*c.g[1], Norm: norm, Ref: 5, Rate: .1, First: .1})
		near(t, "score", v.Score, c.score, 1e-9)
		near(t, "length", v.Factor*norm, c.direction, 1e-9)
		if v.Accept != (c.direction != rejected) {
			t.Errorf("%s form, g = %v, ε = %v: accepted is %v", c.form, c.g, c.eps, v.Accept)
		}
	}
	// After the rate has decayed tenfold.
	e := Evidence{Dot: 50, Norm: 10, Ref: 5, Rate: .01, First: .1}
	near(t, "paper, later", Zeno{.001, 0, ZenoPaper}.Judge(e).Score, .225, 1e-9)
	near(t, "code, later", Zeno{.001, 0, ZenoCIFAR}.Judge(e).Score, 2.4, 1e-9)
	// The limit of the paper's form: −η·ε.
	if v := (Zeno{.001, .25, ""}).Judge(Evidence{Dot: 0, Norm: 5, Ref: 5, Rate: .1, First: .1}); !v.Accept || v.Limit != -.025 {
		t.Errorf("at the limit: %+v", v)
	}
}

// With ρ = 0 and ε = ∞ it is ASGD with gradients of equal length; nothing that is not a number ever passes.
func TestZenoExtremes(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, form := range []ZenoForm{ZenoPaper, ZenoCIFAR, ZenoLM} {
		all := Zeno{0, inf, form}
		if v := all.Judge(Evidence{Dot: -50, Norm: 10, Ref: 5, Rate: .1, First: .1}); !v.Accept || v.Factor != .5 {
			t.Errorf("%s: %+v", form, v)
		}
		for _, e := range []Evidence{{nan, 1, 1, .1, .1}, {1, nan, 1, .1, .1}, {1, 1, nan, .1, .1}, {1, inf, 1, .1, .1}, {1, 1, inf, .1, .1}, {0, 0, 1, .1, .1}, {0, 1, 0, .1, .1}} {
			if v := (Zeno{0, 1, form}).Judge(e); v.Accept || v.Factor != 0 {
				t.Errorf("%s accepts %+v: %+v", form, e, v)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		cos, norm := rapid.Float64Range(-1, 1).Draw(t, "cos"), rapid.Float64Range(.01, 100).Draw(t, "norm")
		v := Zeno{0, inf, ZenoPaper}.Judge(Evidence{Dot: cos * norm * 5, Norm: norm, Ref: 5, Rate: .1, First: .1})
		if !v.Accept || math.Abs(v.Factor*norm-5) > 1e-9 {
			t.Fatalf("%+v", v)
		}
		// The paper's form is a test of the cosine: at least ρ/η.
		v = Zeno{.001, 0, ZenoPaper}.Judge(Evidence{Dot: cos * norm * 5, Norm: norm, Ref: 5, Rate: .1, First: .1})
		if math.Abs(cos-.01) > 1e-9 && v.Accept != (cos > .01) {
			t.Fatalf("cos %v: %+v", cos, v)
		}
	})
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
