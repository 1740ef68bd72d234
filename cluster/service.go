package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"star/cluster/resource"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Config configures a Service. Zero durations mean the defaults in the comments.
type Config struct {
	Cluster string
	Addr    string // the service's address, for status
	Program string // name and version

	// Hosts are declared capacities of hosts. They override what the processes on a host report. A host with neither
	// has no limit.
	Hosts map[string]resource.Usage

	// Lease is how long a process counts after its last message. Zero: 10 s.
	Lease time.Duration

	// Gather is how long the service waits for the processes of a new job to enlist before it continues with those that
	// have. Zero: 5 s.
	Gather time.Duration

	// Settle and Patience: see resource.LedgerConfig.
	Settle, Patience time.Duration

	Log *slog.Logger
}

// Service keeps the account of one cluster. Create it with New, call Run once, and pass it connections with Accept.
type Service struct {
	cfg    Config
	log    *slog.Logger
	id     string
	since  time.Time
	events chan event
	done   chan struct{}

	// Owned by Run.
	ledger *resource.Ledger
	jobs   map[string]*job
	hosts  map[string]bool // hosts that the ledger knows
}

// job is the service's state of a job, besides the ledger's.
type job struct {
	name    string
	since   time.Time
	members map[memberID]*member
	head    *member // the coordinator's process
	entered bool    // it is in the ledger
	lists   bool    // its members have changed since
	servers []string
	workers []string
	step    int64
	mode    string
	sync    bool
	times   []time.Duration
	order   resource.Order
	asked   int64 // ID of the last granted Ask
	giving  giving
}

// memberID identifies a process of a job.
type memberID struct {
	role string
	rank int
}

// member is the connection of a job's process.
type member struct {
	conn   transport.Conn
	role   string
	out    chan message // to its writer; closed by Run when the member is gone
	job    *job         // nil: not enlisted, or replaced
	enlist wire.Enlist
	usage  wire.Usage
	sent   wire.Order
	obeyed wire.Obeyed
	gone   bool
}

func (m *member) id() memberID { return memberID{m.role, m.enlist.Rank} }

// message is a message that the service sends.
type message interface {
	wire.Message
	send(transport.Conn) error
}

type (
	grant  struct{ wire.Grant }
	order  struct{ wire.Order }
	reject struct{ wire.Reject }
	pong   struct{ wire.Pong }
)

func (m grant) send(c transport.Conn) error  { return transport.Send(c, m.Grant, nil) }
func (m order) send(c transport.Conn) error  { return transport.Send(c, m.Order, nil) }
func (m pong) send(c transport.Conn) error   { return transport.Send(c, m.Pong, nil) }
func (m reject) send(c transport.Conn) error { return transport.Send(c, m.Reject, nil) }

// event is a message of a connection; f is nil if the connection ended, because of err.
type event struct {
	from   *member
	what   any
	err    error
	status chan<- Status
}

// New returns the service of a cluster.
func New(cfg Config) (*Service, error) {
	if err := CheckName(cfg.Cluster); err != nil {
		return nil, err
	}
	for d, v := range map[*time.Duration]time.Duration{&cfg.Lease: 10 * time.Second, &cfg.Gather: 5 * time.Second} {
		if *d <= 0 {
			*d = v
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		cfg: cfg, log: cfg.Log, id: NewID(), since: time.Now(), events: make(chan event, 256), done: make(chan struct{}),
		ledger: resource.NewLedger(resource.LedgerConfig{Lease: cfg.Lease, Settle: cfg.Settle, Patience: cfg.Patience}),
		jobs:   map[string]*job{}, hosts: map[string]bool{},
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Hosts)) {
		if err := s.ledger.SetHost(0, name, cfg.Hosts[name]); err != nil {
			return nil, &Error{exitcode.Usage, err.Error()}
		}
		s.hosts[name] = true
	}
	return s, nil
}

