package sched

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/launch"
	"star/internal/settings"
	"star/sched/estimate"
	"star/sched/market"
)

// forecast are the settings of star sched market forecast.
type forecast struct {
	set                    settings.Set
	revoke                 string
	workers, runs          int
	samples                int64
	rates                  []string
	start                  time.Duration
	price, servers, demand float64
	level                  float64
	deadline               time.Duration
	asJSON                 bool
	job                    market.Spot
	curve                  []estimate.Rate
	of                     *market.Revocations
}

func schedForecastCommand() *cobra.Command {
	f := new(forecast)
	s := &f.set
	settings.Var(s, &f.revoke, "revoke", "", "how machines are taken away and replaced, as of star run --revoke: rate:2,replace=90s, k80:replace=2m")
	settings.Var(s, &f.workers, "workers", 0, "how many workers the job has; 0: as many as the runs, or as --rates has")
	settings.Var(s, &f.samples, "samples", 0, "samples of the whole job; 0: those of the last run log's")
	settings.Var(s, &f.rates, "rates", []string(nil), "without a run log: samples/s by number of workers, such as 1:2500,4:9000")
	settings.Var(s, &f.start, "start", -time.Second, "from the start of a machine until its worker takes part; -1s: as long as in the run logs, 0 where they do not say")
	settings.Var(s, &f.price, "price", 0, "$ for a worker's machine in an hour")
	settings.Var(s, &f.servers, "price-servers", 0, "$ in an hour for everything beside, which is not transient")
	settings.Var(s, &f.demand, "price-demand", 0, "$ per hour for a worker's machine that is not taken away, to compare with")
	settings.Var(s, &f.level, "level", .9, "share of the runs that are in the intervals")
	settings.Var(s, &f.deadline, "deadline", 0, "say how likely the job ends within this time")
	settings.Var(s, &f.runs, "runs", 2000, "how many runs are simulated")
	settings.Var(s, &f.asJSON, "json", false, "the answer as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "forecast [RUN...]",
		Short: "What a job would cost on transient machines, and when it would end",
		Long: `Simulates a job on machines that are taken away and replaced, many times, and says how long the median run takes and costs. How fast the job is on how
many workers comes from its run logs (star sched scaling), with their uncertainty, or from --rates.

  star sched market forecast star-out --revoke rate:2,replace=90s --price .2556
  star sched market forecast --samples 5000000 --rates 1:600,4:2300 --workers 4 --revoke k80:replace=2m --price .2556 --price-demand .723`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.prepare(args); err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout())
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// prepare determines what to simulate.
func (f *forecast) prepare(logs []string) (err error) {
	if f.revoke == "" {
		return f.set.Invalid("revoke", errors.New("how are machines taken away? give rate:PER_HOUR, k80, p100, v100 or trace:FILE"))
	}
	if f.of, err = launch.ReadRevocations(f.revoke, f.set.Invalid); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		ok   bool
		want string
	}{
		{"workers", f.workers >= 0 && f.workers <= 65536, "0 to 65536"}, {"samples", f.samples >= 0, "0 or more"}, {"level", f.level > 0 && f.level < 1, "a share between 0 and 1"},
		{"price", f.price >= 0 && f.price < 1e9, "$ of at least 0"}, {"price-servers", f.servers >= 0 && f.servers < 1e9, "$ of at least 0"},
		{"price-demand", f.demand >= 0 && f.demand < 1e9, "$ of at least 0"}, {"deadline", f.deadline >= 0, "0 or more"}, {"start", f.start >= 0 || f.start == -time.Second, "0 or more, or -1s"}, {"runs", f.runs >= 20 && f.runs <= 1e6, "20 to 1000000"},
		{"rates", len(logs) == 0 || len(f.rates) == 0, "run logs or --rates, not both"}, {"rates", len(logs)+len(f.rates) > 0, "run logs, or samples/s such as 1:2500,4:9000"},
	} {
		if !c.ok {
			return f.set.Invalid(c.name, errors.New("want "+c.want))
		}
	}
	r := new(measured)
	for _, name := range logs {
		if err := r.read(name); err != nil {
			return err
		}
	}
	for _, text := range f.rates {
		n, rate, ok := strings.Cut(text, ":")
		k, err := strconv.Atoi(n)
		v, err2 := strconv.ParseFloat(rate, 64)
		if !ok || err != nil || err2 != nil || k < 1 || k > 65536 || !(v > 0) || math.IsInf(v, 1) {
			return f.set.Invalid("rates", fmt.Errorf("%q: want WORKERS:SAMPLES/S, such as 4:9000", text))
		}
		r.most = max(r.most, k)
		r.segments = append(r.segments, estimate.Segment{Workers: k, Seconds: 1, Samples: v}, estimate.Segment{Workers: k, Seconds: 1, Samples: v})
	}
	if f.curve, err = r.curve(f.workers, logs); err != nil {
		return err
	}
	if f.samples == 0 {
		f.samples = r.limit
	}
	if f.samples == 0 {
		return f.set.Invalid("samples", errors.New("how many samples has the whole job?"))
	}
	starts := []time.Duration{f.start}
	if f.start < 0 {
		if f.start, starts = 0, r.starts; len(starts) > 0 {
			slices.Sort(starts)
			f.start = starts[len(starts)/2]
		}
	}
	f.job = market.Spot{Samples: float64(f.samples), Start: starts, Leave: leaves}
	for _, c := range f.curve {
		f.job.Rates = append(f.job.Rates, c.Mean)
	}
	return nil
}

