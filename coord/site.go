package coord

import (
	"fmt"
	"net"
	"slices"

	"star/coord/engine"
	"star/coord/membership"
	"star/internal/exitcode"
	"star/transport/wire"
)

// place is where a member is, as far as its addresses show. It is found out once for each connection.
func (c *Coordinator) place(p *peer) *membership.Place {
	if p.place == nil {
		remote := ""
		if p.conn != nil { // else it has not come to this coordinator
			remote = p.conn.RemoteAddr()
		}
		at := membership.PlaceOf(&p.hello, remote, c.ownAddrs())
		p.place = &at
	}
	return p.place
}

// site is the host of a member: processes with the same one share a link.
func (c *Coordinator) site(p *peer) string { return c.place(p).Site }

// meets says why a worker cannot exchange gradients with all others that have enrolled, in a ring or
// the tree of the plan, because of the address that it or one of them has given, and with which exit
// code it is refused. Empty: it can.
func (c *Coordinator) meets(p *peer) (why string, exit int) {
	visited := func(w *peer) bool {
		return !c.arch.sharded() || engine.TreeNeeds(c.cfg.Plan, w.rank, wire.Hello{}) != nil
	}
	for _, o := range c.workers {
		if o == nil || o == p || o.gone || o.rank == p.rank {
			continue
		}
		at, there := c.place(p), c.place(o)
		if !there.Reaches(at) && visited(p) {
			return at.Unreachable(fmt.Sprintf("worker %d", p.rank)), exitcode.Usage
		}
		if !at.Reaches(there) && visited(o) {
			return there.Unreachable(fmt.Sprintf("worker %d", o.rank)), exitcode.Disagree
		}
	}
	return "", 0
}

// takesOthers says whether a worker has a place where every other one can bring it gradients.
func (c *Coordinator) takesOthers(p *peer) bool {
	at := c.place(p)
	return p.hello.Addr != "" && !slices.ContainsFunc(c.workers, func(o *peer) bool { return o != nil && o != p && !c.place(o).Reaches(at) })
}

// ownAddrs are the addresses of this host. They are looked up once: a host that gets another
// address while a job runs is two sites from then on.
func (c *Coordinator) ownAddrs() []net.IP {
	if c.own == nil {
		c.own = []net.IP{net.IPv6loopback}
		as, _ := net.InterfaceAddrs() // without them only loopback is ours
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok {
				c.own = append(c.own, n.IP)
			}
		}
	}
	return c.own
}

// beside says whether a worker shares the host with every shard: what it sends goes over no
// link.
func (c *Coordinator) beside(p *peer) bool {
	at := c.site(p)
	return !slices.ContainsFunc(c.owner, func(s int) bool { return c.site(c.servers[s]) != at })
}