// Error is a failure of the service with its exit code.
type Error struct {
	Exit int
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// ExitCode returns the exit code.
func (e *Error) ExitCode() int { return e.Exit }

// CheckName validates the name of a cluster.
func CheckName(name string) error {
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '@' || r == 0x7f }) {
		return &Error{exitcode.Usage, fmt.Sprintf("cluster %q: want a name of 1 to 64 characters, without spaces and @", name)}
	}
	return nil
}

// Place returns where the service is.
func (s *Service) Place() Place { return Place{Addr: s.cfg.Addr, Since: s.since, ID: s.id} }

// greeting is the payload of the Welcome.
type greeting struct {
	Cluster string        `json:"cluster"`
	Version string        `json:"version"`
	ID      string        `json:"id"`
	Lease   time.Duration `json:"lease_ns"`
}

// sendWithin is the timeout of sending a message.
const sendWithin = 5 * time.Second

// Accept serves one connection, after its Hello, until it ends. It is a handler for transport.Serve.
func (s *Service) Accept(conn transport.Conn, h wire.Hello, _ []byte) {
	defer conn.Close()
	conn.SetWriteDeadline(time.Now().Add(sendWithin))
	switch {
	case h.Service != wire.ServiceCluster:
		transport.Refuse(conn, wire.Reject{Exit: exitcode.Usage, Reason: fmt.Sprintf(
			"%s is the resource service of cluster %q, which has no service %q: a job's coordinator is its first star-ps (--coordinator)", s.cfg.Addr, s.cfg.Cluster, h.Service)})
		return
	case h.Job != s.cfg.Cluster:
		transport.Refuse(conn, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this is cluster %q and not %q: check --cluster", s.cfg.Cluster, h.Job)})
		return
	}
	text, _ := json.Marshal(greeting{s.cfg.Cluster, s.cfg.Program, s.id, s.cfg.Lease})
	if err := transport.Send(conn, wire.Welcome{Rank: -1}, text); err != nil {
		return
	}
	if h.Role == wire.RoleTool {
		s.serveTool(conn)
		return
	}
	m := &member{conn: conn, role: h.Role, out: make(chan message, 64)}
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write(m)
	}()
	err := s.read(m)
	s.post(event{from: m, err: err})
	<-written
}

// site marks where a goroutine of m waits.
func (s *Service) site(what string, m *member) *flightrecorder.Site {
	site := flightrecorder.Open("the service of cluster "+s.cfg.Cluster, what, "", "")
	site.Say(m.conn.Peer())
	return site
}

// write sends Run's messages to m, until m is gone or the service has ended.
func (s *Service) write(m *member) {
	site := s.site("a member to take a message", m)
	defer site.Close()
	for {
		select {
		case x, ok := <-m.out:
			if !ok {
				return
			}
			m.conn.SetWriteDeadline(time.Now().Add(sendWithin))
			site.Begin(-1, sendWithin)
			err := x.send(m.conn)
			site.End()
			if err != nil {
				m.conn.Close() // this ends the reader, which informs Run
			}
			if x.Kind() == wire.KindReject { // the other side disconnects after reading it
				defer time.AfterFunc(time.Second, func() { m.conn.Close() })
			}
		case <-s.done:
			m.conn.Close()
			return
		}
	}
}

// read turns frames into events until the connection ends. It ends a connection that is silent for a lease.
func (s *Service) read(m *member) error {
	site := s.site("the next message of a member", m)
	defer site.Close()
	for {
		m.conn.SetReadDeadline(time.Now().Add(s.cfg.Lease))
		site.Begin(-1, s.cfg.Lease)
		f, err := m.conn.Recv()
		site.End()
		if err != nil {
			return err
		}
		var what any
		switch f.Kind {
		case wire.KindEnlist:
			what, err = wire.ParseEnlist(f.Header)
		case wire.KindUsage:
			what, err = wire.ParseUsage(f.Header)
		case wire.KindAsk:
			what, err = wire.ParseAsk(f.Header)
		case wire.KindObeyed:
			what, err = wire.ParseObeyed(f.Header)
		case wire.KindYield:
			what, err = wire.ParseYield(f.Header)
		case wire.KindLeave:
			what, err = wire.ParseLeave(f.Header)
		case wire.KindPing:
			what, err = wire.ParsePing(f.Header)
		default:
			err = fmt.Errorf("%v from a member of a job", f.Kind)
		}
		if err != nil {
			return err
		}
		if err := m.conn.Discard(); err != nil {
			return err
		}
		if !s.post(event{from: m, what: what}) {
			return errOver
		}
	}
}

