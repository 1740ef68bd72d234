package bench

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/bench"
	"star/cmd/internal/console"
	"star/internal/settings"
)

func benchScale() *cobra.Command {
	s := new(suite)
	var cfg bench.ScaleConfig
	settings.Var(&s.set, &cfg.Workers, "ranks", []int{100, 1000, 10_000, 100_000}, "numbers of workers")
	settings.Var(&s.set, &cfg.Modes, "modes", []string{"ssgd", "x=half", "asgd", "groups=half"}, "modes, as --mode of star run has them, and x=half, groups=half, auto")
	settings.Var(&s.set, &cfg.Iterations, "iterations", 10_000, "iterations of each worker")
	settings.Var(&s.set, &cfg.Events, "events", 2_000_000, "most gradients of a row; 0: no limit")
	compared(s, &measureOptions[[]bench.ScaleResult]{measures: bench.ScaleMeasures, title: "the simulator, for a gradient", x: "workers"})
	return s.command("scale", "What the simulator takes as clusters grow",
		`Simulates clusters with the progress model and says what a gradient costs: processor time, and memory.`,
		func(ctx context.Context) (any, error) {
			for _, n := range cfg.Workers {
				if n < 2 || n > 1<<20 {
					return nil, s.set.Invalid("ranks", fmt.Errorf("%d is not in 2..%d", n, 1<<20))
				}
			}
			if cfg.Iterations < 1 {
				return nil, s.set.Invalid("iterations", fmt.Errorf("%d: at least 1 is needed", cfg.Iterations))
			}
			if cfg.Events < 0 {
				return nil, s.set.Invalid("events", fmt.Errorf("%d: a number from 0", cfg.Events))
			}
			return bench.Scale(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "workers\tmode\tgradients\tupdates\ttook\tCPU ns/gradient\tB/gradient\tmemory MiB\t\n")
			for _, r := range result.([]bench.ScaleResult) {
				fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%.0f\t%.0f\t%d\t\n", r.Workers, r.Mode, r.Gradients, r.Updates, console.Seconds(r.Seconds), 1e9*r.Gradient,
					r.Allocated, r.Memory>>20)
			}
		})
}
