package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/allreduce"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/internal/settings"
	"star/internal/unpack"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/price"
	"star/observe/whatif"
	"star/runlog"
	"star/sim"
	"star/train/optim"
)

// whatIfOptions are the settings of star sim --from.
type whatIfOptions struct {
	from          []string
	without, even []string
	noise         float64
	momentum      float64
	batch         int
	steps         imports
}

func (o *whatIfOptions) declare(s *settings.Set) {
	settings.Var(s, &o.from, "from", []string(nil), "what would have been: the run log of a job or its folder, or step logs (docs/whatif.md), instead of a scenario")
	settings.Var(s, &o.without, "without", []string(nil), "with --from: leave these workers out, such as w3")
	settings.Var(s, &o.even, "even", []string(nil), "with --from: these workers take what the median of the others takes")
	settings.Var(s, &o.noise, "noise-scale", 0.0, "with --from: gradient noise scale in samples; 0: the log's median, 1000 where it has none")
	settings.Var(s, &o.momentum, "momentum", 0.0, "with --from: momentum of the optimiser in a step log, β₁ of Adam: it makes staleness dear")
	settings.Var(s, &o.batch, "batch", 0, "with --from: samples of one worker in a step log; 0: 128")
	o.steps.declare(s)
}

// whatIfJSON is the JSON of star sim --from.
type whatIfJSON struct {
	From    string   `json:"from"`
	Arch    string   `json:"arch"`
	Workers int      `json:"workers"`
	Without []int    `json:"without"`
	Even    []int    `json:"even"`
	Mode    string   `json:"mode"`
	Batch   int      `json:"batch"`
	Noise   float64  `json:"noise_scale"`
	Memory  float64  `json:"momentum"`  // of the optimiser, β₁ of Adam
	Steep   float64  `json:"steepness"` // what that makes staleness cost (docs/theory.md)
	Latency float64  `json:"latency_s"`
	Cut     bool     `json:"cut"`
	Notices []string `json:"notices,omitempty"`

	Missing runlog.Missing `json:"missing,omitzero"`

	Updates   int64        `json:"updates"`
	Samples   int64        `json:"samples"`
	Progress  float64      `json:"progress"`    // in updates of SSGD
	Seen      *float64     `json:"seen_s"`      // null: unknown in a step log
	Simulated float64      `json:"simulated_s"` // the same mode, the same workers, the same updates
	Error     *float64     `json:"error"`       // simulated by seen, less 1
	Results   []whatIfMode `json:"results"`
}

type whatIfMode struct {
	Method    string   `json:"method"`
	Reached   bool     `json:"reached"`
	Time      *float64 `json:"time_s"` // to the same progress; null: not reached
	PerUpdate float64  `json:"per_update_s"`
	Updates   int64    `json:"updates"`
	Samples   int64    `json:"samples"`
	Staleness float64  `json:"staleness"`
	Waiting   float64  `json:"waiting"`
	Switches  int      `json:"switches"`
	Gain      *float64 `json:"gain"` // of the time of the same mode, simulated
}

// workersOf parses names such as w3 or 3.
func workersOf(s *settings.Set, key string, names []string, n int) ([]nouns.Worker, error) {
	var ws []nouns.Worker
	for _, name := range names {
		w, err := strconv.Atoi(strings.TrimPrefix(name, "w"))
		switch {
		case err != nil || w < 0 || w >= n:
			return nil, s.Invalid(key, fmt.Errorf("%q is not one of w0 to w%d", name, n-1))
		case slices.Contains(ws, nouns.Worker(w)):
			return nil, s.Invalid(key, fmt.Errorf("w%d occurs twice", w))
		}
		ws = append(ws, nouns.Worker(w))
	}
	return ws, nil
}

// isRun reports whether a file is a run log, or the folder of a job: it begins with a JSON object that has a type.
func isRun(path string) (bool, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if filepath.Base(f.Name()) == process.RunLogName {
		return true, nil
	}
	br, err := unpack.Reader(f)
	if err != nil {
		return false, &runlog.Error{Name: path, Line: 1, Err: err}
	}
	line, _ := br.Peek(4096)
	return strings.HasPrefix(strings.TrimSpace(string(line)), `{"type"`), nil
}

