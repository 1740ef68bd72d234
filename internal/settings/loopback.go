package settings

import (
	"net"
	"strings"

	"star/internal/loopback"
)

// Home is this host's loopback address: 127.0.0.1, or ::1 where the host has no IPv4 loopback address.
func Home() string { return loopback.Home() }

const ipv4Home = "127.0.0.1"

// atHome is the default of a setting on a host with loopback address home.
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
