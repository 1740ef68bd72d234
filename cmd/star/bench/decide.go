package bench

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/bench"
	"star/internal/settings"
)

// benchDecide measures what --mode auto takes to decide.
func benchDecide() *cobra.Command {
	s := new(suite)
	var cfg bench.DecideConfig
	settings.Var(&s.set, &cfg.Workers, "ranks", []int{8, 64, 512}, "numbers of workers")
	settings.Var(&s.set, &cfg.Runs, "runs", 50, "decisions of each")
	compared(s, &measureOptions[[]bench.DecideResult]{measures: bench.DecideMeasures, title: "a decision of --mode auto", x: "workers"})
	return s.command("decide", "What --mode auto takes to decide",
		`The controller decides with the last 32 iterations of every worker; each is played through the barrier for each
candidate. One worker in sixteen takes twice as long. No update waits for a decision.`,
		func(ctx context.Context) (any, error) {
			for _, n := range cfg.Workers {
				if n < 1 || n > 4096 {
					return nil, s.set.Invalid("ranks", fmt.Errorf("%d workers: want 1 to 4096", n))
				}
			}
			if cfg.Runs < 1 || cfg.Runs > 1e6 {
				return nil, s.set.Invalid("runs", fmt.Errorf("%d is not in 1..1000000", cfg.Runs))
			}
			return bench.Decide(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "workers\tdecisions\tmedian\tp90\tlongest\t\n")
			for _, r := range result.([]bench.DecideResult) {
				d := func(s float64) time.Duration {
					return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
				}
				fmt.Fprintf(w, "%d\t%d\t%v\t%v\t%v\t\n", r.Workers, r.Runs, d(r.Median), d(r.P90), d(r.Max))
			}
		})
}
