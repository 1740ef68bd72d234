package measure

import (
	"math"
	"testing"
	"time"

	"star"
	"star/runlog"
)

// The window is a mean of the last sixteen values.
func TestWindow(t *testing.T) {
	var w Window
	if !w.Empty() || w.Mean() != 0 {
		t.Errorf("without values: %v", w.Mean())
	}
	for i := 1; i <= 20; i++ {
		w.Add(float64(i))
		from := max(1, i-15)
		if want := float64(from+i) / 2; w.Empty() || math.Abs(w.Mean()-want) > 1e-9 {
			t.Errorf("after %d values: %v, want %v", i, w.Mean(), want)
		}
	}
}

// The result counts what was trained here, and its rates leave out the time after the end of the training.
func TestTotals(t *testing.T) {
	begun := time.Unix(1e9, 0)
	var s Totals
	if got := s.Rate(begun, 0); got != 0 {
		t.Errorf("before the beginning: %v samples per second", got)
	}
	s.Begin(begun, 1000)
	if got := s.Rate(begun, 1000); got != 0 {
		t.Errorf("without time: %v samples per second", got)
	}
	for _, loss := range []float64{3, math.NaN(), 1} {
		s.Observe(&star.Record{Loss: loss, NetIn: 10, NetOut: 5})
	}
	s.Exchanged(8)
	s.Updates = 7
	if got := s.Rate(begun.Add(2*time.Second), 1500); got != 250 || s.Loss() != 2 || s.NoLoss() {
		t.Errorf("%v samples per second, loss %v", got, s.Loss())
	}
	s.Stop(begun.Add(4*time.Second), 1600)
	if got := s.Rate(begun.Add(time.Hour), 1700); got != 175 {
		t.Errorf("after the end: %v samples per second", got)
	}
	var r runlog.Result
	s.Result(&r, begun.Add(time.Hour), 1700, 3, map[int64]int64{0: 4, 2: 4})
	if r.Updates != 7 || r.Samples != 700 || r.Wasted != 3 || r.Wall != 4 || r.SamplesPerS != 150 || r.BytesSent != 53 || r.Steps != 8 ||
		r.Staleness.Max != 2 || r.Staleness.Mean != 1 || r.TrainLoss != 2 {
		t.Errorf("%+v", r)
	}
	var none Totals
	none.Begin(begun, 0)
	none.Result(&r, begun.Add(time.Second), 10, 0, nil)
	if !none.NoLoss() || r.SamplesPerS != 10 || r.Wall != 1 || r.TrainLoss != 2 {
		t.Errorf("without a loss, and ended by Result: %+v", r)
	}
}
