package sched

import (
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"

	"star/sched"
)

// Virtual clusters have random numbers of their own, which follow from the seed.
func TestSeedOf(t *testing.T) {
	a, again, b, c := seedOf(7, "a"), seedOf(7, "a"), seedOf(7, "b"), seedOf(8, "a")
	if a != again || a == b || a == c {
		t.Error(a, again, b, c)
	}
}

// A picture of two jobs that ended, one that did not and one that was declined: half of those that ended took no longer
// than 10 s, one of two GPUs is used for half of the time.
func TestSchedCurves(t *testing.T) {
	nan := math.NaN()
	job := func(submit float64) *sched.Job { return &sched.Job{Submit: submit, GPUs: 1, Deadline: math.Inf(1)} }
	var c schedCurves
	c.add("fifo", []sched.Outcome{
		{Job: job(0), Start: 0, End: 10, Steps: []sched.Step{{At: 0, GPUs: 1}, {At: 10}}},
		{Job: job(5), Start: 10, End: 20, Queue: 5, Steps: []sched.Step{{At: 10, GPUs: 1}, {At: 20}}},
		{Job: job(5), Start: nan, End: nan, Why: "too large"},
	}, 2)
	if x, y := c.jct[0].X, c.jct[0].Y; !slices.Equal(x, []float64{10, 15}) || !slices.Equal(y, []float64{50, 100}) {
		t.Errorf("completion times %v, %v", x, y)
	}
	used, waiting := stat.Mean(c.used[0].Y, nil), stat.Mean(c.queue[0].Y, nil)
	if math.Abs(used-50) > .01 || math.Abs(waiting-.25) > .01 {
		t.Errorf("%v %% are used, and %v jobs wait, want 50 %% and 0.25", used, waiting)
	}
}
