package coord

import (
	"fmt"

	"star/coord/engine"
	"star/internal/exitcode"
	"star/transport/wire"
)

// meets says why a worker cannot exchange gradients with all others that have enrolled, in a ring or
// the tree of the plan, because of the address that it or one of them has given, and with which exit
// code it is refused. Empty: it can.
func (c *Coordinator) meets(p *peer) (why string, exit int) {
	visited := func(w *peer) bool {
		return !c.arch.sharded() || engine.TreeNeeds(c.cfg.Plan, w.rank, wire.Hello{}) != nil
	}
	for _, o := range c.peers.workers {
		if o == nil || o == p || o.gone || o.rank == p.rank {
			continue
		}
		at, there := c.peers.place(p), c.peers.place(o)
		if !there.Reaches(at) && visited(p) {
			return at.Unreachable(fmt.Sprintf("worker %d", p.rank)), exitcode.Usage
		}
		if !at.Reaches(there) && visited(o) {
			return there.Unreachable(fmt.Sprintf("worker %d", o.rank)), exitcode.Disagree
		}
	}
	return "", 0
}
