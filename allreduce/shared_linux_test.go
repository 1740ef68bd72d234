package allreduce

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sharedPair is both ends of a link through shared memory.
func sharedPair(t *testing.T) (a, b *shared) {
	t.Helper()
	l, err := net.Listen("unix", "@star-test-"+t.Name())
	if err != nil {
		t.Skip("no Unix sockets: ", err)
	}
	defer l.Close()
	dialled := make(chan error)
	go func() {
		c, err := net.Dial("unix", l.Addr().String())
		if err == nil {
			var k link
			if k, err = rawLink(c, "shm", true, smallRing); err == nil {
				a = k.(*shared)
			}
		}
		dialled <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	k, err := rawLink(c, "shm", false, smallRing)
	if err := errors.Join(err, <-dialled); err != nil {
		t.Fatal(err)
	}
	b = k.(*shared)
	t.Cleanup(func() { a.close(); b.close() })
	return a, b
}

// within fails if f does not return in time: a bell that does not ring leaves it asleep.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: nobody woke the waiter", what)
	}
}

// retry sleeps until a can go on, and tries, until that has moved bytes: as many as come.
func retry(w waiter, a ask, try func() (int, error)) <-chan int {
	got := make(chan int)
	go func() {
		n := 0
		for n == 0 {
			w.wait([]ask{a}, time.Minute)
			n, _ = try()
		}
		got <- n
	}()
	return got
}

func TestSharedMemoryWakes(t *testing.T) {
	a, b := sharedPair(t)
	w := newRawWaiter()
	sleep := func(a ask) { w.wait([]ask{a}, time.Minute) }

	// The reader does not wait for bytes that have already arrived.
	if n, err := a.send([]byte("early")); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	within(t, "data that is there", func() { sleep(ask{b, true, false}) })
	buf := make([]byte, 2*smallRing)
	if n, err := b.read(buf); n != 5 || err != nil || string(buf[:5]) != "early" {
		t.Fatalf("%q, %v", buf[:n], err)
	}

	// A sleeping reader is woken by data. It may wake for no reason too.
	got := retry(w, ask{b, true, false}, func() (int, error) { return b.read(buf) })
	for b.in.readerWaits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	a.send([]byte("late"))
	within(t, "a reader", func() { <-got })

	// A sleeping writer is woken by room.
	if n, _ := a.send(buf); n != smallRing {
		t.Fatalf("%d bytes went into a ring of %d", n, smallRing)
	}
	got = retry(w, ask{a, false, true}, func() (int, error) { return a.send(buf[:8]) })
	for a.out.writerWaits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	b.read(buf[:smallRing])
	within(t, "a writer", func() { <-got })
}

func TestSharedMemoryKeepsOrder(t *testing.T) {
	for _, rewinds := range []bool{false, true} {
		t.Run(fmt.Sprint("rewinds=", rewinds), func(t *testing.T) { keepsOrder(t, rewinds) })
	}
}

func keepsOrder(t *testing.T, rewinds bool) {
	a, b := sharedPair(t)
	if rewinds {
		a.rewind()
	}
	var sent, received []byte
	for i := 0; len(received) < 5*smallRing; i++ {
		piece := bytes.Repeat([]byte{byte(i)}, 1+i*7919%(smallRing/3))
		n, err := a.send(piece)
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, piece[:n]...)
		if i%3 != 0 {
			v, err := b.view(1)
			if err != nil {
				t.Fatal(err)
			}
			received = append(received, v...)
			b.skip(len(v))
		}
	}
	if !bytes.Equal(received, sent[:len(received)]) {
		t.Error("the bytes came in another order")
	}
	if rewound := a.out.offset.Load() > 0; rewound != rewinds {
		t.Errorf("it has begun at the front again: %v, want %v", rewound, rewinds)
	}
}

// Where ranks share processors a writer begins at the front of the ring whenever the reader has read all, and its lines
// stay as they are aligned.
func TestSharedMemoryRewinds(t *testing.T) {
	a, b := sharedPair(t)
	a.rewind()
	buf := make([]byte, smallRing)
	for range 100 {
		n, err := a.send(buf[:200])
		if n != 200 || err != nil {
			t.Fatal(n, err)
		}
		v, err := b.view(8)
		if err != nil || len(v) != 200 {
			t.Fatal(len(v), err)
		}
		at := uintptr(unsafe.Pointer(&v[0])) - uintptr(unsafe.Pointer(&b.in.buf[0]))
		if pos := b.in.read.Load(); at >= vectorAlign || uint64(at) != pos%vectorAlign {
			t.Fatalf("byte %d of the stream is at %d of the ring", pos, at)
		}
		b.skip(len(v))
	}

	// At the same time as the other end reads.
	const total = 40 * smallRing
	go func() {
		for i := 0; i < total; {
			n := min(1+i%70_000, total-i, len(buf))
			for k := range n {
				buf[k] = byte((i + k) % 251)
			}
			for sent := 0; sent < n; {
				m, err := a.send(buf[sent:n])
				if err != nil {
					return
				}
				sent += m
			}
			i += n
		}
	}()
	within(t, "a writer that rewinds", func() {
		got, dst := 0, make([]byte, 50_000)
		for got < total {
			n, err := b.read(dst[:1+got%50_000])
			if err != nil {
				t.Error(err)
				return
			}
			for k := range n {
				if dst[k] != byte((got+k)%251) {
					t.Errorf("byte %d is %d, want %d", got+k, dst[k], (got+k)%251)
					return
				}
			}
			got += n
		}
	})
}

