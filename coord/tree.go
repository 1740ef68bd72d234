package coord

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// branch tells a worker its place in a tree. The engine knows ranks only; the parent's address is
// added here.
func (c *Coordinator) branch(m wire.Branch) {
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

// detach tells a worker that a gradient goes another way. A worker whose own gradient it is pushes
// it now, so the time in which shards must hold it begins anew.
func (c *Coordinator) detach(d engine.To[wire.Detach]) {
	p := c.workers[d.Worker]
	if p == nil || p.gone {
		return
	}
	if d.Worker == d.Msg.Worker {
		p.pushed = time.Now() // it pushes now
	}
	c.send(p, func() error { return transport.Send(p.conn, d.Msg, nil) })
}

// autoTree keeps a tree that fits what was measured. Rates are bytes per second. What is known of a
// worker that has left stays: it may come back to the same host.
type autoTree struct {
	keeper modes.TreeKeeper
	own    []time.Duration // by worker: mean time to compute a gradient; 0: not known
	rate   []float64       // by worker: the highest rate seen at which it sent, bytes per second
	use    []float64       // by worker: mean bytes per second, in and out
	seen   []int           // by worker: records

	carried [][linkRates]float64 // by worker: the last rates at which its way to the shards carried bytes, as its kernel says
}

// linkRates is how many records of a worker say what its way carries: the kernel's word is of one
// round trip.
const linkRates = 8

// newAutoTree knows nothing yet: it has a tree when every worker has been heard of often enough.
func newAutoTree(rule modes.TreeRule, workers int) *autoTree {
	return &autoTree{
		keeper: modes.TreeKeeper{Rule: rule}, own: make([]time.Duration, workers),
		rate: make([]float64, workers), use: make([]float64, workers), seen: make([]int, workers),
		carried: make([][linkRates]float64, workers),
	}
}

// enough is how many records of every worker there must be.
const enough = 5

// observe takes in a record. The highest rate at which a worker has sent is taken for what its link
// carries; its use is a mean.
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
		if l.Able[w] = c.engine.Worker(star.Worker(w)).Reachable; !l.Able[w] {
			l.Others++
		}
	}
	if n == 0 {
		return l, false
	}
	cycle := float64(n) / rates
	if g := c.engine.Plan().Groups[0]; g.Quorum == len(g.Members) {
		cycle = slowest
	}
	l.Cycle = time.Duration(cycle * float64(time.Second))
	return l, true
}

// growTree lets the tree follow the load. A tree that has not brought what it was to is taken back,
// like a plan of the pilot. An error ends the job.
func (c *Coordinator) growTree() error {
	if c.auto == nil || c.engine == nil || c.final {
		return nil
	}
	load, ok := c.treeLoad(c.auto)
	if !ok || !engine.Treeable(c.engine.Plan()) || !c.capacity() {
		return nil
	}
	k := &c.auto.keeper
	now := c.engine.Plan()
	flat := now.Clone()
	flat.Parents = nil
	v, why := k.Seen(c.elapsed(), c.engine.State().Used, c.engine.State().Version, fmt.Sprint(flat, load.Able, load.Others))
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
	return c.install(flat, runlog.Plan{Why: "tree=auto: " + why, Forced: c.pilot != nil})
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
	// What pushes got, waits and all, is the least that the links carry; of a link that is not full
	// a worker's kernel knows better.
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

// graft puts the tree that there is now into a plan that says nothing of trees. Plans in which no
// reports can go up a tree stay as they are.
func (c *Coordinator) graft(p modes.Plan) modes.Plan {
	if c.auto == nil || p.Parents != nil || !engine.Treeable(p) {
		return p
	}
	p = p.Clone()
	p.Parents = slices.Clone(c.auto.keeper.Parents())
	return p
}
