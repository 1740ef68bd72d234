package server

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"star/coord"
	"star/coord/pilot"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/straggler"
)

// Values of --predictor that are not files.
const (
	PredictorOnline = "online" // trained on the job's own records
	PredictorNone   = "none"
)

// Pilot chooses the mode of a job with --mode auto.
type Pilot interface {
	coord.Pilot

	// Thresholds returns the thresholds of its decisions by name.
	Thresholds() map[string]float64

	// Notices say which parts of the Config could not be used.
	Notices() []string
}

// NewPilot returns the pilot of a job. It reads Workers, MaxWorkers, Batch, Shares, Whole, Arch,
// RiderWait, PSBandwidth, Optimizer, Momentum, Predictor, Decider, and Seed if the predictor is
// trained online. An empty Predictor means none.
//
// A file that does not exist is an error, because its name was probably mistyped. A file that is
// damaged, or of another version or shape, is not used: the job continues without it, and Notices
// says so.
//
// A pilot decides only from lines of the run log, so a pilot with the same Config decides the same
// from the same log (star replay). It belongs to one job and one goroutine. PSBandwidth is the
// capacity of all servers' links together, in 10⁶ bytes per second; 0: the pilot learns it.
func NewPilot(job *Config) (Pilot, error) {
	p, err := newPilot(job)
	if err != nil {
		return nil, err // not a Pilot that holds a nil pointer
	}
	return p, nil
}

// A pilot is created for each leadership: a successor's pilot starts without the observations of the
// one before (coordinatorOf).

// newPilot is NewPilot with the concrete type.
func newPilot(j *Config) (*pilot.Pilot, error) {
	plan := modes.SSGD(j.Ranks())
	if len(j.Shares) > 0 {
		plan.Shares = j.Shares
	}
	c := pilot.Config{Workers: j.Ranks(), Batch: j.Batch, Plan: plan, Ring: j.Arch == job.AllReduce, RiderWait: j.RiderWait,
		LinkRate: 1e6 * j.PSBandwidth, Momentum: process.Optimizer(&j.Job).Memory(), Velocities: process.Optimizer(&j.Job).Velocities(), Adaptive: process.Optimizer(&j.Job).Adaptive(), Queue: min(auto.QueueParts, j.Batch)}
	if j.Whole {
		c.Queue, c.MaxShare = 0, j.Batch
	}
	// In a ring the momentum of local steps begins at zero after each exchange.
	if process.MayStride(&j.Job) == nil && (j.Arch != job.AllReduce || max(c.Momentum, c.Velocities) == 0) {
		c.Local = auto.MostLocal
	}
	if process.MayOuter(&j.Job) == nil {
		c.Outer = auto.MostOuter
	}
	switch j.Predictor {
	case "", PredictorNone:
	case PredictorOnline:
		c.Online = func(lesson int) straggler.Source { return rand.New(rand.NewPCG(j.Seed, uint64(lesson))) }
	default:
		b, err := os.ReadFile(j.Predictor)
		if err != nil {
			return nil, job.FileError(fmt.Errorf("--predictor: %w", err), fs.ErrNotExist)
		}
		if c.Model, err = straggler.ParseModel(b); err != nil {
			c.Notices = append(c.Notices, fmt.Sprintf("cannot use --predictor %s: %v; using the moving average", j.Predictor, err))
		}
	}
	if j.Decider != "" {
		b, err := os.ReadFile(j.Decider)
		if err != nil {
			return nil, job.FileError(fmt.Errorf("--decider: %w", err), fs.ErrNotExist)
		}
		d, err := price.ParseLearned(b)
		if err != nil {
			c.Notices = append(c.Notices, fmt.Sprintf("cannot use --decider %s: %v; using prices of plans", j.Decider, err))
		} else {
			c.Decider = d
		}
	}
	return pilot.New(c)
}
