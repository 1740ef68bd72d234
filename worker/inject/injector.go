package inject

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"star"
	"star/cluster/resource/actuate"
	"star/sim/trace"
)

// By is how a factor is brought about, or a rate.
type By string

const (
	Sleeping By = "sleep" // factors by sleeping; no rates. The zero value means the same
	ByQuota  By = "quota" // factors by a CPU quota; no rates
	ByTC     By = "tc"    // factors by sleeping; rates by tc
)

// Config says what to inject into one worker.
type Config struct {
	Worker  star.Worker
	Workers int          // of the job
	Slows   []Slow       // of the whole job
	Trace   *trace.Trace // nil: none
	By      By

	// Median is what an iteration of an equal share that the trace has as its median one is to take, computing included. 0: the trace says by how much
	// computing takes longer than it does.
	Median time.Duration
}

// Injector says how long a worker has to sleep to seem slow. It is pure, except
// for Start. A nil Injector injects nothing.
type Injector struct {
	worker star.Worker
	slows  []Slow // of this worker
	by     By
	trace  *trace.Trace
	median time.Duration

	factor float64 // by sleeping
	share  float64 // by quota: the factor again
	add    time.Duration
	data   time.Duration
	bursts []Slow
	bits   int64 // by tc; 0: no limit
}

// New checks the handicaps of the job and picks those of one worker. A rank that the job or
// the trace does not have is an error: a handicap that hits nobody would be believed.
func New(c Config) (*Injector, error) {
	in := &Injector{worker: c.Worker, by: c.By, trace: c.Trace, median: c.Median, factor: 1, share: 1}
	if in.by == "" {
		in.by = Sleeping
	}
	if int(c.Worker) < 0 || int(c.Worker) >= c.Workers {
		return nil, fmt.Errorf("inject: worker %d of %d", c.Worker, c.Workers)
	}
	for _, s := range c.Slows {
		if int(s.Worker) >= c.Workers {
			return nil, fmt.Errorf("slow %q: no worker %d; ranks are 0 to %d", s, s.Worker, c.Workers-1)
		}
		if s.Kind == Rate && in.by != ByTC {
			return nil, fmt.Errorf("slow %q: a rate cannot be had by %s; use --straggler-by tc", s, in.by)
		}
		if s.Worker != c.Worker {
			continue
		}
		in.slows = append(in.slows, s)
		switch {
		case s.Kind == Factor && in.by == ByQuota:
			in.share *= s.Times
		case s.Kind == Factor:
			in.factor *= s.Times
		case s.Kind == Add:
			in.add += s.Pause
		case s.Kind == Data:
			in.data = min(in.data+s.Pause, maxDelay)
		case s.Kind == Burst:
			in.bursts = append(in.bursts, s)
		case s.Kind == Rate && (in.bits == 0 || s.Bits < in.bits):
			in.bits = s.Bits
		}
	}
	if t := c.Trace; t != nil {
		if t.Workers < c.Workers {
			return nil, &TraceError{fmt.Sprintf("straggler trace %s: has %d workers, the job has %d; use another trace or fewer workers",
				t.Name, t.Workers, c.Workers)}
		}
		if in.by == ByQuota {
			return nil, &TraceError{fmt.Sprintf("straggler trace %s: changes at every step, which a quota cannot follow; use --straggler-by sleep", t.Name)}
		}
	}
	return in, nil
}

// TraceError is a trace that does not fit the job; all other errors of New are of Slows.
type TraceError struct{ text string }

func (e *TraceError) Error() string { return e.text }

// Active reports whether there is anything to inject.
func (in *Injector) Active() bool {
	return in != nil && (len(in.slows) > 0 || in.trace != nil)
}

// maxDelay bounds what a long computation times large factors can become.
const maxDelay = 24 * time.Hour

// Data is the time to sleep after a batch has been loaded, as if the data had come so much later.
func (in *Injector) Data() time.Duration {
	if in == nil {
		return 0
	}
	return in.data
}

