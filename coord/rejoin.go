package coord

import (
	"fmt"
	"slices"

	"star"
	"star/runlog"
)

// ends says whether the job is about to end, so that no member can come to it.
func (c *Coordinator) ends() bool { return c.rounds.Final() || c.ended || c.stopping.Wound() }

// returns lets a worker come to a job that has begun. Until it has joined it is only a connection.
func (c *Coordinator) returns(p *peer, rank int) {
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.late = append(c.late, p)
	c.log.Info("a worker comes to the job", "worker", rank, "peer", p.conn.RemoteAddr())
	c.receive()
}

// holder is the connection of the worker that has a rank; nil: the rank is free.
func (c *Coordinator) holder(rank int) *peer {
	for _, p := range c.late {
		if p.rank == rank && !p.gone {
			return p
		}
	}
	return c.workers[rank]
}

// isLate says whether p has come to a job that has begun, and has no part in it yet.
func (c *Coordinator) isLate(p *peer) bool { return slices.Contains(c.late, p) }

// receive goes on with those who come to a job that has begun: a Welcome while no shard moves, and
// work once they have reached every shard and nothing of their rank's earlier attempt is on the
// way. It is called whenever one of these may have changed, and on every tick.
func (c *Coordinator) receive() {
	c.late = slices.DeleteFunc(c.late, func(p *peer) bool {
		if p.gone {
			return true
		}
		if _, moving := c.mover.Busy(); !p.welcomed && !moving && !c.rounds.Final() && !c.stopping.Wound() {
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
	c.workers[w] = p
	at := c.elapsed()
	line := runlog.Join{Worker: w, Peer: p.conn.RemoteAddr()}
	c.cfg.RunLog.Write(at, line)
	orders := c.engine.Join(w, c.takesOthers(p))
	c.tell(at, line)
	again := c.members.Enter(p.rank)
	c.log.Info(map[bool]string{true: "a worker is back", false: "a worker has joined"}[again], "worker", p.rank, "step", c.engine.View().Worker(w).Step, "version", c.engine.View().Version)
	c.thin()
	c.enlisted()
	c.issue(orders)
	if err := c.resize(); err != nil && c.sick == nil {
		c.sick = err // ends the job with the next orders
	}
}

// lostLate is a worker that went before it had a part in the job.
func (c *Coordinator) lostLate(p *peer, why error) {
	p.hangUp()
	c.members.Leave(p.rank)
	c.log.Warn("a worker that came to the job is gone again", "worker", p.rank, "reason", why)
	c.receive()
}
