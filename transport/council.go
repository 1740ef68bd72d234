package transport

import (
	"encoding/binary"
	"fmt"

	"star/transport/wire"
)

// ElsewhereError reports that the peer does not coordinate the job now. It has no exit code,
// because another process does, or will.
type ElsewhereError struct {
	Peer string
	Addr string // of the coordinator; empty: unknown
}

// Error names the coordinator, if it is known.
func (e *ElsewhereError) Error() string {
	if e.Addr == "" {
		return fmt.Sprintf("transport: %s does not coordinate the job and does not know the coordinator yet", e.Peer)
	}
	return fmt.Sprintf("transport: %s does not coordinate the job: %s does", e.Peer, e.Addr)
}

// Refer sends m as the answer to a Hello, and closes c so that the peer can read it.
func Refer(c Conn, m wire.Elsewhere) { part(c, m) }

// AppendFrame appends a header and its payload to dst, to build a list of frames inside a payload.
func AppendFrame(dst, header, payload []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(header)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	return append(append(dst, header...), payload...)
}

// CutFrame takes the first frame off a list that AppendFrame has made. The results are views of b.
// A list that ends within a frame is an error.
func CutFrame(b []byte) (header, payload, rest []byte, err error) {
	if len(b) < 8 {
		return nil, nil, nil, fmt.Errorf("transport: a list of frames ends in %d bytes", len(b))
	}
	h, n := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
	if b = b[8:]; h+n > uint64(len(b)) {
		return nil, nil, nil, fmt.Errorf("transport: a frame of %d and %d bytes in a list that has %d more", h, n, len(b))
	}
	return b[:h:h], b[h : h+n : h+n], b[h+n:], nil
}
