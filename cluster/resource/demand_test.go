package resource

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func near(a, b, by float64) bool { return math.Abs(a-b) <= by*math.Max(math.Abs(a), math.Abs(b)) }

func TestScale(t *testing.T) {
	e := Usage{8, 80, 800}
	for _, c := range []struct {
		rate, ssgd, asgd, want float64
	}{{8, 1, 8, 8}, {1, 1, 8, 0}, {4.5, 1, 8, 4}, {0.5, 1, 8, 0}, {3, 2, 2, 0}, {9, 1, 5, 16}} {
		if got := scaled(e, c.rate, c.ssgd, c.asgd); !near(got.CPU, c.want, 1e-12) || !near(got.NetOut, 100*c.want, 1e-12) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A gradient of 4 MB in, parameters of 4 MB out: 8 workers, one round a second.
func TestBytesDemand(t *testing.T) {
	d := Bytes{Gradient: 4e6, Params: 4e6, Receive: 1e9, Apply: 4e9}.Demand()
	if got, want := d.At(Load{1, 8}), (Usage{8*8e-3 + 1e-3, 32e6, 32e6}); !near(got.CPU, want.CPU, 1e-12) || got.NetIn != want.NetIn || got.NetOut != want.NetOut {
		t.Errorf("%v, want %v", got, want)
	}
	// Compressed on the way in: half of a round's 12 gradients.
	if got := (Bytes{Gradient: 1e6, Params: 4e6}).Demand().Extra(Load{12, 12}, Load{1, 8}); got.NetIn != 4e6 || got.NetOut != 16e6 {
		t.Errorf("%v", got)
	}
}

// Whatever a job's true demand is, it is found from noisy measurements of three modes, a tenth of them outliers, also
// when the prior is far off.
func TestLearnerFinds(t *testing.T) {
	// a tenth of what is measured is wrong by up to 20 times: now and then too much of it in one mode
	const draws, most = 1000, 5
	missed := 0
	for seed := range uint64(draws) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		truth := Demand{Base: Usage{0.1, 1e5, 1e5}, PerUpdate: Usage{rnd.Float64() * 0.05, 0, 0}, PerGradient: Usage{rnd.Float64() * 0.05, 4e6, 4e6}}
		off := math.Exp2(rnd.Float64()*6 - 3)
		prior := Bytes{Gradient: 4e6, Params: 4e6, Receive: 8e6 / 0.02 / off}.Demand()
		l, err := NewLearner(prior, 8)
		if err != nil {
			t.Fatal(err)
		}
		loads := []Load{{5, 40}, {20, 45}, {60, 60}}
		for range 40 {
			for _, at := range loads {
				k := 1 + 0.03*rnd.NormFloat64()
				at.Updates, at.Gradients = at.Updates*k, at.Gradients*k
				u := truth.At(at).Times(1 + 0.03*rnd.NormFloat64())
				if rnd.IntN(10) == 0 {
					u = u.Times(20 * rnd.Float64())
				}
				if !l.Observe(at, u) {
					t.Fatal("not taken")
				}
			}
		}
		d := l.Demand()
		for _, at := range append(loads, Load{10, 42}, Load{30, 50}) {
			got, want := d.At(at), truth.At(at)
			if !near(got.CPU, want.CPU, 0.12) || !near(got.NetIn, want.NetIn, 0.08) {
				if missed++; missed > most {
					t.Fatalf("at %+v: %v, want %v (prior off by %v); one of %d draws of which at most %d may miss", at, got, want, off, draws, most)
				}
				break
			}
		}
	}
}

// From SSGD alone the level of this host is learned, and the prior's shape is kept.
func TestLearnerScalesPrior(t *testing.T) {
	prior := Demand{Base: Usage{CPU: 0.1}, PerGradient: Usage{0.01, 1e6, 1e6}}
	l, _ := NewLearner(prior, 4)
	ssgd, asgd := Load{10, 40}, Load{60, 60}
	for range 20 {
		l.Observe(ssgd, Usage{3 * 0.5, 40e6, 40e6})
	}
	d := l.Demand()
	if got := d.Extra(asgd, ssgd); !near(got.CPU, 3*0.2, 0.05) || !near(got.NetIn, 20e6, 0.02) {
		t.Errorf("%v from %+v", got, d)
	}
}

// What is forgotten, and what is not: an hour of one mode leaves the others known; a host that became slower is
// believed after 16 of the 31 measurements of a mode.
func TestLearnerForgets(t *testing.T) {
	l, _ := NewLearner(Demand{PerGradient: Usage{0.01, 1e6, 1e6}}, 4)
	ssgd, asgd := Load{10, 40}, Load{60, 60}
	for range 31 {
		l.Observe(asgd, Usage{5, 60e6, 60e6})
	}
	for range 3600 {
		l.Observe(ssgd, Usage{0.4, 40e6, 40e6})
	}
	if got := l.Demand().At(asgd).CPU; !near(got, 5, 0.1) {
		t.Errorf("asgd takes %v after an hour of ssgd", got)
	}
	for range 15 {
		l.Observe(asgd, Usage{8, 60e6, 60e6})
	}
	if got := l.Demand().At(asgd).CPU; !near(got, 5, 0.1) {
		t.Errorf("%v after 15", got)
	}
	l.Observe(asgd, Usage{8, 60e6, 60e6})
	if got := l.Demand().At(asgd).CPU; !near(got, 8, 0.1) {
		t.Errorf("%v after 16", got)
	}
}

// Whatever is measured, nothing is negative or infinite, and the memory is bounded.
func TestLearnerBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, _ := NewLearner(Demand{PerGradient: Usage{0.01, 0, 1e6}}, rapid.IntRange(1, 16).Draw(t, "workers"))
		f := rapid.Float64Range(-1, 1e12)
		for range rapid.IntRange(0, 40).Draw(t, "loads") {
			load, use := Load{f.Draw(t, "u"), f.Draw(t, "g")}, Usage{f.Draw(t, "cpu"), f.Draw(t, "in"), f.Draw(t, "out")}
			for range rapid.IntRange(1, 8).Draw(t, "times") {
				l.Observe(load, use)
			}
		}
		if len(l.cells) > mostCell {
			t.Fatalf("%d loads are kept", len(l.cells))
		}
		d := l.Demand()
		for _, u := range []Usage{d.Base, d.PerUpdate, d.PerGradient} {
			if err := u.check("learned", false); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestLearnerRefuses(t *testing.T) {
	nan := math.NaN()
	if _, err := NewLearner(Demand{}, 0); err == nil {
		t.Error("a job of nobody")
	}
	if _, err := NewLearner(Demand{PerUpdate: Usage{CPU: nan}}, 1); err == nil || !strings.Contains(err.Error(), "slope by updates: CPU") {
		t.Error(err)
	}
	l, _ := NewLearner(Demand{}, 2)
	for _, c := range []measure{{Load{0, 1}, Usage{}}, {Load{1, 0}, Usage{}}, {Load{nan, 1}, Usage{}}, {Load{1, math.Inf(1)}, Usage{}}, {Load{1, 1}, Usage{CPU: -1}}, {Load{1, 1}, Usage{NetIn: nan}}} {
		if l.Observe(c.load, c.use) {
			t.Errorf("%+v is taken", c)
		}
	}
	if l.seen != 0 || l.Demand() != (Demand{}) {
		t.Errorf("%d, %+v", l.seen, l.Demand())
	}
}

// A job that is delayed by 1 s in rounds of 1 s halves what it uses: each of its 4 workers frees an eighth, and it is
// as sensitive as one that is bound by the resource. A job with unchanged rounds is not sensitive at all.
func TestGiving(t *testing.T) {
	prior := Costs{Freed: Usage{1, 1, 1}, Sensitivity: Sensitivity{4, 4}}
	g, err := NewGiving(prior)
	if err != nil {
		t.Fatal(err)
	}
	if g.Costs() != prior {
		t.Errorf("%+v", g.Costs())
	}
	r := Response{Workers: 4, Delay: time.Second, Before: Usage{2, 400, 200}, After: Usage{1, 200, 100}, RoundBefore: time.Second, RoundAfter: 2 * time.Second}
	for range remember {
		if err := g.Observe(r); err != nil {
			t.Fatal(err)
		}
	}
	const n = remember / (remember + trust)
	c := g.Costs()
	if !near(c.Freed.CPU, n*0.25+(1-n), 1e-9) || !near(c.Freed.NetIn, n*50+(1-n), 1e-9) || !near(c.Freed.NetOut, n*25+(1-n), 1e-9) {
		t.Errorf("%+v", c)
	}
	if e := math.Log(c.Sensitivity.CPU) / math.Log(32); !near(e, n+(1-n)*math.Log(4)/math.Log(32), 1e-9) {
		t.Errorf("e = %v", e)
	}
	for _, x := range []struct {
		name string
		r    Response
		low  float64 // bounds of the sensitivity of the processor
		high float64
	}{
		{"not slower", Response{Workers: 1, Delay: time.Second, Before: Usage{CPU: 2}, After: Usage{CPU: 1}, RoundBefore: time.Second, RoundAfter: time.Second}, 0.9, 1.5},
		{"slower for nothing", Response{Workers: 1, Delay: time.Second, Before: Usage{CPU: 2}, After: Usage{CPU: 2}, RoundBefore: time.Second, RoundAfter: 2 * time.Second}, 400, 1024},
		{"all gone", Response{Workers: 1, Delay: time.Second, Before: Usage{CPU: 2}, RoundBefore: time.Second, RoundAfter: 2 * time.Second}, 0.9, 1.5},
	} {
		g, _ := NewGiving(prior)
		for range 100 {
			if err := g.Observe(x.r); err != nil {
				t.Fatal(err)
			}
		}
		if s := g.Costs().Sensitivity; s.CPU < x.low || s.CPU > x.high || s.Net != 4 && !near(s.Net, 4, 1e-9) {
			t.Errorf("%s: %+v", x.name, s)
		}
	}
	for _, bad := range []Response{{}, {Workers: 1, Delay: 1, RoundBefore: 1}, {Workers: 1, RoundBefore: 1, RoundAfter: 1}, {Workers: 1, Delay: 1, RoundBefore: 1, RoundAfter: 1, Before: Usage{CPU: -1}}} {
		if g.Observe(bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := NewGiving(Costs{}); err == nil {
		t.Error("no sensitivity")
	}
}

// scaled is what a mode with a rate of updates costs beyond SSGD, where extra is what ASGD costs beyond it:
//
//	extra_x = extra_1·(f_x − f_N)/(f_1 − f_N)
//
// with the rates of updates f of the mode, of SSGD and of ASGD; nothing for a mode that is not faster than SSGD. It is
// what a Demand says that has all in PerUpdate.
func scaled(extra Usage, rate, ssgd, asgd float64) Usage {
	if asgd <= ssgd || rate <= ssgd {
		return Usage{}
	}
	return extra.Times((rate - ssgd) / (asgd - ssgd))
}
