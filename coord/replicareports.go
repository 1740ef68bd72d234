package coord

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"star/coord/engine"
	"star/internal/exitcode"
	"star/ps/replica"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Where shards have copies and several processes may coordinate, another process takes both over:
// who holds a copy of what, and the firings that some copies hold and others do not.
// docs/decisions/0012-who-coordinates.md says why that is safe.
//
// Who holds a copy is agreed on before it is in force (Handover.Views). So whoever takes over knows
// of every shard who could still do something for an earlier coordinator: an update counts when all
// of the view hold it. One of them that stands to us is enough for the earlier one to get nothing
// done any more, and knows all that was acknowledged. Who does not come is taken out of the view,
// which is agreed on, too.

// replicaReports are what copies say that they hold: by server and shard the last firing.
type replicaReports map[[2]int]int64

// absentServers is how long a successor waits, since the first server came, for others whose shards
// have copies elsewhere.
const absentServers = 3 * time.Second

// newCopies begins the account of copies.
func newCopies(t *replica.Table, shards int, told int64) *copies {
	k := &copies{Copies: engine.NewCopies(t, told), counted: map[int64]map[int]bool{}}
	for range shards {
		k.ready = append(k.ready, map[int]bool{})
		k.norms = append(k.norms, map[int]event{})
	}
	return k
}

// seats writes down who has what. Seats counts copies, too. It changes e only.
func (c *Coordinator) seats(e *Handover) {
	e.Seats, e.Views = map[int]int{}, nil
	for _, s := range c.owner {
		e.Seats[s]++
	}
	if c.copies == nil {
		return
	}
	e.Seats = map[int]int{}
	for shard := range c.shards {
		v := c.copies.Table.View(shard)
		e.Views = append(e.Views, v)
		for _, s := range holders(v) {
			e.Seats[s]++
		}
	}
}

// holders are the servers of a view, the primary first.
func holders(v replica.View) []int { return append([]int{v.Primary}, v.Followers...) }

// persistCopies has a successor know who holds what from now on, before anybody else is told. It
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
	h.copies, h.views = replicaReports{}, h.handover.Views
	// Not those of the next view, which depends on who comes; but a job that has not begun to train
	// needs them all.
	views := slices.Clone(h.handover.Views)
	for i := range views {
		views[i].Term = max(views[i].Term, c.term()<<32) + 1
	}
	c.copies = newCopies(replica.NewTable(c.cfg.Replicas, views), len(views), 0)
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
		c.copies.ready[s.Shard][p.rank] = s.Version >= 0
		c.ready[s.Shard] = c.readyAll(s.Shard)
	}
	if c.takeover.came.IsZero() {
		c.takeover.came = time.Now()
	}
	return nil
}

// readyAll says whether every copy of a shard has its parameters.
func (c *Coordinator) readyAll(shard int) bool {
	return !slices.ContainsFunc(holders(c.copies.Table.View(shard)), func(s int) bool { return !c.copies.ready[shard][s] })
}

// goesWithout says whether a server that does not come is not waited for any more: every shard has
// a copy elsewhere.
func (c *Coordinator) goesWithout(rank int) bool {
	h := c.takeover
	if c.copies == nil || !c.trained() || h.came.IsZero() || time.Since(h.came) < absentServers {
		return false
	}
	for shard, v := range h.handover.Views {
		if !slices.ContainsFunc(holders(v), func(s int) bool {
			_, ok := h.copies[[2]int{s, shard}]
			return ok && s != rank && c.here(s)
		}) {
			return false
		}
	}
	return true
}

// disclaim forgets what a server has said, whose connection has ended.
func (c *Coordinator) disclaim(rank int) {
	if !c.settling() {
		return
	}
	c.takeover.reports[rank] = nil
	maps.DeleteFunc(c.takeover.copies, func(at [2]int, _ int64) bool { return at[0] == rank })
}

// here says whether a server stands to us.
func (c *Coordinator) here(rank int) bool {
	return c.takeover.reports[rank] != nil && c.servers[rank] != nil && !c.servers[rank].gone
}

// recoverCopies makes the table from what copies claim, and says how far the history goes. Only
// claims of servers that were in the view which was agreed on count. An error ends the job, exit
// code 69: no shard's history can be put together of those who are here.
func (c *Coordinator) recoverCopies() error {
	h := c.takeover
	if !c.trained() {
		return nil
	}
	var cs []replica.Claim
	for at, seq := range h.copies {
		if v := h.handover.Views[at[1]]; c.here(at[0]) && v.Has(at[0]) {
			cs = append(cs, replica.Claim{Server: at[0], Shard: at[1], View: v, Seq: seq})
		}
	}
	t, from, to, err := replica.Recover(c.term(), c.cfg.Replicas, len(c.shards), cs)
	if err != nil {
		return &Error{exitcode.Lost, err.Error()}
	}
	before := c.copies
	c.copies = newCopies(t, len(c.shards), from)
	c.copies.ready, c.copies.norms = before.ready, before.norms
	h.from, h.history.Seq = from, to
	return nil
}

// reinstate has everybody know who holds what, and offers firings again that some copies may not
// hold. It reports false when the lease is lost. Copies that are in no view any more are forgotten;
// views that have changed are agreed on before anybody hears of them. Errors are those of settle.
func (c *Coordinator) reinstate() (bool, error) {
	h, k := c.takeover, c.copies
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
	for shard := range c.shards {
		v := k.Table.View(shard)
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
	for at := range h.copies {
		if c.here(at[0]) && !k.Table.View(at[1]).Has(at[0]) {
			c.forgetCopy(c.servers[at[0]], at[1])
		}
	}
	if !c.trained() {
		return true, nil
	}
	for _, rank := range missing {
		for shard, v := range h.views {
			if v.Has(rank) {
				event := "lost"
				if v.Primary == rank {
					event = "promoted"
				}
				c.noteCopies(runlog.Replica{Shard: shard, Event: event, Server: rank, Why: "it did not come to the coordinator that took over"})
			}
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

// forgetExtras has a server that comes back drop the copies that it has and that are not counted on
// any more.
func (c *Coordinator) forgetExtras(p *peer, m wire.Standing) {
	for _, s := range m.Shards {
		if s.Shard < len(c.shards) && !c.copies.Table.View(s.Shard).Has(p.rank) {
			c.forgetCopy(p, s.Shard)
		}
	}
}

// forgetCopy has a server give up a copy that no view has any more.
func (c *Coordinator) forgetCopy(p *peer, shard int) {
	s := c.shards[shard]
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Adopt{Move: c.mover.Last(), Stage: wire.Forget, Shard: shard, Addr: s.Addr, From: s.From, To: s.To}, nil)
	})
}
