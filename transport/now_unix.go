//go:build unix

package transport

import (
	"net"
	"syscall"
)

// nowWriter writes to a TCP socket without blocking.
type nowWriter struct {
	raw syscall.RawConn
	try func(fd uintptr) bool // writes b once
	b   []byte
	n   int
	err error
}

// newNowWriter returns nil unless the connection is plain TCP: TLS cannot stop within a record.
func newNowWriter(nc net.Conn) *nowWriter {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	w := &nowWriter{raw: raw}
	w.try = func(fd uintptr) bool {
		for {
			w.n, w.err = syscall.Write(int(fd), w.b)
			if w.err != syscall.EINTR {
				return true // also for EAGAIN: do not wait
			}
		}
	}
	return w
}

// write returns how many bytes were taken.
func (w *nowWriter) write(b []byte) (int, error) {
	w.b = b
	err := w.raw.Write(w.try)
	w.b = nil
	switch {
	case err != nil:
		return 0, err
	case w.err == syscall.EAGAIN:
		return 0, nil
	case w.err != nil:
		return 0, w.err
	}
	return w.n, nil
}
