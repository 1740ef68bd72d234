// Package daemon is the command lines of star-ps and star-worker. star has them
// too, as star ps and star worker, because star run starts itself.
package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/node"
	"star/cmd/internal/settings"
	"star/coord"
)

// Main runs a command and ends the process with the exit code that fits.
func Main(cmd *cobra.Command) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
	}
	os.Exit(node.ExitCode(err))
}

// load reads the settings of a command. It reports false when the command has
// nothing more to do.
func load(cmd *cobra.Command, job *settings.Job) (goOn bool, err error) {
	warnings, err := job.Load(os.Environ())
	if err != nil {
		return false, err
	}
	if job.Config.PrintWanted() {
		return false, job.Print(cmd.OutOrStdout())
	}
	if err := job.Validate(); err != nil {
		return false, err
	}
	log := node.Logger(job, os.Stderr)
	for _, w := range warnings {
		log.Warn(w)
	}
	return true, nil
}

// Server is star-ps.
func Server(use string) *cobra.Command {
	job := new(settings.Job)
	cmd := &cobra.Command{
		Use:   use,
		Short: "Host parameters; rank 0 also coordinates the job",
		Long: "Hosts shards of the parameters. The process of rank 0 also is the job's coordinator: everybody else\n" +
			"finds it by --coordinator. Ends when the job is over.",
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ok, err := load(cmd, job); !ok {
				return err
			}
			log := node.Logger(job, os.Stderr, "role", "ps")
			ctx, cancel := node.Signals(context.Background())
			defer cancel()
			stop, err := serveHTTP(job, log)
			if err != nil {
				return err
			}
			defer stop()
			result, err := node.Serve(ctx, job, log, nil)
			if job.Rank == 0 && result.Steps > 0 {
				if e := Report(cmd.OutOrStdout(), result, job.JSON); err == nil {
					err = e
				}
			}
			return err
		},
	}
	job.Bind(cmd, settings.ForServer)
	return cmd
}

// Worker is star-worker.
func Worker(use string) *cobra.Command {
	job := new(settings.Job)
	cmd := &cobra.Command{
		Use:   use,
		Short: "Compute gradients",
		Long:  "Joins a job, computes gradients on its part of the data, and ends when the job is over.",
		Args:  settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ok, err := load(cmd, job); !ok {
				return err
			}
			// The graph library makes much short-lived garbage around the buffers that
			// we keep; collecting half as often costs little memory.
			debug.SetGCPercent(200)
			log := node.Logger(job, os.Stderr, "role", "worker")
			ctx, cancel := node.Signals(context.Background())
			defer cancel()
			return node.Work(ctx, job, log)
		},
	}
	job.Bind(cmd, settings.ForWorker)
	return cmd
}

// Report prints what a run came to.
func Report(w io.Writer, r coord.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	wall := time.Duration(r.Wall * float64(time.Second)).Round(10 * time.Millisecond)
	_, err := fmt.Fprintf(w, `trained   %s on %s: %d samples in %d updates, %v (%.0f samples/s)
mode      %s, staleness %.2f mean, %d max, %d switches
loss      %.4f in training, %.4f on the test set
accuracy  %.2f %%
files     %s
          %s
`,
		r.Model, r.Dataset, r.Samples, r.Updates, wall, r.SamplesPerS,
		r.Mode, r.Staleness.Mean, r.Staleness.Max, r.Switches,
		r.TrainLoss, r.TestLoss, 100*r.TestAccuracy, r.RunLog, r.Checkpoint)
	return err
}
