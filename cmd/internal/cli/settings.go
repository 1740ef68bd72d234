package cli

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"star/internal/settings"
)

// Resolved reads a tool's settings. It returns true after it has printed them (--print-config): the command is done then.
func Resolved(cmd *cobra.Command, s *settings.Set) (done bool, err error) {
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

// Environ is the environment of this process. Tests replace it.
var Environ = os.Environ
