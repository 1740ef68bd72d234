package allreduce

import (
	"encoding/binary"
	"fmt"

	"star/transport"
)

// Values of Config.Checksum.
const (
	ChecksumFar = "" // between hosts
	// on all TCP connections.
	ChecksumAll = "on"
	ChecksumOff = "off" // nowhere
)

// checked is a link that sends bytes in parcels with a checksum. The head of a
// parcel is eight bytes, little-endian: a size word and a CRC-32 (IEEE 802.3)
// of the bytes that follow. The size word has the number of bytes in its lower
// 17 bits, and the complement of the lower 15 in the others: a damaged size
// must not make the receiver wait for bytes that do not come. Bit 15 has no
// complement. If it was set in the size of a small parcel, the receiver waits
// for 32 KiB more, and finds the damage when they have come, or at its timeout.
// No byte of a parcel is used before all of it has come and the checksum is
// right. TCP's own checksum has 16 bits and misses one in some millions to
// billions of damaged packets (J. Stone, C. Partridge: When the CRC and TCP
// Checksum Disagree. SIGCOMM 2000).
type checked struct {
	link

	// Sending: the rest of the current parcel's head and bytes, then the heads
	// of the parcels after it.
	head  [parcelHead]byte
	begun []byte
	owed  int
	next  [][parcelHead]byte
	out   [][]byte

	// Receiving: in[r:m] is verified and unread; in[m:w] has come and begins
	// with the head of a parcel.
	in      []byte
	r, m, w int
	err     error // a wrong checksum

	// For a parcel that is read past in, directly into its place: the place,
	// and how many bytes have come. Its head is at m, with nothing after it.
	whole []byte
	got   int
}

const (
	parcelHead = 8
	// parcelMost is the most bytes in a parcel.
	parcelMost = 64 << 10
	sizeBits   = 17

	// checkedRoom is the bytes received at once, and an incomplete parcel: they
	// stay in the second-level cache until they are verified and used.
	checkedRoom = 2*parcelMost + parcelHead + parcelMost

	// behind is how much of the following bytes is received with a parcel that
	// bypasses the buffer: the head of the next one, and little that must be
	// copied.
	behind = 1 << 10
)

// sizeWord returns the size word of a parcel of n bytes.
func sizeWord(n int) uint32 { return uint32(n) | ^uint32(n)<<sizeBits }

// errDamaged reports that received bytes differ from those sent.
type errDamaged struct{ what string }

func (e errDamaged) Error() string { return "received bytes are damaged: " + e.what }

// newChecked adds checksums to a link. Its peer must do the same from the same
// position on.
func newChecked(l link) *checked { return &checked{link: l} }

// sumsAhead is how many parcels are summed before the first of them is sent,
// all in one call.
const sumsAhead = 8

// send sends parcels. What follows the bytes that it has taken must follow in
// the next call, too.
func (c *checked) send(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		c.out = c.out[:0]
		// Parcels after the current one, and bytes of b.
		heads, planned := 0, 0
		if len(c.begun) > 0 {
			c.out = append(c.out, c.begun)
		}
		for rest := b[sent:]; len(rest) > 0 && heads <= sumsAhead; {
			size := c.owed
			if planned > 0 || size == 0 {
				if heads == len(c.next) {
					if heads == sumsAhead {
						break
					}
					c.next = append(c.next, parcelOf(rest[:min(len(rest), parcelMost)]))
				}
				c.out = append(c.out, c.next[heads][:])
				size = sizeOf(c.next[heads])
				heads++
			}
			k := min(size, len(rest))
			c.out = append(c.out, rest[:k])
			rest, planned = rest[k:], planned+k
		}
		// One call for all pieces. What it does not take is sent again in the
		// next round: heads stay in next until they are gone.
		n, err := c.sendAll()
		// The caller counts the bytes of its vector, without heads.
		taken := c.account(n)
		sent += taken
		if err != nil || taken < planned {
			return sent, err
		}
	}
	return sent, nil
}

// parcelOf returns the head of a parcel of b.
func parcelOf(b []byte) (head [parcelHead]byte) {
	binary.LittleEndian.PutUint32(head[:], sizeWord(len(b)))
	binary.LittleEndian.PutUint32(head[4:], transport.Sum(b))
	return head
}

// sizeOf returns the size in the head of a parcel.
func sizeOf(head [parcelHead]byte) int {
	return int(binary.LittleEndian.Uint32(head[:]) & (1<<sizeBits - 1))
}

// sendAll sends the pieces of out, as far as there is room.
func (c *checked) sendAll() (n int, err error) {
	if t, ok := c.link.(interface{ sendPieces([][]byte) (int, error) }); ok {
		return t.sendPieces(c.out)
	}
	for _, b := range c.out {
		k, err := c.link.send(b)
		if n += k; err != nil || k < len(b) {
			return n, err
		}
	}
	return n, nil
}

// account records that n bytes were sent, of the current parcel and then of
// those in next, and returns how many of them are not heads.
func (c *checked) account(n int) (taken int) {
	k := min(n, len(c.begun))
	c.begun, n = c.begun[k:], n-k
	for {
		k = min(n, c.owed)
		c.owed, n, taken = c.owed-k, n-k, taken+k
		if n == 0 {
			return taken
		}
		// The parcel has begun, and with it its checksum: the caller must send
		// the same bytes.
		head := c.next[0]
		c.next = c.next[:copy(c.next, c.next[1:])]
		k = min(n, parcelHead)
		c.begun = append(c.head[:0], head[k:]...)
		c.owed, n = sizeOf(head), n-k
	}
}

