package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"star/transport"
	"star/transport/wire"
)

// search looks for the coordinator among several addresses. A nil search has one address. After all addresses have
// failed, Join pauses, longer each time.
type search struct {
	at     int // index in MemberConfig.Addrs
	failed int // in a row, since the last pause
}

// If an address does not accept a connection within dialTime, the next one is tried. In a job that has begun, the
// process must send its Welcome within standTime, because all servers report to it first. Before the job begins, the
// Welcome waits for all members.
const (
	dialTime  = 1500 * time.Millisecond
	standTime = 4 * time.Second
)

// newSearch begins with the first address. It returns nil if only one process may coordinate.
func newSearch(cfg *MemberConfig) *search {
	if len(cfg.Addrs) < 2 {
		return nil
	}
	cfg.Addr = cfg.Addrs[0]
	return new(search)
}

// open sends Hello to the present address. The bytes are the payload of the Welcome. Errors are those of transport.Open
// and of Reached; *transport.ElsewhereError has the address of the coordinator.
func (s *search) open(ctx context.Context, cfg *MemberConfig, payload []byte) (transport.Conn, wire.Welcome, []byte, error) {
	if cfg.Reached != nil {
		var err error
		if cfg.Hello.Addr, err = cfg.Reached(ctx); err != nil {
			return nil, wire.Welcome{}, nil, err
		}
	}
	if s == nil {
		return transport.Open(ctx, cfg.Network, cfg.Addr, cfg.Hello, payload)
	}
	if cfg.Rejoins {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, standTime)
		defer cancel()
	}
	return transport.Open(ctx, brisk{cfg.Network}, cfg.Addr, cfg.Hello, payload)
}

// next chooses the address to try next: the coordinator's according to err, or the following one. It returns false
// after all have failed in a row: then the caller pauses.
func (s *search) next(cfg *MemberConfig, err error) bool {
	if s == nil {
		return false
	}
	s.at = (s.at + 1) % len(cfg.Addrs)
	var elsewhere *transport.ElsewhereError
	if errors.As(err, &elsewhere) {
		if i := slices.Index(cfg.Addrs, elsewhere.Addr); i >= 0 {
			s.at = i
		}
	}
	cfg.Addr = cfg.Addrs[s.at]
	s.failed++
	if s.failed >= len(cfg.Addrs) {
		s.failed = 0
		return false
	}
	return true
}

// brisk is a network that waits only briefly for hosts that do not answer.
type brisk struct{ transport.Network }

// Dial is Network.Dial with the limit dialTime.
func (n brisk) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	return n.Network.Dial(ctx, addr)
}
