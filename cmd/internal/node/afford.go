package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"star"
	"star/cmd/internal/settings"
	"star/coord"
	"star/modes"
	"star/resource"
	"star/resource/host"
)

// steward implements coord.Admission for a job that no resource service answers: it looks at the host of the coordinator and its shards,
// and at nothing else. Its answers are in the run log like a service's.
type steward struct {
	job     *settings.Job
	local   addresses // of this host
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
	stewardLook     = time.Second
	stewardDeadline = 2 * time.Second // for a status
	stewardPatience = 10              // looks
)

// newSteward makes the Admission of a job. run starts it.
func newSteward(job *settings.Job) *steward {
	return &steward{job: job, local: ownAddresses(), cores: float64(runtime.NumCPU())}
}

// here says whether a worker's connection comes from this host.
func (s *steward) here(peer string) bool { return s.local.has(peer) }

// addresses are those of a host besides loopback.
type addresses map[netip.Addr]bool

// ownAddresses are those of this host.
func ownAddresses() addresses {
	own := addresses{}
	addrs, _ := net.InterfaceAddrs() // none: only loopback is local
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// thisHost are this host's addresses, as they were when they were first asked for.
var thisHost = sync.OnceValue(ownAddresses)

// elsewhere says whether what is at an address is on another host, so that traffic with it takes something of links.
func elsewhere(addr string) bool { return !thisHost().has(addr) }

// has says whether what is at an address, with a port, is on the host. Names are not looked up: they are elsewhere.
func (as addresses) has(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && (a.Addr().Unmap().IsLoopback() || as[a.Addr().Unmap()])
}

// measured is a look.
type measured struct {
	at      time.Time
	used    time.Duration // processor time of this process
	version int64
	samples int64
}

// run looks once a second until the context ends.
func (s *steward) run(ctx context.Context, c *coord.Coordinator) {
	s.ask = func(ctx context.Context, status *coord.Status) error { return c.Ask(ctx, status, "status") }
	s.sampler = host.Start(host.Config{Heartbeat: 200 * time.Millisecond})
	defer s.sampler.Close()
	tick := time.NewTicker(stewardLook)
	defer tick.Stop()
	last := measured{at: time.Now(), used: processTime()}
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
		now := measured{at: time.Now(), used: processTime(), version: st.Version, samples: st.Samples}
		s.look(st, last, now)
		last = now
	}
}

// status asks the coordinator how the job is.
func (s *steward) status(ctx context.Context) (*coord.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stewardDeadline, errors.New("the coordinator did not say how the job is"))
	defer cancel()
	st := new(coord.Status)
	return st, s.ask(ctx, st)
}

// look takes in what was measured between two looks, and takes back what cannot be afforded any more.
func (s *steward) look(st *coord.Status, last, now measured) {
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
		others = crowding(share, s.cores, capacity.CPU) - cpu
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
	if p.bad >= stewardPatience {
		s.permit = nil
		go p.answer(false, why)
	}
}

// begin makes the watch, with what is known before anything is measured. The lock is held.
func (s *steward) begin(st *coord.Status, capacity resource.Usage) (err error) {
	if s.watch == nil {
		s.watch, err = resource.NewWatch(s.prior(st), s.job.Ranks(), capacity)
	}
	return err
}

// crowding is the part of a machine's use, a share of all its cores, that counts against a capacity: what does not fit into the rest
// of the machine. Who is given two cores of eight loses nothing by others who use six.
func crowding(share, cores, capacity float64) float64 {
	return max(share*cores-max(cores-capacity, 0), 0)
}

// capacity is what this host has for the job's servers.
func (s *steward) capacity(t *star.Telemetry) resource.Usage {
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

// prior is what is known of the job before anything is measured.
func (s *steward) prior(st *coord.Status) resource.Demand {
	if p, ok := resource.PublishedModel(s.job.ModelPrior); ok {
		return p.Demand(resource.PublishedCores)
	}
	n := 4 * st.Params / int64(max(s.job.Servers, 1))
	return resource.Bytes{Gradient: n, Params: n}.Demand()
}

// affords says whether a plan can be afforded.
func (s *steward) affords(p modes.Plan, st *coord.Status) (bool, string) {
	l, err := LoadOf(p, st.Times())
	if err != nil {
		return false, err.Error()
	}
	return s.watch.Afford(l)
}

// LoadOf is what a plan makes servers do when iterations take so long. Who is gone (0) counts as the slowest: it might come
// back.
func LoadOf(p modes.Plan, times []time.Duration) (resource.Load, error) {
	slowest := time.Duration(0)
	for _, t := range times {
		slowest = max(slowest, t)
	}
	if slowest == 0 {
		return resource.Load{}, errors.New("no worker has said yet what its iterations take")
	}
	for w, t := range times {
		if t == 0 {
			times[w] = slowest
		}
	}
	pace, err := p.Pace(times)
	if err != nil {
		return resource.Load{}, err
	}
	u := 1 / pace.Interval.Seconds()
	return resource.Load{Updates: u, Gradients: u * pace.Gradients / max(1-pace.Dropped, 0.01)}, nil
}

// Ask implements coord.Admission.
func (s *steward) Ask(plan modes.Plan, answer func(ok bool, why string)) {
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
			// Asked before the first look, it answers by the prior: what was declared as a capacity holds from the start.
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

// Yield implements coord.Admission.
func (s *steward) Yield() {
	s.mu.Lock()
	s.permit = nil
	s.mu.Unlock()
}
