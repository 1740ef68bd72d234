// Star-worker computes gradients for a job.
// star-worker --help lists the settings that its users need, --help-all all; docs/configure.md explains them.
package main

import (
	"github.com/spf13/cobra"

	"star/cmd/internal/daemon"
)

func main() {
	cmd := daemon.Worker("star-worker")
	cmd.AddCommand(daemon.Sampler())
	cmd.SetHelpCommand(&cobra.Command{Hidden: true}) // settings, not commands, are what it has
	daemon.Main(cmd)
}
