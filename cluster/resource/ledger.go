package resource

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// LedgerConfig configures a Ledger. A zero field has the default in its comment.
type LedgerConfig struct {
	// Lease is how long a job counts after its last message. Zero: 15 s.
	Lease time.Duration

	// Settle is the time until a change of mode or a delay shows in reports. Zero: 10 s.
	Settle time.Duration

	// Patience is how long a host may exceed its capacity before a grant there is withdrawn. Zero: 10 s.
	Patience time.Duration
}

// Job is the description that a job registers with.
type Job struct {
	Name    string
	Servers []string // host of each shard
	Workers []string // host of each worker, by rank
	Costs   Costs

	// Incarnation differs for each start of the job. It may be empty if Release is called at every start.
	Incarnation string

	// Fixed: by its owner's choice it does not run SSGD and never will: it frees nothing.
	Fixed bool
}

// Report is a job's periodic report, which renews its lease.
type Report struct {
	Job   string
	Step  int64
	Times []time.Duration  // time of an iteration of each worker, by rank, without waiting; 0: gone. nil: unchanged
	Use   map[string]Usage // measured use of the job on each of its hosts. nil: unchanged
	Costs *Costs           // learned costs; nil: unchanged
}

// Request asks whether a job may run in a mode.
type Request struct {
	// ID increases with every new request of a job. A repeated request with the last ID gets the same answer and changes
	// nothing.
	ID   uint64
	Job  string
	Mode string // for messages

	// Loss is the loss of SSGD in each iteration: see the function Loss. Needs is the cost of the mode beyond SSGD, on
	// each host of its servers.
	Loss  time.Duration
	Needs []Need
}

// Answer is the answer to a Request. After a no, a job keeps the mode that was granted before.
type Answer struct {
	ID      uint64
	Granted bool
	Why     string        // one line
	Cost    time.Duration // sum of the losses of other jobs per iteration
}

// Order is the complete order for a job: what an earlier order has and this one lacks is undone. So orders may be
// repeated, and the one with the larger Seq counts.
type Order struct {
	Job string
	Seq uint64

	// Early: an early worker waits before it begins, as long as it would wait for the slowest worker anyway.
	Early bool

	// Delay is how much longer each iteration takes.
	Delay time.Duration

	// Back: the job's grant is withdrawn; it returns to SSGD, and then reports it (Release).
	Back bool

	Why string // one line
}

// ErrUnknownJob is wrapped by errors for a job that has not registered, or with an expired lease. The job must register
// (again), and run SSGD until a request is granted.
var ErrUnknownJob = errors.New("no such job: it has not registered, or its lease has expired")

// ErrStaleRequest is wrapped by the error for a request older than the last one.
var ErrStaleRequest = errors.New("older than the job's last request")

// Ledger is the account of a cluster: the capacity of its hosts, the use and the grant of each job, and the delays that
// pay for grants. It decides with [Admit]. It is a state machine without clock and network; callers pass the time,
// which starts anywhere and does not go back (an earlier time counts as the last one). It is not safe for concurrent
// use.
//
// The life of a job:
//
//	                 Request: yes                     Release
//	Register ──► SSGD ───────────► granted ──────────────────────► SSGD
//	              │ ▲                 │ Order.Back ──► Release ─────▲
//	   for others │ │ not needed      │
//	              ▼ │ any more        ▼
//	            delayed             Remove, or the lease expires: gone, and its delays of other jobs end
//
// A delayed job gets no grant. The use that counts on a host is the larger of the reported and the granted use; an
// amount that a delay frees counts as promised for a while (Settle), then as reported.
type Ledger struct {
	cfg     LedgerConfig
	now     time.Duration
	hosts   map[string]*machine
	jobs    map[string]*account
	granted uint64 // grants so far
}

// machine is a host of the Ledger.
type machine struct {
	capacity  Usage
	strangers Usage         // by processes outside of jobs
	over      time.Duration // start of the overload; negative: not overloaded
}

// account is a job of the Ledger.
type account struct {
	Job
	times   []time.Duration
	step    int64
	expires time.Duration
	use     map[string]Usage // last report
	base    map[string]Usage // known use in SSGD without a delay
	changed time.Duration    // last change of grant or delay
	grant   *grant
	parts   []part // parts of its delay, the oldest first
	order   Order  // last order sent
	id      uint64
	answer  Answer
}

// grant is what a job may use beyond its base.
type grant struct {
	number    uint64
	mode      string
	extra     map[string]Usage
	withdrawn bool
}

