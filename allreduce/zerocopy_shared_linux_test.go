package allreduce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// lendingPair is sharedPair, where the kernel has one end read the other's memory.
func lendingPair(t *testing.T) (a, b *shared) {
	t.Helper()
	a, b = sharedPair(t)
	if b.blind != nil {
		t.Skip("memory of processes cannot be read here: ", b.blind)
	}
	if !a.canZeroCopy() || !b.canZeroCopy() {
		t.Fatal("the ends see each other, and do not lend")
	}
	return a, b
}

// piece is part of a stream: a vector of elements of that size, or with size 1 bytes that are only read.
type piece struct{ size, lo, hi int }

// Vectors of mixed types, each at a multiple of vectorAlign, that are lent in parts, sent in parts and received in
// whole elements come as they were. A part may end inside an element, as where the ring is full.
func TestLoans(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := lendingPair(t)
		defer a.close()
		defer b.close()
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		most := rapid.SampledFrom([]int{100, leastLoan, 1 << 20, 5 << 20}).Draw(rt, "bytes")
		var stream []piece
		total := 0
		for total < most {
			gap := int(-uint(total) & (vectorAlign - 1))
			stream = append(stream, piece{1, total, total + gap})
			total += gap
			size := 1 << chance.IntN(4)
			n := size * (1 + chance.IntN(1<<chance.IntN(20)))
			stream = append(stream, piece{size, total, total + n})
			total += n
		}
		text := make([]byte, total)
		for i := range text {
			text[i] = byte(chance.Uint32())
		}
		if chance.IntN(2) == 0 {
			a.rewind()
		}
		lending, viewing := chance.Float64(), chance.Float64()
		got, sent := make([]byte, 0, len(text)), 0
		for idle := 0; len(got) < len(text); idle++ {
			if idle > 20 {
				rt.Fatalf("%d bytes of %d have come, %d were sent", len(got), len(text), sent)
			}
			for range chance.IntN(4) {
				end := min(len(text), sent+1+chance.IntN(1<<chance.IntN(20)))
				for _, v := range stream { // what is sent at once is of one vector
					if sent < v.hi {
						end = min(end, v.hi)
						break
					}
				}
				part := text[sent:end]
				send := a.send
				if chance.Float64() < lending {
					send = a.zeroCopySend
				}
				n, err := send(part)
				if sent += n; err != nil {
					rt.Fatal(err)
				}
			}
			for len(stream) > 0 && stream[0].lo == stream[0].hi {
				stream = stream[1:]
			}
			v := &stream[0]
			n := 0
			var err error
			if v.size > 1 && chance.Float64() < viewing {
				var shown []byte
				shown, err = b.view(v.size)
				if whole := min(len(shown), v.hi-v.lo) / v.size; whole > 0 {
					n = v.size * (1 + chance.IntN(whole))
				}
				got = append(got, shown[:n]...)
				b.skip(n)
			} else {
				want := v.size * (1 + chance.IntN(1<<chance.IntN(20)))
				dst := got[len(got):min(len(got)+v.hi-v.lo, len(got)+want)]
				for n == 0 || n%v.size != 0 { // what is received without adding is received to its end
					var m int
					m, err = b.read(dst[n:])
					if n += m; m > 0 {
						continue
					}
					if err != nil || n == 0 {
						break
					}
					if m, err = a.send(text[sent:min(len(text), sent+v.size)]); err != nil {
						break
					}
					sent += m
				}
				got = got[:len(got)+n]
			}
			if err != nil {
				rt.Fatal(err)
			}
			if v.lo += n; n > 0 {
				idle = 0
			}
		}
		if !bytes.Equal(got, text) {
			rt.Fatal("what has come is not what was sent")
		}
		if n, err := b.read(make([]byte, 8)); n != 0 || err != nil {
			rt.Fatalf("%d bytes more, %v", n, err)
		}
	})
}

