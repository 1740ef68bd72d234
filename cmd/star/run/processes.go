package run

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"star/cmd/internal/launch"
	"star/internal/settings"
)

// processesCommand is what star run --procs-per-worker starts as each worker.
func processesCommand() *cobra.Command {
	return &cobra.Command{
		Use:    launch.ProcessesCommand + " N -- COMMAND [ARGUMENT…]",
		Short:  "The processes of a worker of star run --procs-per-worker",
		Hidden: true,
		Args:   cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return &settings.UsageError{Msg: fmt.Sprintf("star %s: %q is not a number of processes", launch.ProcessesCommand, args[0])}
			}
			code, err := launch.Processes{Command: args[1:], N: n, Stdout: os.Stdout, Stderr: os.Stderr}.Run()
			if err != nil {
				return err
			}
			os.Exit(code) // the processes have printed the reason
			return nil
		},
	}
}
