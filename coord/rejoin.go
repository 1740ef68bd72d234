package coord

import (
	"fmt"
	"slices"

	"star"
	"star/runlog"
)

// returns adds a worker to a job that has begun. Until it has joined it is only a connection (late).
func (c *Coordinator) returns(p *peer, rank int) {
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.peers.late = append(c.peers.late, p)
	c.log.Info("worker connected to the running job", "worker", rank, "peer", p.conn.RemoteAddr())
	c.receive()
}

// receive handles workers that come to a job that has begun: each gets a Welcome while no shard moves, and work once it
// has connected to every shard and no message of its rank's earlier attempt is in flight. It is called after each
// change of these conditions, and on every tick.
func (c *Coordinator) receive() {
	c.peers.late = slices.DeleteFunc(c.peers.late, func(p *peer) bool {
		if p.gone {
			return true
		}
		if _, moving := c.placing.mover.Busy(); !p.welcomed && !moving && !c.rounds.Final() && !c.stopping.Wound() {
			c.welcome(p)
		}
		if !c.members.Joined(p.rank) || c.engine.View().Lingers(star.Worker(p.rank)) || c.rounds.Final() || c.stopping.Wound() {
			return false
		}
		c.enter(p)
		return true
	})
}

// enter gives a late worker its first batch. If the rank was used before, its steps follow those of the earlier
// attempt, which the engine knows.
func (c *Coordinator) enter(p *peer) {
	w := star.Worker(p.rank)
	c.peers.workers[w] = p
	at := c.journal.Elapsed()
	line := runlog.Join{Worker: w, Peer: p.conn.RemoteAddr()}
	c.measured.pace.Join(w, line.Peer)
	c.journal.WriteAt(at, line)
	orders := c.engine.Join(w, c.peers.takesOthers(p))
	c.journal.Tell(at, line)
	again := c.members.Enter(p.rank)
	c.log.Info(map[bool]string{true: "worker rejoined", false: "worker joined"}[again], "worker", p.rank, "step", c.engine.View().Worker(w).Step, "version", c.engine.View().Version)
	c.thin()
	c.lease.Persist(c.enlist)
	c.issue(orders)
	if err := c.resize(); err != nil && c.run.sick == nil {
		c.run.sick = err // ends the job with the next orders
	}
}

// lostLate handles the loss of a worker that takes no part yet.
func (c *Coordinator) lostLate(p *peer, why error) {
	p.hangUp()
	c.members.Leave(p.rank)
	c.log.Warn("worker left before it took part", "worker", p.rank, "reason", why)
	c.receive()
}