var errOver = errors.New("the service has ended")

func (s *Service) post(e event) bool {
	select {
	case s.events <- e:
		return true
	case <-s.done:
		return false
	}
}

// serveTool answers star cluster status.
func (s *Service) serveTool(conn transport.Conn) {
	for {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		f, err := conn.Recv()
		if err != nil {
			return
		}
		if f.Kind != wire.KindControl {
			s.log.Warn("closing the connection of a tool", "peer", conn.Peer(), "reason", fmt.Sprintf("unexpected %v", f.Kind))
			return
		}
		c, err := wire.ParseControl(f.Header)
		if err == nil {
			err = conn.Discard()
		}
		if err != nil {
			return
		}
		var r wire.Reply
		var body []byte
		if len(c.Args) == 1 && c.Args[0] == "status" {
			st, err := s.Status()
			if err != nil {
				r.Err = err.Error()
			} else {
				body, _ = json.Marshal(st)
			}
		} else {
			r.Err = fmt.Sprintf("unknown command %q; one of: status", strings.Join(c.Args, " "))
		}
		conn.SetWriteDeadline(time.Now().Add(sendWithin))
		if transport.Send(conn, r, body) != nil {
			return
		}
	}
}

// Status asks the service what it knows.
func (s *Service) Status() (Status, error) {
	answer := make(chan Status, 1)
	if !s.post(event{status: answer}) {
		return Status{}, errOver
	}
	select {
	case st := <-answer:
		return st, nil
	case <-s.done:
		return Status{}, errOver
	}
}

// Run keeps the account until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	defer close(s.done) // this ends the connections
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	site := flightrecorder.Open("the service of cluster "+s.cfg.Cluster, "a message of a member, or something to be due", "", "")
	defer site.Close()
	for {
		d := s.wait()
		timer.Reset(d)
		site.Begin(-1, d)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-s.events:
			s.handle(e)
		case <-timer.C:
		}
		site.End()
		s.expire()
	}
}

// now is the ledger's time.
func (s *Service) now() time.Duration { return time.Since(s.since) }

// wait returns how long the service may sleep without messages.
func (s *Service) wait() time.Duration {
	d := time.Minute
	if at, ok := s.ledger.Next(); ok {
		d = min(d, at-s.now())
	}
	for _, j := range s.jobs {
		if j.head != nil && !j.entered {
			d = min(d, s.cfg.Gather-time.Since(j.since))
		}
	}
	return max(d, 10*time.Millisecond)
}

func (s *Service) handle(e event) {
	if e.status != nil {
		e.status <- s.status()
		return
	}
	m := e.from
	if e.what == nil {
		s.lose(m, e.err)
		return
	}
	if m.gone {
		return
	}
	if x, ok := e.what.(wire.Enlist); ok {
		s.enlist(m, x)
		return
	}
	if x, ok := e.what.(wire.Ping); ok {
		s.send(m, pong{wire.Pong{Seq: x.Seq, Sent: x.Sent, Now: time.Now().UnixNano()}})
		return
	}
	if m.job == nil {
		s.expel(m, wire.Reject{Exit: exitcode.Disagree, Reason: "enlist comes first"})
		return
	}
	switch x := e.what.(type) {
	case wire.Usage:
		s.usage(m, x)
	case wire.Ask:
		s.ask(m, x)
	case wire.Yield:
		s.yield(m, x)
	case wire.Obeyed:
		m.obeyed = x
		if x.Err != "" {
			s.log.Warn("job cannot carry out an order", "job", m.job.name, "peer", m.conn.Peer(), "err", x.Err)
		}
	case wire.Leave:
		m.enlist.Actuator = ""
		s.lose(m, fmt.Errorf("left: %s", x.Reason))
	}
}

