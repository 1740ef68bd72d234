package node

import (
	"fmt"
	"io/fs"
	"os"

	"star/cmd/internal/pilot"
	"star/cmd/internal/settings"
	"star/modes"
	"star/straggler"
)

// Auto is the mode that a pilot chooses while the job runs. It begins with SSGD.
const Auto = "auto"

// NewPilot makes the pilot of a job. It looks at Workers, Batch, Shares, Arch, RiderWait, PSBandwidth and Predictor.
func NewPilot(job *settings.Job) (*pilot.Pilot, error) {
	plan := modes.SSGD(job.Workers)
	if len(job.Shares) > 0 {
		plan.Shares = job.Shares
	}
	c := pilot.Config{Workers: job.Workers, Batch: job.Batch, Plan: plan, Ring: job.Arch == settings.AllReduce, RiderWait: job.RiderWait,
		LinkRate: 1e6 * job.PSBandwidth}
	if job.Predictor != "" {
		b, err := os.ReadFile(job.Predictor)
		if err != nil {
			return nil, FileError(fmt.Errorf("--predictor: %w", err), fs.ErrNotExist)
		}
		if c.Model, err = straggler.ParseModel(b); err != nil {
			return nil, fmt.Errorf("--predictor %s: %w", job.Predictor, err)
		}
	}
	return pilot.New(c)
}
