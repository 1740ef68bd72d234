package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/bench"
	"star/cmd/internal/cli"
	"star/coord"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job"
	"star/sim"
	"star/sim/trace"
	"star/train/data"
	"star/train/net"
)

// ttaSuite is star bench tta.
type ttaSuite struct {
	suite
	measureOptions[[]bench.TTAResult]

	cfg   bench.TTAConfig
	own   bench.TTATask
	rates []string
	quick bool
	csv   string

	markdown bool
}

func benchTTA() *cobra.Command {
	s := new(ttaSuite)
	cfg := &s.cfg
	settings.Var(&s.set, &cfg.Tasks, "tasks", []string{"digits", "images", "text"}, "tasks: digits (LeNet on MNIST or generated digits), images (LeNet on CIFAR-10 or generated figures), text (LSTM on characters of Shakespeare or of a generated text), mlp (a small perceptron on those digits), resnet (a narrow ResNet-20 on those images), chars (a small Transformer on that text), lm (one of 1.26 million parameters on that text)")
	settings.Var(&s.set, &cfg.Arches, "arch", []string{bench.ArchPS, bench.ArchRing}, "ps, allreduce")
	settings.Var(&s.set, &cfg.Scenarios, "scenarios", []string{}, "clusters: "+strings.Join(bench.TTAScenarios(), ", ")+", held-1 to held-12 or held for all of these, or YAML files of star sim (by default those of the first ones that have their traces)")
	settings.Var(&s.set, &cfg.Methods, "methods", []string{"all"}, "modes, auto, baselines with or without settings, rider-K (a ring that does not wait for the K slowest), each with @OPTIMISER for one of its own (@best: of sgd, momentum and nesterov the soonest in the search); fixed: the fixed modes; all: these, auto and the baselines")
	settings.Var(&s.set, &cfg.Data, "data", "", "folder with mnist, cifar-10-batches-bin, tinyshakespeare and straggler-traces; what is not there is generated, or left out")
	settings.Var(&s.set, &cfg.Seeds, "seeds", 5, "runs of each method; there are intervals for 5 and more")
	settings.Var(&s.set, &cfg.Search, "search", 3, "seeds with which each learning rate is tried, with and without stragglers; a rate must arrive with all")
	settings.Var(&s.set, &cfg.RateTimes, "rate-times", 1.0, "factor on each method's best learning rate: what half or twice of it brings")
	settings.Var(&s.set, &s.rates, "rates", []string{}, "learning rates; each method uses its own best (the task's)")
	settings.Var(&s.set, &cfg.Momentum, "momentum", 0.0, "momentum of the optimiser; 0: plain SGD, and 0.9 for methods that have momentum nevertheless. The task's learning rates are multiplied by 1 − momentum")
	settings.Var(&s.set, &cfg.Optimizer, "optimizer", "momentum", "of all methods without their own; momentum is plain SGD where --momentum is 0", bench.TTAOptimizers()...)
	settings.Var(&s.set, &cfg.UpdateScale, "update-scale", defaults.UpdateScale, "weight of a gradient in an update, of all methods but lgc, which takes the mean", defaults.UpdateScale, string(coord.ScaleFiring))
	settings.Var(&s.set, &cfg.Target, "target", 0.0, "accuracy on the test samples; 0: the task's")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 0, "rounds of samples of a run; the learning rate is 0 at the end; 0: the task's")
	settings.Var(&s.set, &cfg.Jobs, "jobs", 0, "runs at a time; 0: one for each processor")
	settings.Var(&s.set, &cfg.Out, "out", "", "journal of finished runs; those that are in it already are not made again")
	settings.Var(&s.set, &s.quick, "quick", false, "5 seeds and 1 of the search, the task mlp, 4 scenarios and 11 methods, where nothing else is said: minutes")
	settings.Var(&s.set, &s.csv, "csv", "", "file for a table of all runs, CSV")
	settings.Var(&s.set, &s.markdown, "markdown", false, "short tables in Markdown, a line for each scenario")
	settings.Var(&s.set, &s.own.Model, "model", "", "a model of your own in place of the tasks, without batch normalisation")
	settings.Var(&s.set, &s.own.Dataset, "dataset", defaults.Dataset, "with --model: the data set")
	settings.Var(&s.set, &s.own.Round, "round", 64, "with --model: samples of a round of all workers")
	settings.Var(&s.set, &s.own.Tests, "tests", 250, "with --model: test samples of an evaluation")
	s.measures, s.title, s.draw = bench.TTAMeasures, "time to accuracy", bench.PlotTTA
	compared(&s.suite, &s.measureOptions)
	checked := s.suite.check
	s.suite.check = func() error {
		if s.csv != "" { // before hours of measuring
			f, err := os.OpenFile(s.csv, os.O_WRONLY|os.O_CREATE, 0o666)
			if err != nil {
				return s.set.Invalid("csv", err)
			}
			f.Close()
		}
		return checked()
	}
	settled := s.finish
	s.suite.finish = func(w io.Writer, result any) error {
		if s.csv != "" {
			if err := writeTTA(s.csv, result.([]bench.TTAResult)); err != nil {
				return err
			}
		}
		if err := settled(w, result); err != nil || !s.asJSON {
			return err
		}
		return printGoals(w, result.([]bench.TTAResult))
	}
	return s.command("tta", "Time to an accuracy, of auto, every mode and the baselines",
		`Trains real models in virtual time with the barrier, the controller, the shard and the baselines of real jobs on clusters with stragglers, and says when
each method has the accuracy: mean and 95 % confidence interval over seeds, and the accuracy when all runs have had the same number of samples; with --markdown also ratios by pairs of the same seed, pooled over scenarios. Each method has its own best learning rate, of the same grid, found with
seeds and on clusters that do not count. Below the table is what STAR aims at, and whether it is met. Beside the bound of a scenario, 1 − (N/Σ1/τ)/mean(τmax): no mode can save more of SSGD's time to first order.

Runs are deterministic: with --out a table can be made in several parts.`,
		s.measure, s.print)
}

