package allreduce

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shared is a link through memory that two processes map: one ring for each
// direction. A vector is copied once, into the ring, and added up from there;
// or it is lent, and the peer reads it from this process
// (zerocopy_shared_linux.go). A rank with nothing to do says so in the memory
// before it sleeps. It is woken by a byte through the Unix socket; that
// socket's end also shows that the peer is gone.
type shared struct {
	bell    *socket
	mem     []byte
	in, out oneWay
	copier  copier
	from    borrower
	// Why this process cannot read the peer's memory.
	blind error
	// The peer can read this process's memory.
	readable bool
	misses   uint
	// rewinds: what is sent into an empty ring begins at its front.
	rewinds bool
	dead    error
}

// The two ends agree on sleeping without a lock. Each writes first and looks
// then, and atomic operations have one order for both, so no wake-up is lost:
// the waiting end sees the new bytes, or the working end sees the flag.
//
//	waiting end (arm):  set readerWaits ──► look at the ring ──► still empty: sleep
//	working end:        advance written ──► look at readerWaits ──► set: ring the bell
//
// The same holds for a writer without room (writerWaits, read).
//
// Invariants:
//
//   - The writer alone changes written, offset, lent, loans and revoked; the
//     reader alone changes read and taken. A flag of a waiting end is set by that
//     end and cleared by either.
//   - The ring holds written - read bytes, lent - taken loans are unread, and both
//     numbers are checked before they are used (fill, pending): a faulty peer can
//     break this link, but cannot make this process access other memory.
//   - Neither the end of the ring nor that of a loan is inside an element.

// oneWay is one direction. Everything except buf is in shared memory, so a
// faulty peer may have written any values.
type oneWay struct {
	*oneWayState
	buf []byte
}

// oneWayState has a cache line for what each side writes.
type oneWayState struct {
	written atomic.Uint64 // bytes in total
	// offset is the byte at the front of the ring, or one before it in the same
	// cache line. It changes only while the ring is empty.
	offset atomic.Uint64
	lent   atomic.Uint64 // loans in total
	// revoked is not zero when the writer has reused the memory of its loans.
	revoked atomic.Uint32
	_       [36]byte
	read    atomic.Uint64
	// Loans that were read to their ends.
	taken       atomic.Uint64
	_           [48]byte
	readerWaits atomic.Uint32
	_           [60]byte
	writerWaits atomic.Uint32
	_           [60]byte
	loans       [maxLoans]loan
}

// A direction has half of the page.
const _ = uint(stateSize/2 - unsafe.Sizeof(oneWayState{}))

const (
	// pieceSize is the most that is copied before the peer is notified.
	pieceSize = 32 << 10

	// enoughRoom is what a sleeping writer waits for.
	enoughRoom = smallRing / 4

	stateSize = 4096
)

