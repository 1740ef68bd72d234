package compress

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fenced gives memory that ends where the address space has a hole: touching one
// byte too much is a fault, not a matter of luck.
func fenced(t *testing.T, size int) []byte {
	t.Helper()
	page := unix.Getpagesize()
	whole := (size + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, whole+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("mmap of %d bytes: %v", whole+page, err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	if err := unix.Mprotect(m[whole:], unix.PROT_NONE); err != nil {
		t.Fatalf("mprotect: %v", err)
	}
	return m[whole-size : whole : whole]
}

func fencedFloats(t *testing.T, n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&fenced(t, 4*n)[0])), n)
}

func TestNothingTouchesWhatIsBeyond(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, n := range []int{1, 5, 8, 9, 31, 33, 64, 255, 300, 530} {
			src, dst := fencedFloats(t, n), fencedFloats(t, n)
			copy(src, randoms(n, 1))
			for _, c := range codecs(t, n) {
				room := fenced(t, c.MaxBytes(n))
				msg := c.Encode(room[:0], src)
				if &msg[0] != &room[0] {
					t.Fatalf("%s: Encode left a buffer of MaxBytes", c.Name())
				}
				// The message as a receiver has it, with nothing after it.
				got := fenced(t, len(msg))
				copy(got, msg)
				if err := c.Decode(dst, got); err != nil {
					t.Fatal(err)
				}
				if err := c.DecodeAdd(dst, 1, got); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
