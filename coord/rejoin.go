package coord

import (
	"fmt"
	"slices"

	"star"
	"star/runlog"
)

// returns lets a worker come to a job that has begun. Until it has joined it is only a connection.
func (c *Coordinator) returns(p *peer, rank int) {
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.peers.late = append(c.peers.late, p)
	c.log.Info("a worker comes to the job", "worker", rank, "peer", p.conn.RemoteAddr())
	c.receive()
}

// receive goes on with those who come to a job that has begun: a Welcome while no shard moves, and
// work once they have reached every shard and nothing of their rank's earlier attempt is on the
// way. It is called whenever one of these may have changed, and on every tick.
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

// enter gives a worker that has come back its first batch. The same rank that is taken up again
// begins with steps behind those of the attempt before, which the engine knows.
func (c *Coordinator) enter(p *peer) {
	w := star.Worker(p.rank)
	c.peers.workers[w] = p
	at := c.journal.elapsed()
	line := runlog.Join{Worker: w, Peer: p.conn.RemoteAddr()}
	c.journal.log.Write(at, line)
	orders := c.engine.Join(w, c.peers.takesOthers(p))
	c.journal.tell(at, line)
	again := c.members.Enter(p.rank)
	c.log.Info(map[bool]string{true: "a worker is back", false: "a worker has joined"}[again], "worker", p.rank, "step", c.engine.View().Worker(w).Step, "version", c.engine.View().Version)
	c.thin()
	c.lease.persist(c.enlist)
	c.issue(orders)
	if err := c.resize(); err != nil && c.run.sick == nil {
		c.run.sick = err // ends the job with the next orders
	}
}

// lostLate is a worker that went before it had a part in the job.
func (c *Coordinator) lostLate(p *peer, why error) {
	p.hangUp()
	c.members.Leave(p.rank)
	c.log.Warn("a worker that came to the job is gone again", "worker", p.rank, "reason", why)
	c.receive()
}
