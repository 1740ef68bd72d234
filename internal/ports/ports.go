// Package ports finds addresses for processes that are to be started, where the others must know the port before.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
)

// Systems give connections that go out, and listeners that want any port, those above: one that is free now may be
// taken by them before the process listens.
const (
	leastPort = 10000
	mostPort  = 32767 // of Linux; others begin higher
)

// Reserve finds an address of a host of this machine without a listener, which is not among those that are taken, and
// with a port that systems give to no process that does not ask for it. Where there are no such ports, it is any free
// one.
func Reserve(host string, taken ...string) (addr string, err error) {
	most := mostPort
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var low int
		if _, err := fmt.Sscan(string(b), &low); err == nil {
			most = min(most, low-1)
		}
	}
	for try := 0; try < 100 && most > leastPort; try++ {
		addr, err = Listens(net.JoinHostPort(host, strconv.Itoa(leastPort+rand.IntN(most-leastPort))))
		if err == nil && !slices.Contains(taken, addr) {
			return addr, nil
		}
	}
	return Listens(net.JoinHostPort(host, "0"))
}

// Listens reports whether one can listen there: no process does now.
func Listens(at string) (addr string, err error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
