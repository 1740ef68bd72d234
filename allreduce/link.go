package allreduce

import (
	"time"
)

// For vectors there is one link between two ranks, which all operations use one
// after the other. So the positions of the two ends in a stream must agree at
// all times: what one end sends too much or too little, the other one takes for
// part of the next operation. Headers (run.go) detect that.
//
//	kind     type      connection
//	tcp      socket    one TCP socket; striped: several
//	unix     socket    a Unix socket
//	shm      shared    rings in memory, and a Unix socket for wake-ups
//	stream   stream    any net.Conn, for TLS and for systems without raw sockets
//
// checked adds checksums to a link of the kinds tcp and stream.

// link carries bytes both ways between two ranks and never blocks. It is for
// one goroutine. Its errors are permanent; io.EOF: the other end is gone.
type link interface {
	// send takes as many bytes of b as it can at once, possibly none.
	send(b []byte) (int, error)

	// view returns received unread bytes in one piece: some of them, at least
	// an element of size bytes if one has come. They are borrowed until the
	// next call.
	view(size int) ([]byte, error)

	// skip drops n bytes that view has returned.
	skip(n int)

	// read moves available received bytes to dst.
	read(dst []byte) (int, error)

	// kind is the name in logs: tcp, unix, shm.
	kind() string

	close()
}

// ask is a link that is waited for, with the awaited events.
type ask struct {
	link    link
	in, out bool
}

// waiter waits until one of the links can continue, or for d. It may return
// early.
type waiter interface {
	wait(asks []ask, d time.Duration)
	close()
}

// peer is a link and the positions in its two streams.
type peer struct {
	link           link
	sent, received int64
	segment        int // in bytes

	// head is the received part of the next header, and of the padding before
	// it.
	head  [vectorAlign - 1 + headerSize]byte
	nhead int

	// note is the received part of the awaited receipt.
	note  [receiptSize]byte
	nnote int

	// staged are bytes, in stage, that must be sent before all others.
	staged []byte
	stage  []byte
}

// stageSize is the most that is copied together with a header, to be sent in
// one packet.
const stageSize = 16 << 10

// direct is the size from which a read bypasses the buffer of a socket.
const direct = 32 << 10

// align is what segments are multiples of: the largest element.
const align = 8

// vectorAlign is the alignment of vectors in a stream, a cache line. So an
// element never crosses the end of a ring buffer, and ranks write whole lines.
const vectorAlign = 64

// padding returns the number of zeros before the header of an operation at
// position.
func padding(position int64) int { return int(-(position + headerSize) & (vectorAlign - 1)) }

// ring is a buffer with a size that is a power of two, filled and emptied at
// positions that only grow.
type ring struct {
	buf  []byte
	r, w uint64
}

// unread returns the first piece of the ring's contents.
func (q *ring) unread() []byte {
	i, n := q.r&uint64(len(q.buf)-1), q.w-q.r
	return q.buf[i:min(i+n, uint64(len(q.buf)))]
}

// room returns the first piece of free space.
func (q *ring) room() []byte {
	i, n := q.w&uint64(len(q.buf)-1), uint64(len(q.buf))-(q.w-q.r)
	return q.buf[i:min(i+n, uint64(len(q.buf)))]
}

// Rings of shared memory.
const (
	// ringSize is the bytes of one direction, more than a second-level cache
	// holds beside other data. When the writer comes around, the reader's cache
	// has dropped the lines, which is cheaper than taking them from it. 1 MiB
	// was twice as fast as 256 KiB.
	ringSize = 1 << 20

	// smallRing is for hosts with more than manyRanks ranks: each pair has two
	// rings.
	smallRing = 256 << 10
	manyRanks = 8
)

// ringFor returns the bytes of a ring on a host with that many ranks.
func ringFor(ranksHere int) int {
	if ranksHere > manyRanks {
		return smallRing
	}
	return ringSize
}
