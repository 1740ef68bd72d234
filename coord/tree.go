package coord

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/runlog"
	"star/transport"
)

// crew is the workers of one tree that one firing has released together. Its top
// reports for all of them, once. A worker without crew reports for itself.
//
//	released ──► report ──► complete: every shard holds it ──► fired together
//	                │
//	                └──► who is not in it is detached, and reports for itself
//
// A gradient is in one place: with its worker until the report that it is in has
// been told, with that report afterwards. Its worker keeps it until it is released, so
// none is lost with whoever passed it on. Of a worker that is gone only the report
// can say whether its gradient was passed on; until then nobody gets its batch again
// (account.ghost). When the top goes, so does the crew: everybody reports for itself.
type crew struct {
	top     star.Worker
	members []star.Worker // by rank
	in      []star.Worker // of the report, the top first; nil: it was not told yet
}

// detachFor is a Detach and whom to tell.
type detachFor struct {
	to  star.Worker
	msg transport.Detach
}

// lead is the worker whose push has the gradient of w.
func (l *ledger) lead(w star.Worker) star.Worker {
	if c := l.accounts[w].crew; c != nil {
		return c.top
	}
	return w
}

// reports are the gradients of a firing, which are in order of rank, as the shards hold
// them: those of a crew as one, with the sum of their weights. A report is the mean of
// its gradients by samples, so that sum is right where a weight goes by samples; with
// ScaleDamped it is as long as all in the report have read the same version, which they
// have unless the plan has changed in between.
func (l *ledger) reports(gs []transport.Gradient) []transport.Gradient {
	if !slices.ContainsFunc(gs, func(g transport.Gradient) bool { return l.accounts[g.Worker].crew != nil }) {
		return gs
	}
	sums := map[star.Worker]float64{}
	for _, g := range gs {
		sums[l.lead(g.Worker)] += float64(g.Weight)
	}
	var out []transport.Gradient
	for w, sum := range sums {
		out = append(out, transport.Gradient{Worker: w, Step: l.accounts[w].step, Weight: float32(sum)})
	}
	slices.SortFunc(out, func(a, b transport.Gradient) int { return int(a.Worker - b.Worker) })
	return out
}

// link makes crews of the workers that o releases, where the plan has them in a tree. To
// those that led their last report, the shards send the parameters; the others get theirs
// from the parent, or have to ask the shards.
func (l *ledger) link(o *order) {
	here := map[star.Worker]bool{}
	below := map[star.Worker][]transport.Child{}
	if l.plan.Parents != nil {
		for _, r := range o.releases {
			here[r.Worker] = l.door(r.Worker)
		}
	}
	for i := range o.releases {
		r := &o.releases[i]
		a := &l.accounts[r.Worker]
		if here[r.Worker] {
			for v := l.plan.Parents[r.Worker]; v != modes.Direct && a.up == modes.Direct; v = l.plan.Parents[v] {
				if here[v] && !l.cut[[2]star.Worker{r.Worker, v}] {
					a.up = v // over the heads of those that are not here
				}
			}
		}
	}
	under := map[star.Worker][]transport.Below{}
	for i := range o.releases {
		r := &o.releases[i]
		a := &l.accounts[r.Worker]
		for v := a.up; v != modes.Direct; v = l.accounts[v].up {
			if len(under[v]) >= transport.MaxBelow { // v could not be told of it, and takes nothing that it was not told of
				a.up = modes.Direct
				break
			}
		}
		if a.up == modes.Direct {
			r.Pull = r.Pull || !a.led
			continue
		}
		below[a.up] = append(below[a.up], transport.Child{Worker: r.Worker, Step: a.step})
		for v := r.Worker; l.accounts[v].up != modes.Direct; v = l.accounts[v].up {
			up := l.accounts[v].up
			under[up] = append(under[up], transport.Below{Child: v, Worker: r.Worker, Step: a.step, Samples: a.count})
		}
	}
	if len(below) == 0 {
		return
	}
	crews := map[star.Worker]*crew{}
	for _, r := range o.releases {
		w := r.Worker
		a := &l.accounts[w]
		if a.up == modes.Direct && below[w] == nil {
			continue
		}
		top := w
		for l.accounts[top].up != modes.Direct {
			top = l.accounts[top].up
		}
		if crews[top] == nil {
			crews[top] = &crew{top: top}
		}
		a.crew = crews[top]
		a.crew.members = append(a.crew.members, w)
		o.branches = append(o.branches, transport.Branch{
			Worker: w, Step: a.step, Parent: int(a.up), Relay: a.up != modes.Direct && !a.led, Children: below[w], Below: under[w],
		})
	}
}

// door says whether w can be in trees.
func (l *ledger) door(w star.Worker) bool { return l.doors != nil && l.doors[w] }

