package membership

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"star/transport/wire"
)

// Place is where a member is, as far as its addresses show. It is a guess: hosts may share a link or a name. What is
// built on it (trees, paced pushes, moves) is taken back when it does not pay.
type Place struct {
	Site string // processes with the same one share a link
	addr string // where others reach the member
	back bool   // which leads each of them to its own host
}

// Here is the site of the coordinator.
const Here = "here"

// PlaceOf is the place of a member with this Hello, whose connection comes from remote. own are the addresses of the
// coordinator's host, which is one site. Other hosts are told apart by name and address, because containers and clones
// share names.
func PlaceOf(h *wire.Hello, remote string, own []net.IP) Place {
	p := Place{Site: h.Host}
	p.addr, _, _ = strings.Cut(h.Addr, ",")
	p.back = leadsBack(p.addr)
	host, _, err := net.SplitHostPort(remote)
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil: // no network of hosts
	case ip.IsLoopback() || slices.ContainsFunc(own, ip.Equal):
		p.Site = Here
	default:
		p.Site += " " + ip.String()
	}
	return p
}

// leadsBack says whether an address leads each process to its own host.
func leadsBack(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Reaches says whether a member at p reaches one at o by the address that o has given.
func (p *Place) Reaches(o *Place) bool { return !o.back || p.Site == o.Site }

// Unreachable says of the member with that name and place why members of other hosts do not reach it, and what helps.
func (p *Place) Unreachable(name string) string {
	return fmt.Sprintf("%s says that it is reached at %s, which from another host leads to that host itself: start it with --advertise HOST:PORT, and --listen beyond loopback", name, p.addr)
}

// Misled says whether a member at p, whose connection comes from remote, has given an address that leads members of
// other hosts to themselves.
func (p *Place) Misled(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && net.ParseIP(host) != nil && p.Site != Here && p.back
}
