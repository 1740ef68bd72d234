//go:build amd64 && !noasm

package kernel

import "testing"

// eachISA runs f once on each implementation that the processor has. Tests that
// use it do not run in parallel.
func eachISA(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	best := detect()
	defer func() { isa = best }()
	for isa = goOnly; isa <= best; isa++ {
		t.Run(isaName(), f)
	}
	isa = best
}

func benchISA(b *testing.B, f func(b *testing.B)) {
	best := detect()
	defer func() { isa = best }()
	for isa = goOnly; isa <= best; isa++ {
		b.Run(isaName(), f)
	}
	isa = best
}