// told notes what is in the report of a crew. It settles who is in it; the others
// report for themselves.
func (l *ledger) told(m transport.Bundle) ([]order, error) {
	l.out = l.out[:0]
	a := &l.accounts[m.Worker]
	c := a.crew
	switch {
	case !a.live || a.parked:
		return nil, fmt.Errorf("worker %d told a report without having been released", m.Worker)
	case c == nil || c.top != m.Worker:
		return nil, fmt.Errorf("worker %d told a report, but is not at the top of a tree", m.Worker)
	case c.in != nil:
		return nil, fmt.Errorf("worker %d told a report of step %d twice", m.Worker, m.Step)
	case m.Step != a.step:
		return nil, fmt.Errorf("worker %d told a report of step %d, expected step %d", m.Worker, m.Step, a.step)
	case len(m.Members) == 0 || m.Members[0].Worker != m.Worker:
		return nil, fmt.Errorf("worker %d told a report in which it is not the first", m.Worker)
	}
	var in []star.Worker
	for _, s := range m.Members {
		if int(s.Worker) >= len(l.accounts) || l.accounts[s.Worker].crew != c || slices.Contains(in, s.Worker) {
			return nil, fmt.Errorf("the report of worker %d step %d has worker %d, whose gradient is not one of it", m.Worker, m.Step, s.Worker)
		}
		if b := &l.accounts[s.Worker]; s.Step != b.step || s.Samples != b.count {
			return nil, fmt.Errorf("the report of worker %d step %d has step %d of worker %d with %d samples, expected step %d with %d",
				m.Worker, m.Step, s.Step, s.Worker, s.Samples, b.step, b.count)
		}
		in = append(in, s.Worker)
	}
	c.in = in
	l.dismiss(c, func(w star.Worker) bool { return !slices.Contains(in, w) })
	l.wake()
	l.complete(m.Worker)
	return l.out, nil
}

// dismiss takes workers out of a crew: they report for themselves. What those had who
// are gone is to be done again.
func (l *ledger) dismiss(c *crew, who func(w star.Worker) bool) {
	var o order
	for _, w := range c.members {
		a := &l.accounts[w]
		if a.crew != c || !who(w) {
			continue
		}
		a.crew = nil
		if a.ghost {
			a.ghost = false
			l.redo = append(l.redo, Span{a.start, a.count})
		}
		if a.live {
			o.detached = append(o.detached, detachFor{w, transport.Detach{Worker: w, Step: a.step}})
		}
	}
	if len(o.detached) > 0 {
		l.out = append(l.out, o)
	}
}

// part takes leave of a worker that had a batch and was in a crew.
func (l *ledger) part(w star.Worker, waiting bool) {
	a := &l.accounts[w]
	c := a.crew
	lives := func(v star.Worker) bool { return l.accounts[v].live }
	switch {
	case waiting && slices.ContainsFunc(c.in, lives):
		a.ghost = true // the sum of which it is a part will be applied
	case waiting:
		l.throwAway(c.top)
		fallthrough
	case c.top == w: // nobody else has the report
		a.ghost = true
		l.dismiss(c, func(star.Worker) bool { return true })
	default:
		a.ghost = true
		if !a.arrived {
			a.norm2 = math.NaN() // it did not say
		}
		if c.in == nil && a.up != modes.Direct && lives(a.up) {
			l.out = append(l.out, order{detached: []detachFor{{a.up, transport.Detach{Worker: w, Step: a.step}}}})
		}
	}
}

// throwAway has the shards drop what w pushed, whom nobody waits for any more.
func (l *ledger) throwAway(w star.Worker) { l.throwAwayStep(w, l.accounts[w].step) }

func (l *ledger) throwAwayStep(w star.Worker, step int64) {
	l.seq++
	l.out = append(l.out, order{used: l.used, fire: transport.Fire{
		Seq: l.seq, Version: l.barrier.Version(), Samples: l.used,
		Dropped: []transport.Gradient{{Worker: w, Step: step}},
		Quiet:   []star.Worker{w},
	}})
}

// unreachable notes that w could not hand its gradient of a step to its parent. The
// parent goes on without it, in later steps too.
func (l *ledger) unreachable(w star.Worker, step int64) []order {
	l.out = l.out[:0]
	a := &l.accounts[w]
	if !a.live || a.parked || step != a.step || a.crew == nil || a.up == modes.Direct {
		return nil
	}
	if l.cut == nil {
		l.cut = map[[2]star.Worker]bool{}
	}
	l.cut[[2]star.Worker{w, a.up}] = true
	if a.crew.in == nil && l.accounts[a.up].live {
		l.out = append(l.out, order{detached: []detachFor{{a.up, transport.Detach{Worker: w, Step: step}}}})
	}
	return l.out
}

