package compress

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func magnitude(x float32) uint32 { return math.Float32bits(x) & absMask }

// byMagnitude is the definition: all positions sorted by magnitude, then position.
func byMagnitude(src []float32) []int {
	order := make([]int, len(src))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(magnitude(src[b]), magnitude(src[a])), cmp.Compare(a, b))
	})
	return order
}

// largest keeps the first k in that order; zeros are as good as not sent, but
// for the sign.
func largest(src []float32, order []int, k int) []float32 {
	dst := make([]float32, len(src))
	for _, i := range order[:k] {
		if src[i] != 0 {
			dst[i] = src[i]
		}
	}
	return dst
}

func bitsEqual(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestTopKIsTheLargest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	few := func(n int) []float32 { // many ties
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.IntN(7)-3) * 0.25
		}
		return x
	}
	sparse := func(n int) []float32 {
		x := make([]float32, n)
		for range n / 50 {
			x[r.IntN(n)] = r.Float32()
		}
		return x
	}
	// All that the sample sees is large, and there is less of it than k.
	misleading := func(n int) []float32 {
		x := randoms(n, 3)
		m := min(maxSample, n/64)
		for j := range m {
			lo, hi := n/m*j, n/m*(j+1)
			x[lo+int(uint64(uint32(mix64(uint64(j))))*uint64(hi-lo)>>32)] = 100
		}
		return x
	}
	least := func(n int) []float32 { // half zeros, half what is next to them
		x := make([]float32, n)
		for i := range x {
			x[i] = math.Float32frombits(uint32(i % 2))
		}
		return x
	}
	equal := func(n int) []float32 { return slices.Repeat([]float32{-2}, n) }
	zeros := func(n int) []float32 { return make([]float32, n) }
	eachISA(t, func(t *testing.T) {
		for _, n := range []int{1, 2, 10, 100, 1000, fewest - 1, fewest, 140001} {
			if n > fewest && testing.Short() {
				continue // sorting all of it takes seconds with the race detector
			}
			for name, make := range map[string]func(n int) []float32{
				"normal": func(n int) []float32 { return randoms(n, 2) }, "patterns": func(n int) []float32 { return patterns(n, 2) },
				"few": few, "sparse": sparse, "misleading": misleading, "equal": equal, "least": least, "zeros": zeros} {
				src := make(n)
				order := byMagnitude(src)
				for _, c := range []*TopK{NewTopCount(1), NewTopShare(0.001), NewTopShare(0.01), NewTopShare(0.05), NewTopShare(0.5), NewTopShare(0.7), NewTopCount(n)} {
					k := c.K(n)
					if k < 1 || k > n {
						t.Fatalf("%s: K(%d) = %d", c.Name(), n, k)
					}
					if got := decoded(t, c, src); !bitsEqual(got, largest(src, order, k)) {
						t.Errorf("%s, n=%d, %s: not the %d largest", c.Name(), n, name, k)
					}
				}
			}
		}
	})
}

// TestTopKMaxBytes puts the values as far apart as they go.
func TestTopKMaxBytes(t *testing.T) {
	for _, n := range []int{1, 127, 128, 129, 1000, 16384, 20000, 3 << 18} {
		for _, apart := range []int{1, 2, 127, 128, 129, 16383, 16384, 16385, 1 << 18} {
			src := make([]float32, n)
			k := 0
			for i := apart - 1; i < n; i += apart {
				src[i] = 1
				k++
			}
			if k == 0 {
				continue
			}
			c := NewTopCount(k)
			if got := len(c.Encode(nil, src)); got > c.MaxBytes(n) {
				t.Errorf("n=%d, %d apart: %d bytes, MaxBytes says %d", n, apart, got, c.MaxBytes(n))
			}
		}
	}
	if got := NewTopShare(0.01).MaxBytes(1e6); got > 60000 {
		t.Errorf("1 %% of a million values may take %d bytes; 4 for the value and less than 2 for the distance were promised", got)
	}
}

func TestTopKRefuses(t *testing.T) {
	c := NewTopCount(3)
	message := func(k uint32, rest ...byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, k), rest...)
	}
	value := []byte{0, 0, 128, 63}
	two := slices.Concat(value, value)
	for _, x := range []struct {
		say string
		msg []byte
	}{
		{"3 bytes", []byte{1, 0, 0}},
		{"11 values sent of a vector of 10", message(11, make([]byte, 55)...)},
		{"4294967295 values sent", message(math.MaxUint32)},
		{"cut short", message(2, two...)},
		{"distance of value 1", message(2, append(slices.Clone(two), 4, 0)...)},         // a position twice
		{"distance of value 0", message(1, append(slices.Clone(value), 0x84, 0x00)...)}, // longer than it needs to be
		{"distance of value 1", message(2, append(slices.Clone(two), 4, 0x81)...)},      // cut off
		{"distance of value 0", message(1, append(slices.Clone(value), 255, 255, 255, 255, 0x1f)...)},
		{"position 10", message(2, append(slices.Clone(two), 4, 7)...)},
		{"position 4294967294", message(1, append(slices.Clone(value), 255, 255, 255, 255, 0x0f)...)},
		{"1 bytes left", message(2, append(slices.Clone(two), 4, 3, 9)...)},
		{"1 bytes left", message(0, 9)},
	} {
		dst, want := randoms(10, 2), randoms(10, 2)
		for _, err := range []error{c.Decode(dst, x.msg), c.DecodeAdd(dst, 1, x.msg)} {
			if err == nil || !strings.Contains(err.Error(), x.say) {
				t.Errorf("%v: error %v, want %q", x.msg, err, x.say)
			}
		}
		if !slices.Equal(dst, want) {
			t.Errorf("%v: the vector was changed", x.msg)
		}
	}
	dst := make([]float32, 10)
	if err := c.Decode(dst, message(2, append(slices.Clone(two), 4, 6)...)); err != nil || dst[3] != 1 || dst[9] != 1 {
		t.Errorf("good message: %v, %v", err, dst)
	}
}
