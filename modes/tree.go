package modes

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"star"
)

// Direct is the parent of a worker that reports to the parameter servers itself.
const Direct star.Worker = -1

// Reports is how many gradients the parameter servers receive for one of every worker 0..n-1: one for each
// worker without a parent.
func (p Plan) Reports(n int) int {
	if p.Parents == nil {
		return n
	}
	k := 0
	for _, up := range p.Parents {
		if up == Direct {
			k++
		}
	}
	return k
}

// HasTree reports whether a worker of p has a parent.
func (p Plan) HasTree() bool {
	return slices.ContainsFunc(p.Parents, func(w star.Worker) bool { return w != Direct })
}

// sameTree reports whether every worker has the same parent in p and q.
func (p Plan) sameTree(q Plan) bool {
	if !p.HasTree() || !q.HasTree() {
		return p.HasTree() == q.HasTree()
	}
	return slices.Equal(p.Parents, q.Parents)
}

// validateTree returns an error if the tree of p is invalid. The groups of p are valid for n workers.
func (p Plan) validateTree(n int) error {
	switch {
	case p.Parents == nil:
		return nil
	case p.AutoTree:
		return errors.New("modes: a tree that is both given and automatic: choose one")
	case len(p.Parents) != n:
		return fmt.Errorf("modes: parents of %d workers for %d workers: give one to each, or Direct", len(p.Parents), n)
	}
	for w, up := range p.Parents {
		switch {
		case up != Direct && (up < 0 || int(up) >= n):
			return fmt.Errorf("modes: the parent of worker %d is worker %d, which is not in 0..%d", w, up, n-1)
		case int(up) == w:
			return fmt.Errorf("modes: worker %d is its own parent", w)
		}
	}
	// More than n steps without reaching the top mean a cycle.
	for w := range p.Parents {
		steps := 0
		for v := star.Worker(w); p.Parents[v] != Direct; v = p.Parents[v] {
			if steps++; steps > n {
				return fmt.Errorf("modes: worker %d is below itself in the tree: give one of its ancestors no parent", w)
			}
		}
	}
	// A report is one sum, which one firing uses: its workers must be members of one group, and not riders.
	home := make(map[star.Worker]int, n)
	rides := make(map[star.Worker]int)
	for i, g := range p.Groups {
		for _, w := range g.Members {
			home[w] = i
		}
		for _, w := range g.Riders {
			rides[w] = i
		}
	}
	for w, up := range p.Parents {
		if up == Direct {
			continue
		}
		for _, v := range [2]star.Worker{star.Worker(w), up} {
			if i, ok := rides[v]; ok {
				return fmt.Errorf("modes: worker %d rides in group %d and is in the tree too: a rider reports for itself", v, i)
			}
		}
		if home[star.Worker(w)] != home[up] {
			return fmt.Errorf("modes: worker %d and its parent %d are in different groups: one report cannot go to two updates", w, up)
		}
	}
	return nil
}

// writeTree writes the trees of two workers and more: 0(1,2(3)),4(5).
func writeTree(b *strings.Builder, parents []star.Worker) {
	// A worker with neither parent nor children is not written: Parse makes it direct.
	below := make([][]star.Worker, len(parents))
	var tops []star.Worker
	for w, up := range parents {
		if up != Direct {
			below[up] = append(below[up], star.Worker(w))
		}
	}
	for w, up := range parents {
		if up == Direct && below[w] != nil {
			tops = append(tops, star.Worker(w))
		}
	}
	var write func(ws []star.Worker)
	write = func(ws []star.Worker) {
		for i := 0; i < len(ws); {
			if i > 0 {
				b.WriteByte(',')
			}
			if below[ws[i]] != nil {
				fmt.Fprintf(b, "%d(", ws[i])
				write(below[ws[i]])
				b.WriteByte(')')
				i++
				continue
			}
			// Leaves in a row are one set. A worker with children has a place of its own, before its bracket.
			j := i + 1
			for j < len(ws) && below[ws[j]] == nil {
				j++
			}
			writeSet(b, ws[i:j])
			i = j
		}
	}
	write(tops)
}

