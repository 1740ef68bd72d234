package settings

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every setting of a job is in one group of --help; --help shows the thirty that most users need to start a job, and
// --help-all shows all.
func TestHelpGroups(t *testing.T) {
	var j Job
	j.declare(ForRun)
	heading := map[string]string{}
	for _, g := range helpGroups {
		for _, word := range strings.Fields(g.settings) {
			name, roles, marked := strings.Cut(word, ":")
			if h := heading[name]; h != "" {
				t.Errorf("--%s is in %q and in %q", name, h, g.heading)
			}
			if heading[name] = g.heading; j.Config.byName[name] == nil {
				t.Errorf("%q has %q, which is no setting", g.heading, name)
			}
			if strings.Trim(roles, "rpw") != "" || marked && roles == "" {
				t.Errorf("%q is for %q, want some of r, p and w", name, roles)
			}
		}
	}
	for _, it := range j.Config.items {
		if heading[it.name] == "" {
			t.Errorf("--%s is in no group of --help", it.name)
		}
	}
	for role, most := range map[Role]int{ForRun: 32, ForServer: 40, ForWorker: 25} {
		for _, all := range []bool{false, true} {
			var j Job
			var out bytes.Buffer
			cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { t.Error("it runs"); return nil }}
			cmd.SetOut(&out)
			j.Bind(cmd, role)
			cmd.Flags().Bool("own", false, "of this command")
			cmd.SetArgs([]string{map[bool]string{false: "--help", true: "--help-all"}[all]})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, it := range j.Config.items {
				if strings.Contains(out.String(), "      --"+it.name+" ") {
					n++
				}
			}
			if all && n != len(j.Config.items) || !all && (n > most || n < 15) {
				t.Errorf("role %d, all %v: %d of %d settings are shown:\n%s", role, all, n, len(j.Config.items), &out)
			}
			for _, want := range []string{"--own", "--config", "--print-config", "--help-all", "What is trained:\n"} {
				if strings.Count(out.String(), want) == 0 {
					t.Errorf("role %d, all %v: no %s in\n%s", role, all, want, &out)
				}
			}
		}
	}
}
