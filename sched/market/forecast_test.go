package market

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// What becomes of jobs by hand.
func TestSpotRun(t *testing.T) {
	s := time.Second
	j := Spot{Samples: 1000, Rates: []float64{10, 20, 25}}
	for _, c := range []struct {
		name string
		job  Spot
		of   Revocations
		want Outcome
	}{
		{"nobody is taken away", j, Revocations{File: "x"}, Outcome{40 * s, 120 * s, 0, 0}},
		{"machines start", Spot{1000, j.Rates, []time.Duration{5 * s}, 0}, Revocations{File: "x"}, Outcome{40 * s, 135 * s, 0, 0}},
		// 250 in 10 s, and 750 on two.
		{"one goes", j, Revocations{File: "x", Trace: []Revocation{{10 * s, 1, -1}}, Replace: -1}, Outcome{47*s + s/2, 105 * s, 1, 0}},
		// It works for 2 s more: 300, and 700 on two.
		{"it works on", Spot{1000, j.Rates, nil, 2 * s}, Revocations{File: "x", Trace: []Revocation{{10 * s, 1, -1}}, Replace: -1, Notice: 30 * s}, Outcome{47 * s, 106 * s, 1, 0}},
		{"it may not", Spot{1000, j.Rates, nil, 2 * s}, Revocations{File: "x", Trace: []Revocation{{10 * s, 1, -1}}, Replace: -1}, Outcome{47*s + s/2, 105 * s, 1, 0}},
		// 250, ten seconds of 20 until another one takes part, which runs for five of them, and 550 on three.
		{"it is replaced", Spot{1000, j.Rates, []time.Duration{5 * s}, 0}, Revocations{File: "x", Trace: []Revocation{{10 * s, 1, -1}}, Replace: 5 * s}, Outcome{42 * s, (15 + 84 + 37) * s, 1, 1}},
		{"too late", j, Revocations{File: "x", Trace: []Revocation{{10 * s, 1, 1000 * s}}, Replace: 5 * s}, Outcome{47*s + s/2, 105 * s, 1, 0}},
		// Ten seconds without a worker.
		{"all go", Spot{1000, []float64{10}, nil, 0}, Revocations{File: "x", Trace: []Revocation{{10 * s, 0, 20 * s}}}, Outcome{110 * s, 100 * s, 1, 1}},
		{"for ever", Spot{1000, []float64{10}, nil, 0}, Revocations{File: "x", Trace: []Revocation{{10 * s, 0, -1}}, Replace: -1}, Outcome{NoEnd, NoEnd, 1, 0}},
		{"before it takes part", Spot{1000, []float64{10}, []time.Duration{10 * s}, 0}, Revocations{File: "x", Trace: []Revocation{{10 * s, 0, 20 * s}, {25 * s, 0, 30 * s}}}, Outcome{130 * s, (10 + 10 + 5 + 100) * s, 2, 2}},
	} {
		if got := c.job.Run(&c.of); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// One worker that is taken away at a rate takes, for W hours of work, W + K·d, K of Poisson with the mean λW: the mean
// and the deviation of many runs are those.
func TestSpotMean(t *testing.T) {
	const work, rate, d, runs = 2., 3., .25, 4000
	j := Spot{Samples: work * 3600, Rates: []float64{1}}
	var sum, squares float64
	for seed := range uint64(runs) {
		h := j.Run(&Revocations{Rate: rate, Seed: seed, Replace: 15 * time.Minute, Clock: 1}).Took.Hours()
		sum, squares = sum+h, squares+h*h
	}
	mean := sum / runs
	deviation := math.Sqrt(squares/runs - mean*mean)
	if want, sigma := work+rate*work*d, d*math.Sqrt(rate*work); math.Abs(mean-want) > 4*sigma/math.Sqrt(runs) || math.Abs(deviation/sigma-1) > .05 {
		t.Errorf("took %.3f ± %.3f h, want %.3f ± %.3f", mean, deviation, want, sigma)
	}
}

// Machines take as long to start as one of those that were seen, each of them as often.
func TestSpotStarts(t *testing.T) {
	const runs = 2000
	j := Spot{Samples: 100, Rates: []float64{1}, Start: []time.Duration{0, 10 * time.Second, 50 * time.Second}}
	sum := 0.
	for seed := range uint64(runs) { // the machine is gone at 60 s, and another one takes over
		sum += j.Run(&Revocations{Seed: seed, File: "x", Trace: []Revocation{{At: time.Minute}}}).Took.Seconds() - 100
	}
	if mean := sum / runs; math.Abs(mean-20) > 2 { // the deviation is 21.6 s: four standard errors
		t.Errorf("starts take %.1f s on average, want 20", mean)
	}
	sums := map[time.Duration]bool{} // of two starts of the same worker, each drawn for itself
	for seed := range uint64(200) {
		sums[j.Run(&Revocations{Seed: seed, File: "x", Trace: []Revocation{{At: 10 * time.Second}, {At: 80 * time.Second}}}).Took] = true
	}
	if len(sums) != 6 {
		t.Errorf("two starts take %d different times together, want 6: 0, 10, 20, 50, 60 and 100 s", len(sums))
	}
}

func TestQuantiles(t *testing.T) {
	if got := fmt.Sprint(Quantiles([]float64{3, 1, 2, math.Inf(1)}, 0, .5, 1./3, 1)); got != "[1 2.5 2 +Inf]" {
		t.Error(got)
	}
}
