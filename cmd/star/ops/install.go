package ops

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/durable"
	"star/internal/settings"
	"star/job"
	"star/train/checkpoint"
)

func installCommand() *cobra.Command {
	s := new(settings.Set)
	cmd := &cobra.Command{
		Use:   "install DIR",
		Short: "Copy this program into a folder, for containers that share it",
		Long: `Copies this program to DIR/star, and star-bucket, for checkpoints in object stores, where that is beside it.
An init container with STAR's image does so for a container with an image of your own, which runs DIR/star worker -- python train.py.
What was there before is replaced at once: a process that runs it goes on.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star install: want one folder: star install DIR"}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			for _, from := range []string{self, filepath.Join(filepath.Dir(self), checkpoint.HelperName)} {
				to := filepath.Join(args[0], "star")
				if from != self {
					if !exists(from) {
						continue
					}
					to = filepath.Join(args[0], checkpoint.HelperName)
				}
				if err := install(from, to); err != nil {
					return job.WriteError(fmt.Errorf("star install: %w: give a folder that can be written, such as one of a volume", err))
				}
				fmt.Fprintln(cmd.OutOrStdout(), to)
			}
			return nil
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// install copies a program atomically.
func install(from, to string) error {
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	return durable.WriteFile(to, program, 0o755)
}