// whatIf answers star sim --from.
func whatIf(cmd *cobra.Command, s *settings.Set, o *whatIfOptions, methods []string, asJSON, explain bool) error {
	if !(o.noise >= 0) || math.IsInf(o.noise, 0) {
		return s.Invalid("noise-scale", fmt.Errorf("%v is not a number of at least 0", o.noise))
	}
	if !(o.momentum >= 0 && o.momentum < 1) {
		return s.Invalid("momentum", errors.New("want at least 0 and less than 1"))
	}
	if o.batch < 0 || o.batch > modes.MaxBatch {
		return s.Invalid("batch", fmt.Errorf("want 0 to %d", modes.MaxBatch))
	}
	run, err := isRun(o.from[0])
	if err != nil {
		return err
	}
	out := whatIfJSON{From: strings.Join(o.from, ","), Without: []int{}, Even: []int{}}
	var base sim.Config                                       // the recorded workers
	var times func(without []nouns.Worker) (sim.Times, error) // the others
	var learner func(noise float64) (*sim.Priced, error)      // of progress in one unit
	var progress func(noise float64) (float64, error)         // of the recorded run
	var optimizer optim.Config
	var again func() (time.Duration, error) // the time of the recorded run, simulated
	if run {
		if len(o.from) > 1 {
			return s.Invalid("from", errors.New("one run log at a time"))
		}
		if o.batch > 0 {
			return s.Invalid("batch", errors.New("a run log says itself how large a batch is"))
		}
		if s.IsSet("momentum") {
			return s.Invalid("momentum", errors.New("a run log says itself what the optimiser is"))
		}
		r, err := readRun(o.from[0])
		if err != nil {
			return err
		}
		seen := r.Took.Seconds()
		out.Missing = r.Missing
		out.Arch, out.Workers, out.Mode, out.Batch, out.Noise, out.Latency, out.Cut = r.Arch, r.Workers, r.Plan.String(), r.Batch, r.Noise, r.Latency.Seconds(), r.Cut
		out.Updates, out.Samples, out.Seen = r.Updates, r.Samples, &seen
		if len(r.Changes) > 0 {
			out.Mode += fmt.Sprintf(", and %d changes", len(r.Changes))
		}
		base = sim.Config{Plan: r.Plan, Batch: r.Batch, Latency: r.Latency, Limit: 100 * r.Took, Samples: r.Samples}
		if r.Arch == "allreduce" { // the exchange is in the workers' times: here it takes none
			base.Ring, base.Bytes = &sim.Ring{Algorithm: allreduce.AlgorithmRing, Model: &allreduce.Model{}}, 1
			for i, m := range methods { // a ring has no x
				if m == "all" || m == "fixed" {
					methods = slices.Replace(slices.Clone(methods), i, i+1, map[string][]string{"all": {"ssgd", "auto"}, "fixed": {"ssgd"}}[m]...)
					break
				}
			}
		}
		times, learner, progress, optimizer = r.Times, r.Learner, r.Progress, r.Optimizer
		again = func() (time.Duration, error) { res, err := r.Again(); return res.Time, err }
	} else {
		t, notices, err := o.steps.read(s, o.from)
		if err != nil {
			return err
		}
		out.Arch, out.Workers, out.Mode, out.Batch, out.Updates, out.Notices = "ps", t.Workers, "ssgd", cmp.Or(o.batch, 128), int64(t.Steps), notices
		out.Samples = out.Updates * int64(t.Workers*out.Batch)
		all := sim.Recorded{Trace: t, Median: t.Median}
		base = sim.Config{Batch: out.Batch, Samples: out.Samples}
		times = func(without []nouns.Worker) (sim.Times, error) {
			var keep []nouns.Worker
			for w := range t.Workers {
				if !slices.Contains(without, nouns.Worker(w)) {
					keep = append(keep, nouns.Worker(w))
				}
			}
			if len(keep) == 0 {
				return nil, s.Invalid("without", errors.New("no worker is left"))
			}
			return sim.Subset{Times: all, Keep: keep}, nil
		}
		if o.momentum > 0 {
			optimizer = optim.Config{Name: optim.Momentum, Momentum: o.momentum}
		}
		learner = func(noise float64) (*sim.Priced, error) {
			return sim.NewPriced(t.Workers*out.Batch, noise, price.PriorSteepness(o.momentum))
		}
		progress = func(float64) (float64, error) { return float64(t.Steps), nil }
		again = func() (time.Duration, error) {
			c := base
			var err error
			if c.Learner, err = learner(out.Noise); err != nil {
				return 0, err
			}
			c.Times, c.Target = all, float64(t.Steps)
			c.Target -= 1e-6 // the sum of its updates is rounded
			res, err := sim.Run(c)
			return res.Time, err
		}
	}
	out.Noise = cmp.Or(o.noise, out.Noise, 1000)
	out.Memory, out.Steep = optimizer.Memory(), price.PriorSteepness(optimizer.Memory())
	without, err := workersOf(s, "without", o.without, out.Workers)
	if err != nil {
		return err
	}
	even, err := workersOf(s, "even", o.even, out.Workers)
	if err != nil {
		return err
	}
	t, err := times(without)
	if err != nil {
		return err
	}
	if len(even) > 0 {
		e := sim.Evened{Times: t}
		for w := range out.Workers {
			if !slices.Contains(without, nouns.Worker(w)) {
				e.Even = append(e.Even, slices.Contains(even, nouns.Worker(w)))
			}
		}
		if !slices.Contains(e.Even, false) {
			return s.Invalid("even", errors.New("no worker is left that they could be like"))
		}
		t = e
	}
	for _, w := range without {
		out.Without = append(out.Without, int(w))
	}
	for _, w := range even {
		out.Even = append(out.Even, int(w))
	}
	names, err := simMethods(methods, t.Workers(), out.Batch)
	if err != nil {
		return err
	}

	// First its own run. Workers that are left out because their times are unknown make that impossible; then the
	// observed run takes its place.
	if out.Progress, err = progress(out.Noise); err != nil {
		return err
	}
	switch took, err := again(); {
	case err == nil:
		out.Simulated = took.Seconds()
	case len(without) > 0 && out.Seen != nil:
		out.Simulated = *out.Seen
		out.Notices = append(out.Notices, fmt.Sprintf("the recorded run cannot be simulated, gains are over what was seen: %v", err))
	default:
		return err
	}
	if out.Seen != nil {
		off := out.Simulated / *out.Seen - 1
		out.Error = &off
	}
	var changes []sim.Switch
	for _, name := range names {
		c := base
		c.Times, c.Plan, c.Pilot = t, modes.Plan{}, nil
		if c.Learner, err = learner(out.Noise); err != nil {
			return err
		}
		c.Target = out.Progress - 1e-6*out.Progress
		c.Limit = time.Duration(100 * out.Simulated * float64(time.Second))
		if err := c.Use(name, optimizer); err != nil {
			return fmt.Errorf("%s: %s: %w", out.From, name, err)
		}
		res, err := sim.Run(c)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", out.From, name, err)
		}
		m := whatIfMode{Method: name, Reached: res.Reached, Updates: res.Updates, Samples: res.Samples, Staleness: res.Staleness, Waiting: res.Waiting, Switches: len(res.Switches)}
		m.PerUpdate = res.Time.Seconds() / float64(max(res.Updates, 1))
		if res.Reached {
			took := res.Time.Seconds()
			gain := 1 - took/out.Simulated
			m.Time, m.Gain = &took, &gain
		}
		out.Results = append(out.Results, m)
		if res.Switches != nil {
			changes = res.Switches
		}
	}
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
	}
	if err := out.text(cmd.OutOrStdout()); err != nil || !explain {
		return err
	}
	for _, c := range changes {
		fmt.Fprintf(cmd.OutOrStdout(), "  %10v  %s: %s\n", c.At.Round(time.Millisecond), c.Plan, c.Why)
	}
	return nil
}

