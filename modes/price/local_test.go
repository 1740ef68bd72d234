package price

import (
	"math"
	"strings"
	"testing"
	"time"

	"star/modes"
)

// slowLinks is a forecast of n workers with iterations of 100 ms; exchange is the part of it that the exchange takes.
func slowLinks(n int, exchange float64) (Forecast, History) {
	f := Forecast{Batch: 16, Noise: 100, Local: 16}
	h := make(History, n)
	for w := range n {
		f.Times = append(f.Times, 100*time.Millisecond)
		f.Fits = append(f.Fits, Fit{Fixed: 0.1 * exchange, PerSample: 0.1 * (1 - exchange) / 16})
		h[w] = []time.Duration{100 * time.Millisecond}
	}
	return f, h
}

// By hand: 8 steps of 10 ms and one exchange of 90 ms are 8 rounds of samples in 170 ms, which make together(8) of the
// progress that 8 rounds of SSGD make in 800 ms.
func TestPriceOfLocalSteps(t *testing.T) {
	f, h := slowLinks(8, 0.9)
	plan := modes.SSGD(8)
	plan.Local = 8
	for name, price := range map[string]func(p modes.Plan) (Candidate, error){
		"steady": func(p modes.Plan) (Candidate, error) { return Of(p, f) },
		"seen":   func(p modes.Plan) (Candidate, error) { return Over(p, h, f) },
	} {
		k, err := price(plan)
		if err != nil {
			t.Fatal(err)
		}
		home, err := price(modes.SSGD(8))
		if err != nil {
			t.Fatal(err)
		}
		left := 1 - localRate*localRate/4*3.5*7 // φ counts as B, 128 samples
		if want := 170. / 800 / left; math.Abs(k.Cost.Seconds()/home.Cost.Seconds()-want) > 1e-6 {
			t.Errorf("%s: local steps cost %.6f of SSGD, want %.6f", name, k.Cost.Seconds()/home.Cost.Seconds(), want)
		}
		if math.Abs(k.Rate()-8*8*16/0.170) > 0.01 || k.Kind != KindLocal || k.Staleness != 0 {
			t.Errorf("%s: %v at %v samples a second with staleness %v", name, k.Kind, k.Rate(), k.Staleness)
		}
	}
}

// Local steps are candidates where the exchange is measured and most of an iteration, and nowhere else. The more
// workers, the further they drift apart, and the fewer steps they make: also where φ was not measured.
func TestLocalStepsWhereExchangesDominate(t *testing.T) {
	best := func(workers int, exchange, noise float64, measured bool) Candidate {
		f, _ := slowLinks(workers, exchange)
		f.Noise = noise
		if !measured {
			f.Fits = nil
		}
		cs, err := Candidates(f)
		if err != nil {
			t.Fatal(err)
		}
		return cs[0]
	}
	for workers, steps := range map[int]int{2: 16, 4: 8, 8: 4, 24: 2, 64: 0} {
		for _, noise := range []float64{0, 16} {
			if k := best(workers, 0.9, noise, true); k.Plan.Local != steps {
				t.Errorf("%d workers, an exchange of 0.9 of an iteration, φ = %v: %v, want %d local steps", workers, noise, k.Plan, steps)
			}
		}
	}
	if k := best(8, 0.45, 100, true); k.Kind != KindSSGD {
		t.Errorf("an exchange of 0.45 of an iteration: %v", k.Plan)
	}
	if k := best(8, 0.9, 100, false); k.Kind != KindSSGD {
		t.Errorf("an exchange that nobody has measured: %v", k.Plan)
	}
}

// What drives workers apart is the noise of gradients as they are, also where directions are less noisy because each
// worker has a velocity.
func TestLocalStepsOfVelocities(t *testing.T) {
	f, h := slowLinks(8, 0.9)
	f.Rate, f.Velocities, f.Noise = VelocityRate, 0.9, 200
	plan := modes.SSGD(8)
	plan.Local = 4
	k, err := Over(plan, h, f)
	if err != nil {
		t.Fatal(err)
	}
	home, err := Over(modes.SSGD(8), h, f)
	if err != nil {
		t.Fatal(err)
	}
	v := localRate / (1 + 200./128)
	left := 1 - v*v*1.5*(200./16)*(7./8)
	if want := 130. / 400 / left; math.Abs(k.Cost.Seconds()/home.Cost.Seconds()-want) > 1e-6 {
		t.Errorf("local steps cost %.6f of SSGD, want %.6f", k.Cost.Seconds()/home.Cost.Seconds(), want)
	}
}

