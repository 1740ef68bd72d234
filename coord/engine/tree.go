package engine

import (
	"fmt"
	"math"
	"slices"

	"star"
	"star/modes"
	"star/transport/wire"
)

// reportGroup is workers of one tree that one firing has released together. Its top reports for all of
// them, once. A worker without a report group reports for itself.
//
//	released ──► report ──► complete: every shard holds it ──► fired together
//	                │
//	                └──► a worker that is not in it is detached, and reports for itself
//
// Invariant: a gradient counts in one place, with its worker until a report with it has been described
// (Reported), and with that report afterwards. Its worker keeps it until the next release, so a failure of
// the worker that passed it on does not lose it. Of a worker that has left only the report can say whether
// it has its gradient; until then its batch is not handed out again (reporting.ghost). When the top leaves,
// the group dissolves: each member reports for itself.
type reportGroup struct {
	top     star.Worker
	members []star.Worker // by rank

	// Of the report, the top first; nil: not described yet.
	in []star.Worker
}

// lead is the worker that pushes the gradient of w.
func (l *Shards) lead(w star.Worker) star.Worker {
	if c := l.states[w].group; c != nil {
		return c.top
	}
	return w
}

// reports are the gradients of a firing, by rank, as the shards hold them: a report group is one gradient
// with the sum of its weights. A report is the mean of its gradients by samples, so the sum is right where a
// weight is in proportion to samples. With ScaleDamped it is right while all gradients of the report have
// read the same version, which holds unless the plan has changed in between.
func (l *Shards) reports(gs []wire.Gradient) []wire.Gradient {
	if !slices.ContainsFunc(gs, func(g wire.Gradient) bool { return l.states[g.Worker].group != nil }) {
		return gs
	}
	// In float64, so that the sum of a large group keeps the precision of its weights.
	sums := map[star.Worker]float64{}
	for _, g := range gs {
		sums[l.lead(g.Worker)] += float64(g.Weight)
	}
	var out []wire.Gradient
	for w, sum := range sums {
		out = append(out, wire.Gradient{Worker: w, Step: l.states[w].step, Weight: float32(sum)})
	}
	slices.SortFunc(out, func(a, b wire.Gradient) int { return int(a.Worker - b.Worker) })
	return out
}

// link makes report groups of the workers that o releases, where the plan has them in a tree. Shards send
// the parameters to workers that led their last report; other workers get them from the parent, or ask the
// shards.
func (l *Shards) link(o *Ready) {
	// Only workers of one firing report together: they have the same version.
	here := map[star.Worker]bool{}
	below := map[star.Worker][]wire.Child{}
	if l.plan.Parents != nil {
		for _, r := range o.Releases {
			here[r.Worker] = l.inTrees(r.Worker)
		}
	}
	// First a parent for each: by the plan, the nearest one above it that is released with it and reachable.
	for i := range o.Releases {
		r := &o.Releases[i]
		a := &l.states[r.Worker]
		if here[r.Worker] {
			for v := l.plan.Parents[r.Worker]; v != modes.Direct && a.up == modes.Direct; v = l.plan.Parents[v] {
				if here[v] && !l.cut[[2]star.Worker{r.Worker, v}] {
					a.up = v // past the ancestors that are not released
				}
			}
		}
	}
	// Then each gets the list of all workers below it, as far as a message can hold it.
	under := map[star.Worker][]wire.Below{}
	for i := range o.Releases {
		r := &o.Releases[i]
		a := &l.states[r.Worker]
		for v := a.up; v != modes.Direct; v = l.states[v].up {
			if len(under[v]) >= wire.MaxBelow { // v could not be told of it, and accepts only what it was told of
				a.up = modes.Direct
				break
			}
		}
		if a.up == modes.Direct {
			r.Pull = r.Pull || !a.led
			continue
		}
		below[a.up] = append(below[a.up], wire.Child{Worker: r.Worker, Step: a.step})
		for v := r.Worker; l.states[v].up != modes.Direct; v = l.states[v].up {
			up := l.states[v].up
			under[up] = append(under[up], wire.Below{Child: v, Worker: r.Worker, Step: a.step, Samples: a.count})
		}
	}
	if len(below) == 0 {
		return
	}
	// Connected workers report together. A worker without parent and children needs no group.
	groups := map[star.Worker]*reportGroup{}
	for _, r := range o.Releases {
		w := r.Worker
		a := &l.states[w]
		if a.up == modes.Direct && below[w] == nil {
			continue
		}
		top := w
		for l.states[top].up != modes.Direct {
			top = l.states[top].up
		}
		if groups[top] == nil {
			groups[top] = &reportGroup{top: top}
		}
		a.group = groups[top]
		a.group.members = append(a.group.members, w)
		o.Branches = append(o.Branches, wire.Branch{
			Worker: w, Step: a.step, Parent: int(a.up), Relay: a.up != modes.Direct && !a.led, Children: below[w], Below: under[w],
		})
	}
}

