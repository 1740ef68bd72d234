package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/bench"
	"star/cmd/internal/settings"
)

func benchTTA() *cobra.Command {
	s := new(suite)
	var cfg bench.TTAConfig
	var quick bool
	var rates []string
	settings.Var(&s.set, &cfg.Model, "model", "lenet", "the model, without batch normalisation")
	settings.Var(&s.set, &cfg.Dataset, "dataset", "digits", "the data set")
	settings.Var(&s.set, &cfg.Methods, "methods", []string{"all"}, "modes to compare; all: every x=K and auto")
	settings.Var(&s.set, &rates, "rates", []string{"0.05", "0.1", "0.2", "0.4"}, "learning rates, of which each method has its own best")
	settings.Var(&s.set, &cfg.Seeds, "seeds", 5, "runs of each method")
	settings.Var(&s.set, &cfg.Workers, "ranks", 8, "workers")
	settings.Var(&s.set, &cfg.Batch, "batch", 32, "samples of one worker in one iteration")
	settings.Var(&s.set, &cfg.Slow, "slow-factor", 3.0, "what an iteration of the last worker takes, by that of the others")
	settings.Var(&s.set, &cfg.Target, "target", 0.95, "accuracy on the test samples")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 400, "rounds of SSGD after which a run is given up")
	settings.Var(&s.set, &cfg.Tests, "tests", 500, "samples of an evaluation")
	settings.Var(&s.set, &quick, "quick", false, "2 seeds, 2 learning rates and 4 methods")
	return s.command("tta", "Time to an accuracy, of every mode and of auto",
		`Trains a real model in virtual time with the barrier, the controller and the shard of real jobs, on a cluster whose last worker is slow,
and says when each method has the accuracy: mean and 95 % confidence interval over seeds. Each method has its own best learning rate, found with a
seed that does not count.`,
		func(ctx context.Context) (any, error) {
			for _, v := range []struct {
				name string
				ok   bool
				got  any
				want string
			}{
				{"ranks", cfg.Workers >= 2 && cfg.Workers <= 1024, cfg.Workers, "2 to 1024"},
				{"batch", cfg.Batch >= 1 && cfg.Batch <= 1<<16, cfg.Batch, "1 to 65536"},
				{"seeds", cfg.Seeds >= 1 && cfg.Seeds <= 1000, cfg.Seeds, "1 to 1000"},
				{"rounds", cfg.Rounds >= 1 && cfg.Rounds <= 1e6, cfg.Rounds, "1 to 1000000"},
				{"tests", cfg.Tests >= 1, cfg.Tests, "at least 1"},
				{"slow-factor", cfg.Slow >= 1 && cfg.Slow <= 1000, cfg.Slow, "1 to 1000"},
				{"target", cfg.Target > 0 && cfg.Target <= 1, cfg.Target, "above 0, up to 1"},
				{"rates", len(rates) > 0, rates, "at least one"},
			} {
				if !v.ok {
					return nil, s.set.Invalid(v.name, fmt.Errorf("%v: want %s", v.got, v.want))
				}
			}
			cfg.Rates = nil
			for _, text := range rates {
				r, err := strconv.ParseFloat(text, 64)
				if err != nil || !(r > 0 && r <= 1000) {
					return nil, s.set.Invalid("rates", fmt.Errorf("%q: want numbers above 0, up to 1000", text))
				}
				cfg.Rates = append(cfg.Rates, r)
			}
			var err error
			if cfg.Methods, err = simMethods(simBaselines(cfg.Methods), cfg.Workers, cfg.Batch); err != nil {
				return nil, err
			}
			if quick {
				cfg.Seeds = min(cfg.Seeds, 2)
				if len(cfg.Rates) > 2 {
					cfg.Rates = cfg.Rates[len(cfg.Rates)/2-1:][:2]
				}
				if len(cfg.Methods) > 4 {
					n := len(cfg.Methods)
					cfg.Methods = append(cfg.Methods[:2:2], cfg.Methods[n-2:]...)
				}
			}
			return bench.TTA(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			rs := result.([]bench.TTAResult)
			fmt.Fprint(w, "method\tlr\ttime to target s\t±95 %\treached\taccuracy\tupdates\tstaleness\tswitches\tseeds\t\n")
			for len(rs) > 0 {
				k := 1
				for k < len(rs) && rs[k].Method == rs[0].Method {
					k++
				}
				var tta []float64
				accuracy, updates, stale, switches := 0.0, 0.0, 0.0, 0.0
				for _, r := range rs[:k] {
					if r.Reached {
						tta = append(tta, *r.TTA)
					}
					accuracy += r.Accuracy / float64(k)
					updates += float64(r.Updates) / float64(k)
					stale += r.Staleness / float64(k)
					switches += float64(r.Switches) / float64(k)
				}
				took, half := "-", "-"
				if len(tta) == k { // the mean of those that got there would flatter
					m, h := bench.Interval(tta)
					took, half = fmt.Sprintf("%.1f", m), fmt.Sprintf("%.1f", h)
				}
				fmt.Fprintf(w, "%s\t%g\t%s\t%s\t%d/%d\t%.4f\t%.0f\t%.2f\t%.1f\t%d\t\n", rs[0].Method, rs[0].Rate, took, half, len(tta), k, accuracy, updates, stale, switches, k)
				rs = rs[k:]
			}
		})
}