// By hand: of four workers one takes 30 ms for a step and the others 10; the exchange takes a second. An outer step of
// 16 local steps by speed has 3·16 + 5 steps in 1.16 s, and 1/(1 + γ) of their worth.
func TestPriceOfOuterSteps(t *testing.T) {
	f := Forecast{Batch: 16, Noise: 100, Local: 16, Outer: 64}
	h := make(History, 4)
	for w := range 4 {
		compute := 0.01
		if w == 3 {
			compute = 0.03
		}
		f.Times = append(f.Times, Seconds(1+compute))
		f.Fits = append(f.Fits, Fit{Fixed: 1, PerSample: compute / 16})
		h[w] = []time.Duration{f.Times[w]}
	}
	plan := modes.SSGD(4)
	plan.Local, plan.Outer, plan.StepsBySpeed = 16, OuterRule, true
	for name, price := range map[string]func(p modes.Plan) (Candidate, error){
		"steady": func(p modes.Plan) (Candidate, error) { return Of(p, f) },
		"seen":   func(p modes.Plan) (Candidate, error) { return Over(p, h, f) },
	} {
		k, err := price(plan)
		if err != nil {
			t.Fatal(err)
		}
		home, err := price(modes.SSGD(4))
		if err != nil {
			t.Fatal(err)
		}
		// With steps of 53/16 workers the noise of an update is larger, too, which the price of SSGD has at 4.
		own, e := 53./16*16, PriorRate
		y := 100. / 64
		kept := (1 - e/(1+y)*(own+100)/128) / (1 - e/2)
		gamma := outerRate * outerRate / (1 + y) / (1 + y) * y * (53./4 - 1) / 2 * 3
		rate := 53 * 16 / 1.16 / (64 / 1.03)
		if want := (1 + gamma) / rate / kept; math.Abs(k.Cost.Seconds()/home.Cost.Seconds()-want) > 1e-6 {
			t.Errorf("%s: outer steps cost %.6f of SSGD, want %.6f", name, k.Cost.Seconds()/home.Cost.Seconds(), want)
		}
		if math.Abs(k.Rate()-53*16/1.16) > 0.01 || k.Kind != KindOuter || k.Staleness != 0 {
			t.Errorf("%s: %v at %v samples a second with staleness %v", name, k.Kind, k.Rate(), k.Staleness)
		}
	}
	// In fragments each of 2 steps travels while the next is made: an eighth of a second, in which the slow worker makes
	// one of 30 ms and the others two of 10.
	plan.Fragments = 8
	k, err := Of(plan, f)
	if err != nil || math.Abs(k.Rate()-(3*2+1)*16/0.125) > 0.01 || k.Kind != KindOuter {
		t.Errorf("with fragments: %v at %v samples a second, %v", k.Kind, k.Rate(), err)
	}
	cs, err := Candidates(f)
	if err != nil || cs[0].Kind != KindOuter || cs[0].Plan.Fragments > 0 || !cs[0].Plan.StepsBySpeed || cs[0].Plan.Local < 32 {
		t.Errorf("the cheapest is %v, %v", cs[0].Plan, err)
	}
	for _, k := range cs {
		if k.Plan.Outer != (modes.Outer{}) && k.Plan.Local > f.Outer {
			t.Errorf("%v has more steps than allowed", k.Plan)
		}
	}
	if why := f.Why(cs[0], cs[len(cs)-1].Cost); !strings.Contains(why, "up to") {
		t.Error(why)
	}
	f.Fragments = true
	if cs, err = Candidates(f); err != nil || cs[0].Plan.Fragments != fragments || cs[0].Plan.Validate(4) != nil {
		t.Errorf("the cheapest with fragments is %v, %v", cs[0].Plan, err)
	}
	// Where the exchange is nine tenths of an iteration, local steps are enough.
	f, _ = slowLinks(4, 0.9)
	f.Outer = 64
	if cs, err = Candidates(f); err != nil || cs[0].Kind != KindLocal {
		t.Errorf("an exchange of 0.9 of an iteration: %v, %v", cs[0].Plan, err)
	}
	f.Outer = -1
	if _, err := Candidates(f); err == nil || !strings.Contains(err.Error(), "local steps") {
		t.Error(err)
	}
}
