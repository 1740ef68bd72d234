package plan

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/internal/settings"
)

func inventoryCommand() *cobra.Command {
	s := new(settings.Set)
	var name, link string
	var asJSON bool
	settings.Var(s, &name, "name", "", "what the host is called; empty: its own name")
	settings.Var(s, &link, "interface", "", "network interface that gives the speed; empty: that of the default route")
	settings.Var(s, &asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Say what this host has, as an entry for a file of hosts",
		Long: `Prints the entry of this host for the file of star place and star run --hosts: processors and memory, as far as
the control group may use them, the speed of the link, and the GPUs with their memory, MIG slices one by one, those of
CUDA_VISIBLE_DEVICES where that is set.

  star inventory >> cluster.yaml
  ssh gpu7 star inventory --name gpu7`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := inventory.Detect(link)
			if name != "" {
				f.Name = name
			}
			gpus, err := daemon.Devices(cmd.Context())
			if err != nil {
				f.Notes = append(f.Notes, "the GPUs could not be listed: "+strings.Join(strings.Fields(err.Error()), " "))
			}
			f.GPUs = []inventory.FoundGPU{}
			for _, g := range gpus {
				f.GPUs = append(f.GPUs, inventory.FoundGPU{UUID: g.UUID, Name: g.Name, Slices: g.Slices, Of: g.Of, Memory: g.Memory})
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(f)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), f.YAML())
			return err
		},
	}
	cli.Bind(cmd, s)
	return cmd
}
