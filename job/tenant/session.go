// Package tenant connects a process of a job with services outside of the job: the gossip, which knows the coordinator,
// and the resource service of a cluster of jobs.
package tenant

import (
	"context"
	"fmt"
	"log/slog"
	gonet "net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"star"
	"star/cluster"
	"star/cluster/resource"
	"star/cluster/resource/actuate"
	"star/cluster/resource/host"
	"star/coord"
	"star/internal/loopback"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/price"
	"star/transport"
	"star/transport/wire"
)

// Session is this process's side of the cluster that its job is in (--cluster).
type Session struct {
	job     *job.Job
	log     *slog.Logger
	sampler *host.Sampler
	traffic func() (sent, received int64) // of this process; nil: not known
	client  *cluster.Client
	enlist  wire.Enlist

	mu          sync.Mutex
	coordinator *coord.Coordinator // of this process; nil: it has none
	status      coord.Status       // as of the last report
	learner     *resource.Learner  // nil: the model's size is not known yet; of a ring, all its workers together
	network     *resource.Learner  // the same for the network, by the gradients of workers on other hosts

	// Owned by the client's goroutine.
	ring    ringUse
	before  progress
	since   progress // at the last measurement that was learned
	leases  []wire.Lease
	looked  time.Time // at them
	stopped context.CancelFunc
	ended   chan struct{}
}

// progress has the counters at one time.
type progress struct {
	at        time.Time
	cpu       time.Duration
	sent, got int64
	version   int64
	steps     int64
	far       int64          // of them, by workers on other hosts
	ring      resource.Usage // of all workers of a ring: processor seconds and bytes
}

// SessionConfig is a process that enters a cluster.
type SessionConfig struct {
	Job         *job.Job
	Network     transport.Network
	Role        string // wire.RoleWorker or RoleServer
	Rank        int
	Model       string // that the job trains, in words
	Fixed       bool   // its mode stays
	Limits      *actuate.Governor
	Coordinator *coord.Coordinator            // of this process; nil: it has none
	Traffic     func() (sent, received int64) // with other hosts; nil: not known
	Log         *slog.Logger
}

// Enter begins a cluster session; nil without --cluster. It ends with Leave.
func Enter(c SessionConfig) (*Session, error) {
	j, log, limits := c.Job, c.Log, c.Limits
	if j.Cluster == "" {
		return nil, nil
	}
	name, find, err := Locate(j.Cluster, j.ClusterJoin, j.ClusterKey, j.Insecure, log)
	if err != nil {
		return nil, j.Invalid("cluster", err)
	}
	on := j.HostID
	if on == "" {
		on = process.Hostname()
	}
	t := &Session{job: j, log: log, traffic: c.Traffic, coordinator: c.Coordinator, sampler: host.Start(host.Config{}), ended: make(chan struct{})}
	t.enlist = wire.Enlist{
		Job: j.Name, Rank: c.Rank, Host: on, Model: c.Model, Workers: j.Workers, Servers: j.Servers, Actuator: j.Actuator,
		Fixed: c.Fixed, Capacity: wire.Amounts{CPU: float64(runtime.NumCPU())},
	}
	if j.Arch == job.AllReduce { // workers exchange gradients among themselves
		t.enlist.Servers = 0
	}
	if j.CapacityCPU > 0 {
		t.enlist.Capacity.CPU = j.CapacityCPU
	}
	t.enlist.Capacity.In, t.enlist.Capacity.Out = 1e6*j.CapacityNet, 1e6*j.CapacityNet
	if j.Actuator == string(actuate.None) {
		t.enlist.Actuator = ""
	}
	if p, ok := resource.PublishedModel(j.ModelPrior); ok {
		c := p.Costs(resource.PublishedCores)
		t.enlist.Freed = wire.Amounts{CPU: c.Freed.CPU, In: c.Freed.NetIn, Out: c.Freed.NetOut}
		t.enlist.CostCPU, t.enlist.CostNet = c.Sensitivity.CPU, c.Sensitivity.Net
	}
	t.client = cluster.NewClient(cluster.ClientConfig{
		Network: c.Network, Find: find, Cluster: name, Role: c.Role, Token: j.Token, Version: job.Program,
		Enlist: t.enlistment, Usage: t.use, Obey: func(d time.Duration) error { return limits.Delay(d, 0) }, Log: log,
	})
	ctx, stop := context.WithCancel(context.Background())
	t.stopped = stop
	go func() {
		defer close(t.ended)
		t.client.Run(ctx)
	}()
	return t, nil
}

