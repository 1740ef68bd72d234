package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/allreduce"
	"star/coord/engine"
	"star/modes"
	"star/ps/rule"
)

// Host is a machine.
type Host struct {
	Name    string
	Workers []star.Worker
	Servers int // shards

	CPUs   float64 // CPUs; 0: enough for all
	Others float64 // CPUs that threads of other processes would use, if they got them

	Bandwidth float64       // of its link, bytes a second in each direction; 0: no limit
	Latency   time.Duration // of its link: half the way to another host
}

// Squeeze divides the bandwidth of a host's link by Factor for a time: another process uses it.
type Squeeze struct {
	Host     int
	From, To time.Duration
	Factor   float64 // above 1
}

// Network is what Config.Times does not say: machines that workers and shards share, and the links between them.
// With one, Times says what loading and computing take on an idle host; what gradients and parameters take follows
// from bytes and links.
//
//	pull ──► load ──► compute ──► push ──► stored by every shard ──► arrival ──► (firing) ──► every shard: queue, update ──► pull
//	links             processors  links    latency                               latency      processors
//
// Links and processors are shared by the max-min rule. Every shard has an equal part of the parameters, makes one
// update after the other, and sends parameters when it is through. The coordinator is on the host of the first
// shard.
//
// In an all-reduce (Config.Ring) there are no shards: members exchange by the schedule of package allreduce, each
// rank step by step, riders send to the first member of the round and get from it.
type Network struct {
	Hosts   []Host
	Threads float64 // processors that a worker occupies while it computes; 0 means 1
	Update  float64 // processor-seconds that a shard needs for a byte of each gradient in an update
	Core    float64 // bytes a second between all hosts together; 0: no limit
	Squeeze []Squeeze
}

// Ring is an all-reduce.
type Ring struct {
	// Algorithm of the exchange; auto chooses by Model, or by the slowest link of a Network. Not the hierarchies,
	// and only Ring, HalvingDoubling, BinomialTree and DoubleTree's and RecursiveDoubling's schedules.
	Algorithm allreduce.Algorithm

	// Model says what an exchange of Config.Bytes takes where there is no Network. nil means allreduce.DefaultModel.
	Model *allreduce.Model
}

// byEngine says whether an engine decides.
func (c *Config) byEngine() bool {
	if c.Ring != nil {
		return c.Engine || ringPlan(c.Plan) != nil && engine.RingPlan(c.Plan) == nil
	}
	return c.Engine || c.Plan.Parents != nil || onlyEngine(c.Plan)
}

// onlyEngine reports whether only the engine of parameter servers simulates p: it decides outer steps and graces.
func onlyEngine(p modes.Plan) bool { return p.Outer.Kind != rule.OuterMean || p.Grace > 0 }

// Check reports whether n is a network for that number of workers.
func (n *Network) Check(workers int, ring bool) error {
	home := make([]int, workers)
	servers := 0
	for i, h := range n.Hosts {
		switch {
		case h.Servers < 0 || !(h.CPUs >= 0) || !(h.Others >= 0) || !(h.Bandwidth >= 0) || h.Latency < 0:
			return fmt.Errorf("sim: host %d (%s): servers %d, cpus %v, others %v, bandwidth %v, latency %v: none may be negative", i, h.Name, h.Servers, h.CPUs, h.Others, h.Bandwidth, h.Latency)
		case math.IsInf(h.CPUs+h.Others+h.Bandwidth, 0):
			return fmt.Errorf("sim: host %d (%s): an infinite number: leave cpus or bandwidth away, which means no limit", i, h.Name)
		}
		servers += h.Servers
		for _, w := range h.Workers {
			if w < 0 || int(w) >= workers {
				return fmt.Errorf("sim: host %d (%s): worker %d is not in 0..%d", i, h.Name, w, workers-1)
			}
			if home[w]++; home[w] > 1 {
				return fmt.Errorf("sim: host %d (%s): worker %d is on two hosts", i, h.Name, w)
			}
		}
	}
	switch w := slices.Index(home, 0); {
	case w >= 0:
		return fmt.Errorf("sim: worker %d is on no host", w)
	case servers == 0 && !ring:
		return fmt.Errorf("sim: no host has a server: give one of them servers: 1")
	case servers > 0 && ring:
		return fmt.Errorf("sim: %d servers: an all-reduce has none", servers)
	case !(n.Threads >= 0 && n.Update >= 0 && n.Core >= 0) || math.IsInf(n.Threads+n.Update+n.Core, 0):
		return fmt.Errorf("sim: threads %v, update %v, core %v: want numbers of at least 0", n.Threads, n.Update, n.Core)
	}
	for i, q := range n.Squeeze {
		if q.Host < 0 || q.Host >= len(n.Hosts) || !(q.Factor > 1) || q.To <= q.From || math.IsInf(q.Factor, 0) {
			return fmt.Errorf("sim: squeeze %d: host %d by %v from %v to %v: want one of %d hosts, a factor above 1 and a time", i, q.Host, q.Factor, q.From, q.To, len(n.Hosts))
		}
	}
	return nil
}