// parcel returns the size of the next parcel, if its head has come, and how
// many of its bytes are in the buffer.
func (c *checked) parcel() (size, have int, err error) {
	if c.w-c.m < parcelHead {
		return 0, 0, nil
	}
	word := binary.LittleEndian.Uint32(c.in[c.m:])
	size = int(word & (1<<sizeBits - 1))
	if size < 1 || size > parcelMost || word != sizeWord(size) {
		c.err = errDamaged{fmt.Sprintf("a parcel's word of size %#08x", word)}
	}
	return size, min(size, c.w-c.m-parcelHead), c.err
}

// check compares the bytes of a parcel with the checksum in its head, at m.
func (c *checked) check(body []byte) error {
	if sum, want := transport.Sum(body), binary.LittleEndian.Uint32(c.in[c.m+4:]); sum != want {
		c.err = errDamaged{fmt.Sprintf("CRC-32 %#08x of %d bytes, %#08x was sent", sum, len(body), want)}
	}
	return c.err
}

// receive reads into the buffer, with room for need bytes from m on.
func (c *checked) receive(need int) (int, error) {
	if c.in == nil {
		c.in = make([]byte, checkedRoom)
	}
	// There is room from the start.
	if c.m+need > len(c.in) || len(c.in)-c.w < direct {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.m -= c.r
		c.r = 0
	}
	n, err := c.link.read(c.in[c.w:])
	c.w += n
	return n, err
}

// fill verifies the next parcel, so that it is unread after the rest of the one
// before. It reports whether the whole parcel has come.
func (c *checked) fill() (bool, error) {
	// It is being read past the buffer.
	if c.whole != nil {
		c.w += copy(c.in[c.w:], c.whole[:c.got])
		c.whole = nil
	}
	for c.err == nil {
		size, have, err := c.parcel()
		if err != nil {
			return false, err
		}
		if size > 0 && have == size {
			break
		}
		if n, err := c.receive(parcelHead + size); n == 0 {
			return false, err
		}
	}
	if c.err != nil {
		return false, c.err
	}
	size, _, _ := c.parcel()
	at := c.m + parcelHead
	if err := c.check(c.in[at : at+size]); err != nil {
		return false, err
	}
	// The beginning of an element, over the head.
	left := copy(c.in[at-(c.m-c.r):at], c.in[c.r:c.m])
	c.r, c.m = at-left, at+size
	return true, nil
}

// past reads a parcel directly into place, without copying most of it, if dst
// has room for all of it. It returns how many verified bytes it holds: all or
// none.
func (c *checked) past(dst []byte) (n int, ok bool, err error) {
	t, can := c.link.(interface {
		readTwo(a, b []byte) (int, error)
	})
	if !can || len(dst) < direct {
		return 0, false, nil
	}
	size, have, err := c.parcel()
	if err != nil || size < direct || size > len(dst) || have == size {
		return 0, false, err
	}
	if c.whole == nil {
		// Makes room for what follows.
		if c.m > 0 {
			c.w = copy(c.in, c.in[c.m:c.w])
			c.r, c.m = 0, 0
		}
		c.whole, c.got = dst[:size], copy(dst, c.in[parcelHead:c.w])
		c.w = parcelHead
		// The caller reads to another place now; fill takes the parcel back into
		// the buffer.
	} else if &c.whole[0] != &dst[0] {
		return 0, false, nil
	}
	for c.got < size {
		n, err := t.readTwo(c.whole[c.got:], c.in[parcelHead:][:behind])
		c.got += n
		if n == 0 {
			return 0, true, err
		}
	}
	// Bytes of what follows.
	next := c.got - size
	c.whole = nil
	if err := c.check(dst[:size]); err != nil {
		return 0, true, err
	}
	c.r, c.m, c.w = parcelHead, parcelHead, parcelHead+next
	return size, true, nil
}

// view returns verified bytes only.
func (c *checked) view(size int) ([]byte, error) {
	for c.m-c.r < size {
		if ok, err := c.fill(); !ok || err != nil {
			return c.in[c.r:c.m], err
		}
	}
	return c.in[c.r:c.m], nil
}

func (c *checked) skip(n int) { c.r += n }

// read copies verified bytes from the buffer. When it is empty, a long parcel
// goes directly into dst (past), and another one to the buffer.
func (c *checked) read(dst []byte) (int, error) {
	got := 0
	for got < len(dst) {
		if c.r < c.m {
			n := copy(dst[got:], c.in[c.r:c.m])
			c.r += n
			got += n
			continue
		}
		n, ok, err := c.past(dst[got:])
		if got += n; n == 0 && err == nil && !ok {
			_, err = c.fill()
			n = c.m - c.r
		}
		if n == 0 || err != nil {
			if got > 0 {
				// It is returned again.
				err = nil
			}
			return got, err
		}
	}
	return got, nil
}

// resize has effect on the link below: a parcel keeps its size.
func (c *checked) resize(segment int) {
	if s, ok := c.link.(interface{ resize(segment int) }); ok {
		s.resize(segment)
	}
}

// check adds checksums to links as Config says, which is the same at both ends.
func (g *Group) check() {
	if g.cfg.TLS != nil || g.cfg.Checksum == ChecksumOff {
		return
	}
	for i := range g.peers {
		p := &g.peers[i]
		switch {
		case p.link == nil, p.link.kind() == "unix", p.link.kind() == "shm":
		case g.cfg.Checksum == ChecksumAll, g.far(i):
			p.link = newChecked(p.link)
		}
	}
}
