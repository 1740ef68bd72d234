package price

import (
	"fmt"
	"math"
	"slices"

	"star"
	"star/modes"
)

// Published is the choice of mode of the public artefact of STAR, for comparison, with repairs of the defects that
// stop it from running. Its interval of x-order is wrong and it ignores staleness; docs/theory.md has details. The
// fields are the values that the artefact computes for its choices.
type Published struct {
	Static  []float64 // T_x for x = 1..N, seconds
	X       int       // the first descent of T_x, as coded
	Best    float64   // T_X
	Least   int       // argmin of T_x
	Dynamic float64   // T of groups
	Groups  [][]star.Worker

	SSGD, ASGD float64 // of the first heuristic
	First      string  // ssgd or asgd, by the first heuristic
	Hybrid     int     // its number of synchronous workers; N where the artefact leaves 0
}

// wardDistance is the published threshold of clustering.
const wardDistance = 0.050 // seconds

// Publish makes the published choices for workers with batches of f.Batch and noise scale f.Noise at their total. It
// ignores shares, fits, staleness and links.
func Publish(f Forecast) (Published, error) {
	f.Shares, f.Fits = nil, nil
	p, err := f.problem()
	if err != nil {
		return Published{}, err
	}
	if len(p.gone) > 0 {
		return Published{}, fmt.Errorf("price: the published heuristic needs all workers, and worker %d has left", p.gone[0])
	}
	n, t := len(p.t), p.t
	updates := func(x int) float64 { return 1 + p.φ/(float64(x)*p.b) }
	// t_x is linear from t_1 = 1/Σ(1/τ) to t_N = τ_(N), by the position of τ_(x) between τ_(1) and τ_(N). With all
	// times equal that is 0/0: then it is t_1 for x < N.
	first := 1 / p.maxRate
	interval := func(x int) float64 {
		switch {
		case x == n:
			return t[n-1]
		case t[n-1] == t[0]:
			return first
		}
		return first + (t[n-1]-first)*(t[x-1]-t[0])/(t[n-1]-t[0])
	}
	r := Published{X: n, Hybrid: n}
	for x := 1; x <= n; x++ {
		r.Static = append(r.Static, interval(x)*updates(x))
	}
	r.Least = 1 + slices.Index(r.Static, slices.Min(r.Static))
	r.Best = r.Static[n-1]
	for x := 1; x < n; x++ { // the left side is always of t_1
		if at := first * updates(x); at < r.Static[x] {
			r.X, r.Best = x, at
			break
		}
	}
	sum, from := 0.0, 0
	for _, to := range ward(t, wardDistance) {
		sum += 1 / (updates(to-from) * t[to-1])
		r.Groups = append(r.Groups, slices.Clone(p.ws[from:to]))
		from = to
	}
	r.Dynamic = 1 / sum

	mean := 0.0
	for _, τ := range t {
		mean += τ / float64(n)
	}
	r.SSGD, r.ASGD, r.First = updates(n)*t[n-1], updates(max(n-1, 1))*mean, "asgd"
	if r.SSGD <= r.ASGD {
		r.First = "ssgd"
	}
	for x := 1; x < n; x++ {
		if updates(x)*t[x-1] < updates(x+1)*t[x] {
			r.Hybrid = x
			break
		}
	}
	return r, nil
}

// Decide implements [Decider]: dynamic groups where they are cheaper than static x-order, as the artefact intends.
func (Published) Decide(f Forecast) (Decision, error) {
	r, err := Publish(f)
	if err != nil {
		return Decision{}, err
	}
	n := len(f.Times)
	if f.Ring {
		d := Decision{Plan: modes.SSGD(n), Cost: Seconds(r.Static[n-1])}
		if r.Hybrid < n {
			p, _ := f.problem()
			d.Plan = modes.Ring(n, slices.Sorted(slices.Values(p.ws[r.Hybrid:]))...)
		}
		d.Why = fmt.Sprintf("published: %d synchronous workers", r.Hybrid)
		return d, nil
	}
	if r.Dynamic < r.Best {
		return Decision{Plan: modes.Grouped(r.Groups...), Cost: Seconds(r.Dynamic), Why: fmt.Sprintf("published: groups take %.3f of the time of x=%d", r.Dynamic/r.Best, r.X)}, nil
	}
	return Decision{Plan: modes.XOrder(n, r.X), Cost: Seconds(r.Best), Why: fmt.Sprintf("published: x=%d takes %.3f of the time of groups", r.X, r.Best/r.Dynamic)}, nil
}

// ward clusters ascending times, in any unit, and returns the ends of the clusters. It merges the two nearest until no
// distance is below the threshold; the distance of clusters a and b is Ward's, √(2·n_a·n_b/(n_a + n_b))·|mean_a −
// mean_b|. In one dimension the nearest clusters are always adjacent.
func ward(t []float64, threshold float64) []int {
	ends := make([]int, len(t))
	means := slices.Clone(t)
	for i := range ends {
		ends[i] = i + 1
	}
	size := func(i int) float64 {
		if i == 0 {
			return float64(ends[0])
		}
		return float64(ends[i] - ends[i-1])
	}
	for len(ends) > 1 {
		best, at := math.Inf(1), 0
		for i := range len(ends) - 1 {
			a, b := size(i), size(i+1)
			if d := math.Sqrt(2*a*b/(a+b)) * (means[i+1] - means[i]); d < best {
				best, at = d, i
			}
		}
		if best >= threshold*(1-1e-12) {
			break
		}
		a, b := size(at), size(at+1)
		means[at] = (a*means[at] + b*means[at+1]) / (a + b)
		ends = slices.Delete(ends, at, at+1)
		means = slices.Delete(means, at+1, at+2)
	}
	return ends
}
