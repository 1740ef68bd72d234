package straggler

import "math"

// Scale standardises channels: (x − mean)/std, with the population's standard
// deviation. A channel that never changes becomes 0.
type Scale struct{ Mean, Std []float64 }

// Fit takes mean and standard deviation from the rows of x. What is not finite is
// left out.
func (s *Scale) Fit(x []float64, channels int) {
	s.Mean, s.Std = make([]float64, channels), make([]float64, channels)
	for c := range channels {
		n, sum, sq := 0.0, 0.0, 0.0
		for i := c; i < len(x); i += channels {
			if finite(x[i]) {
				n++
				sum += x[i]
			}
		}
		if n == 0 {
			continue
		}
		mean := sum / n
		for i := c; i < len(x); i += channels {
			if finite(x[i]) {
				sq += (x[i] - mean) * (x[i] - mean)
			}
		}
		s.Mean[c], s.Std[c] = mean, math.Sqrt(sq/n)
		if s.Std[c] < 1e-12*math.Abs(mean) {
			s.Std[c] = 0 // rounding
		}
	}
}

// Apply standardises one row. What is not finite becomes 0, the mean.
func (s *Scale) Apply(row []float64) {
	for i, v := range row {
		if row[i] = 0; finite(v) && s.Std[i] > 0 {
			row[i] = (v - s.Mean[i]) / s.Std[i]
		}
	}
}

// Undo is the inverse of Apply.
func (s *Scale) Undo(row []float64) {
	for i, v := range row {
		row[i] = s.one(i, v)
	}
}

func (s *Scale) one(channel int, v float64) float64 { return v*s.Std[channel] + s.Mean[channel] }

func finite(v float64) bool { return v-v == 0 }
