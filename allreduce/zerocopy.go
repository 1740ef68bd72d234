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
	ZeroCopyLong = ""    // of vectors of 2 MiB and more
	ZeroCopyAll  = "on"  // of all vectors
	ZeroCopyOff  = "off" // never
)

// zeroCopyAbove is the bytes of a vector from which ZeroCopyLong lends. Between two cores 1 MiB takes a fifth longer when it is lent: a core that adds to what the
// other one has read must first have the lines back. From what no longer fits into caches on, the copy that is saved is more.
const zeroCopyAbove = 2 << 20

// pageSize is what memory is lent in.
var pageSize = os.Getpagesize()

// wholePages says how many bytes of b are before its first whole page, at most all, and how many its whole pages have.
func wholePages(b []byte) (head, pages int) {
	head = min(len(b), int(-uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(pageSize-1)))
	return head, (len(b) - head) &^ (pageSize - 1)
}

// zeroCopyLink is a link that can send without a copy: what it has taken is the sender's memory until the peer has received it. So
//
//   - a transfer lends only what nothing of the same operation changes before the peer has received it. A receive that takes the place of what was lent brings a result that the lent bytes are part
//     of, so they have been received; one that adds to it may come before (program.go, and TestLentIsReceivedBeforeItIsOverwritten);
//   - an operation ends when the peers have said that they have received everything: a receipt, which a flag of the header asks for;
//   - one that fails takes the memory back before the caller gets it: the peer keeps the old pages, or gets nothing more.
type zeroCopyLink interface {
	// canZeroCopy says whether the link can send without a copy, gains whether that is faster for a vector of zeroCopyAbove or more.
	canZeroCopy() bool
	gains(vector []byte) bool

	// zeroCopySend is send.
	zeroCopySend(b []byte) (int, error)

	// reclaim ends what was lent of b: what is written there from now on the peer does not get.
	reclaim(b []byte) error
}

// zeroCopyLink is a link to which an operation on a vector may lend, or nil.
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

// tellBlind logs why vectors of ranks on this host are copied twice.
func (g *Group) tellBlind() {
	if g.cfg.ZeroCopy == ZeroCopyOff {
		return
	}
	for r := range g.peers {
		k, ok := g.peers[r].link.(interface{ unreadable() error })
		if !ok {
			continue
		}
		if err := k.unreadable(); err != nil { // of one it is of all, mostly
			g.cfg.log().Info("all-reduce: memory of a rank on this host cannot be read from here; its vectors are copied twice", "member", r, "err", err)
			return
		}
	}
}

// A receipt ends what a rank sends in an operation to a peer that has asked for it.
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
		return false, fmt.Errorf("no receipt for operation %d but % x", o.number, p.note)
	}
	return true, nil
}

// lent is what of a transfer the peer may be reading: the bytes that have left, and the rest of a page that has left in part.
func (t *transfer) lent(buf []byte) []byte {
	if t.pos == t.lo {
		return nil
	}
	rest, _ := wholePages(buf[t.pos:t.hi])
	return buf[t.lo : t.pos+rest]
}

// reclaim ends what an operation that has failed has lent.
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
		return fmt.Errorf("memory that other ranks may still receive from cannot be had back: %w", err)
	}
	return nil
}
