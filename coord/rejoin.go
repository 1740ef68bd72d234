package coord

import (
	"errors"
	"fmt"
	"slices"

	"star"
	"star/runlog"
)

// returns takes in a worker whose rank nobody has any more in a job that has begun. Until its
// Joined it is nothing but a connection. It returns why it may not. It is refused with exit code
// 75: a moment later the job may be over, or have room.
func (c *Coordinator) returns(p *peer, rank int) error {
	if c.rounds.Final() || c.ended || c.stopping.Wound() {
		return errors.New("the job ends")
	}
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.late = append(c.late, p)
	c.log.Info("a worker comes to the job", "worker", rank, "peer", p.conn.RemoteAddr())
	c.receive()
	return nil
}

// taken are the workers by rank, with those that are coming. A rank that somebody is on the way to
// is not given to another one.
func (c *Coordinator) taken() []*peer {
	if len(c.late) == 0 {
		return c.workers
	}
	all := slices.Clone(c.workers)
	for _, p := range c.late {
		if !p.gone {
			all[p.rank] = p
		}
	}
	return all
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
		if !c.joined[p.rank] || c.engine.Lingers(star.Worker(p.rank)) || c.rounds.Final() || c.stopping.Wound() {
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
	c.log.Info(map[bool]string{true: "a worker is back", false: "a worker has joined"}[c.seen[w]], "worker", p.rank, "step", c.engine.Worker(w).Step, "version", c.engine.State().Version)
	c.seen[w] = true
	delete(c.diverged, p.rank)
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
	c.joined[p.rank] = false
	c.log.Warn("a worker that came to the job is gone again", "worker", p.rank, "reason", why)
	c.receive()
}
