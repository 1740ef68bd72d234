package workload

import "math/bits"

// twister is the Mersenne Twister MT19937 (Matsumoto and Nishimura, ACM TOMACS 8(1), 1998), seeded and read as Python's module random does.
type twister struct {
	state [624]uint32
	next  int
}

// newTwister is random.Random(seed).
func newTwister(seed uint64) *twister {
	t := &twister{next: 624}
	key := []uint32{uint32(seed)}
	if seed>>32 > 0 {
		key = append(key, uint32(seed>>32))
	}
	t.seed(key)
	return t
}

// seed is init_by_array of the paper's program, for no more words than the state has.
func (t *twister) seed(key []uint32) {
	s := t.state[:]
	s[0] = 19650218
	for i := 1; i < len(s); i++ {
		s[i] = 1812433253*(s[i-1]^s[i-1]>>30) + uint32(i)
	}
	i := 1
	mix := func(factor, add uint32) {
		s[i] = (s[i] ^ (s[i-1]^s[i-1]>>30)*factor) + add
		if i++; i == len(s) {
			s[0], i = s[len(s)-1], 1
		}
	}
	for k := range s {
		mix(1664525, key[k%len(key)]+uint32(k%len(key)))
	}
	for range len(s) - 1 {
		mix(1566083941, -uint32(i))
	}
	s[0] = 1 << 31
}

// uint32 is the next 32 bits.
func (t *twister) uint32() uint32 {
	if t.next == len(t.state) {
		s := t.state[:]
		for i := range s {
			y := s[i]&(1<<31) | s[(i+1)%len(s)]&(1<<31-1)
			s[i] = s[(i+397)%len(s)] ^ y>>1 ^ y&1*0x9908b0df
		}
		t.next = 0
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// float64 is random(): 53 bits in [0, 1).
func (t *twister) float64() float64 {
	high, low := t.uint32()>>5, t.uint32()>>6
	return (float64(high)*(1<<26) + float64(low)) / (1 << 53)
}

// below is what choice takes of 0 to n-1: as few high bits as n has, drawn again until they are less. n is from 1 to 2^32-1.
func (t *twister) below(n uint32) uint32 {
	for {
		if v := t.uint32() >> bits.LeadingZeros32(n); v < n {
			return v
		}
	}
}
