package sched

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/sched"
	"star/sched/schedsim"
	"star/sched/workload"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{schedCommand(), submitCommand()}
}

// schedSim are the settings of star sched sim and star sched import.
type schedSim struct {
	schedsim.Input
	jobs, plot, events                 string
	compat, profiling                  string
	slow, slowMode, revoke, placement  string
	alpha, estimateError, estimateBias float64
	seed                               uint64
	policies                           []string
	slot, start, resize, horizon       time.Duration
	asJSON, asCSV                      bool
}

func schedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sched",
		Short: "Decide which job gets which GPUs: policies, simulated and live",
		Long: `Simulates clusters under published scheduling policies, and runs STAR jobs under them. docs/policies.md says what each policy does.

  star sched sim jobs.csv --cluster n16g8 --policy fifo,srtf,tiresias     in virtual time
  star sched serve --policy elasticflow                                   a queue of jobs that run
  star sched submit job.yaml --deadline 2h                                a job for it`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetOut(schedsim.StandardOutput{Writer: os.Stdout})
	cmd.AddCommand(schedSimCommand(), schedCompareCommand(), schedImportCommand(), schedMarketCommand(), schedGenCommand(), schedEstimateCommand(), schedScalingCommand(), schedServeCommand(), schedSubmitCommand(), schedStatusCommand(), schedCancelCommand())
	return cmd
}

