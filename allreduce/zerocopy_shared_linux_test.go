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

// A stream that is lent in pieces, sent in pieces and received in pieces comes as it was.
func TestLoans(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := lendingPair(t)
		defer a.close()
		defer b.close()
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		text := make([]byte, rapid.SampledFrom([]int{100, leastLoan, 1 << 20, 5 << 20}).Draw(rt, "bytes")+8*chance.IntN(100))
		for i := range text {
			text[i] = byte(chance.Uint32())
		}
		if chance.IntN(2) == 0 {
			a.rewind()
		}
		lending, viewing := chance.Float64(), chance.Float64()
		got, sent, lent := make([]byte, 0, len(text)), 0, 0
		for idle := 0; len(got) < len(text); idle++ {
			if idle > 10 {
				rt.Fatalf("%d bytes of %d have come, %d were sent", len(got), len(text), sent)
			}
			for range chance.IntN(4) {
				piece := text[sent:min(len(text), sent+8*(1+chance.IntN(1<<chance.IntN(17))))]
				send := a.send
				if chance.Float64() < lending {
					send = a.zeroCopySend
					if len(piece) >= leastLoan {
						lent++
					}
				}
				n, err := send(piece)
				if sent += n; err != nil {
					rt.Fatal(err)
				}
			}
			if chance.Float64() < viewing {
				v, err := b.view(8)
				if err != nil {
					rt.Fatal(err)
				}
				if len(v) > 0 {
					idle = 0 // though nothing may be taken
				}
				v = v[:chance.IntN(len(v)+1)]
				got = append(got, v...)
				b.skip(len(v))
				continue
			}
			n, err := b.read(got[len(got):min(cap(got), len(got)+1+chance.IntN(1<<chance.IntN(20)))])
			if got = got[:len(got)+n]; err != nil {
				rt.Fatal(err)
			}
			if n > 0 {
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

// Who sleeps is woken: a reader by a loan, a writer when one has been taken.
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

	a.zeroCopySend(buf) // what is there already is not waited for
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

// The peer may write anything where loans are told: an error, no panic.
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
