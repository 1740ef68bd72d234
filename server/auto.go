package server

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"star/coord"
	"star/coord/pilot"
	"star/internal/process"
	"star/member"
	"star/modes"
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
func newPilot(job *Config) (*pilot.Pilot, error) {
	plan := modes.SSGD(job.Ranks())
	if len(job.Shares) > 0 {
		plan.Shares = job.Shares
	}
	c := pilot.Config{Workers: job.Ranks(), Batch: job.Batch, Plan: plan, Ring: job.Arch == member.AllReduce, RiderWait: job.RiderWait,
		LinkRate: 1e6 * job.PSBandwidth, Momentum: process.Optimizer(&job.Job).Memory(), Velocities: process.Optimizer(&job.Job).Velocities(), Adaptive: process.Optimizer(&job.Job).Adaptive(), Queue: min(modes.QueueParts, job.Batch)}
	if job.Whole {
		c.Queue, c.MaxShare = 0, job.Batch
	}
	if process.MayStride(&job.Job) == nil {
		c.Local = modes.MostLocal
	}
	switch job.Predictor {
	case "", PredictorNone:
	case PredictorOnline:
		c.Online = func(lesson int) straggler.Source { return rand.New(rand.NewPCG(job.Seed, uint64(lesson))) }
	default:
		b, err := os.ReadFile(job.Predictor)
		if err != nil {
			return nil, member.FileError(fmt.Errorf("--predictor: %w", err), fs.ErrNotExist)
		}
		if c.Model, err = straggler.ParseModel(b); err != nil {
			c.Notices = append(c.Notices, fmt.Sprintf("--predictor %s is not used: %v; the moving average predicts", job.Predictor, err))
		}
	}
	if job.Decider != "" {
		b, err := os.ReadFile(job.Decider)
		if err != nil {
			return nil, member.FileError(fmt.Errorf("--decider: %w", err), fs.ErrNotExist)
		}
		d, err := modes.ParseLearned(b)
		if err != nil {
			c.Notices = append(c.Notices, fmt.Sprintf("--decider %s is not used: %v; plans are priced over what is seen", job.Decider, err))
		} else {
			c.Decider = d
		}
	}
	return pilot.New(c)
}
