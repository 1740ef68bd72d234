package straggler

import (
	"fmt"
	"math"
	"time"

	"star"
)

// Entrant is a forecaster in a contest.
type Entrant struct {
	Name string
	Forecaster
}

// Contest predicts with the entrant that predicted best lately. The first entrant is the
// one to beat: another one is used only while its error over the last records
// is clearly smaller.
type Contest struct {
	entrants []Entrant
	timer    Timer
	window   float64
	errs     []float64 // decayed sums of |ln predicted/seen|
	weight   []float64 // of these sums
	champion int
}

// better is the share of the first entrant's error below which another one takes
// over; it is dropped when it is no better than the first one any more.
const better = 0.97

// NewContest weighs the errors of about window records.
func NewContest(timer Timer, window int, entrants ...Entrant) *Contest {
	if len(entrants) == 0 || window < 1 {
		panic("straggler: a contest without entrants or window")
	}
	return &Contest{entrants: entrants, timer: timer, window: float64(window), errs: make([]float64, len(entrants)), weight: make([]float64, len(entrants))}
}

// Add lets another one enter, such as a model that has just been trained.
func (c *Contest) Add(e Entrant) {
	c.entrants = append(c.entrants, e)
	c.errs, c.weight = append(c.errs, 0), append(c.weight, 0)
}

// Reset forgets what the entrant of that name has achieved: it is another one now.
func (c *Contest) Reset(name string) {
	for i, e := range c.entrants {
		if e.Name == name {
			c.errs[i], c.weight[i] = 0, 0
			if c.champion == i {
				c.champion = 0
			}
		}
	}
}

// Observe implements Predictor: every entrant's prediction for the record is
// compared with it, then all learn from it.
func (c *Contest) Observe(r star.Record) {
	if n := len(c.entrants[0].Predict()); !usable(&r, n, c.timer) {
		return
	}
	seen := c.timer(r).Seconds()
	for i, e := range c.entrants {
		if p := e.Next(r.Worker).Seconds(); p > 0 {
			c.errs[i] = c.errs[i]*(1-1/c.window) + math.Abs(math.Log(p/seen))
			c.weight[i] = c.weight[i]*(1-1/c.window) + 1
		}
		e.Observe(r)
	}
	c.crown()
}

// Error is an entrant's mean |ln predicted/seen| lately; NaN before it has
// predicted anything.
func (c *Contest) Error(i int) float64 { return c.errs[i] / c.weight[i] }

func (c *Contest) crown() {
	first := c.Error(0)
	if c.champion != 0 && !(c.Error(c.champion) < first) {
		c.champion = 0
	}
	for i := range c.entrants {
		// It must have been there for as long as half of the window remembers.
		if c.weight[i] > c.window*0.4 && c.Error(i) < better*first && c.Error(i) < better*c.Error(c.champion) {
			c.champion = i
		}
	}
}

// Champion is the predictor that is used now.
func (c *Contest) Champion() Entrant { return c.entrants[c.champion] }

// String names the predictor that is used, and why.
func (c *Contest) String() string {
	s := c.Champion().Name
	for i, e := range c.entrants {
		if c.weight[i] > 0 {
			s += fmt.Sprintf(", %s off by %.1f %%", e.Name, 100*(math.Exp(c.Error(i))-1))
		}
	}
	return s
}

// Next implements Forecaster.
func (c *Contest) Next(w star.Worker) time.Duration { return c.Champion().Next(w) }

// Predict implements Predictor.
func (c *Contest) Predict() []time.Duration { return c.Champion().Predict() }

// Ahead implements Forecaster.
func (c *Contest) Ahead(steps int) [][]time.Duration { return c.Champion().Ahead(steps) }