// part is a delay of a job for another one.
type part struct {
	forJob string
	early  bool
	delay  time.Duration
	frees  map[string]Usage
}

// NewLedger creates an empty account.
func NewLedger(c LedgerConfig) *Ledger {
	for d, v := range map[*time.Duration]time.Duration{&c.Lease: 15 * time.Second, &c.Settle: 10 * time.Second, &c.Patience: 10 * time.Second} {
		if *d <= 0 {
			*d = v
		}
	}
	return &Ledger{cfg: c, hosts: map[string]*machine{}, jobs: map[string]*account{}}
}

func (l *Ledger) tick(at time.Duration) time.Duration {
	l.now = max(l.now, at)
	return l.now
}

// SetHost adds a host, or changes its capacity.
func (l *Ledger) SetHost(at time.Duration, name string, capacity Usage) error {
	l.tick(at)
	if name == "" {
		return errors.New("resource: a host without a name")
	}
	if err := capacity.check("capacity of host "+name, true); err != nil {
		return err
	}
	if m := l.hosts[name]; m != nil {
		m.capacity = capacity
		return nil
	}
	l.hosts[name] = &machine{capacity: capacity, over: -1}
	return nil
}

// Measured records the total use of a host. The use beyond the reports of its jobs is of other processes, and counts
// from now on.
func (l *Ledger) Measured(at time.Duration, name string, use Usage) error {
	l.tick(at)
	m := l.hosts[name]
	if m == nil {
		return fmt.Errorf("resource: host %q: nothing is known of it", name)
	}
	if err := use.check("use of host "+name, false); err != nil {
		return err
	}
	for _, j := range l.inOrder() {
		use = use.Minus(j.use[name])
	}
	m.strangers = use
	return nil
}

// Register adds a job, in SSGD. A job that exists under this name is replaced if its description differs, as after a
// restart; otherwise its lease is renewed, and it keeps its grant.
func (l *Ledger) Register(at time.Duration, j Job) ([]Order, error) {
	l.tick(at)
	if j.Name == "" {
		return nil, errors.New("resource: a job without a name")
	}
	for _, h := range slices.Concat(j.Servers, j.Workers) {
		if l.hosts[h] == nil {
			return nil, fmt.Errorf("resource: job %s: host %q: nothing is known of it", j.Name, h)
		}
	}
	if err := j.Costs.check("job " + j.Name); err != nil {
		return nil, err
	}
	if old := l.jobs[j.Name]; old != nil {
		if slices.Equal(old.Servers, j.Servers) && slices.Equal(old.Workers, j.Workers) && old.Fixed == j.Fixed && old.Incarnation == j.Incarnation {
			old.Costs, old.expires = j.Costs, l.now+l.cfg.Lease
			return nil, nil
		}
	}
	orders := l.drop(j.Name)
	j.Servers, j.Workers = slices.Clone(j.Servers), slices.Clone(j.Workers)
	l.jobs[j.Name] = &account{
		Job: j, times: make([]time.Duration, len(j.Workers)), use: map[string]Usage{}, base: map[string]Usage{},
		expires: l.now + l.cfg.Lease, changed: l.now - l.cfg.Settle, order: Order{Job: j.Name},
	}
	return orders, nil
}

// on reports whether a job has a process on a host.
func (j *account) on(host string) bool {
	return slices.Contains(j.Servers, host) || slices.Contains(j.Workers, host)
}

// Report records a job's measurements, and renews its lease.
func (l *Ledger) Report(at time.Duration, r Report) error {
	l.tick(at)
	j := l.jobs[r.Job]
	if j == nil {
		return fmt.Errorf("resource: report of job %q: %w", r.Job, ErrUnknownJob)
	}
	if r.Step < 0 {
		return fmt.Errorf("resource: job %s: step %d: want at least 0", r.Job, r.Step)
	}
	if r.Times != nil && len(r.Times) != len(j.Workers) {
		return fmt.Errorf("resource: job %s: %d times of %d workers: want one for each", r.Job, len(r.Times), len(j.Workers))
	}
	for w, d := range r.Times {
		if d < 0 {
			return fmt.Errorf("resource: job %s: worker %d takes %v for an iteration: want at least 0", r.Job, w, d)
		}
	}
	for h, u := range r.Use {
		if !j.on(h) {
			return fmt.Errorf("resource: job %s reports use of host %q, where it has nothing", r.Job, h)
		}
		if err := u.check(fmt.Sprintf("use of job %s on host %s", r.Job, h), false); err != nil {
			return err
		}
	}
	if r.Costs != nil {
		if err := r.Costs.check("job " + r.Job); err != nil {
			return err
		}
		j.Costs = *r.Costs
	}
	j.expires = l.now + l.cfg.Lease
	j.step = r.Step
	if r.Times != nil {
		j.times = slices.Clone(r.Times)
	}
	if r.Use != nil {
		j.use = maps.Clone(r.Use)
	}
	if j.grant == nil && len(j.parts) == 0 && l.settled(j) {
		j.base = maps.Clone(j.use)
	}
	return nil
}