// owes says whether w is the one who has to get a gradient to the shards, and has said
// that it did, but some lack it.
func (l *ledger) owes(w star.Worker) bool {
	a := &l.accounts[w]
	return a.arrived && !a.waiting && a.nstored < l.shards && l.lead(w) == w
}

// holdsUp says what is missing of worker w, which is computing or on the way.
func (l *ledger) holdsUp(w star.Worker) string {
	a := &l.accounts[w]
	switch top := l.lead(w); {
	case !a.arrived:
		return fmt.Sprintf("worker %d step %d", w, a.step)
	case top != w:
		return fmt.Sprintf("the report of worker %d with the gradient of worker %d step %d", top, w, a.step)
	case a.nstored < l.shards:
		return fmt.Sprintf("the gradient of worker %d step %d at shards %v", w, a.step, a.lacking())
	default:
		return fmt.Sprintf("the others in the report of worker %d step %d", w, a.step)
	}
}

// treePlan says whether the job can have the tree of p.
func treePlan(p modes.Plan) error {
	switch {
	case !p.AutoTree:
		return nil
	case !treeable(p):
		return fmt.Errorf("mode %v: an automatic tree needs a mode of one group without riders, such as ssgd or x=K", p)
	}
	return nil
}

// treeNeeds says what is wrong if worker w, which says hello, is in the tree of p and
// others cannot reach it.
func treeNeeds(p modes.Plan, w int, hello transport.Hello) error {
	if hello.Addr != "" || p.Parents == nil {
		return nil
	}
	if p.Parents[w] == modes.Direct && !slices.Contains(p.Parents, star.Worker(w)) {
		return nil
	}
	return fmt.Errorf("mode %v has worker %d in a tree, but it opened no place where others bring gradients: it listens beyond loopback only with STAR_TOKEN, certificates or --insecure", p, w)
}

// branch tells a worker its place in a tree.
func (c *Coordinator) branch(m transport.Branch) {
	p := c.workers[m.Worker]
	if p == nil || p.gone {
		return
	}
	if m.Parent >= 0 {
		if q := c.workers[m.Parent]; q != nil {
			m.Door = q.hello.Addr
		}
	}
	c.send(p, func() error { return transport.Send(p.conn, m, nil) })
}

// detach tells a worker that a gradient goes another way.
func (c *Coordinator) detach(d detachFor) {
	p := c.workers[d.to]
	if p == nil || p.gone {
		return
	}
	if d.to == d.msg.Worker {
		p.pushed = time.Now() // it pushes now
	}
	c.send(p, func() error { return transport.Send(p.conn, d.msg, nil) })
}

// fromTree handles what only workers of trees say.
func (c *Coordinator) fromTree(p *peer, e event) error {
	if c.ledger == nil || c.ledger.ring != nil {
		return c.drop(p, fmt.Errorf("unexpected frame %v from a worker", e.kind))
	}
	if e.kind == transport.KindFault {
		c.log.Warn("a worker cannot reach its parent in the tree", "at", p.conn.Peer(), "step", e.fault.Generation, "parent", e.fault.Suspect, "reason", e.fault.Reason)
		return c.carry(c.ledger.unreachable(star.Worker(p.rank), e.fault.Generation))
	}
	orders, err := c.ledger.told(e.bundle)
	if err != nil {
		return c.drop(p, err)
	}
	return c.carry(orders)
}

// autoTree keeps a tree that fits what was measured.
type autoTree struct {
	keeper modes.TreeKeeper
	own    []time.Duration // by worker: mean time to compute a gradient; 0: not known
	rate   []float64       // by worker: the highest rate seen at which it sent, bytes per second
	use    []float64       // by worker: mean bytes per second, in and out
	seen   []int           // by worker: records

	carried [][linkRates]float64 // by worker: the last rates at which its way to the shards carried bytes, as its kernel says
}

// linkRates is how many records of a worker say what its way carries: the kernel's word is of one round trip.
const linkRates = 8

func newAutoTree(rule modes.TreeRule, workers int) *autoTree {
	return &autoTree{
		keeper: modes.TreeKeeper{Rule: rule}, own: make([]time.Duration, workers),
		rate: make([]float64, workers), use: make([]float64, workers), seen: make([]int, workers),
		carried: make([][linkRates]float64, workers),
	}
}

// enough is how many records of every worker there must be.
const enough = 5

// observe takes in a record.
func (t *autoTree) observe(r star.Record) {
	const fresh = 0.2 // weight of the newest
	mean := func(old, now float64) float64 {
		if t.seen[r.Worker] == 0 {
			return now
		}
		return old + fresh*(now-old)
	}
	w := r.Worker
	t.own[w] = time.Duration(mean(float64(t.own[w]), float64(r.Own())))
	if r.Push > 0 {
		t.rate[w] = max(t.rate[w], r.NetOut/r.Push.Seconds())
	}
	if d := r.Iteration(); d > 0 {
		t.use[w] = mean(t.use[w], (r.NetIn+r.NetOut)/d.Seconds())
	}
	if v, ok := r.Telemetry.Get(star.LinkRate); ok {
		t.carried[w][t.seen[w]%linkRates] = v
	}
	t.seen[w]++
}