// inTrees reports whether w can be in trees.
func (l *Shards) inTrees(w star.Worker) bool { return l.reachable != nil && l.reachable[w] }

// Reported takes the content of a group's report. It fixes the members of the report; the others report for
// themselves. An error: the worker is not the top of a tree, reports twice, or names a gradient that is not
// of its group. The state is unchanged then.
func (l *Shards) Reported(m wire.Bundle) ([]Ready, error) {
	l.out = l.out[:0]
	a := &l.states[m.Worker]
	c := a.group
	switch {
	case !a.live || a.parked:
		return nil, fmt.Errorf("worker %d described a report without having been released", m.Worker)
	case c == nil || c.top != m.Worker:
		return nil, fmt.Errorf("worker %d described a report, but is not the top of a tree", m.Worker)
	case c.in != nil:
		return nil, fmt.Errorf("worker %d described its report of step %d twice", m.Worker, m.Step)
	case m.Step != a.step:
		return nil, fmt.Errorf("worker %d described a report of step %d, expected step %d", m.Worker, m.Step, a.step)
	case len(m.Members) == 0 || m.Members[0].Worker != m.Worker:
		return nil, fmt.Errorf("worker %d described a report in which it is not the first", m.Worker)
	}
	var in []star.Worker
	for _, s := range m.Members {
		if int(s.Worker) >= len(l.states) || l.states[s.Worker].group != c || slices.Contains(in, s.Worker) {
			return nil, fmt.Errorf("the report of worker %d step %d has worker %d, which is not in its group", m.Worker, m.Step, s.Worker)
		}
		// The top got these numbers from below. They must be those of the releases, or samples would be lost
		// or counted twice.
		if b := &l.states[s.Worker]; s.Step != b.step || s.Samples != b.count {
			return nil, fmt.Errorf("the report of worker %d step %d has step %d of worker %d with %d samples, expected step %d with %d",
				m.Worker, m.Step, s.Step, s.Worker, s.Samples, b.step, b.count)
		}
		in = append(in, s.Worker)
	}
	// From here on the report is the place of these gradients. The other members report for themselves.
	c.in = in
	l.dismiss(c, func(w star.Worker) bool { return !slices.Contains(in, w) })
	l.wake()
	l.complete(m.Worker)
	return l.out, nil
}

// dismiss takes workers out of a report group: they report for themselves. Batches of members that have left
// are handed out again.
func (l *Shards) dismiss(c *reportGroup, from func(w star.Worker) bool) {
	var o Ready
	for _, w := range c.members {
		a := &l.states[w]
		if a.group != c || !from(w) {
			continue
		}
		a.group = nil
		if a.ghost {
			a.ghost, l.samples = false, -1
			l.again(Span{a.start, a.count})
		}
		if a.live {
			o.Detached = append(o.Detached, To[wire.Detach]{w, wire.Detach{Worker: w, Step: a.step}})
		}
	}
	if len(o.Detached) > 0 {
		l.out = append(l.out, o)
	}
}

