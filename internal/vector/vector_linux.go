package vector

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const settings = "/sys/kernel/mm/transparent_hugepage/"

// mode is the system's policy for huge pages: always, madvise, never; empty: no huge pages.
var mode = sync.OnceValue(func() string {
	b, _ := os.ReadFile(settings + "enabled")
	_, chosen, _ := strings.Cut(string(b), "[")
	chosen, _, _ = strings.Cut(chosen, "]")
	return chosen
})

// hugePage is the bytes of a huge page, and 0 where Make cannot have any.
var hugePage = sync.OnceValue(func() int {
	b, err := os.ReadFile(settings + "hpage_pmd_size")
	if err != nil || mode() == "never" {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	// with pages of 64 KiB a huge one has 512 MiB: too much to round up to
	if err != nil || n <= 0 || n&(n-1) != 0 || n > 64<<20 {
		return 0
	}
	return n
})

// made are the vectors in huge pages, by the order in which they were made.
var made struct {
	sync.Mutex
	last  uint64
	spans map[uint64]span
}

// span is the memory from one address to before another one.
type span struct{ from, to uintptr }

func makeHuge[T any](n int) []T {
	var one T
	size, page := int(unsafe.Sizeof(one)), hugePage()
	if page == 0 || size == 0 || page%size != 0 || n < page/size {
		return make([]T, n)
	}
	whole := n * size / page * page // the rest has small pages
	v := make([]T, n+page/size)
	first := unsafe.SliceData(v)
	skip := int(-uintptr(unsafe.Pointer(first))&uintptr(page-1)) / size
	v = v[skip : skip+n : skip+n]
	at := uintptr(unsafe.Pointer(&v[0]))
	if unix.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), whole), unix.MADV_HUGEPAGE) != nil {
		return v // without them, it is a vector all the same
	}
	made.Lock()
	defer made.Unlock()
	if made.spans == nil {
		made.spans = map[uint64]span{}
	}
	made.last++
	made.spans[made.last] = span{at, at + uintptr(n*size)}
	runtime.AddCleanup(first, forget, made.last)
	return v
}

// forget is called when the vector is not used any more.
func forget(which uint64) {
	made.Lock()
	defer made.Unlock()
	delete(made.spans, which)
}

func isHuge(b []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return mode() == "always" || asked(span{at, at + uintptr(len(b))})
}

// asked reports whether s is part of a vector that Make has made.
func asked(s span) bool {
	made.Lock()
	defer made.Unlock()
	for _, m := range made.spans {
		if m.from <= s.from && s.to <= m.to {
			return true
		}
	}
	return false
}
