package cli

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"star/internal/settings"
)

// resolved reads a tool's settings. It returns true after it has printed them (--print-config): the command is done
// then.
func resolved(cmd *cobra.Command, s *settings.Set) (done bool, err error) {
	if _, err := s.Resolve(settings.Sources{Environ: Environ(), Others: settings.JobNames()}); err != nil {
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

// Bind declares a tool's settings as flags of its command, which reads them before it runs: with --print-config it
// prints them instead. cmd.RunE is set.
func Bind(cmd *cobra.Command, s *settings.Set) {
	s.Bind(cmd)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if done, err := resolved(cmd, s); done || err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// Environ is the environment of this process. Tests replace it.
var Environ = os.Environ
