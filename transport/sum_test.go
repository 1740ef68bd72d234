package transport

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// Sum is CRC-32 as the standard library has it, of any bytes, anywhere, in any pieces.
func TestSumIsIEEE(t *testing.T) {
	b := make([]byte, 20_000)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(b); i++ {
		b[i] = byte(r.Uint32())
	}
	for from := range 70 {
		for _, n := range []int{0, 1, 63, 64, 255, 256, 1023, 1024, 1025, 1279, 1280, 1281, 1535, 1536, 8191, 8192, 8193, 8448, 8703, 8704, 19_900} {
			x := b[from : from+n]
			if got, want := Sum(x), crc32.ChecksumIEEE(x); got != want {
				t.Fatalf("%d bytes from %d: %08x, want %08x", n, from, got, want)
			}
			cut := n * from / 70
			if got, want := more(Sum(x[:cut]), x[cut:]), crc32.ChecksumIEEE(x); got != want {
				t.Fatalf("%d bytes from %d, cut at %d: %08x, want %08x", n, from, cut, got, want)
			}
		}
	}
}

// BenchmarkSum compares kinds of sums. Up to 1 MiB the bytes are usually in a cache.
func BenchmarkSum(b *testing.B) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for _, n := range []int{64 << 10, 1 << 20, 4 << 20, 16 << 20, 100_000_000} {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i >> 4)
		}
		for _, sum := range []struct {
			name string
			of   func([]byte) uint32
		}{
			{"sum", Sum},
			{"go-ieee", crc32.ChecksumIEEE},
			{"go-castagnoli", func(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }},
		} {
			b.Run(fmt.Sprint(n, "/", sum.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					sum.of(p)
				}
			})
		}
	}
}
