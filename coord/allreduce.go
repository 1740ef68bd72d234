package coord

import (
	"fmt"
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
	p := c.workers[r.Worker]
	if p == nil || p.gone {
		return
	}
	addr := func(w star.Worker) (meet, door string) {
		if o := c.workers[w]; o != nil {
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
			_, m.Door = addr(rider.Parent)
		}
	}
	if m.Now {
		c.reformed()
	}
	c.send(p, func() error { return transport.Send(p.conn, m, nil) })
}

// reformed forgets what the ring that was given up would have done. An evaluation and a checkpoint
// that were under way in it will never be whole, so they are given up, and begun again when the
// next ring is there. Those of the end stay: members of the next ring answer them.
func (c *Coordinator) reformed() {
	clear(c.hashes)
	c.rounds.Restart(c.engine.State().Used)
	c.saves.Restart()
}

// compared is how many members of a ring have said what the hash of the parameters is that they
// evaluated: it was the same.
func (c *Coordinator) compared(version int64) int {
	return len(c.hashes[version])
}

// compare notes the hash of a member's parameters. All members have the same ones. Who has others
// than most goes; where that cannot be told, the job ends.
//
// With n members, more than half of all must agree before anybody goes: as long as those who have
// not spoken could change the majority, it waits. Two members that differ cannot tell who is right,
// and the job ends with exit code 1, because it could go on with neither. Hashes of versions that
// are older than the rounds under way are forgotten.
func (c *Coordinator) compare(t wire.Tally) error {
	for v := range c.hashes {
		if v < t.Version-engine.RingAhead {
			delete(c.hashes, v)
		}
	}
	said := c.hashes[t.Version]
	if said == nil {
		said = map[int]int64{}
		c.hashes[t.Version] = said
	}
	said[int(t.Worker)] = t.Hash
	members := map[int64][]int{}
	most := t.Hash
	for w, hash := range said {
		if members[hash] = append(members[hash], w); len(members[hash]) > len(members[most]) {
			most = hash
		}
	}
	switch missing := len(c.engine.Members()) - len(said); {
	case len(members) == 1:
		return nil
	case 2*len(members[most]) > len(said)+max(missing, 0):
		for w, hash := range said {
			if hash == most {
				continue
			}
			delete(said, w)
			if p := c.workers[w]; p != nil && !p.gone {
				if err := c.drop(p, fmt.Errorf("its parameters of version %d have hash %08x, those of workers %v %08x: its processor computes differently, and cannot train with theirs with all-reduce",
					t.Version, hash, members[most], most)); err != nil {
					return err
				}
			}
		}
		return nil
	case missing > 0:
		return nil // they decide
	}
	for w, hash := range said {
		if hash != t.Hash {
			return &Error{exitcode.Failure, fmt.Sprintf("members of the ring have different parameters of version %d: worker %d has hash %08x, worker %d %08x; processors that compute differently cannot train together with all-reduce",
				t.Version, w, hash, t.Worker, t.Hash)}
		}
	}
	return nil
}

// evaluates says whether a worker takes part in an evaluation. In between only those that are
// released again soon: who is parked would hear of it too late. At the end everybody is parked.
func (c *Coordinator) evaluates(w star.Worker, final bool) bool {
	return c.engine.Evaluates(w) && (final || !c.engine.Worker(w).Parked)
}
