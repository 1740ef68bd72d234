package allreduce

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Values of Config.Checksum.
const (
	ChecksumFar = ""    // between hosts
	ChecksumAll = "on"  // on all TCP connections
	ChecksumOff = "off" // nowhere
)

// checked is a link whose bytes travel in parcels with a sum: eight bytes, little-endian, which are a word of size and a CRC-32 (IEEE 802.3) of what follows. The word has the
// number of bytes that follow in its lower 17 bits, and in the others the complement of the lower 15: one that is damaged must not make the receiver wait for what does not come.
// Nothing is shown of a parcel before all of it has come and the sum is right. TCP's own sum has 16 bits, and finds all but one in some millions to billions of damaged packets
// (J. Stone, C. Partridge: When the CRC and TCP Checksum Disagree. SIGCOMM 2000).
type checked struct {
	link

	// Sending: of the parcel that has begun, what is left of its head, and of its bytes.
	head    [parcelHead]byte
	begun   []byte
	owed    int
	scratch []byte

	// Receiving. in[r:w] is right and unread; behind w come got bytes of the next parcel.
	first  [parcelHead]byte
	nfirst int
	in     []byte
	r, w   int
	got    int
	err    error // a wrong sum
}

const (
	parcelHead = 8
	parcelMost = 64 << 10 // bytes in one
	sizeBits   = 17
)

func sizeWord(n int) uint32 { return uint32(n) | ^uint32(n)<<sizeBits }

// errDamaged: what has come is not what was sent.
type errDamaged struct{ what string }

func (e errDamaged) Error() string { return "what has come over the network is damaged: " + e.what }

func newChecked(l link) *checked { return &checked{link: l} }

func (c *checked) send(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		if len(c.begun) == 0 && c.owed == 0 {
			c.owed = min(len(b)-sent, parcelMost)
			binary.LittleEndian.PutUint32(c.head[:], sizeWord(c.owed))
			binary.LittleEndian.PutUint32(c.head[4:], crc32.ChecksumIEEE(b[sent:sent+c.owed]))
			c.begun = c.head[:]
		}
		if n := len(c.begun); n > 0 { // in one packet with what follows
			first := min(c.owed, len(b)-sent, stageSize)
			c.scratch = append(append(c.scratch[:0], c.begun...), b[sent:sent+first]...)
			k, err := c.link.send(c.scratch)
			if k < n {
				c.begun = c.begun[k:]
				return sent, err
			}
			c.begun = nil
			c.owed -= k - n
			sent += k - n
			if err != nil || k < n+first {
				return sent, err
			}
		}
		if more := min(c.owed, len(b)-sent); more > 0 {
			k, err := c.link.send(b[sent : sent+more])
			c.owed -= k
			sent += k
			if err != nil || k < more {
				return sent, err
			}
		}
	}
	return sent, nil
}

// fill receives what there is of the next parcel. It reports whether there is another one to be read.
func (c *checked) fill() (bool, error) {
	if c.err != nil {
		return false, c.err
	}
	for c.nfirst < parcelHead {
		n, err := c.link.read(c.first[c.nfirst:])
		c.nfirst += n
		if n == 0 {
			return false, err
		}
	}
	word := binary.LittleEndian.Uint32(c.first[:])
	size := int(word & (1<<sizeBits - 1))
	if size < 1 || size > parcelMost || word != sizeWord(size) {
		c.err = errDamaged{fmt.Sprintf("a parcel's word of size %#08x", word)}
		return false, c.err
	}
	if c.w+size > len(c.in) {
		if c.in == nil {
			c.in = make([]byte, 2*parcelMost)
		}
		c.w = copy(c.in, c.in[c.r:c.w]) // got is 0: afterwards there is room
		c.r = 0
	}
	for c.got < size {
		n, err := c.link.read(c.in[c.w+c.got : c.w+size])
		c.got += n
		if n == 0 {
			return false, err
		}
	}
	if sum, want := crc32.ChecksumIEEE(c.in[c.w:c.w+size]), binary.LittleEndian.Uint32(c.first[4:]); sum != want {
		c.err = errDamaged{fmt.Sprintf("CRC-32 %#08x of %d bytes, %#08x was sent", sum, size, want)}
		return false, c.err
	}
	c.w += size
	c.nfirst, c.got = 0, 0
	return true, nil
}

func (c *checked) view(size int) ([]byte, error) {
	for c.w-c.r < size {
		if ok, err := c.fill(); !ok {
			return c.in[c.r:c.w], err
		}
	}
	return c.in[c.r:c.w], nil
}

func (c *checked) skip(n int) { c.r += n }

func (c *checked) read(dst []byte) (int, error) {
	got := 0
	for got < len(dst) {
		if c.r == c.w {
			if ok, err := c.fill(); !ok {
				if got > 0 {
					err = nil // it comes again
				}
				return got, err
			}
		}
		n := copy(dst[got:], c.in[c.r:c.w])
		c.r += n
		got += n
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
