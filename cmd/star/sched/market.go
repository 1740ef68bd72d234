package sched

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/sched/market"
	"star/sched/workload"
)

// marketRow is a configuration of star sched market report --json. What is not known is left out.
type marketRow struct {
	Config   string   `json:"config"`
	Runs     int      `json:"runs"`
	Ended    int      `json:"ended"`
	Hours    float64  `json:"hours"`
	Accuracy float64  `json:"accuracy"`
	Cost     *float64 `json:"cost_usd,omitempty"`
	Study    *float64 `json:"study_cost_usd,omitempty"`
	Rate     float64  `json:"steps_per_s"`
	Speedup  float64  `json:"speedup"`
	Saving   *float64 `json:"saving,omitempty"`
}

// marketLoss is the runs of a configuration in which as many workers were revoked.
type marketLoss struct {
	Config  string  `json:"config"`
	Revoked int     `json:"revoked"`
	Runs    int     `json:"runs"`
	Hours   float64 `json:"hours"`
	Cost    float64 `json:"cost_usd"`
}

// marketLife is the lifetimes of a kind of machine.
type marketLife struct {
	Machine market.Machine `json:"machine"`
	Number  int            `json:"machines"`
	Mean    float64        `json:"mean_h"`
	Within  []float64      `json:"share_that_lives_less_than_h_plus_1"` // h from 0 to 24
}

// marketReport is star sched market report --json.
type marketReport struct {
	Prices  market.Prices `json:"usd_per_s"`
	Configs []marketRow   `json:"configs"`
	Losses  []marketLoss  `json:"revocations"`
	Lives   []marketLife  `json:"lifetimes"`
	Rates   []marketRow   `json:"learning_rates"`
	Curves  []marketCurve `json:"learning_curves"`
}

// marketBase is what speed-up and saving are relative to: one machine on demand.
const marketBase = "k80_on_demand/k80-demand"

func schedMarketCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "market",
		Short: "What transient machines cost, and how long they live",
		Args:  settings.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var s settings.Set
	asJSON, plot := false, ""
	settings.Var(&s, &asJSON, "json", false, "the tables as JSON on standard output")
	settings.Var(&s, &plot, "plot", "", "folder for pictures of how long machines live, of how many parameter servers are enough, and of accuracy under the learning rates: lifetimes.svg, servers.svg, learning-rates.svg")
	report := &cobra.Command{
		Use:   "report DIR",
		Short: "Recompute the tables of a study of training on transient machines",
		Long: `Reads the data of Li et al., Speeding up Deep Learning with Transient Servers (folders training, lifetime and adaptive_lr), and says how long
runs took and what they cost, what revocations cost them, and how long machines lived.

  star sched market report transient-deep-learning`,
		Args: func(cmd *cobra.Command, args []string) error { return wantArgs(cmd, args, 1, 1, "one folder") },
		RunE: func(cmd *cobra.Command, args []string) error {
			if plot == "-" {
				return s.Invalid("plot", errPicturesFolder)
			}
			if f, err := os.Stat(args[0]); err == nil && !f.IsDir() {
				return job.FileError(workload.Bad("%s is a file: give the folder of the study's data, which has training, lifetime and adaptive_lr", args[0]), workload.ErrInput)
			}
			study, err := market.Read(os.DirFS(args[0]))
			if err != nil {
				return job.FileError(fmt.Errorf("%s: %w", args[0], err), workload.ErrInput)
			}
			r := reportMarket(study)
			if plot != "" {
				if err := r.plot(plot, study); err != nil {
					return err
				}
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return r.print(cmd.OutOrStdout(), study)
		},
	}
	cli.Bind(report, &s)
	cmd.AddCommand(report, schedForecastCommand())
	return cmd
}

// finite is a number that is known.
func finite(v float64) *float64 {
	if math.IsNaN(v) {
		return nil
	}
	return &v
}

func summarizeMarket(c *market.Config) marketRow {
	r := marketRow{Config: c.Name, Runs: len(c.Runs)}
	ended := slices.DeleteFunc(slices.Clone(c.Runs), func(r *market.Run) bool { return math.IsNaN(r.Seconds) })
	r.Ended = len(ended)
	mean := func(of func(*market.Run) float64) float64 { return market.Mean(ended, of) }
	seconds := mean(func(r *market.Run) float64 { return r.Seconds })
	r.Hours, r.Rate = seconds/3600, market.Steps/seconds
	r.Accuracy = mean(func(r *market.Run) float64 { return r.Accuracy })
	r.Cost = finite(mean(func(r *market.Run) float64 { return r.Cost }))
	r.Study = finite(mean(func(r *market.Run) float64 { return r.Study }))
	return r
}