// send passes a message to m's writer. It disconnects a member that no longer reads.
func (s *Service) send(m *member, x message) {
	if m.gone {
		return
	}
	select {
	case m.out <- x:
	default:
		s.log.Warn("member disconnected: it does not read", "peer", m.conn.Peer())
		m.conn.Close()
	}
}

// expel tells m why, and disconnects it.
func (s *Service) expel(m *member, r wire.Reject) {
	s.send(m, reject{r})
	s.lose(m, errors.New(r.Reason))
}

// lose removes a connection.
func (s *Service) lose(m *member, err error) {
	if m.gone {
		return
	}
	m.gone = true
	close(m.out)
	j := m.job
	if j == nil || j.members[m.id()] != m {
		return
	}
	delete(j.members, m.id())
	s.log.Info("member left", "job", j.name, "role", m.role, "rank", m.enlist.Rank, "host", m.enlist.Host, "why", ended(err))
	if m == j.head {
		j.head = nil
		s.remove(j, "its coordinator's process has left")
	}
	if len(j.members) == 0 {
		delete(s.jobs, j.name)
	}
}

func ended(err error) string {
	if errors.Is(err, io.EOF) {
		return "the connection ended"
	}
	return err.Error()
}

// remove removes a job from the account.
func (s *Service) remove(j *job, why string) {
	if !j.entered {
		return
	}
	j.entered, j.order, j.asked = false, resource.Order{}, 0
	s.log.Info("job removed", "job", j.name, "why", why)
	s.pass(s.ledger.Remove(s.now(), j.name))
	s.tellOrder(j)
}

// enlist assigns a connection to a process of a job.
func (s *Service) enlist(m *member, e wire.Enlist) {
	switch {
	case e.Job == "" || e.Host == "":
		s.expel(m, wire.Reject{Exit: exitcode.Usage, Reason: "enlist: a job and a host need names"})
		return
	case e.Rank < 0 || m.role == wire.RoleWorker && e.Workers > 0 && e.Rank >= e.Workers:
		s.expel(m, wire.Reject{Exit: exitcode.Usage, Reason: fmt.Sprintf("enlist: rank %d of %d", e.Rank, e.Workers)})
		return
	case m.job != nil && (m.enlist.Job != e.Job || m.enlist.Rank != e.Rank):
		s.expel(m, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("enlist: this connection is of job %s, rank %d", m.enlist.Job, m.enlist.Rank)})
		return
	}
	j := s.jobs[e.Job]
	if j == nil {
		j = &job{name: e.Job, members: map[memberID]*member{}, sync: true}
		s.jobs[e.Job] = j
	}
	head := m.role == wire.RoleServer && e.Rank == 0
	if old := j.members[memberID{m.role, e.Rank}]; old != nil && old != m && old.enlist.Life != e.Life {
		// The first process keeps the name: grants for it must not count for another job.
		s.expel(m, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("cluster %q already has a job %s, with %s %d at %s: give each job its own name (--job)",
			s.cfg.Cluster, e.Job, m.role, e.Rank, old.conn.RemoteAddr())})
		return
	}
	again := m.job != nil
	m.enlist, m.job = e, j
	if old := j.members[m.id()]; old != nil && old != m {
		s.log.Info("member returned", "job", j.name, "role", m.role, "rank", e.Rank)
		delete(j.members, m.id())
		old.gone = true
		close(old.out)
		old.conn.Close()
		if old == j.head {
			j.head = nil
			s.remove(j, "its coordinator's process has restarted")
		}
	}
	j.members[m.id()] = m
	m.conn.SetPeer(fmt.Sprintf("%s %d of job %s at %s", m.role, e.Rank, j.name, m.conn.RemoteAddr()))
	if head && j.head == nil {
		j.head, j.since = m, time.Now()
	}
	s.know(e.Host, e.Capacity)
	if !again {
		s.log.Info("member enlisted", "job", j.name, "role", m.role, "rank", e.Rank, "host", e.Host)
	}
	for i, hosts := range [][]string{j.servers, j.workers} {
		if m.role == [...]string{wire.RoleServer, wire.RoleWorker}[i] && e.Rank < len(hosts) && hosts[e.Rank] != e.Host {
			j.lists = true
		}
	}
	s.enter(j, false)
	s.tellMember(j, m)
}

