package settings

import (
	"net"
	"strings"
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

// atHome is the default of a setting on a host whose loopback address is home.
func atHome[T Value](def T, home string) T {
	text, ok := any(def).(string)
	if !ok || home == ipv4Home {
		return def
	}
	if port, ok := strings.CutPrefix(text, ipv4Home+":"); ok {
		return any(net.JoinHostPort(home, port)).(T)
	}
	if text == ipv4Home {
		return any(home).(T)
	}
	return def
}
