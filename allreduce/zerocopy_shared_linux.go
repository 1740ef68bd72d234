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

// A loan is a part of the stream that is not in the ring: the reader takes it from the writer's memory itself (process_vm_readv). It is copied once in place of twice.
type loan struct {
	at      uint64 // the byte of the ring before which it comes
	address uint64 // of the writer's process
	size    uint64 // bytes
}

const (
	// maxLoans of one direction at a time.
	maxLoans = 64

	// leastLoan is what is worth a system call.
	leastLoan = 16 << 10

	// borrowAtOnce is what is taken at once of what will be added up: it is read again at once, so it should be in a near cache then.
	borrowAtOnce = 128 << 10
)

// pending is the number of loans that are not taken.
func (h *oneWay) pending() (uint64, error) {
	n := h.lent.Load() - h.taken.Load()
	if n > maxLoans {
		return 0, errCorrupt
	}
	return n, nil
}

// borrower is what a reader knows of the process that writes.
type borrower struct {
	pid     int
	begun   uint64 // bytes of the first loan that were used
	held    []byte // of scratch: bytes of the first loan that were copied and are unused
	scratch []byte
}

var errRevoked = errors.New("what was lent has been taken back")

// copy copies len(dst) bytes at an address of the other process.
func (b *borrower) copy(dst []byte, address uint64) error {
	local := unix.Iovec{Base: unsafe.SliceData(dst)}
	local.SetLen(len(dst))
	remote := unix.RemoteIovec{Base: uintptr(address), Len: len(dst)}
	n, err := unix.ProcessVMReadv(b.pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	switch {
	case err == nil && n < len(dst):
		err = unix.EFAULT
	case err == unix.ESRCH:
		return io.EOF
	}
	return os.NewSyscallError("process_vm_readv", err)
}

// loan is the one with which the stream goes on, and nil if the ring is next, with no more than n bytes. size is that of
// the elements that are read.
func (k *shared) loan(size int) (l *loan, n uint64, err error) {
	if n, err = k.in.fill(); err != nil { // before the loans: who sees a byte sees the loans before it
		return nil, 0, err
	}
	m, err := k.in.pending()
	if err != nil || m == 0 {
		return nil, n, err
	}
	l = &k.in.loans[k.in.taken.Load()%maxLoans]
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

// borrow copies what comes next of a loan to dst.
func (k *shared) borrow(l *loan, dst []byte) error {
	err := k.from.copy(dst, l.address+k.from.begun)
	// What was copied is what was lent if the writer had not taken it back by now, and still lives: before another process can have its number, the bell has ended.
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

// smallPages is the most of a vector in pages of 4 KiB that is worth being lent: for each of them the kernel reads what it knows of it, which is in caches or not.
const smallPages = 16 << 20

func (k *shared) gains(v []byte) bool { return len(v) <= smallPages || vector.Huge(v) }

// zeroCopySend is send, but long parts of b stay where they are until the peer has received them.
//
// A loan begins and ends at multiples of vectorAlign in the stream; what lies before and behind goes through the ring.
// So places in the ring and in the stream agree modulo vectorAlign, as where nothing is lent, and neither the end of the
// ring nor that of a loan cuts an element, of whatever type.
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
	k.out.lent.Add(1)
	k.wakeReader()
	return head + len(b), nil
}

func (k *shared) unreadable() error { return k.blind }

// reclaim ends all loans: who has not received them never will.
func (k *shared) reclaim([]byte) error {
	if k.mem != nil {
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

// light tells the peer where the beacon is, and what it says, in the place of the first loan.
func (k *shared) light() {
	k.out.loans[0] = loan{
		at:      binary.LittleEndian.Uint64(beacon[:]),
		address: uint64(uintptr(unsafe.Pointer(beacon))),
		size:    binary.LittleEndian.Uint64(beacon[8:]),
	}
}

// see says whether this process may read the peer's memory. It may not without the same user or CAP_SYS_PTRACE, where Yama keeps processes apart, or from another PID namespace.
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

// lit says whether the process that is taken for the peer has the peer's beacon.
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
