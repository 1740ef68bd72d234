package process

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"star/cluster/resource"
	"star/modes"
	"star/modes/price"
)

// Addresses are those of a host besides loopback.
type Addresses map[netip.Addr]bool

// OwnAddresses are those of this host.
func OwnAddresses() Addresses {
	own := Addresses{}
	addrs, _ := net.InterfaceAddrs() // none: only loopback is local
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// thisHost are this host's addresses, as they were when they were first asked for.
var thisHost = sync.OnceValue(OwnAddresses)

// Elsewhere reports whether an address is on another host, so that traffic with it uses a link.
func Elsewhere(addr string) bool { return !thisHost().Has(addr) }

// Has reports whether an address, with a port, is on the host. Names are not looked up: they count as other hosts.
func (as Addresses) Has(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && (a.Addr().Unmap().IsLoopback() || as[a.Addr().Unmap()])
}

// Crowding is the part of a machine's use, as a share of all its cores, that counts against a
// capacity: what does not fit into the rest of the machine. A process with two cores of eight loses
// nothing if others use six.
func Crowding(share, cores, capacity float64) float64 {
	return max(share*cores-max(cores-capacity, 0), 0)
}

// LoadOf is the load that a plan puts on servers at given iteration times. A lost worker (0) counts
// as the slowest: it might come back.
func LoadOf(p modes.Plan, times []time.Duration) (resource.Load, error) {
	slowest := time.Duration(0)
	for _, t := range times {
		slowest = max(slowest, t)
	}
	if slowest == 0 {
		return resource.Load{}, errors.New("no worker has said yet what its iterations take")
	}
	for w, t := range times {
		if t == 0 {
			times[w] = slowest
		}
	}
	pace, err := price.PaceOf(p, times)
	if err != nil {
		return resource.Load{}, err
	}
	u := 1 / pace.Interval.Seconds()
	return resource.Load{Updates: u, Gradients: u * pace.Gradients / max(1-pace.Dropped, 0.01)}, nil
}
