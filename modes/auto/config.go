package auto

import (
	"time"

	"star"
	"star/modes/price"
)

// Config says how a Controller decides. Zero fields mean what their comments say.
type Config struct {
	Workers int
	Batch   int // samples of an equal share

	// Decider chooses from what the iterations take on average. Nil: every candidate is
	// priced over what was seen lately ([price.Over]), and the cheapest is chosen; so it is
	// outside what a [price.Learned] has learned from, and the decision says so.
	Decider price.Decider

	// Predictor says what the next iterations will take. It counts where it lies beyond all
	// that was seen lately. Nil: what was seen is what will be.
	Predictor Predictor

	// Own is the time of a record that the worker needs itself. Nil: [star.Record.Busy].
	Own func(star.Record) time.Duration

	// Momentum is the optimiser's: how much of its last step is in the next one; β₁ of Adam. It makes staleness dear
	// ([price.Steepness]).
	Momentum float64

	// Adaptive says that the length of steps does not follow that of gradients, as with Adam: what gradients tell of the
	// steepness does not measure what staleness costs, and it stays [price.PriorSteepness].
	Adaptive bool

	// Velocities is the momentum where each worker has a velocity of its own (DANA, with Momentum 0): see
	// [price.VelocityRate]. 0: they have none.
	Velocities float64

	Ring      bool // only plans of one ring
	RiderWait time.Duration
	Queue     int     // see Forecast
	MaxShare  int     // see Forecast
	Local     int     // see Forecast
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

// Predictor says how long iterations will take. Package straggler has some.
type Predictor interface {
	// Observe takes in what a worker measured of an iteration.
	Observe(r star.Record)

	// Predict is the time of the next iteration of each worker, by rank, without waiting
	// for others; 0 where nothing is known. The slice is valid until the next call.
	Predict() []time.Duration
}

// QueueParts is the number of parts into which auto cuts a share for a queue of samples.
const QueueParts = 8

// MostLocal is the most steps that auto lets a worker make by itself. Their cost grows with their number, and an
// exchange of nine tenths of an iteration is a third of the time of 16 steps and one exchange.
const MostLocal = 16

// leastSteepness is a hundredth of what SGD without momentum bears (28): below it a measured steepness says nothing.
const leastSteepness = 2. / 100
