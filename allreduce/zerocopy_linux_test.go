package allreduce

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// sockets are both ends of a TCP connection.
func sockets(t interface{ Fatal(...any) }) (a, b *socket) {
	x, y := connection(t)
	var ends [2]*socket
	for i, nc := range []net.Conn{x, y} {
		k, err := rawLink(nc, "tcp", false, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = k.(*socket)
	}
	return ends[0], ends[1]
}

// all receives as many bytes as dst has room for.
func (s *socket) all(t *testing.T, dst []byte) {
	t.Helper()
	for n, end := 0, time.Now().Add(20*time.Second); n < len(dst); {
		k, err := s.read(dst[n:])
		if n += k; err != nil || time.Now().After(end) {
			t.Fatalf("%d bytes of %d: %v", n, len(dst), err)
		}
	}
}

// The peer sees what is written to whole pages after they were lent, unless they have been taken back; what is outside
// whole pages it never sees.
func TestLentPagesAreTakenBack(t *testing.T) {
	if !kernelZeroCopy() {
		t.Skip("this kernel does not lend memory")
	}
	for _, back := range []bool{false, true} {
		for _, c := range []struct{ skip, size int }{ // of a buffer that begins with a page
			{0, pageSize}, {0, 20 * pageSize}, {100, 3 * pageSize}, {pageSize - 8, 2*pageSize + 16}, {8, pageSize}, {64, 100},
		} {
			out, in := sockets(t)
			mem := make([]byte, 64*pageSize)
			head, _ := wholePages(mem)
			b := mem[head+c.skip:][:c.size]
			for i := range mem {
				mem[i] = 1
			}
			n, err := out.zeroCopySend(b)
			if n != len(b) || err != nil {
				t.Fatalf("%+v: %d bytes, %v", c, n, err)
			}
			if back {
				if err := reclaim(b); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(mem, bytes.Repeat([]byte{1}, len(mem))) {
					t.Fatalf("%+v: taking it back has changed the memory", c)
				}
			}
			for i := range mem {
				mem[i] = 2
			}
			got := make([]byte, len(b))
			in.all(t, got)
			first, pages := wholePages(b)
			for i, x := range got {
				want := byte(1)
				if !back && i >= first && i < first+pages {
					want = 2
				}
				if x != want {
					t.Fatalf("%+v, taken back %v: byte %d is %d, want %d", c, back, i, x, want)
				}
			}
			out.close()
			in.close()
		}
	}
}

// A page that has left only in part is taken back, too.
func TestLentInPartIsTakenBack(t *testing.T) {
	if !kernelZeroCopy() {
		t.Skip("this kernel does not lend memory")
	}
	parts := 0
	for room := 20_000; room < 60_000; room += 1777 {
		out, in := sockets(t)
		if err := unix.SetsockoptInt(out.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, room); err != nil {
			t.Fatal(err)
		}
		tr := transfer{hi: 1 << 20}
		b := bytes.Repeat([]byte{1}, tr.hi)
		var err error
		for n := -1; n != 0; tr.pos += n {
			if n, err = out.zeroCopySend(b[tr.pos:]); err != nil {
				t.Fatal(err)
			}
		}
		if rest, _ := wholePages(b[tr.pos:]); rest > 0 {
			parts++
		}
		if err := reclaim(tr.lent(b)); err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] = 2
		}
		got := make([]byte, tr.pos)
		in.all(t, got)
		if i := bytes.IndexByte(got, 2); i >= 0 {
			t.Errorf("room for %d bytes: byte %d of %d is what was written after they had been taken back", room, i, tr.pos)
		}
		out.close()
		in.close()
	}
	if parts == 0 {
		t.Error("no page has left in part")
	}
}

// Memory that is taken back may lie in several mappings; each must be moved alone.
func TestTakenBackFromSeveralMappings(t *testing.T) {
	if !kernelZeroCopy() {
		t.Skip("this kernel does not lend memory")
	}
	mem := mapped(t, 9*pageSize)
	for i := range mem {
		mem[i] = byte(i / pageSize)
	}
	before := bytes.Clone(mem)
	apart(t, mem[3*pageSize:5*pageSize])
	apart(t, mem[6*pageSize:7*pageSize])
	if err := reclaim(mem); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem, before) {
		t.Error("taking it back has changed the memory")
	}
}

// A stream that is lent in pieces, sent in pieces and received in pieces comes as it was.
func TestLentStream(t *testing.T) {
	if !kernelZeroCopy() {
		t.Skip("this kernel does not lend memory")
	}
	rapid.Check(t, func(t *rapid.T) {
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		out, in := sockets(t)
		defer out.close()
		defer in.close()
		// So little room that pages leave in parts.
		if err := unix.SetsockoptInt(out.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 40_000+chance.IntN(100_000)); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, rapid.SampledFrom([]int{100, 5 * pageSize, 1 << 20}).Draw(t, "bytes")+chance.IntN(100))
		for i := range text {
			text[i] = byte(chance.Uint32())
		}
		got, sent, end := make([]byte, 0, len(text)), 0, 0
		lending := false
		for begun := time.Now(); len(got) < len(text); {
			if time.Since(begun) > time.Minute {
				t.Fatalf("%d bytes of %d have come in a minute", len(got), len(text))
			}
			if sent == end { // the next piece
				end = min(len(text), sent+1+chance.IntN(1<<(1+chance.IntN(21))))
				lending = chance.IntN(2) == 0
			}
			var n int
			var err error
			if lending {
				n, err = out.zeroCopySend(text[sent:end])
			} else {
				n, err = out.send(text[sent:end])
			}
			if sent += n; err != nil {
				t.Fatal(err)
			}
			n, err = in.read(got[len(got):min(cap(got), len(got)+1+chance.IntN(1<<20))])
			if got = got[:len(got)+n]; err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, text) {
			t.Fatal("what has come is not what was sent")
		}
	})
}

// Without a pipe, or with memory that cannot be lent, a link copies.
func TestLendWithoutPipe(t *testing.T) {
	out, in := sockets(t)
	defer out.close()
	defer in.close()
	out.pipe = &pipe{in: -1, out: -1, size: pipeSize}
	b := make([]byte, 3*pageSize)
	if n, err := out.zeroCopySend(b); n != len(b) || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	in.all(t, b)
	out.pipe = nil
}

// mapped is fresh memory of whole pages.
func mapped(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// apart makes b a mapping of its own.
func apart(t *testing.T, b []byte) {
	t.Helper()
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		t.Fatal(err)
	}
}
