// Package server is a star-ps as a library: it hosts shards of a job's parameters, and the process
// of rank 0, or one elected from several, coordinates the job.
//
// A server need not know what is trained: the first worker describes the model and the data. Workers
// that differ from what a Config says of them are rejected.
//
// A server without shards that does not coordinate waits until it is assigned some. Among the
// baselines, Zeno++ needs a model and data in the server (Config.Validation).
package server

import (
	"encoding/json"
	"log/slog"
	"time"

	"star/coord"
	"star/coord/session"
	"star/internal/defaults"
	"star/job"
	"star/runlog"
	"star/train"
)

// Config configures a server, and the job that it coordinates.
//
// The zero value of a field means what its comment says; complete fills it in, and Run works on a
// copy. Job has the settings that servers and workers share (job.Job): create both from one value so
// that they agree. PSBandwidth is in 10⁶ bytes per second.
type Config struct {
	// Job says which job, and how this process takes part in it. Without Coordinators, rank 0
	// coordinates.
	job.Job

	// Shards is the number of shards in this process; 0: it only coordinates, or is a spare server.
	Shards int
	// MinWorkers is the minimum to train with; 0: the job starts with Workers and continues while
	// one is left.
	MinWorkers int
	Training
	Policy

	// Attended: the wait for the start of the training is not limited (coord.Config.Attended).
	Attended bool

	// Outside connects the server with services outside its job. Nil: no gossip and no cluster, and
	// a Job that asks for one is an error.
	Outside Outside

	// Notes are added to the run log.
	Notes []string

	// Settings returns the configuration for the run log and checkpoints, of a job that trains trains:
	// JSON by names of settings. Nil: the most important ones.
	Settings func(now *Config, trains session.Told) (json.RawMessage, error)

	// Validation returns the model and data of validation gradients, which the baseline zeno++
	// needs.
	Validation func() (Validation, error)

	// Begun, if not nil, is called with the coordinator whenever this process becomes it, and with
	// nil when another one takes over.
	Begun func(*coord.Coordinator)

	// Report, if not nil, receives the result of the job, also if it failed, in the process that
	// coordinates.
	Report func(runlog.Result) error

	// Log receives the server's log; nil: no log.
	Log *slog.Logger
}

// Training is what a job trains, as far as its servers are configured, and for how long. The job
// ends at the first of Epochs, Samples and Steps that is reached; without any of them after ten
// epochs. No position of the stream beyond the end is handed out, and everything handed out before
// is applied.
type Training struct {
	// Model and Dataset describe what is trained. Workers configured with another one are rejected
	// if it is among Given.
	Model   string
	Dataset string

	Epochs float64
	// Samples ends the job after as many samples; 0: not.
	Samples int64
	// Steps ends the job after as many iterations of every worker; 0: not.
	Steps int64

	// EvalEvery is in epochs; 0: only at the end.
	EvalEvery float64
	// LogMax bounds the run log, in bytes; 0: no bound.
	LogMax int64
	// CheckpointEvery 0: only at the end.
	CheckpointEvery time.Duration
	// ResumeOtherData allows a checkpoint of other data than the workers'.
	ResumeOtherData bool
	// OnFailure says what happens when a worker is lost: shrink or stop; empty: shrink.
	OnFailure string
	// LeaveAtOnce releases a process that must stop without waiting for a checkpoint.
	LeaveAtOnce bool
}

// Policy chooses which gradients make an update, and what the job decides while it runs. Values are
// those of the settings (docs/configure.md).
type Policy struct {
	// Mode is job.Auto, ssgd, asgd, x=K …; empty: ssgd.
	Mode string
	// Shares is the samples of each worker's mini-batch; nil: Batch for each.
	Shares []int
	// Whole: plans neither split nor resize a worker's mini-batch (setting whole-batches).
	Whole bool
	// Predictor is for job.Auto: PredictorOnline, PredictorNone or a file; empty: none.
	Predictor string
	// Decider is a file for job.Auto; empty: plans are priced.
	Decider string
	// PSBandwidth is the capacity of the servers' links for this job, both directions together, in
	// MB/s; 0: not known.
	PSBandwidth float64
	// TreeFanIn is the maximum number of children in an automatic tree; 0: 8.
	TreeFanIn int
	// PacePushes is job.Auto or job.Off; empty: job.Auto.
	PacePushes string
	// MoveShards is job.Auto or job.Off; empty: job.Off.
	MoveShards string
}

// Validation is a server's own model and data. Name and Hash must equal those of the workers' model:
// the coordinator compares them as it does for workers, and rejects a validator with another model.
type Validation struct {
	// Model is closed at the end.
	Model train.Model
	Data  train.Data
	// Name and Hash are those of the workers' model.
	Name, Hash string
}

// complete fills in the defaults. Without Given, the fields that are set count as given by "the
// configuration": workers with another model or data set are rejected then, as with settings.
func (c *Config) complete() {
	c.Job = *c.Job.Clone()
	if c.Given == nil {
		c.Defaults()
		for name, v := range map[string]string{"model": c.Model, "dataset": c.Dataset} {
			if v != "" {
				c.Given[name] = "the configuration"
			}
		}
	}
	c.Defaults()
	for _, d := range []struct {
		v  *string
		to string
	}{{&c.Mode, defaults.Mode}, {&c.PacePushes, defaults.PacePushes}, {&c.MoveShards, job.Off}, {&c.OnFailure, defaults.OnFailure}} {
		if *d.v == "" {
			*d.v = d.to
		}
	}
	if c.Epochs == 0 && c.Samples == 0 && c.Steps == 0 {
		c.Epochs = defaults.Epochs
	}
	if c.TreeFanIn == 0 {
		c.TreeFanIn = defaults.TreeFanIn
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Report == nil {
		c.Report = func(runlog.Result) error { return nil }
	}
	if c.Settings == nil {
		c.Settings = important
	}
}

// important returns the most important settings by name (docs/configure.md), for the run log without
// Config.Settings. Times are in seconds.
func important(c *Config, t session.Told) (json.RawMessage, error) {
	return json.Marshal(map[string]any{
		"job": c.Name, "arch": c.Arch, "workers": c.Workers, "max-workers": c.MaxWorkers, "servers": c.Servers, "replicas": c.Replicas,
		"model": t.Model, "dataset": t.Dataset, "seed": t.Seed, "batch": c.Batch, "shares": c.Shares, "whole-batches": c.Whole, "mode": c.Mode, "baseline": c.Baseline,
		"optimizer": c.Optimizer, "lr": c.LR, "momentum": c.Momentum, "weight-decay": c.WeightDecay, "clip": c.Clip, "schedule": c.Schedule,
		"update-scale": c.UpdateScale, "compress": c.Compress, "epochs": c.Epochs, "samples": c.Samples, "steps": c.Steps,
		"predictor": c.Predictor, "decider": c.Decider, "rider-wait": c.RiderWait.Seconds(),
	})
}
