// Package export writes a run log in the files of other tools: a trace for Perfetto or Chrome's trace viewer
// ([Trace]), event files for TensorBoard ([Events]), and tables ([Tables]) in CSV or Parquet.
//
// Each is a [Sink], which takes the lines of a log one after the other, so that a log of any length, and one that
// still grows, can be exported in little memory. It is pure but for the files that its callers hand it.
package export

import (
	"math"
	"time"

	"star"
	"star/runlog"
)

// Sink takes the lines of a run log in their order.
type Sink interface {
	// Line takes the next one. An error is one of writing.
	Line(runlog.Line) error

	// Close writes the rest. It does not close the underlying writer.
	Close() error
}

// Update is an update of the parameters, with values from the records of its gradients.
type Update struct {
	At   time.Duration
	Fire runlog.Fire
	Plan string
	// Loss is the mean over the samples of the gradients with known records; NaN without any.
	Loss    float64
	Took    time.Duration
	Steps   []int64 // of the workers' own count, one for each of Fire.Workers; -1: not known
	applied int64   // samples
}

// gradients remembers the records of gradients that have not been used, and makes updates of firings.
type gradients struct {
	plan    string
	waiting map[star.Worker][]waiting
	last    time.Duration // the update before
	samples int64
}

// waiting is a gradient that may be in a later firing.
type waiting struct {
	step, basis int64
	samples     int
	loss        float64
}

// mostWaiting bounds how many gradients of one worker are remembered: more than any mode has on their way.
const mostWaiting = 64

// take takes a line, and reports whether it is an update.
func (g *gradients) take(l runlog.Line) (u Update, ok bool) {
	switch e := l.Entry.(type) {
	case runlog.Train:
		g.plan, g.last, g.waiting = e.Plan, l.T, map[star.Worker][]waiting{}
	case runlog.Plan:
		g.plan = e.Plan
	case runlog.Gap:
		if e.Fires > 0 {
			g.last, g.samples = e.Until.Duration(), e.Samples
		}
	case runlog.Leave:
		delete(g.waiting, e.Worker)
	case runlog.Record:
		of := g.waiting[e.Worker]
		if len(of) == mostWaiting {
			of = of[1:]
		}
		if g.waiting != nil {
			g.waiting[e.Worker] = append(of, waiting{e.Step, e.Basis, e.Samples, e.Loss})
		}
	case runlog.Fire:
		for _, w := range e.Dropped {
			g.pick(w, math.MaxInt64)
		}
		if len(e.Workers) == 0 {
			return u, false
		}
		u = Update{At: l.T, Fire: e, Plan: g.plan, Loss: math.NaN(), Took: l.T - g.last, Steps: make([]int64, len(e.Workers))}
		g.last = l.T
		sum, of := 0.0, 0
		for i, w := range e.Workers {
			u.Steps[i] = -1
			r, found := g.pick(w, e.Version-1-e.Staleness[i])
			if !found {
				continue
			}
			u.Steps[i] = r.step
			if r.samples > 0 {
				sum, of = sum+r.loss*float64(r.samples), of+r.samples
			}
		}
		if of > 0 {
			u.Loss = sum / float64(of)
		}
		u.applied, g.samples = e.Samples-g.samples, e.Samples
		return u, true
	}
	return u, false
}

// pick takes the gradient of a worker that was computed with that version of the parameters; math.MaxInt64: the
// first. Those before it will not be used any more.
func (g *gradients) pick(w star.Worker, basis int64) (r waiting, ok bool) {
	of := g.waiting[w]
	for i, r := range of {
		if r.basis == basis || basis == math.MaxInt64 {
			g.waiting[w] = of[i+1:]
			return r, true
		}
	}
	return r, false
}
