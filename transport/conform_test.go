package transport_test

import (
	"testing"

	"go.uber.org/goleak"

	"star/transport"
	"star/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTCPConforms(t *testing.T) {
	transporttest.Run(t, func(*testing.T) (transport.Network, string) {
		return transport.NewTCP(transport.Config{}), "127.0.0.1:0"
	})
}

func TestTLSConforms(t *testing.T) {
	c := certify(t)
	transporttest.Run(t, func(t *testing.T) (transport.Network, string) {
		return transport.NewTCP(transport.Config{TLS: c.config(t, "one")}), "127.0.0.1:0"
	})
}

func TestPipeConforms(t *testing.T) {
	transporttest.Run(t, func(*testing.T) (transport.Network, string) {
		return new(transport.Pipe), "shard:0"
	})
}

func TestSlowPipeConforms(t *testing.T) {
	link := transport.Link{Delay: 100_000, Bandwidth: 4 << 30}
	transporttest.Run(t, func(*testing.T) (transport.Network, string) {
		return &transport.Pipe{Up: link, Down: link}, "shard:0"
	})
}
