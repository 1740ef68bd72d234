package vector

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// Vectors are made where there are no huge pages, too.
func TestMakeWithoutHugePages(t *testing.T) {
	defer func(before func() int) { hugePage = before }(hugePage)
	hugePage = func() int { return 0 }
	TestMake(t)
}

// A long vector lies in huge pages, where the system gives them.
func TestHugePages(t *testing.T) {
	if hugePage() == 0 {
		t.Skip("no transparent huge pages: ", mode())
	}
	const n = 8<<20 + 1000
	v := Make[float32](n)
	for i := range v {
		v[i] = 1
	}
	at := uintptr(unsafe.Pointer(&v[0]))
	if at%uintptr(hugePage()) != 0 {
		t.Errorf("it begins at %#x", at)
	}
	if !advised(t, at) || !advised(t, at+32<<20-1) {
		t.Error("the kernel was not asked for huge pages")
	}

	if b := bytesOf(v); !Huge(b) || !Huge(b[4000:8000]) || !Huge(b[4*n-1:]) {
		t.Error("nobody knows that it is in huge pages")
	}
	for _, s := range []span{{at - 1, at + 1}, {at + 4*n - 1, at + 4*n + 1}, {at - 1, at + 4*n + 1}, {at + 4*n, at + 4*n + 1}} {
		if asked(s) {
			t.Errorf("%#x to %#x is taken to be part of it", s.from, s.to)
		}
	}
	if b := make([]byte, 10<<20); Huge(b) != (mode() == "always") {
		t.Errorf("other memory is in huge pages: %v", Huge(b))
	}
	runtime.KeepAlive(v)
	v = nil
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		runtime.GC()
		if !asked(span{at, at + 1}) {
			break
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatal("a vector that nobody has is still known")
		}
	}
}

func bytesOf(v []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)) }

// advised says whether the mapping around an address wants huge pages (hg in VmFlags).
func advised(t *testing.T, at uintptr) bool {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	here := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var lo, hi uintptr
		if _, err := fmt.Sscanf(s.Text(), "%x-%x ", &lo, &hi); err == nil && strings.Contains(s.Text(), "-") && !strings.Contains(strings.Fields(s.Text())[0], ":") {
			here = lo <= at && at < hi
		}
		if flags, ok := strings.CutPrefix(s.Text(), "VmFlags:"); ok && here {
			return strings.Contains(flags+" ", " hg ")
		}
	}
	return false
}
