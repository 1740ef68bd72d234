package coord

import (
	"fmt"

	"star/coord/copies"
	"star/internal/exitcode"
)

// Where shards have copies and several processes may coordinate, another process takes both over: the views, and the
// firings that some copies hold and others do not. Package copies decides (recover.go).

// takeOverCopies begins with the views that the coordinator before has left. The error is one of
// New.
func (c *Coordinator) takeOverCopies() error {
	left := c.takeover.Left()
	if c.cfg.Replicas < 2 {
		return nil
	}
	if len(left.Views) != len(c.placing.shards) {
		return fmt.Errorf("coord: what the coordinator before has left names %d shards, and who holds %d", len(c.placing.shards), len(left.Views))
	}
	c.placing.copies = copies.Inherit(c.cfg.Replicas, left.Views, c.lease.term())
	c.placing.mover.After(c.lease.term() << 32) // what was said to the coordinator before is not for our moves
	return nil
}

// returning takes in a server that had copies and is not counted on any more, or has lost them. It
// reports false when it is for others to decide.
func (c *Coordinator) returning(p *peer, fresh bool) bool {
	old := c.peers.servers[p.rank]
	switch {
	case c.takeover.Settling() && fresh && c.takeover.Trained() && c.takeover.Seats(p.rank) > 0:
		c.peers.refuse(p, exitcode.Restart, "another process takes the job over now; start this one again in a moment")
		return true
	case !c.takeover.Settling() && old != nil && old != p && !old.gone && old.hello.Shards > 0 && c.engine != nil:
		old.hangUp()
		if err := c.lostServer(old, fmt.Errorf("it came again, as %s", p.conn.RemoteAddr())); err != nil {
			c.run.sick = err
		}
	}
	return false
}

// reinstate tells members which servers hold what, by what servers claim. Views are agreed on before any member is told
// (leaseLost: they were not). Copies that are in no view any more are forgotten. missing are the servers that had copies
// and have not come.
func (c *Coordinator) reinstate(missing []int) error {
	for _, rank := range missing {
		if p := c.peers.servers[rank]; p != nil {
			c.log.Warn("a server has not come to this coordinator: the job goes on with the copies that others have", "server", rank)
			p.hangUp()
		}
		c.peers.servers[rank] = nil
	}
	for rank, p := range c.peers.servers {
		if p == nil {
			c.peers.servers[rank] = absentServer(rank)
		}
	}
	for shard, v := range c.placing.copies.Views() {
		c.placing.owner[shard], c.placing.shards[shard].Addr = v.Primary, c.peers.servers[v.Primary].hello.Addr
	}
	left := c.takeover.Left()
	c.lease.handover = Handover{*left, *c.members.Terms.Enrolled()}
	if !c.lease.persist(c.placing.seats) {
		return nil
	}
	left.Seats, left.Views = c.lease.handover.Seats, c.lease.handover.Views
	for rank, p := range c.peers.servers {
		p.hello.Shards = left.Seats[rank]
	}
	for shard := range c.placing.shards {
		c.placing.tellServers(&c.peers, shard)
		c.placing.ready[shard] = c.placing.ready[shard] || c.takeover.Trained()
	}
	effects := c.placing.copies.Extras(c.takeover.Here)
	for _, rank := range missing {
		effects = append(effects, c.placing.copies.Missed(rank)...)
	}
	return c.copied(effects)
}
