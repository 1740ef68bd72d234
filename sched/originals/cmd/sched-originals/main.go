// Sched-originals simulates a trace of jobs as the programs of published schedulers do, with what they have otherwise
// than the policies of star sched sim, which has the same settings and writes the same tables.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/internal/settings"
	"star/job"
	"star/sched"
	"star/sched/originals"
	"star/sched/schedsim"
	"star/sched/workload"
)

func main() {
	cmd := command(os.Environ())
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "sched-originals: "+strings.TrimPrefix(err.Error(), "sched-originals: "))
		os.Exit(job.ExitCode(err))
	}
}

// simulation are the command's settings.
type simulation struct {
	schedsim.Input
	policies  []string
	slot      time.Duration
	compat    string
	alpha     float64
	profiling string
	gain      string
	jobs      string
	asJSON    bool
}

func command(environ []string) *cobra.Command {
	p := new(simulation)
	s := &p.Set
	p.BindTrace()
	settings.Var(s, &p.Cluster, "cluster", "", "a cluster: nodes and GPUs of each, such as n16g8; machines with a GPU and without, such as 5gpu+5cpu; or a file of ElasticFlow or of Lucid (virtual clusters)")
	settings.Var(s, &p.Estimates, "estimates", "", "folder with what lucid needs: colocate_info.csv and *throughput_pred.csv")
	settings.Var(s, &p.Queues, "queues", "", "file of AlloX with the order of the users' queues; without it: as they come")
	settings.Var(s, &p.policies, "policy", []string{"ef-admission"},
		"one or more of "+strings.Join(originals.Policies(), ", "))
	settings.Var(s, &p.compat, "compat", "", "the program to follow; without it, that of the trace's format",
		append([]string{""}, originals.Programs()...)...)
	settings.Var(s, &p.alpha, "alpha", .1, "allox considers jobs of this fraction of the users, the least served ones")
	settings.Var(s, &p.profiling, "profiling", "on", "on: jobs of the format allox start when parts of them have run on both kinds of machines", "on", "off")
	settings.Var(s, &p.slot, "slot", 240*time.Second, "how far apart rounds of ElasticFlow's policies are, at least: whole seconds")
	settings.Var(s, &p.gain, "gain", "largest", "ef and ef-admission give GPUs that are left over where a job's GPU-seconds grow most, as the program does: largest; or least: smallest", "largest", "smallest")
	settings.Var(s, &p.jobs, "jobs", "", "write a table of jobs to this file; - is standard output")
	settings.Var(s, &p.asJSON, "json", false, "the summary as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "sched-originals TRACE",
		Short: "Simulate a trace of jobs as the programs of published schedulers do",
		Long: `Reads a trace of jobs and says when each would start and end under the program of ElasticFlow, Muri, Lucid or AlloX,
job by job as there.

  sched-originals trace.csv --format elasticflow --cluster n16g8.csv --throughputs throughputs_A100 --policy ef-admission --slot 240s
  sched-originals trace.csv --format muri --cluster n8g8 --policy muri-s --jobs out.csv
  sched-originals trace.csv --format lucid --cluster vc_config.csv --policy srtf --jobs out.csv

Files may be packed by gzip; the trace - is standard input. sched/originals/README.md says what the programs have otherwise than star sched sim.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: fmt.Sprintf("want one trace of jobs, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := s.Resolve(settings.Sources{Environ: environ, Others: settings.JobNames()}); err != nil {
				return err
			}
			if s.PrintWanted() {
				return s.Print(cmd.OutOrStdout())
			}
			return p.simulate(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cmd.SetOut(schedsim.StandardOutput{Writer: os.Stdout})
	cmd.SetFlagErrorFunc(settings.FlagError)
	cmd.CompletionOptions.DisableDefaultCmd = true
	s.Bind(cmd)
	return cmd
}

// valid says what is wrong with the settings.
func (p *simulation) valid() error {
	switch {
	case !(p.alpha > 0 && p.alpha <= 1):
		return p.Set.Invalid("alpha", errors.New("want more than 0, and at most 1"))
	case p.slot < time.Second || p.slot%time.Second != 0:
		return p.Set.Invalid("slot", errors.New("want whole seconds, and one at least"))
	case p.jobs == "-" && p.asJSON:
		return &settings.UsageError{Msg: "--jobs - writes the table of jobs in the place of the summary: leave out --json, or give a file to --jobs"}
	case len(p.policies) == 0:
		return p.Set.Invalid("policy", fmt.Errorf("which? give one or more of %s", strings.Join(originals.Policies(), ", ")))
	}
	for i, policy := range p.policies {
		if slices.Contains(p.policies[:i], policy) {
			return p.Set.Invalid("policy", fmt.Errorf("%s occurs twice: leave one out", policy))
		}
	}
	return nil
}

// simulate reads what there is to simulate and writes what became of it.
func (p *simulation) simulate(w, progress io.Writer, trace string) error {
	if err := p.valid(); err != nil {
		return err
	}
	if trace == "-" { // it is read twice
		name, err := keep(os.Stdin)
		if err != nil {
			return err
		}
		defer os.Remove(name)
		trace = name
	}
	jobs, err := p.Trace(trace)
	if err != nil {
		return err
	}
	clusters, err := p.Clusters(jobs)
	if err != nil {
		return err
	}
	if c, there := clusters[""]; there && c.Switch == 0 {
		if _, short := workload.Short(p.Cluster); short {
			c.Switch = originals.SwitchOf(c)
			clusters[""] = c
		}
	}
	all, err := p.options(trace, jobs)
	if err != nil {
		return err
	}
	for _, o := range all { // before files are written, and before the first policy has taken its time
		if err := originals.Check(jobs, clusters, o); err != nil {
			return p.Set.Invalid("policy", err)
		}
	}
	if err := schedsim.KeepInput(&p.Set, "jobs", p.jobs, map[string]string{"the trace": trace, "the file of --cluster": p.Cluster, "the file of --queues": p.Queues}); err != nil {
		return err
	}
	p.LeftOut(progress, jobs)
	f, err := schedsim.Output(p.jobs, w)
	if err != nil {
		return err
	}
	var table *workload.Outcomes
	if f != nil {
		table = workload.NewOutcomes(f)
	}
	var summary schedsim.Summary
	for _, o := range all {
		begin := time.Now()
		o.Progress = schedsim.Progress(progress, o.Policy, time.Now)
		out, err := originals.Run(jobs, clusters, o)
		if err != nil {
			return p.Set.Invalid("policy", err)
		}
		summary.Add(o.Policy, out, time.Since(begin))
		if table != nil {
			if err := table.Write(o.Policy, out); err != nil {
				return job.WriteError(fmt.Errorf("--jobs: %w", err))
			}
		}
	}
	if f != nil {
		if err := f.Close(); err != nil {
			return job.WriteError(fmt.Errorf("--jobs: %w", err))
		}
	}
	switch {
	case p.jobs == "-":
		return nil
	case p.asJSON:
		return json.NewEncoder(w).Encode(summary.Results)
	}
	return summary.Table(w)
}

// program returns the program that has a policy: that of --compat; without it that of the trace's format, or else
// ElasticFlow's or Muri's.
func (p *simulation) program(policy string) (string, error) {
	programs := []string{p.compat}
	if p.compat == "" {
		programs = []string{p.Format, "elasticflow", "muri"}
	}
	for _, program := range programs {
		if originals.Has(program, policy) {
			return program, nil
		}
	}
	if named := programs[0]; slices.Contains(originals.Programs(), named) {
		has := strings.Join(originals.Policies(named), ", ")
		return "", fmt.Errorf("the program of %s has no policy %s: it has %s", named, policy, has)
	}
	all := strings.Join(originals.Programs(), ", ")
	return "", fmt.Errorf("the format %s names no program with a policy %s: give --compat %s", p.Format, policy, all)
}

// options are those of each policy.
func (p *simulation) options(trace string, jobs []*sched.Job) (all []originals.Options, err error) {
	o := originals.Options{
		Slot: p.slot.Seconds(), Turned: p.gain == "smallest", Alpha: p.alpha, Profiling: p.profiling == "on",
	}
	if p.Format == "muri" {
		read := func(r io.Reader) (err error) { o.Muri, err = originals.MuriTimes(r); return err }
		if err := schedsim.ReadInput(trace, read); err != nil {
			return nil, err
		}
	}
	if o.Profile, err = p.Profile(); err != nil {
		return nil, err
	}
	if o.Users, err = p.Users(jobs); err != nil {
		return nil, err
	}
	for _, o.Policy = range p.policies {
		if o.Program, err = p.program(o.Policy); err != nil {
			return nil, p.Set.Invalid("policy", err)
		}
		all = append(all, o)
	}
	return all, nil
}

// keep writes what there is to read to a file.
func keep(r io.Reader) (name string, err error) {
	f, err := os.CreateTemp("", "sched-originals")
	if err != nil {
		return "", job.WriteError(err)
	}
	_, err = io.Copy(f, r)
	return f.Name(), job.WriteError(errors.Join(err, f.Close()))
}
