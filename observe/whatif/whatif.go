// Package whatif prepares a recorded run for trying other modes on it: the time of each worker in each iteration,
// the results of the run, and how well the simulator reproduces the run itself.
//
// It is pure: its results follow from the lines of the run log.
package whatif

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/runlog"
	"star/sim"
	"star/train/optim"
)

// Run is a recorded run.
type Run struct {
	Name      string
	Arch      string
	Optimizer optim.Config // of it what Memory goes by
	Workers   int
	Batch     int
	Round     int          // samples of an update with equal shares of all workers
	Plan      modes.Plan   // the first one
	Changes   []sim.Change // of it
	Noise     float64      // median noise scale, in samples; 0: the log has none

	// Latency is the median time from the arrival that completes an update to the update.
	Latency time.Duration

	Updates   int64
	Samples   int64
	Took      time.Duration // from the start to the last update
	Staleness float64       // mean, of the gradients applied
	Cut       bool          // the log ends in the middle of a line

	// Missing are the lines that the log's bound had no room for. Updates, samples and times are those after them.
	Missing runlog.Missing

	iterations [][]sim.Iteration
	parts      *auto.PartCosts
	left       map[star.Worker]int // the line in which a worker left, or the line with its absence at the start
	absent     map[star.Worker]bool
	fires      []fire
}

type fire struct {
	version   int64
	gradients []sim.Gradient // Basis and Samples
}

// Reader makes a Run of the lines of a log.
type Reader struct {
	run     Run
	train   time.Duration
	begun   bool
	version int64                   // of the last update
	at      map[int64]time.Duration // of each version
	held    bool                    // the plan may hold workers back after their update
	last    []time.Duration         // arrival, by worker
	step    []int64
	line    []int // of that step
	size    []int // its samples
	latency []time.Duration
	noise   []float64
	lost    int64 // the last version that a gap dates, approximately; -1: no gap
	before  int64 // samples applied until then
	samples int64
	stale   int64
	applied int64
}

// New reads a log of that name.
func New(name string) *Reader {
	run := Run{Name: name, left: map[star.Worker]int{}, absent: map[star.Worker]bool{}}
	return &Reader{run: run, at: map[int64]time.Duration{}, lost: -1}
}

// Add takes the next line. Its errors are of type *runlog.Error.
func (r *Reader) Add(l runlog.Line) error {
	fail := func(format string, a ...any) error {
		return &runlog.Error{Name: r.run.Name, Line: l.Number, Err: fmt.Errorf(format, a...)}
	}
	switch e := l.Entry.(type) {
	case runlog.Start:
		var c struct {
			Arch      string  `json:"arch"`
			Batch     int     `json:"batch"`
			Optimizer string  `json:"optimizer"`
			Momentum  float64 `json:"momentum"`
		}
		if err := json.Unmarshal(e.Config, &c); err != nil {
			return fail("the configuration: %w", err)
		}
		if c.Batch < 1 {
			return fail("the configuration has a batch of %d, want at least 1", c.Batch)
		}
		r.run.Arch, r.run.Batch = c.Arch, c.Batch
		r.run.Optimizer = optim.Config{Name: c.Optimizer, Momentum: c.Momentum}
		if m := r.run.Optimizer.Memory(); !(m >= 0 && m < 1) {
			return fail("the configuration has a momentum of %v, want at least 0 and less than 1", m)
		}
	case runlog.Train:
		for _, w := range e.Absent {
			r.run.left[star.Worker(w)], r.run.absent[star.Worker(w)] = l.Number, true
		}
		p, err := modes.Parse(e.Plan, e.Workers)
		if err != nil {
			return fail("plan: %w", err)
		}
		n := e.Workers
		r.run.parts = auto.NewPartCosts(n, r.run.Batch)
		r.run.Workers, r.run.Plan, r.run.Round = n, p, n*r.run.Batch
		r.run.iterations, r.last, r.step, r.line = make([][]sim.Iteration, n), make([]time.Duration, n), make([]int64, n), make([]int, n)
		r.size = make([]int, n)
		r.train, r.begun, r.version, r.held = l.T, true, e.Version, holds(p)
		r.at[e.Version] = l.T
	case runlog.Record:
		return r.record(l, e.Record, fail)
	case runlog.Fire:
		if len(e.Workers) == 0 {
			return nil
		}
		if e.Version != r.version+1 {
			return fail("version %d, want %d: an update is missing", e.Version, r.version+1)
		}
		r.version = e.Version
		r.at[e.Version] = l.T
		came := time.Duration(0)
		for i, w := range e.Workers {
			came = max(came, r.last[w])
			r.stale += e.Staleness[i]
			r.applied++
		}
		r.latency = append(r.latency, max(0, l.T-came))
		r.exchanged(e.Workers)
		if e.Samples < r.samples {
			return fail("%d samples, want at least %d as in the update before", e.Samples, r.samples)
		}
		r.run.fires = append(r.run.fires, r.fired(e, int(e.Samples-r.samples)))
		r.samples = e.Samples
		r.run.Updates++
		r.run.Took = l.T - r.train
	case runlog.Gap:
		if e.Fires > 0 {
			r.train, r.version, r.lost = e.Until.Duration(), e.Version, e.Version
			r.before, r.samples = e.Samples, e.Samples
		}
	case runlog.Noise:
		if e.Scale > 0 && !math.IsInf(float64(e.Scale), 0) {
			r.noise = append(r.noise, float64(e.Scale))
		}
	case runlog.Plan:
		p, err := modes.Parse(e.Plan, r.run.Workers)
		if err != nil {
			return fail("plan: %w", err)
		}
		r.held = r.held || holds(p)
		if r.run.Updates == 0 {
			r.run.Plan = p
			break
		}
		r.run.Changes = append(r.run.Changes, sim.Change{After: r.run.Updates, Plan: p, Why: e.Why})
	case runlog.Leave:
		if r.begun && r.run.left[e.Worker] == 0 {
			r.run.left[e.Worker] = l.Number
		}
	}
	return nil
}

