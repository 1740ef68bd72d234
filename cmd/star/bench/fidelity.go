package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/cmd/internal/cli"
	"star/cmd/internal/node"
	"star/coord"
	"star/coord/advice"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/pgns"
	"star/runlog"
	"star/server"
	"star/sim"
	"star/sim/trace"
	"star/train"
	"star/train/data"
	"star/train/net"
)

// fidelityRow is a real run beside the simulated one: an element of star bench fidelity --json.
type fidelityRow struct {
	Run       string  `json:"run"`
	Method    string  `json:"method"`
	Seen      float64 `json:"round_s"` // of N·batch samples applied
	Simulated float64 `json:"simulated_round_s"`
	Error     float64 `json:"error"` // simulated by seen, less 1
	SeenStale float64 `json:"staleness"`
	SimStale  float64 `json:"simulated_staleness"`

	Switches          int              `json:"switches"`
	SimulatedSwitches int              `json:"simulated_switches"`
	Same              int              `json:"same_switches"`
	Decisions         []fidelitySwitch `json:"decisions"`
}

// fidelitySwitch is a change of plan.
type fidelitySwitch struct {
	Samples   int64  `json:"samples"` // applied until then
	Plan      string `json:"plan"`
	Simulated bool   `json:"simulated"` // in the simulated run; else in the real one
	Same      bool   `json:"same"`      // the other run has it, too
}

