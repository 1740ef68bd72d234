// Package configure makes the Config of a worker from settings, for star-worker and for programs
// that star run starts.
package configure

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"star"
	"star/cluster/resource/actuate"
	"star/coord/session"
	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/sim/trace"
	"star/worker"
	"star/worker/inject"
)

// Worker returns a worker's configuration from settings, without Model and Data. sampler is the
// command that reads the GPU; nil: nvidia-smi.
func Worker(j *settings.Job, log *slog.Logger, sampler []string) (worker.Config, error) {
	c := worker.Config{Job: options.JobOf(j), Log: log, Outside: Outside{}, Telemetry: worker.Telemetry{Off: j.Telemetry == settings.Off, Sampler: sampler}}
	c.Told = &session.Told{Model: j.Model, Dataset: j.Dataset, Seed: j.Seed}
	if j.Config.IsSet("batch") { // otherwise the servers choose it
		c.Told.Batch = j.Batch
	}
	if uid := os.Getenv(launchVariable); uid != "" && j.Rank >= 0 {
		c.Over = over(j.Out, j.Rank, uid, log)
	}
	slows, recorded, err := Handicaps(j)
	if err != nil {
		return c, err
	}
	c.Slow = func(rank, workers int, log *slog.Logger) (worker.Slowdown, func() error, error) {
		in, err := inject.New(inject.Config{
			Worker: star.Worker(rank), Workers: workers, Slows: slows, Trace: recorded, By: inject.By(j.StragglerBy), Median: j.StragglerTime,
		})
		if err != nil {
			return nil, nil, Unfit(j, err)
		}
		if in.Active() {
			log.Warn("straggler injection enabled", "what", in.String(), "by", j.StragglerBy)
		}
		if len(in.Stops()) > 0 && os.Getenv(process.LaunchedVariable) == "" {
			log.Warn("ignored --slow R:stop=…: only star run can stop and continue a worker")
		}
		undo, err := in.Start(actuate.OpenStore(j.LeaseDir), os.Getpid(), float64(max(j.Threads, 1)), j.Coordinator)
		if err != nil {
			return nil, nil, j.Invalid("straggler-by", err)
		}
		return in, undo, nil
	}
	return c, nil
}

// Handicaps reads --slow and --straggler-trace. Every worker reads all entries, so that an error is
// found before the job starts.
func Handicaps(j *settings.Job) ([]inject.Slow, *trace.Trace, error) {
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
		return nil, nil, job.FileError(fmt.Errorf("--straggler-trace: %w", err), trace.ErrCorrupt)
	}
	return slows, recorded, nil
}

// Unfit wraps an error of inject.New with the name of its setting.
func Unfit(job *settings.Job, err error) error {
	if errors.As(err, new(*inject.TraceError)) {
		return job.Invalid("straggler-trace", err)
	}
	return job.Invalid("slow", err)
}
