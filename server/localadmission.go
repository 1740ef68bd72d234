package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"star"
	"star/cluster/resource"
	"star/cluster/resource/host"
	"star/coord"
	"star/job/process"
	"star/modes"
)

// A plan that costs more than the current one is asked for before it takes effect:
//
//	Ask ─▶ answer(true)  ─▶ in force ─▶ too expensive admissionPatience times ─▶ answer(false)
//	   └─▶ answer(false)            └─▶ Yield: the pilot has left the plan
//
// The pilot keeps the current plan while an answer is missing.

// localAdmission implements coord.Admission for a job without a resource service: it considers only
// the host of the coordinator and its shards. Its answers are in the run log like a service's.
//
// A plan is affordable if its updates and gradients per second, at their measured cost, fit into
// this host's capacity together with the use of other processes. Before any measurement, the
// published cost of a similar model counts (--model-prior), or the bytes of the parameters. Ask and
// Yield may be called from any goroutine; the mutex guards the fields below it.
type localAdmission struct {
	job *Config
	// local are the addresses of this host.
	local   process.Addresses
	ask     func(ctx context.Context, status *coord.Status) error
	sampler *host.Sampler
	// cores are those of this host; --capacity-cpu takes precedence.
	cores float64

	mu sync.Mutex
	// watch is nil before the first measurement.
	watch *resource.Watch
	// permit is the last request.
	permit *permission
}

// permission is a request of the pilot.
type permission struct {
	plan    modes.Plan
	answer  func(ok bool, why string)
	granted bool
	// bad counts consecutive checks in which the plan was not affordable.
	bad int
}

const (
	// admissionLook is the interval of checks. A granted plan is revoked only after admissionPatience
	// consecutive checks found it too expensive, because a single check sees whatever happens to run
	// at that moment.
	admissionLook = time.Second
	// admissionDeadline limits the wait for a status.
	admissionDeadline = 2 * time.Second
	// admissionPatience is in checks.
	admissionPatience = 10
)

// newLocalAdmission returns the Admission of a job. run starts it.
func newLocalAdmission(job *Config) *localAdmission {
	return &localAdmission{job: job, local: process.OwnAddresses(), cores: float64(runtime.NumCPU())}
}

// here reports whether a worker's connection comes from this host. What that worker uses belongs to
// the job and not to other processes.
func (s *localAdmission) here(peer string) bool { return s.local.Has(peer) }

// measured is one measurement.
type measured struct {
	at time.Time
	// used is the CPU time of this process.
	used    time.Duration
	version int64
	samples int64
}

// run checks once a second until the context ends.
func (s *localAdmission) run(ctx context.Context, c *coord.Coordinator) {
	s.ask = func(ctx context.Context, status *coord.Status) error { return c.Ask(ctx, status, "status") }
	s.sampler = host.Start(host.Config{Heartbeat: 200 * time.Millisecond})
	defer s.sampler.Close()
	tick := time.NewTicker(admissionLook)
	defer tick.Stop()
	last := measured{at: time.Now(), used: process.CPUTime()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st, err := s.status(ctx)
		if err != nil {
			continue // the job is over, or busy; the next check is in a second
		}
		now := measured{at: time.Now(), used: process.CPUTime(), version: st.Version, samples: st.Samples}
		s.look(st, last, now)
		last = now
	}
}

// status asks the coordinator for the job's status.
func (s *localAdmission) status(ctx context.Context) (*coord.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, admissionDeadline, errors.New("the coordinator did not send its status in time"))
	defer cancel()
	st := new(coord.Status)
	return st, s.ask(ctx, st)
}