// none is a resource that does not limit.
const none = -1

// network is a Network in a run.
type network struct {
	Network
	r      *run
	fluid  fluid
	number int // of the newest event of fluid
	core   int
	hosts  []place
	shards []shard
	home   []int // host of each worker
	at     []iteration
	ring   *exchange // on its way
}

// place is a host's resources.
type place struct {
	up, down, cpu int
}

// shard makes updates in order.
type shard struct {
	host  int
	bytes float64
	queue []job
	busy  bool
}

// job is an update that a shard is to make, and the workers that then get the parameters.
type job struct {
	work     float64
	to       []star.Worker
	attempts []int // of each: a worker that has left since then gets nothing
}

// iteration is where a worker is.
type iteration struct {
	attempt  int           // goes up when the worker leaves
	missing  int           // slices on the way
	released time.Duration // by the coordinator
	pull     time.Duration
	exchange time.Duration // the last one of its ring
	ended    time.Duration // computing
	pushed   time.Duration
	transit  time.Duration // of the gradient
	before   time.Duration // of the one before, which is reported with this one's record
	halt     bool          // it was told to stop
}

func newNetwork(r *run, n Network) *network {
	bytes := float64(r.Bytes)
	if n.Threads == 0 {
		n.Threads = 1
	}
	net := &network{Network: n, r: r, core: none, home: make([]int, len(r.workers)), at: make([]iteration, len(r.workers))}
	limited := func(c float64) int {
		if c == 0 {
			return none
		}
		return net.fluid.resource(c)
	}
	net.core = limited(n.Core)
	servers := 0
	for _, h := range n.Hosts {
		servers += h.Servers
	}
	for i, h := range n.Hosts {
		p := place{up: limited(h.Bandwidth), down: limited(h.Bandwidth), cpu: limited(h.CPUs)}
		net.hosts = append(net.hosts, p)
		for _, w := range h.Workers {
			net.home[w] = i
		}
		for range h.Servers {
			net.shards = append(net.shards, shard{host: i, bytes: bytes / float64(servers)})
		}
		if h.Others > 0 && p.cpu != none {
			net.fluid.active = append(net.fluid.active, &activity{left: math.Inf(1), most: h.Others, weight: h.Others, uses: []int{p.cpu}, worker: -1})
		}
	}
	for _, q := range n.Squeeze {
		for _, link := range [2]int{net.hosts[q.Host].up, net.hosts[q.Host].down} {
			if link == none {
				continue
			}
			r.after(q.From, func(at time.Duration) error { return net.squeeze(at, link, 1/q.Factor) })
			r.after(q.To, func(at time.Duration) error { return net.squeeze(at, link, q.Factor) })
		}
	}
	return net
}

func (n *network) squeeze(at time.Duration, link int, by float64) error {
	n.fluid.advance(at)
	n.fluid.capacity[link] *= by
	n.changed()
	return nil
}

