// Package server is a star-ps as a library: it hosts shards of a job's parameters, and the process of
// rank 0, or one of several that may, coordinates the job.
//
// A server need not know what is trained: the first worker says what the model is, how large,
// and what it learns from. What a Config says of that is what workers are held to.
//
// What bites: a server without shards that does not coordinate waits to be given some. Of the schemes
// of other papers Zeno++ needs a model and data in the server (Config.Validation).
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

// Config is a server, and the job that it coordinates.
//
// The zero value of a field means what its comment says, and complete fills it in; Run works on a
// copy. Job has what workers are given alike (job.Job): whoever makes both of one value cannot
// have them disagree. Durations are of the clock, samples of the stream, PSBandwidth is in 10⁶
// bytes per second.
type Config struct {
	// Job is which job, and how this process takes part in it. Rank 0 coordinates, where there are
	// no Coordinators.
	job.Job

	Shards     int // of this process; 0: it coordinates only, or is a spare one
	MinWorkers int // least; 0: the job begins with Workers and goes on while one is left
	Training
	Policy

	// Attended says that the training is waited for without a limit (coord.Config.Attended).
	Attended bool

	// Outside connects the server with what lies outside its job. Nil: the server takes part in no gossip and in no
	// cluster, and a Job that wants it to is an error.
	Outside Outside

	// Notes are for the run log.
	Notes []string

	// Settings is what the run log and checkpoints say of the configuration, as it is now, of a job
	// that trains this: JSON, by the names of settings. Nil: the most important ones.
	Settings func(now *Config, trains session.Told) (json.RawMessage, error)

	// Validation makes the model and the data of validation gradients, for the baseline zeno++,
	// which needs them.
	Validation func() (Validation, error)

	// Begun is told the coordinator, whenever this process is it, and nil when another one is; nil:
	// nobody is told.
	Begun func(*coord.Coordinator)

	// Report takes what the job has come to, also one that failed, in the process that coordinates;
	// nil: nobody does.
	Report func(runlog.Result) error

	// Log takes what the server says; nil: nothing.
	Log *slog.Logger
}

// Training is what a job trains, as far as its servers are told, and for how long. Of Epochs,
// Samples and Steps the one that is reached first ends the job; where none is given it ends after
// ten epochs. No position of the stream from there on is handed out, and what was handed out before
// is applied.
type Training struct {
	Model   string // in words; workers that were told another one are refused if it is among Given
	Dataset string // likewise

	Epochs  float64
	Samples int64 // end after so many; 0: no such end
	Steps   int64 // end after so many iterations of every worker; 0: no such end. Without any end: 10 epochs

	EvalEvery       float64       // epochs between evaluations; 0: only at the end
	LogMax          int64         // bytes that the run log may take; 0: no bound
	CheckpointEvery time.Duration // 0: only at the end
	ResumeOtherData bool          // a checkpoint of other data than the workers' may be gone on with
	OnFailure       string        // when a worker is gone: shrink or stop; empty: shrink
	LeaveAtOnce     bool          // who is told to end is let go at once
}

// Policy is which gradients make an update, and what is decided while the job runs. Words are those
// of the settings (docs/configure.md).
type Policy struct {
	Mode        string  // job.Auto, ssgd, asgd, x=K …; empty: ssgd
	Shares      []int   // samples of each worker's mini-batch; nil: Batch for each
	Whole       bool    // plans neither cut nor resize a worker's mini-batch (setting whole-batches)
	Predictor   string  // with job.Auto: PredictorOnline, PredictorNone or a file; empty: none
	Decider     string  // with job.Auto: file of one; empty: plans are priced
	PSBandwidth float64 // MB/s that the servers' links may carry for this job, both ways together; 0: not known
	TreeFanIn   int     // most children of one worker in an automatic tree; 0: 8
	PacePushes  string  // job.Auto or job.Off; empty: job.Auto
	MoveShards  string  // likewise; empty: job.Off
}

// Validation is a model and data of a server's own. Name and Hash must be those that workers say of
// their model: the coordinator compares them as it does for workers, and refuses a validator of
// another model.
type Validation struct {
	Model      train.Model // closed at the end
	Data       train.Data
	Name, Hash string // as of the workers' model
}

// complete fills in what is missing. What was given counts as given by "the configuration" where
// the caller does not say where it is from (Given): workers that were told another model or data
// set are refused then, as with settings.
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

// important are the most important settings, by their names (docs/configure.md). They are what the
// run log says where the caller gives no Settings. Times are in seconds.
func important(c *Config, t session.Told) (json.RawMessage, error) {
	return json.Marshal(map[string]any{
		"job": c.Name, "arch": c.Arch, "workers": c.Workers, "max-workers": c.MaxWorkers, "servers": c.Servers, "replicas": c.Replicas,
		"model": t.Model, "dataset": t.Dataset, "seed": t.Seed, "batch": c.Batch, "shares": c.Shares, "whole-batches": c.Whole, "mode": c.Mode, "baseline": c.Baseline,
		"optimizer": c.Optimizer, "lr": c.LR, "momentum": c.Momentum, "weight-decay": c.WeightDecay, "clip": c.Clip, "schedule": c.Schedule,
		"update-scale": c.UpdateScale, "compress": c.Compress, "epochs": c.Epochs, "samples": c.Samples, "steps": c.Steps,
		"predictor": c.Predictor, "decider": c.Decider, "rider-wait": c.RiderWait.Seconds(),
	})
}