// know makes a host known to the ledger.
func (s *Service) know(name string, c wire.Amounts) {
	if _, declared := s.cfg.Hosts[name]; declared {
		return
	}
	if s.hosts[name] && c == (wire.Amounts{}) {
		return
	}
	capacity := resource.Unlimited
	for _, x := range []struct {
		to   *float64
		from float64
	}{{&capacity.CPU, c.CPU}, {&capacity.NetIn, c.In}, {&capacity.NetOut, c.Out}} {
		if x.from > 0 {
			*x.to = x.from
		}
	}
	if err := s.ledger.SetHost(s.now(), name, capacity); err != nil { // cannot happen: the numbers were checked
		s.log.Error("cannot set a host's capacity", "host", name, "err", err)
		return
	}
	s.hosts[name] = true
}

// enter adds a job to the account when all its processes have enlisted, or their time is over (now).
func (s *Service) enter(j *job, now bool) {
	if j.head == nil || j.entered && !j.lists {
		return
	}
	e := j.head.enlist
	servers, workers := make([]string, max(e.Servers, 1)), make([]string, e.Workers)
	missing := 0
	for r := range servers {
		servers[r] = e.Host
		if m := j.members[memberID{wire.RoleServer, r}]; m != nil {
			servers[r] = m.enlist.Host
		} else {
			missing++
		}
	}
	for r := range workers {
		workers[r] = e.Host
		if m := j.members[memberID{wire.RoleWorker, r}]; m != nil {
			workers[r] = m.enlist.Host
		} else {
			missing++
		}
	}
	if missing > 0 && !now && time.Since(j.since) < s.cfg.Gather {
		return
	}
	orders, err := s.ledger.Register(s.now(), resource.Job{Name: j.name, Servers: servers, Workers: workers, Costs: j.costs(), Fixed: e.Fixed})
	if err != nil {
		s.log.Error("cannot add a job", "job", j.name, "err", err)
		j.since = time.Now() // no immediate retry
		return
	}
	if j.entered && j.asked > 0 && !(slices.Equal(servers, j.servers) && slices.Equal(workers, j.workers)) {
		s.send(j.head, grant{wire.Grant{ID: j.asked, Why: "its processes have moved to other hosts"}})
		j.asked = 0
	}
	j.order, _ = s.ledger.Standing(j.name) // a different order, or none, if the account was replaced
	j.entered, j.lists, j.servers, j.workers = true, false, servers, workers
	s.log.Info("job added", "job", j.name, "servers", len(servers), "workers", len(workers), "missing", missing, "hosts", len(j.hosts()))
	s.pass(orders)
}

// hosts returns the hosts of a job, by name.
func (j *job) hosts() []string {
	hs := slices.Concat(j.servers, j.workers)
	slices.Sort(hs)
	return slices.Compact(hs)
}

