package auto

import (
	"math"
	"slices"

	"star/modes/price"
)

// fitOf finds how times depend on samples: by the median of the slopes of all pairs (Theil
// 1950, Sen 1968), which a third of outliers do not move. Where samples hardly varied the
// computation is what depends on them.
func fitOf(samples, times, compute []float64) price.Fit {
	lo, hi := slices.Min(samples), slices.Max(samples)
	if hi < 1.1*lo {
		k := median(compute)
		return price.Fit{Fixed: max(median(times)-k, 0), PerSample: k / median(samples)}
	}
	var slopes []float64
	for i := range samples {
		for j := range i {
			if d := samples[i] - samples[j]; math.Abs(d) >= 0.05*lo {
				slopes = append(slopes, (times[i]-times[j])/d)
			}
		}
	}
	slope := max(median(slopes), 0)
	var rest []float64
	for i := range samples {
		rest = append(rest, times[i]-slope*samples[i])
	}
	fixed := median(rest)
	if fixed < 0 { // through the origin then
		return price.Fit{PerSample: median(times) / median(samples)}
	}
	return price.Fit{Fixed: fixed, PerSample: slope}
}

// fitOfDrawn is fitOf where workers have taken as many samples as their speed allowed (Plan.Queue): then all times are
// those of a round, and samples differ because speeds do. The time of the computation per sample is what depends on
// them.
func fitOfDrawn(samples, times, compute []float64) price.Fit {
	each, rest := make([]float64, len(samples)), make([]float64, len(samples))
	for i := range samples {
		each[i], rest[i] = compute[i]/samples[i], max(times[i]-compute[i], 0)
	}
	return price.Fit{Fixed: median(rest), PerSample: median(each)}
}

// fitOfParts is [fitOfDrawn] where q is known.
func fitOfParts(q, batch float64, samples, parts, times, compute []float64) price.Fit {
	each, rest := make([]float64, len(samples)), make([]float64, len(samples))
	for i := range samples {
		each[i], rest[i] = compute[i]/load(q, samples[i], parts[i], batch), max(times[i]-compute[i], 0)
	}
	whole := median(each)
	return price.Fit{Fixed: median(rest) + q*whole, PerSample: (1 - q) * whole / batch, Part: q * whole}
}

// load is the right side of (32) in shares of batch samples: how many times Y the given samples in the given parts
// take.
func load(q, samples, parts, batch float64) float64 { return q*parts + (1-q)*samples/batch }
