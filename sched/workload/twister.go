package workload

import (
	"math/bits"

	"gonum.org/v1/gonum/mathext/prng"
)

// twister is the Mersenne Twister, seeded and read as Python's module random does.
type twister struct{ *prng.MT19937 }

// newTwister corresponds to random.Random(seed).
func newTwister(seed uint64) twister {
	key := []uint32{uint32(seed)}
	if seed>>32 > 0 {
		key = append(key, uint32(seed>>32))
	}
	t := twister{prng.NewMT19937()}
	t.SeedFromKeys(key)
	return t
}

// float64 corresponds to random(): 53 bits in [0, 1).
func (t twister) float64() float64 {
	high, low := t.Uint32()>>5, t.Uint32()>>6
	return (float64(high)*(1<<26) + float64(low)) / (1 << 53)
}

// below is the draw of choice, from 0 to n-1: as few high bits as n has, redrawn until they are less than n. n is from
// 1 to 2^32-1.
func (t twister) below(n uint32) uint32 {
	for {
		if v := t.Uint32() >> bits.LeadingZeros32(n); v < n {
			return v
		}
	}
}
