package price

import (
	"math"
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
