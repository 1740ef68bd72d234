package coord

import (
	"strings"

	"star"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/transport/wire"
)

// announce sends a ring to a worker, with the addresses that it needs; the engine knows only ranks. A member gets the
// meeting point of the ring (the first member's address), a rider the address of the member that carries it. A ring
// that is formed at once, after a failure, cancels the operations of the previous ring.
func (c *Coordinator) announce(r engine.To[wire.Ring]) {
	p := c.peers.workers[r.Worker]
	if p == nil || p.gone {
		return
	}
	addr := func(w star.Worker) (meet, carry string) {
		if o := c.peers.workers[w]; o != nil {
			meet, carry, _ = strings.Cut(o.hello.Addr, ",")
		}
		return meet, carry
	}
	m := r.Msg
	if len(m.Members) > 0 {
		m.Addr, _ = addr(m.Members[0])
	}
	for _, rider := range m.Riders {
		if rider.Worker == r.Worker {
			_, m.ParentAddr = addr(rider.Parent)
		}
	}
	if m.Now {
		// An evaluation or checkpoint of the abandoned ring will never be complete: it is dropped, and begun
		// again with the next ring. Those of the end stay: members of the next ring answer them.
		c.measured.hashes.Clear()
		c.rounds.Restart(c.engine.View().Used)
		c.saves.Restart()
		p.measured.Abandon()
	}
	tell(&c.peers, p, m, nil)
}

// compare takes the hash of a member's parameters. If it differs from the majority's, the member is dropped. An error
// ends the job: there is no majority.
func (c *Coordinator) compare(t wire.Tally) error {
	wrong, err := c.measured.hashes.Compare(t, len(c.engine.View().Members), engine.RingAhead)
	if err != nil {
		return &Error{exitcode.Failure, err.Error()}
	}
	for _, e := range wrong {
		if p := c.peers.workers[e.Worker]; p != nil && !p.gone {
			if err := c.drop(p, e.Err); err != nil {
				return err
			}
		}
	}
	return nil
}
