package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"star"
	"star/cmd/internal/inject"
	"star/coord"
	"star/internal/process"
	"star/internal/settings"
	"star/member"
	"star/resource/actuate"
	"star/runlog"
	"star/server"
	"star/trace"
	"star/train"
	"star/train/data"
	"star/train/net"
	"star/worker"
)

// Work joins the job and trains the model of the settings until it is over. sampler is a command that reads the GPU (gpu.Sample); without
// one nvidia-smi does.
func Work(told context.Context, j *settings.Job, log *slog.Logger, sampler []string) error {
	process.Threads(j.Threads)
	trainSet, testSet, err := openData(j)
	if err != nil {
		return err
	}
	c, err := WorkerOf(j, log, sampler)
	if err != nil {
		return err
	}
	b, err := build(j, trainSet)
	if err != nil {
		return err
	}
	defer b.model.Close()
	c.Model, c.Data, c.Test, c.Name, c.Hash = b.model, trainSet, testSet, b.name, b.hash
	return worker.Run(told, c)
}

// WorkerOf is a worker as the settings say, but for what it trains.
func WorkerOf(j *settings.Job, log *slog.Logger, sampler []string) (worker.Config, error) {
	c := worker.Config{Job: process.JobOf(j), Log: log, Telemetry: worker.Telemetry{Off: j.Telemetry == settings.Off, Sampler: sampler}}
	c.Told = &coord.Told{Model: j.Model, Dataset: j.Dataset, Seed: j.Seed}
	if j.Config.IsSet("batch") { // one that nobody named is for the servers to choose
		c.Told.Batch = j.Batch
	}
	slows, recorded, err := handicaps(j)
	if err != nil {
		return c, err
	}
	c.Slow = func(rank, workers int, log *slog.Logger) (worker.Slowdown, func() error, error) {
		in, err := inject.New(inject.Config{
			Worker: star.Worker(rank), Workers: workers, Slows: slows, Trace: recorded, By: inject.By(j.StragglerBy), Median: j.StragglerTime,
		})
		if err != nil {
			return nil, nil, unfit(j, err)
		}
		if in.Active() {
			log.Warn("straggler injection", "what", in.String(), "by", j.StragglerBy)
		}
		if len(in.Stops()) > 0 && os.Getenv(LaunchedVariable) == "" {
			log.Warn("a process cannot wake itself: --slow R:stop=… works under star run only, nothing stops this worker")
		}
		undo, err := in.Start(actuate.OpenStore(j.LeaseDir), os.Getpid(), float64(max(j.Threads, 1)), j.Coordinator)
		if err != nil {
			return nil, nil, j.Invalid("straggler-by", err)
		}
		return in, undo, nil
	}
	return c, nil
}

// Serve hosts shards, and on rank 0 the coordinator, until the job is over. Whoever coordinates reports what it came to. begun, if not nil, is
// told the coordinator.
func Serve(told context.Context, j *settings.Job, log *slog.Logger, begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	c := ServerOf(j, log)
	c.Begun, c.Report = begun, report
	return server.Run(told, c)
}

// built is a model, and what it is called.
type built struct {
	model      train.Model
	name, hash string
}

// build makes the model of the settings for a data set.
func build(j *settings.Job, set data.Dataset) (b built, err error) {
	spec, err := net.Parse(j.Model)
	if err != nil {
		return b, j.Invalid("model", err)
	}
	spec.Input, spec.Batch, spec.Seed = set.Input(), j.Batch, j.Seed
	if b.hash, err = net.Hash(spec); err != nil {
		return b, j.Invalid("model", err)
	}
	if b.name, err = net.Describe(spec); err != nil {
		return b, j.Invalid("model", err)
	}
	if b.model, err = net.Build(spec); err != nil {
		return b, j.Invalid("model", err)
	}
	return b, nil
}

// openData opens the data set of the job.
func openData(j *settings.Job) (trainSet, testSet data.Dataset, err error) {
	trainSet, testSet, err = data.Open(j.Dataset, data.Options{})
	switch {
	case errors.Is(err, data.ErrSpec):
		return nil, nil, j.Invalid("dataset", err)
	case err != nil:
		return nil, nil, fmt.Errorf("--dataset: %w", err)
	}
	return trainSet, testSet, nil
}

// handicaps reads what --slow and --straggler-trace say. Every worker reads all
// of it, so that a slip is found before the job begins.
func handicaps(j *settings.Job) ([]inject.Slow, *trace.Trace, error) {
	var slows []inject.Slow
	for _, text := range j.Slow {
		s, err := inject.Parse(text)
		if err != nil {
			return nil, nil, j.Invalid("slow", err)
		}
		slows = append(slows, s)
	}
	if j.StragglerTrace == "" {
		return slows, nil, nil
	}
	recorded, err := trace.Open(j.StragglerTrace)
	if err != nil {
		return nil, nil, member.FileError(fmt.Errorf("--straggler-trace: %w", err), trace.ErrCorrupt)
	}
	return slows, recorded, nil
}

// injected says in words for the run log what --slow and --straggler-trace do.
func injected(j *settings.Job) (notes []string) {
	for _, spec := range j.Slow {
		notes = append(notes, "straggler injection: --slow "+spec+" by "+j.StragglerBy)
	}
	if j.StragglerTrace != "" {
		note := "straggler injection: --straggler-trace " + j.StragglerTrace + " by " + j.StragglerBy
		if j.StragglerTime > 0 {
			note += ", the median in " + j.StragglerTime.String()
		}
		notes = append(notes, note)
	}
	return notes
}
