package allreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Values of Config.ZeroCopy.
const (
	// Vectors of 2 MiB and more.
	ZeroCopyLong = ""
	ZeroCopyAll  = "on"  // all vectors
	ZeroCopyOff  = "off" // never
)

// zeroCopyAbove is the size in bytes from which ZeroCopyLong lends a vector.
// Between two cores 1 MiB takes a fifth longer if it is lent: a core that adds
// to what the other one has read must first get the lines back. For vectors
// that do not fit into caches, the saved copy is worth more.
const zeroCopyAbove = 2 << 20

// pageSize is the unit of lent memory.
var pageSize = os.Getpagesize()

// wholePages returns how many bytes of b are before its first whole page, at
// most all, and how many its whole pages have.
func wholePages(b []byte) (head, pages int) {
	head = min(len(b), int(-uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(pageSize-1)))
	return head, (len(b) - head) &^ (pageSize - 1)
}

// zeroCopyLink is a link that can send without a copy: the bytes that it has taken are in the
// sender's memory until the peer has received them. So:
//
//   - A transfer lends only what no transfer of the same operation changes before the peer has
//     received it. A receive that replaces lent bytes brings a result that includes them, so they
//     were received. One that adds to them may come before (program.go, and
//     TestLentIsReceivedBeforeItIsOverwritten).
//   - An operation ends when the peers have confirmed that they have received everything: a
//     receipt, which a flag of the header requests.
//   - A failed operation takes the memory back before the caller gets it: the peer keeps the old
//     pages, or gets nothing more.
type zeroCopyLink interface {
	// canZeroCopy reports whether the link can send without a copy; gains,
	// whether that is faster for a vector of zeroCopyAbove or more.
	canZeroCopy() bool
	gains(vector []byte) bool

	// zeroCopySend is send.
	zeroCopySend(b []byte) (int, error)

	// reclaim takes back what was lent of b: the peer does not see later writes
	// to it.
	reclaim(b []byte) error
}

// zeroCopyLink returns a link to which an operation on a vector may lend, or
// nil.
func (g *Group) zeroCopyLink(k link, vector []byte) zeroCopyLink {
	l, ok := k.(zeroCopyLink)
	if !ok || g.cfg.ZeroCopy == ZeroCopyOff || !l.canZeroCopy() {
		return nil
	}
	if g.cfg.ZeroCopy == ZeroCopyLong && (len(vector) < zeroCopyAbove || !l.gains(vector)) {
		return nil
	}
	return l
}

// logUnreadable logs why vectors of ranks on this host are copied twice.
func (g *Group) logUnreadable() {
	if g.cfg.ZeroCopy == ZeroCopyOff {
		return
	}
	for r := range g.peers {
		k, ok := g.peers[r].link.(interface{ unreadable() error })
		if !ok {
			continue
		}
		// Usually the same for all.
		if err := k.unreadable(); err != nil {
			g.cfg.log().Info("could not read the memory of a rank on this host; its vectors are copied twice", "member", r, "err", err)
			return
		}
	}
}

// A receipt ends what a rank sends in an operation to a peer that has requested
// it.
const (
	receiptSize  = 8
	receiptMagic = 0x56434552 // "RECV", little-endian
)

func (o operation) appendReceipt(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, receiptMagic)
	return binary.LittleEndian.AppendUint32(b, uint32(o.number))
}

// receipt reads the peer's receipt, if it has come.
func (p *peer) receipt(o operation) (ok bool, err error) {
	for p.nnote < receiptSize {
		n, err := p.link.read(p.note[p.nnote:])
		p.nnote += n
		p.received += int64(n)
		if n == 0 {
			return false, err
		}
	}
	p.nnote = 0
	if want := o.appendReceipt(nil); [receiptSize]byte(want) != p.note {
		return false, fmt.Errorf("expected the receipt for operation %d, got % x", o.number, p.note)
	}
	return true, nil
}

// lent returns the part of a transfer that the peer may be reading: the bytes
// sent, and the rest of a page that was sent in part.
func (t *transfer) lent(buf []byte) []byte {
	if t.pos == t.lo {
		return nil
	}
	rest, _ := wholePages(buf[t.pos:t.hi])
	return buf[t.lo : t.pos+rest]
}

// reclaim takes back what a failed operation has lent.
func (g *Group) reclaim() error {
	var errs []error
	for i := range g.now.prog.lanes {
		l := &g.now.prog.lanes[i]
		if !l.awaits {
			continue
		}
		for _, id := range l.sends {
			if t := &g.now.prog.transfers[id]; t.zeroCopy {
				errs = append(errs, l.zeroCopy.reclaim(t.lent(g.now.buf)))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot take back memory that other ranks may still read: %w", err)
	}
	return nil
}