// changed finds the new rates, and when the first activity ends.
func (n *network) changed() {
	n.fluid.share()
	n.number++
	if at, ok := n.fluid.next(); ok {
		n.r.agenda.add(event{at: at, kind: flow, worker: int32(n.number)})
	}
}

// flows goes on at the time of an event of the fluid; one that is not the newest has been overtaken.
func (n *network) flows(e event) error {
	if int(e.worker) != n.number {
		return nil
	}
	n.fluid.advance(e.at)
	done := n.fluid.ended()
	n.changed()
	for _, a := range done {
		if err := a.done(e.at); err != nil {
			return err
		}
	}
	return nil
}

// add begins an activity. One that nothing limits takes no time.
func (n *network) add(at time.Duration, a *activity) {
	if a.left <= 0 || len(a.uses) == 0 && math.IsInf(a.most, 1) {
		n.r.after(at, a.done)
		return
	}
	n.fluid.advance(at)
	n.fluid.active = append(n.fluid.active, a)
	n.changed()
}

// delay is the time that a word takes between hosts.
func (n *network) delay(from, to int) time.Duration {
	if from == to {
		return 0
	}
	return n.Hosts[from].Latency + n.Hosts[to].Latency
}

// send carries bytes between hosts, for a worker. What stays on a host takes no time.
func (n *network) send(at time.Duration, from, to int, bytes float64, w star.Worker, done func(at time.Duration) error) {
	attempt := n.at[w].attempt
	end := func(at time.Duration) error {
		n.r.after(at+n.delay(from, to), func(at time.Duration) error {
			if n.at[w].attempt != attempt {
				return nil
			}
			return done(at)
		})
		return nil
	}
	a := &activity{left: bytes, most: math.Inf(1), weight: 1, worker: int(w), done: end}
	if from != to {
		for _, r := range [3]int{n.hosts[from].up, n.hosts[to].down, n.core} {
			if r != none {
				a.uses = append(a.uses, r)
			}
		}
	}
	n.add(at, a)
}

// fired has every shard make an update of that many gradients, and send the parameters to the
// released workers.
func (n *network) fired(at time.Duration, gradients int, to []star.Worker) {
	j := job{to: slices.Clone(to)}
	for _, w := range to {
		n.at[w].released, n.at[w].missing = at, len(n.shards)
		j.attempts = append(j.attempts, n.at[w].attempt)
	}
	for i := range n.shards {
		s := &n.shards[i]
		j := j
		j.work = float64(gradients) * s.bytes * n.Update
		n.r.after(at+n.delay(n.shards[0].host, s.host), func(at time.Duration) error {
			s.queue = append(s.queue, j)
			n.serve(at, s)
			return nil
		})
	}
}

// serve begins the next update of a shard that has nothing to do.
func (n *network) serve(at time.Duration, s *shard) {
	if s.busy || len(s.queue) == 0 {
		return
	}
	j := s.queue[0]
	s.queue = s.queue[1:]
	s.busy = true
	a := &activity{left: j.work, most: 1, weight: 1, worker: -1, done: func(at time.Duration) error {
		s.busy = false
		for i, w := range j.to {
			if n.at[w].attempt == j.attempts[i] {
				bytes := n.r.streams(w).came(s.bytes)
				n.r.result.Bytes += bytes
				n.send(at, s.host, n.home[w], bytes, w, func(at time.Duration) error { return n.pulled(at, w) })
			}
		}
		n.serve(at, s)
		return nil
	}}
	if cpu := n.hosts[s.host].cpu; cpu != none {
		a.uses = []int{cpu}
	}
	n.add(at, a)
}

// pulled is the arrival of a part of the parameters. When it was the last one, w begins.
func (n *network) pulled(at time.Duration, w star.Worker) error {
	if n.at[w].missing--; n.at[w].missing > 0 {
		return nil
	}
	return n.begin(at, w)
}