// fired is an update of that many samples. If they differ from those of its gradients' records, they
// are divided equally.
func (r *Reader) fired(e runlog.Fire, samples int) fire {
	f := fire{version: e.Version, gradients: make([]sim.Gradient, len(e.Workers))}
	sum := 0
	for i, w := range e.Workers {
		f.gradients[i] = sim.Gradient{Worker: w, Basis: e.Version - 1 - e.Staleness[i], Samples: r.size[w]}
		sum += r.size[w]
	}
	if n := len(f.gradients); sum != samples {
		for i := range f.gradients {
			f.gradients[i].Samples = (i+1)*samples/n - i*samples/n
		}
	}
	return f
}

const allReduce = "allreduce"

// exchanged: in an all-reduce no worker can exchange alone, and a worker's exchange time includes
// its wait for the others. The one that waited least was the last: its time is that of the exchange
// itself.
func (r *Reader) exchanged(ws []star.Worker) {
	if r.run.Arch != allReduce {
		return
	}
	var last []*sim.Iteration
	for _, w := range ws {
		if of := r.run.iterations[w]; len(of) > 0 {
			last = append(last, &of[len(of)-1])
		}
	}
	least := time.Duration(math.MaxInt64)
	for _, i := range last {
		least = min(least, i.After)
	}
	for _, i := range last {
		i.After = least
	}
}

// holds: a worker in an update may be released later than the update.
func holds(p modes.Plan) bool { return p.MaxLead > 0 || len(p.Excluded) > 0 }

// record adds an iteration. It began with the worker's release, by an update or later, and ended with its
// arrival: both by the coordinator's clock, so that it includes the transfer of the parameters, evaluations in between,
// and any other work.
func (r *Reader) record(l runlog.Line, e star.Record, fail func(string, ...any) error) error {
	w := e.Worker
	if r.run.left[w] > 0 {
		return nil // incomplete records are not used
	}
	if n := r.line[w]; n > 0 && e.Step != r.step[w]+1 {
		return fail("record: step %d of worker %d after its step %d in line %d: steps are missing", e.Step, w, r.step[w], n)
	}
	if e.Basis <= r.lost {
		r.last[w], r.step[w], r.line[w], r.size[w] = l.T, e.Step, l.Number, e.Samples
		return nil // when it began is not known
	}
	released, ok := r.at[e.Basis]
	if !ok {
		return fail("record: worker %d computed on version %d, but there is no line of type fire that makes it", w, e.Basis)
	}
	if r.held && r.line[w] > 0 {
		released = max(released, r.last[w]+e.Wait)
	}
	took := l.T - released
	if took <= 0 {
		return fail("record: worker %d arrived at %v with a gradient on version %d, which was made at %v", w, l.T, e.Basis, released)
	}
	i := sim.Iteration{Compute: min(max(e.Compute, 1), took), Samples: e.Samples}
	i.Before = min(e.Pull+e.Load, took-i.Compute)
	if r.run.Arch == allReduce { // the exchange is over when the worker arrives
		i.Before = max(0, took-i.Compute-e.Push)
	}
	i.After = took - i.Compute - i.Before
	if parts, ok := e.Telemetry.Get(star.Parts); ok && parts >= 1 && parts <= float64(e.Samples) {
		i.Parts = int(parts)
		r.run.parts.Observe(w, float64(e.Samples), parts, (e.Load + e.Compute).Seconds())
	}
	r.run.iterations[w] = append(r.run.iterations[w], i)
	r.last[w], r.step[w], r.line[w], r.size[w] = l.T, e.Step, l.Number, e.Samples
	return nil
}

