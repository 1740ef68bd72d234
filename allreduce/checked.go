package allreduce

import (
	"encoding/binary"
	"fmt"

	"star/transport"
)

// Values of Config.Checksum.
const (
	ChecksumFar = ""    // between hosts
	ChecksumAll = "on"  // on all TCP connections
	ChecksumOff = "off" // nowhere
)

// checked is a link whose bytes travel in parcels with a sum: eight bytes, little-endian, which are a word of size and a CRC-32 (IEEE 802.3) of what follows. The word has the
// number of bytes that follow in its lower 17 bits, and in the others the complement of the lower 15: one that is damaged must not make the receiver wait for what does not come.
// Bit 15 has no complement: where it was turned on in the size of a small parcel, the receiver waits for 32 KiB more, and finds the damage when they have come, or by its time limit.
// Nothing is shown of a parcel before all of it has come and the sum is right. TCP's own sum has 16 bits, and finds all but one in some millions to billions of damaged packets
// (J. Stone, C. Partridge: When the CRC and TCP Checksum Disagree. SIGCOMM 2000).
type checked struct {
	link

	// Sending: of the parcel that has begun, what is left of its head, and of its bytes; then the heads of those behind it.
	head  [parcelHead]byte
	begun []byte
	owed  int
	next  [][parcelHead]byte
	out   [][]byte

	// Receiving. in[r:m] is right and unread; in[m:w] has come, and begins with the head of a parcel.
	in      []byte
	r, m, w int
	err     error // a wrong sum

	// Of a parcel whose bytes go where they belong, past in: where that is, and how many have come. Its head is at m, and nothing behind it.
	whole []byte
	got   int
}

const (
	parcelHead = 8
	parcelMost = 64 << 10 // bytes in one
	sizeBits   = 17

	// checkedRoom is the bytes that are received at once, and a parcel of which not all has come: they stay in the second-level cache until they are summed and used.
	checkedRoom = 2*parcelMost + parcelHead + parcelMost

	// behind is how much of what follows is received with a parcel that goes past the buffer: the head of the next one, and little that must be copied.
	behind = 1 << 10
)

func sizeWord(n int) uint32 { return uint32(n) | ^uint32(n)<<sizeBits }

// errDamaged: what has come is not what was sent.
type errDamaged struct{ what string }

func (e errDamaged) Error() string { return "what has come over the network is damaged: " + e.what }

func newChecked(l link) *checked { return &checked{link: l} }

// sumsAhead is how many parcels are summed before the first of them is sent, all in one call.
const sumsAhead = 8

// send sends parcels; what follows what it has taken must follow in the next call, too.
func (c *checked) send(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		c.out = c.out[:0]
		heads, planned := 0, 0 // parcels beyond the one that has begun, and bytes of b
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
		n, err := c.sendAll()
		taken := c.account(n)
		sent += taken
		if err != nil || taken < planned {
			return sent, err
		}
	}
	return sent, nil
}

// parcelOf is the head of a parcel of b.
func parcelOf(b []byte) (head [parcelHead]byte) {
	binary.LittleEndian.PutUint32(head[:], sizeWord(len(b)))
	binary.LittleEndian.PutUint32(head[4:], transport.Sum(b))
	return head
}

func sizeOf(head [parcelHead]byte) int {
	return int(binary.LittleEndian.Uint32(head[:]) & (1<<sizeBits - 1))
}

// sendAll sends the pieces of out, as much as there is room for.
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

// account notes that n bytes have left, of what had begun and then of the parcels in next, and returns how many of them are not heads.
func (c *checked) account(n int) (taken int) {
	k := min(n, len(c.begun))
	c.begun, n = c.begun[k:], n-k
	for {
		k = min(n, c.owed)
		c.owed, n, taken = c.owed-k, n-k, taken+k
		if n == 0 {
			return taken
		}
		head := c.next[0]
		c.next = c.next[:copy(c.next, c.next[1:])]
		k = min(n, parcelHead)
		c.begun = append(c.head[:0], head[k:]...)
		c.owed, n = sizeOf(head), n-k
	}
}

// parcel is the size of the next parcel, if its head is there, and how many of its bytes are in the buffer.
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

// check holds what a parcel brought against the sum in its head, at m.
func (c *checked) check(body []byte) error {
	if sum, want := transport.Sum(body), binary.LittleEndian.Uint32(c.in[c.m+4:]); sum != want {
		c.err = errDamaged{fmt.Sprintf("CRC-32 %#08x of %d bytes, %#08x was sent", sum, len(body), want)}
	}
	return c.err
}

// receive reads into the buffer, which has room for need bytes from m on.
func (c *checked) receive(need int) (int, error) {
	if c.in == nil {
		c.in = make([]byte, checkedRoom)
	}
	if c.m+need > len(c.in) || len(c.in)-c.w < direct { // from the start there is room
		c.w = copy(c.in, c.in[c.r:c.w])
		c.m -= c.r
		c.r = 0
	}
	n, err := c.link.read(c.in[c.w:])
	c.w += n
	return n, err
}

// fill makes the next parcel right and unread, behind what is left of the one before. It reports whether all of it is there.
func (c *checked) fill() (bool, error) {
	if c.whole != nil { // somebody else wants it
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
	left := copy(c.in[at-(c.m-c.r):at], c.in[c.r:c.m]) // the beginning of an element, over the head
	c.r, c.m = at-left, at+size
	return true, nil
}

// past reads a parcel to where it belongs, without a copy of most of it, if dst has room for all of it. It returns the bytes of it that are right: all or none.
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
		if c.m > 0 { // room for what follows
			c.w = copy(c.in, c.in[c.m:c.w])
			c.r, c.m = 0, 0
		}
		c.whole, c.got = dst[:size], copy(dst, c.in[parcelHead:c.w])
		c.w = parcelHead
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
	next := c.got - size // bytes of what follows
	c.whole = nil
	if err := c.check(dst[:size]); err != nil {
		return 0, true, err
	}
	c.r, c.m, c.w = parcelHead, parcelHead, parcelHead+next
	return size, true, nil
}

func (c *checked) view(size int) ([]byte, error) {
	for c.m-c.r < size {
		if ok, err := c.fill(); !ok || err != nil {
			return c.in[c.r:c.m], err
		}
	}
	return c.in[c.r:c.m], nil
}

func (c *checked) skip(n int) { c.r += n }

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
				err = nil // it comes again
			}
			return got, err
		}
	}
	return got, nil
}

func (c *checked) resize(segment int) {
	if s, ok := c.link.(interface{ resize(segment int) }); ok {
		s.resize(segment)
	}
}

// check has links checked where Config says so, which is the same at both ends.
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
