package coord

import (
	"fmt"

	"star/coord/evaluate"
	"star/coord/failover"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// undecided begins to wait for the norms of Fires that are decided anew
// (failover.History.Undecided), and returns the Applys that some servers were given and others were
// not. late is by rank of the server. here has the reports of those that stand to us; nil: that one
// is not needed.
func (c *Coordinator) undecided(here []*failover.Report) (late map[int][]wire.Apply, err error) {
	anew, late := c.takeover.history.Undecided(here)
	for _, f := range anew {
		if !c.cfg.Norm {
			return nil, &Error{exitcode.Disagree, fmt.Sprintf("fire %d asks for the norm of the gradient first, and this process was started without (--clip)", f.Seq)}
		}
		c.norms.Expect(f.Seq, len(c.shards), evaluate.Norm{Version: f.Version})
	}
	return late, nil
}

// decide passes on what some were told, and counts the norms that were said too early. Errors are
// those of norm.
func (c *Coordinator) decide(late map[int][]wire.Apply) error {
	for rank, as := range late {
		p := c.servers[rank]
		for _, a := range as {
			c.send(p, func() error { return transport.Send(p.conn, a, nil) })
		}
	}
	early := c.takeover.norms
	c.takeover.norms = nil
	for _, s := range early {
		if s.by == c.servers[s.by.rank] && !s.by.gone {
			if err := c.norm(s.by, s.event); err != nil {
				return err
			}
		}
	}
	return nil
}
