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

// By selects how factors and rates are injected.
type By string

const (
	Sleeping By = "sleep" // factors by sleeping; no rates; the zero value means the same
	ByQuota  By = "quota" // factors by a CPU quota; no rates
	ByTC     By = "tc"    // factors by sleeping; rates by tc
)

// Config says what to inject into one worker.
type Config struct {
	Worker star.Worker
	// Workers and Slows are those of the whole job.
	Workers int
	Slows   []Slow
	// Trace is nil without a trace.
	Trace *trace.Trace
	By    By

	// Median, if not 0, is how long an iteration of an equal share takes if its time in the trace is
	// the median, computation included. 0: the trace multiplies the measured computation time.
	Median time.Duration
}

// Injector computes how long a worker sleeps to appear slow. It is pure, except for Start. A nil
// Injector injects nothing.
type Injector struct {
	worker star.Worker
	// slows are those of this worker.
	slows  []Slow
	by     By
	trace  *trace.Trace
	median time.Duration

	// factor is injected by sleeping, share by a quota.
	factor float64
	share  float64
	add    time.Duration
	data   time.Duration
	bursts []Slow
	// bits per second are injected by tc; 0: no limit.
	bits int64
}

// New checks the injections of the job and selects those of one worker. A rank that the job or the
// trace does not have is an error, because an injection without effect would go unnoticed.
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
			return nil, fmt.Errorf("slow %q: a rate cannot be injected by %s; use --straggler-by tc", s, in.by)
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
			return nil, &TraceError{fmt.Sprintf("straggler trace %s: it changes at every step, and a quota cannot; use --straggler-by sleep", t.Name)}
		}
	}
	return in, nil
}

// TraceError is a trace that does not fit the job; all other errors of New concern Slows.
type TraceError struct{ text string }

func (e *TraceError) Error() string { return e.text }

// Active reports whether anything is injected.
func (in *Injector) Active() bool {
	return in != nil && (len(in.slows) > 0 || in.trace != nil)
}

// maxDelay bounds the result of long computations and large factors.
const maxDelay = 24 * time.Hour

// Data returns how long to sleep after a batch was loaded, as if the data had come that much later.
func (in *Injector) Data() time.Duration {
	if in == nil {
		return 0
	}
	return in.data
}

// Delay returns how long to sleep after a computation that started at at (since the start of the
// run) and took compute, so that it ends when the slow worker's would. step counts the worker's
// iterations from 0, and batches the mini-batches that were computed in this one: more than one are
// local steps. share is their samples in equal shares, which scales Median.
//
// First factors multiply, that of the trace included; with Median a computation shorter than the
// trace's is extended to it. Then the addition is made for each mini-batch. Then come the pauses of
// bursts, which fall on the last Pause of every Period since the start of the run.
func (in *Injector) Delay(step int64, at, compute time.Duration, batches int, share float64) time.Duration {
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
		// Sleeping cannot make a worker faster than the median.
		factor *= math.Max(1, in.trace.Slowdown(in.worker, max(step, 0)))
	}
	busy := maxDelay
	if f := float64(compute) * factor; f < float64(maxDelay) {
		busy = min(time.Duration(f)+time.Duration(batches)*in.add, maxDelay)
	}
	for _, b := range in.bursts {
		busy = min(b.end(at, busy)-at, maxDelay)
	}
	return max(busy-compute, 0)
}

// end returns when work of length busy that starts at at is done, if the last Pause of every Period
// is lost.
func (s Slow) end(at, busy time.Duration) time.Duration {
	if busy <= 0 {
		return at
	}
	// free is the working time in each period, before the pause.
	free := s.Period - s.Pause

	// The work possible until at, plus busy.
	done := at/s.Period*free + min(at%s.Period, free) + busy
	// periods are full ones before the last part of the work.
	periods := (done - 1) / free
	return periods*s.Period + done - periods*free
}

// Stops returns the worker's Stop injections. A process cannot continue itself, so the parent does
// them; see [Stopper].
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

// Start injects what sleeping cannot, into the process pid: the CPU quota and the rate. cores is the
// number of CPUs that the worker would use undisturbed; peer is an address (host:port) that its
// traffic goes to; leases records the limits, so that they are undone after a crash. undo removes
// everything and may be called twice; it is never nil. After an error no limit is left.
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
	owner := fmt.Sprintf("straggler injection into worker %d", in.worker)
	if in.share > 1 {
		c := actuate.NewCgroup(leases, owner, pid)
		if err := c.Apply(actuate.Limit{Cores: cores / in.share}, time.Time{}); err != nil {
			return undo, fmt.Errorf("straggler by quota: %w, or use --straggler-by sleep", err)
		}
		started = append(started, c)
	}
	if in.bits > 0 {
		dev, err := actuate.InterfaceTo(peer)
		if err == nil {
			t := actuate.NewTC(leases, owner, "", dev)
			started = append(started, t)
			err = t.Apply(actuate.Limit{NetOut: float64(in.bits) / 8}, time.Time{})
		}
		if err != nil {
			return undo, errors.Join(fmt.Errorf("straggler by tc: %w", err), undo())
		}
	}
	return undo, nil
}

// String describes the injection for the log.
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
