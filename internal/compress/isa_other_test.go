//go:build !amd64 || noasm

package compress

import "testing"

func eachISA(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("go", f)
}

func benchISA(b *testing.B, f func(b *testing.B)) { b.Run("go", f) }