// A peer that is gone is seen when all that it has sent is read.
func TestSharedMemoryEnds(t *testing.T) {
	a, b := sharedPair(t)
	a.send([]byte("last words"))
	a.close()
	newRawWaiter().wait([]ask{{b, false, true}}, time.Second)
	buf := make([]byte, 100)
	if n, err := b.read(buf); string(buf[:n]) != "last words" || err != nil {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if n, err := b.read(buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v, want the end", n, err)
	}
	if _, err := b.send(buf); err == nil {
		t.Error("sending to a closed peer works")
	}
}

// The peer may write anything into the shared memory: an error, no panic.
func TestSharedMemoryIsNotTrusted(t *testing.T) {
	a, b := sharedPair(t)
	a.out.written.Store(smallRing + 1)
	if v, err := b.view(1); !errors.Is(err, errCorrupt) {
		t.Errorf("%d bytes, %v, want %v", len(v), err, errCorrupt)
	}
	a.out.written.Store(100)
	for _, offset := range []uint64{1, 99, smallRing - 1, 1 << 63, math.MaxUint64} {
		a.out.offset.Store(offset)
		if v, err := b.view(1); err != nil || len(v) < 1 || len(v) > 100 {
			t.Errorf("offset %d: %d bytes, %v", offset, len(v), err)
		}
	}
	b.out.read.Store(1)
	if n, err := b.send([]byte{1}); !errors.Is(err, errCorrupt) {
		t.Errorf("%d bytes, %v, want %v", n, err, errCorrupt)
	}
}

// What is handed over must be memory that cannot shrink.
func TestSharedMemoryMustBeSealed(t *testing.T) {
	l, err := net.Listen("unix", "@star-test-"+t.Name())
	if err != nil {
		t.Skip("no Unix sockets: ", err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte{0}) // no memory at all
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := newShared(s.(*net.UnixConn), false, smallRing); err == nil {
		t.Error("a byte without memory was taken for memory")
	}
}

// The copier goes past the caches when copies stay slow, not for one that was interrupted, and comes back
// with the first fast one.
func TestCopierFollowsTheCores(t *testing.T) {
	const fast, slow = 2 * time.Microsecond, 20 * time.Microsecond
	piece := func(d time.Duration, n int) (out []time.Duration) {
		for range n {
			out = append(out, d)
		}
		return out
	}
	for _, c := range []struct {
		name  string
		times [][]time.Duration
		past  bool
	}{
		{"new", nil, false},
		{"near", [][]time.Duration{piece(fast, 100)}, false},
		{"interrupted now and then", [][]time.Duration{piece(slow, 2), piece(fast, 2), piece(slow, 3), piece(fast, 3), piece(slow, 3)}, false},
		{"far", [][]time.Duration{piece(fast, 10), piece(slow, sure)}, true},
		{"almost far", [][]time.Duration{piece(slow, sure-1)}, false},
		{"far for long", [][]time.Duration{piece(slow, 100)}, true},
		{"far and near again", [][]time.Duration{piece(slow, 100), piece(fast, 1)}, false},
		{"and far again", [][]time.Duration{piece(slow, 100), piece(fast, 1), piece(slow, sure)}, true},
	} {
		var k copier
		for _, ds := range c.times {
			for _, d := range ds {
				k.note(d, pieceSize)
			}
		}
		if k.past != c.past {
			t.Errorf("%s: past is %v, want %v", c.name, k.past, c.past)
		}
	}
	// How often it looks: often when all is well, always in doubt, rarely when far.
	for _, c := range []struct {
		k    copier
		want int
	}{{copier{}, 640 / timedNear}, {copier{slow: 1}, 640}, {copier{past: true}, 640 / timedFar}} {
		n := 0
		for range 640 {
			if c.k.pieces++; c.k.timed() {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%+v: %d of 640 pieces are timed, want %d", c.k, n, c.want)
		}
	}
}

// Sockets that are full take what they can, in stripes, and the other end gets it in order.
func TestStripedTakesWhatItCan(t *testing.T) {
	var a, b []link
	for range 3 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, b = append(a, &socket{fd: fds[0], size: 4096}), append(b, &socket{fd: fds[1], size: 4096})
	}
	from, to := newLink(a), newLink(b)
	t.Cleanup(func() { from.close(); to.close() })
	v := make([]byte, 16<<20)
	for i := range v {
		v[i] = byte(i ^ i>>8 ^ i>>16)
	}
	within(t, "full sockets", func() {
		sent := 0
		for got := 0; got < len(v); {
			n, err := from.send(v[sent:])
			if err != nil || n == len(v) {
				t.Errorf("%d bytes of %d went into sockets: %v", n, len(v), err)
				return
			}
			sent += n
			back := make([]byte, 1<<20)
			if n, err = to.read(back); err != nil || n == 0 || !bytes.Equal(back[:n], v[got:got+n]) {
				t.Errorf("%d bytes at %d: %v, or not what was sent", n, got, err)
				return
			}
			got += n
		}
	})
}

// A rank that waits for a checked link waits for its socket.
func TestCheckedLinkIsWaitedFor(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := &socket{fd: fds[0], size: 100}, &socket{fd: fds[1], size: 100}
	defer near.close()
	defer far.close()
	w := new(rawWaiter)
	w.wait([]ask{{newChecked(near), true, true}}, time.Millisecond)
	if len(w.fds) != 1 || w.fds[0].Fd != int32(fds[0]) {
		t.Errorf("waited for %v, want socket %d", w.fds, fds[0])
	}
}
