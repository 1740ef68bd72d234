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

// Values of --predictor that are no file.
const (
	PredictorOnline = "online" // trained on the job's own records
	PredictorNone   = "none"
)

// Pilot decides which mode an automatic job trains in.
type Pilot interface {
	coord.Pilot

	// Thresholds are the numbers that it decides by, by their names.
	Thresholds() map[string]float64

	// Notices say what of the Config could not be used.
	Notices() []string
}

// NewPilot makes the pilot of a job. It looks at Workers, MaxWorkers, Batch, Shares, Whole, Arch,
// RiderWait, PSBandwidth, Optimizer, Momentum, Predictor, Decider, and Seed if the predictor is
// trained online. An empty Predictor is none.
//
// A file that is not there is an error, as of a name that was mistyped. One that is damaged, or of
// another version or shape, is not used: the job goes on with what is left, which is among the
// pilot's Notices.
//
// A pilot decides from the lines of the run log that it is told and from nothing else, so one that
// is made of the same Config decides the same from the same log (star replay). It is of one job and
// used by one goroutine. What its links carry is PSBandwidth for all servers together, in 10⁶ bytes
// per second; 0: that is learned from what is seen.
func NewPilot(job *Config) (Pilot, error) {
	p, err := newPilot(job)
	if err != nil {
		return nil, err // not a Pilot that is a nil pointer
	}
	return p, nil
}

// newPilot is NewPilot.
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
	if process.MayStride(&j.Job) == nil {
		c.Local = auto.MostLocal
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
			c.Notices = append(c.Notices, fmt.Sprintf("--predictor %s is not used: %v; the moving average predicts", j.Predictor, err))
		}
	}
	if j.Decider != "" {
		b, err := os.ReadFile(j.Decider)
		if err != nil {
			return nil, job.FileError(fmt.Errorf("--decider: %w", err), fs.ErrNotExist)
		}
		d, err := price.ParseLearned(b)
		if err != nil {
			c.Notices = append(c.Notices, fmt.Sprintf("--decider %s is not used: %v; plans are priced over what is seen", j.Decider, err))
		} else {
			c.Decider = d
		}
	}
	return pilot.New(c)
}
