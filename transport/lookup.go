package transport

import (
	"context"
	"errors"
	"net"
	"time"
)

// lookupTime is how long one lookup of a name may take before it is asked for again: a packet of a
// name server that is lost is waited for 5 s (resolv.conf(5)), which is all that a tool has.
const lookupTime = 1500 * time.Millisecond

// Lookup finds the addresses of a host. A name server that does not answer is asked again until ctx
// is over; an error before that says that there is no such name.
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
