package node

import (
	"errors"

	"star/cluster/resource/actuate"
	"star/internal/settings"
	"star/job/options"
	"star/server"
	"star/train/net"
	"star/worker"
	"star/worker/configure"
	"star/worker/inject"
)

// Check checks the settings before any process starts: for star run, which would otherwise get the errors from each of
// its children. It opens the data set and matches the model with it, unless workers have their own.
func Check(job *settings.Job, own bool) error {
	if err := server.Check(ServerOf(job, nil)); err != nil {
		return err
	}
	if !own {
		if err := checkModel(job); err != nil {
			return err
		}
	}
	if err := worker.CheckRing(options.JobOf(job)); err != nil {
		return err
	}
	limit, err := actuate.Parse(job.Limit)
	if err == nil && job.Actuator == string(actuate.None) && !limit.Zero() {
		err = errors.New("--actuator none limits nothing")
	}
	if err != nil {
		return job.Invalid("limit", err)
	}
	slows, trace, err := configure.Handicaps(job)
	if err != nil {
		return err
	}
	if _, err := inject.New(inject.Config{Workers: job.Ranks(), Slows: slows, Trace: trace, By: inject.By(job.StragglerBy)}); err != nil {
		return configure.Unfit(job, err)
	}
	return nil
}

// checkModel checks that the model and the data of the settings exist, and fit.
func checkModel(job *settings.Job) error {
	spec, err := net.Parse(job.Model)
	if err != nil {
		return job.Invalid("model", err)
	}
	set, _, err := openData(job)
	if err != nil {
		return err
	}
	spec.Input = set.Input()
	if _, err := net.Describe(spec); err != nil {
		return job.Invalid("model", err)
	}
	return nil
}

// Parameters is how many elements the job's parameter vector has. It opens the
// data set, which the model's size depends on.
func Parameters(job *settings.Job) (int, error) {
	spec, err := net.Parse(job.Model)
	if err != nil {
		return 0, job.Invalid("model", err)
	}
	set, _, err := openData(job)
	if err != nil {
		return 0, err
	}
	spec.Input = set.Input()
	n, err := net.Count(spec)
	if err != nil {
		return 0, job.Invalid("model", err)
	}
	return n, nil
}