func reportMarket(s *market.Study) *marketReport {
	r := &marketReport{Prices: s.Prices}
	for _, c := range s.Configs {
		if row := summarizeMarket(c); row.Ended > 0 {
			r.Configs = append(r.Configs, row)
		}
		by := map[int][]*market.Run{}
		for _, run := range c.Runs {
			if run.Logged {
				by[run.Revoked] = append(by[run.Revoked], run)
			}
		}
		if len(by) < 2 {
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(by)) {
			h := market.Mean(by[n], func(r *market.Run) float64 { return r.Seconds / 3600 })
			cost := market.Mean(by[n], func(r *market.Run) float64 { return r.Cost })
			r.Losses = append(r.Losses, marketLoss{c.Name, n, len(by[n]), h, cost})
		}
	}
	if i := slices.IndexFunc(r.Configs, func(m marketRow) bool { return m.Config == marketBase }); i >= 0 {
		base := r.Configs[i]
		for i := range r.Configs {
			m := &r.Configs[i]
			m.Speedup = base.Hours / m.Hours
			if m.Cost != nil && base.Cost != nil {
				m.Saving = finite(1 - *m.Cost / *base.Cost)
			}
		}
	}
	for _, l := range s.Lifetimes {
		m := marketLife{Machine: l.Machine, Number: len(l.Hours)}
		for _, h := range l.Hours {
			m.Mean += h / float64(len(l.Hours))
		}
		for h := range 25 {
			m.Within = append(m.Within, l.Within(float64(h+1)))
		}
		r.Lives = append(r.Lives, m)
	}
	for _, c := range s.Rates {
		if row := summarizeMarket(c); row.Ended > 0 {
			r.Rates = append(r.Rates, row)
		}
		for _, run := range c.Runs {
			r.Curves = append(r.Curves, marketCurve{c.Name, run.Curve})
		}
	}
	return r
}

func (r *marketReport) print(w io.Writer, s *market.Study) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	known := func(v *float64, format string, unit float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf(format, *v*unit)
	}
	fmt.Fprintln(tw, "runs on\truns\tended\thours\taccuracy\tcost $\tin the study $\tsteps/s\tspeed-up\tsaving\t")
	for _, c := range r.Configs {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.3f\t%.2f %%\t%s\t%s\t%.1f\t%.2f\t%s\t\n", c.Config, c.Runs, c.Ended, c.Hours, 100*c.Accuracy,
			known(c.Cost, "%.3f", 1), known(c.Study, "%.3f", 1), c.Rate, c.Speedup, known(c.Saving, "%.1f %%", 100))
	}
	fmt.Fprintf(tw, "\nspeed-up and saving: beside %s\n\n", marketBase)
	fmt.Fprintln(tw, "machine\t$/s\t$/h\t")
	for _, m := range slices.Sorted(maps.Keys(r.Prices)) {
		fmt.Fprintf(tw, "%s\t%.8g\t%.4f\t\n", m, r.Prices[m], 3600*r.Prices[m])
	}
	fmt.Fprintln(tw, "\nruns on\tworkers revoked\truns\thours\tcost $\t")
	for _, l := range r.Losses {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.3f\t%.3f\t\n", l.Config, l.Revoked, l.Runs, l.Hours, l.Cost)
	}
	fmt.Fprintln(tw, "\nmachine\tmachines\tmean life h\tended within 1 h\t6 h\t12 h\t18 h\t24 h\t")
	for _, l := range r.Lives {
		fmt.Fprintf(tw, "%s\t%d\t%.2f", l.Machine, l.Number, l.Mean)
		for _, h := range []int{1, 6, 12, 18, 24} {
			fmt.Fprintf(tw, "\t%.1f %%", 100*l.Within[h-1])
		}
		fmt.Fprintln(tw, "\t")
	}
	if s.Undated > 0 {
		fmt.Fprintf(tw, "\n%d machines more have times of day without a date, and are not counted\n", s.Undated)
	}
	fmt.Fprintln(tw, "\nlearning rate\thours\taccuracy\tsteps/s\t")
	for _, c := range r.Rates {
		fmt.Fprintf(tw, "%s\t%.3f\t%.2f %%\t%.1f\t\n", c.Config, c.Hours, 100*c.Accuracy, c.Rate)
	}
	return tw.Flush()
}
