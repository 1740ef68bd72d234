package process

import (
	"context"
	"io"
	"net"
	"os"

	"star/transport"
)

// ViaVariable is set by star-chaos: the address of a proxy through which a worker reaches other workers of its
// ring or tree. A worker that connects there first sends the address that it wants to reach, as host:port and a
// new line.
const ViaVariable = "INSIDE_STAR_CHAOS_VIA"

// SamplerName is the command of star and star-worker that reads a GPU beside a worker.
const SamplerName = "gpu-sampler"

// Via returns a function that connects through that proxy; nil without one.
func Via() func(ctx context.Context, network, addr string) (net.Conn, error) {
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

// Peers is the network on which workers of a tree reach each other: tcp, or that proxy.
func Peers(tcp *transport.TCP) transport.Network {
	dial := Via()
	if dial == nil {
		return tcp
	}
	return &detour{tcp, dial}
}

type detour struct {
	*transport.TCP
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (d *detour) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	nc, err := d.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := transport.NewConn(nc, d.Limits)
	c.SetPeer(addr)
	return c, nil
}
