// Package loopback identifies addresses that only this host reaches.
package loopback

import (
	"net"
	"sync"
)

// Home is this host's loopback address: 127.0.0.1, or ::1 where the host has no IPv4 loopback address.
var Home = sync.OnceValue(func() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ipv4Home
	}
	return home(addrs)
})

const ipv4Home = "127.0.0.1"

func home(addrs []net.Addr) string {
	found := ipv4Home
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsLoopback():
		case n.IP.To4() != nil:
			return ipv4Home
		default:
			found = n.IP.String()
		}
	}
	return found
}

// Is reports whether an address to listen on is reachable from this host
// only. A host that is a name, other than localhost, is not.
func Is(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