// newShared creates the memory and passes it to the peer, or receives it from
// there.
func newShared(nc *net.UnixConn, dialled bool, ring int) (*shared, error) {
	size := stateSize + 2*ring
	var fd int
	var err error
	if dialled {
		fd, err = offerMemory(nc, size)
	} else {
		fd, err = takeMemory(nc, size)
	}
	if err != nil {
		return nil, err
	}
	// The mapping keeps the memory; the descriptor is not needed.
	defer unix.Close(fd)
	// All pages are mapped at once, else each one would cost a fault during the
	// first operations.
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	k := &shared{mem: mem}
	if err == nil {
		for i, h := range []*oneWay{&k.in, &k.out} {
			// The dialling rank sends through the first half and receives from
			// the second; its peer does the opposite.
			if dialled {
				i = 1 - i
			}
			h.oneWayState = (*oneWayState)(unsafe.Pointer(&mem[i*stateSize/2]))
			h.buf = mem[stateSize+i*ring:][:ring]
		}
		// Before agree: the peer looks for the beacon after it.
		k.light()
	}
	// Both ends use the memory, or neither does: the dialling rank then tries
	// another kind of link.
	theirs, aerr := agree(nc, err == nil)
	if err = errors.Join(err, aerr); err == nil && !theirs {
		err = errors.New("the peer cannot map the memory")
	}
	if err == nil {
		k.blind = k.see(nc)
		k.readable, err = agree(nc, k.blind == nil)
	}
	if err != nil {
		if mem != nil {
			_ = unix.Munmap(mem)
		}
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return k, nil
}

// agree sends the peer yes or no, and receives the same from it.
func agree(nc *net.UnixConn, yes bool) (theirs bool, err error) {
	b := []byte{0}
	if yes {
		b[0] = 1
	}
	_, werr := nc.Write(b)
	_, rerr := io.ReadFull(nc, b)
	return b[0] == 1, errors.Join(werr, rerr)
}

const sharedSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// offerMemory creates memory without a file, which ends with the last process
// that maps it, and passes it to the peer. Its size is sealed before the peer
// gets it.
func offerMemory(nc *net.UnixConn, size int) (int, error) {
	fd, err := unix.MemfdCreate("star-allreduce", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sharedSeals)
	}
	if err == nil {
		_, _, err = nc.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("shared memory: %w", err)
	}
	return fd, nil
}

// takeMemory receives the memory. It is sealed so that it cannot shrink, which
// would kill this process with SIGBUS.
func takeMemory(nc *net.UnixConn, size int) (int, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := nc.ReadMsgUnix(b[:], oob)
	if err != nil {
		return -1, fmt.Errorf("shared memory: %w", err)
	}
	var fds []int
	if msgs, err := unix.ParseSocketControlMessage(oob[:n]); err == nil && len(msgs) == 1 {
		fds, _ = unix.ParseUnixRights(&msgs[0])
	}
	// A peer that sends more must not leave open files here.
	if len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, errors.New("shared memory: the peer sent none")
	}
	var st unix.Stat_t
	// The peer is not trusted to have sealed it, or to have made it long
	// enough.
	seals, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fds[0], &st)
	}
	if err == nil && (seals&sharedSeals != sharedSeals || st.Size != int64(size)) {
		err = fmt.Errorf("%d bytes with seals %#x, want %d with %#x", st.Size, seals, size, sharedSeals)
	}
	if err != nil {
		unix.Close(fds[0])
		return -1, fmt.Errorf("shared memory: %w", err)
	}
	return fds[0], nil
}

var (
	errCorrupt = errors.New("the shared memory is corrupt")

	// errCut: the rest of the element would never come.
	errCut = errors.New("an element is in two parts of the shared memory; install the same release of STAR on all ranks")
)

func (h *oneWay) size() uint64 { return uint64(len(h.buf)) }

// fill returns the bytes in the ring.
func (h *oneWay) fill() (uint64, error) {
	n := h.written.Load() - h.read.Load()
	if n > h.size() {
		return 0, errCorrupt
	}
	return n, nil
}

// send copies what has room. It wakes the reader after each piece, so that both
// ends copy at the same time.
func (k *shared) send(b []byte) (int, error) {
	if k.dead != nil {
		return 0, k.dead
	}
	sent, size := 0, k.out.size()
	for sent < len(b) {
		n, err := k.out.fill()
		if err != nil {
			return sent, err
		}
		// An empty ring may begin anywhere: see rewind. The offset is a
		// multiple of vectorAlign, so elements stay whole.
		if n == 0 && k.rewinds {
			k.out.offset.Store(k.out.written.Load() &^ (vectorAlign - 1))
		}
		at := (k.out.written.Load() - k.out.offset.Load()) & (size - 1)
		room := min(size-n, size-at, pieceSize, uint64(len(b)-sent))
		if room == 0 {
			return sent, k.miss()
		}
		k.copier.copy(k.out.buf[at:at+room], b[sent:sent+int(room)])
		// After the copy: a reader that sees the count sees the bytes.
		k.out.written.Add(room)
		sent += int(room)
		k.wakeReader()
	}
	return sent, nil
}