// usage records what a member uses. The one of the coordinator's process is the job's report.
func (s *Service) usage(m *member, u wire.Usage) {
	m.usage = u
	j := m.job
	if m != j.head {
		return
	}
	s.enter(j, false)
	j.step, j.mode, j.sync = u.Step, u.Mode, u.Sync
	j.times = u.Times
	if !j.entered {
		return
	}
	r := resource.Report{Job: j.name, Step: u.Step, Use: map[string]resource.Usage{}}
	if len(u.Times) == len(j.workers) {
		r.Times = u.Times
	}
	heard := false
	hosts := map[string]resource.Usage{}
	for _, k := range slices.SortedFunc(maps.Keys(j.members), func(a, b memberID) int {
		if c := strings.Compare(a.role, b.role); c != 0 {
			return c
		}
		return a.rank - b.rank
	}) {
		o := j.members[k]
		if h := o.enlist.Host; o.usage.Seq > 0 && slices.Contains(j.hosts(), h) {
			r.Use[h] = r.Use[h].Plus(amounts(o.usage.Own))
			if o.usage.Host != (wire.Amounts{}) {
				u := amounts(o.usage.Host)
				if c, declared := s.cfg.Hosts[h]; declared { // the rest of the host belongs to others
					u.CPU = max(u.CPU-max(o.enlist.Capacity.CPU-c.CPU, 0), 0)
				}
				hosts[h] = u
			}
			heard = true
		}
	}
	if !heard {
		r.Use = nil
	}
	s.respond(j, r.Use)
	r.Costs = j.learned()
	if err := s.ledger.Report(s.now(), r); err != nil {
		if errors.Is(err, resource.ErrUnknownJob) { // its lease had expired: it is added again
			j.entered = false
			s.enter(j, true)
			return
		}
		s.log.Warn("invalid report ignored", "job", j.name, "err", err)
		return
	}
	for _, h := range slices.Sorted(maps.Keys(hosts)) {
		if err := s.ledger.Measured(s.now(), h, hosts[h]); err != nil {
			s.log.Warn("invalid measurement ignored", "host", h, "err", err)
		}
	}
	s.tellOrder(j) // orders of early workers depend on their times
}

// freed returns what delays free, for a job that has not declared it: a worker that uses U in iterations of T uses
// U·T/(T+d) with a delay of d, so the first moments of delay free U/T per second. It returns nil if the job has
// declared it, or if its workers have not reported their usage yet.
func (j *job) freed() *resource.Costs {
	e := j.head.enlist
	slowest := slices.Max(append(slices.Clone(j.times), 0))
	if e.Freed != (wire.Amounts{}) || slowest == 0 {
		return nil
	}
	var sum resource.Usage
	n := 0
	for k, m := range j.members {
		if k.role == wire.RoleWorker && m.usage.Seq > 1 { // the first report has no rates
			sum = sum.Plus(amounts(m.usage.Own))
			n++
		}
	}
	if n == 0 {
		return nil
	}
	c := j.costs()
	c.Freed = sum.Times(1 / (float64(n) * slowest.Seconds()))
	return &c
}

// costs returns what the job declares; undeclared values are 1.
func (j *job) costs() resource.Costs {
	e := j.head.enlist
	c := resource.Costs{Freed: amounts(e.Freed), Sensitivity: resource.Sensitivity{CPU: e.CostCPU, Net: e.CostNet}}
	if c.Sensitivity.CPU == 0 {
		c.Sensitivity.CPU = 1
	}
	if c.Sensitivity.Net == 0 {
		c.Sensitivity.Net = 1
	}
	return c
}

// ask answers a job that wants to leave SSGD.
func (s *Service) ask(m *member, a wire.Ask) {
	j := m.job
	no := func(why string) {
		s.send(m, grant{wire.Grant{ID: a.ID, Why: why}})
	}
	if m != j.head {
		no("only the coordinator's process may ask")
		return
	}
	s.enter(j, true)
	if !j.entered {
		no("the job is not in the account")
		return
	}
	q := resource.Request{ID: uint64(a.ID), Job: j.name, Mode: a.Mode, Loss: a.Lag}
	bear := j.servers
	if m.enlist.Servers == 0 && len(j.workers) > 0 {
		bear = j.workers
	}
	on := map[string]float64{}
	for _, h := range bear {
		on[h] += 1 / float64(len(bear))
	}
	for _, h := range slices.Sorted(maps.Keys(on)) {
		q.Needs = append(q.Needs, resource.Need{Host: h, Extra: amounts(a.Extra).Times(on[h])})
	}
	answer, orders, err := s.ledger.Request(s.now(), q)
	if err != nil {
		s.log.Warn("invalid request refused", "job", j.name, "err", err)
		no(err.Error())
		return
	}
	if answer.Granted {
		j.asked = a.ID
	}
	s.log.Info("request answered", "job", j.name, "id", a.ID, "mode", a.Mode, "granted", answer.Granted, "why", answer.Why)
	s.send(m, grant{wire.Grant{ID: a.ID, OK: answer.Granted, Lease: s.cfg.Lease, Why: answer.Why}})
	s.pass(orders)
}

