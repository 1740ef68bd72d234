package traffic

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
)

// Tree keeps a tree that fits the measurements. Rates are bytes per second. Measurements of a worker that has left are
// kept: it may come back to the same host.
//
// The zero value makes no tree.
type Tree struct {
	declared bool // the configuration has the links' capacity
	keeper   modes.TreeKeeper
	own      []time.Duration // by worker: mean time to compute a gradient; 0: unknown
	rate     []float64       // by worker: the highest rate at which it has sent
	use      []float64       // by worker: mean rate, in and out
	seen     []int           // by worker: records

	carried [][linkRates]float64 // by worker: the kernel's last estimates of the rate of its path to the shards
}

// linkRates is how many of a worker's last link rates are kept: the kernel's value is that of one round trip.
const linkRates = 8

// NewTree returns a Tree without measurements: it builds a tree when there are enough records of every worker. built is
// the tree of the previous coordinator; nil without one.
func NewTree(rule modes.TreeRule, workers int, built []star.Worker) Tree {
	t := Tree{
		declared: rule.Capacity > 0, keeper: modes.TreeKeeper{Rule: rule}, own: make([]time.Duration, workers),
		rate: make([]float64, workers), use: make([]float64, workers), seen: make([]int, workers),
		carried: make([][linkRates]float64, workers),
	}
	t.keeper.Resume(built)
	return t
}

// Enabled reports whether trees are made.
func (t *Tree) Enabled() bool { return t.seen != nil }

// Parents returns the present tree; nil without one.
func (t *Tree) Parents() []star.Worker { return slices.Clone(t.keeper.Parents()) }

// Graft puts the present tree into a plan without one. Plans that cannot use a tree stay as they are.
func (t *Tree) Graft(p modes.Plan) modes.Plan {
	if !t.Enabled() || p.Parents != nil || !engine.Treeable(p) {
		return p
	}
	p = p.Clone()
	p.Parents = t.Parents()
	return p
}

// Observe adds a record. The highest rate at which a worker has sent is the estimate of its link's capacity; its use is
// a mean.
func (t *Tree) Observe(r *star.Record) {
	if !t.Enabled() {
		return
	}
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

// Member is a worker that takes part now.
type Member struct {
	Worker    int
	Host      string
	Beside    bool // it is on the host of every shard, so its pushes use no link
	Reachable bool // others can connect to it to send gradients
}

// load is the input for the decision on the tree, for gradients of this size; false if it is not known yet.
//
// The time of an iteration is the computing time, not the elapsed time: on full links the transfers take longer, so the
// elapsed time would always make them look just full, whatever the demand. If all workers wait for each other it is the
// slowest worker's time, otherwise the harmonic mean, which gives the rate of gradients.
func (t *Tree) load(members []Member, bytes int64, together bool) (modes.TreeLoad, bool) {
	n := len(t.seen)
	l := modes.TreeLoad{Bytes: bytes, Spare: make([]float64, n), Hosts: make([]string, n), Able: make([]bool, n)}
	var slowest, rates float64
	for _, m := range members {
		w := m.Worker
		if t.seen[w] < enough {
			return l, false
		}
		own := max(t.own[w].Seconds(), 1e-6)
		slowest, rates = max(slowest, own), rates+1/own
		l.Spare[w] = max(t.rate[w]-t.use[w], 0)
		l.Hosts[w] = m.Host
		if !t.declared && m.Beside {
			continue // it uses no link, neither alone nor in a tree
		}
		if l.Able[w] = m.Reachable; !l.Able[w] {
			l.Others++
		}
	}
	if len(members) == 0 {
		return l, false
	}
	cycle := float64(len(members)) / rates
	if together {
		cycle = slowest
	}
	l.Cycle = time.Duration(cycle * float64(time.Second))
	return l, true
}

// capacity sets the capacity of the links in the rule: from the configuration, or as measured. way is the rate that
// pushes of this number of workers achieved. A measurement varies, so it replaces the capacity only if it differs by
// more than the band of the rule. capacity returns false while it is unknown.
func (t *Tree) capacity(members []Member, way func(workers int) float64) bool {
	if t.declared {
		return true
	}
	far, best := 0, 0.
	for _, m := range members {
		if !m.Beside {
			far++
			best = max(best, slices.Max(t.carried[m.Worker][:]))
		}
	}
	// The rate of the pushes, including waits, is a lower bound of the links' capacity. For a link that is not full the
	// estimate of a worker's kernel is better.
	now := 2 * max(way(far), best) // in and out
	if now <= 0 || far < 2 {
		return false
	}
	rule := &t.keeper.Rule
	if old := rule.Capacity; now > old*1.25 || now < old/1.25 {
		rule.Capacity = now
	}
	return true
}

// Look decides whether the tree of a plan changes. It is called about every second: at is the time since the run began,
// samples and version are the progress of the job, bytes is the size of a gradient, way as in capacity.
//
// seen is the result of the last change, once it is known. why is the reason for another tree (Parents); empty if the
// tree stays. The tree follows the load, and a tree without the predicted gain is undone.
func (t *Tree) Look(at time.Duration, samples, version int64, plan modes.Plan, members []Member, bytes int64, way func(workers int) float64) (seen *modes.Verdict, why string) {
	g := plan.Groups[0]
	load, ok := t.load(members, bytes, g.Quorum == len(g.Members))
	if !ok || !t.capacity(members, way) {
		return nil, ""
	}
	flat := plan.Clone()
	flat.Parents = nil
	seen, why = t.keeper.Seen(at, samples, version, fmt.Sprint(flat, load.Able, load.Others))
	if why != "" {
		why = "back to the previous tree: " + why
	} else if t.keeper.Ready() {
		_, why = t.keeper.Update(load)
	}
	return seen, why
}
