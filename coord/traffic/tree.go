package traffic

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/modes"
)

// Tree keeps a tree that fits what was measured. Rates are bytes per second. What is known of a
// worker that has left stays: it may come back to the same host.
//
// The zero value makes no tree.
type Tree struct {
	declared bool // the configuration says what the links carry
	keeper   modes.TreeKeeper
	own      []time.Duration // by worker: mean time to compute a gradient; 0: unknown
	rate     []float64       // by worker: the highest rate at which it has sent
	use      []float64       // by worker: mean rate, in and out
	seen     []int           // by worker: records

	carried [][linkRates]float64 // by worker: the last rates at which its way to the shards carried bytes, as its kernel says
}

// linkRates is how many records of a worker say what its way carries: the kernel's value is of one
// round trip.
const linkRates = 8

// NewTree knows nothing yet: it has a tree when there are enough records of every worker. built is
// the tree of the coordinator before; nil: none.
func NewTree(rule modes.TreeRule, workers int, built []star.Worker) Tree {
	t := Tree{
		declared: rule.Capacity > 0, keeper: modes.TreeKeeper{Rule: rule}, own: make([]time.Duration, workers),
		rate: make([]float64, workers), use: make([]float64, workers), seen: make([]int, workers),
		carried: make([][linkRates]float64, workers),
	}
	t.keeper.Resume(built)
	return t
}

// Enabled says whether trees are made.
func (t *Tree) Enabled() bool { return t.seen != nil }

// Parents is the tree that there is now; nil: none.
func (t *Tree) Parents() []star.Worker { return slices.Clone(t.keeper.Parents()) }

// Observe takes in a record. The highest rate at which a worker has sent is taken for what its link
// carries; its use is a mean.
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

// Member is a worker that is in the job now.
type Member struct {
	Worker    int
	Host      string
	Beside    bool // it shares the host with every shard: what it sends goes over no link
	Reachable bool // others can bring it gradients
}

// load is what the tree is decided by, for gradients of that many bytes; false: it is unknown yet.
//
// The time of an iteration is what it takes to compute, not what passed: when the links
// are full the transfers take longer, so the time that passed would say that they are
// just full, whatever the demand. Where all workers wait for each other it is the slowest
// worker's, else the harmonic mean, which gives the rate of gradients.
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
			continue // nothing of it goes over a link, neither alone nor in a tree
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

// capacity gives the rule what the links carry: what the configuration says, or what was measured.
// way is what pushes of that many workers got. What was measured moves by itself, so it is taken only
// when it has moved by more than the band of the rule. It reports false while it is unknown.
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
	// What pushes got, waits included, is the least that the links carry; of a link that is not full
	// a worker's kernel knows better.
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

// Look decides whether the tree of a plan changes, about every second: at is the time since the run
// began, samples and version are how far the job is, bytes those of a gradient, way as in capacity.
//
// seen is what has become of the last change, once that is known. why is the reason for another tree
// (Parents), and empty where it stays: it follows the load, and a tree that has not brought what was
// predicted is taken back.
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
		why = "back to the tree before: " + why
	} else if t.keeper.Ready() {
		_, why = t.keeper.Update(load)
	}
	return seen, why
}