// readRun reads the run log at path, or of the job in that folder.
func readRun(path string) (*whatif.Run, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := whatif.New(f.Name())
	summary, err := runlog.Read(f, f.Name(), r.Add)
	if err != nil {
		return nil, job.FileError(err, fs.ErrInvalid)
	}
	return r.Run(summary)
}

// text prints the answer for people.
func (a whatIfJSON) text(out io.Writer) error {
	round := func(s float64) string { return console.Seconds(s) }
	per := func(s float64) string { return console.Seconds(s / float64(max(a.Updates, 1))) }
	fmt.Fprintf(out, "%s: %d workers, %s, %d updates", a.From, a.Workers, a.Mode, a.Updates)
	if a.Seen != nil {
		fmt.Fprintf(out, " in %s, %s each", round(*a.Seen), per(*a.Seen))
	}
	fmt.Fprintln(out)
	if a.Cut {
		fmt.Fprintln(out, "the log ends in the middle of a line: the coordinator was killed, or still runs")
	}
	if lacks := a.Missing.Means("the answer is of the updates after that"); lacks != "" {
		fmt.Fprintln(out, lacks)
	}
	for _, n := range a.Notices {
		fmt.Fprintln(out, n)
	}
	switch {
	case a.Error == nil:
		fmt.Fprintf(out, "simulated as ssgd: %s, %s each; the log does not say what it was\n", round(a.Simulated), per(a.Simulated))
	case len(a.Notices) == 0:
		fmt.Fprintf(out, "simulated as it was: %s, %+.1f %% off\n", round(a.Simulated), 100**a.Error)
	}
	memory := "no momentum"
	if a.Memory > 0 {
		memory = fmt.Sprintf("momentum %g", a.Memory)
	}
	fmt.Fprintf(out, "noise scale %.0f samples, %s; an update takes %s from its last gradient\n", a.Noise, memory, cmp.Or(map[bool]string{true: "nothing"}[a.Latency == 0], console.Seconds(a.Latency)))
	names := func(ws []int) string {
		var text []string
		for _, w := range ws {
			text = append(text, fmt.Sprintf("w%d", w))
		}
		return strings.Join(text, ", ")
	}
	what := "what if"
	if len(a.Without) > 0 {
		what += ", without " + names(a.Without)
	}
	if len(a.Even) > 0 {
		what += ", with " + names(a.Even) + " like the others"
	}
	fmt.Fprintf(out, "\n%s:\n", what)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mode\tto the same progress\tgain\tan update\tupdates\tstaleness\twaiting\tswitches\t")
	for _, m := range a.Results {
		took, gain := "not reached", "-"
		if m.Reached {
			took, gain = round(*m.Time), fmt.Sprintf("%+.1f %%", 100**m.Gain)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.2f\t%.0f %%\t%d\t\n", m.Method, took, gain, console.Seconds(m.PerUpdate), m.Updates, m.Staleness, 100*m.Waiting, m.Switches)
	}
	return w.Flush()
}
