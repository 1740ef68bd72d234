package price_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"star/modes"
	"star/modes/price"
)

// lessons of a world where every plan costs what it is priced, but rings half as much again.
func lessons(t *testing.T, scenes int) (ls []price.Lesson) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	for range scenes {
		n := 2 + rng.IntN(7)
		f := price.Forecast{Batch: 32, Noise: math.Exp(8 * rng.Float64()), Phase: rng.Float64()}
		for range n {
			f.Times = append(f.Times, time.Duration((100+900*rng.Float64())*float64(time.Millisecond)))
		}
		cs, err := price.Candidates(f)
		if err != nil {
			t.Fatal(err)
		}
		ssgd, err := price.Of(modes.SSGD(n), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if c.Kind == price.KindSSGD || c.Plan.Shares != nil {
				continue
			}
			r := c.Cost.Seconds() / ssgd.Cost.Seconds()
			if c.Kind == price.KindRing {
				r *= 1.5
			}
			ls = append(ls, price.Lesson{Forecast: f, Plan: c.Plan, Ratio: r})
		}
	}
	return ls
}

// What is learned is what was taught, where it was taught; elsewhere the price decides.
func TestLearned(t *testing.T) {
	d, err := price.Learn(lessons(t, 120), 0.1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	if d, err = price.ParseLearned(text); err != nil {
		t.Fatal(err)
	}
	f := price.Forecast{Batch: 32, Noise: 300}
	for _, ms := range []int{210, 220, 230, 240, 750} {
		f.Times = append(f.Times, time.Duration(ms)*time.Millisecond)
	}
	equal := func(c price.Candidate) bool { return c.Plan.Shares == nil }
	best, ratio, why, err := d.Choose(f, equal)
	if err != nil || why != "" || best.Kind == price.KindRing {
		t.Errorf("chose %v, although rings cost more (%q, %v)", best.Plan, why, err)
	}
	c, err := price.Of(best.Plan, f)
	s, err2 := price.Of(modes.SSGD(5), f)
	if want := c.Cost.Seconds() / s.Cost.Seconds(); err != nil || err2 != nil || math.Abs(ratio/want-1) > .1 {
		t.Errorf("%v: expects %.3f of ssgd, taught was %.3f", best.Plan, ratio, want)
	}
	e, err := d.Decide(f)
	if err != nil || !strings.HasPrefix(e.Why, "learned: ") {
		t.Errorf("%+v, %v", e, err)
	}
	if _, _, why, err := d.Choose(price.Forecast{Times: f.Times[:1], Batch: 32, Noise: 300}, nil); err != nil || !strings.HasSuffix(why, "is outside what was learned from") {
		t.Errorf("below what was learned from: %q, %v", why, err)
	}
	f.Noise = 1e9
	out, err := d.Decide(f)
	in, err2 := price.Cheapest{}.Decide(f)
	if err != nil || err2 != nil || !out.Plan.Equal(in.Plan) || out.Cost != in.Cost || !strings.HasPrefix(out.Why, "the noise scale is outside what was learned from: ") {
		t.Errorf("outside: %+v, cheapest %+v", out, in)
	}
}

// Lessons of whole runs are of every phase, lessons of some phases of these.
func TestLearnedPhase(t *testing.T) {
	ls := lessons(t, 120)
	f := price.Forecast{Batch: 32, Noise: 300, Phase: 0.9}
	for _, ms := range []int{210, 220, 230, 240, 750} {
		f.Times = append(f.Times, time.Duration(ms)*time.Millisecond)
	}
	for most, want := range map[float64]string{0: "", 0.5: "the phase is outside what was learned from", 1: ""} {
		some := slices.Clone(ls)
		for i := range some {
			some[i].Forecast.Phase *= most
		}
		d, err := price.Learn(some, 0.1)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, why, err := d.Choose(f, nil); err != nil || why != want {
			t.Errorf("phases up to %v: %q, %v; want %q", most, why, err, want)
		}
	}
}

func TestLearnRefuses(t *testing.T) {
	ls := lessons(t, 20)
	if _, err := price.Learn(nil, 1); err == nil {
		t.Error("learned from nothing")
	}
	if _, err := price.Learn(ls[:30], 1); err == nil {
		t.Error("learned from too little")
	}
	for _, ridge := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := price.Learn(ls, ridge); err == nil {
			t.Errorf("ridge %v", ridge)
		}
	}
	for _, r := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		ls[3].Ratio = r
		if _, err := price.Learn(ls, 1); err == nil {
			t.Errorf("a ratio of %v", r)
		}
	}
}

// Any changed byte is noticed.
func TestDamagedDecider(t *testing.T) {
	d, err := price.Learn(lessons(t, 30), 1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(text) - 1 { // the last is the end of the line
		for _, bad := range [][]byte{text[:i], append(append(bytes.Clone(text[:i]), text[i]^1), text[i+1:]...)} {
			if got, err := price.ParseLearned(bad); !errors.Is(err, price.ErrLearned) && got != nil {
				t.Fatalf("damaged at byte %d of %d: %v", i, len(text), err)
			}
		}
	}
}

// What the learned decider says is of jobs without momentum: the strain comes on top.
func TestLearnedUnderStrain(t *testing.T) {
	d := &price.Learned{Weights: make([]float64, 21), Mean: make([]float64, 20), Scale: make([]float64, 20), Low: make([]float64, 20), High: make([]float64, 20)}
	for i := range 20 {
		d.Scale[i], d.Low[i], d.High[i] = 1, -1e9, 1e9
	}
	d.Weights[0] = 1 // the price
	f := price.Forecast{Times: []time.Duration{6e8, 6.1e8, 6.2e8, 3e9}, Batch: 32, Noise: 1e4}
	free, ratio, why, err := d.Choose(f, nil)
	if err != nil || why != "" {
		t.Fatal(err, why)
	}
	f.Steepness = 30
	steep, dearer, _, err := d.Choose(f, nil)
	if err != nil || steep.Samples <= free.Samples || dearer <= ratio {
		t.Errorf("%v at %.3f of SSGD without momentum, %v at %.3f with it: %v", free.Plan, ratio, steep.Plan, dearer, err)
	}
}
