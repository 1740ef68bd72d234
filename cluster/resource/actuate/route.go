package actuate

import (
	"fmt"
	"net"
)

// InterfaceTo returns the network interface that leads to an address, host:port. Loopback is an error: limiting it
// would limit every process of the machine.
func InterfaceTo(addr string) (string, error) {
	// Connecting a UDP socket sends nothing; it only asks the kernel for a route.
	c, err := net.Dial("udp", addr)
	if err != nil {
		return "", fmt.Errorf("tc: no way to %s: %w", addr, err)
	}
	defer c.Close()
	own := c.LocalAddr().(*net.UDPAddr).IP
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("tc: interfaces: %w", err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.Equal(own) {
				continue
			}
			if i.Flags&net.FlagLoopback != 0 {
				return "", fmt.Errorf("tc: %s is on this machine, and a limit of %s would hit every process; run it on another host or in a network namespace", addr, i.Name)
			}
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("tc: no interface has the address %s, which leads to %s", own, addr)
}
