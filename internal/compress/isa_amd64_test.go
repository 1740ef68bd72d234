//go:build amd64 && !noasm

package compress

import "testing"

// eachISA runs f once with the Go loops and once with the assembly. Tests that
// use it do not run in parallel.
func eachISA(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	defer func() { vectors = detect() }()
	vectors = false
	t.Run("go", f)
	if detect() {
		vectors = true
		t.Run("avx2", f)
	}
}

func benchISA(b *testing.B, f func(b *testing.B)) {
	defer func() { vectors = detect() }()
	vectors = false
	b.Run("go", f)
	if detect() {
		vectors = true
		b.Run("avx2", f)
	}
}
