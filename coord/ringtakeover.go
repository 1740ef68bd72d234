package coord

import (
	"slices"
	"time"

	"star"
	"star/coord/failover"
	"star/engine"
	"star/transport"
)

// Stand is what a worker of a ring that has lost its coordinator tells the next one.
type Stand struct {
	Version  int64             `json:"version"` // of its parameters; -1: it has none
	Step     int64             `json:"step"`
	Metadata []byte            `json:"memo,omitempty"` // of its last release
	Told     []transport.Tally `json:"told,omitempty"` // of its last versions
}

// takeOverRing begins with a job of all-reduce that another coordinator has left.
func (c *Coordinator) takeOverRing() {
	c.assigned = true
	for rank := range c.servers {
		c.servers[rank] = c.nobody(rank) // none has shards; they may come
	}
}

// stands takes in how far a worker has come, of one that joins a successor of a ring before it trains.
func (c *Coordinator) stands(p *peer, s *Stand) error {
	if c.cfg.Ring == nil || !c.trained() || c.engine != nil || s == nil {
		return nil
	}
	var err error
	if c.takeover.ring, err = failover.Newest(c.takeover.ring, s.Metadata, c.cfg.Workers); err == nil {
		p.stand = s
	}
	return err
}

// ringGathers says whether somebody has come who has the parameters. The time for others to come begins with the first.
func (c *Coordinator) ringGathers() bool {
	if c.takeover.settled.IsZero() && slices.ContainsFunc(c.workers, func(p *peer) bool { return p != nil }) {
		c.takeover.settled = time.Now()
	}
	return len(c.withParameters()) > 0
}

// withParameters lists workers that have parameters which are not behind what is complete.
func (c *Coordinator) withParameters() (ws []star.Worker) {
	complete := c.takeover.handover.From.Version
	if m := c.takeover.ring; m != nil {
		complete = m.Version
	}
	for w, p := range c.workers {
		if p != nil && c.joined[w] && p.stand != nil && p.stand.Version >= complete {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// recollect makes the newest metadata what the job goes on with. Before the scheduler is made.
func (c *Coordinator) recollect() {
	h := c.takeover
	m := h.ring
	if m == nil {
		m = engine.Unreleased(h.handover.From, c.cfg.Workers)
		h.ring = m
	}
	h.after, h.before = m.Snapshot, m.Steps
	c.cfg.Resume = m.Progress
	c.log.Info("goes on with the ring", "term", c.term(), "version", m.Version, "samples", m.Samples, "under_way", len(m.Rounds), "memo_of_term", m.Term)
}
