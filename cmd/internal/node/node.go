// Package node makes the workers and servers of star-worker, star-ps and star: it takes the
// settings, opens the data, builds the model, and hands both to star/worker and star/server.
package node

import (
	"encoding/json"
	"log/slog"
	"os"

	"star/coord"
	"star/coord/session"
	"star/internal/settings"
	"star/job/options"
	"star/job/process"
	"star/modes/baseline"
	"star/server"
	"star/server/outside"
	"star/train/optim"
)

// ServerOf is the configuration of a server from the settings.
func ServerOf(j *settings.Job, log *slog.Logger) server.Config {
	c := server.Config{
		Job: options.JobOf(j), Shards: j.Shards, MinWorkers: j.MinWorkers, Outside: outside.Clients{}, Notes: injected(j), Log: log,
		Attended: os.Getenv(process.LaunchedVariable) != "" && !j.Config.IsSet("join-timeout"),
		Training: server.Training{
			Model: j.Model, Dataset: j.Dataset, Epochs: j.Epochs, Samples: j.Samples, Steps: j.Steps, EvalEvery: j.EvalEvery, LogMax: int64(j.LogMax) << 20, CheckpointEvery: j.CheckpointEvery,
			ResumeOtherData: j.ResumeOtherData, OnFailure: j.OnFailure, LeaveAtOnce: j.LeaveAtOnce,
		},
		Policy: server.Policy{
			Mode: j.Mode, Shares: j.Shares, Whole: j.WholeBatches, Predictor: j.Predictor, Decider: j.Decider, PSBandwidth: j.PSBandwidth, TreeFanIn: j.TreeFanIn,
			PacePushes: j.PacePushes, MoveShards: j.MoveShards,
		},
		Settings: func(now *server.Config, t session.Told) (json.RawMessage, error) {
			job := *j
			job.Model, job.Dataset, job.Seed = t.Model, t.Dataset, t.Seed
			job.Coordinator = now.Coordinator // which may have been found only since
			job.Optimizer, job.LR, job.Momentum, job.WeightDecay, job.Schedule = now.Optimizer, now.LR, now.Momentum, now.WeightDecay, now.Schedule
			job.Batch, job.Epochs = now.Batch, now.Epochs
			return json.Marshal(job)
		},
		Validation: func() (v server.Validation, err error) {
			trainSet, _, err := openData(j)
			if err != nil {
				return v, err
			}
			b, err := build(j, trainSet)
			return server.Validation{Model: b.model, Data: trainSet, Name: b.name, Hash: b.hash}, err
		},
	}
	return c
}

// NewPilot is server.NewPilot.
func NewPilot(j *settings.Job) (server.Pilot, error) {
	c := ServerOf(j, nil)
	return server.NewPilot(&c)
}

// NewBaseline is server.NewBaseline.
func NewBaseline(j *settings.Job) (baseline.Made, coord.Pilot, error) {
	job := options.JobOf(j)
	return server.NewBaseline(&job)
}

// Optimizer is the optimiser of the job. It looks at Optimizer, LR, Momentum, WeightDecay and Schedule.
func Optimizer(j *settings.Job) optim.Config {
	job := options.JobOf(j)
	return process.Optimizer(&job)
}

// CheckFolders checks that a job on this host could create its folders, before any process of it starts.
func CheckFolders(j *settings.Job) error { return server.CheckFolders(ServerOf(j, nil)) }
