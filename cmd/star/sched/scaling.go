package sched

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/runlog"
	"star/sched/estimate"
	"star/sched/market"
	"star/sched/workload"
)

// measured are the speeds of jobs in run logs, by number of workers.
type measured struct {
	segments []estimate.Segment
	most     int             // workers, at any time
	limit    int64           // samples of the last job
	starts   []time.Duration // from when a machine was started in the place of another one until its worker joined

	there   map[nouns.Worker]bool
	gone    map[nouns.Worker]time.Duration
	replace time.Duration // of the job's --revoke
	since   time.Duration // of the present segment
	from    int64         // its first sample
	samples int64         // of that
	begun   bool
}

// window is the longest segment: shorter ones are dominated by the noise of single updates, longer ones are too few to
// show the scatter of rates.
const window = 2 * time.Second

func (r *measured) read(name string) error {
	r.there, r.gone, r.begun, r.replace = map[nouns.Worker]bool{}, map[nouns.Worker]time.Duration{}, false, 0
	return cli.ReadRunLog(name, "rates are those of the updates after that", r.line)
}

func (r *measured) line(l runlog.Line) {
	switch e := l.Entry.(type) {
	case runlog.Start:
		var config struct{ Revoke string }
		if json.Unmarshal(e.Config, &config) == nil {
			if rv, err := market.ParseRevocations(config.Revoke); err == nil {
				r.replace = max(0, rv.Replace)
			}
		}
	case runlog.Train:
		r.begun, r.limit, r.since, r.samples = true, e.Limit, l.T, 0
		for w := range e.Workers {
			if !slices.Contains(e.Absent, nouns.Worker(w)) {
				r.there[nouns.Worker(w)] = true
			}
		}
		r.most, r.from = max(r.most, len(r.there)), -1
	case runlog.Join:
		if left, ok := r.gone[e.Worker]; ok {
			r.starts = append(r.starts, max(0, l.T-left-r.replace))
		}
		if r.begun {
			r.cut(l.T)
			r.there[e.Worker] = true
			r.most = max(r.most, len(r.there))
		}
	case runlog.Leave:
		r.cut(l.T)
		delete(r.there, e.Worker)
		r.gone[e.Worker] = l.T
	case runlog.Fire:
		if r.from < 0 { // of a job that resumes, too, the first update counts for nothing
			r.from, r.since = e.Samples, l.T
		}
		r.samples = e.Samples
		if l.T-r.since >= window {
			r.cut(l.T)
		}
	}
}

// cut ends a segment.
func (r *measured) cut(at time.Duration) {
	if n := len(r.there); n > 0 && r.begun && r.from >= 0 && at-r.since > window/4 {
		r.segments = append(r.segments, estimate.Segment{Workers: n, Seconds: (at - r.since).Seconds(), Samples: float64(r.samples - r.from)})
	}
	r.since = at
	if r.from >= 0 {
		r.from = r.samples
	}
}

// curve is how fast the jobs are on 1 to most workers; 0: as many as they had.
func (r *measured) curve(most int, names []string) ([]estimate.Rate, error) {
	if most == 0 {
		most = max(r.most, 1)
	}
	c, err := estimate.Curve(r.segments, most)
	if err != nil {
		return nil, job.FileError(workload.Bad("%s: %v", strings.Join(names, ", "), err), workload.ErrInput)
	}
	return c, nil
}

func schedScalingCommand() *cobra.Command {
	var s settings.Set
	most, asJSON := 0, false
	settings.Var(&s, &most, "most", 0, "up to how many workers; 0: as many as the jobs had")
	settings.Var(&s, &asJSON, "json", false, "the table as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "scaling RUN...",
		Short: "How fast a job is on how many workers, from its run logs",
		Long: `Reads run logs, or the folders of jobs, and says how many samples/s the job computes on each number of workers, with the standard error: as measured while
it had that many, or, for other numbers, by a line through the others. Workers come and go with --revoke, --max-workers, star sched serve, or from run to run.

  star sched scaling star-out`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &settings.UsageError{Msg: cmd.CommandPath() + ": want one run log or more, or folders of jobs"}
			}
			if most < 0 || most > 65536 {
				return s.Invalid("most", errors.New("want 0 to 65536 workers"))
			}
			r := new(measured)
			for _, name := range args {
				if err := r.read(name); err != nil {
					return err
				}
			}
			curve, err := r.curve(most, args)
			if err != nil {
				return err
			}
			if err := printScaling(cmd.OutOrStdout(), curve, asJSON); err != nil || asJSON {
				return err
			}
			return r.assumed(cmd.OutOrStdout(), curve)
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

// scalingRow is a row of star sched scaling --json.
type scalingRow struct {
	Workers  int     `json:"workers"`
	Rate     float64 `json:"samples_per_s"`
	Sigma    float64 `json:"standard_error"`
	Measured float64 `json:"measured_s"` // 0: by the line through the others
}

func printScaling(w io.Writer, curve []estimate.Rate, asJSON bool) error {
	if asJSON {
		var rows []scalingRow
		for _, r := range curve {
			rows = append(rows, scalingRow{r.Workers, r.Mean, r.Sigma, r.Measured})
		}
		return json.NewEncoder(w).Encode(rows)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "workers\tsamples/s\tstandard error\tmeasured for\t")
	for _, r := range curve {
		seconds := "not measured"
		if r.Measured > 0 {
			seconds = fmt.Sprintf("%.1f s", r.Measured)
		}
		fmt.Fprintf(tw, "%d\t%.1f\t%.1f\t%s\t\n", r.Workers, r.Mean, r.Sigma, seconds)
	}
	return tw.Flush()
}

// assumed prints which parts of a curve were not measured.
func (r *measured) assumed(w io.Writer, curve []estimate.Rate) error {
	times := map[int]int{}
	for _, s := range r.segments {
		if s.Samples > 0 {
			times[s.Workers]++
		}
	}
	var once []int
	for n, k := range times {
		if k == 1 {
			once = append(once, n)
		}
	}
	slices.Sort(once)
	var err error
	if len(once) > 0 {
		_, err = fmt.Fprintf(w, "\nOf %s workers there is one measurement alone: its standard error is assumed, 10 %% at most.\n", strings.ReplaceAll(strings.Trim(fmt.Sprint(once), "[]"), " ", ", "))
	}
	if unseen := slices.ContainsFunc(curve, func(r estimate.Rate) bool { return r.Measured == 0 }); unseen && len(times) == 1 && err == nil {
		_, err = fmt.Fprintln(w, "\nOnly one number of workers was measured: that the others are as fast in proportion is assumed.")
	}
	return err
}
