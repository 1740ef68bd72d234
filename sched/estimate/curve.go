package estimate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Segment is a part of a job's run with a constant number of workers.
type Segment struct {
	Workers          int
	Seconds, Samples float64
}

// Rate is a job's speed on a number of workers.
type Rate struct {
	Workers  int
	Mean     float64 // samples/s
	Sigma    float64 // standard deviation of Mean, samples/s
	Measured float64 // measured time, s; 0: derived from other numbers of workers
}

// Assumptions where there are too few measurements.
const (
	// singleSigma is the relative standard deviation of a rate measured by one segment if no other rate shows the
	// scatter.
	singleSigma = .1

	// slopeSigma is the standard deviation of what one more worker adds to the time of a round of all workers, as a
	// fraction of that time. If only 8 workers were measured, 16 are taken to be 1.5 to 2.7 times as fast (two standard
	// deviations either way). Our own choice.
	slopeSigma = .05
)

// Curve returns a job's speed on 1 to most workers, from what was observed. Measured rates stay as they are: all
// samples divided by all seconds, with the error of such a ratio. The others follow from the time of a round, in which
// each of n workers computes a sample: n/rate(n) = a + b·(n−1), a line through the measured ones, weighted by their
// errors, with b at least 0, and about 0 as far as measurements do not determine it (slopeSigma). Because it may not be
// a line, the error grows with the distance to the nearest measured number, by slopeSigma for each of the n workers.
func Curve(segments []Segment, most int) ([]Rate, error) {
	if most < 1 {
		return nil, fmt.Errorf("a curve for %d workers: want 1 or more", most)
	}
	by := map[int][]Segment{}
	for _, s := range segments {
		if s.Workers < 1 || !(s.Seconds > 0) || !(s.Samples >= 0) || math.IsInf(s.Seconds, 1) || math.IsInf(s.Samples, 1) {
			return nil, fmt.Errorf("a segment of %v samples in %v s on %d workers: want finite numbers above 0", s.Samples, s.Seconds, s.Workers)
		}
		by[s.Workers] = append(by[s.Workers], s)
	}
	seen := map[int]Rate{}
	relative, many := 0., 0.
	for _, n := range slices.Sorted(maps.Keys(by)) { // fixed order: float sums depend on it in the last digit
		r := ratio(n, by[n])
		if r.Mean == 0 {
			continue // it made no samples
		}
		if seen[n] = r; !math.IsNaN(r.Sigma) {
			relative, many = relative+r.Sigma/r.Mean*math.Sqrt(r.Measured), many+1
		}
	}
	if len(seen) == 0 {
		return nil, errors.New("no samples were computed: a curve needs a run that has trained for a while")
	}
	for n, r := range seen {
		if math.IsNaN(r.Sigma) {
			if r.Sigma = singleSigma * r.Mean; many > 0 {
				r.Sigma = min(r.Sigma, relative/many/math.Sqrt(r.Measured)*r.Mean)
			}
			seen[n] = r
		}
	}
	l := fit(seen)
	curve := make([]Rate, most)
	for i := range curve {
		if r, ok := seen[i+1]; ok {
			curve[i] = r
		} else {
			gap := most
			for n := range seen {
				gap = min(gap, max(n-i-1, i+1-n))
			}
			curve[i] = l.rate(i + 1)
			curve[i].Sigma = math.Hypot(curve[i].Sigma, slopeSigma*curve[i].Mean*float64(gap)/float64(i+1))
		}
	}
	return curve, nil
}

// ratio returns a rate with its standard error from the scatter of segments, NaN if there is only one.
func ratio(n int, of []Segment) Rate {
	r := Rate{Workers: n, Sigma: math.NaN()}
	samples := 0.
	for _, s := range of {
		r.Measured, samples = r.Measured+s.Seconds, samples+s.Samples
	}
	r.Mean = samples / r.Measured
	squares, k := 0., float64(len(of))
	for _, s := range of {
		d := s.Samples - r.Mean*s.Seconds
		squares += d * d
	}
	if k > 1 {
		r.Sigma = math.Sqrt(squares*k/(k-1)) / r.Measured
	}
	return r
}

// line is a + b·(n−1) with the covariance of a and b.
type line struct{ a, b, aa, ab, bb float64 }

// fit returns the line through the times of rounds, with slopeSigma as a prior of b.
func fit(seen map[int]Rate) line {
	var w, wx, wy, wxx, wxy float64
	for _, n := range slices.Sorted(maps.Keys(seen)) {
		r := seen[n]
		x, y := float64(n-1), float64(n)/r.Mean
		v := math.Pow(max(r.Sigma/r.Mean, 1e-6)*y, -2)
		w, wx, wy, wxx, wxy = w+v, wx+v*x, wy+v*y, wxx+v*x*x, wxy+v*x*y
	}
	wxx += math.Pow(slopeSigma*wy/w, -2)
	d := w*wxx - wx*wx
	l := line{(wxx*wy - wx*wxy) / d, (w*wxy - wx*wy) / d, wxx / d, -wx / d, w / d}
	if l.b < 0 {
		l.a, l.b = wy/w, 0
	}
	return l
}

func (l line) rate(n int) Rate {
	x := float64(n - 1)
	y := l.a + l.b*x
	s := math.Sqrt(l.aa + 2*x*l.ab + x*x*l.bb)
	return Rate{Workers: n, Mean: float64(n) / y, Sigma: float64(n) / (y * y) * s}
}
