package allreduce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"star/internal/vector"
)

// A loan is a part of the stream that is not in the ring: the reader copies it
// directly from the writer's memory (process_vm_readv), once instead of twice.
type loan struct {
	// The byte of the ring that follows it.
	at uint64
	// In the writer's process.
	address uint64
	size    uint64 // bytes
}

const (
	// maxLoans bounds the loans of one direction at a time.
	maxLoans = 64

	// leastLoan is the least that is worth a system call.
	leastLoan = 16 << 10

	// borrowAtOnce is how much is read at once of what will be added up: it is
	// used at once, so it should be in a near cache then.
	borrowAtOnce = 128 << 10
)

// pending returns the number of loans that were not read yet.
func (h *oneWay) pending() (uint64, error) {
	n := h.lent.Load() - h.taken.Load()
	if n > maxLoans {
		return 0, errCorrupt
	}
	return n, nil
}

// borrower is what a reader knows of the writing process.
type borrower struct {
	pid int
	// Used bytes of the first loan.
	begun uint64
	// held is of scratch: bytes of the first loan that were copied and are
	// unused.
	held    []byte
	scratch []byte
}

var errRevoked = errors.New("the lent memory was taken back")

// copy copies len(dst) bytes from an address of the other process.
func (b *borrower) copy(dst []byte, address uint64) error {
	local := unix.Iovec{Base: unsafe.SliceData(dst)}
	local.SetLen(len(dst))
	remote := unix.RemoteIovec{Base: uintptr(address), Len: len(dst)}
	// An address from the shared memory may be wrong: the call then fails with
	// EFAULT, and this process is not harmed.
	n, err := unix.ProcessVMReadv(b.pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	switch {
	case err == nil && n < len(dst):
		err = unix.EFAULT
	case err == unix.ESRCH:
		return io.EOF
	}
	return os.NewSyscallError("process_vm_readv", err)
}

// loan returns the loan that is next in the stream, nil if the ring is next,
// with at most n bytes. size is that of the elements to read.
func (k *shared) loan(size int) (l *loan, n uint64, err error) {
	// The ring before the loans: a reader that sees a byte also sees the loans
	// before it.
	if n, err = k.in.fill(); err != nil {
		return nil, 0, err
	}
	m, err := k.in.pending()
	if err != nil || m == 0 {
		return nil, n, err
	}
	l = &k.in.loans[k.in.taken.Load()%maxLoans]
	// before is how many bytes of the ring precede the loan.
	before := l.at - k.in.read.Load()
	if before > k.in.size() || l.size <= k.from.begun {
		return nil, 0, errCorrupt
	}
	if before > 0 {
		if before < uint64(size) {
			return nil, 0, errCut
		}
		return nil, min(n, before), nil
	}
	return l, 0, nil
}

// borrow copies the next bytes of a loan to dst.
func (k *shared) borrow(l *loan, dst []byte) error {
	err := k.from.copy(dst, l.address+k.from.begun)
	// The copied bytes are the lent ones if the writer had not taken them back
	// by now and is still alive: the bell ends before another process can get
	// its number.
	if k.in.revoked.Add(0) != 0 {
		return errRevoked
	}
	if k.listen(); k.dead != nil {
		return k.dead
	}
	return err
}

// repay drops n bytes of the first loan.
func (k *shared) repay(n int) {
	k.from.begun += uint64(n)
	if k.from.begun < k.in.loans[k.in.taken.Load()%maxLoans].size {
		return
	}
	k.from.begun = 0
	k.in.taken.Add(1)
	k.wakeWriter()
}

func (k *shared) canZeroCopy() bool { return k.readable }

// smallPages is the most of a vector in 4 KiB pages that is worth lending: the
// kernel reads its record of each page, from a cache or not.
const smallPages = 16 << 20

func (k *shared) gains(v []byte) bool { return len(v) <= smallPages || vector.Huge(v) }

// zeroCopySend is send, except that long parts of b stay in place until the
// peer has received them.
//
// A loan begins and ends at multiples of vectorAlign in the stream; the bytes
// before and after go through the ring. So positions in the ring and in the
// stream agree modulo vectorAlign, as without loans, and neither the end of the
// ring nor that of a loan cuts an element of any type.
func (k *shared) zeroCopySend(b []byte) (int, error) {
	head := int(-k.out.written.Load() & (vectorAlign - 1))
	if len(b) < head+leastLoan {
		return k.send(b)
	}
	if n, err := k.send(b[:head]); n < head || err != nil {
		return n, err
	}
	b = b[head:]
	b = b[:len(b)&^(vectorAlign-1)]
	if k.dead != nil {
		return head, k.dead
	}
	n, err := k.out.pending()
	if err != nil {
		return head, err
	}
	if n == maxLoans {
		return head, k.miss()
	}
	k.out.loans[k.out.lent.Load()%maxLoans] = loan{at: k.out.written.Load(), address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), size: uint64(len(b))}
	// After the loan was written, as with the ring: a reader that sees the
	// number sees the loan.
	k.out.lent.Add(1)
	k.wakeReader()
	return head + len(b), nil
}

func (k *shared) unreadable() error { return k.blind }

// reclaim ends all loans: a peer that has not received them will not.
func (k *shared) reclaim([]byte) error {
	if k.mem != nil {
		// Before the caller gets its vector back: a peer that copies it
		// afterwards sees the flag and drops the copy (borrow).
		k.out.revoked.Swap(1)
	}
	return nil
}

// beacon is what a peer must be able to read.
var beacon = func() *[16]byte {
	b := new([16]byte)
	_, _ = rand.Read(b[:])
	return b
}()

// light sends the peer the beacon's address and contents, in place of the first
// loan.
func (k *shared) light() {
	k.out.loans[0] = loan{
		at:      binary.LittleEndian.Uint64(beacon[:]),
		address: uint64(uintptr(unsafe.Pointer(beacon))),
		size:    binary.LittleEndian.Uint64(beacon[8:]),
	}
}

// see reports whether this process may read the peer's memory. It may not with
// another user and no CAP_SYS_PTRACE, if Yama separates processes, or from
// another PID namespace.
func (k *shared) see(nc *net.UnixConn) error {
	rc, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("SO_PEERCRED: %w", err)
	}
	if cred.Pid <= 0 {
		return errors.New("the peer has no number in this PID namespace")
	}
	k.from.pid = int(cred.Pid)
	return k.lit()
}

// lit checks that the process that is taken for the peer has the peer's beacon.
func (k *shared) lit() error {
	l := k.in.loans[0]
	var b [16]byte
	if err := k.from.copy(b[:], l.address); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(b[:]) != l.at || binary.LittleEndian.Uint64(b[8:]) != l.size {
		return fmt.Errorf("process %d is not the peer", k.from.pid)
	}
	return nil
}
