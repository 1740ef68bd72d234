package transport

import (
	"context"
	"errors"
	"net"
	"time"
)

// lookupTime is how long one lookup of a name may take before it is repeated: a resolver waits 5 s
// for a lost packet (resolv.conf(5)), which is all the time that a tool has.
const lookupTime = 1500 * time.Millisecond

// Lookup finds the addresses of a host. It repeats the query to a name server that does not answer
// until ctx ends; an error before that says that the name does not exist.
func Lookup(ctx context.Context, host string) (addrs []net.IPAddr, err error) {
	for {
		one, cancel := context.WithTimeout(ctx, lookupTime)
		addrs, err = net.DefaultResolver.LookupIPAddr(one, host)
		cancel()
		if d, ok := errors.AsType[*net.DNSError](err); err == nil || ok && d.IsNotFound {
			return addrs, err
		}
		pause := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		case <-pause.C:
		}
	}
}
