package transport

import (
	"context"
	"time"

	"star/transport/wire"
)

// Frame is a received frame without its payload. The payload must be read (ReadPayload) or dropped
// (Discard) before the next Recv.
type Frame struct {
	Kind wire.Kind
	// Header is msgpack. It is borrowed: valid until the next Recv.
	Header []byte
	Size   int64 // bytes of payload
}

// Conn is a connection that carries frames. One goroutine may write while another one reads; two
// writers need a lock of their own.
type Conn interface {
	// WriteFrame writes one frame. header and payload are borrowed until it
	// returns. sum is the payload's Sum.
	WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error

	// Recv reads the next prefix and header and checks them. After an error the connection is
	// unusable and should be closed.
	Recv() (Frame, error)

	// ReadPayload reads the payload of the last frame into dst, which must have the length of the
	// frame's Size, and checks its checksum. After a checksum error dst is undefined.
	ReadPayload(dst []byte) error

	// Discard reads past the payload of the last frame.
	Discard() error

	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error

	// Peer is the name of the other end in errors and logs: the remote address until SetPeer.
	Peer() string
	SetPeer(string)
	RemoteAddr() string

	// Traffic returns the bytes written and read so far.
	Traffic() (sent, received int64)

	// Close may be called twice and from any goroutine; it ends a blocked Recv.
	Close() error
}

// Listener accepts connections.
type Listener interface {
	Accept() (Conn, error)
	Addr() string
	Close() error
}

// Network makes connections: TCP in production, Pipe in tests.
type Network interface {
	Dial(ctx context.Context, addr string) (Conn, error)
	Listen(addr string) (Listener, error)
}