// writeTTA writes the runs to a file, one on each line, under the names that they have in JSON.
func writeTTA(path string, rs []bench.TTAResult) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = bench.WriteTTA(f, rs)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// finish is that of the measures; the suite has a field of this name.
func (s *ttaSuite) finish(w io.Writer, result any) error { return s.measureOptions.finish(w, result) }

func (s *ttaSuite) measure(ctx context.Context) (any, error) {
	cfg := s.cfg
	if err := s.parse(&cfg); err != nil {
		return nil, err
	}
	last := time.Now()
	cfg.Progress = func(r bench.TTAResult, search bool, done, all int) {
		if now := time.Now(); now.Sub(last) >= 10*time.Second {
			last = now
			phase := "runs"
			if search {
				phase = "runs of the search for learning rates"
			}
			fmt.Fprintf(os.Stderr, "star bench tta: %d of %d %s\n", done, all, phase)
		}
	}
	cfg.Note = func(text string) { fmt.Fprintln(os.Stderr, "star bench tta:", text) }
	rs, err := bench.TTA(ctx, cfg)
	if errors.Is(err, data.ErrSpec) {
		return nil, s.set.Invalid("dataset", err)
	}
	for _, kind := range []error{sim.ErrScenario, trace.ErrCorrupt, bench.ErrJournal, data.ErrCorrupt} {
		if errors.Is(err, kind) {
			return nil, job.FileError(err, kind)
		}
	}
	return rs, job.FileError(err, bench.ErrJournal)
}

// parse parses the texts of settings.
func (s *ttaSuite) parse(cfg *bench.TTAConfig) error {
	cfg.Methods = cli.SimBaselines(cfg.Methods)
	for _, text := range s.rates {
		r, err := strconv.ParseFloat(text, 64)
		if err != nil || !(r > 0 && r <= 1000) {
			return s.set.Invalid("rates", fmt.Errorf("%q: want numbers above 0, up to 1000", text))
		}
		cfg.Rates = append(cfg.Rates, r)
	}
	for _, v := range []struct {
		name string
		ok   bool
		want string
	}{
		{"seeds", cfg.Seeds >= 1 && cfg.Seeds <= 1000, "1 to 1000"},
		{"search", cfg.Search >= 1 && cfg.Search <= 1000, "1 to 1000"},
		{"rate-times", cfg.RateTimes > 0 && cfg.RateTimes <= 1000, "above 0, up to 1000"},
		{"rounds", cfg.Rounds >= 0 && cfg.Rounds <= 1e6, "0 to 1000000"},
		{"jobs", cfg.Jobs >= 0 && cfg.Jobs <= 1024, "0 to 1024"},
		{"momentum", cfg.Momentum >= 0 && cfg.Momentum < 1, "at least 0 and less than 1"},
		{"target", cfg.Target >= 0 && cfg.Target <= 1, "0 to 1"},
		{"round", s.own.Round >= 1 && s.own.Round <= 1<<20, "1 to 1048576"},
		{"tests", s.own.Tests >= 1, "at least 1"},
	} {
		if !v.ok {
			return s.set.Invalid(v.name, fmt.Errorf("want %s", v.want))
		}
	}
	for _, name := range cfg.Tasks {
		if _, err := bench.FindTTATask(name, ""); err != nil {
			return s.set.Invalid("tasks", err)
		}
	}
	for _, arch := range cfg.Arches {
		if arch != bench.ArchPS && arch != bench.ArchRing {
			return s.set.Invalid("arch", fmt.Errorf("%q: want %s or %s", arch, bench.ArchPS, bench.ArchRing))
		}
	}
	for _, name := range cfg.Methods {
		if err := bench.CheckTTAMethod(name); err != nil {
			return s.set.Invalid("methods", err)
		}
	}
	if s.own.Model != "" {
		if _, err := net.Parse(s.own.Model); err != nil {
			return s.set.Invalid("model", err)
		}
		own := s.own
		own.Name, own.Rounds, own.Target, own.Rates, own.AdamRates = "own", 240, 0.85, []float64{0.1, 0.2, 0.4}, []float64{0.001, 0.002, 0.004}
		cfg.Own = &own
	}
	if s.quick {
		if !s.set.IsSet("tasks") {
			cfg.Tasks = []string{"mlp"}
		}
		if !s.set.IsSet("search") {
			cfg.Search = 1
		}
		if !s.set.IsSet("scenarios") {
			cfg.Scenarios = []string{"calm", "one-3x", "rotating"}
			if _, err := os.Stat(cfg.Data); cfg.Data != "" && err == nil {
				cfg.Scenarios = append(cfg.Scenarios, "alibaba-job4")
			}
		}
		if !s.set.IsSet("methods") {
			cfg.Methods = slices.Concat([]string{"ssgd", "x=7", "x=4", "asgd", "rider-1", "auto"}, bench.TTABaselines)
		}
	}
	return nil
}