func schedSimCommand() *cobra.Command {
	p := new(schedSim)
	s := &p.Set
	p.BindTrace()
	settings.Var(s, &p.Cluster, "cluster", "", "nodes and GPUs of each, such as n16g8; machines with and without a GPU, such as 5gpu+5cpu; or a cluster file of ElasticFlow, Muri or Lucid (virtual clusters)")
	settings.Var(s, &p.Estimates, "estimates", "", "folder with what lucid needs: colocate_info.csv and *throughput_pred.csv")
	settings.Var(s, &p.policies, "policy", []string{"fifo"}, "one or more of "+strings.Join(sched.Policies(), ", "))
	settings.Var(s, &p.alpha, "alpha", .1, "allox considers jobs of this fraction of the users, the least served ones")
	settings.Var(s, &p.profiling, "profiling", "on", "on: jobs of the format allox start after parts of them have run on both kinds of machines", "on", "off")
	settings.Var(s, &p.Queues, "queues", "", "AlloX file with the order of the users' queues; without it: by first submission")
	settings.Var(s, &p.slot, "slot", 240*time.Second, "least time between two rounds of a policy that plans")
	settings.Var(s, &p.start, "start", 0, "time of a start or a resume, without progress; for policies that star sched serve has")
	settings.Var(s, &p.resize, "resize", 0, "time until added GPUs of a running job are used; 0: as long as --start")
	settings.Var(s, &p.horizon, "horizon", 0, "how far ef and ef-admission plan ahead, each job once, for large traces; 0: all jobs at each decision, without bound")
	settings.Var(s, &p.compat, "compat", "", "removed: sched-originals follows the authors' programs, with the same settings",
		"", "elasticflow", "lucid", "allox", "muri")
	settings.Var(s, &p.placement, "placement", "consolidated", "which GPUs a job gets: consolidated, as few nodes as possible with the fewest GPUs left over; first-fit, the first nodes; buddy, blocks of powers of two", "consolidated", "first-fit", "buddy")
	settings.Var(s, &p.slow, "slow", "", "slow nodes: a CSV file with node, from, to (s) and factor (time multiplier), or seed:N for random ones")
	settings.Var(s, &p.slowMode, "slow-mode", "wait", "effect of a slow node on its jobs: wait, all their GPUs wait for it; queue, they take batches from one queue, as in STAR's mode ssgd queue=N", "wait", "queue")
	settings.Var(s, &p.estimateError, "estimate-error", 0, "errors of the durations that policies see: the standard deviation of the logarithm of their ratio to the real ones")
	settings.Var(s, &p.estimateBias, "estimate-bias", 0, "share by which policies overestimate all durations; below 0: underestimate")
	settings.Var(s, &p.seed, "seed", 1, "seed of --estimate-error")
	settings.Var(s, &p.revoke, "revoke", "", "nodes are taken away and replaced, as with star run --revoke: rate:PER_HOUR, trace:FILE (worker: the node), k80, p100 or v100; such as k80:replace=2m,seed=7")
	settings.Var(s, &p.jobs, "jobs", "", "write a table of jobs to this file; - is standard output")
	settings.Var(s, &p.events, "events", "", "write when each job had how many GPUs to this file, as CSV; - is standard output")
	settings.Var(s, &p.plot, "plot", "", "folder for pictures of completion times, waiting jobs, used GPUs, and the jobs on them: jct.svg, queue.svg, utilisation.svg, schedule-POLICY.svg")
	settings.Var(s, &p.asJSON, "json", false, "the summary as JSON on standard output")
	settings.Var(s, &p.asCSV, "csv", false, "the summary as CSV on standard output")
	cmd := &cobra.Command{
		Use:   "sim TRACE",
		Short: "Simulate a trace of jobs on a cluster under one policy, or compare several",
		Long: `Simulates how long the jobs of a trace would wait and run on a cluster under each policy (docs/policies.md).
"JCT ratio" is the mean completion time of a policy divided by that of the first one, over the jobs that end under both.
The policy pollux follows its paper and was not checked against its program; star is our own policy.

  star sched sim jobs.csv --cluster n16g8 --policy fifo,srtf,tiresias
  star sched sim trace.csv --format lucid --cluster vc_config.csv --policy srtf --jobs out.csv
  star sched sim jobs_input.txt --format allox --cluster 5gpu+5cpu --policy allox,sjf,srpt --alpha 0.3
  star sched sim trace.csv --format elasticflow --cluster n16g8.csv --throughputs throughputs_A100 --policy edf --slot 240s

Files may be gzipped; the trace - is standard input.`,
		Args: oneTrace,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.sim(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

func schedImportCommand() *cobra.Command {
	p := new(schedSim)
	s := &p.Set
	p.BindTrace()
	cmd := &cobra.Command{
		Use:   "import TRACE",
		Short: "Write a trace of jobs in STAR's own format",
		Long:  "Reads a trace of jobs and writes it to standard output as CSV: job_id, vc, submit, gpus, duration, deadline, estimate, history, in seconds,\nand columns for all else that the trace says of jobs, so that every policy decides as with the trace itself.",
		Args:  oneTrace,
		RunE: func(cmd *cobra.Command, args []string) error {
			jobs, err := p.Trace(args[0])
			if err != nil {
				return err
			}
			p.LeftOut(cmd.ErrOrStderr(), jobs)
			return job.WriteError(workload.Write(cmd.OutOrStdout(), jobs))
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// wantArgs returns an error with the arguments that a command wants unless it got from least to most.
func wantArgs(cmd *cobra.Command, args []string, least, most int, want string) error {
	if n := len(args); n < least || n > most {
		return &settings.UsageError{Msg: fmt.Sprintf("%s: want %s, got %d arguments", cmd.CommandPath(), want, n)}
	}
	return nil
}

func oneTrace(cmd *cobra.Command, args []string) error {
	return wantArgs(cmd, args, 1, 1, "one trace of jobs")
}

// errPicturesFolder is the error for --plot -.
var errPicturesFolder = errors.New("is a folder of pictures, not one of them: name one, such as pictures")

// slowNodes makes nodes slow as --slow describes.
func (p *schedSim) slowNodes(vcs map[string]sched.Cluster, jobs []*sched.Job) error {
	if p.slow == "" {
		return nil
	}
	var spells map[string][]sched.Spell
	if text, random := strings.CutPrefix(p.slow, "seed:"); random {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return p.Set.Invalid("slow", fmt.Errorf("%q is no seed: want seed: and a whole number", p.slow))
		}
		spells = workload.RandomSlow(vcs, jobs, func(vc string, node int) sched.Random {
			return rand.New(rand.NewPCG(seedOf(seed, vc), uint64(node)))
		})
	} else if err := schedsim.ReadInput(p.slow, func(r io.Reader) (err error) {
		spells, err = workload.ReadSlow(r, vcs)
		return err
	}); err != nil {
		return err
	}
	for vc, c := range vcs {
		slow, err := sched.NewSlow(spells[vc])
		if err != nil {
			return job.FileError(workload.Bad("%s: %v", p.slow, err), workload.ErrInput)
		}
		slow.Queue = p.slowMode == "queue"
		c.Slow = slow
		vcs[vc] = c
	}
	return nil
}

// valid returns an error for invalid settings of star sched sim.
func (p *schedSim) valid() error {
	switch {
	case !(p.alpha > 0 && p.alpha <= 1):
		return p.Set.Invalid("alpha", errors.New("want more than 0, and at most 1"))
	case p.slot < time.Second:
		return p.Set.Invalid("slot", errors.New("want a second or more"))
	case p.horizon < 0 || p.horizon > 0 && p.horizon < p.slot:
		return p.Set.Invalid("horizon", errors.New("want 0, or a slot or more"))
	case p.start < 0:
		return p.Set.Invalid("start", errors.New("want 0 or more"))
	case p.resize < 0:
		return p.Set.Invalid("resize", errors.New("want 0 or more"))
	case !(p.estimateError >= 0 && p.estimateError <= 5):
		return p.Set.Invalid("estimate-error", errors.New("want 0 to 5; with 0.5 two of three jobs are thought to take 0.61 to 1.65 times as long as they do"))
	case !(p.estimateBias > -1 && p.estimateBias <= 10):
		return p.Set.Invalid("estimate-bias", errors.New("want more than -1, and 10 at most; with 0.05 jobs are thought to take 5 % longer than they do"))
	case p.asCSV && p.asJSON:
		return &settings.UsageError{Msg: "--csv and --json: one summary, give one of them"}
	case p.jobs == "-" && p.events == "-":
		return &settings.UsageError{Msg: "--jobs - and --events -: there is one standard output, give a file to one of them"}
	case p.jobs == "-" && (p.asCSV || p.asJSON):
		return &settings.UsageError{Msg: "--jobs - writes the table of jobs in the place of the summary: leave out --csv and --json, or give a file to --jobs"}
	case p.events == "-" && (p.asCSV || p.asJSON):
		return &settings.UsageError{Msg: "--events - writes the events in the place of the summary: leave out --csv and --json, or give a file to --events"}
	case p.plot == "-":
		return p.Set.Invalid("plot", errPicturesFolder)
	case len(p.policies) == 0:
		return p.Set.Invalid("policy", fmt.Errorf("which? give one or more of %s", strings.Join(sched.Policies(), ", ")))
	}
	if err := p.dependent(); err != nil {
		return err
	}
	for i, policy := range p.policies {
		switch {
		case !slices.Contains(sched.Policies(), policy):
			return p.Set.Invalid("policy", fmt.Errorf("there is no policy %q: %swant one of %s", policy, meantPolicy(policy), strings.Join(sched.Policies(), ", ")))
		case slices.Contains(p.policies[:i], policy):
			return p.Set.Invalid("policy", fmt.Errorf("%s occurs twice: leave one out", policy))
		}
	}
	return nil
}

// meantPolicy asks whether another name was meant.
func meantPolicy(name string) string {
	if n := cmp.Or(sched.Known(name), settings.Nearest(name, sched.Policies())); n != "" {
		return "did you mean " + n + "? "
	}
	return ""
}

// read reads the input of the simulation: jobs, machines, and options except for the policy.
func (p *schedSim) read(trace string) (jobs []*sched.Job, vcs map[string]sched.Cluster, o sched.Options, err error) {
	if p.compat != "" {
		return nil, nil, o, p.Set.Invalid("compat", fmt.Errorf("another command follows this program, with the same settings: "+
			"go run ./sched/originals/cmd/sched-originals TRACE --compat %s --policy %s (sched/originals/README.md)",
			p.compat, strings.Join(p.policies, ",")))
	}
	if o.Placement, err = sched.ParsePlacement(p.placement); err != nil {
		return nil, nil, o, p.Set.Invalid("placement", err)
	}
	if err = p.valid(); err != nil {
		return nil, nil, o, err
	}
	if jobs, err = p.Trace(trace); err != nil {
		return nil, nil, o, err
	}
	if vcs, err = p.Clusters(jobs); err != nil {
		return nil, nil, o, err
	}
	if err = p.slowNodes(vcs, jobs); err != nil {
		return nil, nil, o, err
	}
	if err = p.revoked(vcs, jobs); err != nil {
		return nil, nil, o, err
	}
	if p.estimateError > 0 || p.estimateBias != 0 {
		sched.Misjudge(jobs, p.estimateError, p.estimateBias, rand.New(rand.NewPCG(p.seed, 0)))
	}
	if o.Profile, err = p.Profile(); err != nil {
		return nil, nil, o, err
	}
	o.Users, err = p.Users(jobs)
	o.Slot, o.Start, o.Resize, o.Horizon = math.Round(p.slot.Seconds()), p.start.Seconds(), p.resize.Seconds(), p.horizon.Seconds()
	o.Alpha, o.Profiling = p.alpha, p.profiling == "on"
	return jobs, vcs, o, err
}

// schedFile is what a setting has written of each policy to a file.
type schedFile struct {
	setting string
	io.Closer
	schedWriter
}

type schedWriter interface {
	Write(policy string, out []sched.Outcome) error
}

// files are those of --jobs and --events, with their headers.
func (p *schedSim) files(w io.Writer, vcs map[string]sched.Cluster) (files []schedFile, err error) {
	for _, of := range []struct {
		setting, file string
		writer        func(io.Writer) schedWriter
	}{
		{"jobs", p.jobs, func(f io.Writer) schedWriter { return workload.NewOutcomes(f) }},
		{"events", p.events, func(f io.Writer) schedWriter { return workload.NewEvents(f, vcs) }},
	} {
		f, err := schedsim.Output(of.file, w)
		if err != nil {
			return nil, err
		}
		if f != nil {
			files = append(files, schedFile{of.setting, f, of.writer(f)})
		}
	}
	return files, nil
}

func (p *schedSim) sim(w, progress io.Writer, trace string) error {
	jobs, vcs, o, err := p.read(trace)
	if err != nil {
		return err
	}
	for _, o.Policy = range p.policies { // before files are written, and before the first policy has taken its time
		if err := sched.Check(jobs, vcs, o); err != nil {
			return p.Set.Invalid("policy", err)
		}
	}
	p.LeftOut(progress, jobs)
	p.noteUnused(progress, jobs, o)
	p.notePredictions(progress, jobs)
	inputs := map[string]string{"the trace": trace, "the file of --cluster": p.Cluster, "the file of --slow": p.slow, "the file of --queues": p.Queues}
	if err := schedsim.KeepInput(&p.Set, "jobs", p.jobs, inputs); err != nil {
		return err
	}
	inputs["the file of --jobs"] = p.jobs
	if err := schedsim.KeepInput(&p.Set, "events", p.events, inputs); err != nil {
		return err
	}
	files, err := p.files(w, vcs)
	if err != nil {
		return err
	}
	if p.jobs == "-" || p.events == "-" {
		w = io.Discard
	}
	gpus := 0
	for _, c := range vcs {
		gpus += c.Nodes*c.GPUs + c.Plain
	}
	var curves schedCurves
	var summary schedsim.Summary
	for _, policy := range p.policies {
		begin := time.Now()
		o.Policy, o.Progress = policy, schedsim.Progress(progress, policy, time.Now)
		out, err := sched.Run(jobs, vcs, o)
		if err != nil {
			return p.Set.Invalid("policy", err)
		}
		if p.plot != "" {
			curves.add(policy, out, gpus)
		}
		summary.Add(policy, out, time.Since(begin))
		for _, f := range files {
			if err := f.Write(policy, out); err != nil {
				return job.WriteError(fmt.Errorf("--%s: %w", f.setting, err))
			}
		}
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			return job.WriteError(fmt.Errorf("--%s: %w", f.setting, err))
		}
	}
	if p.plot != "" {
		if err := curves.write(p.plot); err != nil {
			return err
		}
	}
	switch {
	case p.asJSON:
		return json.NewEncoder(w).Encode(summary.Results)
	case p.asCSV:
		return summary.CSV(w)
	}
	return summary.Table(w)
}