// wakeReader rings if the reader sleeps or is about to. It loads the flag
// first: a swap costs more, and the flag is rarely set.
func (k *shared) wakeReader() {
	if k.out.readerWaits.Load() != 0 && k.out.readerWaits.Swap(0) != 0 {
		k.ring()
	}
}

// hasRoom reports whether a sleeping writer of h can continue.
func (h *oneWay) hasRoom() bool {
	n, err := h.fill()
	// A few free bytes are not worth a wake-up. Corrupt counts are: the writer
	// must find the error.
	lent, lerr := h.pending()
	return h.size()-n >= enoughRoom && lent < maxLoans || err != nil || lerr != nil
}

// wakeWriter rings if the writer sleeps and has enough room by now.
func (k *shared) wakeWriter() {
	if k.in.writerWaits.Load() != 0 && k.in.hasRoom() && k.in.writerWaits.Swap(0) != 0 {
		k.ring()
	}
}

// copier copies into a ring with lines that the reader has read last. An
// ordinary store must first get the line from the reader's cache. That is cheap
// while both ranks run on near cores. On distant ones (another die, or a
// virtual machine that was moved) copying falls from 9 to under 2 GB/s; then
// stores that bypass the caches, which cost the reader a little, are four times
// as fast overall. It cannot be known in advance and changes while a job runs,
// so the copier measures.
type copier struct {
	past bool // bypassing the caches
	// Long ones, in total.
	pieces uint
	// slow is how often plain copies were slow recently, up to sure.
	slow uint
}

const (
	// longPiece is the smallest piece with a meaningful time.
	longPiece = 16 << 10

	// slowNanos is for longPiece: 4 GB/s, between what was measured near (7 to
	// 10) and far (under 2).
	slowNanos = longPiece / 4

	// sure is the excess of slow pieces over fast ones that switches the way of
	// copying.
	sure = 4

	// timedNear and timedFar: one in this many pieces is copied plainly and
	// timed.
	timedNear, timedFar = 4, 64
)

// timed reports whether the next piece is timed. Until it is clear which way is
// better, every piece is.
func (c *copier) timed() bool {
	every := uint(timedNear)
	switch {
	case c.past:
		every = timedFar
	case c.slow > 0:
		every = 1
	}
	return c.pieces%every == 0
}

func (c *copier) copy(dst, src []byte) {
	if len(dst) < longPiece {
		copy(dst, src)
		return
	}
	c.pieces++
	if !c.timed() {
		if c.past {
			copyPast(dst, src)
		} else {
			copy(dst, src)
		}
		return
	}
	t := time.Now()
	copy(dst, src)
	c.note(time.Since(t), len(dst))
}

// note records that a plain copy of n bytes took a time.
func (c *copier) note(d time.Duration, n int) {
	slow := d.Nanoseconds()*longPiece > slowNanos*int64(n)
	switch {
	// One fast copy is no accident, one slow copy may be.
	case c.past && !slow:
		c.past, c.slow = false, 0
	case !c.past && slow:
		if c.slow++; c.slow == sure {
			c.past = true
		}
	case !c.past && c.slow > 0:
		c.slow--
	}
}

// ring wakes the peer. If the bell has no room, it has rung often enough.
func (k *shared) ring() { _, _ = k.bell.send([]byte{0}) }

// miss occasionally checks whether the peer is still alive. Its death concerns
// only ranks that wait in vain: what it sent before is still valid.
func (k *shared) miss() error {
	if k.misses++; k.misses%1024 == 0 {
		k.listen()
	}
	return k.dead
}

// listen reads what the bell has rung.
func (k *shared) listen() {
	var b [64]byte
	for {
		n, err := k.bell.receive(b[:])
		if err != nil {
			k.dead = err
		}
		if n < len(b) {
			return
		}
	}
}

