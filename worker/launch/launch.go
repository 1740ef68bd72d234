// Package launch makes a program of one's own a worker: it takes the settings of star-worker from the
// environment, where star run, torchrun, Slurm, MPI, a Kubernetes job or somebody by hand has put them, and ends the process as
// star-worker ends.
//
//	func main() {
//		launch.Main(func(c *worker.Config) error {
//			c.Model, c.Data, c.Test = newModel(c.Seed), points(c.Seed), points(c.Seed+1)
//			return nil
//		})
//	}
//
// Every setting is a variable: --join-timeout is STAR_JOIN_TIMEOUT (docs/configure.md). --model and --dataset are for the models and data of
// star-worker; what a program of one's own trains is what it says.
//
// What bites: /metrics (--http) and --timer-slack are star-worker's alone.
package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/spf13/cobra"

	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/train/checkpoint"
	"star/worker"
	"star/worker/configure"
)

// AgentVariable is set by star run in the processes of a command: where the program star is, which has what a command does not: star gpu-sampler, star worker.
const AgentVariable = "STAR_AGENT"

// Main is the main function of a program that is a worker. fill says what is trained: c is what the environment says, and c.Model, c.Data and, for
// evaluations, c.Test are missing. Main does not return: the exit code is that of star-worker, and an error is written to standard error.
// SIGINT and SIGTERM end the worker as they end star-worker, and SIGQUIT has it say what it waits for.
func Main(fill func(c *worker.Config) error) {
	err := run(fill)
	checkpoint.Abandon() // one that is not done by now will not be
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", filepath.Base(os.Args[0]), options.Printable(err.Error()))
	}
	os.Exit(job.ExitCode(err))
}

func run(fill func(c *worker.Config) error) error {
	c, j, err := configured(os.Environ())
	if err != nil {
		return err
	}
	if err := fill(&c); err != nil {
		return err
	}
	debug.SetGCPercent(200) // what is allocated for each step is small beside the vectors
	ctx, cancel := process.Signals(context.Background())
	defer cancel()
	return worker.Run(process.Noticed(ctx, j.Notice, c.Log), c)
}

// Worker is a worker as an environment says ("STAR_COORDINATOR=host:7070", …): all of it but what it trains. c.Log writes to standard error.
//
// An error is a usage error, which names the variable; its exit code is job.ExitCode.
func Worker(environment []string) (c worker.Config, err error) {
	c, _, err = configured(environment)
	return c, err
}

// configured is a worker, and the settings that it is of.
func configured(environment []string) (c worker.Config, j *settings.Job, err error) {
	j = new(settings.Job)
	j.Bind(&cobra.Command{}, settings.ForWorker)
	warnings, err := j.Load(environment)
	if err != nil {
		return c, nil, err
	}
	if err := j.Validate(); err != nil {
		return c, nil, err
	}
	log := options.Logger(j, os.Stderr, "role", "worker")
	for _, w := range warnings {
		log.Warn(w)
	}
	var sampler []string
	if agent := os.Getenv(AgentVariable); agent != "" {
		sampler = []string{agent, process.SamplerName}
	}
	if c, err = configure.Worker(j, log, sampler); err != nil {
		return c, nil, err
	}
	c.Told = nil // but what the program says
	return c, j, nil
}