// parseTree reads the output of writeTree, for the workers 0..n-1. Workers that it does not name are direct.
// No worker is named twice, so the depth is bounded by n.
func parseTree(s string, n int) ([]star.Worker, error) {
	parents := make([]star.Worker, n)
	named := make([]bool, n)
	for w := range parents {
		parents[w] = Direct
	}
	place := func(first, last int, up star.Worker) error {
		for w := first; w <= last; w++ {
			if named[w] {
				return fmt.Errorf("worker %d is named twice: it has one place in the tree", w)
			}
			named[w], parents[w] = true, up
		}
		return nil
	}
	rest := s
	// list reads the workers up to a closing bracket or the end, as children of up.
	var list func(up star.Worker) error
	list = func(up star.Worker) error {
		for {
			end := strings.IndexAny(rest, ",()")
			if end < 0 {
				end = len(rest)
			}
			text := rest[:end]
			ws, err := parseSet(text, n)
			if err != nil {
				return err
			}
			if err := place(int(ws[0]), int(ws[len(ws)-1]), up); err != nil {
				return err
			}
			rest = rest[end:]
			if strings.HasPrefix(rest, "(") {
				// A bracket belongs to one worker, so a range cannot precede it.
				if len(ws) > 1 {
					return fmt.Errorf("children of %q: they need one parent", clip(text))
				}
				rest = rest[1:]
				if err := list(ws[0]); err != nil {
					return err
				}
				if !strings.HasPrefix(rest, ")") {
					return fmt.Errorf("the bracket behind worker %d is not closed", ws[0])
				}
				rest = rest[1:]
			}
			if !strings.HasPrefix(rest, ",") {
				return nil
			}
			rest = rest[1:]
		}
	}
	if err := list(Direct); err != nil {
		return nil, err
	}
	if rest != "" {
		return nil, fmt.Errorf("%q is left over at the end", clip(rest))
	}
	return parents, nil
}

// TreeRule decides when gradients should go through a tree, and through which. It is our own: the public
// artefact of STAR is given its tree and builds none.
//
// A worker that reports for itself loads the servers' links with 2·|w| bytes in an iteration: the gradient
// and the parameters. For N workers and an iteration time t the demand is
//
//	D = N·2·|w|/t                                                        (13)
//
// bytes per second. Where D is more than the capacity C, the tree has
//
//	k = ⌈D/C⌉, but at most ⌊C·t/(2·|w|)⌋                                  (14)
//
// workers that report to the servers: a parent with N/k − 1 children carries D/k itself, which is at most
// C, and the bound is the capacity of the servers. (The equation numbers are those of docs/theory.md.)
type TreeRule struct {
	// Capacity is C, the capacity of the servers' links for this job, in and out together, in bytes per
	// second. A parent's own link is assumed to have the same.
	Capacity float64

	// FanIn is the maximum number of children of one worker. Zero means 8. For children on other hosts the
	// capacity may allow fewer.
	FanIn int

	// Band is how far the demand may move, relatively, before a tree is built again or removed. Zero means
	// 0.25.
	Band float64
}

// TreeLoad is the input of a [TreeRule].
type TreeLoad struct {
	Bytes int64         // |w|: of one gradient
	Cycle time.Duration // t, the mean time of an iteration

	// By worker: bandwidth that it has left, in bytes per second.
	Spare []float64

	// By worker; empty: unknown, and shared with no other worker.
	Hosts []string

	// Able workers can be in a tree. The job has Others more workers, which report for themselves.
	Able   []bool
	Others int
}

func (r TreeRule) fanIn() int {
	if r.FanIn == 0 {
		return 8
	}
	return r.FanIn
}

