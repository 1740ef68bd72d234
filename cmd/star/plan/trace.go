package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star"
	"star/cmd/internal/cli"
	"star/internal/build"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/internal/unpack"
	"star/job"
	"star/job/process"
	"star/observe/watch"
	"star/runlog"
	"star/sim/trace"
	"star/sim/trace/ops"
)

func traceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Take in what other programs recorded",
		Args:  settings.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(traceImportCommand(), traceAttributeCommand())
	return cmd
}

// imports are the settings of what reads step logs.
type imports struct {
	columns  []string
	gaps     string
	profiles []*trace.Profile // of the files that are some
	flights  []*trace.Flight  // likewise
}

func (o *imports) declare(s *settings.Set) {
	settings.Var(s, &o.columns, "columns", []string(nil), "names of columns of a step log: rank=NAME, step=NAME, seconds=NAME or milliseconds=NAME; rank=file: each file is of one rank, from 0")
	settings.Var(s, &o.gaps, "gaps", "refuse", "steps of a step log that a rank lacks: refuse, or drop them")
}

// read reads step logs.
func (o *imports) read(s *settings.Set, paths []string) (*trace.Trace, []string, error) {
	c, err := trace.ParseColumns(o.columns)
	if err != nil {
		return nil, nil, s.Invalid("columns", err)
	}
	if o.gaps != "refuse" && o.gaps != "drop" {
		return nil, nil, s.Invalid("gaps", fmt.Errorf("%q is not refuse or drop", o.gaps))
	}
	m := &trace.Import{Columns: c, Drop: o.gaps == "drop"}
	for _, path := range paths {
		if err := o.readSteps(m, path); err != nil {
			return nil, nil, job.FileError(job.FileError(err, trace.ErrCorrupt), ops.ErrTrace)
		}
	}
	if err := o.addFlights(m); err != nil {
		return nil, m.Notices, job.FileError(err, trace.ErrCorrupt)
	}
	t, err := m.Trace(filepath.Base(paths[0]))
	return t, m.Notices, job.FileError(err, trace.ErrCorrupt)
}

// readSteps reads one file: a step log, a trace of PyTorch's profiler, one of its flight records, or operations in
// Parquet.
func (o *imports) readSteps(m *trace.Import, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return &settings.UsageError{Msg: fmt.Sprintf("star trace import: %s is a folder: give the files in it, such as %s", path, filepath.Join(path, "*"))}
	}
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || string(magic[:]) != "PAR1" {
		br, err := unpack.Reader(f)
		if err != nil {
			return m.Read(f, path) // which returns the error
		}
		if head, _ := br.Peek(4096); trace.IsProfile(head) {
			return o.readProfile(m, br, path)
		} else if trace.IsFlight(head) {
			return o.readFlight(m, br, path)
		}
		return m.Read(br, path)
	}
	all, err := ops.Open(path)
	if err != nil {
		return err
	}
	j, err := ops.New(ops.Meta{}, all)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, step := range j.Steps {
		for w, took := range j.Compute(i) {
			if err := m.Add(w, step, took, path); err != nil {
				return err
			}
		}
	}
	// The user selected its steps: the distance between them means nothing.
	m.Drop = true
	for _, s := range j.Skipped {
		m.Notices = append(m.Notices, path+": "+s+": left out")
	}
	return nil
}

// readProfile reads the trace of one rank: what counts is its own time, without the waiting in collectives.
func (o *imports) readProfile(m *trace.Import, r io.Reader, path string) error {
	p, err := trace.ReadProfile(r, path)
	if err != nil {
		return err
	}
	if p.Rank < 0 {
		p.Rank = len(o.profiles)
		m.Notices = append(m.Notices, fmt.Sprintf("%s does not say its rank: it counts as %d, by its place", path, p.Rank))
	}
	return o.addProfile(m, p, path)
}