// Check looks at --cluster before anything begins.
func Check(job *job.Job) error {
	if job.Cluster == "" {
		return nil
	}
	if _, _, err := Locate(job.Cluster, job.ClusterJoin, job.ClusterKey, job.Insecure, slog.Default()); err != nil {
		return job.Invalid("cluster", err)
	}
	return nil
}

// Leave disconnects; orders are undone.
func (t *Session) Leave() {
	if t == nil {
		return
	}
	t.stopped()
	<-t.ended
	t.sampler.Close()
}

// enlistment is the client's description of this process.
func (t *Session) enlistment() wire.Enlist {
	e := t.enlist
	if tel := t.sampler.Latest(); tel != nil {
		if q, ok := tel.Get(star.Quota); ok && q > 0 {
			e.Capacity.CPU = min(e.Capacity.CPU, q)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Params = t.status.Params
	return e
}

// use is the client's report of this process's use.
func (t *Session) use() wire.Usage {
	now := progress{at: time.Now(), cpu: process.CPUTime()}
	if t.traffic != nil {
		now.sent, now.got = t.traffic()
	}
	var u wire.Usage
	if t.coordinator != nil {
		var s coord.Status
		ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
		err := t.coordinator.Ask(ctx, &s, "status")
		cancel()
		t.mu.Lock()
		if err == nil {
			t.status = s
		}
		s = t.status
		t.mu.Unlock()
		u.Step, u.Mode, u.Times = s.Version, s.Mode, s.Times()
		now.version = s.Version
		if t.job.Arch == job.AllReduce {
			t.ring.look(s.Workers)
			now.ring = t.ring.sum
		}
		for _, w := range s.Workers {
			now.steps += w.Step
			if process.Elsewhere(w.Peer) {
				now.far += w.Step
			}
		}
		if p, err := modes.Parse(s.Mode, t.job.Ranks()); err == nil {
			u.Sync = coord.InStep(p)
		}
	}
	if d := now.at.Sub(t.before.at).Seconds(); !t.before.at.IsZero() && d > 0 {
		u.Own = wire.Amounts{CPU: (now.cpu - t.before.cpu).Seconds() / d, In: max(float64(now.got-t.before.got)/d, 0), Out: max(float64(now.sent-t.before.sent)/d, 0)}
	}
	t.before = now
	t.learn(now)
	if now.at.Sub(t.looked) >= lookEvery {
		t.looked, t.leases = now.at, leasesIn(actuate.OpenStore(t.job.LeaseDir))
	}
	u.Leases = t.leases
	if tel := t.sampler.Latest(); tel != nil {
		get := func(m star.Metric, scale float64) float64 {
			v, _ := tel.Get(m)
			return max(v*scale, 0)
		}
		u.Host = wire.Amounts{
			CPU: process.Crowding(get(star.HostCPU, 1), float64(runtime.NumCPU()), t.enlistment().Capacity.CPU),
			In:  get(star.HostNetIn, 1), Out: get(star.HostNetOut, 1),
		}
	}
	return u
}

// lookEvery is how often a process looks at the leases of its host.
const lookEvery = 2 * time.Second

// leasesIn returns the leases of a folder for the service: those to be undone first. A folder that
// cannot be read, or is not trusted, counts as one lease.
func leasesIn(s *actuate.Store) (ls []wire.Lease) {
	es, err := s.List()
	if err != nil {
		return []wire.Lease{{Name: s.Dir(), State: string(actuate.Corrupt), Why: err.Error()}}
	}
	slices.SortStableFunc(es, func(a, b actuate.Entry) int { return urgency(a.State) - urgency(b.State) })
	for _, e := range es[:min(len(es), wire.MaxLeases)] {
		l := wire.Lease{Name: e.Name, State: string(e.State), Why: e.Why}
		if e.State != actuate.Corrupt {
			l.What, l.Owner = e.What(), e.Owner.Process
		}
		ls = append(ls, l)
	}
	return ls
}

// urgency orders the states of leases: those that need attention come first.
func urgency(s actuate.State) int {
	return slices.Index([]actuate.State{actuate.Corrupt, actuate.Stale, actuate.Foreign, actuate.Void, actuate.Alive}, s)
}

// leastUpdates is how many updates are measured together: between two reports there may be one or none, and bytes that
// belong to the next.
const leastUpdates = 4

// learn adds the use of this server under a load. The servers of a job are alike: each has the same work.
func (t *Session) learn(now progress) {
	p := t.since
	if p.at.IsZero() || p.version == 0 {
		t.since = now
		return
	}
	d := now.at.Sub(p.at).Seconds()
	if now.version-p.version < leastUpdates || d <= 0 {
		return
	}
	t.since = now
	l := resource.Load{Updates: float64(now.version-p.version) / d, Gradients: float64(now.steps-p.steps) / d}
	far := resource.Load{Updates: l.Updates, Gradients: float64(now.far-p.far) / d}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job.Arch == job.AllReduce {
		if !t.ring.blind {
			t.learnRing(l, now.ring.Minus(p.ring).Times(1/d))
		}
		return
	}
	if t.learner == nil {
		if t.status.Params == 0 {
			return
		}
		var err error
		if t.learner, err = resource.NewLearner(t.prior(), t.job.Ranks()); err != nil {
			t.log.Error("no model of what a mode costs", "err", err) // cannot be: the prior is finite
			return
		}
		t.network, _ = resource.NewLearner(t.prior(), t.job.Ranks())
	}
	t.learner.Observe(l, resource.Usage{CPU: (now.cpu - p.cpu).Seconds() / d})
	t.network.Observe(far, resource.Usage{NetIn: max(float64(now.got-p.got)/d, 0), NetOut: max(float64(now.sent-p.sent)/d, 0)})
}

// prior is what one server of the job takes, before anything was measured.
func (t *Session) prior() resource.Demand {
	if p, ok := resource.PublishedModel(t.job.ModelPrior); ok {
		return p.Demand(resource.PublishedCores)
	}
	part := 4 * t.status.Params / int64(max(t.job.Servers, 1))
	return resource.Bytes{Gradient: part, Params: part}.Demand()
}

// Ask asks the resource service for what a plan takes beyond SSGD (coord.Admission).
func (t *Session) Ask(p modes.Plan, answer func(ok bool, why string)) {
	extra, lag, err := t.cost(p)
	if err != nil {
		go answer(false, "its cost is not known: "+err.Error())
		return
	}
	t.client.Ask(p.String(), extra, lag, answer)
}

// Yield returns the grant (coord.Admission).
func (t *Session) Yield() { t.client.Yield() }

// cost is what a plan uses beyond SSGD, of all servers together, and what SSGD loses.
func (t *Session) cost(p modes.Plan) (extra wire.Amounts, lag time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	times := t.status.Times()
	f := price.Forecast{Times: times, Batch: t.job.Batch, Ring: t.job.Arch == job.AllReduce, RiderWait: t.job.RiderWait}
	load := func(p modes.Plan) (resource.Load, error) {
		c, err := price.Of(p, f)
		if err != nil {
			return resource.Load{}, err
		}
		return resource.Load{Updates: 1 / c.Interval.Seconds(), Gradients: c.Rate() / float64(t.job.Batch)}, nil
	}
	mode, err := load(p)
	if err != nil {
		return extra, 0, err
	}
	ssgd, err := load(modes.SSGD(t.job.Ranks()))
	if err != nil {
		return extra, 0, err
	}
	if f.Ring {
		u := t.ringExtra(mode, ssgd)
		return wire.Amounts{CPU: u.CPU, In: u.NetIn, Out: u.NetOut}, resource.Loss(times), nil
	}
	d, Links := t.prior(), t.prior()
	if t.learner != nil {
		d, Links = t.learner.Demand(), t.network.Demand()
	}
	u := d.Extra(mode, ssgd)
	far, err := t.beyond(p, mode, times)
	if err != nil {
		return extra, 0, err
	}
	farSSGD, err := t.beyond(modes.SSGD(t.job.Ranks()), ssgd, times)
	if err != nil {
		return extra, 0, err
	}
	net := Links.Extra(far, farSSGD)
	u.NetIn, u.NetOut = net.NetIn, net.NetOut
	u = u.Times(float64(max(t.job.Servers, 1)))
	return wire.Amounts{CPU: u.CPU, In: u.NetIn, Out: u.NetOut}, resource.Loss(times), nil
}

// beyond is the part of a load from workers on other hosts than this one: only their gradients use its link.
func (t *Session) beyond(p modes.Plan, l resource.Load, times []time.Duration) (resource.Load, error) {
	pace, err := price.PaceOf(p, times)
	if err != nil {
		return resource.Load{}, err
	}
	part := 0.0
	for w, share := range pace.Shares {
		if w >= len(t.status.Workers) || process.Elsewhere(t.status.Workers[w].Peer) {
			part += share
		}
	}
	l.Gradients *= min(part, 1)
	return l, nil
}

// Locate reads --cluster, --cluster-join and --cluster-key: the name of the cluster, and how
// to find its service. A gossip beyond loopback without a key is an error, if it is not insecure on purpose.
func Locate(place string, join []string, keyFile string, insecure bool, log *slog.Logger) (name string, find func(context.Context) (string, error), err error) {
	name, addr, direct := strings.Cut(place, "@")
	if err := cluster.CheckName(name); err != nil {
		return "", nil, err
	}
	switch {
	case direct && len(join) > 0:
		return "", nil, fmt.Errorf("an address behind @ and --cluster-join: give one of them")
	case direct:
		if _, _, err := gonet.SplitHostPort(addr); err != nil {
			addr = gonet.JoinHostPort(addr, cluster.DefaultPort)
		}
		if host, _, _ := gonet.SplitHostPort(addr); host == "" {
			return "", nil, fmt.Errorf("no host behind @: write %s@host:%s", name, cluster.DefaultPort)
		}
		return name, func(context.Context) (string, error) { return addr, nil }, nil
	case len(join) == 0:
		return "", nil, fmt.Errorf("where is its resource service? Write %s@host:%s, or give members of its gossip with --cluster-join", name, cluster.DefaultPort)
	}
	key, err := Key(keyFile)
	if err != nil {
		return "", nil, fmt.Errorf("--cluster-key: %w", err)
	}
	for _, addr := range join {
		if _, _, err := gonet.SplitHostPort(addr); err != nil {
			addr = gonet.JoinHostPort(addr, cluster.DefaultGossipPort)
		}
		if key == nil && !insecure && !loopback.Is(addr) {
			return "", nil, fmt.Errorf("any process that reaches the gossip at %s could name its own resource service; set --cluster-key, or allow it with --insecure", addr)
		}
	}
	return name, func(ctx context.Context) (string, error) {
		p, err := cluster.Find(ctx, cluster.GossipConfig{Cluster: name, Bind: gonet.JoinHostPort(facing(join[0]), "0"), Seeds: join, Key: key, Log: log})
		return p.Addr, err
	}, nil
}

// Key reads the key of a gossip; nil without a file.
func Key(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	key, err := cluster.ReadKey(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// facing is the address of this host that leads to another one.
func facing(addr string) string {
	if _, _, err := gonet.SplitHostPort(addr); err != nil {
		addr = gonet.JoinHostPort(addr, cluster.DefaultGossipPort)
	}
	if c, err := gonet.Dial("udp", addr); err == nil { // sends nothing: asks the routing table
		defer c.Close()
		if local, _, err := gonet.SplitHostPort(c.LocalAddr().String()); err == nil {
			return local
		}
	}
	return "0.0.0.0"
}