// begin has w begin an iteration, for which it has the parameters.
func (n *network) begin(at time.Duration, w star.Worker) error {
	m, i := &n.r.workers[w], &n.at[w]
	i.pull = at - i.released
	if n.r.sharded != nil {
		n.r.sharded.fed(at, w, false)
	}
	m.began, m.spent, m.samples = at, Spent{}, 0
	n.r.streams(w).begins(at, i.ended)
	if m.part > 0 {
		n.r.enter(at, w)
	}
	return n.step(at, w, 0)
}

// step makes the k-th step, of those that w makes by itself, or the whole.
func (n *network) step(at time.Duration, w star.Worker, k int) error {
	m := &n.r.workers[w]
	samples := m.planned / max(1, int(m.local))
	s := n.r.Times.Spend(w, m.tick()+int64(k), at, float64(samples)/n.r.equal)
	if s.Load+s.Compute <= 0 || s.Push < 0 {
		return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, s.Load+s.Compute)
	}
	m.spent.Load += s.Load
	m.spent.Push = s.Push
	m.full = s.Compute
	attempt := n.at[w].attempt
	n.r.after(at+s.Load-n.r.streams(w).spend(s.Load), func(at time.Duration) error {
		if n.at[w].attempt != attempt {
			return nil
		}
		return n.part(at, w, k, 0)
	})
	return nil
}

// part computes the i-th part of a batch, or all of it, on the processors of the host.
func (n *network) part(at time.Duration, w star.Worker, k, i int) error {
	m := &n.r.workers[w]
	parts := 1
	if m.micro > 0 {
		parts = min(int(m.micro), m.planned)
	}
	if m.part > 0 {
		more := i == 0
		if !more {
			var err error
			if more, err = n.r.another(at, w); err != nil {
				return err
			}
		}
		if parts = i; more {
			parts = i + 1
		}
	}
	if i == parts || i > 0 && m.part == 0 && (m.spent.Compute > m.limit || n.at[w].halt) {
		if k+1 < int(m.local) {
			return n.step(at, w, k+1)
		}
		return n.computed(at, w)
	}
	total := m.planned / max(1, int(m.local))
	samples := (i+1)*total/parts - i*total/parts
	if m.part > 0 {
		samples = int(m.part)
	}
	work := m.full.Seconds() * float64(samples) / float64(total)
	if m.part > 0 {
		work = n.r.partTakes(w).Seconds()
	}
	early := n.r.streams(w).spend(time.Duration(work * float64(time.Second)))
	a := &activity{left: (work - early.Seconds()) * n.Threads, most: n.Threads, weight: n.Threads, worker: int(w), done: func(end time.Duration) error {
		m.spent.Compute += early + end - at
		m.samples += samples
		return n.part(end, w, k, i+1)
	}}
	if cpu := n.hosts[n.home[w]].cpu; cpu != none {
		a.uses = []int{cpu}
	}
	n.add(at, a)
	return nil
}

// computed sends w's gradient to every shard; a member of a ring says that it is ready, a rider sends it to a member.
func (n *network) computed(at time.Duration, w star.Worker) error {
	m, i := &n.r.workers[w], &n.at[w]
	i.ended = at
	i.pushed = at + m.spent.Push
	if n.r.Ring != nil {
		to := n.carrier(w)
		if to == none {
			m.due = i.pushed
			n.r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
			return nil
		}
		n.toHost(w, to)
		return nil
	}
	if s := n.r.sharded; s != nil && s.inner(w) {
		return s.ready(at, w)
	}
	return n.push(at, w)
}

// push sends w's gradient, and those that have come to it, to its parent in the tree or to every shard.
func (n *network) push(at time.Duration, w star.Worker) error {
	i := &n.at[w]
	i.pushed = at + n.r.workers[w].spent.Push
	if s := n.r.sharded; s != nil && s.at[w].parent != modes.Direct {
		n.toHost(w, n.home[s.at[w].parent])
		return nil
	}
	n.toShards(i.pushed, w, func(at time.Duration, host int) error { return n.stored(at, w, host) })
	return nil
}