// leaves is how long a worker works on after it was asked to leave: ending.MusterTime of the coordinator.
const leaves = 2 * time.Second

// forecastSpan is a quantity of the simulated runs.
type forecastSpan struct {
	Median *float64 `json:"median"` // null: unknown, because jobs do not end
	Low    *float64 `json:"low"`
	High   *float64 `json:"high"`
}

func spanOf(values []float64, level float64) forecastSpan {
	q := market.Quantiles(values, .5, (1-level)/2, (1+level)/2)
	known := func(v float64) *float64 {
		if math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return forecastSpan{known(q[0]), known(q[1]), known(q[2])}
}

// forecastAnswer is star sched market forecast --json.
type forecastAnswer struct {
	Samples  int64         `json:"samples"`
	Workers  int           `json:"workers"`
	Revoke   string        `json:"revoke"`
	Start    float64       `json:"start_s"`
	Runs     int           `json:"runs"`
	Level    float64       `json:"level"`
	Seconds  forecastSpan  `json:"seconds"`
	Machines forecastSpan  `json:"machine_s"`          // of workers
	Cost     *forecastSpan `json:"cost_usd,omitempty"` // with a price
	Revoked  forecastSpan  `json:"revoked"`
	NoEnd    float64       `json:"share_that_does_not_end"`
	InTime   *float64      `json:"share_within_deadline,omitempty"`
	Demand   float64       `json:"seconds_on_demand"` // without revocations
	Costs    *float64      `json:"cost_usd_on_demand,omitempty"`
}

// simulate runs the job many times. Each run has its own lives and its own rates: a curve is off by the same error for
// all numbers of workers at once, and the scatter between runs adds to that of the measurements.
func (f *forecast) simulate() *forecastAnswer {
	a := &forecastAnswer{Samples: f.samples, Workers: len(f.curve), Revoke: f.revoke, Start: f.start.Seconds(), Runs: f.runs, Level: f.level}
	var took, up, cost, revoked []float64
	inTime := 0.
	for i := range f.runs {
		of, job := *f.of, f.job
		of.Seed = f.of.Seed<<32 + uint64(i)
		job.Rates = slices.Clone(job.Rates)
		z := market.Normal(of.Seed)
		for k, c := range f.curve {
			s := c.Sigma
			if c.Measured > 0 && len(f.rates) == 0 {
				s *= math.Sqrt2
			}
			job.Rates[k] = c.Mean * math.Exp(z*s/c.Mean)
		}
		r := job.Run(&of)
		t, u := r.Took.Seconds(), r.Up.Seconds()
		if r.Took == market.NoEnd {
			t, u = math.Inf(1), math.Inf(1)
			a.NoEnd++
		}
		if t <= f.deadline.Seconds() {
			inTime++
		}
		took, up, revoked = append(took, t), append(up, u), append(revoked, float64(r.Revoked))
		c := math.Inf(1)
		if r.Took != market.NoEnd {
			c = (f.servers*t + f.price*u) / 3600
		}
		cost = append(cost, c)
	}
	a.NoEnd /= float64(f.runs)
	inTime /= float64(f.runs)
	a.Seconds, a.Machines, a.Revoked = spanOf(took, f.level), spanOf(up, f.level), spanOf(revoked, f.level)
	n := len(f.curve)
	a.Demand = float64(f.samples) / f.curve[n-1].Mean
	if f.price+f.servers > 0 {
		c := spanOf(cost, f.level)
		a.Cost = &c
	}
	if f.demand > 0 {
		c := (float64(n)*f.demand + f.servers) * a.Demand / 3600
		a.Costs = &c
	}
	if f.deadline > 0 {
		a.InTime = &inTime
	}
	return a
}

func (f *forecast) print(w io.Writer) error {
	a := f.simulate()
	if f.asJSON {
		return json.NewEncoder(w).Encode(a)
	}
	fmt.Fprintf(w, "%d samples on %d workers, %d runs simulated: machines are taken away by %s, and train %v after their start (median)\n\n", a.Samples, a.Workers, a.Runs, a.Revoke, f.start.Round(100*time.Millisecond))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "\tmedian\t%.4g %% of the runs are between\tand\t\n", 100*a.Level)
	row := func(name string, s forecastSpan, say func(float64) string) {
		cell := func(v *float64) string {
			if v == nil {
				return "never"
			}
			return say(*v)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t\n", name, cell(s.Median), cell(s.Low), cell(s.High))
	}
	long := func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(time.Second / 10).String()
	}
	row("training takes", a.Seconds, long)
	row("machines are up for", a.Machines, long)
	dollars := func(v float64) string { return fmt.Sprintf("%.4g", v) }
	if a.Cost != nil {
		row("cost $", *a.Cost, dollars)
	}
	row("machines taken away", a.Revoked, func(v float64) string { return fmt.Sprintf("%.0f", v) })
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\non machines that are not taken away: %s", long(a.Demand))
	if a.Costs != nil {
		fmt.Fprintf(w, ", %s $", dollars(*a.Costs))
	}
	fmt.Fprintln(w)
	if a.NoEnd > 0 {
		fmt.Fprintf(w, "%.1f %% of the runs do not end: no worker is left, and none comes (replace=TIME)\n", 100*a.NoEnd)
	}
	if a.InTime != nil {
		fmt.Fprintf(w, "%.1f %% of the runs end within %v\n", 100**a.InTime, f.deadline)
	}
	return nil
}
