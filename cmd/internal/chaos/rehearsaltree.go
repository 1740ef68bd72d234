package chaos

import (
	"slices"
	"time"

	"star"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// rehearsedTrees are the modes of jobs with trees.
var rehearsedTrees = []string{"ssgd", "x=1", "x=2", "backup=1", "backup=2"}

// anyMode draws a mode; with trees, one that supports them.
func (w *stage) anyMode() modes.Plan {
	if !w.Trees {
		return w.mode(pick(w.rnd, rehearsedModes))
	}
	p := w.mode(pick(w.rnd, rehearsedTrees))
	if w.rnd.IntN(5) == 0 {
		return p
	}
	p.Parents = slices.Repeat([]star.Worker{modes.Direct}, w.Workers)
	order := w.rnd.Perm(w.Workers)
	for i, k := range order {
		if up := w.rnd.IntN(i+1) - 1; up >= 0 {
			p.Parents[k] = star.Worker(order[up])
		}
	}
	return p
}

// climber is a worker in a tree, in one step.
type climber struct {
	branch   wire.Branch
	brought  map[wire.Child][]wire.Share // from children
	without  map[wire.Child]bool         // children that it does not wait for
	content  []wire.Share                // gradients that it passes on, its own first; nil: it waits for children
	begun    time.Duration               // when it began to pass them on
	handed   bool                        // its parent has them, or it has reported the parent unreachable
	detached bool                        // it pushes its own gradient to servers
	fault    *wire.Fault
}

// direct reports whether the worker pushes to servers.
func (k *climber) direct() bool { return k.detached || k.branch.Parent < 0 }

// report is the message of the top of a tree to the coordinator.
func (k *climber) report() *wire.Bundle {
	if k.direct() && !k.detached && len(k.branch.Children) > 0 {
		return &wire.Bundle{Worker: k.branch.Worker, Step: k.branch.Step, Members: k.content}
	}
	return nil
}

// content lists the workers with gradients in a push.
func (w *stage) content(g replica.Gradient) []wire.Share {
	if ms, ok := w.pushed[g]; ok {
		return ms
	}
	return []wire.Share{{Worker: g.Worker, Step: g.Step, Samples: w.batches[g].Count}}
}

// climb makes a worker that has computed pass on its gradient and those of its children. It reports whether the worker
// may announce it.
func (w *stage) climb(i int, g replica.Gradient) bool {
	k := w.workers[i]
	if k.detached {
		return true
	}
	if k.content == nil {
		for _, c := range k.branch.Children {
			if k.brought[c] == nil && !k.without[c] {
				return false
			}
		}
		k.content, k.begun = []wire.Share{{Worker: g.Worker, Step: g.Step, Samples: k.batch.Count}}, w.now
		for _, c := range k.branch.Children {
			k.content = append(k.content, k.brought[c]...)
		}
	}
	if k.direct() {
		w.notePush(g, k.content)
		return true
	}
	if up, c := k.branch.Parent, k.content; !k.handed {
		if w.now > k.begun+givenUp || w.now < k.apart && w.now > k.begun {
			w.miss(i)
		}
		if w.now < k.apart {
			return k.handed
		}
		w.send(-1, func() { w.bundle(up, wire.Child{Worker: g.Worker, Step: g.Step}, c) })
	}
	return k.handed
}

// notePush records the content of a push, for the rest of the rehearsal.
func (w *stage) notePush(g replica.Gradient, ms []wire.Share) {
	if was, ok := w.pushed[g]; ok && !slices.Equal(was, ms) {
		broken("worker %d pushes the gradients %v as step %d, and has pushed %v", g.Worker, ms, g.Step, was)
	}
	w.pushed[g] = ms
}

// bundle delivers a child's gradients to its parent.
func (w *stage) bundle(up int, from wire.Child, ms []wire.Share) {
	w.do(up, func() {
		k := w.workers[up]
		if !slices.Contains(k.branch.Children, from) {
			return // it does not know the child yet
		}
		for _, m := range ms {
			if !slices.Contains(k.branch.Below, wire.Below{Child: from.Worker, Worker: m.Worker, Step: m.Step, Samples: m.Samples}) {
				broken("worker %d is brought %+v by worker %d, and was told of %+v", up, m, from.Worker, k.branch.Below)
			}
		}
		if k.content == nil {
			if k.brought == nil {
				k.brought = map[wire.Child][]wire.Share{}
			}
			k.brought[from] = ms
			w.work(up)
		}
		w.send(-1, func() { // also to a child that is too late
			w.do(int(from.Worker), func() {
				if c := w.workers[from.Worker]; c.step == from.Step {
					c.handed = true
					w.work(int(from.Worker))
				}
			})
		})
	})
}

// miss makes a worker report that it cannot pass on its gradient.
func (w *stage) miss(i int) {
	if k := w.workers[i]; !k.dead && k.step >= 0 && k.content != nil && !k.direct() && !k.handed {
		k.handed = true
		k.fault = &wire.Fault{Worker: star.Worker(i), Generation: k.step, Suspect: k.branch.Parent}
	}
}

// detach changes the route of a gradient: a child's, or the worker's own.
func (w *stage) detach(i int, m wire.Detach) {
	k := w.workers[i]
	if int(m.Worker) != i {
		if k.without == nil {
			k.without = map[wire.Child]bool{}
		}
		k.without[wire.Child(m)] = true
	} else if m.Step != k.step {
		broken("worker %d is detached at step %d, and is at %d", i, m.Step, k.step)
	} else {
		k.detached = true
		w.notePush(replica.Gradient{Worker: m.Worker, Step: m.Step}, []wire.Share{{Worker: m.Worker, Step: m.Step, Samples: k.batch.Count}})
	}
	w.work(i)
}