func (r TreeRule) band() float64 {
	if r.Band == 0 {
		return 0.25
	}
	return r.Band
}

// able counts the workers that can be in a tree.
func (l TreeLoad) able() int {
	n := 0
	for _, ok := range l.Able {
		if ok {
			n++
		}
	}
	return n
}

// unit is the demand of one worker: 2·|w|/t.
func (l TreeLoad) unit() float64 { return 2 * float64(l.Bytes) / l.Cycle.Seconds() }

// Demand is D, in bytes per second, if every worker reports for itself.
func (l TreeLoad) Demand() float64 { return float64(l.able()+l.Others) * l.unit() }

// Build is the tree for a load: the parent of each worker, or nil where the servers need none.
//
// The k parents at the top are on different hosts, if there are enough, and are the workers with the most
// spare bandwidth. A host is skipped if its best worker has less than half the spare bandwidth of the best
// of all. Each level below takes as many workers as the level above has room for, again those with the most
// spare bandwidth: first those with a parent on their host that has room, then one of each other host, each
// to the parent with the fewest children. So the gradients of a host are added up before they leave it, and
// a tree gets deeper only for that or where the fan-in does not suffice.
func (r TreeRule) Build(l TreeLoad) []star.Worker {
	n, unit := l.able(), l.unit()
	if r.Capacity <= 0 || n < 2 || l.Demand() <= r.Capacity {
		return nil
	}
	// (14), where the reports of workers outside the tree are part of what the servers carry.
	k := int(math.Ceil(min(l.Demand()/r.Capacity, float64(n))))
	fits := int(min(r.Capacity/unit, float64(n+l.Others))) // reports that the servers carry
	k = min(max(k, 1), max(fits-l.Others, 1), n)
	// Every worker would report for itself, which needs no tree.
	if k == n {
		return nil
	}
	fan := r.fanIn()
	// A parent's link carries its own report and those of its children from other hosts, so these are one
	// fewer.
	wide := max(min(fan, fits-1), 1) // children with gradients that cross the network

	parents := make([]star.Worker, len(l.Able))
	var left []star.Worker
	for w := range parents {
		parents[w] = Direct
		if l.Able[w] {
			left = append(left, star.Worker(w))
		}
	}
	// Stable: with equal bandwidth the lower rank is first, so the same load always has the same tree.
	slices.SortStableFunc(left, func(a, b star.Worker) int { return cmp.Compare(l.Spare[b], l.Spare[a]) })
	level := l.top(left, k)
	left = slices.DeleteFunc(left, func(w star.Worker) bool { return slices.Contains(level, w) })
	children, far := make([]int, len(l.Able)), make([]int, len(l.Able))
	// An unknown host is one without other workers, so no worker is near it.
	near := func(w, up star.Worker) bool { return l.Hosts[w] != "" && l.Hosts[w] == l.Hosts[up] }
	for len(left) > 0 {
		var next []star.Worker
		// The parent with the fewest children; of equal ones, the one with the most spare bandwidth.
		best := func(ok func(up star.Worker) bool) star.Worker {
			up := Direct
			for _, v := range level {
				if children[v] < fan && ok(v) && (up == Direct || children[v] < children[up]) {
					up = v
				}
			}
			return up
		}
		place := func(ok func(w, up star.Worker) bool, placed func(w star.Worker)) {
			left = slices.DeleteFunc(left, func(w star.Worker) bool {
				up := best(func(v star.Worker) bool { return ok(w, v) })
				if up == Direct {
					return false
				}
				parents[w] = up
				children[up]++
				if !near(w, up) {
					far[up]++
				}
				next = append(next, w)
				placed(w)
				return true
			})
		}
		place(near, func(star.Worker) {})
		// One worker of a host goes to a parent on another host at this level; the rest of its host goes to that
		// worker.
		came := map[string]bool{}
		place(func(w, up star.Worker) bool {
			return far[up] < wide && !came[l.Hosts[w]]
		}, func(w star.Worker) { came[l.Hosts[w]] = l.Hosts[w] != "" })
		slices.SortStableFunc(next, func(a, b star.Worker) int { return cmp.Compare(l.Spare[b], l.Spare[a]) })
		level = next
	}
	return parents
}

