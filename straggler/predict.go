package straggler

import (
	"time"

	"star"
)

// Timer selects the predicted time of a record: [star.Record.Busy], or Own where
// the exchange is collective.
type Timer func(star.Record) time.Duration

// Predictor predicts every worker's next own time from its records.
type Predictor interface {
	// Observe adds a record. Records of a worker are in the order of its steps.
	Observe(star.Record)

	// Predict returns the time of each worker's next iteration; 0 where nothing is
	// known. The slice is the caller's.
	Predict() []time.Duration
}

// Forecaster looks further ahead.
type Forecaster interface {
	Predictor

	// Next is Predict for one worker.
	Next(star.Worker) time.Duration

	// Ahead returns the times of each worker's next iterations, [step][worker]. The
	// slices are the caller's.
	Ahead(steps int) [][]time.Duration
}

// usable reports whether a record can teach a predictor of n workers anything.
func usable(r *star.Record, n int, t Timer) bool {
	d := t(*r)
	return int(r.Worker) >= 0 && int(r.Worker) < n && d > 0 && d <= longest
}

// EWMA predicts the exponentially weighted mean of the times so far.
type EWMA struct {
	timer  Timer
	weight float64
	value  []float64 // s; 0: nothing seen
}

// NewEWMA gives the newest time a weight of (0, 1].
func NewEWMA(workers int, timer Timer, weight float64) *EWMA {
	if !(weight > 0) || weight > 1 {
		panic("straggler: the weight of an EWMA is not of (0, 1]")
	}
	return &EWMA{timer: timer, weight: weight, value: make([]float64, workers)}
}

// NewLast predicts that everything stays as it was in the last iteration.
func NewLast(workers int, timer Timer) *EWMA { return NewEWMA(workers, timer, 1) }

// Observe implements Predictor.
func (e *EWMA) Observe(r star.Record) {
	if !usable(&r, len(e.value), e.timer) {
		return
	}
	v, t := &e.value[r.Worker], e.timer(r).Seconds()
	if *v == 0 {
		*v = t
	}
	*v += e.weight * (t - *v)
}

// Next implements Forecaster.
func (e *EWMA) Next(w star.Worker) time.Duration { return seconds(e.value[w]) }

// Predict implements Predictor.
func (e *EWMA) Predict() []time.Duration {
	out := make([]time.Duration, len(e.value))
	for w := range out {
		out[w] = seconds(e.value[w])
	}
	return out
}

// Ahead implements Forecaster: nothing changes.
func (e *EWMA) Ahead(steps int) [][]time.Duration {
	out := make([][]time.Duration, steps)
	for i := range out {
		out[i] = e.Predict()
	}
	return out
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
