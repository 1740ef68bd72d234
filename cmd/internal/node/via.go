package node

import (
	"context"
	"io"
	"net"
	"os"
)

// ViaVariable is set by star chaos: the address of a proxy through which a worker reaches other workers of its ring. Whoever connects there says whom it
// wants to reach, as host:port and a new line.
const ViaVariable = "INSIDE_STAR_CHAOS_VIA"

// via makes connections through that proxy. Nil: there is none.
func via() func(ctx context.Context, network, addr string) (net.Conn, error) {
	proxy := os.Getenv(ViaVariable)
	if proxy == "" {
		return nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, proxy)
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(c, addr+"\n"); err != nil {
			c.Close()
			return nil, err
		}
		return c, nil
	}
}
