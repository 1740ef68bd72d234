package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/modes"
	"star/modes/baseline"
	"star/sim"
	"star/sim/trace"
	"star/train/optim"
)

// simResult is one run of star sim --json.
type simResult struct {
	Scenario      string   `json:"scenario"`
	Bound         float64  `json:"bound"`
	Task          string   `json:"task"`
	Arch          string   `json:"arch"`
	Method        string   `json:"method"`
	Seed          uint64   `json:"seed"`
	Target        float64  `json:"target"`
	TTA           *float64 `json:"tta_s"` // null: not reached
	Reached       bool     `json:"reached"`
	FinalAccuracy *float64 `json:"final_accuracy"` // null: the task has none
	Updates       int64    `json:"updates"`
	Samples       int64    `json:"samples"`
	Staleness     float64  `json:"staleness"`
	Switches      int      `json:"switches"`
	Bytes         float64  `json:"bytes"` // that workers sent and received; 0 if the scenario has no size of gradients
	Waiting       float64  `json:"waiting"`
	Regret        *regret  `json:"regret,omitempty"` // of auto, with --regret
}

// regret is what auto took more than the best mode of the table with the same seed, in seconds. The three parts add up
// to it: each is what one run takes more than the next, from auto's by its first plan from its first change on, and by
// the best mode from there on, to the best mode from the beginning.
type regret struct {
	Best     string  `json:"best"`
	Seeing   float64 `json:"seeing_s"`   // until the first change; without one, all of it
	Choosing float64 `json:"choosing_s"` // the first plan in place of the best
	Changing float64 `json:"changing_s"` // all changes after it: negative where they gained
}

// regretOf splits what auto took, by runs of config with a plan that is changed at the moment of auto's first change.
func regretOf(config func() (sim.Config, error), best string, took time.Duration, auto sim.Result) (*regret, error) {
	of := &regret{Best: best}
	if len(auto.Switches) == 0 {
		of.Seeing = (auto.Time - took).Seconds()
		return of, nil
	}
	first := auto.Switches[0]
	from := func(p modes.Plan) (time.Duration, error) {
		c, err := config()
		if err != nil {
			return 0, err
		}
		c.Plan, c.Pilot = modes.SSGD(c.Times.Workers()), &sim.Script{Changes: []sim.Change{{At: first.At, Plan: p}}}
		r, err := sim.Run(c)
		return r.Time, err
	}
	plan, err := modes.Parse(best, first.Plan.Workers())
	if err != nil {
		return nil, err
	}
	late, err := from(plan)
	if err != nil {
		return nil, err
	}
	chosen, err := from(first.Plan)
	if err != nil {
		return nil, err
	}
	of.Seeing, of.Choosing, of.Changing = (late - took).Seconds(), (chosen - late).Seconds(), (auto.Time - chosen).Seconds()
	return of, nil
}