func benchFidelity() *cobra.Command {
	s := new(settings.Set)
	var asJSON bool
	settings.Var(s, &asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "fidelity RUN …",
		Short: "Compare recorded runs with the simulator's",
		Long: `Simulates runs of star run --straggler-trace FILE --straggler-iteration TIME again, from their logs: the same trace, the same model, data and seed, the
same mode, baseline or controller. What a worker needs beside the trace's times (loading, pushing, pulling, waking up late) is drawn from the iterations of the log, what the
coordinator needs is the mean. Says how
long a round of samples took in both, and which changes of plan both have made: to the same plan, at most one round of samples apart (an iteration of
each worker). bench/fidelity.sh makes the runs.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &settings.UsageError{Msg: "star bench fidelity needs run logs, or folders of jobs"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			rows := []fidelityRow{}
			for _, path := range args {
				r, err := fidelity(cmd.Context(), path)
				if err != nil {
					return err
				}
				rows = append(rows, r)
			}
			out := cmd.OutOrStdout()
			if asJSON {
				return json.NewEncoder(out).Encode(rows)
			}
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(w, "run\tmethod\tround s\tsimulated\terror\tstaleness\tsimulated\tswitches\tsimulated\tsame\t")
			for _, r := range rows {
				fmt.Fprintf(w, "%s\t%s\t%.4f\t%.4f\t%+.1f %%\t%.2f\t%.2f\t%d\t%d\t%d\t\n", r.Run, r.Method, r.Seen, r.Simulated, 100*r.Error, r.SeenStale, r.SimStale,
					r.Switches, r.SimulatedSwitches, r.Same)
			}
			return w.Flush()
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// seenRun is a run as its log describes it.
type seenRun struct {
	Mode      string   `json:"mode"`
	Baseline  string   `json:"baseline"`
	Arch      string   `json:"arch"`
	Workers   int      `json:"workers"`
	Batch     int      `json:"batch"`
	Model     string   `json:"model"`
	Dataset   string   `json:"dataset"`
	Seed      uint64   `json:"seed"`
	Optimizer string   `json:"optimizer"`
	LR        float64  `json:"lr"`
	Momentum  float64  `json:"momentum"`
	Schedule  string   `json:"schedule"`
	Predictor string   `json:"predictor"`
	Decider   string   `json:"decider"`
	Trace     string   `json:"straggler-trace"`
	Median    float64  `json:"straggler-iteration"` // seconds
	Slow      []string `json:"slow"`

	limit    int64
	records  []nouns.Record
	fires    []runlog.Fire
	at       []time.Duration // of fires
	switches []fidelitySwitch
	waits    []time.Duration // after the gradient that completed an update, until its worker was released
}

// seen reads a run log.
func seen(path string) (*seenRun, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := new(seenRun)
	last := map[nouns.Worker]bool{} // workers that have completed an update and sent no record since
	var newest nouns.Worker
	read, err := runlog.Read(f, f.Name(), func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Start:
			if err := json.Unmarshal(e.Config, r); err != nil {
				return &runlog.Error{Name: f.Name(), Line: l.Number, Err: fmt.Errorf("the configuration: %w", err)}
			}
		case runlog.Train:
			r.limit = e.Limit
		case runlog.Record:
			if last[e.Worker] {
				r.waits = append(r.waits, e.Wait)
			}
			last[e.Worker] = false
			newest = e.Worker
			r.records = append(r.records, e.Record)
		case runlog.Fire:
			if len(e.Workers) > 0 {
				r.fires, r.at = append(r.fires, e), append(r.at, l.T)
				last[newest] = true
			}
		case runlog.Plan:
			k := int64(0)
			if n := len(r.fires); n > 0 {
				k = r.fires[n-1].Samples
			}
			r.switches = append(r.switches, fidelitySwitch{Samples: k, Plan: e.Plan})
		}
		return nil
	})
	lacks := read.Missing.Means("only a whole run can be compared with a simulated one")
	switch {
	case lacks != "":
		return nil, fmt.Errorf("%s: %s", f.Name(), lacks)
	case err != nil:
		return nil, err
	case r.Trace == "" || r.Median <= 0 || len(r.Slow) > 0:
		return nil, fmt.Errorf("%s: the job ran without a trace in its own times: give star run --straggler-trace and --straggler-iteration, and no --slow", f.Name())
	case r.Arch != "ps":
		return nil, fmt.Errorf("%s: the job ran with --arch %s: only parameter servers are compared", f.Name(), r.Arch)
	case len(r.fires) < 20:
		return nil, fmt.Errorf("%s: %d updates are too few to compare", f.Name(), len(r.fires))
	}
	return r, nil
}

// replayedTimes are the times of a trace plus the overhead of a real worker: in the first iterations the overhead
// measured there, since loading and other work that is done once happens in these, then that of one of its later
// iterations. That is drawn for each step, the same for all: other load of the machine delays them together.
type replayedTimes struct {
	*trace.Trace
	workers int
	median  time.Duration
	own     time.Duration                // computing at least
	first   map[nouns.Worker][]sim.Spent // Compute: the delay of its end relative to the trace
	beside  map[nouns.Worker][]sim.Spent
}

// starts is how many iterations of a worker are not like the others.
const starts = 5

func (t *replayedTimes) Workers() int { return t.workers }

func (t *replayedTimes) Spend(w nouns.Worker, step int64, _ time.Duration, load float64) sim.Spent {
	var s sim.Spent
	if of := t.first[w]; step < int64(len(of)) {
		s = of[step]
	} else if of := t.beside[w]; len(of) > 0 {
		s = of[int(rand.New(rand.NewPCG(0, uint64(step))).Float64()*float64(len(of)))]
	}
	s.Compute += max(time.Duration(load*t.Relative(w, step)*float64(t.median)), time.Duration(load*float64(t.own)))
	return s
}

// learn computes the overhead beyond the trace from the records.
func (t *replayedTimes) learn(records []nouns.Record) {
	var own []time.Duration
	t.first, t.beside = map[nouns.Worker][]sim.Spent{}, map[nouns.Worker][]sim.Spent{}
	for _, r := range records {
		s := sim.Spent{Load: r.Load, Push: r.Push + r.Pull}
		if r.Injected > 0 {
			s.Compute = max(0, r.Compute-time.Duration(t.Relative(r.Worker, r.Step)*float64(t.median)))
		}
		if r.Step < starts {
			t.first[r.Worker] = append(t.first[r.Worker], s)
			continue
		}
		own = append(own, r.Compute-r.Injected)
		t.beside[r.Worker] = append(t.beside[r.Worker], s)
	}
	t.own = cli.Typical(own)
}

// fidelity compares one run.
func fidelity(ctx context.Context, path string) (row fidelityRow, err error) {
	r, err := seen(path)
	if err != nil {
		return row, err
	}
	recorded, err := trace.Open(r.Trace)
	if err != nil {
		return row, job.FileError(fmt.Errorf("%s: its trace: %w", path, err), trace.ErrCorrupt)
	}
	median := time.Duration(r.Median * float64(time.Second))
	times := &replayedTimes{Trace: recorded, workers: r.Workers, median: median}
	times.learn(r.records)
	c := sim.Config{Times: times, Batch: r.Batch, Samples: r.limit, Target: 1}
	for _, d := range r.waits {
		c.Latency += d / time.Duration(len(r.waits))
	}
	task, err := newReplayedTask(ctx, r)
	if err != nil {
		return row, err
	}
	defer task.model.Close()
	trained := &sim.Trained{Task: task, Every: math.MaxInt}
	c.Learner = trained
	j := &settings.Job{Mode: r.Mode, Arch: r.Arch, Workers: r.Workers, Batch: r.Batch, Predictor: server.PredictorNone, Decider: r.Decider, Seed: r.Seed,
		Optimizer: r.Optimizer, LR: r.LR, Momentum: r.Momentum, Schedule: r.Schedule}
	own := node.Optimizer(j)
	row.Run, row.Method = filepath.Base(strings.TrimSuffix(path, string(filepath.Separator)+process.RunLogName)), cmp.Or(r.Baseline, r.Mode)
	if row.Method == job.Auto {
		p, err := node.NewPilot(j)
		if err != nil {
			return row, err
		}
		if err := c.Use("ssgd", own); err != nil {
			return row, err
		}
		l, err := newLived(p, r)
		if err != nil {
			return row, err
		}
		l.task, c.Pilot = task, l
		task.ahead, task.turns = make([]early, r.Workers), make([]pgns.Change, r.Workers)
	} else if err := c.Use(row.Method, own); err != nil {
		return row, err
	}
	whole := int64(r.Workers * r.Batch)
	from, to := r.limit/20/whole*whole, r.limit*19/20/whole*whole // at the ends runs are not like in the middle
	until := &untilApplied{Trained: trained, task: task, left: r.limit}
	c.Learner = until
	c.Pilot = &clock{Pilot: c.Pilot, until: until}
	res, err := sim.Run(c)
	if err != nil {
		return row, err
	}
	rounds := float64(to-from) / float64(whole)
	var seenAt []passed
	stale, count := 0.0, 0.0
	for i, f := range r.fires {
		seenAt = append(seenAt, passed{f.Samples, r.at[i]})
		for _, s := range f.Staleness {
			stale += float64(s)
			count++
		}
	}
	row.Seen = (when(seenAt, to) - when(seenAt, from)).Seconds() / rounds
	row.Simulated = (when(until.passed, to) - when(until.passed, from)).Seconds() / rounds
	row.Error = row.Simulated/row.Seen - 1
	row.SeenStale, row.SimStale = stale/count, res.Staleness
	var would []fidelitySwitch
	for _, s := range res.Switches {
		would = append(would, fidelitySwitch{Samples: appliedAt(until.passed, s.At), Plan: s.Plan.String(), Simulated: true})
	}
	row.Switches, row.SimulatedSwitches = len(r.switches), len(would)
	row.Same = agreed(r.switches, would, whole)
	row.Decisions = append(slices.Clone(r.switches), would...)
	slices.SortStableFunc(row.Decisions, func(a, b fidelitySwitch) int { return cmp.Compare(a.Samples, b.Samples) })
	return row, nil
}

// agreed pairs, in order, switches of both runs to the same plan that are not further apart than near samples, and
// counts the pairs: as many as can be (the longest common subsequence).
func agreed(a, b []fidelitySwitch, near int64) int {
	same := func(i, j int) bool {
		return a[i].Plan == b[j].Plan && max(a[i].Samples-b[j].Samples, b[j].Samples-a[i].Samples) <= near
	}
	most := make([][]int, len(a)+1)
	for i := range most {
		most[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			most[i][j] = max(most[i+1][j], most[i][j+1])
			if same(i, j) {
				most[i][j] = max(most[i][j], 1+most[i+1][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case same(i, j) && most[i][j] == 1+most[i+1][j+1]:
			a[i].Same, b[j].Same = true, true
			i, j = i+1, j+1
		case most[i+1][j] >= most[i][j+1]:
			i++
		default:
			j++
		}
	}
	return most[0][0]
}

// passed is how many samples were applied at a time.
type passed struct {
	samples int64
	at      time.Duration
}

// when returns the time at which that many samples had been applied.
func when(ps []passed, samples int64) time.Duration {
	i := slices.IndexFunc(ps, func(p passed) bool { return p.samples >= samples })
	if i < 0 {
		i = len(ps) - 1
	}
	return ps[i].at
}

// appliedAt is how many samples had been applied at a time.
func appliedAt(ps []passed, at time.Duration) int64 {
	k := int64(0)
	for _, p := range ps {
		if p.at <= at {
			k = p.samples
		}
	}
	return k
}

// untilApplied is a Trained that ends after a number of samples.
type untilApplied struct {
	*sim.Trained
	task   *replayedTask
	left   int64
	used   int64
	handed int64
	passed []passed
}

func (u *untilApplied) Release(w nouns.Worker, samples int) {
	u.Trained.Release(w, samples)
	u.task.foresee(w, u.Params(), u.handed, samples)
	u.handed += int64(samples)
}

func (u *untilApplied) Update(version int64, gs []sim.Gradient) sim.Outcome {
	o := u.Trained.Update(version, gs)
	for _, g := range gs {
		u.used += int64(g.Samples)
	}
	o.Progress = 0
	if u.used >= u.left {
		o.Progress = 1
	}
	return o
}

// clock notes when updates are made, and passes everything on to a pilot, if there is one.
type clock struct {
	sim.Pilot
	until *untilApplied
}

func (c *clock) Observe(r nouns.Record) {
	if c.Pilot != nil {
		c.Pilot.Observe(r)
	}
}

func (c *clock) Fired(at time.Duration, v int64, gs []sim.Gradient, o sim.Outcome) {
	c.until.passed = append(c.until.passed, passed{c.until.used, at})
	if c.Pilot != nil {
		c.Pilot.Fired(at, v, gs, o)
	}
}

func (c *clock) Decide(at time.Duration) (modes.Plan, string, bool) {
	if c.Pilot == nil {
		return modes.Plan{}, "", false
	}
	return c.Pilot.Decide(at)
}

// Next makes a Watcher of it.
func (c *clock) Next(at time.Duration) time.Duration {
	if p, ok := c.Pilot.(sim.Watcher); ok {
		return p.Next(at)
	}
	return 0
}

// lived lets the pilot of real jobs pilot a simulated one: it gets the lines that a run log would have, also those
// about late workers.
type lived struct {
	pilot     coord.Pilot
	noise     *sim.Noise
	samples   int64
	plan      string
	next      *advice.Change
	deadlines []time.Duration
	flights   []flight // by worker
	task      *replayedTask
}

// flight is what a coordinator knows of a worker's present iteration.
type flight struct {
	released time.Duration
	missed   int  // deadlines
	there    bool // its gradient is
}

func newLived(p coord.Pilot, r *seenRun) (*lived, error) {
	noise, err := sim.NewNoise(r.Workers, r.Batch)
	if err != nil {
		return nil, err
	}
	l := &lived{pilot: p, noise: noise, plan: "ssgd", flights: make([]flight, r.Workers)}
	l.tell(0, runlog.Train{Workers: r.Workers, Limit: r.limit})
	return l, nil
}

func (l *lived) tell(at time.Duration, e runlog.Entry) {
	for _, r := range l.pilot.Tell(runlog.Line{T: at, Entry: e}) {
		if r.Change != nil {
			l.next = r.Change
		}
		if r.Deadlines != nil {
			l.deadlines = r.Deadlines
		}
	}
}

// due returns the next deadline of a worker; 0: unknown, or its gradient has arrived.
func (l *lived) due(w int) (limit, at time.Duration) {
	f := &l.flights[w]
	if f.there || w >= len(l.deadlines) || l.deadlines[w] == 0 {
		return 0, 0
	}
	limit = max(l.deadlines[w], coord.Patience) << min(f.missed, 30)
	return limit, f.released + limit
}

// Next implements sim.Watcher.
func (l *lived) Next(at time.Duration) (next time.Duration) {
	for w := range l.flights {
		if limit, due := l.due(w); limit > 0 && (next == 0 || due < next) {
			next = max(due, at+1)
		}
	}
	return next
}

// overdue reports late workers, as a coordinator does.
func (l *lived) overdue(at time.Duration) {
	for w := range l.flights {
		if limit, due := l.due(w); limit > 0 && due <= at {
			l.flights[w].missed++
			l.tell(at, runlog.Late{Worker: nouns.Worker(w), Waited: runlog.SecondsOf(at - l.flights[w].released), Deadline: runlog.SecondsOf(limit)})
		}
	}
}

func (l *lived) Observe(r nouns.Record) {
	l.flights[r.Worker].there = true
	if g := l.task.ahead[r.Worker]; g.samples == r.Samples {
		r.Norm2 = g.norm2
		if g.known {
			r.Telemetry.Set(nouns.GradChange, g.change)
		}
	}
	l.tell(r.At, runlog.Record{Record: r, Start: -1})
}

func (l *lived) Fired(at time.Duration, version int64, gs []sim.Gradient, o sim.Outcome) {
	f := runlog.Fire{Version: version}
	for _, g := range gs {
		f.Workers = append(f.Workers, g.Worker)
		f.Staleness = append(f.Staleness, version-1-g.Basis)
		l.samples += int64(g.Samples)
		l.flights[g.Worker] = flight{released: at}
	}
	f.Samples = l.samples
	l.tell(at, f)
	if scale, drift, strength, ok := l.noise.Fired(version, gs, o); ok {
		grad2, mixed := l.noise.Moments()
		l.tell(at, runlog.Noise{Version: version, Grad2: runlog.Number(grad2), Var: runlog.Number(math.NaN()), Scale: runlog.Number(scale), Mixed: mixed,
			Drift: runlog.Number(drift), Strength: runlog.Number(strength)})
	}
}

func (l *lived) Decide(at time.Duration) (modes.Plan, string, bool) {
	l.overdue(at)
	c := l.next
	l.next = nil
	if c == nil || c.Plan.String() == l.plan {
		return modes.Plan{}, "", false
	}
	l.tell(at, runlog.Plan{Plan: c.Plan.String(), From: l.plan, Why: c.Why, Predicted: runlog.Number(c.Predicted), After: 1})
	l.plan = c.Plan.String()
	return c.Plan, c.Why, true
}

// replayedTask is the model and the data of a run, as a sim.Task.
type replayedTask struct {
	ctx     context.Context
	model   train.Model
	set     data.Dataset
	stream  data.Stream
	indices []int
	batch   train.Batch

	ahead []early // by worker; nil: not requested
	turns []pgns.Change
}

// early is a gradient that is computed as soon as its parameters are known: a worker reports its norm when it announces
// the gradient.
type early struct {
	vec           []float32
	from          int64
	samples       int
	norm2, change float64
	known         bool // the change
}

// foresee works out the gradient that a worker has been released for.
func (t *replayedTask) foresee(w nouns.Worker, params []float32, from int64, samples int) {
	if t.ahead == nil {
		return
	}
	g := &t.ahead[w]
	if len(g.vec) < len(params) {
		g.vec = make([]float32, len(params))
	}
	if g.samples = 0; t.work(g.vec, params, from, samples) != nil { // Gradient returns the error
		return
	}
	g.from, g.samples, g.norm2 = from, samples, 0
	for _, x := range g.vec {
		g.norm2 += float64(x) * float64(x)
	}
	g.change, g.known = t.turns[w].Next(g.vec)
}

func newReplayedTask(ctx context.Context, r *seenRun) (*replayedTask, error) {
	set, _, err := data.Open(r.Dataset, data.Options{})
	if err != nil {
		return nil, err
	}
	spec, err := net.Parse(r.Model)
	if err != nil {
		return nil, err
	}
	spec.Input, spec.Batch, spec.Seed = set.Input(), r.Batch, r.Seed
	model, err := net.Build(spec)
	if err != nil {
		return nil, err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	return &replayedTask{ctx: ctx, model: model, set: set, stream: data.Stream{Seed: r.Seed, N: set.Len()}}, nil
}

func (t *replayedTask) Params() []float32 { return slices.Clone(t.model.Params()) }

func (t *replayedTask) Gradient(dst, params []float32, from int64, samples int) error {
	for _, g := range t.ahead {
		if g.samples == samples && g.from == from {
			copy(dst, g.vec)
			return nil
		}
	}
	return t.work(dst, params, from, samples)
}

func (t *replayedTask) work(dst, params []float32, from int64, samples int) error {
	t.indices = t.stream.Indices(t.indices, from, samples)
	if err := t.set.Fill(&t.batch, t.indices); err != nil {
		return err
	}
	copy(t.model.Params(), params)
	_, err := t.model.Grad(t.ctx, dst, t.batch)
	return err
}

func (t *replayedTask) Accuracy([]float32) (float64, error) { return 0, nil }