// readFlight reads the flight record of one rank; its steps are known when all ranks are read.
func (o *imports) readFlight(m *trace.Import, r io.Reader, path string) error {
	f, err := trace.ReadFlight(r, path)
	if err != nil {
		return err
	}
	if f.Rank < 0 {
		f.Rank = len(o.flights)
		m.Notices = append(m.Notices, fmt.Sprintf("%s does not say its rank, at the end of its name either: it counts as %d, by its place", path, f.Rank))
	}
	o.flights = append(o.flights, f)
	return nil
}

// addFlights adds the steps of all flight records.
func (o *imports) addFlights(m *trace.Import) error {
	if len(o.flights) == 0 {
		return nil
	}
	profiles, notices, err := trace.FlightProfiles(o.flights)
	m.Notices = append(m.Notices, notices...)
	if err != nil {
		return err
	}
	for i, p := range profiles {
		if err := o.addProfile(m, p, o.flights[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// addProfile adds the steps of one rank.
func (o *imports) addProfile(m *trace.Import, p *trace.Profile, path string) error {
	o.profiles = append(o.profiles, p)
	m.Drop = true // profiles begin and end where they like
	for i, s := range p.Steps {
		if err := m.Add(p.Rank, int64(i), max(s.Took-s.Wait, 1e-9), path); err != nil {
			return err
		}
	}
	return nil
}

// tell writes the read steps as rows of star watch: a run log, and the slow ranks, in words.
func (o *imports) tell(s *settings.Set, t *trace.Trace, dir string, say func(string)) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return s.Invalid("run-log", err)
	}
	f, kept, err := process.CreateRunLog(filepath.Join(dir, process.RunLogName))
	if err != nil {
		return s.Invalid("run-log", err)
	}
	if kept != "" {
		say("kept the run log that was there as " + kept)
	}
	log := runlog.NewWriter(f)
	head := watch.NewHead(log, runlog.Start{Program: job.Program, Commit: build.Commit(), Time: time.Now().UTC(), Job: "imported"}, say)
	steps := func(w, i int) trace.ProfiledStep {
		own := t.Relative(star.Worker(w), int64(i)) * t.Median.Seconds()
		return trace.ProfiledStep{Took: own}
	}
	n := t.Steps
	if len(o.profiles) == t.Workers {
		by := make([]*trace.Profile, t.Workers)
		for _, p := range o.profiles {
			if p.Rank >= len(by) || by[p.Rank] != nil {
				return errors.Join(job.FileError(fmt.Errorf("two profiles of rank %d, or none of one below %d", p.Rank, len(by)), trace.ErrCorrupt), log.Close())
			}
			by[p.Rank], n = p, min(n, len(p.Steps))
		}
		steps = func(w, i int) trace.ProfiledStep { return by[w].Steps[i] }
	}
	for w := range t.Workers {
		head.Take(watch.Row{Kind: "hello", Rank: w, World: t.Workers, PID: w + 1, Host: "imported", How: "from " + t.Name, Script: "a job"}, 0)
	}
	at := time.Duration(0)
	for i := range n {
		longest := 0.0
		for w := range t.Workers {
			longest = max(longest, steps(w, i).Took)
		}
		at += time.Duration(longest * float64(time.Second))
		for w := range t.Workers {
			s := steps(w, i)
			head.Take(watch.Row{Kind: "step", Rank: w, PID: w + 1, Host: "imported", Step: int64(i), Took: longest, Load: s.Load, Wait: longest - (s.Took - s.Wait), Samples: 1}, at)
		}
	}
	head.End(at, "")
	if err := log.Close(); err != nil {
		return process.FullDisk(err)
	}
	say(fmt.Sprintf("star explain %s tells the story, star view %s shows it", dir, dir))
	return nil
}

func traceImportCommand() *cobra.Command {
	s := new(settings.Set)
	var in imports
	var out, story string
	in.declare(s)
	settings.Var(s, &out, "out", "-", "file of the trace; -: standard output")
	settings.Var(s, &story, "run-log", "", "folder for a run log of the same, instead of a trace: for star explain, star view and star export; and say which ranks were slow")
	cmd := &cobra.Command{
		Use:   "import FILE …",
		Short: "Make a straggler trace of step logs",
		Long: `Reads what the workers of a job logged of their steps, in one file or in several: CSV with a header or one JSON object on each line, plain or gzip, with
a rank, a step and how long it took. Or what torch.profiler has exported, a file of each rank: a step counts without the time in which only collectives
ran. Or what the flight recorder of NCCL or Gloo has written, a file of each rank: nothing in a pickle is run. Or operations in Parquet: their computing time counts. Writes a straggler trace, for --straggler-trace and for scenarios, or with --run-log which ranks were slow.

  star trace import steps.csv --out job.csv
  star trace import rank0.jsonl rank1.jsonl --columns rank=file,step=iter,milliseconds=took
  star trace import rank*.pt.trace.json.gz --run-log story    then star explain story
  star trace import nccl_trace_rank_* --run-log story
  star trace import trace-AR.parquet | gzip > AR.csv.gz`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &settings.UsageError{Msg: "star trace import needs a step log"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			t, notices, err := in.read(s, args)
			for _, n := range notices {
				fmt.Fprintln(cmd.ErrOrStderr(), n)
			}
			if err != nil {
				return err
			}
			if story != "" {
				return in.tell(s, t, story, func(text string) { fmt.Fprintln(cmd.OutOrStdout(), text) })
			}
			if out == "-" {
				_, err := t.WriteTo(cmd.OutOrStdout())
				return err
			}
			f, err := os.Create(out)
			if err != nil {
				return job.WriteError(err)
			}
			_, err = t.WriteTo(f)
			if err = errors.Join(err, f.Close()); err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d workers, %d steps, median %v\n", out, t.Workers, t.Steps, t.Median)
			}
			return err
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// attributed is the JSON of star trace attribute.
type attributed struct {
	Trace    string             `json:"trace"`
	DPSize   int                `json:"dp_size"`
	PPSize   int                `json:"pp_size"`
	VPPSize  int                `json:"vpp_size"`
	Steps    int                `json:"steps"`
	Skipped  []string           `json:"skipped,omitempty"`
	Recorded float64            `json:"recorded"`
	Launched float64            `json:"without_gaps"`
	Ideal    float64            `json:"without_stragglers"`
	Slowdown float64            `json:"slowdown"`
	Types    map[string]float64 `json:"types"`
	Data     []float64          `json:"dp_ranks"`
	Stages   []float64          `json:"stages"`
	Workers  []workerSlowdown   `json:"workers"`
	Bounded  bool               `json:"workers_bounded"`
	Worst    partJSON           `json:"slowest_workers"`
	Last     partJSON           `json:"last_stage"`
	Against  []comparedJSON     `json:"against,omitempty"`
	MaxError *float64           `json:"max_error,omitempty"`
}

type workerSlowdown struct {
	DPRank   int     `json:"dp_rank"`
	Stage    int     `json:"stage"`
	Slowdown float64 `json:"slowdown"`
}

type partJSON struct {
	Workers  [][2]int `json:"workers"` // dp_rank, stage
	Repaired float64  `json:"repaired"`
	Alone    float64  `json:"alone"`
	Removed  *float64 `json:"removed"` // null: there is no damage
	Added    *float64 `json:"added"`
}

type comparedJSON struct {
	File      string  `json:"file"`
	Name      string  `json:"name"`
	Ours      float64 `json:"ours"`
	Published float64 `json:"published"`
	Error     float64 `json:"error"`
}

// offError means that an attribution is not the published one.
type offError struct {
	name            string
	error, accepted float64
}

func (e *offError) Error() string {
	return fmt.Sprintf("%s is %.1f %% off the published number, more than %.1f %%", e.name, 100*e.error, 100*e.accepted)
}
func (e *offError) ExitCode() int { return exitcode.Failure }

func traceAttributeCommand() *cobra.Command {
	s := new(settings.Set)
	var meta string
	var against []string
	var tolerance float64
	var asJSON bool
	settings.Var(s, &meta, "meta", "", "YAML file that says how the job was cut: dp_size, pp_size, vpp_size; without it the trace says so")
	settings.Var(s, &against, "against", []string(nil), "published results to stand beside ours: result-*.json, mw-*.json, ms-*.json")
	settings.Var(s, &tolerance, "tolerance", 0.05, "how far from a published number ours may be; more is exit code 1")
	settings.Var(s, &asJSON, "json", false, "the attribution as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "attribute FILE.parquet",
		Short: "Say what stragglers cost a recorded job, and which workers cause it",
		Long: `Reads the operations of a job that was parallel in data and pipeline, and simulates its steps with the operations of all, of some or of no workers taking the usual
time of their type: what-if analysis as in Lin et al., OSDI 2025. docs/whatif.md has the method.

  star trace attribute trace-AR.parquet --meta meta-AR.yaml --against result-AR.json,mw-AR.json,ms-AR.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star trace attribute needs one Parquet file"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(tolerance > 0) || tolerance > 1 {
				return s.Invalid("tolerance", fmt.Errorf("%v is not above 0 and at most 1", tolerance))
			}
			return attribute(cmd, args[0], meta, against, tolerance, asJSON)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

func attribute(cmd *cobra.Command, path, meta string, against []string, tolerance float64, asJSON bool) error {
	var m ops.Meta
	if meta != "" {
		var err error
		if m, err = ops.OpenMeta(meta); err != nil {
			return job.FileError(err, ops.ErrTrace)
		}
	}
	all, err := ops.Open(path)
	if err != nil {
		return job.FileError(err, ops.ErrTrace)
	}
	j, err := ops.New(m, all)
	if err != nil {
		return job.FileError(fmt.Errorf("%s: %w", path, err), ops.ErrTrace)
	}
	r := j.Attribute()
	out := attributed{Trace: path, DPSize: r.Meta.Data, PPSize: r.Meta.Stages, VPPSize: r.Meta.Chunks, Steps: len(r.Steps), Skipped: j.Skipped,
		Recorded: r.Recorded, Launched: r.Launched, Ideal: r.Ideal, Slowdown: r.Slowdown, Types: r.Types, Data: r.Data, Stages: r.Stages, Bounded: r.Bounded}
	for w, x := range r.Workers {
		out.Workers = append(out.Workers, workerSlowdown{w / r.Meta.Stages, w % r.Meta.Stages, x})
	}
	part := func(p ops.Part) partJSON {
		q := partJSON{Repaired: p.Repaired, Alone: p.Alone}
		for _, w := range p.Workers {
			q.Workers = append(q.Workers, [2]int{w / r.Meta.Stages, w % r.Meta.Stages})
		}
		if !math.IsNaN(p.Removed) {
			q.Removed, q.Added = &p.Removed, &p.Added
		}
		return q
	}
	out.Worst, out.Last = part(r.Worst), part(r.Last)
	var off error
	for _, file := range against {
		text, err := os.ReadFile(file)
		if err != nil {
			return job.FileError(err, ops.ErrTrace)
		}
		lines, err := ops.Compare(r, file, text)
		if err != nil {
			return job.FileError(err, ops.ErrTrace)
		}
		for _, l := range lines {
			e := l.Error()
			if math.IsNaN(l.Ours) || math.IsInf(e, 0) { // there is no damage to have a part of
				l.Ours, e = 0, 1
			}
			out.Against = append(out.Against, comparedJSON{file, l.Name, l.Ours, l.Published, e})
			if out.MaxError == nil || e > *out.MaxError {
				out.MaxError = &e
				if e > tolerance {
					off = &offError{file + ": " + l.Name, e, tolerance}
				}
			}
		}
	}
	if asJSON {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(out); err != nil {
			return err
		}
		return off
	}
	return cmp.Or(out.text(cmd.OutOrStdout()), off)
}

// text prints an attribution for people.
func (a attributed) text(out io.Writer) error {
	fmt.Fprintf(out, "%s: %d data ranks × %d stages", a.Trace, a.DPSize, a.PPSize)
	if a.VPPSize > 1 {
		fmt.Fprintf(out, " of %d chunks", a.VPPSize)
	}
	fmt.Fprintf(out, ", %d steps\n", a.Steps)
	for _, s := range a.Skipped {
		fmt.Fprintf(out, "left out: %s\n", s)
	}
	fmt.Fprintf(out, "A step takes %.3f, %.3f without the gaps between operations, and %.3f with no stragglers: slowdown S = %.3f.\n\n", a.Recorded, a.Launched, a.Ideal, a.Slowdown)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "S if only\t\tis slow\t\n")
	line := func(what string, k any, s float64) { fmt.Fprintf(w, "%s\t%v\t%.3f\t\n", what, k, s) }
	for d, s := range a.Data {
		line("data rank", d, s)
	}
	for k, s := range a.Stages {
		line("stage", k, s)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Types)) {
		line("type", name, a.Types[name])
	}
	slow := slices.SortedStableFunc(slices.Values(a.Workers), func(x, y workerSlowdown) int { return cmp.Compare(y.Slowdown, x.Slowdown) })
	for _, x := range slow[:min(len(slow), 8)] {
		line("worker", fmt.Sprintf("%d.%d", x.DPRank, x.Stage), x.Slowdown)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	note := "worker D.S is that of data rank D and stage S"
	if len(slow) > 8 {
		note += fmt.Sprintf("; the 8 slowest of %d", len(slow))
	}
	if a.Bounded {
		note += "; not simulated one by one: the lesser of its data rank's and its stage's"
	}
	fmt.Fprintf(out, "(%s)\n\n", note)
	for _, x := range []struct {
		name string
		p    partJSON
	}{{"M_W, the slowest workers", a.Worst}, {"M_S, the last stage", a.Last}} {
		var names []string
		for _, at := range x.p.Workers {
			names = append(names, fmt.Sprintf("%d.%d", at[0], at[1]))
		}
		if len(names) > 6 {
			names = append(names[:6], "…")
		}
		if x.p.Removed == nil {
			fmt.Fprintf(out, "%s (%s): there is no damage\n", x.name, strings.Join(names, " "))
			continue
		}
		fmt.Fprintf(out, "%s (%s): %.1f %% of the damage goes away with them (%.3f), %.1f %% remains with them alone (%.3f)\n", x.name, strings.Join(names, " "),
			100**x.p.Removed, x.p.Repaired, 100**x.p.Added, x.p.Alone)
	}
	if a.MaxError == nil {
		return nil
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "published in\tnumber\tours\tpublished\terror\t\n")
	steps := map[string]comparedJSON{} // the worst of each kind
	count := map[string]int{}
	for _, c := range a.Against {
		if number, rest, ok := strings.Cut(strings.TrimPrefix(c.Name, "step "), " "); ok && strings.HasPrefix(c.Name, "step ") && number != "" {
			key := c.File + "\t" + rest
			if count[key]++; count[key] == 1 || c.Error > steps[key].Error {
				steps[key] = c
			}
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%.5f\t%.5f\t%.3f %%\t\n", filepath.Base(c.File), c.Name, c.Ours, c.Published, 100*c.Error)
	}
	for _, key := range slices.Sorted(maps.Keys(steps)) {
		c := steps[key]
		_, rest, _ := strings.Cut(key, "\t")
		fmt.Fprintf(w, "%s\t%d steps %s, worst: %s\t%.5f\t%.5f\t%.3f %%\t\n", filepath.Base(c.File), count[key], rest, strings.Fields(c.Name)[1], c.Ours, c.Published, 100*c.Error)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "largest error %.3f %%\n", 100**a.MaxError)
	return err
}
