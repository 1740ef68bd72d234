package coord

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"star/coord/engine"
	"star/internal/exitcode"
	"star/transport/wire"
)

// The hosts of members, as far as their addresses show. They are guesses: hosts may share a link or a name. What is
// built on them (trees, paced pushes, moves) is taken back when it does not pay.

// site is the host of a peer, as far as it shows: processes with the same one share a link. It is
// what the peer calls its host, and the address it comes from; our own host is one, whatever the
// address. It is found out once for each connection.
func (c *Coordinator) site(p *peer) string {
	if p.at == "" {
		p.at = c.locate(p)
	}
	return p.at
}

// here is the site of this process.
const here = "here"

// locate finds the site of a peer. What the peer calls its host is told apart by address, because
// containers and clones share names; any address of ours, loopback included, is here.
func (c *Coordinator) locate(p *peer) string {
	if p.conn == nil { // it has not come to this coordinator
		return p.hello.Host
	}
	host, _, err := net.SplitHostPort(p.conn.RemoteAddr())
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil: // no network of hosts
		return p.hello.Host
	case ip.IsLoopback() || slices.ContainsFunc(c.ownAddrs(), ip.Equal):
		return here
	}
	return p.hello.Host + " " + ip.String()
}

// reaches says why a member cannot reach another one under the address that this one has given: it
// leads back to the member's own host. Empty: it may. It is found before the member has tried in
// vain for minutes; the text names the flag that helps.
func (c *Coordinator) reaches(p, other *peer) string {
	if !other.leadsBack() || c.site(p) == c.site(other) {
		return ""
	}
	at, _, _ := strings.Cut(other.hello.Addr, ",")
	who := fmt.Sprintf("star-ps %d", other.rank)
	if other.role == wire.RoleWorker {
		who = fmt.Sprintf("worker %d", other.rank)
	}
	return fmt.Sprintf("%s says that it is reached at %s, which from another host leads to that host itself: start it with --advertise HOST:PORT, and --listen beyond loopback", who, at)
}

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
		if why := c.reaches(o, p); why != "" && visited(p) {
			return why, exitcode.Usage
		}
		if why := c.reaches(p, o); why != "" && visited(o) {
			return why, exitcode.Disagree
		}
	}
	return "", 0
}

// takesOthers says whether a worker has a place where every other one can bring it gradients.
func (c *Coordinator) takesOthers(p *peer) bool {
	return p.hello.Addr != "" && !slices.ContainsFunc(c.workers, func(o *peer) bool { return o != nil && o != p && c.reaches(o, p) != "" })
}

// leadsBack says whether the address that a member has given is its own. It is looked at once, because each worker
// that comes is compared with all others.
func (p *peer) leadsBack() bool {
	if p.hello.Addr != p.back.addr {
		at, _, _ := strings.Cut(p.hello.Addr, ",")
		p.back.addr, p.back.leads = p.hello.Addr, leadsBack(at)
	}
	return p.back.leads
}

// leadsBack says whether an address is that of whoever uses it.
func leadsBack(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
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