// settled reports whether j's reports show its present mode and delay.
func (l *Ledger) settled(j *account) bool { return l.now-j.changed >= l.cfg.Settle }

// freed is the amount that j's delays free on a host.
func (j *account) freed(host string) (u Usage) {
	for _, p := range j.parts {
		u = u.Plus(p.frees[host])
	}
	return u
}

// counts is the use by j on a host that counts.
func (l *Ledger) counts(j *account, host string) Usage {
	switch {
	case j.grant != nil:
		return j.base[host].Plus(j.grant.extra[host]).Max(j.use[host])
	case len(j.parts) > 0 && !l.settled(j):
		return j.base[host].Minus(j.freed(host))
	case len(j.parts) > 0:
		return j.base[host].Minus(j.freed(host)).Max(j.use[host])
	}
	return j.base[host]
}

// usage is the use on a host that counts, without the part of a job beyond its base.
func (l *Ledger) usage(host string, without string) Usage {
	u := l.hosts[host].strangers
	for _, j := range l.inOrder() {
		if j.Name == without {
			u = u.Plus(j.base[host])
			continue
		}
		u = u.Plus(l.counts(j, host))
	}
	return u
}

func (l *Ledger) inOrder() []*account {
	js := make([]*account, 0, len(l.jobs))
	for _, j := range l.jobs {
		js = append(js, j)
	}
	slices.SortFunc(js, func(a, b *account) int { return strings.Compare(a.Name, b.Name) })
	return js
}

func (l *Ledger) hostNames() []string { return slices.Sorted(maps.Keys(l.hosts)) }

// Request decides whether a job may run in a mode, and returns orders for other jobs. It renews the lease.
func (l *Ledger) Request(at time.Duration, q Request) (Answer, []Order, error) {
	l.tick(at)
	j := l.jobs[q.Job]
	if j == nil {
		return Answer{}, nil, fmt.Errorf("resource: request %d of job %q: %w", q.ID, q.Job, ErrUnknownJob)
	}
	if q.ID < j.id {
		return Answer{}, nil, fmt.Errorf("resource: request %d of job %s: %w, %d", q.ID, q.Job, ErrStaleRequest, j.id)
	}
	if q.ID == j.id && q.ID > 0 {
		j.expires = l.now + l.cfg.Lease
		return j.answer, nil, nil
	}
	if q.ID == 0 {
		return Answer{}, nil, fmt.Errorf("resource: a request of job %s without an ID: the first has 1", q.Job)
	}
	for _, n := range q.Needs {
		if l.hosts[n.Host] != nil && !j.on(n.Host) {
			return Answer{}, nil, fmt.Errorf("resource: job %s needs something on host %s, where it has nothing", q.Job, n.Host)
		}
	}
	var v Verdict
	switch {
	case len(j.parts) > 0:
		if err := (&Query{Job: q.Job, Loss: q.Loss}).check(nil, nil); err != nil {
			return Answer{}, nil, err
		}
		v = Verdict{Why: fmt.Sprintf("it is delayed for job %s itself", j.parts[0].forJob)}
	default:
		var hosts []Host
		for _, name := range l.hostNames() {
			hosts = append(hosts, Host{Name: name, Capacity: l.hosts[name].capacity, Use: l.usage(name, q.Job)})
		}
		var tenants []Tenant
		for _, o := range l.inOrder() {
			if o.Name == q.Job {
				continue
			}
			t := Tenant{Name: o.Name, SSGD: o.grant == nil && !o.Fixed, Step: o.step, Costs: o.Costs, Times: o.times, On: o.Workers,
				Use: map[string]Usage{}, Early: o.order.Early, Delay: o.order.Delay}
			for h := range o.use {
				t.Use[h] = l.counts(o, h)
			}
			tenants = append(tenants, t)
		}
		var err error
		v, err = Admit(Query{Job: q.Job, Loss: q.Loss, Needs: q.Needs}, hosts, tenants)
		if err != nil {
			return Answer{}, nil, err
		}
	}
	j.expires = l.now + l.cfg.Lease
	j.id, j.answer = q.ID, Answer{ID: q.ID, Granted: v.Granted, Why: v.Why, Cost: v.Cost}
	if !v.Granted {
		return j.answer, nil, nil
	}
	l.granted++
	j.grant = &grant{number: l.granted, mode: q.Mode, extra: map[string]Usage{}}
	for _, n := range q.Needs {
		j.grant.extra[n.Host] = n.Extra
	}
	j.changed = l.now
	type mark struct {
		seq     uint64
		changed time.Duration
	}
	marks := map[*account]mark{}
	for _, d := range v.Delays {
		o := l.jobs[d.Job]
		marks[o] = mark{o.order.Seq, o.changed}
		p := part{forJob: q.Job, early: d.Early, delay: d.Delay, frees: map[string]Usage{}}
		for _, f := range d.Frees {
			p.frees[f.Host] = f.Usage
			// A promise is relative to the use that counted until now.
			o.base[f.Host] = l.counts(o, f.Host).Plus(o.freed(f.Host))
		}
		o.parts = append(o.parts, p)
		o.changed = l.now
	}
	// Early workers may suffice without some of the delays, and this grant may need less than the job's previous one.
	l.relax()
	orders := l.orders(map[string]string{q.Job: "it was granted another mode"})
	for o, m := range marks {
		if o.order.Seq == m.seq {
			o.changed = m.changed
		}
	}
	return j.answer, orders, nil
}