// look evaluates what was measured between two checks, and revokes a plan that is not affordable any
// more.
//
// CPU time is in cores, bytes are per second. A gradient moves all parameters of this server's part
// once in each direction, at four bytes. A second without an update is ignored.
func (s *localAdmission) look(st *coord.Status, last, now measured) {
	d := now.at.Sub(last.at).Seconds()
	if d <= 0 || now.version <= last.version || st.Params == 0 {
		return
	}
	load := resource.Load{Updates: float64(now.version-last.version) / d, Gradients: float64(now.samples-last.samples) / float64(s.job.Batch) / d}
	cpu := (now.used - last.used).Seconds() / d
	bytes := 4 * float64(st.Params) / float64(max(s.job.Servers, 1))
	net := bytes * load.Gradients
	t := s.sampler.Latest()
	capacity := s.capacity(t)
	others := 0.0
	if share, ok := t.Get(star.HostCPU); ok && s.job.CapacityCPU == 0 {
		others = process.Crowding(share, s.cores, capacity.CPU) - cpu
		for _, w := range st.Workers {
			if s.here(w.Peer) {
				others -= w.CPU
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(st, capacity); err != nil {
		return
	}
	s.watch.Limit(capacity)
	s.watch.Observe(load, resource.Usage{CPU: cpu, NetIn: net, NetOut: net}, resource.Usage{CPU: max(others, 0)})
	p := s.permit
	if p == nil || !p.granted {
		return
	}
	ok, why := s.affords(p.plan, st)
	if p.bad++; ok {
		p.bad = 0
	}
	if p.bad >= admissionPatience {
		s.permit = nil
		go p.answer(false, why)
	}
}

// begin creates the watch from the prior. The caller holds the lock.
func (s *localAdmission) begin(st *coord.Status, capacity resource.Usage) (err error) {
	if s.watch == nil {
		s.watch, err = resource.NewWatch(s.prior(st), s.job.Ranks(), capacity)
	}
	return err
}

// capacity returns the capacity of this host for the job's servers, in cores and in bytes per second
// for each direction. Declared capacities (--capacity-cpu, --capacity-net) take precedence over
// detected ones, and a cgroup quota bounds both; an undeclared link has no bound.
func (s *localAdmission) capacity(t *star.Telemetry) resource.Usage {
	c := resource.Unlimited
	if c.CPU = s.cores; s.job.CapacityCPU > 0 {
		c.CPU = s.job.CapacityCPU
	}
	if q, ok := t.Get(star.Quota); ok {
		c.CPU = min(c.CPU, q)
	}
	if v := s.job.CapacityNet; v > 0 {
		c.NetIn, c.NetOut = 1e6*v, 1e6*v
	}
	return c
}

// prior returns the expected cost before any measurement. Gradients and parameters have four bytes
// for each parameter, and each server has its part.
func (s *localAdmission) prior(st *coord.Status) resource.Demand {
	if p, ok := resource.PublishedModel(s.job.ModelPrior); ok {
		return p.Demand(resource.PublishedCores)
	}
	n := 4 * st.Params / int64(max(s.job.Servers, 1))
	return resource.Bytes{Gradient: n, Params: n}.Demand()
}

// affords reports whether a plan is affordable, and the reason in words in both cases. The caller
// holds the lock, and watch is not nil.
func (s *localAdmission) affords(p modes.Plan, st *coord.Status) (bool, string) {
	l, err := process.LoadOf(p, st.Times())
	if err != nil {
		return false, err.Error()
	}
	return s.watch.Afford(l)
}

// Ask implements coord.Admission.
//
// answer is called once from another goroutine, within admissionDeadline, and once more with false
// if a granted plan is not affordable any more. A second Ask before the answer replaces the first:
// the first plan is then not revoked.
func (s *localAdmission) Ask(plan modes.Plan, answer func(ok bool, why string)) {
	p := &permission{plan: plan, answer: answer}
	s.mu.Lock()
	s.permit = p
	s.mu.Unlock()
	go func() {
		st, err := s.status(context.Background()) // ends by its deadline, or with the coordinator
		s.mu.Lock()
		ok, why := true, "its cost for the servers is not known yet"
		switch {
		case err != nil:
			ok, why = false, fmt.Sprintf("no status of the job: %v", err)
		// Without parameters no worker has described the model yet.
		case st.Params > 0:
			// Asked before the first check, it answers by the prior, so that declared capacities
			// apply from the start.
			if err := s.begin(st, s.capacity(new(star.Telemetry))); err != nil {
				ok, why = false, err.Error()
				break
			}
			ok, why = s.affords(plan, st)
		}
		p.granted = ok
		s.mu.Unlock()
		answer(ok, why)
	}()
}

// Yield implements coord.Admission. The granted plan is not in force any more, so it is not revoked
// either.
func (s *localAdmission) Yield() {
	s.mu.Lock()
	s.permit = nil
	s.mu.Unlock()
}