// With any bytes before a loan, and a loan of any size modulo vectorAlign, elements of all sizes that go round the
// ring's end behind it are shown whole.
func TestLoansKeepElementsWhole(t *testing.T) {
	a, b := lendingPair(t)
	memory := make([]byte, leastLoan+2*vectorAlign)
	dst := make([]byte, len(memory)+2*vectorAlign)
	values := make([]byte, 8*vectorAlign)
	for i := range values {
		values[i] = byte(i * 7)
	}
	position := uint64(0)
	push := func(send func([]byte) (int, error), p []byte) {
		for len(p) > 0 {
			n, err := send(p)
			if err != nil || n == 0 {
				t.Fatal(n, err)
			}
			p, position = p[n:], position+uint64(n)
		}
	}
	for before := range vectorAlign {
		for size := range vectorAlign {
			for _, element := range []int{2, 4, 8} {
				// An empty ring that ends 256 bytes ahead.
				position = 1<<20 - 256
				for _, h := range []*oneWay{&a.out, &b.in} {
					h.written.Store(position)
					h.read.Store(position)
				}
				begun := position
				push(a.send, memory[:before])
				push(a.zeroCopySend, memory[:leastLoan+vectorAlign+size])
				push(a.send, zeroBytes[:-position&(vectorAlign-1)])
				if n, err := b.read(dst[:position-begun]); n != int(position-begun) || err != nil {
					t.Fatalf("%d bytes before a loan of %d modulo %d: %d bytes of %d, %v", before, size, vectorAlign, n, position-begun, err)
				}
				push(a.send, values)
				for got := 0; got < len(values); {
					v, err := b.view(element)
					n := len(v) / element * element
					if n == 0 || err != nil || !bytes.Equal(v[:n], values[got:got+n]) {
						t.Fatalf("%d bytes before a loan of %d modulo %d: element of %d bytes at %d: % x, %v", before, size, vectorAlign, element, got, v, err)
					}
					b.skip(n)
					got += n
				}
			}
		}
	}
}

var zeroBytes [vectorAlign]byte