// part removes a worker that had a batch and was in a report group.
func (l *Shards) part(w star.Worker, waiting bool) {
	a := &l.states[w]
	c := a.group
	lives := func(v star.Worker) bool { return l.states[v].live }
	switch {
	case waiting && slices.ContainsFunc(c.in, lives):
		a.ghost = true // the sum with its gradient will be applied
	case waiting:
		l.throwAway(c.top)
		fallthrough
	case c.top == w: // no other worker has the report
		a.ghost = true
		l.dismiss(c, func(star.Worker) bool { return true })
	default:
		a.ghost = true
		if !a.arrived {
			a.norm2 = math.NaN() // not reported
		}
		if c.in == nil && a.up != modes.Direct && lives(a.up) {
			l.out = append(l.out, Ready{Detached: []To[wire.Detach]{{a.up, wire.Detach{Worker: w, Step: a.step}}}})
		}
	}
}

// throwAway has shards drop the present gradient of w, which no update will use.
func (l *Shards) throwAway(w star.Worker) { l.throwAwayStep(w, l.states[w].step) }

// throwAwayStep has shards drop the gradient of a step. The Fire makes no update: it has the present version,
// and its place in the order, because the worker's next gradient may follow directly.
func (l *Shards) throwAwayStep(w star.Worker, step int64) {
	l.seq++
	l.out = append(l.out, Ready{Used: l.used, Fire: wire.Fire{
		Seq: l.seq, Version: l.barrier.Version(), Samples: l.used,
		Dropped: []wire.Gradient{{Worker: w, Step: step}},
		Quiet:   []star.Worker{w},
	}})
}

// unreachable records that w could not send its gradient of a step to its parent. The parent continues
// without it, in later steps too.
func (l *Shards) unreachable(w star.Worker, step int64) []Ready {
	l.out = l.out[:0]
	a := &l.states[w]
	if !a.live || a.parked || step != a.step || a.group == nil || a.up == modes.Direct {
		return nil
	}
	if l.cut == nil {
		l.cut = map[[2]star.Worker]bool{}
	}
	// link passes over this pair from now on, until the plan changes or one of the two joins again.
	l.cut[[2]star.Worker{w, a.up}] = true
	if a.group.in == nil && l.states[a.up].live {
		l.out = append(l.out, Ready{Detached: []To[wire.Detach]{{a.up, wire.Detach{Worker: w, Step: step}}}})
	}
	return l.out
}

// Owes lists the shards that lack the gradient of w, if w pushes it and has reported that it did.
func (l *Shards) Owes(w star.Worker) []int {
	a := &l.states[w]
	if !a.arrived || a.waiting || a.nstored >= l.shards || l.lead(w) != w {
		return nil
	}
	return a.lacking()
}

// HoldsUp says what is missing of worker w.
func (l *Shards) HoldsUp(w star.Worker) string {
	a := &l.states[w]
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

// TreePlan reports whether a job can have the tree of p. The error names modes that can.
func TreePlan(p modes.Plan) error {
	switch {
	case !p.AutoTree:
		return nil
	case !Treeable(p):
		return fmt.Errorf("mode %v: an automatic tree needs a mode of one group without riders, such as ssgd or x=K", p)
	}
	return nil
}

// TreeNeeds returns an error if worker w, which sent hello, is in the tree of p and other workers cannot
// reach it.
func TreeNeeds(p modes.Plan, w int, hello wire.Hello) error {
	if hello.Addr != "" || p.Parents == nil {
		return nil
	}
	if p.Parents[w] == modes.Direct && !slices.Contains(p.Parents, star.Worker(w)) {
		return nil
	}
	return fmt.Errorf("mode %v has worker %d in a tree, but it accepts no connections from other workers: it listens beyond loopback only with STAR_TOKEN, certificates or --insecure", p, w)
}

// Treeable reports whether p can have an automatic tree: all workers in one group, and no queue or local steps.
func Treeable(p modes.Plan) bool {
	return len(p.Groups) == 1 && len(p.Groups[0].Riders) == 0 && p.Queue == 0 && p.Local == 0
}
