package coord

import (
	"fmt"
	"math"

	"star/transport/wire"
)

// norm adds a shard's part of a norm; the last part starts the update. If the report is invalid, the server is dropped.
// With copies it is called only for the report of the primary (pump).
func (c *Coordinator) norm(p *peer, e event) error {
	seq := e.Norm.Seq
	if !c.measured.norms.Expects(seq) {
		if c.takeover.Fired(seq) {
			return nil // requested by the previous coordinator, or a repetition
		}
		return c.drop(p, fmt.Errorf("a norm for fire %d, which did not ask for one", seq))
	}
	u, whole, err := c.measured.norms.Take(e.Norm, e.Payload)
	switch {
	case err != nil:
		return c.drop(p, err)
	case !whole:
		return nil
	}
	if u.After || !c.cfg.Lossy {
		c.measured.observe(&c.journal, u.Version, u.Noise)
	}
	if u.After {
		return nil
	}
	apply := wire.Apply{Seq: seq, Norm: math.Sqrt(u.Noise.Sum2), Factor: c.verdict(seq, &u)}
	tellShards(&c.peers, apply, nil)
	return nil
}