// Operations of all types end, with the right sums, behind loans of all sizes modulo vectorAlign.
func TestTypesAfterLoans(t *testing.T) {
	groups := sharedGroup(t)
	for size := range vectorAlign {
		if testing.Short() && size%7 != 1 {
			continue
		}
		block := zeroCopyAbove/4 + size
		errs := together(groups, func(g *Group) error {
			d := newDelivery(2, g.rank, []int{block, block})
			if err := d.run(t.Context(), g, make([]byte, d.size())); err != nil {
				return err
			}
			return errors.Join(sumOf[Float16](t, g), sumOf[float64](t, g), sumOf[BFloat16](t, g), sumOf[float32](t, g), sumOf[int64](t, g), sumOf[int32](t, g))
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("behind loans of %d bytes modulo %d: %v", size, vectorAlign, err)
		}
	}
	if n := groups[0].peers[1].link.(*shared).out.lent.Load(); n == 0 {
		t.Error("nothing was lent")
	}
}

// sumOf adds up a vector that is not lent and goes round the ring, of an odd number of elements.
func sumOf[T Element](t *testing.T, g *Group) error {
	v := convert[T](make([]float64, ringSize*5/4/typeOf[T]().Size()|1))
	one := convert[T]([]float64{1, 2})
	for i := range v {
		v[i] = one[0]
	}
	if err := AllReduce(t.Context(), g, Sum, v); err != nil {
		return err
	}
	for i, x := range v {
		if x != one[1] {
			return fmt.Errorf("element %d of %d %v is %v", i, len(v), typeOf[T](), x)
		}
	}
	return nil
}

// sharedGroup is two ranks that lend long vectors.
func sharedGroup(t *testing.T) []*Group {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := make([]*Group, 2), make(chan error, 2)
	for r := range groups {
		cfg := Config{
			Rank: r, Size: 2, Rendezvous: l.Addr().String(), Transport: "shm",
			Log: slog.New(slog.DiscardHandler), DialTimeout: 20 * time.Second, Timeout: 20 * time.Second,
		}
		if r == 0 {
			cfg.Listener = l
		}
		go func() {
			var err error
			groups[r], err = Dial(context.Background(), cfg)
			errs <- err
		}()
	}
	err = errors.Join(<-errs, <-errs)
	t.Cleanup(func() {
		for _, g := range groups {
			if g != nil {
				g.Close()
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if k := groups[0].peers[1].link.(*shared); !k.canZeroCopy() {
		t.Skip("memory of processes cannot be read here")
	}
	return groups
}

// A peer that cuts an element, as releases before this one could, is an error at once, and not waited for.
func TestCutElements(t *testing.T) {
	a, b := lendingPair(t)
	position := uint64(smallRing - 4)
	for _, h := range []*oneWay{&a.out, &b.in} {
		h.written.Store(position)
		h.read.Store(position)
	}
	a.send(make([]byte, 8))
	if v, err := b.view(8); err != errCut {
		t.Errorf("at the end of the ring %d bytes are shown, %v", len(v), err)
	}
	if v, err := b.view(4); len(v) != 4 || err != nil {
		t.Errorf("at the end of the ring %d bytes are shown, %v", len(v), err)
	}
	b.skip(4)
	memory := make([]byte, leastLoan)
	a.out.loans[0] = loan{at: a.out.written.Load(), address: uint64(uintptr(unsafe.Pointer(&memory[0]))), size: uint64(len(memory))}
	a.out.lent.Add(1)
	if v, err := b.view(8); err != errCut {
		t.Errorf("before a loan %d bytes are shown, %v", len(v), err)
	}
	b.skip(4)
	if n, err := b.read(memory[:len(memory)-4]); n != len(memory)-4 || err != nil {
		t.Fatal(n, err)
	}
	_, _ = b.view(8)
	if v, err := b.view(8); err != errCut {
		t.Errorf("at the end of a loan %d bytes are shown, %v", len(v), err)
	}
}

// A sleeping end is woken: a reader by a loan, a writer when a loan has been taken.
func TestLoansWake(t *testing.T) {
	a, b := lendingPair(t)
	w := newRawWaiter()
	defer w.close()
	buf, dst := make([]byte, leastLoan), make([]byte, leastLoan)
	got := retry(w, ask{b, true, false}, func() (int, error) { return b.read(dst) })
	for b.in.readerWaits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	a.zeroCopySend(buf)
	within(t, "a reader", func() { <-got })
	b.disarm()

	a.zeroCopySend(buf) // the reader does not wait for a loan that has already arrived
	within(t, "a loan that is there", func() { w.wait([]ask{{b, true, false}}, time.Minute) })
	b.read(dst)

	for i := range maxLoans {
		if n, err := a.zeroCopySend(buf); n != len(buf) || err != nil {
			t.Fatalf("loan %d: %d bytes, %v", i, n, err)
		}
	}
	if n, err := a.zeroCopySend(buf); n != 0 || err != nil {
		t.Fatalf("one loan more than there can be: %d bytes, %v", n, err)
	}
	if n, err := a.send(buf[:8]); n != 8 || err != nil {
		t.Fatalf("there is room in the ring: %d bytes, %v", n, err)
	}
	got = retry(w, ask{a, false, true}, func() (int, error) { return a.zeroCopySend(buf) })
	for a.out.writerWaits.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-got:
		t.Error("a writer went on though there was no room")
	case <-time.After(20 * time.Millisecond):
	}
	b.read(dst)
	within(t, "a writer", func() { <-got })
}

// What was taken back never comes, which is no error: it is only not there.
func TestLoansAreTakenBack(t *testing.T) {
	a, b := lendingPair(t)
	buf, dst := bytes.Repeat([]byte{1}, 2*borrowAtOnce), make([]byte, borrowAtOnce)
	a.zeroCopySend(buf)
	if v, err := b.view(8); err != nil || !bytes.Equal(v, buf[:borrowAtOnce]) {
		t.Fatalf("%d bytes, %v", len(v), err)
	}
	b.skip(borrowAtOnce)
	if err := a.reclaim(buf); err != nil {
		t.Fatal(err)
	}
	for i := range buf {
		buf[i] = 2
	}
	if v, err := b.view(8); len(v) != 0 || err != nil {
		t.Errorf("view shows %d bytes, %v", len(v), err)
	}
	if n, err := b.read(dst); n != 0 || err != nil {
		t.Errorf("read has %d bytes, %v", n, err)
	}
	if b.arm(ask{b, true, false}) {
		t.Error("a reader does not sleep, but there is nothing to be had")
	}
}

// Once the peer has gone, what it had lent is not to be had: its number may be another process's by now.
func TestLoansEnd(t *testing.T) {
	a, b := lendingPair(t)
	a.zeroCopySend(make([]byte, leastLoan))
	a.close()
	if n, err := b.read(make([]byte, leastLoan)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v, want the end", n, err)
	}
}

// The peer may write anything into the record of loans: the result is an error, not a panic.
func TestLoansAreNotTrusted(t *testing.T) {
	dst := make([]byte, 100)
	for name, c := range map[string]struct {
		spoil func(h *oneWay)
		want  error
	}{
		"too many":          {func(h *oneWay) { h.lent.Store(maxLoans + 1) }, errCorrupt},
		"fewer than taken":  {func(h *oneWay) { h.taken.Store(2) }, errCorrupt},
		"none of one":       {func(h *oneWay) { h.loans[0].size = 0 }, errCorrupt},
		"behind the reader": {func(h *oneWay) { h.loans[0].at = math.MaxUint64 }, errCorrupt},
		"beyond the ring":   {func(h *oneWay) { h.loans[0].at = smallRing + 1 }, errCorrupt},
		"no address":        {func(h *oneWay) { h.loans[0].address = 8 }, unix.EFAULT},
		"beyond the end":    {func(h *oneWay) { h.loans[0] = loan{0, math.MaxUint64 - 50, math.MaxUint64} }, unix.EFAULT},
		"the kernel's":      {func(h *oneWay) { h.loans[0].address = 0xffff_8000_0000_0000 }, unix.EFAULT},
	} {
		for _, way := range []string{"read", "view"} {
			a, b := lendingPair(t)
			a.zeroCopySend(make([]byte, leastLoan))
			c.spoil(&a.out)
			var err error
			if way == "read" {
				_, err = b.read(dst)
			} else {
				_, err = b.view(8)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", name, way, err, c.want)
			}
			a.close()
			b.close()
		}
	}
	a, _ := lendingPair(t)
	a.out.taken.Store(1)
	if n, err := a.zeroCopySend(make([]byte, leastLoan)); !errors.Is(err, errCorrupt) {
		t.Errorf("%d bytes are lent, %v", n, err)
	}
}

// Another process that has the peer's number is not the peer, and is not read.
func TestBeaconOfAnother(t *testing.T) {
	a, b := lendingPair(t)
	a.light()
	a.out.loans[0].size++
	b.in.loans[0] = a.out.loans[0]
	mem := make([]byte, 16)
	b.in.loans[0].address = uint64(uintptr(unsafe.Pointer(&mem[0])))
	if err := b.lit(); err == nil || !strings.Contains(err.Error(), "is not the peer") {
		t.Errorf("%v", err)
	}
}

// Where the kernel does not let processes read each other's memory, vectors go through the ring, and the log says why.
func TestBlindRanks(t *testing.T) {
	const variable = "ALLREDUCE_TEST_BLIND"
	if os.Getenv(variable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBlindRanks$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		if bytes.Contains(out, []byte("SKIP")) {
			t.Skipf("%s", out)
		}
		if err != nil || !bytes.Contains(out, []byte("PASS: TestBlindRanks")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := deny(unix.SYS_PROCESS_VM_READV); err != nil {
		t.Skip("system calls cannot be denied here: ", err)
	}
	var logs [2]bytes.Buffer
	groups := [2]*Group{}
	errs := make(chan error, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for r := range 2 {
		go func() {
			cfg := Config{Rank: r, Size: 2, Transport: "shm", ZeroCopy: ZeroCopyAll, Log: slog.New(slog.NewTextHandler(&logs[r], nil)), DialTimeout: 20 * time.Second}
			if r == 0 {
				cfg.Listener = l
			} else {
				cfg.Rendezvous = l.Addr().String()
			}
			var err error
			groups[r], err = Dial(context.Background(), cfg)
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	for r, g := range groups {
		defer g.Close()
		go func() {
			v := make([]float32, 1<<20)
			v[1<<19] = float32(1 + r)
			err := g.AllReduce(context.Background(), Sum, v)
			if err == nil && v[1<<19] != 3 {
				err = fmt.Errorf("the sum is %v", v[1<<19])
			}
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Error(err)
	}
	if g := groups[0].peers[1].link.(*shared); g.canZeroCopy() || g.out.lent.Load() != 0 {
		t.Error("vectors were lent")
	}
	if l := logs[1].String(); !strings.Contains(l, "process_vm_readv: operation not permitted") {
		t.Errorf("the log says\n%s", l)
	}
}

// deny has a system call fail with EPERM from now on, in this whole process.
func deny(nr uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: nr},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x50000 | uint32(unix.EPERM)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                   // SECCOMP_RET_ALLOW
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