// load is what the tree is decided by; false: it is not known yet.
//
// The time of an iteration is what it takes to compute, not what passed: when the links
// are full the transfers take longer, so the time that passed would say that they are
// just full, whatever the demand. Where everybody waits for everybody it is the slowest
// worker's, else the harmonic mean, which gives the rate of gradients.
func (c *Coordinator) treeLoad(t *autoTree) (modes.TreeLoad, bool) {
	l := modes.TreeLoad{
		Bytes: 4 * c.hello.Params, Spare: make([]float64, len(c.workers)), Hosts: make([]string, len(c.workers)), Able: make([]bool, len(c.workers)),
	}
	var slowest, rates float64
	n := 0
	for w, p := range c.workers {
		if p == nil || p.gone {
			continue
		}
		if t.seen[w] < enough {
			return l, false
		}
		own := max(t.own[w].Seconds(), 1e-6)
		slowest, rates, n = max(slowest, own), rates+1/own, n+1
		l.Spare[w] = max(t.rate[w]-t.use[w], 0)
		l.Hosts[w] = c.site(p)
		if c.cfg.Tree.Capacity <= 0 && c.beside(p) {
			continue // nothing of it goes over a link, neither alone nor in a tree
		}
		if l.Able[w] = c.ledger.door(star.Worker(w)); !l.Able[w] {
			l.Others++
		}
	}
	if n == 0 {
		return l, false
	}
	cycle := float64(n) / rates
	if g := c.ledger.plan.Groups[0]; g.Quorum == len(g.Members) {
		cycle = slowest
	}
	l.Cycle = time.Duration(cycle * float64(time.Second))
	return l, true
}

// growTree lets the tree follow the load.
func (c *Coordinator) growTree() error {
	if c.auto == nil || c.ledger == nil || c.final {
		return nil
	}
	load, ok := c.treeLoad(c.auto)
	if !ok || !treeable(c.ledger.plan) || !c.capacity() {
		return nil
	}
	k := &c.auto.keeper
	now := c.ledger.plan
	flat := now.Clone()
	flat.Parents = nil
	v, why := k.Seen(c.elapsed(), c.ledger.used, c.ledger.version(), fmt.Sprint(flat, load.Able, load.Others))
	if v != nil {
		at := c.elapsed()
		c.cfg.RunLog.Write(at, runlog.Gain{Plan: now.String(), Predicted: runlog.Number(v.Predicted), Seen: runlog.Number(v.Seen), Reverted: v.Reverted})
		c.log.Info("gain", "mode", now.String(), "seen", round4(v.Seen), "reverted", v.Reverted)
	}
	if why != "" {
		why = "back to the tree before: " + why
	} else if k.Ready() {
		_, why = k.Update(load)
	}
	if why == "" {
		return nil
	}
	flat.Parents = slices.Clone(k.Parents())
	return c.install(flat, runlog.Plan{Why: "tree=auto: " + why, Forced: c.tower != nil})
}

// capacity gives the tree's rule what the links carry: what the configuration says, or what was
// measured. What was measured moves by itself, so it counts anew when it has moved by more than the
// band of the rule. It reports false while it is not known.
func (c *Coordinator) capacity() bool {
	if c.cfg.Tree.Capacity > 0 {
		return true
	}
	remote, best := 0, 0.
	for w, p := range c.workers {
		if p != nil && !p.gone && !c.beside(p) {
			remote++
			best = max(best, slices.Max(c.auto.carried[w][:]))
		}
	}
	// What pushes got, waits and all, is the least that the links carry; of a link that is not full a worker's kernel knows better.
	now := 2 * max(c.meter.rate(remote), best) // in and out
	if now <= 0 || remote < 2 {
		return false
	}
	rule := &c.auto.keeper.Rule
	if old := rule.Capacity; now > old*1.25 || now < old/1.25 {
		rule.Capacity = now
	}
	return true
}

// treeable says whether an automatic tree can go with p: everybody in one group.
func treeable(p modes.Plan) bool {
	return len(p.Groups) == 1 && len(p.Groups[0].Riders) == 0 && p.Queue == 0 && p.Local == 0
}

// graft puts the tree that there is now into a plan that says nothing of trees.
func (c *Coordinator) graft(p modes.Plan) modes.Plan {
	if c.auto == nil || p.Parents != nil || !treeable(p) {
		return p
	}
	p = p.Clone()
	p.Parents = slices.Clone(c.auto.keeper.Parents())
	return p
}
