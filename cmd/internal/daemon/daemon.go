// Package daemon is the command lines of star-ps and star-worker. star has them
// too, as star ps and star worker, because star run starts itself.
package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/node"
	"star/coord"
	"star/internal/build"
	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/runlog"
	"star/train/checkpoint"
)

// Main runs a command and ends the process with the exit code that fits.
func Main(cmd *cobra.Command) {
	os.Exit(serveMainThread(func() int { return run(cmd) }))
}

func run(cmd *cobra.Command) (code int) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	ran, err := cmd.ExecuteC()
	checkpoint.Abandon()                 // one that is not done by now will not be
	if err != nil && err.Error() != "" { // else the command that was run has printed it
		says := err.Error()
		if !strings.HasPrefix(says, cmd.Name()+":") && !strings.HasPrefix(says, cmd.Name()+" ") { // star run: …
			says = cmd.Name() + ": " + says
		}
		says = options.LastLine(says)
		if settings.LogsJSON(ran) { // as all lines before it
			slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error(says, "exit", job.ExitCode(err))
		} else {
			fmt.Fprintln(os.Stderr, options.Printable(says))
		}
	}
	return job.ExitCode(err)
}

// load reads the settings of a command. It reports false when the command has
// nothing more to do.
func load(cmd *cobra.Command, job *settings.Job) (goOn bool, err error) {
	if err := cmp.Or(Room(), Threads(1)); err != nil {
		return false, err
	}
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
	Relax(job.TimerSlack)
	log := options.Logger(job, os.Stderr)
	for _, w := range warnings {
		log.Warn(w)
	}
	return true, nil
}

// Server is star-ps.
func Server(use string) *cobra.Command {
	job := new(settings.Job)
	cmd := &cobra.Command{
		Use:     use,
		Version: build.Built().String(),
		Short:   "Host parameters; rank 0 also coordinates the job",
		Long: "Hosts shards of the parameters. The process of rank 0 also is the job's coordinator: the other processes\n" +
			"find it by --coordinator. Ends when the job is over.",
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ok, err := load(cmd, job); !ok {
				return err
			}
			log := options.Logger(job, os.Stderr, "role", "ps")
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			ctx = process.Noticed(ctx, job.Notice, log)
			b := new(board)
			stop, err := serveHTTP(job, b, job.Out, log)
			if err != nil {
				return err
			}
			defer stop()
			board := &scalars{dir: job.TensorBoard, out: job.Out, log: log}
			defer board.end()
			return node.Serve(ctx, job, log, func(c *coord.Coordinator) { b.begin(c); board.begin() }, func(r runlog.Result) error {
				if r.Steps == 0 && !r.Evaluated { // the training did not begin
					return nil
				}
				return Report(cmd.OutOrStdout(), r, job.JSON)
			})
		},
	}
	job.Bind(cmd, settings.ForServer)
	Complete(cmd)
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// Worker is star-worker.
func Worker(use string) *cobra.Command {
	job := new(settings.Job)
	cmd := &cobra.Command{
		Use:     use + " [-- COMMAND [ARGUMENT…]]",
		Version: build.Built().String(),
		Short:   "Compute gradients",
		Long: "Joins a job, computes gradients on its part of the data, and ends when the job is over.\n" +
			"With a command, that program computes them, in any language: docs/python.md, docs/link.md.",
		Args: programArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if ok, err := load(cmd, job); !ok {
				return err
			}
			// The graph library makes much short-lived garbage around the buffers that
			// we keep; collecting half as often costs little memory.
			debug.SetGCPercent(200)
			log := options.Logger(job, os.Stderr, "role", "worker")
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			ctx = process.Noticed(ctx, job.Notice, log)
			stop, err := serveHTTP(job, new(board), "", log)
			if err != nil { // one file of settings may be that of all processes of a host
				log.Warn("no /metrics: the address cannot be opened", "err", err)
				stop = func() {}
			}
			defer stop()
			program, err := programOf(args, os.Stdout, log)
			if err != nil {
				return err
			}
			if program != nil {
				return program.work(ctx, job)
			}
			return node.Work(ctx, job, log, samplerCommand())
		},
	}
	job.Bind(cmd, settings.ForWorker)
	Complete(cmd)
	cmd.CompletionOptions.HiddenDefaultCmd = true
	return cmd
}

// programArgs takes a command behind --.
func programArgs(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
		return nil
	}
	return settings.NoArgs(cmd, args)
}

// Report prints the result of a run.
func Report(w io.Writer, r runlog.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	wall := r.Wall.Duration().Round(10 * time.Millisecond)
	verb := "trained"
	if r.Error != "" {
		verb = "ended"
	}
	var b strings.Builder
	if r.Steps == 0 && r.Evaluated && r.Error == "" {
		fmt.Fprintf(&b, "evaluated %s on %s: nothing was trained\n", r.Model, r.Dataset)
	} else {
		fmt.Fprintf(&b, "%-9s %s on %s: %d samples in %d updates, %v (%.0f samples/s)\n", verb, r.Model, r.Dataset, r.Samples, r.Updates, wall, r.SamplesPerS)
	}
	if r.Ended != "" {
		fmt.Fprintf(&b, "ended by  %s\n", r.Ended)
	}
	if r.Aside > 0 {
		fmt.Fprintf(&b, "put aside %d samples that two workers died of: lines \"aside\" of the run log\n", r.Aside)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note      %s\n", n)
	}
	if r.Baseline != "" {
		fmt.Fprintf(&b, "baseline  %s\n", r.Baseline)
	}
	fmt.Fprintf(&b, "mode      %s, staleness %.2f mean, %d max, %d switches\n", r.Mode, r.Staleness.Mean, r.Staleness.Max, r.Switches)
	var losses []string
	if r.Steps > 0 {
		losses = append(losses, loss(r.TrainLoss)+" in training")
	}
	if r.Evaluated {
		losses = append(losses, loss(r.TestLoss)+" on the test set")
	}
	fmt.Fprintf(&b, "loss      %s\n", strings.Join(losses, ", "))
	if r.Evaluated {
		fmt.Fprintf(&b, "accuracy  %.2f %%\n", 100*r.TestAccuracy)
	}
	fmt.Fprintf(&b, "files     %s\n", r.RunLog)
	if r.Checkpoint != "" {
		fmt.Fprintf(&b, "          %s\n", r.Checkpoint)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func loss(n runlog.Number) string {
	if f := float64(n); f-f != 0 {
		return "not finite"
	}
	return fmt.Sprintf("%.4f", float64(n))
}
