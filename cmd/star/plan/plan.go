package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cluster/resource"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/pgns"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{planCommand(), placeCommand(), inventoryCommand(), limitsCommand(), simCommand(), replayCommand(), deciderCommand(), predictorCommand(), traceCommand()}
}

// planCandidate is one line of star plan --json.
type planCandidate struct {
	Plan      string  `json:"plan"`
	Kind      string  `json:"kind"`
	X         int     `json:"x,omitempty"`
	Groups    [][]int `json:"groups"`
	Riders    []int   `json:"riders,omitempty"`
	Shares    []int   `json:"shares"`
	Interval  float64 `json:"interval_s"`
	Staleness float64 `json:"staleness"`
	Samples   float64 `json:"samples"`
	Updates   float64 `json:"updates"`
	Penalty   float64 `json:"penalty"`
	Cost      float64 `json:"cost_s"`
	Guess     bool    `json:"guess,omitempty"`
	Refused   string  `json:"refused,omitempty"` // why the servers' host cannot afford it
}

// planPublished is the choice of the published heuristic.
type planPublished struct {
	X       int       `json:"k"`
	Best    float64   `json:"t_star_s"`
	Static  []float64 `json:"static_s"`
	Least   int       `json:"argmin"`
	Dynamic float64   `json:"dynamic_s"`
	Groups  [][]int   `json:"groups"`
	First   struct {
		Mode   string  `json:"mode"`
		SSGD   float64 `json:"ssgd_s"`
		ASGD   float64 `json:"asgd_s"`
		Hybrid int     `json:"hybrid"`
	} `json:"first"`
}

type planResult struct {
	Noise      float64         `json:"noise_scale"`
	Candidates []planCandidate `json:"candidates"`
	Published  *planPublished  `json:"published,omitempty"`
	Choice     string          `json:"choice"`
	Cost       float64         `json:"cost_s"`
	Why        string          `json:"why"`
}

// planFlags are the settings of star plan.
type planFlags struct {
	set                                 settings.Set
	times, compute                      []string
	batch                               int
	noise, epoch, rate, momentum        float64
	bytes, link                         float64
	cores, net                          float64
	workerLink, prior                   string
	table, arch, heuristic, model, mode string
	worth                               string
	wait                                time.Duration
	asJSON                              bool
}

