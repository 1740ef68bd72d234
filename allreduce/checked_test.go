package allreduce

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// wireLink is a link to itself that takes and gives as much at once as chance wants.
type wireLink struct {
	link
	chance *rand.Rand
	way    []byte
	ended  bool
}

func (w *wireLink) some(n int) int {
	if n == 0 || w.chance.IntN(4) == 0 {
		return 0
	}
	return 1 + w.chance.IntN(min(n, 1<<w.chance.IntN(18)))
}

func (w *wireLink) send(b []byte) (int, error) {
	n := w.some(len(b))
	w.way = append(w.way, b[:n]...)
	return n, nil
}

func (w *wireLink) read(dst []byte) (int, error) {
	if len(w.way) == 0 && w.ended {
		return 0, io.EOF
	}
	n := w.some(min(len(dst), len(w.way)))
	copy(dst, w.way[:n])
	w.way = w.way[n:]
	return n, nil
}

// pieceLink also takes and gives several pieces at once, as sockets do.
type pieceLink struct{ *wireLink }

func (w pieceLink) sendPieces(pieces [][]byte) (int, error) { return w.send(bytes.Join(pieces, nil)) }

func (w pieceLink) readTwo(a, b []byte) (int, error) {
	both := make([]byte, len(a)+len(b))
	n, err := w.read(both)
	copy(b, both[min(n, copy(a, both[:n])):n])
	return n, err
}

// What comes out of a checked link is what went in, in whatever pieces it travels, and nothing after a byte that was
// damaged on the way.
func TestCheckedAgainstStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		w := &wireLink{chance: chance}
		out, in := newChecked(w), newChecked(w)
		if rapid.Bool().Draw(t, "pieces") {
			out, in = newChecked(pieceLink{w}), newChecked(pieceLink{w})
		}
		total := rapid.SampledFrom([]int{1, 100, parcelMost, 3*parcelMost + 17}).Draw(t, "bytes")
		text := make([]byte, total)
		for i := range text {
			text[i] = byte(chance.Uint32())
		}
		damage := -1 // the byte of the wire, heads included
		if rapid.Bool().Draw(t, "damaged") {
			damage = chance.IntN(total)
		}
		got := make([]byte, 0, total)
		views := rapid.Bool().Draw(t, "views")
		sent, travelled := 0, 0
		longer := false // the damage has made a byte larger by its highest bit, which may be bit 15 of a size
		for tries := 0; len(got) < total; tries++ {
			if tries > 1_000_000 {
				t.Fatalf("%d bytes of %d come in a million tries", len(got), total)
			}
			before := len(w.way)
			n, err := out.send(text[sent:min(total, sent+1+chance.IntN(2*parcelMost))])
			if sent += n; err != nil {
				t.Fatal(err)
			}
			if at := damage - travelled; at >= 0 && at < len(w.way)-before {
				bit := byte(1) << chance.IntN(8)
				longer = bit == 1<<7 && w.way[before+at]&bit == 0
				w.way[before+at] ^= bit
			}
			travelled += len(w.way) - before
			if !views || chance.IntN(2) == 0 {
				b := got[len(got):] // where it belongs, most of the time
				if chance.IntN(8) == 0 {
					b = make([]byte, chance.IntN(2*parcelMost))
				}
				b = b[:min(cap(b), total-len(got))]
				n, err = in.read(b)
				got = append(got, b[:n]...)
			} else {
				var b []byte
				b, err = in.view([]int{1, 4, 8}[chance.IntN(3)])
				b = b[:chance.IntN(len(b)+1)]
				got = append(got, b...)
				in.skip(len(b))
			}
			if !bytes.HasPrefix(text, got) {
				t.Fatal("something else came out than went in")
			}
			if err != nil {
				if damage < 0 || !errors.As(err, new(errDamaged)) {
					t.Fatal(err)
				}
				if _, again := in.read(make([]byte, 1)); again != err {
					t.Errorf("then %v", again)
				}
				return
			}
			if damage >= 0 && sent == total && len(w.way) == 0 && travelled > total && tries > 100_000 {
				if !longer {
					t.Fatal("the damage was not found") // nor did all come
				}
				longer, tries = false, 0
				w.way = append(w.way, make([]byte, 2*parcelMost)...) // what is sent next
			}
		}
		if damage >= 0 {
			t.Error("all came, and a byte was damaged")
		}
	})
}

// What came before the other end was gone is read before that is said.
func TestCheckedEnd(t *testing.T) {
	w := &wireLink{chance: rand.New(rand.NewPCG(2, 2))}
	c := newChecked(w)
	for text := []byte("before the end"); len(text) > 0; {
		n, _ := c.send(text)
		text = text[n:]
	}
	w.ended = true
	got, dst := 0, make([]byte, 100)
	for {
		n, err := c.read(dst[got:])
		if got += n; err != nil {
			if n > 0 || err != io.EOF {
				t.Errorf("%d bytes and %v", n, err)
			}
			break
		}
	}
	if string(dst[:got]) != "before the end" {
		t.Errorf("%q", dst[:got])
	}
	// A parcel is not larger than it may be, whatever it says.
	large := &wireLink{chance: w.chance, way: binary.LittleEndian.AppendUint32(nil, sizeWord(parcelMost+1))}
	large.way = append(large.way, make([]byte, 4)...)
	c = newChecked(large)
	for range 100 {
		_, err := c.view(1)
		if errors.As(err, new(errDamaged)) {
			return
		}
	}
	t.Error("a parcel that is too large is waited for")
}

// kindLink is a link of a kind.
type kindLink struct {
	link
	name string
}

func (k kindLink) kind() string { return k.name }

// Checked is what crosses a network without TLS.
func TestWhatIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		kind string
		far  bool
		want bool
	}{
		{Config{}, "tcp", true, true},
		{Config{}, "stream", true, true},
		{Config{}, "tcp", false, false},
		{Config{}, "shm", false, false},
		{Config{Checksum: ChecksumAll}, "tcp", false, true},
		{Config{Checksum: ChecksumAll}, "shm", false, false},
		{Config{Checksum: ChecksumAll}, "unix", false, false},
		{Config{Checksum: ChecksumOff}, "tcp", true, false},
		{Config{TLS: &tls.Config{}, Checksum: ChecksumAll}, "stream", true, false},
	} {
		g := &Group{cfg: c.cfg, hosts: []int{0, 0}, peers: []peer{{}, {link: kindLink{name: c.kind}}}}
		if c.far {
			g.hosts[1] = 1
		}
		g.check()
		if _, got := g.peers[1].link.(*checked); got != c.want {
			t.Errorf("checksum %q, %s, on another host %v: checked %v, want %v", c.cfg.Checksum, c.kind, c.far, got, c.want)
		}
	}
}

// FuzzChecked says that nothing but what has the right sum comes out, whatever comes in.
func FuzzChecked(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 7})
	w := &wireLink{chance: rand.New(rand.NewPCG(1, 1))}
	for text := []byte("thirty-two bytes are one header."); len(text) > 0; {
		n, _ := newChecked(w).send(text)
		if text = text[n:]; n > 0 {
			break
		}
	}
	f.Add(w.way)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newChecked(&wireLink{chance: rand.New(rand.NewPCG(uint64(len(b)), 0)), way: b, ended: true})
		out := 0
		for range 10_000 {
			v, err := c.view(1)
			out += len(v)
			c.skip(len(v))
			if err != nil {
				break
			}
		}
		if out > max(0, len(b)-parcelHead) {
			t.Errorf("%d bytes out of %d", out, len(b))
		}
	})
}
