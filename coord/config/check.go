package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"star/coord/membership"
	"star/coord/session"
	"star/internal/poison"
	"star/modes"
	"star/runlog"
)

// Architecture is what Check must know of the job's architecture. Its errors name the setting and what to use instead.
type Architecture interface {
	// Check returns why a configuration is invalid.
	Check(c *Config) error

	// Fits returns why a plan is.
	Fits(p modes.Plan) error
}

// Check sets the defaults, and returns an error that names the setting that is invalid.
func (c *Config) Check(arch Architecture) error {
	if c.MaxWorkers < 1 {
		return fmt.Errorf("coord: a job needs at least 1 worker, not %d", c.MaxWorkers)
	}
	c.Servers = cmp.Or(c.Servers, 1)
	if err := arch.Check(c); err != nil {
		return err
	}
	if err := c.Size().Check(); err != nil {
		return fmt.Errorf("coord: %w", err)
	}
	switch {
	case c.Batch < 1:
		return fmt.Errorf("coord: a batch needs at least 1 sample, not %d", c.Batch)
	case !c.Scale.Valid():
		return fmt.Errorf("coord: unknown update scale %q (n, firing, damped, workers)", c.Scale)
	case c.Samples <= 0 && c.Epochs <= 0 && c.Steps <= 0:
		return errors.New("coord: the job has no end: give samples, epochs or steps")
	case c.Validation != nil && c.Validation.Judge == nil: // an error in the caller's program
		return errors.New("coord: a validation without a judge")
	}
	c.Norm = c.Norm || c.Validation != nil
	if c.Plan.Groups == nil {
		c.Plan = modes.SSGD(c.MaxWorkers)
	}
	if err := c.Plan.Validate(c.MaxWorkers); err != nil {
		return err
	}
	if err := arch.Fits(c.Plan); err != nil {
		return fmt.Errorf("coord: %w", err)
	}
	c.Poison = cmp.Or(c.Poison, poison.Skip)
	if c.Poison != poison.Skip && c.Poison != poison.Fatal && c.Poison != poison.Off {
		return fmt.Errorf("coord: unknown policy for poison %q (skip, fatal, off)", c.Poison)
	}
	c.JoinTimeout = cmp.Or(c.JoinTimeout, 2*time.Minute)
	c.SendTimeout = cmp.Or(c.SendTimeout, 10*time.Second)
	c.DeadAfter = cmp.Or(c.DeadAfter, time.Minute)
	c.Unreachable = cmp.Or(c.Unreachable, session.Unreachable)
	c.StallAfter = cmp.Or(c.StallAfter, 15*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.RunLog == nil {
		c.RunLog = runlog.NewWriter(nil)
	}
	return nil
}

// Size returns the numbers of workers of the job.
func (c *Config) Size() membership.Size {
	return membership.Size{MaxWorkers: c.MaxWorkers, Workers: cmp.Or(c.Workers, c.MaxWorkers), MinWorkers: c.MinWorkers}
}

// First is the number of workers with which the job should begin.
func (c *Config) First() int { return c.Size().Workers }

// CheckpointID is the ID of this attempt's checkpoint of a version.
func (c *Config) CheckpointID(version int64) string { return c.Name(version, c.Generation) }

// Uncut returns p for a job with whole batches. Errors are those of [modes.Plan.WithWholeBatches].
func (c *Config) Uncut(p modes.Plan) (modes.Plan, error) {
	if !c.WholeBatches {
		return p, nil
	}
	return p.WithWholeBatches(c.Batch)
}

// PatienceOfShards is how long the shards may take to hold a gradient after its worker reports that it was pushed.
func (c *Config) PatienceOfShards(params int64) time.Duration {
	if c.StoreTimeout > 0 {
		return c.StoreTimeout
	}
	return time.Minute + time.Duration(params>>18)*time.Second
}

// Finish writes the manifest of a checkpoint and returns its path. failed is why one of its parts could not be written;
// then the checkpoint fails, and what it left is discarded. successor: the previous coordinator may have completed the
// checkpoint, with the same version and generation. That one is kept. Finish may take long.
func (c *Config) Finish(k *Checkpoint, failed error, successor bool) (path string, err error) {
	err = failed
	if err == nil {
		if path, err = c.Save(*k); err == nil {
			return path, nil
		}
	}
	if successor && c.Saved != nil {
		if path, ok := c.Saved(k.ID); ok {
			return path, nil
		}
	}
	if failed != nil && c.Discard != nil {
		c.Discard(k.ID)
	}
	return "", err
}
