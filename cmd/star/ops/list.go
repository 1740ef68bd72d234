package ops

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/build"
	"star/internal/settings"
	"star/train/data"
	"star/train/net"
)

// listed makes a command that prints something in words, or as JSON.
func listed(use, short, long string, value func() any, text func(w io.Writer)) *cobra.Command {
	var s settings.Set
	var asJSON bool
	settings.Var(&s, &asJSON, "json", false, "as JSON on standard output")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(value())
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			text(w)
			return w.Flush()
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

func versionCommand() *cobra.Command {
	return listed("version", "Print version and commit", "Prints the version, the commit that the program was built from, where Go knows it, and with what it was built.",
		func() any { return build.Built() },
		func(w io.Writer) { fmt.Fprintln(w, "star", build.Built()) })
}

func modelsCommand() *cobra.Command {
	type model struct {
		Name  string `json:"name"`
		About string `json:"about"` // with its settings and their defaults
	}
	return listed("models", "List the models", "Lists what --model takes: NAME or NAME:key=value,…, with what each one's settings are by default.",
		func() any {
			var all []model
			for _, name := range net.Names() {
				all = append(all, model{name, net.About(name)})
			}
			return all
		},
		func(w io.Writer) {
			for _, name := range net.Names() {
				fmt.Fprintf(w, "%s\t%s\n", name, net.About(name))
			}
		})
}

func datasetsCommand() *cobra.Command {
	type dataset struct {
		Name    string   `json:"name"`
		Usage   string   `json:"usage"`
		Options []string `json:"options"`
		Summary string   `json:"summary"`
	}
	return listed("datasets", "List the formats of data sets", "Lists what --dataset takes. docs/data.md has the formats.",
		func() any {
			var all []dataset
			for _, f := range data.Formats() {
				all = append(all, dataset{f.Name, f.Usage, append([]string{}, f.Options...), f.Summary})
			}
			return all
		},
		func(w io.Writer) {
			for _, f := range data.Formats() {
				fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, f.Summary, f.Usage)
			}
		})
}