// toHost sends w's gradient, which it has pushed by then, to the host of another worker.
func (n *network) toHost(w star.Worker, to int) {
	attempt := n.at[w].attempt
	n.r.after(n.at[w].pushed, func(at time.Duration) error {
		if n.at[w].attempt == attempt {
			n.r.result.Bytes += float64(n.r.Bytes)
			n.send(at, n.home[w], to, float64(n.r.Bytes), w, func(at time.Duration) error { return n.stored(at, w, to) })
		}
		return nil
	})
}

// toShards sends w's gradient to every shard at a time. The host that has the last part says so.
func (n *network) toShards(at time.Duration, w star.Worker, done func(at time.Duration, host int) error) {
	i := &n.at[w]
	i.missing = len(n.shards)
	attempt := i.attempt
	n.r.after(at, func(at time.Duration) error {
		if n.at[w].attempt != attempt {
			return nil
		}
		for s := range n.shards {
			host := n.shards[s].host
			bytes := n.r.streams(w).sent(n.shards[s].bytes)
			n.r.result.Bytes += bytes
			n.send(at, n.home[w], host, bytes, w, func(at time.Duration) error {
				if n.at[w].missing--; n.at[w].missing > 0 {
					return nil
				}
				return done(at, host)
			})
		}
		return nil
	})
}

// stored is called on the host that has the last part of w's gradient. It notifies the coordinator.
func (n *network) stored(at time.Duration, w star.Worker, host int) error {
	m, i := &n.r.workers[w], &n.at[w]
	coordinator := host
	if n.r.Ring == nil {
		coordinator = n.shards[0].host
	}
	i.transit = at - i.pushed
	m.due = at + n.delay(host, coordinator)
	n.r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
	return nil
}

// carrier is the host of the member that carries the gradient of a rider; none: w is no rider.
func (n *network) carrier(w star.Worker) int {
	for _, g := range n.r.plan.Groups {
		if slices.Contains(g.Riders, w) && len(g.Members) > 0 && !slices.Contains(g.Members, w) {
			return n.home[g.Members[0]]
		}
	}
	return none
}

// cancel tells a worker to stop between the parts of its batch.
func (n *network) cancel(at time.Duration, w star.Worker) {
	step, attempt := n.r.workers[w].step, n.at[w].attempt
	n.r.after(at+n.delay(n.shards[0].host, n.home[w]), func(time.Duration) error {
		if n.at[w].attempt == attempt && n.r.workers[w].step == step && n.r.workers[w].busy {
			n.at[w].halt = true
		}
		return nil
	})
}

// leave drops what is done for w. The others of its exchange start it again.
func (n *network) leave(at time.Duration, w star.Worker) error {
	n.at[w].attempt++
	n.fluid.advance(at)
	n.fluid.stop(int(w))
	e := n.ring
	if e == nil || !slices.Contains(e.members, w) {
		n.changed()
		return nil
	}
	e.void, n.ring = true, nil
	for _, v := range e.members {
		n.fluid.stop(int(v)) // of a member that waits in an exchange nothing else is on its way
	}
	n.changed()
	return n.exchange(at, slices.DeleteFunc(e.members, func(v star.Worker) bool { return v == w }), e.all, e.done)
}

// schedules are those of package allreduce that an exchange can follow.
var schedules = map[allreduce.Algorithm]func(n, rank int) allreduce.Schedule{
	allreduce.AlgorithmRing:       allreduce.Ring,
	allreduce.AlgorithmHalving:    allreduce.HalvingDoubling,
	allreduce.AlgorithmDoubling:   allreduce.RecursiveDoubling,
	allreduce.AlgorithmTree:       allreduce.BinomialTree,
	allreduce.AlgorithmDoubleTree: allreduce.DoubleTree,
}

// exchange is an all-reduce on its way: every rank makes its moves one after the other.
type exchange struct {
	n       *network
	members []star.Worker
	of      []allreduce.Schedule
	pos     []int           // of each rank: the move that it is at
	sent    []bool          // of each rank: what that move sends has left
	came    []map[int][]int // of each rank: steps with received parts, by sender
	left    int             // ranks that are not through
	void    bool            // a member has left
	done    func(at time.Duration) error
	all     int64 // bytes
}

