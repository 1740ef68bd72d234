package modes

import "time"

// Scaling is the speed of workers in samples per second: All with exchange and waiting, Alone of the
// fastest worker without both, and Ideal of all workers without both.
//
// Alone is an upper bound where workers share a processor. A worker alone makes an update of a single
// batch: Scaling counts samples, not progress.
type Scaling struct{ All, Alone, Ideal float64 }

// ScalingOf is the Scaling of workers. By worker, own is the time per iteration for loading and computing
// samples, and iteration the whole time. Workers without a measurement are left out.
func ScalingOf(own, iteration []time.Duration, samples []int) (s Scaling) {
	for w := range own {
		if own[w] <= 0 || samples[w] <= 0 {
			continue
		}
		n := float64(samples[w])
		alone := n / own[w].Seconds()
		s.All += n / max(iteration[w], own[w]).Seconds()
		s.Alone = max(s.Alone, alone)
		s.Ideal += alone
	}
	return s
}

// Efficiency is All as a fraction of Ideal, 0 to 1; 0: unknown.
func (s Scaling) Efficiency() float64 {
	if s.Ideal == 0 {
		return 0
	}
	return s.All / s.Ideal
}

// Worth reports whether all workers together are faster than the fastest one alone.
func (s Scaling) Worth() bool { return s.All > s.Alone }
