package estimate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A job with rounds that grow by the line is found again, also on numbers of workers that were not seen.
func TestCurve(t *testing.T) {
	truth := func(n int) float64 { return float64(n) / (.01 + .002*float64(n-1)) }
	var seen []Segment
	for _, n := range []int{1, 4, 8} {
		for _, s := range []float64{1, 2, 3} {
			seen = append(seen, Segment{n, s, s * truth(n)})
		}
	}
	curve, err := Curve(seen, 12)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 12; n++ {
		r := curve[n-1]
		if r.Workers != n || math.Abs(r.Mean/truth(n)-1) > .001 || (r.Measured == 6) != (n == 1 || n == 4 || n == 8) {
			t.Errorf("%d workers: %+v, want %.1f samples/s", n, r, truth(n))
		}
	}
	// Of one number of workers the others are in proportion, the less sure the farther away.
	curve, err = Curve([]Segment{{4, 1, 100}, {4, 1, 102}, {4, 1, 98}}, 8)
	if err != nil || math.Abs(curve[1].Mean-50) > .1 || math.Abs(curve[7].Mean-200) > .1 || !(curve[3].Sigma/100 < curve[1].Sigma/50) || !(curve[3].Sigma/100 < curve[7].Sigma/200) {
		t.Errorf("%+v, %v", curve, err)
	}
	// By hand: the mean is 300/3, what segments are off by is 0, 2 and −2: √(8·3/2)/3.
	if got, want := curve[3].Sigma, math.Sqrt(12)/3; math.Abs(got-want) > 1e-12 {
		t.Errorf("the standard error is %v, want %v", got, want)
	}
	// One segment does not say how rates scatter: by a tenth, or as the others do, if that is less.
	for _, c := range []struct {
		others []Segment
		want   float64
	}{{nil, 10}, {[]Segment{{2, 2, 300}, {2, 2, 100}}, 10}, {[]Segment{{4, 1, 100}, {4, 1, 102}, {4, 1, 98}}, math.Sqrt2}} { // √(12)/3 in 3 s is 2 in one, √2 in two
		curve, err := Curve(append(c.others, Segment{1, 2, 200}), 4)
		if err != nil || math.Abs(curve[0].Sigma-c.want) > 1e-9 {
			t.Errorf("beside %v: %+v, %v, want a standard error of %v", c.others, curve, err, c.want)
		}
	}
	// Of numbers between two that were measured, the error is that of the nearest one; rounds that get shorter with more
	// workers are taken for even ones.
	exact := func(n int, rate float64) []Segment { return []Segment{{n, 1, rate}, {n, 1, rate}} }
	curve, err = Curve(append(exact(1, 100), exact(8, 800)...), 8)
	for n, gap := range map[int]float64{2: 1, 5: 3, 7: 1} {
		if got, want := curve[n-1].Sigma/curve[n-1].Mean, slopeSigma*gap/float64(n); err != nil || math.Abs(got-want) > .1*want {
			t.Errorf("on %d workers the relative error is %v, want about %v (%v)", n, got, want, err)
		}
	}
	curve, err = Curve(append(exact(1, 100), exact(2, 300)...), 4)
	if err != nil || math.Abs(curve[3].Mean/4-curve[2].Mean/3) > 1e-9 {
		t.Errorf("rounds of three and four workers are %+v, %v; want even ones", curve[2:], err)
	}
	for _, bad := range [][]Segment{nil, {{0, 1, 1}}, {{1, 0, 1}}, {{1, 1, -1}}, {{1, 1, math.NaN()}}, {{1, math.Inf(1), 1}}, {{2, 1, 0}}} {
		if c, err := Curve(bad, 2); err == nil {
			t.Errorf("%v: %v, want an error", bad, c)
		}
	}
}

// The same segments make the same curve, to the last digit.
func TestCurveIsOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var seen []Segment
	for n := range 9 {
		for range 3 {
			seen = append(seen, Segment{n + 1, 1 + r.Float64(), 100 * r.Float64()})
		}
	}
	first, err := Curve(seen, 12)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if c, _ := Curve(seen, 12); !slices.Equal(c, first) {
			t.Fatalf("%v, then %v", first, c)
		}
	}
}

// Nine of ten intervals of 1.645 standard deviations have the truth in them, for rates that were measured; of those
// that follow from others it may be more, since a line is not all that a curve can be.
func TestCurveIsAsSureAsItSays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var within, all [2]float64
	for range 400 {
		a, b := .01*(1+r.Float64()), .05*.01*math.Abs(r.NormFloat64())
		truth := func(n int) float64 { return float64(n) / (a + b*float64(n-1)) }
		var seen []Segment
		for _, n := range []int{2, 3, 6} {
			for range 12 {
				seen = append(seen, Segment{n, 2, 2 * truth(n) * (1 + .1*r.NormFloat64())})
			}
		}
		curve, err := Curve(seen, 8)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range curve {
			kind := 0
			if c.Measured == 0 {
				kind = 1
			}
			all[kind]++
			if math.Abs(c.Mean-truth(c.Workers)) <= 1.645*c.Sigma {
				within[kind]++
			}
		}
	}
	for kind, name := range []string{"measured", "others"} {
		t.Logf("%s: %.3f of the intervals have the truth in them", name, within[kind]/all[kind])
		if share := within[kind] / all[kind]; share < .83 || kind == 0 && share > .95 {
			t.Errorf("%s: %.3f of the intervals have the truth in them, want about .9", name, share)
		}
	}
}