// orders are the changed orders, by job. Reasons that are not in why follow from the delays.
func (l *Ledger) orders(why map[string]string) (os []Order) {
	for _, j := range l.inOrder() {
		o := Order{Job: j.Name}
		var forJobs []string
		for _, p := range j.parts {
			o.Early = o.Early || p.early
			o.Delay += p.delay
			if !slices.Contains(forJobs, p.forJob) {
				forJobs = append(forJobs, p.forJob)
			}
		}
		if j.grant != nil && j.grant.withdrawn {
			o.Back = true
		}
		if o.Early == j.order.Early && o.Delay == j.order.Delay && o.Back == j.order.Back {
			continue
		}
		if o.Early != j.order.Early || o.Delay != j.order.Delay {
			j.changed = l.now
		}
		o.Seq = j.order.Seq + 1
		switch w, ok := why[j.Name]; {
		case ok:
			o.Why = w
		case len(forJobs) > 0:
			slices.Sort(forJobs)
			o.Why = "for job " + strings.Join(forJobs, " and ")
		default:
			o.Why = "no job needs it any more"
		}
		j.order = o
		os = append(os, o)
	}
	return os
}

// Standing is the current order of a job: it is sent again when the job reconnects.
func (l *Ledger) Standing(job string) (Order, error) {
	j := l.jobs[job]
	if j == nil {
		return Order{}, fmt.Errorf("resource: job %q: %w", job, ErrUnknownJob)
	}
	return j.order, nil
}

// relax ends delays that are not needed: no job has a grant for them any more, or the hosts are within their capacities
// without them. The newest goes first.
func (l *Ledger) relax() {
	for _, j := range l.inOrder() {
		for i := len(j.parts) - 1; i >= 0; i-- {
			p := &j.parts[i]
			holder := "" // of a grant that needs it
			for _, h := range slices.Sorted(maps.Keys(p.frees)) {
				if holders := l.holders(h); len(holders) > 0 && !l.usage(h, "").Plus(p.frees[h]).Fits(l.hosts[h].capacity) {
					if slices.Contains(holders, p.forJob) {
						holder = p.forJob
						break
					}
					if holder == "" {
						holder = holders[0]
					}
				}
			}
			if p.forJob = holder; holder == "" {
				j.parts = slices.Delete(j.parts, i, i+1)
			}
		}
	}
}

// holders are the jobs with a grant on a host, by name.
func (l *Ledger) holders(host string) (names []string) {
	for _, j := range l.inOrder() {
		if j.grant != nil && j.grant.extra[host] != (Usage{}) {
			names = append(names, j.Name)
		}
	}
	return names
}

// Release records that a job is back in SSGD: its grant ends.
func (l *Ledger) Release(at time.Duration, job string) ([]Order, error) {
	l.tick(at)
	j := l.jobs[job]
	if j == nil {
		return nil, fmt.Errorf("resource: release of job %q: %w", job, ErrUnknownJob)
	}
	j.expires = l.now + l.cfg.Lease
	if j.grant == nil {
		return nil, nil
	}
	j.grant, j.changed = nil, l.now
	l.relax()
	return l.orders(map[string]string{job: "it is back"}), nil
}