// top chooses k of ws, which are in order of spare bandwidth.
func (l TreeLoad) top(ws []star.Worker, k int) []star.Worker {
	var chosen []star.Worker
	used := map[string]bool{}
	ws = slices.Clone(ws)
	for len(chosen) < k {
		at := 0
		for i, w := range ws {
			// All workers from here on have too little bandwidth for a parent: rather a second one on the
			// best host.
			if l.Spare[w] < l.Spare[ws[0]]/2 {
				break
			}
			if l.Hosts[w] == "" || !used[l.Hosts[w]] {
				at = i
				break
			}
		}
		w := ws[at]
		used[l.Hosts[w]] = true
		chosen = append(chosen, w)
		ws = slices.Delete(ws, at, at+1)
	}
	return chosen
}

// TreeKeeper adapts a tree to the load, and keeps one until the load has changed beyond the band: every new
// tree moves connections. It is not safe for concurrent use.
type TreeKeeper struct {
	Rule TreeRule

	parents []star.Worker // nil: none
	able    []bool        // when it was built
	demand  float64       // when it was built
	view    treeView
}

// Parents is the present tree; nil: none.
func (k *TreeKeeper) Parents() []star.Worker { return k.parents }

// Resume continues with a tree that another keeper has built. The next load decides whether it stays.
func (k *TreeKeeper) Resume(parents []star.Worker) { k.parents = slices.Clone(parents) }

// Update takes a load and returns the parents of each worker, nil for no tree, and a reason if they have
// changed.
//
// Without a tree, one is built when the demand exceeds the capacity. A tree is removed when the demand is
// below the capacity by more than the band. It is built again when the demand has moved by more than the
// band since it was built and the number of reports changes, or when other workers can be in it.
func (k *TreeKeeper) Update(l TreeLoad) (parents []star.Worker, why string) {
	d, c := l.Demand(), k.Rule.Capacity
	var next []star.Worker
	switch band := k.Rule.band(); {
	case k.parents == nil:
		next = k.Rule.Build(l)
	case d < c*(1-band):
	case !slices.Equal(k.able, l.Able):
		if next = k.Rule.Build(l); next == nil && d >= c*(1-band) && d <= c {
			// Still in the band: a tree must not come and go with a worker while the demand is the same.
			next = k.Rule.Build(TreeLoad{Bytes: l.Bytes, Cycle: time.Duration(float64(l.Cycle) * d / c * (1 - 1e-6)),
				Spare: l.Spare, Hosts: l.Hosts, Able: l.Able, Others: l.Others})
		}
	case math.Abs(d-k.demand) > band*k.demand:
		if next = k.Rule.Build(l); next == nil || (Plan{Parents: next}).Reports(len(next)) == (Plan{Parents: k.parents}).Reports(len(next)) {
			return k.parents, ""
		}
	default:
		return k.parents, ""
	}
	if (Plan{Parents: next}).sameTree(Plan{Parents: k.parents}) {
		k.able = slices.Clone(l.Able)
		return k.parents, ""
	}
	k.try(k.parents)
	k.parents, k.able, k.demand = next, slices.Clone(l.Able), d
	if next == nil {
		return nil, fmt.Sprintf("every worker reporting for itself needs %s of %s", rate(d), rate(c))
	}
	return next, fmt.Sprintf("every worker reporting for itself needs %s of %s; with the tree %d of %d do",
		rate(d), rate(c), (Plan{Parents: next}).Reports(len(next)), len(next))
}

// rate writes bytes per second.
func rate(v float64) string {
	return strconv.FormatFloat(v/1e6, 'g', 4, 64) + " MB/s"
}
