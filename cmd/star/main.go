// Star launches jobs on one machine, talks to running ones, and carries the tools:
// star run, star ctl, star doctor, star bench. star ps and star worker are the
// daemons star-ps and star-worker.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"star/cmd/internal/daemon"
	"star/cmd/star/bench"
	"star/cmd/star/observe"
	"star/cmd/star/ops"
	"star/cmd/star/plan"
	"star/cmd/star/run"
	"star/cmd/star/sched"
	"star/internal/build"
	"star/internal/settings"
	"star/sched/service"
)

func main() {
	service.Keep()
	sched.KeepPod()
	daemon.Main(root())
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "star",
		Short:   "Train on machines that are not perfectly even",
		Version: build.Built().String(),
		Long: `star trains one model with many workers, even if some are slower than others.

  star run                       a whole job on this machine: 2 parameter servers, 4 workers, one of them slow
  star run --slow 2:3x --mode asgd
  star top                       what each worker of a running job does
  star ctl mode x=3              change the mode of a running job
  star doctor                    what would go wrong here, and what to do about it
  star eval star-out             what the parameters that it came to are worth
  star explain star-out          which workers were slow in a run, when, why, and what was done about it
  star watch -- torchrun …       which ranks are slow in a PyTorch job that does not run on STAR
  star plan --times 600ms,600ms,1200ms   what each mode would cost, and which one to choose
  star bench ps                  how fast gradients and parameters travel`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(settings.FlagError)
	for _, group := range [][]*cobra.Command{run.Commands(), observe.Commands(), sched.Commands(), bench.Commands(), plan.Commands(), ops.Commands()} {
		cmd.AddCommand(group...)
	}
	cmd.AddCommand(daemon.Server("ps"), daemon.Worker("worker"), daemon.Sampler(), movedCommand("chaos", "star-chaos"))
	cmd.CompletionOptions.HiddenDefaultCmd = true
	for _, c := range cmd.Commands() {
		daemon.Complete(c)
	}
	return cmd
}

// movedCommand says that a command is a program of its own.
func movedCommand(name, program string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &settings.UsageError{Msg: fmt.Sprintf("star %s: the program is %s, with the same flags; to get it, go install ./cmd/%[2]s in the source of STAR", name, program)}
		},
	}
}
