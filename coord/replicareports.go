package coord

import (
	"fmt"
	"time"

	"star/coord/copies"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Where shards have copies and several processes may coordinate, another process takes both over: the views, and the
// firings that some copies hold and others do not. Package copies decides (recover.go).

// absentServers is how long a successor waits, since the first server came, for others whose shards
// have copies elsewhere.
const absentServers = 3 * time.Second

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
	h := c.takeover
	if c.cfg.Replicas < 2 {
		return nil
	}
	if len(h.handover.Views) != len(c.shards) {
		return fmt.Errorf("coord: what the coordinator before has left names %d shards, and who holds %d", len(c.shards), len(h.handover.Views))
	}
	c.copies = copies.Inherit(c.cfg.Replicas, h.handover.Views, c.term())
	c.mover.After(c.term() << 32) // what was said to the coordinator before is not for our moves
	return nil
}

// returning takes in a server that had copies and is not counted on any more, or has lost them. It
// reports false when it is for others to decide.
func (c *Coordinator) returning(p *peer, fresh bool) bool {
	old := c.servers[p.rank]
	switch {
	case c.settling() && fresh && c.trained() && c.takeover.handover.Seats[p.rank] > 0:
		c.refuse(p, exitcode.Restart, "another process takes the job over now; start this one again in a moment")
		return true
	case !c.settling() && old != nil && old != p && !old.gone && old.hello.Shards > 0 && c.engine != nil:
		old.hangUp()
		if err := c.lostServer(old, fmt.Errorf("it came again, as %s", p.conn.RemoteAddr())); err != nil {
			c.sick = err
		}
	}
	return false
}

// claimed takes in what a server says that its copies hold: its claims came before. The first of
// them begins the time that others have to come (absentServers). An error: it has a shard that the
// job has not.
func (c *Coordinator) claimed(p *peer, m wire.Standing) error {
	for _, s := range m.Shards {
		if s.Shard >= len(c.shards) {
			return &Error{exitcode.Disagree, fmt.Sprintf("server %d has shard %d, of %d", p.rank, s.Shard, len(c.shards))}
		}
		c.copies.Loaded(p.rank, s.Shard, s.Version >= 0)
		c.ready[s.Shard] = c.copies.Ready(s.Shard)
	}
	if c.takeover.came.IsZero() {
		c.takeover.came = time.Now()
	}
	return nil
}

// goesWithout says whether a server that does not come is not waited for any more: every shard has
// a copy elsewhere.
func (c *Coordinator) goesWithout(rank int) bool {
	h := c.takeover
	return c.trained() && !h.came.IsZero() && time.Since(h.came) >= absentServers && c.copies.Elsewhere(rank, c.here)
}

// disclaim forgets what a server has said, whose connection has ended.
func (c *Coordinator) disclaim(rank int) {
	if !c.settling() {
		return
	}
	c.takeover.reports[rank] = nil
	c.copies.Disclaim(rank)
}

// here says whether a server stands to us.
func (c *Coordinator) here(rank int) bool {
	return c.takeover.reports[rank] != nil && c.servers[rank] != nil && !c.servers[rank].gone
}

// recoverCopies makes the views from what copies claim, and says how far the history goes. An error ends the job, exit
// code 69: of a shard no copy is there.
func (c *Coordinator) recoverCopies() (err error) {
	h := c.takeover
	if !c.trained() {
		return nil
	}
	if h.from, h.history.Seq, err = c.copies.Recover(c.term(), c.here); err != nil {
		return &Error{exitcode.Lost, err.Error()}
	}
	return nil
}

// reinstate tells all members which servers hold what, and offers firings again that some copies may not
// hold. It reports false when the lease is lost. Copies that are in no view any more are forgotten;
// views that have changed are agreed on before any member is told. Errors are those of settle.
func (c *Coordinator) reinstate() (bool, error) {
	h := c.takeover
	for rank, p := range c.servers {
		if p != nil && !c.here(rank) && h.handover.Seats[rank] > 0 {
			c.log.Warn("a server has not come to this coordinator: the job goes on with the copies that others have", "server", rank)
			p.hangUp()
			c.servers[rank] = nil
		}
	}
	var missing []int
	for rank, p := range c.servers {
		if p == nil {
			c.servers[rank] = c.nobody(rank)
			if h.handover.Seats[rank] > 0 {
				missing = append(missing, rank)
			}
		}
	}
	for shard, v := range c.copies.Views() {
		c.owner[shard], c.shards[shard].Addr = v.Primary, c.servers[v.Primary].hello.Addr
	}
	c.handover = *h.handover
	if !c.persistCopies() {
		return false, nil
	}
	h.handover.Seats, h.handover.Views = c.handover.Seats, c.handover.Views
	for rank, p := range c.servers {
		p.hello.Shards = h.handover.Seats[rank]
	}
	for shard := range c.shards {
		c.tellServers(shard)
		if c.trained() {
			c.ready[shard] = true
		}
	}
	if err := c.copied(c.copies.Extras(c.here)); err != nil {
		return false, err
	}
	if !c.trained() {
		return true, nil
	}
	for _, rank := range missing {
		if err := c.copied(c.copies.Missed(rank)); err != nil {
			return false, err
		}
	}
	fires, err := h.history.Behind(h.from, "some copies lack")
	if err != nil {
		return false, unrecoverable(err)
	}
	for i, f := range fires {
		o := engine.Ready{Silent: true, Metadata: f.Metadata}
		if err := o.Fire.Parse(f.Header); err != nil {
			return false, &Error{exitcode.Disagree, fmt.Sprintf("fire %d: %v", h.from+1+int64(i), err)}
		}
		c.offer(&o)
	}
	return true, c.pump()
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
