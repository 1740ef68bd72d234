package allreduce

import (
	"time"
)

// link carries bytes both ways between two ranks, and never waits. It is for one
// goroutine. An error is for good; io.EOF: the other end is gone.
type link interface {
	// send takes as many bytes of b as it can at once, maybe none.
	send(b []byte) (int, error)

	// view shows received bytes that are still unread, in one piece: some of them, at
	// least an element of size bytes if there is one. They are borrowed until the next
	// call.
	view(size int) ([]byte, error)

	// skip drops n bytes that view has shown.
	skip(n int)

	// read moves received bytes to dst, as many as there are.
	read(dst []byte) (int, error)

	// kind is how logs call it: tcp, unix, shm.
	kind() string

	close()
}

// ask is a link that is waited for, and what for.
type ask struct {
	link    link
	in, out bool
}

// waiter waits until one of the links asked for can go on, or for d. It may
// return early for no reason.
type waiter interface {
	wait(asks []ask, d time.Duration)
	close()
}

// peer is a link and where we are in its two streams.
type peer struct {
	link           link
	sent, received int64
	segment        int // bytes

	// head is what has come of the next header, and the padding before it.
	head  [vectorAlign - 1 + headerSize]byte
	nhead int

	// note is what has come of the receipt that is waited for.
	note  [receiptSize]byte
	nnote int

	// staged are bytes, in stage, that must leave before all others.
	staged []byte
	stage  []byte
}

// stageSize is the most that is copied together with a header, to leave in one
// packet.
const stageSize = 16 << 10

// direct is how long a read must be to go past the buffer of a socket.
const direct = 32 << 10

// align is what segments are multiples of: the largest element.
const align = 8

// vectorAlign is the alignment of vectors in a stream, a cache line. With it, an element never
// lies across the end of a ring buffer, and ranks write lines as a whole.
const vectorAlign = 64

// padding is the zeros before the header of an operation that begins at position.
func padding(position int64) int { return int(-(position + headerSize) & (vectorAlign - 1)) }

// ring is a buffer whose size is a power of two, filled and emptied at positions
// that only grow.
type ring struct {
	buf  []byte
	r, w uint64
}

// unread is the first piece of what is in the ring.
func (q *ring) unread() []byte {
	i, n := q.r&uint64(len(q.buf)-1), q.w-q.r
	return q.buf[i:min(i+n, uint64(len(q.buf)))]
}

// room is the first piece of what is free.
func (q *ring) room() []byte {
	i, n := q.w&uint64(len(q.buf)-1), uint64(len(q.buf))-(q.w-q.r)
	return q.buf[i:min(i+n, uint64(len(q.buf)))]
}

// Rings of shared memory.
const (
	// ringSize is the bytes of one direction. It is more than a second-level cache has room
	// for beside other things: when the writer comes round, the reader's cache has
	// given up the lines, and to take them back costs less. That made 1 MiB twice as fast
	// as 256 KiB.
	ringSize = 1 << 20

	// smallRing is that of hosts with more than manyRanks ranks, each pair of which has two rings.
	smallRing = 256 << 10
	manyRanks = 8
)

// ringFor is the bytes of a ring on a host with that many ranks.
func ringFor(ranksHere int) int {
	if ranksHere > manyRanks {
		return smallRing
	}
	return ringSize
}
