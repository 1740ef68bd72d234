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

// localAdmission implements coord.Admission for a job that no resource service answers: it looks at
// the host of the coordinator and its shards, and at nothing else. Its answers are in the run log
// like a service's.
//
// A plan is afforded where its updates and gradients per second, at what each has been seen to
// cost, leave this host within its capacity beside what others use. Before anything was seen, what
// was published of a model like it counts (--model-prior), or the bytes of the parameters. Ask and
// Yield may be called from any goroutine; what the mutex guards is below it.
type localAdmission struct {
	job     *Config
	local   process.Addresses // of this host
	ask     func(ctx context.Context, status *coord.Status) error
	sampler *host.Sampler
	cores   float64 // of this host; what --capacity-cpu says counts more

	mu     sync.Mutex
	watch  *resource.Watch // nil: nothing was measured yet
	permit *permission     // asked for last
}

// permission is what the pilot asked for.
type permission struct {
	plan    modes.Plan
	answer  func(ok bool, why string)
	granted bool
	bad     int // looks in a row at which it could not be afforded
}

const (
	// So often it looks; a look waits so long for an answer; and so many looks in a row must find a
	// permitted plan too dear before the permit is taken back, because one look sees what happens
	// to run beside it.
	admissionLook     = time.Second
	admissionDeadline = 2 * time.Second // for a status
	admissionPatience = 10              // looks
)

// newLocalAdmission makes the Admission of a job. run starts it.
func newLocalAdmission(job *Config) *localAdmission {
	return &localAdmission{job: job, local: process.OwnAddresses(), cores: float64(runtime.NumCPU())}
}

// here says whether a worker's connection comes from this host. What it uses is the job's, and not
// what others leave.
func (s *localAdmission) here(peer string) bool { return s.local.Has(peer) }

// measured is a look.
type measured struct {
	at      time.Time
	used    time.Duration // processor time of this process
	version int64
	samples int64
}

// run looks once a second until the context ends.
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
			continue // the job is over, or busy; the next look is in a second
		}
		now := measured{at: time.Now(), used: process.CPUTime(), version: st.Version, samples: st.Samples}
		s.look(st, last, now)
		last = now
	}
}

// status asks the coordinator how the job is.
func (s *localAdmission) status(ctx context.Context) (*coord.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, admissionDeadline, errors.New("the coordinator did not say how the job is"))
	defer cancel()
	st := new(coord.Status)
	return st, s.ask(ctx, st)
}

// look takes in what was measured between two looks, and takes back what cannot be afforded any more.
//
// Processor time is in cores, bytes are per second. A gradient moves all parameters of this
// server's part once in each direction, at four bytes. Nothing is learned from a second in which no
// update was made.
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

// begin makes the watch, with what is known before anything is measured. The lock is held.
func (s *localAdmission) begin(st *coord.Status, capacity resource.Usage) (err error) {
	if s.watch == nil {
		s.watch, err = resource.NewWatch(s.prior(st), s.job.Ranks(), capacity)
	}
	return err
}

// capacity is what this host has for the job's servers. In cores, and bytes per second each way.
// What was declared (--capacity-cpu, --capacity-net) counts more than what was found, and a control
// group's quota bounds both; a link that nobody has declared has no bound.
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

// prior is what is known of the job before anything is measured. Gradients and parameters are taken
// to be four bytes for each parameter, of which each server has its part.
func (s *localAdmission) prior(st *coord.Status) resource.Demand {
	if p, ok := resource.PublishedModel(s.job.ModelPrior); ok {
		return p.Demand(resource.PublishedCores)
	}
	n := 4 * st.Params / int64(max(s.job.Servers, 1))
	return resource.Bytes{Gradient: n, Params: n}.Demand()
}

// affords says whether a plan can be afforded. The text is the reason in words, for people, in both
// cases. The lock is held, and the watch is there.
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
// if a plan that was granted cannot be afforded any more. Whoever asks again before an answer has
// asked for the later plan only: the permit of the earlier one is not taken back any more.
func (s *localAdmission) Ask(plan modes.Plan, answer func(ok bool, why string)) {
	p := &permission{plan: plan, answer: answer}
	s.mu.Lock()
	s.permit = p
	s.mu.Unlock()
	go func() {
		st, err := s.status(context.Background()) // which ends by its deadline, or with the coordinator
		s.mu.Lock()
		ok, why := true, "nothing is known yet of what it costs the servers"
		switch {
		case err != nil:
			ok, why = false, fmt.Sprintf("nobody knows how the job is: %v", err)
		case st.Params > 0: // else no worker has said what is trained
			// Asked before the first look, it answers by the prior: what was declared as a capacity
			// holds from the start.
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

// Yield implements coord.Admission. The plan that was granted is not in force any more, so nothing
// is taken back.
func (s *localAdmission) Yield() {
	s.mu.Lock()
	s.permit = nil
	s.mu.Unlock()
}
