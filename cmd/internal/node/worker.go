package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"star/coord"
	"star/internal/settings"
	"star/job/process"
	"star/runlog"
	"star/server"
	"star/train"
	"star/train/data"
	"star/train/net"
	"star/worker"
	"star/worker/configure"
	"star/worker/foreign"
)

// Work joins the job and trains the model of the settings until it is over. sampler is a command that reads the GPU
// (gpu.Sample); without one nvidia-smi does.
func Work(told context.Context, j *settings.Job, log *slog.Logger, sampler []string) error {
	process.Threads(j.Threads)
	trainSet, testSet, err := openData(j)
	if err != nil {
		return err
	}
	c, err := configure.Worker(j, log, sampler)
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

// WorkProgram joins the job and trains what a program in another process computes (star worker -- COMMAND) until it is
// over. joined is set when the worker has a part in the job.
func WorkProgram(told context.Context, j *settings.Job, log *slog.Logger, sampler []string, m *foreign.Model, joined *atomic.Bool) error {
	a := m.About()
	for _, name := range []string{"model", "dataset"} {
		if strings.HasPrefix(string(j.Config.Origin(name)), "--") {
			return &settings.UsageError{Msg: fmt.Sprintf("--%s (%s) and a program that has its own: leave one of them away", name, j.Config.Origin(name))}
		}
	}
	c, err := configure.Worker(j, log, sampler)
	if err != nil {
		return err
	}
	c.Model, c.Data, c.Name, c.Hash, c.DataName, c.Optimizer = m, m.Train(), m.Describe(), m.Hash(), m.Train().Name(), a.Optimizer
	if a.Tests > 0 {
		c.Test = m.Test()
	}
	c.Told.Model, c.Told.Dataset, c.PreferredBatch, c.PreferredEpochs, c.WholeBatches, c.DropLast = a.Name, c.DataName, a.Batch, a.Epochs, a.Whole, a.DropLast
	c.Telemetry.Process, c.Exchange, c.Turns = a.PID, a.Exchange, a.Turns
	c.Gone, c.Why, c.Halts = m.Gone(), m.Err, m.Halts()
	c.Joined = func(rank, workers int) {
		joined.Store(true)
		m.Joined(rank, workers)
	}
	return worker.Run(told, c)
}

// Serve hosts shards, and on rank 0 the coordinator, until the job is over. The coordinating process reports the
// result. begun, if not nil, is called with the coordinator.
func Serve(told context.Context, j *settings.Job, log *slog.Logger, begun func(*coord.Coordinator), report func(runlog.Result) error) error {
	c := ServerOf(j, log)
	c.Begun, c.Report = begun, report
	return server.Run(told, c)
}

// built is a model and its name.
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

// injected describes for the run log what --slow and --straggler-trace do.
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
