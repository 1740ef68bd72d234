package coord

import (
	"fmt"
	"math"

	"star/internal/exactsum"
	"star/pgns"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// norm adds a shard's part of a norm; the last one lets the update happen. The norm is summed
// without rounding (exactsum), so its bits do not depend on how many shards there are, nor on which
// of them speaks first. An error: the shard's word cannot be read, and the server goes.
// With copies it is called for the primary's word only (countNorms).
func (c *Coordinator) norm(p *peer, e event) error {
	n := c.norms[e.norm.Seq]
	if n == nil && c.takeover != nil && e.norm.Seq <= c.takeover.history.Seq {
		return nil // the coordinator before wanted to know, or it was told twice
	}
	if n == nil {
		return c.drop(p, fmt.Errorf("a norm for fire %d, which asked for none", e.norm.Seq))
	}
	if n.said[e.norm.Shard] {
		return nil
	}
	n.said[e.norm.Shard] = true
	if n.report {
		n.sum2 += e.norm.Sum2
		if n.left--; n.left == 0 {
			delete(c.norms, e.norm.Seq)
			n.noise.Sum2 = n.sum2
			c.observe(n.version, n.noise)
		}
		return nil
	}
	if c.cfg.Validation != nil {
		if err := n.hold(e.norm, &e.payload, len(c.shards)); err != nil {
			return c.drop(p, err)
		}
	}
	part, err := exactsum.ParseSquares(e.payload)
	if err != nil {
		return c.drop(p, fmt.Errorf("norm of shard %d: %w", e.norm.Shard, err))
	}
	n.sum.Merge(&part)
	if n.left--; n.left > 0 {
		return nil
	}
	delete(c.norms, e.norm.Seq)
	n.noise.Sum2 = n.sum.Float64()
	if !c.cfg.Lossy {
		c.observe(n.version, n.noise)
	}
	apply := wire.Apply{Seq: e.norm.Seq, Norm: math.Sqrt(n.noise.Sum2), Factor: 1}
	if c.cfg.Validation != nil {
		apply.Factor = c.verdict(e.norm.Seq, n)
	}
	for _, s := range c.servers {
		if s.hello.Shards > 0 {
			c.send(s, func() error { return transport.Send(s.conn, apply, nil) })
		}
	}
	return nil
}

// observe takes in what an update says of the noise of gradients. What cannot be used is passed
// over: an update of one gradient says nothing by itself.
func (c *Coordinator) observe(version int64, u pgns.Update) {
	m, err := c.noise.Observe(u)
	if err != nil {
		return // too few gradients, or one that is not finite
	}
	n := c.noise.Noise()
	drift, strength := c.noise.Drift()
	at := c.elapsed()
	line := runlog.Noise{Version: version, Grad2: runlog.Number(m.Grad2), Var: runlog.Number(m.Var),
		Mixed: u.Mixed(), Scale: runlog.Number(n.Scale), Drift: runlog.Number(drift), Strength: runlog.Number(strength)}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
}
