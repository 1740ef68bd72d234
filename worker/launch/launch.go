// Package launch makes your own program a worker: it reads the settings of star-worker from the
// environment, as set by star run, torchrun, Slurm, MPI, a Kubernetes Job or by hand, and ends the
// process as star-worker does.
//
//	func main() {
//		launch.Main(func(c *worker.Config) error {
//			c.Model, c.Data, c.Test = newModel(c.Seed), points(c.Seed), points(c.Seed+1)
//			return nil
//		})
//	}
//
// Every setting is a variable: --join-timeout is STAR_JOIN_TIMEOUT (docs/configure.md). --model and
// --dataset only apply to the models and data of star-worker; your program chooses its own. /metrics
// (--http) and --timer-slack are only in star-worker.
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

// AgentVariable is set by star run in the processes that it starts. It is the path of the program
// star, which has subcommands that your program does not have: star gpu-sampler, star worker.
const AgentVariable = "STAR_AGENT"

// Main is the main function of a program that is a worker. fill completes c, which has the settings
// of the environment: it sets c.Model, c.Data and, for evaluations, c.Test. Main does not return:
// the exit code is that of star-worker, and an error is written to standard error. SIGINT and
// SIGTERM end the worker as they end star-worker, and SIGQUIT has it print what it waits for.
func Main(fill func(c *worker.Config) error) {
	err := run(fill)
	checkpoint.Abandon() // an unfinished checkpoint cannot complete any more
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
	debug.SetGCPercent(200) // allocations per step are small compared with the vectors
	ctx, cancel := process.Signals(context.Background())
	defer cancel()
	return worker.Run(process.Noticed(ctx, j.Notice, c.Log), c)
}

// Worker returns the configuration of a worker from an environment ("STAR_COORDINATOR=host:7070",
// …), without Model and Data. c.Log writes to standard error.
//
// An error is a usage error that names the variable; its exit code is job.ExitCode.
func Worker(environment []string) (c worker.Config, err error) {
	c, _, err = configured(environment)
	return c, err
}

// configured is Worker, and also returns the settings.
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
	c.Told = nil // only what the program sets
	return c, j, nil
}