// Run is the recorded run. s is the result of runlog.Read.
func (r *Reader) Run(s runlog.Contents) (*Run, error) {
	run := r.run
	run.Samples, run.Cut, run.Missing = r.samples-r.before, s.Cut, s.Missing
	if run.Updates == 0 {
		return nil, &runlog.Error{Name: run.Name, Line: s.Lines, Err: fmt.Errorf("the log ends before the first update: there is nothing to compare with")}
	}
	if run.Took <= 0 {
		return nil, &runlog.Error{Name: run.Name, Line: s.Lines, Err: fmt.Errorf("%d updates in %v", run.Updates, run.Took)}
	}
	slices.Sort(r.latency)
	run.Latency = r.latency[len(r.latency)/2]
	if len(r.noise) > 0 {
		slices.Sort(r.noise)
		run.Noise = r.noise[len(r.noise)/2]
	}
	run.Staleness = float64(r.stale) / float64(max(r.applied, 1))
	return &run, nil
}

// Times are those of all workers except the ones in without, which must include every worker that
// was not present from the first to the last update.
func (r *Run) Times(without []star.Worker) (sim.Times, error) {
	var keep []star.Worker
	o := sim.Observed{Batch: r.Batch}
	q, known := r.parts.Share(func(w star.Worker) bool { return !slices.Contains(without, w) })
	for w, of := range r.iterations {
		switch {
		case slices.Contains(without, star.Worker(w)):
			continue
		case r.left[star.Worker(w)] > 0:
			return nil, &runlog.Error{Name: r.Name, Line: r.left[star.Worker(w)], Err: fmt.Errorf("worker %d %s: what it would have taken is not known; leave it out (--without w%d)", w, map[bool]string{true: "comes later", false: "leaves"}[r.absent[star.Worker(w)]], w)}
		case len(of) == 0:
			return nil, &runlog.Error{Name: r.Name, Line: 1, Err: fmt.Errorf("worker %d has no records, want some of workers 0 to %d; leave it out (--without w%d)", w, r.Workers-1, w)}
		}
		keep = append(keep, star.Worker(w))
		o.Iterations = append(o.Iterations, of)
	}
	if known {
		o.Part = q
	}
	if len(keep) == 0 {
		return nil, fmt.Errorf("%s: none of %d workers is left", r.Name, r.Workers)
	}
	return o, nil
}

// Learner computes the progress of updates: in updates of SSGD with all workers, by the price of
// modes (docs/theory.md) for the run's own optimizer.
func (r *Run) Learner(noise float64) (*sim.Priced, error) {
	return sim.NewPriced(r.Round, noise, price.PriorSteepness(r.Optimizer.Memory()))
}

// Progress is what the run itself achieved.
func (r *Run) Progress(noise float64) (float64, error) {
	l, err := r.Learner(noise)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.Name, err)
	}
	l.Begin(r.Workers, r.Round)
	progress := 0.0
	for _, f := range r.fires {
		progress = l.Update(f.version, f.gradients).Progress
	}
	return progress, nil
}

// counter counts updates.
type counter struct{ n float64 }

func (c *counter) Begin(int, int)           {}
func (c *counter) Release(star.Worker, int) {}
func (c *counter) Update(int64, []sim.Gradient) sim.Outcome {
	c.n++
	return sim.Outcome{Progress: c.n}
}

// Again simulates the run as it was: its workers, its plans, its number of updates. How far Result.Time is from
// Took is how far the simulator is to be believed.
func (r *Run) Again() (sim.Result, error) {
	t, err := r.Times(nil)
	if err != nil {
		return sim.Result{}, err
	}
	return sim.Run(sim.Config{Times: t, Plan: r.Plan, Pilot: &sim.Script{Changes: r.Changes}, Learner: &counter{}, Batch: r.Batch, Latency: r.Latency,
		Target: float64(r.Updates), Limit: 100 * r.Took})
}