func simCommand() *cobra.Command {
	s := new(settings.Set)
	var methods, baselines []string
	var seeds int
	var first uint64
	var asJSON, explain, regrets bool
	var traces string
	var past whatIfOptions
	settings.Var(s, &methods, "mode", []string{"all"}, "modes to compare; all: every x=K and auto; fixed: every x=K")
	settings.Var(s, &baselines, "baseline", []string{}, "baselines to compare, too, such as lb-bsp,zeno++:rho=0.01 (docs/baselines.md); all: every one, with its defaults")
	settings.Var(s, &traces, "traces", "", "folder of traces that are not beside their scenario")
	settings.Var(s, &seeds, "seeds", 5, "runs of each mode, with seeds of their own")
	settings.Var(s, &first, "seed", 1, "the first seed")
	settings.Var(s, &explain, "explain", false, "also each change of mode of the first seed, and why")
	settings.Var(s, &regrets, "regret", false, "also what auto takes more than the best of the modes with the same seed, split into seeing, choosing and changing")
	settings.Var(s, &asJSON, "json", false, "each run as JSON on standard output")
	past.declare(s)
	cmd := &cobra.Command{
		Use:   "sim SCENARIO … | --from LOG",
		Short: "Say what a mode would bring on a cluster that is not there",
		Long: `Runs the cluster of a scenario file (YAML, docs/simulator.md lists its keys) in virtual time with the barrier and the controller of real
jobs, once for each mode, baseline and seed, and compares the time to the target. The same scenario and seed give the same result.

With --from it is the cluster of a recorded job: what each worker took in each step drives the simulator, and the time is that to the progress of the job.

  star sim scenario.yaml --mode ssgd,x=3,auto
  star sim --from star-out --without w3 --mode x=7,auto`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (len(past.from) == 0) {
				return &settings.UsageError{Msg: "star sim needs a scenario file, or --from and a log"}
			}
			if seeds < 1 || seeds > 1000 {
				return s.Invalid("seeds", fmt.Errorf("%d is not in 1..1000", seeds))
			}
			if len(past.from) > 0 {
				return whatIf(cmd, s, &past, slices.Concat(cli.SimBaselines(methods), allBaselines(cli.SimBaselines(baselines))), asJSON, explain)
			}
			if len(past.without)+len(past.even) > 0 {
				return &settings.UsageError{Msg: "--without and --even are about a recorded job: give --from"}
			}
			all := []simResult{}
			for _, path := range args {
				results, err := simulate(cmd.OutOrStdout(), path, traces, slices.Concat(cli.SimBaselines(methods), allBaselines(cli.SimBaselines(baselines))), first, seeds, asJSON, explain, regrets)
				if err != nil {
					return err
				}
				all = append(all, results...)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			}
			return nil
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// simulate runs one scenario and prints its table, unless it is for JSON.
func simulate(out io.Writer, path, traces string, methods []string, first uint64, seeds int, quiet, explain, regrets bool) ([]simResult, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, job.FileError(err, sim.ErrScenario)
	}
	s, err := sim.ParseScenario(path, text)
	if err != nil {
		if _, e := inventory.ParseHosts(path, text); e == nil {
			err = fmt.Errorf("%w: it is a file of hosts, as star place and star run --hosts take it; star sim wants a scenario (docs/simulator.md)", err)
		}
		return nil, job.FileError(err, sim.ErrScenario)
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	var recorded *trace.Trace
	if s.Trace != "" {
		at := s.Trace
		if !filepath.IsAbs(at) { // beside the scenario
			at = filepath.Join(filepath.Dir(path), at)
			if _, err := os.Stat(at); err != nil && traces != "" {
				at = filepath.Join(traces, s.Trace)
			}
		}
		if recorded, err = trace.Open(at); err != nil {
			return nil, job.FileError(fmt.Errorf("%s: trace: %w", path, err), trace.ErrCorrupt)
		}
	}
	probe, err := s.Config(recorded, first)
	if err != nil {
		return nil, err
	}
	n := probe.Times.Workers()
	steps := int64(200)
	if recorded != nil {
		steps = int64(recorded.Steps)
	}
	bound, err := sim.FirstOrder(probe, steps)
	if err != nil {
		return nil, err
	}
	if probe.Ring != nil { // which has no x
		for i, m := range methods {
			if m == "all" || m == "fixed" {
				methods = slices.Replace(methods, i, i+1, []string{"ssgd", "auto"}[:map[string]int{"all": 2, "fixed": 1}[m]]...)
				break
			}
		}
	}
	names, err := simMethods(methods, n, s.Batch)
	if err != nil {
		return nil, err
	}
	var length func(seed uint64) (int64, error)
	if slices.ContainsFunc(names, sim.IsBaseline) {
		length = ssgdLength(s, recorded)
	}
	var results []simResult
	type row struct {
		name                        string
		tta                         []float64
		reached, diverged           int
		updates, staleness, waiting float64
		switches                    int
	}
	var rows []row
	var changes []sim.Switch
	best := make([]string, seeds) // by seed: the mode that takes least, but for auto
	least := make([]time.Duration, seeds)
	autos := map[int]sim.Result{} // by result
	for _, name := range names {
		r := row{name: name}
		for k := range seeds {
			c, err := s.Config(recorded, first+uint64(k))
			if err != nil {
				return nil, err
			}
			if c.Samples == 0 && length != nil { // as long as it takes without doing anything
				if c.Samples, err = length(first + uint64(k)); err != nil {
					return nil, fmt.Errorf("%s: ssgd: %w", path, err)
				}
			}
			if err := c.Use(name, optim.Config{}); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, name, err)
			}
			res, err := sim.Run(c)
			if errors.Is(err, sim.ErrDiverged) {
				res, err = sim.Result{}, nil
				r.diverged++
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, name, err)
			}
			one := simResult{
				Scenario: s.Name, Bound: bound, Task: s.Learner.Kind, Arch: s.Arch, Method: name, Seed: first + uint64(k), Target: s.Target,
				Reached: res.Reached, Updates: res.Updates, Samples: res.Samples, Staleness: res.Staleness, Switches: len(res.Switches), Waiting: res.Waiting, Bytes: res.Bytes,
			}
			tta := math.Inf(1)
			if res.Reached {
				tta = res.Time.Seconds()
				one.TTA = &tta
				r.reached++
			}
			if name == "auto" && res.Reached {
				autos[len(results)] = res
			} else if name != "auto" && !sim.IsBaseline(name) && res.Reached && (best[k] == "" || res.Time < least[k]) {
				best[k], least[k] = name, res.Time
			}
			r.tta = append(r.tta, tta)
			r.updates += float64(res.Updates) / float64(seeds)
			r.staleness += res.Staleness / float64(seeds)
			r.waiting += res.Waiting / float64(seeds)
			r.switches += len(res.Switches)
			results = append(results, one)
			if k == 0 && res.Switches != nil {
				changes = res.Switches
			}
		}
		slices.Sort(r.tta)
		rows = append(rows, r)
	}
	for i, auto := range autos {
		if k := int(results[i].Seed - first); regrets && best[k] != "" {
			if results[i].Regret, err = regretOf(func() (sim.Config, error) { return s.Config(recorded, results[i].Seed) }, best[k], least[k], auto); err != nil {
				return nil, err
			}
		}
	}
	if quiet {
		return results, nil
	}
	fmt.Fprintf(out, "%s: %d workers, target %g, %d seeds; no mode can save more than %.0f %% of the time of ssgd (first order)\n", s.Name, n, s.Target, seeds, 100*bound)
	lowest := math.Inf(1)
	ssgd := math.NaN()
	for _, r := range rows {
		m := median(r.tta)
		lowest = min(lowest, m)
		if r.name == "ssgd" {
			ssgd = m
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mode\ttime to target\tvs ssgd\tvs best\tupdates\tstaleness\twaiting\tswitches\treached\t")
	for _, r := range rows {
		m := median(r.tta)
		took, vs, vsBest := "not reached", "-", "-"
		if r.diverged > 0 {
			took = "diverged"
		}
		if !math.IsInf(m, 1) {
			took = time.Duration(m * float64(time.Second)).Round(100 * time.Millisecond).String()
			vsBest = fmt.Sprintf("%.3f", m/lowest)
			if !math.IsNaN(ssgd) && !math.IsInf(ssgd, 1) {
				vs = fmt.Sprintf("%+.1f %%", 100*(m/ssgd-1))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.0f\t%.2f\t%.0f %%\t%.1f\t%d/%d\t\n", r.name, took, vs, vsBest, r.updates, r.staleness, 100*r.waiting,
			float64(r.switches)/float64(seeds), r.reached, seeds)
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	for _, r := range results {
		if g := r.Regret; g != nil {
			fmt.Fprintf(out, "  seed %d: auto takes %+.1f s of %s: seeing %+.1f s, choosing %+.1f s, changing %+.1f s\n", r.Seed, g.Seeing+g.Choosing+g.Changing, g.Best, g.Seeing, g.Choosing, g.Changing)
		}
	}
	if explain {
		for _, c := range changes {
			fmt.Fprintf(out, "  %10v  %s: %s\n", c.At.Round(time.Millisecond), c.Plan, c.Why)
		}
	}
	_, err = fmt.Fprintln(out)
	return results, err
}

// median of sorted numbers.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// ssgdLength is the number of samples that SSGD needs with a seed, or has by the end of the run.
func ssgdLength(s *sim.Scenario, recorded *trace.Trace) func(seed uint64) (int64, error) {
	known := map[uint64]int64{}
	return func(seed uint64) (int64, error) {
		if k, ok := known[seed]; ok {
			return k, nil
		}
		c, err := s.Config(recorded, seed)
		if err != nil {
			return 0, err
		}
		r, err := sim.Run(c)
		known[seed] = r.Samples
		return r.Samples, err
	}
}

// allBaselines spells out all.
func allBaselines(list []string) []string {
	var names []string
	for _, name := range list {
		if name != "all" {
			names = append(names, name)
			continue
		}
		for _, e := range baseline.Entries() {
			if e.Artefact {
				continue
			}
			names = append(names, e.Name)
		}
	}
	return names
}

// simMethods spells out all and fixed, and checks the others.
func simMethods(methods []string, n, batch int) ([]string, error) {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, m := range methods {
		switch m {
		case "all", "fixed":
			add("ssgd")
			for x := n - 1; x > 1; x-- {
				add(fmt.Sprintf("x=%d", x))
			}
			add("asgd")
			if m == "all" {
				add("auto")
			}
		default:
			if err := sim.CheckMethod(m, n, batch); err != nil {
				return nil, &settings.UsageError{Msg: err.Error()}
			}
			add(m)
		}
	}
	return names, nil
}
