package membership

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"star/transport/wire"
)

// Place is a member's location as far as its addresses show it. It is a guess: hosts may share a link or a name. What
// is based on it (trees, paced pushes, moves) is undone if it does not help.
type Place struct {
	Site string // processes with the same site share a link
	addr string // the address that the member advertises
	back bool   // addr is a loopback address
}

// Here is the site of the coordinator.
const Here = "here"

// PlaceOf returns the place of a member with this Hello and a connection from remote. own are the addresses of the
// coordinator's host, which is one site. Other hosts are distinguished by name and address, because containers and
// clones share names.
func PlaceOf(h *wire.Hello, remote string, own []net.IP) Place {
	p := Place{Site: h.Host}
	p.addr, _, _ = strings.Cut(h.Addr, ",")
	p.back = leadsBack(p.addr)
	host, _, err := net.SplitHostPort(remote)
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil: // not a network address
	case ip.IsLoopback() || slices.ContainsFunc(own, ip.Equal):
		p.Site = Here
	default:
		p.Site += " " + ip.String()
	}
	return p
}

// leadsBack reports whether an address is loopback, and so means each process's own host.
func leadsBack(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Reaches reports whether a member at p can connect to the address that a member at o advertises.
func (p *Place) Reaches(o *Place) bool { return !o.back || p.Site == o.Site }

// Unreachable returns why members on other hosts cannot connect to the named member at p, and what helps.
func (p *Place) Unreachable(name string) string {
	return fmt.Sprintf("%s advertises %s, which on another host means that host itself: start it with --advertise HOST:PORT, and --listen beyond loopback", name, p.addr)
}

// Misled reports whether a member at p, with a connection from remote, advertises a loopback address to members on
// other hosts.
func (p *Place) Misled(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && net.ParseIP(host) != nil && p.Site != Here && p.back
}
