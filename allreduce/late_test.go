package allreduce

import (
	"testing"
	"time"
)

// The rank that is in operations for the shortest time is late, if the others could do something meanwhile.
func TestLateness(t *testing.T) {
	// With 4 ranks the others are ahead by 0.67/1.5 of a whole operation: by 0.022 of one that takes 0.05 s.
	l := lateness{rank: None}
	for i, c := range []struct {
		medians []float64
		want    int
	}{
		{[]float64{0.05, 0.051, 0.052, 0.05}, None},
		{[]float64{0.08, 0.08, 0.05, 0.08}, 2},     // 30 ms late
		{[]float64{0.065, 0.063, 0.033, 0.063}, 2}, // the operation is shorter now: what was measured without Late counts
		{[]float64{0.04, 0.041, 0.033, 0.04}, 2},   // 7 ms
		{[]float64{0.04, 0.036, 0.033, 0.04}, None},
		{[]float64{0.05, 0.05, 0.05, 0.09}, None}, // one that arrives early is not late
		{[]float64{0.09, 0.05, 0.09, 0.09}, 1},
		{[]float64{0.05, 0.09, 0.09, 0.09}, 0}, // another one
	} {
		before := l.rank
		if _, changed := l.decide(c.medians); l.rank != c.want || changed != (c.want != before) {
			t.Errorf("comparison %d: rank %d is late, changed: %v; want %d", i, l.rank, changed, c.want)
		}
	}
}

func TestLatenessComparesNowAndThen(t *testing.T) {
	l := lateness{rank: None}
	for i := range 3 * lateEvery {
		if now := l.next(time.Duration(1+i%5) * time.Second); now != (i%lateEvery == lateEvery-1) {
			t.Fatalf("after operation %d: %v", i, now)
		} else if now {
			if m := l.median(); m < 2 || m > 4 {
				t.Errorf("the median of 1 to 5 s is %v", m)
			}
		}
	}
}