// view returns bytes of the next loan, which it copies to scratch, or of the
// ring: whichever is next in the stream.
func (k *shared) view(size int) ([]byte, error) {
	if len(k.from.held) >= size {
		return k.from.held, nil
	}
	if len(k.from.held) > 0 {
		return nil, errCut
	}
	l, n, err := k.loan(size)
	switch {
	case err != nil:
		return nil, err
	case l != nil:
		if k.from.scratch == nil {
			k.from.scratch = make([]byte, borrowAtOnce)
		}
		b := k.from.scratch[:min(borrowAtOnce, l.size-k.from.begun)]
		if err := k.borrow(l, b); err != nil {
			return nil, k.late(err)
		}
		k.from.held = b
		return b, nil
	case n == 0:
		if k.dead != nil {
			return nil, k.dead
		}
		return nil, k.miss()
	}
	// A piece ends where the ring ends. An element there would be cut, which
	// only a peer with another alignment can cause.
	at := (k.in.read.Load() - k.in.offset.Load()) & (k.in.size() - 1)
	if k.in.size()-at < uint64(size) {
		return nil, errCut
	}
	return k.in.buf[at:min(at+n, at+pieceSize, k.in.size())], nil
}

// late returns err; memory that was taken back is reported as absent only,
// since another rank gives the reason.
func (k *shared) late(err error) error {
	if err == errRevoked {
		return k.miss()
	}
	return err
}

// skip frees n bytes: of the loan if view has returned one, else of the ring.
func (k *shared) skip(n int) {
	if len(k.from.held) > 0 {
		k.from.held = k.from.held[n:]
		k.repay(n)
		return
	}
	k.in.read.Add(uint64(n))
	k.wakeWriter()
}

// read copies a loan directly to dst, without scratch.
func (k *shared) read(dst []byte) (int, error) {
	got := 0
	for got < len(dst) {
		if l, _, err := k.loan(1); err == nil && l != nil && len(k.from.held) == 0 {
			n := int(min(uint64(len(dst)-got), l.size-k.from.begun))
			if err := k.borrow(l, dst[got:got+n]); err != nil {
				return got, k.late(err)
			}
			k.repay(n)
			got += n
			continue
		}
		b, err := k.view(1)
		n := copy(dst[got:], b)
		if n == 0 {
			if got > 0 {
				return got, nil
			}
			return 0, err
		}
		k.skip(n)
		got += n
	}
	return got, nil
}

// arm announces what this rank waits for, and reports whether it has come
// already.
func (k *shared) arm(a ask) (ready bool) {
	if a.in {
		// The flag before the look: see above.
		k.in.readerWaits.Store(1)
		n, err := k.in.fill()
		lent, lerr := k.in.pending()
		ready = n > 0 || err != nil || lerr != nil || lent > 0 && k.in.revoked.Load() == 0
	}
	if a.out {
		k.out.writerWaits.Store(1)
		ready = ready || k.out.hasRoom()
	}
	return ready || k.dead != nil
}

// disarm ends the announcement, so that the peer does not ring for a rank that
// is awake.
func (k *shared) disarm() {
	k.in.readerWaits.Store(0)
	k.out.writerWaits.Store(0)
}

func (k *shared) kind() string { return "shm" }

// rewind makes this end use the front of its ring repeatedly, as long as the
// peer keeps up. If ranks share processors, the front stays in a cache of both;
// otherwise the rings of many pairs would go through the cache in turns. If
// they do not, lines that the reader's cache has dropped cost less than those
// that must be taken from it (see ringSize).
func (k *shared) rewind() { k.rewinds = true }

func (k *shared) close() {
	k.bell.close()
	if k.mem != nil {
		k.dead = net.ErrClosed
		// A later call finds empty rings instead of memory that is no longer
		// mapped.
		k.in.oneWayState, k.out.oneWayState = new(oneWayState), new(oneWayState)
		_ = unix.Munmap(k.mem)
		k.mem = nil
	}
}
