package coord

import (
	"fmt"
	"slices"

	"star/engine"
)

// evictions takes out of what is ready who is to leave.
func evictions(orders []engine.Ready) ([]engine.Ready, []*engine.Eviction) {
	if !slices.ContainsFunc(orders, func(o engine.Ready) bool { return o.Evict != nil }) {
		return orders, nil
	}
	var rest []engine.Ready
	var evict []*engine.Eviction
	for _, o := range orders {
		if o.Evict != nil {
			evict = append(evict, o.Evict)
		} else {
			rest = append(rest, o)
		}
	}
	return rest, evict
}

// evict takes leave of a member that is to leave: its word was not so, or the others cannot go on with it.
func (c *Coordinator) evict(e *engine.Eviction) error {
	of := c.workers
	if e.Server {
		of = c.servers
	}
	p := of[e.Rank]
	switch {
	case p == nil || p.gone:
		return nil
	case e.Again:
		c.part(p, exitRestart, fmt.Sprintf("the job goes on without this worker: %v", e.Why))
		return c.lost(p, e.Why)
	}
	return c.drop(p, e.Why)
}
