package coord

import (
	"fmt"

	"star/coord/copies"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Where shards have copies and several processes may coordinate, another process takes both over: the views, and the
// firings that some copies hold and others do not. Package copies decides (recover.go).

// seats writes down which server has what. Seats counts copies, too. It changes e only.
func (c *Coordinator) seats(e *Handover) {
	e.Seats, e.Views = c.copies.Counts(c.owner), c.copies.Views()
}

// persistCopies tells a successor which servers hold what from now on, before any member is told. It
// reports false when the lease is lost.
func (c *Coordinator) persistCopies() bool { return c.persistHandover(c.seats) }

// takeOverCopies begins with the views that the coordinator before has left. The error is one of
// New.
func (c *Coordinator) takeOverCopies() error {
	left := c.takeover.Left()
	if c.cfg.Replicas < 2 {
		return nil
	}
	if len(left.Views) != len(c.shards) {
		return fmt.Errorf("coord: what the coordinator before has left names %d shards, and who holds %d", len(c.shards), len(left.Views))
	}
	c.copies = copies.Inherit(c.cfg.Replicas, left.Views, c.term())
	c.mover.After(c.term() << 32) // what was said to the coordinator before is not for our moves
	return nil
}

// returning takes in a server that had copies and is not counted on any more, or has lost them. It
// reports false when it is for others to decide.
func (c *Coordinator) returning(p *peer, fresh bool) bool {
	old := c.servers[p.rank]
	switch {
	case c.takeover.Settling() && fresh && c.takeover.Trained() && c.takeover.Seats(p.rank) > 0:
		c.refuse(p, exitcode.Restart, "another process takes the job over now; start this one again in a moment")
		return true
	case !c.takeover.Settling() && old != nil && old != p && !old.gone && old.hello.Shards > 0 && c.engine != nil:
		old.hangUp()
		if err := c.lostServer(old, fmt.Errorf("it came again, as %s", p.conn.RemoteAddr())); err != nil {
			c.sick = err
		}
	}
	return false
}

// reinstate tells members which servers hold what, by what servers claim. Views are agreed on before any member is told
// (leaseLost: they were not). Copies that are in no view any more are forgotten. missing are the servers that had copies
// and have not come.
func (c *Coordinator) reinstate(missing []int) error {
	for _, rank := range missing {
		if p := c.servers[rank]; p != nil {
			c.log.Warn("a server has not come to this coordinator: the job goes on with the copies that others have", "server", rank)
			p.hangUp()
		}
		c.servers[rank] = nil
	}
	for rank, p := range c.servers {
		if p == nil {
			c.servers[rank] = absentServer(rank)
		}
	}
	for shard, v := range c.copies.Views() {
		c.owner[shard], c.shards[shard].Addr = v.Primary, c.servers[v.Primary].hello.Addr
	}
	left := c.takeover.Left()
	c.handover = Handover{*left, *c.members.Terms.Enrolled()}
	if !c.persistCopies() {
		return nil
	}
	left.Seats, left.Views = c.handover.Seats, c.handover.Views
	for rank, p := range c.servers {
		p.hello.Shards = left.Seats[rank]
	}
	for shard := range c.shards {
		c.tellServers(shard)
		c.ready[shard] = c.ready[shard] || c.takeover.Trained()
	}
	effects := c.copies.Extras(c.takeover.Here)
	for _, rank := range missing {
		effects = append(effects, c.copies.Missed(rank)...)
	}
	return c.copied(effects)
}

// forgetExtras makes a server that comes back drop the copies that it has and that are in no view any more.
func (c *Coordinator) forgetExtras(p *peer, m wire.Standing) {
	for _, s := range m.Shards {
		if s.Shard < len(c.shards) && !c.copies.View(s.Shard).Has(p.rank) {
			c.forgetCopy(p, s.Shard)
		}
	}
}

// forgetCopy makes a server give up a copy that is in no view any more.
func (c *Coordinator) forgetCopy(p *peer, shard int) {
	s := c.shards[shard]
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Adopt{Move: c.mover.Last(), Stage: wire.Forget, Shard: shard, Addr: s.Addr, From: s.From, To: s.To}, nil)
	})
}
