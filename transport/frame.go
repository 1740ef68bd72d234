package transport

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"star/internal/exitcode"
	"star/transport/wire"
)

// Protocol is the version of the wire protocol. Both ends must have the same one.
const Protocol = 1

// A frame, little-endian:
//
//	 0  magic "STAR"
//	 4  version   u8
//	 5  kind      u8
//	 6  flags     u8   0
//	 7  pad       u8   bytes of padding, 0 to 63
//	 8  header    u32  bytes of the header
//	12  payload   u64  bytes of the payload
//	20  check     u32  CRC-32 of bytes 0 to 20, the header and the padding
//	24  header, padding, payload
//	..  sum      u32     CRC-32 of the payload; absent without a payload
//
// The checksum follows the payload so that a sender sums and sends in one pass, while the bytes are
// in the cache. The padding aligns the payload to 64 bytes, which kernels copy faster: 5 to 10 % on
// loopback.
const (
	prefixSize = 24
	sumSize    = 4
	align      = 64
)

const magic = "STAR"

// Errors of frames.
var (
	ErrNotSTAR  = errors.New("this is not a STAR peer: the frame does not begin with \"STAR\"")
	ErrChecksum = errors.New("checksum mismatch")
	ErrTooLarge = errors.New("too large")
	ErrBadKind  = errors.New("unknown kind of frame")
	ErrBadFlags = errors.New("unknown flags")
	ErrPadding  = errors.New("bad padding")
	ErrSize     = errors.New("the payload has another size")
	ErrUnread   = errors.New("the payload of the last frame was neither read nor discarded")
)

// VersionError reports that the peer has another version of the protocol.
type VersionError struct {
	Ours, Theirs int
	// Reason is what the peer said about it, if anything.
	Reason string
}

// Error names both versions and what to update.
func (e *VersionError) Error() string {
	s := fmt.Sprintf("protocol version %d here, %d there: install the same release of STAR on both", e.Ours, e.Theirs)
	if e.Reason != "" {
		s += " (the peer says: " + e.Reason + ")"
	}
	return s
}

// ExitCode is the exit code for members that disagree.
func (e *VersionError) ExitCode() int { return exitcode.Disagree }

// Limits bound the payload of a frame by its kind, in bytes. A frame that claims more is rejected
// before anything is read or allocated for it.
type Limits struct {
	// Data bounds gradients, parameters and buffers. Zero means 4 GiB.
	Data int64
	// Text bounds settings, layouts, descriptions and answers. Zero means 16 MiB.
	Text int64
	// Probe bounds what a Ping or a Pong carries. Zero means 64 MiB.
	Probe int64
}

// Payload returns the limit of kind k.
func (l Limits) Payload(k wire.Kind) int64 {
	switch k.Payload() {
	case wire.Data:
		return cmp.Or(l.Data, 4<<30)
	case wire.Text:
		return cmp.Or(l.Text, 16<<20)
	case wire.Probe:
		return cmp.Or(l.Probe, 64<<20)
	case wire.Bins:
		return 64 << 10
	case wire.Memo:
		return 256 << 10
	}
	return 0
}

// Sum returns the checksum of a payload: CRC-32 (IEEE 802.3), as in zlib and gzip. That of an empty
// payload is 0.
//
// CRC-32C and XXH3 are not faster: docs/decisions/0023-one-kind-of-sum.md. Python has CRC-32 in its library.
func Sum(b []byte) uint32 { return more(0, b) }

var zeros [align]byte

// appendFrame appends what precedes the payload. It pads if the payload is so large that copying it
// matters.
func appendFrame(dst []byte, k wire.Kind, header []byte, size int64) []byte {
	pad := 0
	if size > small {
		pad = -(prefixSize + len(header)) & (align - 1)
	}
	start := len(dst)
	dst = append(dst, magic...)
	dst = append(dst, Protocol, byte(k), 0, byte(pad))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(header)))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(size))
	check := more(more(more(0, dst[start:]), header), zeros[:pad])
	dst = binary.LittleEndian.AppendUint32(dst, check)
	dst = append(dst, header...)
	return append(dst, zeros[:pad]...)
}

// prefix is a parsed prefix.
type prefix struct {
	version     int
	kind        wire.Kind
	header, pad int
	size        int64
	check       uint32
}

// The first bytes of a TLS record (RFC 8446, 5.1): an alert or a handshake, then the version.
const (
	recordAlert     = 21
	recordHandshake = 22
	recordMajor     = 3
)

// speaksTLS reports that the peer uses TLS and this process does not.
type speaksTLS struct{ error }

func (e *speaksTLS) Unwrap() error { return e.error }

// ExitCode is that of a refused member: without certificates a retry cannot succeed.
func (e *speaksTLS) ExitCode() int { return exitcode.Refused }

// stranger returns an error for bytes, at least 4, that are not a frame.
func stranger(b []byte) error {
	switch {
	case string(b[:4]) == magic:
		return nil
	case (b[0] == recordAlert || b[0] == recordHandshake) && b[1] == recordMajor:
		return &speaksTLS{fmt.Errorf("%w but with %q: it speaks TLS, and this process does not (--tls-cert, --tls-key, --tls-ca)", ErrNotSTAR, b[:4])}
	case string(b[:4]) == "HTTP":
		return fmt.Errorf("%w: an HTTP server answers", ErrNotSTAR)
	}
	return fmt.Errorf("%w but with %q", ErrNotSTAR, b[:4])
}

// parsePrefix checks what can be checked without the header. A Reject may be of any version: its
// frame is the same in all of them, so that an old peer can learn why it is refused.
func parsePrefix(b *[prefixSize]byte, l Limits) (prefix, error) {
	p := prefix{
		version: int(b[4]),
		kind:    wire.Kind(b[5]),
		pad:     int(b[7]),
		check:   binary.LittleEndian.Uint32(b[20:]),
	}
	if err := stranger(b[:]); err != nil {
		return p, err
	}
	if p.version != Protocol && p.kind != wire.KindReject {
		return p, &VersionError{Ours: Protocol, Theirs: p.version}
	}
	if !p.kind.Valid() {
		return p, fmt.Errorf("%w: %d", ErrBadKind, b[5])
	}
	if b[6] != 0 {
		return p, fmt.Errorf("%w: %#x in a frame of kind %v", ErrBadFlags, b[6], p.kind)
	}
	if p.pad >= align {
		return p, fmt.Errorf("%w: %d bytes in a frame of kind %v, at most %d", ErrPadding, p.pad, p.kind, align-1)
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n > wire.MaxHeader {
		return p, fmt.Errorf("%w: the header of %v claims %d bytes, at most %d", ErrTooLarge, p.kind, n, wire.MaxHeader)
	}
	p.header = int(n)
	size, max := binary.LittleEndian.Uint64(b[12:]), l.Payload(p.kind)
	if size > math.MaxInt64 || int64(size) > max {
		return p, fmt.Errorf("%w: the payload of %v claims %d bytes, at most %d", ErrTooLarge, p.kind, size, max)
	}
	p.size = int64(size)
	return p, nil
}

// verify checks the checksum of the prefix, header and padding.
func (p prefix) verify(b *[prefixSize]byte, follows []byte) error {
	if got := more(more(0, b[:20]), follows); got != p.check {
		return fmt.Errorf("%w: header of %v: computed %08x, the frame says %08x", ErrChecksum, p.kind, got, p.check)
	}
	return nil
}

// The wire is little-endian, as is every machine that STAR is built for. On others this constant
// does not compile.
const _ = uint(littleEndian) - 1

// Floats returns v in wire form: a view of its memory, not a copy.
func Floats(v []float32) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
