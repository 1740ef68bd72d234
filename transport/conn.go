package transport

import (
	"context"
	"time"

	"star/transport/wire"
)

// Frame is a received frame whose payload has not been read yet. It must be
// read (ReadPayload) or dropped (Discard) before the next Recv.
type Frame struct {
	Kind   wire.Kind
	Header []byte // msgpack; borrowed: valid until the next Recv
	Size   int64  // bytes of payload
}

// Conn is a connection that carries frames. One goroutine may write while
// another one reads; two writers need a lock of their own.
type Conn interface {
	// WriteFrame writes one frame. header and payload are borrowed until it
	// returns. sum is the payload's Sum.
	WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error

	// Recv reads the next prefix and header and checks them. After an error
	// the connection is useless and should be closed.
	Recv() (Frame, error)

	// ReadPayload reads the payload of the last frame into dst, whose length
	// must be the frame's Size, and checks its checksum. After a checksum error
	// dst holds garbage.
	ReadPayload(dst []byte) error

	// Discard reads past the payload of the last frame.
	Discard() error

	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error

	// Peer is how errors and logs call the other end. It is the remote address
	// until SetPeer.
	Peer() string
	SetPeer(string)
	RemoteAddr() string

	// Traffic is the bytes written and read so far.
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

// Network makes connections: TCP for real, Pipe in tests.
type Network interface {
	Dial(ctx context.Context, addr string) (Conn, error)
	Listen(addr string) (Listener, error)
}
