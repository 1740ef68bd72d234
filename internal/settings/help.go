package settings

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpAllFlag is a flag that every command with the settings of a job has.
const helpAllFlag = "help-all"

// helpWidth is the columns of --help.
const helpWidth = 110

// helpGroups has the heading of --help for each setting, and its commands: after the colon
// r is star run and similar commands, p star ps and w star worker. A name without a colon is only in
// --help-all. Each setting is in one group (TestHelpGroups).
var helpGroups = []struct{ heading, settings string }{
	{"What is trained", "model:rpw dataset:rpw batch:rpw epochs:rp samples steps:rp seed:rpw eval-every"},
	{"How it learns", "optimizer:rpw lr:rpw momentum:rpw weight-decay clip schedule:rp on-nan poison"},
	{"How workers synchronise", "mode:rp arch:rpw compress:rw wire:rw baseline:rpw shares whole-batches update-scale decider predictor ps-bandwidth capacity-cpu capacity-net model-prior tree-fan-in pace-pushes"},
	{"All-reduce", "rider-wait max-staleness bucket allreduce-model allreduce-algorithm allreduce-connections allreduce-transport allreduce-checksum allreduce-zero-copy allreduce-segment allreduce-buffer host-id"},
	{"Processes and hosts", "job:rpw workers:rpw procs-per-worker:r min-workers max-workers servers:rp shards:rp rank:pw hosts:r demands print-placement threads timer-slack"},
	{"Addresses", "listen:rp advertise:p coordinator:pw gossip gossip-join gossip-key congestion"},
	{"Checkpoints and results", "out:rp log-max checkpoint-every:rp checkpoint keep resume:rp resume-other-data grace notice"},
	{"When something fails", "replicas:rpw coordinators:rpw restarts:r worker-restarts on-failure leave-at-once join-timeout dead-after move-shards"},
	{"Security", "token:pw tls-cert:pw tls-key:pw tls-ca:pw insecure"},
	{"Other jobs on the same hosts", "cluster cluster-join cluster-key actuator limit limit-interface lease-dir"},
	{"Stragglers on purpose", "slow:rw straggler-trace straggler-iteration straggler-by revoke"},
	{"Output", "http:rpw json:rp progress:r log-level:pw log-format tensorboard telemetry"},
}

// group has --help list the flags of a command with the settings of a job by groups, those that its users need;
// --help-all lists all.
func (s *Set) group(cmd *cobra.Command, role Role) {
	all := false
	f := cmd.Flags().VarPF(&helpAll{cmd, &all}, helpAllFlag, "", "help with every setting")
	f.NoOptDefVal = "true"
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		fmt.Fprintf(c.OutOrStderr(), "Usage:\n  %s\n", c.UseLine())
		for _, g := range flagGroups(c.Flags(), role, all) {
			fmt.Fprintf(c.OutOrStderr(), "\n%s:\n%s", g.heading, g.flags.FlagUsagesWrapped(helpWidth))
		}
		if !all {
			fmt.Fprintf(c.OutOrStderr(), "\n%s --%s lists all %d settings.\n", c.CommandPath(), helpAllFlag, len(s.items))
		}
		return nil
	})
}

// flagGroup is flags under one heading.
type flagGroup struct {
	heading string
	flags   *pflag.FlagSet
}

// flagGroups are the flags of a command by groups: those that are for a role, or all. What is no setting of a job
// is in the last.
func flagGroups(flags *pflag.FlagSet, role Role, all bool) (gs []flagGroup) {
	letter := string("rpw"[role])
	grouped := map[string]bool{}
	add := func(heading string, fs ...*pflag.Flag) {
		g := flagGroup{heading, pflag.NewFlagSet("", pflag.ContinueOnError)}
		g.flags.SortFlags = false
		for _, f := range fs {
			g.flags.AddFlag(f)
		}
		if g.flags.HasFlags() {
			gs = append(gs, g)
		}
	}
	for _, g := range helpGroups {
		var fs []*pflag.Flag
		for _, word := range strings.Fields(g.settings) {
			name, roles, _ := strings.Cut(word, ":")
			if grouped[name] = true; all || strings.Contains(roles, letter) {
				if f := flags.Lookup(name); f != nil {
					fs = append(fs, f)
				}
			}
		}
		add(g.heading, fs...)
	}
	var rest []*pflag.Flag
	flags.VisitAll(func(f *pflag.Flag) {
		if !grouped[f.Name] {
			rest = append(rest, f)
		}
	})
	add("This command", rest...)
	return gs
}

// helpAll is the value of --help-all, which is --help for everything.
type helpAll struct {
	cmd *cobra.Command
	all *bool
}

func (h *helpAll) String() string   { return "" }
func (h *helpAll) Type() string     { return "bool" }
func (h *helpAll) IsBoolFlag() bool { return true }
func (h *helpAll) Set(string) error {
	*h.all = true
	return h.cmd.Flags().Set("help", "true")
}
