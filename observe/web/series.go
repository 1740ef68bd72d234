package web

import "time"

// series adds up numbers in stretches of time, in some columns. When the time has outgrown it, stretches are
// joined in pairs.
type series struct {
	began time.Duration
	width time.Duration
	sums  [][]float64 // by column, then stretch
	n     int         // stretches that have begun
}

func newSeries(began time.Duration, columns int) series {
	s := series{began: began, width: 50 * time.Millisecond, sums: make([][]float64, columns)}
	for c := range s.sums {
		s.sums[c] = make([]float64, stretches)
	}
	return s
}

// at is the stretch of t, for which there is room.
func (s *series) at(t time.Duration) int {
	for int((t-s.began)/s.width) >= stretches {
		for _, sum := range s.sums {
			for i := range stretches / 2 {
				sum[i] = sum[2*i] + sum[2*i+1]
			}
			clear(sum[stretches/2:])
		}
		s.width *= 2
		s.n = (s.n + 1) / 2
	}
	i := max(int((t-s.began)/s.width), 0)
	s.n = max(s.n, i+1)
	return i
}

// add adds x to the value at t.
func (s *series) add(t time.Duration, column int, x float64) {
	i := s.at(t)
	s.sums[column][i] += x
}

// spread adds each x times the seconds from one time to another to the stretches that they lie in.
func (s *series) spread(from, to time.Duration, column int, x float64) {
	from = max(from, s.began)
	if to <= from {
		return
	}
	end := s.at(to)
	for i := int((from - s.began) / s.width); i <= end; i++ {
		begin := s.began + time.Duration(i)*s.width
		s.sums[column][i] += x * (min(to, begin+s.width) - max(from, begin)).Seconds()
	}
}
