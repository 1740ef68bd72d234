package run

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/cmd/internal/daemon"
	"star/cmd/internal/launch"
	"star/cmd/internal/node"
	"star/cmd/star/plan"
	"star/internal/settings"
	"star/job"
	"star/job/process"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{runCommand(), memberCommand(), processesCommand()}
}

func runCommand() *cobra.Command {
	job := new(settings.Job)
	cmd := &cobra.Command{
		Use:   "run [-- COMMAND [ARGUMENT…]]",
		Short: "Run a whole job on this machine",
		Long: `Starts parameter servers and workers as processes of this machine, shows what they do, and ends when the
job is over. Without flags it is a demonstration: LeNet on generated digits, 2 shards, 4 workers, the last one
slowed 3x on purpose. With --dataset, --model or --hosts no worker is slowed, unless --slow says so.

A command after -- runs as each worker, with the worker's settings in its environment (STAR_…): a PyTorch script
(docs/python.md), or a program with its own model and data (docs/own-model.md).

The processes talk TCP over loopback, as they would between hosts. --slow none runs the demonstration without a straggler.`,
		Args: commandArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := daemon.Room(); err != nil {
				return err
			}
			warnings, err := job.Load(cli.Environ())
			if err != nil {
				return err
			}
			demo := demonstrates(job) && len(args) == 0
			if demo {
				job.Slow = []string{fmt.Sprintf("%d:3x", job.Workers-1)}
			}
			if slices.Equal(job.Slow, []string{"none"}) {
				job.Slow = nil
			}
			if job.Config.PrintWanted() {
				return job.Print(cmd.OutOrStdout())
			}
			if err := job.Validate(); err != nil {
				return err
			}
			command, err := findCommand(args, job.Hosts == "")
			if err != nil {
				return err
			}
			if job.ProcsPerWorker > 1 && len(command) == 0 {
				return job.Invalid("procs-per-worker", errors.New("only a command behind -- has several processes; a worker of star is one"))
			}
			if err := node.Check(job, len(command) > 0); err != nil {
				return err
			}
			o := launch.Options{Screen: console.NewScreen(job), Out: cmd.OutOrStdout(), Command: command, Demo: demo}
			for _, w := range warnings {
				o.Screen.Say("run", w)
			}
			if demo {
				o.Screen.Say("run", fmt.Sprintf("a demonstration: worker %d is slowed 3x, so that there is a straggler; --slow none leaves it alone", job.Workers-1))
			}
			if job.Hosts != "" {
				if o.Spread, err = spreadOut(cmd.Context(), job, len(command) > 0); err != nil {
					return err
				}
				if job.PrintPlacement {
					return plan.PrintSpread(cmd.OutOrStdout(), o.Spread, job.JSON)
				}
				for _, line := range o.Spread.Lines() {
					o.Screen.Say("run", line)
				}
			} else if job.PrintPlacement || job.Demands != "" {
				return job.Invalid("hosts", errors.New("a placement needs a file of hosts"))
			} else if err := node.CheckFolders(job); err != nil {
				return err
			}
			r, err := launch.New(job, o)
			if err != nil {
				return err
			}
			if o.Spread == nil { // else they are on several hosts, and each looks for itself
				if err := daemon.Threads(1 + r.Processes() + job.Workers); err != nil {
					return err
				}
			}
			ctx, cancel := process.Signals(context.Background(), r.Kill)
			defer cancel()
			return r.Attempts(ctx)
		},
	}
	job.Bind(cmd, settings.ForRun)
	return cmd
}

// spreadOut places the processes of a job on the hosts of its file.
func spreadOut(ctx context.Context, j *settings.Job, own bool) (*launch.Spread, error) {
	hosts, err := inventory.Hosts(j.Hosts)
	if err != nil {
		return nil, job.FileError(err, inventory.ErrFile)
	}
	if err := cli.DetectGPUs(ctx, hosts); err != nil {
		return nil, err
	}
	return launch.NewSpread(j, hosts, own)
}

// demonstrates reports whether a job is a demo, and so gets a straggler: no setting names a model, data or hosts.
func demonstrates(job *settings.Job) bool {
	for _, name := range []string{"dataset", "model", "hosts", "resume", "slow", "straggler-trace"} {
		if job.Config.IsSet(name) {
			return false
		}
	}
	return job.Workers > 1
}
