package auto

import (
	"time"

	"star"
	"star/modes/price"
)

// Config is the settings of a Controller. The comments say what zero fields mean.
type Config struct {
	Workers int
	Batch   int // samples of an equal share

	// Decider chooses from the average times of iterations. Nil: every candidate is priced over the latest
	// iterations ([price.Over]), and the cheapest is chosen. The same happens where a [price.Learned] has not learned
	// enough, and the decision says so.
	Decider price.Decider

	// Predictor predicts the next iterations. A prediction counts if it is outside the range of the latest
	// iterations. Nil: the next iterations are as the latest ones.
	Predictor Predictor

	// Own is the time of a record that the worker needs itself. Nil: [star.Record.Busy].
	Own func(star.Record) time.Duration

	// Momentum is the optimiser's: the fraction of its last step in the next one; β₁ of Adam. It makes staleness
	// expensive ([price.Steepness]).
	Momentum float64

	// Adaptive: the length of steps does not follow that of gradients, as with Adam. Then the steepness that gradients
	// show does not measure the cost of staleness, and it stays [price.PriorSteepness].
	Adaptive bool

	// Velocities is the momentum where each worker has a velocity of its own (DANA, with Momentum 0): see
	// [price.VelocityRate]. 0: they have none.
	Velocities float64

	Ring      bool // only plans of one ring
	RiderWait time.Duration
	Queue     int     // see Forecast
	MaxShare  int     // see Forecast
	Local     int     // see Forecast
	Outer     int     // see Forecast
	LinkBytes int64   // see Forecast
	LinkRate  float64 // see Forecast

	// Gain is how much cheaper another plan must be, as a part of the present one's cost.
	// Zero: 0.07.
	Gain float64

	// Dwell is how many rounds of the slowest worker a plan stays at least, but for the first one. Zero: 10.
	// After a change it is twice as long, after further ones four and eight times.
	Dwell int

	// Confirm is how many decisions in a row, at least a round of the fastest worker apart,
	// must want to leave the plan; one is enough where it saves more than 0.3. Zero: 3.
	Confirm int
}

// Predictor predicts the times of iterations. Package straggler has some.
type Predictor interface {
	// Observe takes the record of an iteration.
	Observe(r star.Record)

	// Predict is the time of the next iteration of each worker, by rank, without waiting for others; 0: unknown. The
	// slice is valid until the next call.
	Predict() []time.Duration
}

// QueueParts is the number of parts into which auto cuts a share for a queue of samples.
const QueueParts = 8

// MostLocal is the maximum number of local steps that auto chooses. The cost of local steps grows with their number,
// and an exchange of nine tenths of an iteration is already only a third of the time of 16 steps and one exchange.
const MostLocal = 16

// MostOuter is the maximum number of local steps between two outer steps that auto chooses: up to there the price of
// steps was compared with runs (bench/RESULTS.md, Outer steps by themselves).
const MostOuter = 128

// leastSteepness is the part of [price.PriorSteepness] that a measurement does not go below. In the first rounds it is
// often a third of what it becomes, and a job that takes ASGD with heavy ball for that reason may end ten points of
// accuracy lower (bench/RESULTS.md, Other optimisers, and rings).
const leastSteepness = 1. / 2
