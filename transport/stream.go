package transport

import (
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"star/transport/wire"
)

const (
	// readAhead is the size of a connection's buffer. Small messages are read into it; of a payload, only the bytes
	// that come with its header pass through it.
	readAhead = 8 << 10

	// chunk is the number of bytes of a payload that are summed and then sent, or read and then summed, at a time, so
	// that the second step finds them in the cache. In measurements from 64 KiB to 4 MiB, smaller writes and reads
	// cost more than they saved.
	chunk = 1 << 20

	// small is the largest payload that is copied behind its header: one write instead of a vector of two.
	small = 4 << 10
)

// Error is the error of a Conn: the operation, the peer, and the reason.
type Error struct {
	Op   string // dial, recv, read, write, …
	Peer string
	Err  error
}

// Error names the peer, the operation and the reason.
func (e *Error) Error() string {
	if e.Peer == "" {
		return "transport: " + e.Op + ": " + e.Err.Error()
	}
	return "transport: " + e.Op + " " + e.Peer + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

var headers = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// Send sends m with its payload. payload may be empty, and is not used after the return. An error
// is an *Error with the peer; the connection is unusable then.
func Send[M wire.Message](c Conn, m M, payload []byte) error {
	_, err := SendSum(c, m, payload)
	return err
}

// SendSum is Send that also returns the Sum of the payload, computed on the way, for sending it
// again. Errors are those of Send.
func SendSum[M wire.Message](c Conn, m M, payload []byte) (sum uint32, err error) {
	h := headers.Get().(*[]byte)
	*h = m.AppendTo((*h)[:0])
	if w, ok := c.(*netConn); ok {
		sum, err = w.writeFrame(m.Kind(), *h, payload, 0, false)
	} else {
		sum = Sum(payload)
		err = c.WriteFrame(m.Kind(), *h, payload, sum)
	}
	headers.Put(h)
	return sum, err
}

// SendSummed sends m with a payload and its known Sum: a payload for many peers is summed once.
// Errors are those of Send.
func SendSummed[M wire.Message](c Conn, m M, payload []byte, sum uint32) error {
	h := headers.Get().(*[]byte)
	*h = m.AppendTo((*h)[:0])
	err := c.WriteFrame(m.Kind(), *h, payload, sum)
	headers.Put(h)
	return err
}

// WriteNow writes a frame if the connection takes it without blocking. If it was not taken, or only
// in part, the next frame to be written must be the same one, by WriteFrame, which writes the rest.
// Only plain TCP takes any bytes, and only payloads up to 4 KiB. Errors and the rules for
// goroutines are those of WriteFrame.
func WriteNow(c Conn, k wire.Kind, header, payload []byte, sum uint32) (taken bool, err error) {
	if w, ok := c.(*netConn); ok {
		return w.writeNow(k, header, payload, sum)
	}
	return false, nil
}

// ReadAll reads the payload of f into new memory. It is for texts: memory grows with the received
// bytes, not with what the frame claims. A premature end, a deadline and a wrong checksum are an
// *Error.
func ReadAll(c Conn, f Frame) ([]byte, error) {
	if w, ok := c.(*netConn); ok {
		return w.readAll()
	}
	b := make([]byte, f.Size)
	return b, c.ReadPayload(b)
}

// NewConn makes a Conn of a stream. The zero Limits are valid.
func NewConn(nc net.Conn, l Limits) Conn {
	c := &netConn{nc: nc, limits: l, buf: make([]byte, readAhead), out: make([]byte, 0, 512), now: newNowWriter(nc)}
	c.remote = nc.RemoteAddr().String()
	c.SetPeer(c.remote)
	return c
}

// netConn is a Conn over a stream.
type netConn struct {
	nc     net.Conn
	limits Limits
	remote string
	peer   atomic.Pointer[string]

	sent, received atomic.Int64

	// The fields below belong to the reader.
	buf []byte
	// buf[r:w] was read from nc and not used yet.
	r, w   int
	prefix [prefixSize]byte
	header []byte
	kind   wire.Kind
	size   int64 // of the last frame's payload
	left   int64 // bytes of it that were not read
	rerr   error // permanent

	// The fields below belong to the writer.
	out []byte
	// now is nil if WriteNow takes nothing.
	now  *nowWriter
	part int // bytes of the next frame that writeNow has written
	tail [sumSize]byte
	vec  net.Buffers
	vecs [3][]byte
	werr error // permanent
}

func (c *netConn) Peer() string       { return *c.peer.Load() }
func (c *netConn) SetPeer(s string)   { c.peer.Store(&s) }
func (c *netConn) RemoteAddr() string { return c.remote }

func (c *netConn) Traffic() (sent, received int64) { return c.sent.Load(), c.received.Load() }

func (c *netConn) SetReadDeadline(t time.Time) error  { return c.nc.SetReadDeadline(t) }
func (c *netConn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// Close may be called twice without an error. With TLS it takes half a second at most.
func (c *netConn) Close() error {
	if tc, ok := c.nc.(*tls.Conn); ok {
		// crypto/tls sends a close message, for which it waits 5 s for a peer that does not read.
		defer time.AfterFunc(time.Second/2, func() { tc.NetConn().Close() }).Stop()
	}
	err := c.nc.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *netConn) WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error {
	_, err := c.writeFrame(k, header, payload, sum, true)
	return err
}

// writeFrame computes the checksum on the way if it is unknown, and returns it.
func (c *netConn) writeFrame(k wire.Kind, header, payload []byte, sum uint32, known bool) (uint32, error) {
	if c.werr != nil {
		return 0, c.werr
	}
	size := int64(len(payload))
	if len(header) > wire.MaxHeader || size > c.limits.Payload(k) {
		return 0, &Error{"write", c.Peer(), fmt.Errorf("%w: %v with %d bytes of header (at most %d) and %d of payload (at most %d)",
			ErrTooLarge, k, len(header), wire.MaxHeader, size, c.limits.Payload(k))}
	}
	c.out = appendFrame(c.out[:0], k, header, size)
	var err error
	if len(payload) <= small {
		if len(payload) > 0 {
			if !known {
				sum = Sum(payload)
			}
			c.out = append(c.out, payload...)
			c.out = binary.LittleEndian.AppendUint32(c.out, sum)
		}
		err = c.write(c.out[c.part:], nil, nil)
		c.part = 0
	} else {
		head, running := c.out, uint32(0)
		for err == nil && len(payload) > 0 {
			now := payload
			var tail []byte
			if !known {
				now = payload[:min(len(payload), chunk)]
				running = more(running, now)
			}
			payload = payload[len(now):]
			if len(payload) == 0 {
				if !known {
					sum = running
				}
				binary.LittleEndian.PutUint32(c.tail[:], sum)
				tail = c.tail[:]
			}
			err = c.write(head, now, tail)
			head = nil
		}
	}
	if err != nil {
		c.werr = &Error{"write", c.Peer(), fmt.Errorf("%v: %w", k, err)}
	}
	return sum, c.werr
}

// writeNow is WriteNow.
func (c *netConn) writeNow(k wire.Kind, header, payload []byte, sum uint32) (taken bool, err error) {
	if c.werr != nil {
		return false, c.werr
	}
	if c.now == nil || len(payload) > small || len(header) > wire.MaxHeader || int64(len(payload)) > c.limits.Payload(k) {
		return false, nil // WriteFrame reports the error
	}
	c.out = appendFrame(c.out[:0], k, header, int64(len(payload)))
	if len(payload) > 0 {
		c.out = append(c.out, payload...)
		c.out = binary.LittleEndian.AppendUint32(c.out, sum)
	}
	n, err := c.now.write(c.out[c.part:])
	c.sent.Add(int64(n))
	if err != nil {
		c.werr = &Error{"write", c.Peer(), fmt.Errorf("%v: %w", k, err)}
		return false, c.werr
	}
	if c.part += n; c.part < len(c.out) {
		return false, nil
	}
	c.part = 0
	return true, nil
}

// write writes up to three pieces in one system call if the stream can.
func (c *netConn) write(head, body, tail []byte) error {
	var n int64
	var err error
	if body == nil {
		var m int
		m, err = c.nc.Write(head)
		n = int64(m)
	} else {
		c.vec = c.vecs[:0]
		for _, b := range [...][]byte{head, body, tail} {
			if len(b) > 0 {
				c.vec = append(c.vec, b)
			}
		}
		n, err = c.vec.WriteTo(c.nc)
		c.vecs, c.vec = [3][]byte{}, nil // body was borrowed
	}
	c.sent.Add(n)
	return err
}

// read makes one read of the stream.
func (c *netConn) read(b []byte) (int, error) {
	for range 100 {
		n, err := c.nc.Read(b)
		c.received.Add(int64(n))
		if n > 0 {
			return n, nil // the error, if any, is returned again
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// need waits until n bytes are in the buffer.
func (c *netConn) need(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	if c.r > 0 && len(c.buf)-c.r < n || c.r == c.w {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	for c.w-c.r < n {
		m, err := c.read(c.buf[c.w:])
		if err != nil {
			return err
		}
		c.w += m
	}
	return nil
}

// full fills b, first from the buffer, then from the stream in chunks, and returns the running
// checksum.
func (c *netConn) full(b []byte, sum uint32) (uint32, error) {
	n := copy(b, c.buf[c.r:c.w])
	c.r += n
	sum = more(sum, b[:n])
	for b = b[n:]; len(b) > 0; b = b[n:] {
		var err error
		if n, err = c.read(b[:min(len(b), chunk)]); err != nil {
			return sum, midway(err)
		}
		sum = more(sum, b[:n])
	}
	return sum, nil
}

// midway returns the error of a stream that ended inside a frame.
func midway(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fail makes an error of the reader permanent.
func (c *netConn) fail(op string, err error) error {
	c.rerr = &Error{op, c.Peer(), err}
	return c.rerr
}

// Recv returns an error that is io.EOF if the peer has closed the connection between two frames,
// and io.ErrUnexpectedEOF inside one.
func (c *netConn) Recv() (Frame, error) {
	if c.rerr != nil {
		return Frame{}, c.rerr
	}
	if c.left > 0 {
		return Frame{}, &Error{"recv", c.Peer(), fmt.Errorf("%w: %d bytes of %v", ErrUnread, c.left, c.kind)}
	}
	if err := c.need(prefixSize); err != nil {
		if c.r < c.w {
			err = midway(err)
		}
		if c.w-c.r >= len(magic) { // less than a frame, and then the end: an alert of TLS
			err = cmp.Or(stranger(c.buf[c.r:c.w]), err)
		}
		return Frame{}, c.fail("recv", err)
	}
	copy(c.prefix[:], c.buf[c.r:])
	p, err := parsePrefix(&c.prefix, c.limits)
	if err != nil {
		return Frame{}, c.fail("recv", err)
	}
	c.r += prefixSize
	total := p.header + p.pad
	for c.header = c.header[:0]; len(c.header) < total; {
		// The memory of a long header grows with the received bytes.
		n := min(total-len(c.header), readAhead)
		c.header = slices.Grow(c.header, n)
		at := len(c.header)
		c.header = c.header[:at+n]
		if err := c.short(c.header[at:]); err != nil {
			return Frame{}, c.fail("recv", midway(err))
		}
	}
	if err := p.verify(&c.prefix, c.header); err != nil {
		return Frame{}, c.fail("recv", err)
	}
	c.header = c.header[:p.header]
	if p.version != Protocol {
		e := &VersionError{Ours: Protocol, Theirs: p.version}
		if m, err := wire.ParseReject(c.header); err == nil {
			e.Reason = m.Reason
		}
		return Frame{}, c.fail("recv", e)
	}
	c.kind, c.size, c.left = p.kind, p.size, p.size
	return Frame{Kind: p.kind, Header: c.header, Size: p.size}, nil
}

// short fills b, which is no longer than the buffer, and reads ahead.
func (c *netConn) short(b []byte) error {
	if err := c.need(len(b)); err != nil {
		return err
	}
	c.r += copy(b, c.buf[c.r:c.w])
	return nil
}

// ReadPayload reads the payload of the last received frame; dst must have its size.
func (c *netConn) ReadPayload(dst []byte) error {
	if err := c.fits(len(dst)); err != nil {
		return err
	}
	sum, err := c.full(dst, 0)
	return c.ended(sum, err)
}

// fits returns an error unless the payload may be read into that many bytes.
func (c *netConn) fits(room int) error {
	if c.rerr != nil {
		return c.rerr
	}
	if c.left != c.size || int64(room) != c.size {
		return &Error{"read", c.Peer(), fmt.Errorf("%w: %v has %d bytes, %d of them unread, and there is room for %d",
			ErrSize, c.kind, c.size, c.left, room)}
	}
	return nil
}

// ended finishes a payload with that checksum, or with an error.
func (c *netConn) ended(sum uint32, err error) error {
	if err != nil {
		return c.fail("read", fmt.Errorf("payload of %v: %w", c.kind, err))
	}
	c.left = 0
	return c.checkSum(sum)
}

// checkSum reads the checksum after a payload and compares it with got.
func (c *netConn) checkSum(got uint32) error {
	if c.size == 0 {
		return nil
	}
	if err := c.need(sumSize); err != nil {
		return c.fail("read", fmt.Errorf("sum of %v: %w", c.kind, midway(err)))
	}
	want := binary.LittleEndian.Uint32(c.buf[c.r:])
	c.r += sumSize
	if got != want {
		return c.fail("read", fmt.Errorf("%w: payload of %v, %d bytes: computed %08x, the frame says %08x",
			ErrChecksum, c.kind, c.size, got, want))
	}
	return nil
}

// readAll is ReadPayload into memory that grows.
func (c *netConn) readAll() ([]byte, error) {
	if c.rerr != nil {
		return nil, c.rerr
	}
	var b []byte
	var sum uint32
	for c.left > 0 {
		n := int(min(c.left, int64(max(readAhead, len(b)))))
		b = slices.Grow(b, n)
		at := len(b)
		b = b[:at+n]
		var err error
		if sum, err = c.full(b[at:], sum); err != nil {
			return nil, c.fail("read", fmt.Errorf("payload of %v: %w", c.kind, err))
		}
		c.left -= int64(n)
	}
	return b, c.checkSum(sum)
}

// Discard drops the payload unread and unchecked.
func (c *netConn) Discard() error {
	if c.rerr != nil {
		return c.rerr
	}
	if c.left > 0 {
		c.left += sumSize
	}
	for c.left > 0 {
		if c.r == c.w {
			c.r, c.w = 0, 0
			n, err := c.read(c.buf)
			if err != nil {
				return c.fail("discard", fmt.Errorf("payload of %v: %w", c.kind, midway(err)))
			}
			c.w = n
		}
		n := min(int64(c.w-c.r), c.left)
		c.r += int(n)
		c.left -= n
	}
	return nil
}
