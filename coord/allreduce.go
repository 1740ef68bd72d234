package coord

import (
	"strings"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/session"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// RingConfig makes a job one of all-reduce: no shards, and workers that update parameters of their
// own, all in the same way. All members update parameters by the same rule from the same sum, so
// nothing of the parameters comes to the coordinator but hashes.
type RingConfig struct {
	// Rule is the update rule in words. Workers with another one are refused,
	// because their parameters would drift from the others'.
	Rule string

	// RuleOf is Rule where the job takes what a worker that enrols so wants (Config.Adopt). Nil: Rule.
	RuleOf func(e session.Enrolment) string

	// Wait is how long a round waits for riders.
	Wait time.Duration

	// MaxStale drops gradients of riders that are older than so many updates. Zero: none.
	MaxStale int64
}

// announce tells a worker of a ring, with the addresses that concern it. The engine knows ranks
// only. A member hears where the ring meets (the first member's place), a rider the place of the
// member that carries it. A ring that is formed at once, because one has failed, ends what was
// under way in the one before (reformed).
func (c *Coordinator) announce(r engine.To[wire.Ring]) {
	p := c.peers.workers[r.Worker]
	if p == nil || p.gone {
		return
	}
	addr := func(w star.Worker) (meet, door string) {
		if o := c.peers.workers[w]; o != nil {
			meet, door, _ = strings.Cut(o.hello.Addr, ",")
		}
		return meet, door
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
		// An evaluation and a checkpoint that were under way in the ring that is given up will never be complete: they
		// are abandoned, and begun again with the next ring. Those of the end stay: members of the next ring answer them.
		c.measured.hashes.Clear()
		c.rounds.Restart(c.engine.View().Used)
		c.saves.Restart()
	}
	c.peers.send(p, func() error { return transport.Send(p.conn, m, nil) })
}

// compare takes the hash of a member's parameters. A member that has others than most is dropped. An error ends the
// job: it could go on with neither.
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
