package compare

import (
	"encoding/json"
	"math"
	"time"

	"star"
	"star/observe/explain"
	"star/runlog"
)

// warmUp is how many first iterations of each worker are left out.
const warmUp = 3

// Reader takes the lines of one run log.
type Reader struct {
	teller *explain.Teller
	config map[string]any
	ring   bool
	train  *runlog.Train
	plan   string
	began  time.Duration
	since  time.Duration // of the plan
	plans  map[string]time.Duration
	seen   []int // iterations of each worker
	fired  runlog.Line
	halted bool // since the last update
	last   time.Duration

	pace, load, compute, exchange, pull, wait, bytes, stale, sample bins

	losses []point // of records, thinned
	every  int
	skip   int
	evals  []runlog.Eval
	times  []time.Duration // of evals
	used   int64           // samples applied
}

// point is the loss of a mini-batch after a number of samples.
type point struct{ samples, loss float64 }

// mostLosses is how many losses of a run are kept; when there are more, every second one goes.
const mostLosses = 1 << 14

// NewReader begins with the first line.
func NewReader() *Reader {
	return &Reader{teller: explain.New(), plans: map[string]time.Duration{}, every: 1}
}

// Add takes the next line.
func (r *Reader) Add(l runlog.Line) error {
	r.last = max(r.last, l.T)
	switch e := l.Entry.(type) {
	case runlog.Start:
		json.Unmarshal(e.Config, &r.config) // a log without settings has none that differ
		r.ring = r.config["arch"] == "allreduce"
	case runlog.Train:
		r.train, r.seen, r.plan, r.began, r.since = &e, make([]int, e.Workers), e.Plan, l.T, l.T
	case runlog.Record:
		r.record(&e.Record)
	case runlog.Fire:
		r.fire(l, e)
	case runlog.Plan:
		r.plans[r.plan] += l.T - r.since
		r.plan, r.since = e.Plan, l.T
	case runlog.Eval:
		r.evals, r.times, r.halted = append(r.evals, e), append(r.times, l.T-r.began), true
	case runlog.Checkpoint, runlog.Gap:
		r.halted = true
	}
	return r.teller.Add(l)
}

func (r *Reader) record(x *star.Record) {
	if r.seen == nil {
		return
	}
	if !math.IsNaN(x.Loss) && x.Samples > 0 {
		if r.skip++; r.skip >= r.every {
			r.skip = 0
			if r.losses = append(r.losses, point{float64(r.used), x.Loss}); len(r.losses) == mostLosses {
				for i := range mostLosses / 2 {
					r.losses[i] = r.losses[2*i]
				}
				r.losses, r.every = r.losses[:mostLosses/2], 2*r.every
			}
		}
	}
	if r.seen[x.Worker]++; r.seen[x.Worker] <= warmUp {
		return
	}
	r.load.add(x.Load.Seconds(), 1)
	r.compute.add(x.Compute.Seconds(), 1)
	r.sample.add(x.Own().Seconds(), float64(max(x.Samples, 1)))
	r.exchange.add((x.Push + x.Transit).Seconds(), 1)
	r.pull.add(x.Pull.Seconds(), 1)
	r.wait.add(max(x.Wait-x.Transit, 0).Seconds(), 1)
	r.bytes.add(x.NetIn+x.NetOut, 1)
}

func (r *Reader) fire(l runlog.Line, e runlog.Fire) {
	for _, s := range e.Staleness {
		r.stale.add(float64(s), 1)
	}
	r.used = e.Samples
	if was, ok := r.fired.Entry.(runlog.Fire); ok && !r.halted && e.Samples > was.Samples && e.Seq > warmUp {
		r.pace.add(float64(e.Samples-was.Samples), (l.T - r.fired.T).Seconds())
	}
	r.fired, r.halted = l, false
}

// near is the mean loss around a number of samples.
func (r *Reader) near(samples, width float64) Estimate {
	var of bins
	for _, p := range r.losses {
		if math.Abs(p.samples-samples) <= width {
			of.add(p.loss, 1)
		}
	}
	return of.estimate()
}