func (s *ttaSuite) print(w *tabwriter.Writer, result any) {
	rs := result.([]bench.TTAResult)
	if s.markdown {
		bench.TTAMarkdown(w, rs)
		return
	}
	for _, c := range bench.TTACases(rs) {
		best := c.Fixed
		links := "bytes take no time"
		if c.All[0].Links {
			links = "bytes take what the scenario's links say"
		}
		fmt.Fprintf(w, "%s, %s, %s: target %g; %s; no mode can save more than %.0f %% of SSGD's time (first order)\n", c.Task, c.Arch, c.Scenario, c.All[0].Target, links, 100*c.Bound)
		fmt.Fprint(w, "method\tlr\ttime to target s\t±95 %\tvs ssgd\tlevels vs ssgd\tall samples\treached\taccuracy\t±95 %\tupdates\tMB\tstaleness\tswitches\t\n")
		for i := range c.All {
			g := &c.All[i]
			took, half, vs, accuracyHalf := "-", "-", "-", "-"
			levels, samples := c.BySSGD(g)
			ratio := func(x float64) string {
				if math.IsNaN(x) {
					return "-"
				}
				return fmt.Sprintf("%+.1f %%", 100*(x-1))
			}
			if g.Arrived == g.Runs {
				took = fmt.Sprintf("%.1f", g.Mean)
				if c.SSGD != nil && c.SSGD.Arrived == c.SSGD.Runs {
					vs = fmt.Sprintf("%+.1f %%", 100*(g.Mean/c.SSGD.Mean-1))
				}
				if !math.IsNaN(g.Half) {
					half = fmt.Sprintf("%.1f", g.Half)
				}
			}
			if !math.IsNaN(g.AccuracyHalf) {
				accuracyHalf = fmt.Sprintf("%.4f", g.AccuracyHalf)
			}
			name := g.Method
			if g == best && g.Arrived == g.Runs {
				name = "hindsight: " + name
			}
			fmt.Fprintf(w, "%s\t%g\t%s\t%s\t%s\t%s\t%s\t%d/%d\t%.4f\t%s\t%.0f\t%.1f\t%.2f\t%.1f\t\n", name, g.Rate, took, half, vs, ratio(levels), ratio(samples), g.Arrived, g.Runs, g.Accuracy, accuracyHalf, g.Updates,
				g.Bytes/1e6, g.Staleness, g.Switches)
		}
		fmt.Fprintln(w)
		w.Flush()
	}
	printGoals(w, rs)
}

// printGoals prints the goals of STAR, and whether they are met.
func printGoals(w io.Writer, rs []bench.TTAResult) error {
	var b strings.Builder
	for _, g := range bench.TTAGoals(rs) {
		verdict := "not met"
		switch {
		case !g.Measured:
			fmt.Fprintf(&b, "not measured: %s\n", g.Name)
			continue
		case g.Met:
			verdict = "met"
		}
		fmt.Fprintf(&b, "%s: %s (%s)\n", verdict, g.Name, g.Detail)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