// Delay is the time to sleep after a computation that began at at (since the run
// began) and took compute, so that its end is where that of the slow worker would
// be. step counts the worker's own iterations from 0; share is how many times the samples of an equal
// share it had, by which Median counts.
//
// Factors multiply, that of the trace included, or what computes for less than the trace says with Median
// goes on until then; then come additions; then the pauses of bursts, which fall on the last Pause of every Period, counted from
// the beginning of the run.
func (in *Injector) Delay(step int64, at, compute time.Duration, share float64) time.Duration {
	if !in.Active() || compute < 0 {
		return 0
	}
	at = max(at, 0)
	factor := in.factor
	if in.trace != nil && in.median > 0 {
		recorded := in.trace.Relative(in.worker, max(step, 0)) * float64(in.median) * share
		compute = max(compute, 1)
		factor *= math.Max(1, recorded/float64(compute))
	} else if in.trace != nil {
		// A worker that was faster than the median cannot be imitated by sleeping.
		factor *= math.Max(1, in.trace.Slowdown(in.worker, max(step, 0)))
	}
	busy := maxDelay
	if f := float64(compute) * factor; f < float64(maxDelay) {
		busy = min(time.Duration(f)+in.add, maxDelay)
	}
	for _, b := range in.bursts {
		busy = min(b.end(at, busy)-at, maxDelay)
	}
	return max(busy-compute, 0)
}

// end is when work of the length busy that begins at at is done, if the last
// Pause of every Period is lost.
func (s Slow) end(at, busy time.Duration) time.Duration {
	if busy <= 0 {
		return at
	}
	free := s.Period - s.Pause // in each period, before the pause

	// What could have been done until at, and busy more.
	done := at/s.Period*free + min(at%s.Period, free) + busy
	periods := (done - 1) / free // full ones before the last bit of work
	return periods*s.Period + done - periods*free
}

// Stops are the worker's Stop handicaps. A process cannot wake itself, so they are for
// the parent, see [Stopper].
func (in *Injector) Stops() []Slow {
	var stops []Slow
	if in != nil {
		for _, s := range in.slows {
			if s.Kind == Stop {
				stops = append(stops, s)
			}
		}
	}
	return stops
}

// Start brings about what sleeping cannot, for the process pid: the CPU quota and
// the rate. cores is how many processors the worker would use undisturbed; peer
// is an address (host:port) that its traffic goes to; leases is where it is written down, so
// that it is undone after a crash, too. undo takes everything back and may be
// called twice; it is never nil. After an error nothing is left behind.
func (in *Injector) Start(leases *actuate.Store, pid int, cores float64, peer string) (undo func() error, err error) {
	var started []actuate.Actuator
	undo = func() error {
		var errs []error
		for _, a := range started {
			errs = append(errs, a.Undo())
		}
		return errors.Join(errs...)
	}
	if in == nil {
		return undo, nil
	}
	who := fmt.Sprintf("straggler injection into worker %d", in.worker)
	if in.share > 1 {
		c := actuate.NewCgroup(leases, who, pid)
		if err := c.Apply(actuate.Limit{Cores: cores / in.share}, time.Time{}); err != nil {
			return undo, fmt.Errorf("straggler by quota: %w, or use --straggler-by sleep", err)
		}
		started = append(started, c)
	}
	if in.bits > 0 {
		dev, err := actuate.InterfaceTo(peer)
		if err == nil {
			t := actuate.NewTC(leases, who, "", dev)
			started = append(started, t)
			err = t.Apply(actuate.Limit{NetOut: float64(in.bits) / 8}, time.Time{})
		}
		if err != nil {
			return undo, errors.Join(fmt.Errorf("straggler by tc: %w", err), undo())
		}
	}
	return undo, nil
}

// String is how the run log calls the injection.
func (in *Injector) String() string {
	if !in.Active() {
		return "none"
	}
	var words []string
	for _, s := range in.slows {
		how := "sleeping"
		switch {
		case s.Kind == Factor && in.by == ByQuota:
			how = "CPU quota"
		case s.Kind == Rate:
			how = "tc"
		case s.Kind == Stop:
			how = "signals"
		}
		words = append(words, s.String()+" by "+how)
	}
	if t := in.trace; t != nil {
		words = append(words, fmt.Sprintf("%d:trace %s (%d workers, %d steps) by sleeping", in.worker, t.Name, t.Workers, t.Steps))
	}
	return strings.Join(words, ", ")
}