// exchange starts one of bytes among members, which are all present.
func (n *network) exchange(at time.Duration, members []star.Worker, bytes int64, done func(at time.Duration) error) error {
	if len(members) < 2 {
		return done(at)
	}
	n.ring = nil
	e := &exchange{n: n, members: slices.Clone(members), left: len(members), done: done, all: bytes, pos: make([]int, len(members)), sent: make([]bool, len(members))}
	slices.Sort(e.members)
	schedule := schedules[n.algorithm(len(members), bytes)]
	for rank := range members {
		e.of = append(e.of, schedule(len(members), rank))
		e.came = append(e.came, map[int][]int{})
	}
	n.ring = e
	for rank := range members {
		if err := e.move(at, rank); err != nil {
			return err
		}
	}
	return nil
}

// algorithm is that of an exchange among that many members, if it is not given: the cheapest by the
// slowest link.
func (n *network) algorithm(members int, bytes int64) allreduce.Algorithm {
	if a := n.r.Ring.Algorithm; a != allreduce.AlgorithmAuto {
		return a
	}
	var m allreduce.Model
	for _, h := range n.Hosts {
		m.Alpha = max(m.Alpha, 2*h.Latency.Seconds())
		if h.Bandwidth > 0 {
			m.Beta = max(m.Beta, 1/h.Bandwidth)
		}
	}
	return m.Choose(members, bytes)
}

// move goes on with a rank's moves as far as it can.
func (e *exchange) move(at time.Duration, rank int) error {
	s := &e.of[rank]
	for e.pos[rank] < len(s.Moves) {
		m := s.Moves[e.pos[rank]]
		if !e.sent[rank] {
			e.sent[rank] = true
			if m.To != allreduce.None {
				bytes := e.bytes(s, m.Send)
				e.n.r.result.Bytes += bytes
				step, to := m.Step, m.To
				e.n.send(at, e.n.home[e.members[rank]], e.n.home[e.members[to]], bytes, e.members[rank], func(at time.Duration) error {
					if e.void {
						return nil
					}
					e.came[to][step] = append(e.came[to][step], rank)
					return e.move(at, to)
				})
			}
		}
		if m.From != allreduce.None {
			i := slices.Index(e.came[rank][m.Step], m.From)
			if i < 0 {
				return nil
			}
			e.came[rank][m.Step] = slices.Delete(e.came[rank][m.Step], i, i+1)
		}
		e.pos[rank]++
		e.sent[rank] = false
	}
	if e.pos[rank] == len(s.Moves) {
		e.pos[rank]++ // once
		if e.left--; e.left == 0 {
			e.n.ring = nil
			return e.done(at)
		}
	}
	return nil
}

func (e *exchange) bytes(s *allreduce.Schedule, sp allreduce.Span) float64 {
	return float64(e.all) * float64(sp.Hi-sp.Lo) / float64(s.Blocks)
}

// ringPlan says whether an all-reduce can do p.
func ringPlan(p modes.Plan) error {
	if len(p.Groups) != 1 || p.Groups[0].Quorum != len(p.Groups[0].Members) || p.MaxLead > 0 || p.Parents != nil || p.AutoTree {
		return fmt.Errorf("sim: mode %v: an all-reduce has one ring with members that all wait for each other, and riders", p)
	}
	return nil
}

// record adds what the worker, and the coordinator, know of the links. A member of a ring does not tell the exchange
// from its wait for the others.
func (n *network) record(r *star.Record) {
	i := &n.at[r.Worker]
	if n.r.Ring != nil && n.carrier(r.Worker) == none {
		r.At, r.Push = i.ended, r.Push+i.exchange
		if !n.r.streams(r.Worker).on {
			r.Push += r.Wait
		}
		r.Wait = 0
		return
	}
	r.At, r.Pull, r.Transit = i.ended, i.pull, i.before
	i.before = i.transit
}
