package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Limits of what Serve does for strangers.
const (
	maxPeers   = 16              // at a time
	maxStay    = 2 * time.Minute // of one connection
	maxPayload = probe           // bytes that a ping may want back
)

// payload is what every Pong takes its bytes from. It is never written to.
var payload [maxPayload]byte

// Serve answers the pings of doctors on other hosts until ctx is done, which is
// not an error. It closes l. The token of cfg, if there is one, is demanded.
func Serve(ctx context.Context, l transport.Listener, cfg transport.Config, version string) error {
	me, err := json.Marshal(self(version))
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	var peers atomic.Int32
	return transport.Serve(ctx, l, cfg, func(conn transport.Conn, h wire.Hello, _ []byte) {
		defer peers.Add(-1)
		if peers.Add(1) > maxPeers {
			transport.Refuse(conn, wire.Reject{Exit: exitcode.Restart, Reason: "too many doctors at once: try again later"})
			return
		}
		if h.Role != wire.RoleTool {
			transport.Refuse(conn, wire.Reject{Exit: exitcode.Disagree, Reason: "this is star doctor --serve, not a star-ps: start the job's star-ps here"})
			return
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		deadline := time.Now().Add(maxStay)
		conn.SetReadDeadline(deadline)
		conn.SetWriteDeadline(deadline)
		if transport.Send(conn, wire.Welcome{Rank: -1}, me) != nil {
			return
		}
		for answer(conn) == nil {
		}
	})
}

// answer reads one Ping and sends its Pong. Any error ends the connection: the peer has seen the
// reason, or is gone.
func answer(conn transport.Conn) error {
	f, err := conn.Recv()
	if err != nil {
		return err
	}
	if f.Kind != wire.KindPing {
		return fmt.Errorf("%v where ping must come", f.Kind)
	}
	m, err := wire.ParsePing(f.Header)
	if err != nil {
		return err
	}
	if m.Want > maxPayload {
		return fmt.Errorf("a ping wants %d bytes, at most %d", m.Want, maxPayload)
	}
	if err := conn.Discard(); err != nil {
		return err
	}
	return transport.Send(conn, wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}, payload[:m.Want])
}