// Remove records that a job has ended. An unknown job is not an error: it may have expired.
func (l *Ledger) Remove(at time.Duration, job string) []Order {
	l.tick(at)
	return l.drop(job)
}

func (l *Ledger) drop(job string) []Order {
	if l.jobs[job] == nil {
		return nil
	}
	delete(l.jobs, job)
	l.relax()
	return l.orders(nil)
}

// Expire drops jobs without a message for a lease, and withdraws grants where a host has exceeded its capacity for too
// long: the newest first, one at a time. Call it periodically; Next returns when.
func (l *Ledger) Expire(at time.Duration) (dead []string, orders []Order) {
	l.tick(at)
	for _, j := range l.inOrder() {
		if j.expires <= l.now {
			dead = append(dead, j.Name)
			delete(l.jobs, j.Name)
		}
	}
	why := map[string]string{}
	if len(dead) > 0 {
		l.relax()
	}
	for _, name := range l.hostNames() {
		m := l.hosts[name]
		u := l.usage(name, "")
		j := l.youngest(name)
		if j == nil || u.Fits(m.capacity.Times(tolerated)) {
			m.over = -1
			continue
		}
		if m.over < 0 {
			m.over = l.now
		}
		if l.now-m.over < l.cfg.Patience {
			continue
		}
		j.grant.withdrawn = true
		why[j.Name] = fmt.Sprintf("host %s is over its capacity: %v of %v", name, u, m.capacity)
		m.over = l.now // the next one after the same time
	}
	return dead, l.orders(why)
}

// tolerated is the factor by which measurements may exceed a capacity.
const tolerated = 1.05

// youngest is the job with the newest grant on a host that is not withdrawn.
func (l *Ledger) youngest(host string) *account {
	var js []*account
	for _, j := range l.jobs {
		if j.grant != nil && !j.grant.withdrawn && j.grant.extra[host] != (Usage{}) {
			js = append(js, j)
		}
	}
	if len(js) == 0 {
		return nil
	}
	return slices.MaxFunc(js, func(a, b *account) int { return cmp.Compare(a.grant.number, b.grant.number) })
}

// Next is the latest time at which Expire has something to do, if nothing else happens. ok: there is such a time.
func (l *Ledger) Next() (at time.Duration, ok bool) {
	at = math.MaxInt64
	for _, j := range l.jobs {
		at, ok = min(at, j.expires), true
	}
	for name, m := range l.hosts {
		switch {
		case l.youngest(name) == nil:
		case m.over >= 0:
			at, ok = min(at, m.over+l.cfg.Patience), true
		case !l.usage(name, "").Fits(m.capacity.Times(tolerated)):
			at, ok = min(at, l.now), true
		}
	}
	return at, ok
}

// HostStatus is the status of a host.
type HostStatus struct {
	Name      string
	Capacity  Usage
	Use       Usage // use that counts, including Strangers
	Strangers Usage // by processes outside of jobs
}

// JobStatus is the status of a job.
type JobStatus struct {
	Name    string
	Servers []string
	Workers []string
	Step    int64
	Mode    string // granted mode; empty: SSGD
	Use     map[string]Usage
	Extra   map[string]Usage // granted beyond SSGD
	Order   Order
	For     []string // jobs for which it is delayed, by name
	Expires time.Duration
	Last    Answer // answer to its last request
}

// Hosts returns every host, by name.
func (l *Ledger) Hosts() (hs []HostStatus) {
	for _, name := range l.hostNames() {
		m := l.hosts[name]
		hs = append(hs, HostStatus{Name: name, Capacity: m.capacity, Use: l.usage(name, ""), Strangers: m.strangers})
	}
	return hs
}

// Jobs returns every job, by name.
func (l *Ledger) Jobs() (js []JobStatus) {
	for _, j := range l.inOrder() {
		s := JobStatus{Name: j.Name, Servers: slices.Clone(j.Servers), Workers: slices.Clone(j.Workers), Step: j.step,
			Use: maps.Clone(j.use), Order: j.order, Expires: j.expires, Last: j.answer}
		if j.grant != nil {
			s.Mode, s.Extra = j.grant.mode, maps.Clone(j.grant.extra)
		}
		for _, p := range j.parts {
			s.For = append(s.For, p.forJob)
		}
		slices.Sort(s.For)
		s.For = slices.Compact(s.For)
		js = append(js, s)
	}
	return js
}
