package coord

import (
	"fmt"

	"star/internal/exitcode"
)

// If shards have copies and several processes may coordinate, a takeover includes the views and the firings that only
// some copies hold. Package copies decides (recover.go).

// returning handles a server that had copies and is no longer counted, or has lost them. It returns false if this does
// not apply to the server.
func (c *Coordinator) returning(p *peer, fresh bool) bool {
	old := c.peers.servers[p.rank]
	switch {
	case c.takeover.Settling() && fresh && c.takeover.Trained() && c.takeover.Shards(p.rank) > 0:
		c.peers.refuse(p, exitcode.Restart, "another process takes the job over now; start this one again in a moment")
		return true
	case !c.takeover.Settling() && old != nil && old != p && !old.gone && old.hello.Shards > 0 && c.engine != nil:
		old.hangUp()
		if err := c.lostServer(old, fmt.Errorf("it reconnected from %s", p.conn.RemoteAddr())); err != nil {
			c.run.sick = err
		}
	}
	return false
}

// reinstate sends members the views that follow from the servers' reports. The views are agreed on before any member
// gets them (lease.Lost if they were not). Copies that are in no view any more are forgotten. missing are the servers
// that had copies and have not come.
func (c *Coordinator) reinstate(missing []int) error {
	for _, rank := range missing {
		if p := c.peers.servers[rank]; p != nil {
			c.log.Warn("server missing after the takeover; continuing with the other copies", "server", rank)
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
		c.placing.Put(shard, v.Primary, c.peers.servers[v.Primary].hello.Addr)
	}
	left := c.takeover.Left()
	e := Handover{Handover: *left, Enrolment: *c.members.Terms.Enrolled()}
	c.placing.record(&e)
	left.Counts, left.Views = e.Counts, e.Views
	if !c.lease.Persist(func(h *Handover) { *h = e }) {
		return nil
	}
	for rank, p := range c.peers.servers {
		p.hello.Shards = left.Counts[rank]
	}
	for shard := range c.placing.Len() {
		c.placing.tellServers(&c.peers, shard)
		c.placing.Fill(shard, c.placing.Filled(shard) || c.takeover.Trained())
	}
	effects := c.placing.copies.Extras(c.takeover.Here)
	for _, rank := range missing {
		effects = append(effects, c.placing.copies.Missed(rank)...)
	}
	return c.copied(effects)
}
