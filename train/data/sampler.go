package data

import (
	"fmt"
	"math/bits"
)

// Permutation is a bijection of 0..n-1, computed and not stored: any position
// can be asked for in any order, in constant memory, and every process that
// knows (seed, epoch, n) has the same one. It is a value; concurrent use is
// safe.
//
// The construction is an unbalanced Feistel network over the smallest power of
// two that holds n, and cycle walking: a result outside 0..n-1 is put through
// again until it falls inside, which takes less than two passes on average.
//
// References:
//   - J. Black, P. Rogaway: Ciphers with Arbitrary Finite Domains. CT-RSA 2002, sections 4 (cycle walking) and 5
//     (Feistel).
//   - G. Steele, D. Lea, C. Flood: Fast Splittable Pseudorandom Number Generators. OOPSLA 2014 (the mixing function).
//
// It is as good as a shuffle for training, and no cipher.
type Permutation struct {
	n        uint64
	lo, hi   uint // bits of the two halves; lo + hi bits hold n-1
	identity bool
	keys     [rounds]uint64
}

// rounds of the network. Four make a pseudorandom permutation of large domains
// (M. Luby, C. Rackoff, SIAM J. Comput. 17, 1988); small domains need more.
const rounds = 10

// NewPermutation is the permutation of the n samples in the given epoch.
// It panics if n < 1.
func NewPermutation(seed uint64, epoch int64, n int) Permutation {
	if n < 1 {
		panic(fmt.Sprintf("data: permutation of %d samples", n))
	}
	p := Permutation{n: uint64(n)}
	width := uint(max(2, bits.Len64(p.n-1)))
	p.lo = width / 2
	p.hi = width - p.lo
	key := mix(mix(seed) ^ uint64(epoch))
	for i := range p.keys {
		key += golden
		p.keys[i] = mix(key)
	}
	return p
}

// At is the sample at position q of the epoch, 0 <= q < n.
func (p *Permutation) At(q int) int {
	x := uint64(q)
	if x >= p.n {
		panic(fmt.Sprintf("data: position %d in a permutation of %d", q, p.n))
	}
	if p.identity {
		return q
	}
	for {
		x = p.pass(x)
		if x < p.n {
			return int(x)
		}
	}
}

// pass permutes 0..2^(lo+hi)-1. Two rounds change both halves, each by a hash
// of the other, so every round can be undone.
func (p *Permutation) pass(x uint64) uint64 {
	l, h := x&(1<<p.lo-1), x>>p.lo
	for i := 0; i < rounds; i += 2 {
		l ^= mix(p.keys[i]+h) >> (64 - p.lo)
		h ^= mix(p.keys[i+1]+l) >> (64 - p.hi)
	}
	return h<<p.lo | l
}

// Stream is the endless sequence of samples that all workers of a job share: position q is sample
// perm(q / N)[q mod N]. Disjoint ranges of positions that cover the stream use each sample once per
// epoch, whatever the size of the ranges and the number of workers.
type Stream struct {
	// Seed chooses the order. Equal seeds give equal streams.
	Seed uint64

	// N is the number of samples of the data set, at least 1.
	N int

	// Ordered switches shuffling off: position q is sample q mod N.
	Ordered bool
}

// Epoch is the permutation of one epoch.
func (s Stream) Epoch(epoch int64) Permutation {
	if s.Ordered {
		return Permutation{n: uint64(s.N), identity: true}
	}
	return NewPermutation(s.Seed, epoch, s.N)
}

// Indices overwrites dst with the samples at positions [start, start+count) and
// returns it, grown if its capacity was too small. The range may span epochs
// and be longer than one. It panics if start or count is negative or N < 1.
func (s Stream) Indices(dst []int, start int64, count int) []int {
	if s.N < 1 || start < 0 || count < 0 {
		panic(fmt.Sprintf("data: positions [%d, %d+%d) of a stream of %d samples", start, start, count, s.N))
	}
	dst = grow(dst, count)
	n := int64(s.N)
	for i := 0; i < count; {
		q := start + int64(i)
		p := s.Epoch(q / n)
		for at := int(q % n); at < s.N && i < count; at++ {
			dst[i] = p.At(at)
			i++
		}
	}
	return dst
}

// golden is 2^64 divided by the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (variant 13 of D. Stafford): a bijection in which each output
// bit depends on all input bits.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// grow returns s with length n, reallocated only when its capacity is too
// small. Old elements are not kept.
func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	return s[:n]
}