// yield takes back what a job no longer needs.
func (s *Service) yield(m *member, y wire.Yield) {
	j := m.job
	if m != j.head || !j.entered || y.ID != j.asked {
		return
	}
	orders, err := s.ledger.Release(s.now(), j.name)
	if err != nil {
		s.log.Warn("job returned a grant that it does not have", "job", j.name, "err", err)
		return
	}
	s.log.Info("grant returned", "job", j.name, "id", y.ID)
	s.pass(orders)
}

// expire removes jobs that were silent for too long, and withdraws grants that turned out to exceed a host's capacity.
func (s *Service) expire() {
	for _, name := range slices.Sorted(maps.Keys(s.jobs)) {
		if j := s.jobs[name]; j.head != nil && !j.entered && time.Since(j.since) >= s.cfg.Gather {
			s.enter(j, true)
		}
	}
	dead, orders := s.ledger.Expire(s.now())
	for _, name := range dead {
		s.log.Info("job removed", "job", name, "why", fmt.Sprintf("silent for %v", s.cfg.Lease))
		if j := s.jobs[name]; j != nil {
			j.entered, j.order = false, resource.Order{}
			if j.head != nil {
				s.send(j.head, grant{wire.Grant{ID: j.asked, Why: "the lease expired"}})
				j.since = time.Now()
			}
			s.tellOrder(j)
		}
	}
	s.pass(orders)
}

// pass forwards the ledger's orders.
func (s *Service) pass(orders []resource.Order) {
	for _, o := range orders {
		j := s.jobs[o.Job]
		if j == nil {
			continue
		}
		s.log.Info("order sent", "job", o.Job, "delay", o.Delay, "early", o.Early, "back", o.Back, "why", o.Why)
		j.order = o
		if o.Back && j.head != nil {
			s.send(j.head, grant{wire.Grant{ID: j.asked, Why: o.Why}})
		}
		s.tellOrder(j)
	}
}

// tellOrder sends every member its current order.
func (s *Service) tellOrder(j *job) {
	for _, m := range j.members {
		s.tellMember(j, m)
	}
}

// steady is the relative change of an early worker's wait above which the worker gets a new order: measured times
// always vary.
const steady = 0.1

// tellMember sends m its order unless it equals the last one sent. Workers do the waiting: a round waits for each of
// them, so a delay of all of them delays the iteration once.
func (s *Service) tellMember(j *job, m *member) {
	if m.role != wire.RoleWorker {
		return
	}
	o := wire.Order{Delay: j.order.Delay, Lease: s.cfg.Lease, Why: j.order.Why}
	if j.order.Early {
		o.Early = early(j.times, m.enlist.Rank)
		if d := (o.Early - m.sent.Early).Abs(); m.sent.Early > 0 && o.Early > 0 && float64(d) < steady*float64(o.Early) {
			o.Early = m.sent.Early
		}
	}
	if o.Delay == m.sent.Delay && o.Early == m.sent.Early {
		return
	}
	o.ID = m.sent.ID + 1
	if o.Delay > 0 || o.Early > 0 {
		o.For = strings.Join(s.beneficiaries(j.name), ", ")
	}
	m.sent = o
	s.send(m, order{o})
}

// early returns how long a worker would only wait for the slowest one.
func early(times []time.Duration, rank int) time.Duration {
	if rank >= len(times) || times[rank] == 0 {
		return 0
	}
	return slices.Max(times) - times[rank]
}

// beneficiaries returns the jobs for which a job is delayed.
func (s *Service) beneficiaries(name string) []string {
	for _, j := range s.ledger.Jobs() {
		if j.Name == name {
			return j.For
		}
	}
	return nil
}

func amounts(a wire.Amounts) resource.Usage {
	return resource.Usage{CPU: a.CPU, NetIn: a.In, NetOut: a.Out}
}
