// Star launches jobs on one machine, talks to running ones, and carries the tools:
// star run, star ctl, star doctor, star bench. star ps and star worker are the
// daemons star-ps and star-worker.
package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"star/cmd/internal/daemon"
	"star/internal/build"
	"star/internal/settings"
	"star/sched/service"
)

func main() {
	service.Keep()
	keepPod()
	daemon.Main(root())
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "star",
		Short:   "Train on machines that are not perfectly even",
		Version: build.Built().String(),
		Long: `star trains one model with many workers, some of which are slower than others.

  star run                       a whole job on this machine: 2 parameter servers, 4 workers, one of them slow
  star run --slow 2:3x --mode asgd
  star top                       who does what in a running job
  star ctl mode x=3              change the mode of a running job
  star doctor                    what would go wrong here, and what to do about it
  star eval star-out             what the parameters that it came to are worth
  star explain star-out          who was slow in a run, when, why, and what was done about it
  star watch -- torchrun …       who is slow in a PyTorch job that does not run on STAR
  star plan --times 600ms,600ms,1200ms   what each mode would cost, and which one to choose
  star bench ps                  how fast gradients and parameters travel`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(settings.FlagError)
	cmd.AddCommand(runCommand(), ctlCommand(), benchCommand(), doctorCommand(), simCommand(), replayCommand(), planCommand(), placeCommand(), inventoryCommand(), matchCommand(), schedCommand(), explainCommand(), exportCommand(), viewCommand(), topCommand(), watchCommand(), reportCommand(), deciderCommand(), predictorCommand(), clusterCommand(), rankCommand(), limitsCommand(), traceCommand(), checkpointCommand(), certsCommand(), installCommand(), submitCommand(), evalCommand(), predictCommand(), versionCommand(), modelsCommand(), datasetsCommand(), daemon.Server("ps"), daemon.Worker("worker"), memberCommand(), daemon.Sampler(), movedCommand("chaos", "star-chaos"))
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

// resolved reads a tool's settings. True: they were only to be printed (--print-config), and have been.
func resolved(cmd *cobra.Command, s *settings.Set) (done bool, err error) {
	if _, err := s.Resolve(settings.Sources{Environ: environ(), Others: settings.JobNames()}); err != nil {
		return false, err
	}
	if s.PrintWanted() {
		return true, s.Print(cmd.OutOrStdout())
	}
	for _, w := range s.Bared() {
		if settings.LogsJSON(cmd) {
			slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)).Warn(w)
		} else {
			fmt.Fprintln(cmd.ErrOrStderr(), "star: warning: "+w)
		}
	}
	return false, nil
}
