package coord

import (
	"star"
	"star/coord/engine"
)

// withParameters lists workers that have parameters which are not behind what is complete. What is
// complete is what any metadata says that has come, or, where there is none, the version with which
// the job began.
func (c *Coordinator) withParameters() (ws []star.Worker) {
	complete := c.takeover.handover.From.Version
	if m := c.takeover.ring; m != nil {
		complete = m.Version
	}
	for w, p := range c.workers {
		if p != nil && c.members.Joined(w) && p.stand != nil && p.stand.Version >= complete {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// recollect makes the newest metadata what the job goes on with. Before the scheduler is made.
// Rounds that were granted and are not complete are in it: their samples are handed out again,
// unless members tell that they have made them.
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
