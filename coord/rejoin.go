package coord

import (
	"errors"
	"fmt"
	"slices"

	"star"
	"star/modes"
	"star/runlog"
	"star/transport"
)

// join has a worker back that had left, or its replacement: it takes part from the present version on, with a
// batch of its own, if there is one left.
func (l *ledger) join(w star.Worker) []order {
	if l.ring != nil {
		return l.ring.join(w)
	}
	l.out = l.out[:0]
	a := &l.accounts[w]
	if a.live || a.ghost {
		return nil
	}
	if l.shards > 0 && a.step >= 0 { // some may hold a gradient of its earlier life, and the memory that the next one needs
		l.throwAway(w)
		l.out[0].silent = true
	}
	stored := a.stored
	clear(stored)
	// What shards say of the earlier life may still be on the way: a new step tells it apart.
	*a = account{live: true, parked: true, step: a.step + 1, stored: stored, up: modes.Direct}
	for pair := range l.cut {
		if pair[0] == w || pair[1] == w {
			delete(l.cut, pair) // what could not be reached was the one before
		}
	}
	if len(l.redo) == 0 && l.cursor >= l.limit {
		return l.out // it waits for the end, like the others
	}
	l.barrier.Join(w)
	a.counted = true
	r, _ := l.release(w, l.barrier.Version())
	r.Pull, a.led = l.shards > 0, true
	l.out = append(l.out, order{releases: []transport.Release{r}})
	return l.out
}

// returns takes in a worker whose rank nobody has any more in a job that has begun. Until its Joined it is
// nothing but a connection. It returns why it may not.
func (c *Coordinator) returns(p *peer, rank int) error {
	if c.final || c.ended {
		return errors.New("the job ends")
	}
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.late = append(c.late, p)
	c.log.Info("a worker comes to the job", "worker", rank, "peer", p.conn.RemoteAddr())
	c.receive()
	return nil
}

// taken are the workers by rank, with those that are coming.
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

// receive goes on with those who come to a job that has begun: a Welcome while no shard moves, and work once they have
// reached every shard and nothing of their rank's earlier life is on the way.
func (c *Coordinator) receive() {
	c.late = slices.DeleteFunc(c.late, func(p *peer) bool {
		if p.gone {
			return true
		}
		if !p.welcomed && c.mover.stage == moveIdle && !c.final {
			c.welcome(p)
		}
		if !c.joined[p.rank] || c.ledger.lingers(star.Worker(p.rank)) || c.final {
			return false
		}
		c.enter(p)
		return true
	})
}

// lingers says whether something of the earlier life of w is still on its way.
func (l *ledger) lingers(w star.Worker) bool {
	if l.ring != nil {
		return l.ring.traces(w)
	}
	return l.accounts[w].ghost
}

// enter gives a worker that has come back its first batch.
func (c *Coordinator) enter(p *peer) {
	w := star.Worker(p.rank)
	c.workers[w] = p
	if c.ledger.doors != nil {
		c.ledger.doors[w] = p.hello.Addr != ""
	}
	at := c.elapsed()
	line := runlog.Join{Worker: w, Peer: p.conn.RemoteAddr()}
	c.cfg.RunLog.Write(at, line)
	orders := c.ledger.join(w)
	c.tell(at, line)
	c.log.Info(map[bool]string{true: "a worker is back", false: "a worker has joined"}[c.seen[w]], "worker", p.rank, "step", c.ledger.accounts[w].step, "version", c.ledger.version())
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
