package modes

import "time"

// Scaling is how fast workers are, in samples per second: all together with their exchange and their waiting, the fastest one without both, and all
// of them if nobody exchanged or waited.
//
// Alone is an upper bound where workers share a processor, and a worker alone makes an update of a single batch: samples are counted, not progress.
type Scaling struct{ All, Alone, Ideal float64 }

// ScalingOf is that of workers whose iterations take so long, of it own for loading and computing so many samples. Workers that have made none are left out.
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

// Efficiency is the part of the ideal rate that there is, 0 to 1; 0: not known.
func (s Scaling) Efficiency() float64 {
	if s.Ideal == 0 {
		return 0
	}
	return s.All / s.Ideal
}

// Worth says whether all together are faster than the fastest alone.
func (s Scaling) Worth() bool { return s.All > s.Alone }