func planCommand() *cobra.Command {
	p := new(planFlags)
	s := &p.set
	settings.Var(s, &p.times, "times", []string{}, "how long an iteration of each worker takes, such as 600ms,600ms,1200ms")
	settings.Var(s, &p.compute, "compute", []string{}, "how much of it depends on its samples; without it shares are a guess")
	settings.Var(s, &p.batch, "batch", 64, "samples of one worker in one iteration")
	settings.Var(s, &p.noise, "noise-scale", 0.0, "gradient noise scale, in samples")
	settings.Var(s, &p.table, "noise-table", "", "CSV file with the columns batch, epoch, grad_sqr, grad_var: where to take the noise scale from instead")
	settings.Var(s, &p.epoch, "epoch", 0.0, "with --noise-table: the epoch")
	settings.Var(s, &p.rate, "rate", price.PriorRate, "learning rate as a part of the one that would be best for SSGD: the price of staleness, 0 to 1")
	settings.Var(s, &p.momentum, "momentum", 0.0, "momentum of the job's optimiser, β₁ of Adam: it makes staleness dear")
	settings.Var(s, &p.arch, "arch", "ps", "architecture", "ps", "allreduce")
	settings.Var(s, &p.wait, "rider-wait", time.Duration(0), "with --arch allreduce: how long a ring waits for riders")
	settings.Var(s, &p.bytes, "gradient-bytes", 0.0, "size of a gradient; with --link, trees are candidates too")
	settings.Var(s, &p.link, "link", 0.0, "what the servers' links carry, in and out, in bytes per second")
	settings.Var(s, &p.workerLink, "worker-link", "", "what each worker's own link carries in each direction, such as 20Mbit: with --gradient-bytes it adds the exchange to --times, and prices local and outer steps")
	settings.Var(s, &p.cores, "capacity-cpu", 0.0, "cores that the servers' host has for them; 0: no limit")
	settings.Var(s, &p.net, "capacity-net", 0.0, "MB/s that its link carries for them in each direction; 0: no limit")
	settings.Var(s, &p.prior, "model-prior", "", "published model (docs/resources.md) that this one costs its servers as much as (by --gradient-bytes)")
	settings.Var(s, &p.heuristic, "heuristic", "cheapest", "how to choose: cheapest, paper (the published heuristic), learned (with --decider)", "cheapest", "paper", "learned")
	settings.Var(s, &p.model, "decider", "", "file of star decider train")
	settings.Var(s, &p.mode, "also", "", "price this mode too")
	settings.Var(s, &p.worth, "worth", "", "instead: of this job, its run log or its folder, whether its workers are faster together than one alone")
	settings.Var(s, &p.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Price every mode for given iteration times, and choose",
		Long: `Says what each mode would cost until the same progress, cheapest first, and which one a running job would choose.

  star plan --times 600ms,600ms,600ms,1200ms --batch 128 --noise-scale 480
  star plan --times 600ms,600ms,600ms,1200ms --batch 128 --noise-scale 480 --heuristic paper
  star plan --times 100ms,100ms,100ms,300ms --batch 16 --gradient-bytes 4e6 --worker-link 20Mbit
  star plan --worth star-out      whether the workers of a job are faster together than one alone

Costs are times for the progress of one update with an exact gradient, by SSGD; docs/theory.md derives them.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.worth != "" {
				return worthOf(cmd.OutOrStdout(), p.worth, p.asJSON)
			}
			r, err := p.plan()
			if err != nil {
				return err
			}
			if p.asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(r)
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			r.print(tw)
			return tw.Flush()
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// durations parses the times of every worker.
func (p *planFlags) durations(name string, texts []string) ([]time.Duration, error) {
	var ds []time.Duration
	for i, text := range texts {
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err == nil && d <= 0 && name == "times" {
			err = fmt.Errorf("want more than 0")
		}
		if err != nil {
			return nil, p.set.Invalid(name, fmt.Errorf("worker %d: %w", i, err))
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// forecast makes the settings a forecast.
func (p *planFlags) forecast() (f price.Forecast, err error) {
	if f.Times, err = p.durations("times", p.times); err != nil {
		return f, err
	}
	if n := len(f.Times); n == 0 || n > maxPlanned {
		return f, p.set.Invalid("times", fmt.Errorf("%d workers: give the times of 1 to %d, such as 600ms,600ms,1200ms", n, maxPlanned))
	}
	compute, err := p.durations("compute", p.compute)
	if err != nil {
		return f, err
	}
	if len(compute) > 0 && len(compute) != len(f.Times) {
		return f, p.set.Invalid("compute", fmt.Errorf("%d times for %d workers", len(compute), len(f.Times)))
	}
	if p.batch < 1 || p.batch > modes.MaxBatch {
		return f, p.set.Invalid("batch", fmt.Errorf("want 1 to %d", modes.MaxBatch))
	}
	for i, c := range compute {
		if c < 0 || c > f.Times[i] {
			return f, p.set.Invalid("compute", fmt.Errorf("worker %d computes %v of %v", i, c, f.Times[i]))
		}
		f.Fits = append(f.Fits, price.Fit{Fixed: (f.Times[i] - c).Seconds(), PerSample: c.Seconds() / float64(p.batch)})
	}
	if err := p.exchange(&f); err != nil {
		return f, err
	}
	if !(p.rate > 0 && p.rate <= 1) {
		return f, p.set.Invalid("rate", fmt.Errorf("want more than 0 and at most 1"))
	}
	if !(p.momentum >= 0 && p.momentum < 1) {
		return f, p.set.Invalid("momentum", fmt.Errorf("want at least 0 and less than 1"))
	}
	f.Steepness = price.PriorSteepness(p.momentum)
	if !(p.link >= 0) || !(p.bytes >= 0 && p.bytes < 1e15) {
		return f, p.set.Invalid("link", fmt.Errorf("--link and --gradient-bytes must not be negative"))
	}
	f.Batch, f.Rate, f.Ring, f.RiderWait = p.batch, p.rate, p.arch == settings.AllReduce, p.wait
	f.LinkBytes, f.LinkRate = int64(p.bytes), p.link
	switch {
	case p.table != "" && p.set.IsSet("noise-scale"):
		return f, p.set.Invalid("noise-table", fmt.Errorf("--noise-scale says it already: give one of the two"))
	case p.table == "":
		f.Noise = p.noise
	default:
		text, err := os.ReadFile(p.table)
		if err != nil {
			return f, job.FileError(err, pgns.ErrTable)
		}
		t, err := pgns.ParseTable(text)
		if err != nil {
			return f, job.FileError(fmt.Errorf("%s: %w", p.table, err), pgns.ErrTable)
		}
		if f.Noise, err = t.Scale(float64(p.batch*len(f.Times)), p.epoch); err != nil {
			return f, p.set.Invalid("epoch", err)
		}
		if f.Noise > mostNoise {
			return f, job.FileError(fmt.Errorf("%s: for rounds of %d samples its noise scale, grad_var by grad_sqr, is %.3g samples: want at most %.0e", p.table, p.batch*len(f.Times), f.Noise, float64(mostNoise)), pgns.ErrTable)
		}
	}
	if !(f.Noise >= 0 && f.Noise <= mostNoise) {
		return f, p.set.Invalid("noise-scale", fmt.Errorf("want 0 to %.0e", float64(mostNoise)))
	}
	return f, nil
}

// exchange adds to the times of f what gradients and parameters take over the workers' own links. Without --compute all
// of the time before counts as depending on the samples.
func (p *planFlags) exchange(f *price.Forecast) error {
	if p.workerLink == "" {
		return nil
	}
	text := p.workerLink
	if strings.HasSuffix(text, "bit") {
		text += "/s"
	}
	rate, err := inventory.Rate(text)
	if err == nil && rate <= 0 {
		err = errors.New("want more than 0")
	}
	if err == nil && p.bytes == 0 {
		err = errors.New("what does a worker exchange? Give --gradient-bytes")
	}
	if err == nil && p.arch == settings.AllReduce {
		err = errors.New("--arch allreduce is not priced with it: an exchange of members takes as long as the slowest link")
	}
	if err != nil {
		return p.set.Invalid("worker-link", err)
	}
	took := price.Seconds(2 * p.bytes / rate)
	for w := range f.Times {
		if f.Fits == nil || len(f.Fits) <= w {
			f.Fits = append(f.Fits, price.Fit{PerSample: f.Times[w].Seconds() / float64(p.batch)})
		}
		f.Fits[w].Fixed += took.Seconds()
		f.Times[w] += took
	}
	f.Local, f.Outer, f.Fragments = auto.MostLocal, auto.MostOuter, true
	return nil
}

// watch is the host of the servers, in SSGD and alone; nil: it has no limit.
func (p *planFlags) watch(f price.Forecast) (*resource.Watch, error) {
	for name, v := range map[string]float64{"capacity-cpu": p.cores, "capacity-net": p.net} {
		if !(v >= 0 && v <= 1e12) {
			return nil, p.set.Invalid(name, fmt.Errorf("want 0 to 1e12"))
		}
	}
	demand := resource.Bytes{Gradient: int64(p.bytes), Params: int64(p.bytes)}.Demand()
	if m, ok := resource.PublishedModel(p.prior); ok {
		demand = m.Demand(resource.PublishedCores)
	} else if p.prior != "" {
		return nil, p.set.Invalid("model-prior", fmt.Errorf("want one of %s", resource.PublishedNames()))
	}
	if p.cores == 0 && p.net == 0 {
		return nil, nil
	}
	limit := "capacity-cpu"
	if p.cores == 0 {
		limit = "capacity-net"
	}
	if f.Ring {
		return nil, p.set.Invalid(limit, fmt.Errorf("it limits servers, and --arch allreduce has none"))
	}
	if p.prior == "" && p.bytes == 0 {
		return nil, p.set.Invalid(limit, fmt.Errorf("what does a mode cost? Give --gradient-bytes or --model-prior"))
	}
	capacity := resource.Unlimited
	if p.cores > 0 {
		capacity.CPU = p.cores
	}
	if p.net > 0 {
		capacity.NetIn, capacity.NetOut = 1e6*p.net, 1e6*p.net
	}
	w, err := resource.NewWatch(demand, len(f.Times), capacity)
	if err != nil {
		return nil, err
	}
	now, err := process.LoadOf(modes.SSGD(len(f.Times)), slices.Clone(f.Times))
	if err != nil {
		return nil, err
	}
	w.Observe(now, demand.At(now), resource.Usage{})
	return w, nil
}

// affordable replaces a choice that the servers' host cannot afford by the cheapest affordable one, and records the
// reason for each candidate.
func (p *planFlags) affordable(f price.Forecast, cs []price.Candidate, r *planResult, d price.Decision) (price.Decision, error) {
	w, err := p.watch(f)
	if w == nil || err != nil {
		return d, err
	}
	refused := func(plan modes.Plan) string {
		l, err := process.LoadOf(plan, slices.Clone(f.Times))
		if err != nil {
			return err.Error()
		}
		if ok, why := w.Afford(l); !ok {
			return why
		}
		return ""
	}
	best := -1
	for i, c := range cs {
		if r.Candidates[i].Refused = refused(c.Plan); r.Candidates[i].Refused == "" && (best < 0 || c.Cost < cs[best].Cost) {
			best = i
		}
	}
	why := refused(d.Plan)
	if why == "" || best < 0 {
		return d, nil
	}
	return price.Decision{Plan: cs[best].Plan, Cost: cs[best].Cost, Why: fmt.Sprintf("%v would be chosen (%s), but %s; %v is the cheapest that the host can afford", d.Plan, d.Why, why, cs[best].Plan)}, nil
}

// mostNoise is the largest noise scale, in samples.
const mostNoise = 1e12

// maxPlanned is the most workers of star plan, as of a job.
const maxPlanned = 4096

func (p *planFlags) plan() (*planResult, error) {
	f, err := p.forecast()
	if err != nil {
		return nil, err
	}
	cs, err := price.Candidates(f)
	if err != nil {
		return nil, &settings.UsageError{Msg: err.Error()}
	}
	if p.mode != "" {
		plan, err := modes.Parse(p.mode, len(f.Times))
		if err != nil {
			return nil, p.set.Invalid("also", err)
		}
		if !slices.ContainsFunc(cs, func(c price.Candidate) bool { return c.Plan.Equal(plan) }) {
			c, err := price.Of(plan, f)
			if err != nil {
				return nil, p.set.Invalid("also", err)
			}
			cs = append(cs, c)
		}
	}
	r := &planResult{Noise: f.Noise, Candidates: []planCandidate{}}
	for _, c := range cs {
		r.Candidates = append(r.Candidates, planLine(c))
	}
	var d price.Decision
	switch p.heuristic {
	case "paper":
		pub, err := price.Publish(f)
		if err != nil {
			return nil, &settings.UsageError{Msg: err.Error()}
		}
		r.Published = &planPublished{X: pub.X, Best: pub.Best, Static: pub.Static, Least: pub.Least, Dynamic: pub.Dynamic}
		for _, g := range pub.Groups {
			r.Published.Groups = append(r.Published.Groups, numbers(g))
		}
		r.Published.First.Mode, r.Published.First.SSGD, r.Published.First.ASGD, r.Published.First.Hybrid = pub.First, pub.SSGD, pub.ASGD, pub.Hybrid
		d, err = pub.Decide(f)
		if err != nil {
			return nil, err
		}
	case "learned":
		if p.model == "" {
			return nil, p.set.Invalid("heuristic", fmt.Errorf("give the file with --decider"))
		}
		text, err := os.ReadFile(p.model)
		if err != nil {
			return nil, job.FileError(err, price.ErrLearned)
		}
		l, err := price.ParseLearned(text)
		if err != nil {
			return nil, job.FileError(fmt.Errorf("%s: %w", p.model, err), price.ErrLearned)
		}
		if d, err = l.Decide(f); err != nil {
			return nil, err
		}
	default:
		if d, err = (price.Cheapest{}).Decide(f); err != nil {
			return nil, err
		}
	}
	if d, err = p.affordable(f, cs, r, d); err != nil {
		return nil, err
	}
	r.Choice, r.Cost, r.Why = d.Plan.String(), d.Cost.Seconds(), d.Why
	return r, nil
}

func planLine(c price.Candidate) planCandidate {
	l := planCandidate{
		Plan: c.Plan.String(), Kind: c.Kind, X: c.X, Shares: c.Plan.Shares, Interval: c.Interval.Seconds(), Staleness: c.Staleness,
		Samples: c.Samples, Updates: c.Updates, Penalty: c.Penalty, Cost: c.Cost.Seconds(), Guess: c.Guess,
	}
	for _, g := range c.Plan.Groups {
		l.Groups = append(l.Groups, numbers(g.Members))
		l.Riders = append(l.Riders, numbers(g.Riders)...)
	}
	return l
}

func numbers[W ~int](ws []W) (ns []int) {
	for _, w := range ws {
		ns = append(ns, int(w))
	}
	return ns
}

// longestName is how long the text of a plan may be to stand in the first column.
const longestName = 64

func (r *planResult) print(tw *tabwriter.Writer) {
	// A cost counts the updates that noisy gradients need, so it is not a time that a clock shows: it is given relative
	// to SSGD's.
	head, cost := "cost", func(c planCandidate) string { return console.Seconds(c.Cost) }
	if i := slices.IndexFunc(r.Candidates, func(c planCandidate) bool { return c.Kind == "ssgd" && c.Shares == nil }); i >= 0 && r.Candidates[i].Cost > 0 {
		ssgd := r.Candidates[i].Cost
		head, cost = "cost/ssgd", func(c planCandidate) string { return fmt.Sprintf("%.3f", c.Cost/ssgd) }
	}
	fmt.Fprintf(tw, "mode\tinterval\tstaleness\tupdates\tpenalty\t%s\t\n", head)
	for _, c := range r.Candidates {
		// A long list of workers goes behind the columns, or every row would be as wide.
		name, all := c.Plan, ""
		if len(name) > longestName {
			name, all = c.Kind, c.Plan
		}
		guess := ""
		if c.Guess {
			guess = "shares are a guess"
		}
		if c.Refused != "" {
			guess = "cannot be afforded: " + c.Refused
		}
		if all != "" && guess != "" {
			guess += "; "
		}
		fmt.Fprintf(tw, "%s\t%s\t%.2f\t%.3f\t%.3f\t%s\t%s\n", name, console.Seconds(c.Interval), c.Staleness, c.Updates, c.Penalty, cost(c), guess+all)
	}
	if p := r.Published; p != nil {
		fmt.Fprintln(tw, "\npublished\tT")
		for i, t := range p.Static {
			fmt.Fprintf(tw, "x=%d\t%.4f ms\n", i+1, 1e3*t)
		}
		fmt.Fprintf(tw, "groups\t%.3f ms  %v\n", 1e3*p.Dynamic, p.Groups)
		fmt.Fprintf(tw, "k = %d\t%.4f ms\n", p.X, 1e3*p.Best)
		fmt.Fprintf(tw, "first heuristic: %s, hybrid %d\tssgd %.3f ms, asgd %.3f ms\n", p.First.Mode, p.First.Hybrid, 1e3*p.First.SSGD, 1e3*p.First.ASGD)
	}
	fmt.Fprintf(tw, "\nchoice: %s\n%s\n", r.Choice, r.Why)
}
