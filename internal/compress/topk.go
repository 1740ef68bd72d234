package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// TopK sends the k values of largest magnitude with their positions. Equal
// magnitudes go to the lower positions; zeros are not sent, so fewer than k
// values may be. NaN counts as larger than Inf, and Inf as larger than any
// number: both are always sent. The other values are left to [Feedback].
//
// The choice is exact, not a threshold that drifts: a sample of the vector gives
// a magnitude below which no value can be among the k largest, almost surely;
// what is above it is collected, and a radix selection over the bits of the
// magnitudes finds the k-th. When the sample misleads, the selection runs over
// the whole vector. O(n).
//
// On the wire: the number of values as uint32, the values as float32, then for
// each value the distance from the position of the one before it (from −1 for
// the first) as an unsigned LEB128, 7 bits in a byte, low bits first. Little-endian.
// At 1 % a distance takes 1.3 bytes, where a uint32 takes 4 and a bitmap 12.5.
type TopK struct {
	share float64 // of the values; 0: count
	count int

	found   []uint32  // positions that may be among the k largest
	values  []float32 // the values, close together
	sampled [maxSample]float32
}

const (
	maxSample = 8192

	// fewest is the length below which sampling is not worth its while.
	fewest = 4 * maxSample
)

var topK = Entry{Name: "topk", Arg: "0.01", Loss: LeftOut, missing: "amount", make: func(_, arg string, _ Slice, _ uint64) (Codec, error) {
	if n, err := strconv.Atoi(arg); err == nil {
		if n < 1 || n > MaxLen {
			return nil, fmt.Errorf("compress: topk=%s: a number of values must be from 1 to %d", arg, MaxLen)
		}
		return NewTopCount(n), nil
	}
	f, err := strconv.ParseFloat(arg, 64)
	if err != nil || !(f > 0 && f < 1) {
		return nil, fmt.Errorf("compress: topk=%s is neither a share between 0 and 1 nor a whole number", arg)
	}
	return NewTopShare(f), nil
}}

// NewTopShare sends the share f of the values, 0 < f < 1, rounded up.
func NewTopShare(f float64) *TopK {
	if !(f > 0 && f < 1) {
		panic(fmt.Sprintf("compress: NewTopShare: %v is not between 0 and 1", f))
	}
	return &TopK{share: f}
}

// NewTopCount sends k values, or all if there are fewer.
func NewTopCount(k int) *TopK {
	if k < 1 {
		panic(fmt.Sprintf("compress: NewTopCount: %d values", k))
	}
	return &TopK{count: k}
}

// Name implements Codec.
func (c *TopK) Name() string {
	if c.share > 0 {
		return "topk=" + strconv.FormatFloat(c.share, 'g', -1, 64)
	}
	return "topk=" + strconv.Itoa(c.count)
}

// K is the greatest number of values that are sent of n.
func (c *TopK) K(n int) int {
	if c.share > 0 {
		return min(int(math.Ceil(c.share*float64(n))), n)
	}
	return min(c.count, n)
}

// MaxBytes implements Codec. The distances add up to at most n, so only n/128 of
// them can take more than one byte, n/16384 more than two, and so on.
func (c *TopK) MaxBytes(n int) int {
	k := c.K(n)
	distances := k
	for least := 128; least <= n; least *= 128 {
		distances += min(k, n/least)
	}
	return 4 + 4*k + distances
}

// Encode implements Codec.
func (c *TopK) Encode(dst []byte, src []float32) []byte {
	n := len(src)
	if n > MaxLen {
		panic(fmt.Sprintf("compress: topk: vector of %d values, at most %d can be sent", n, MaxLen))
	}
	k := c.K(n)
	at := len(dst)
	dst, b := grow(dst, c.MaxBytes(n))
	if k == 0 {
		binary.LittleEndian.PutUint32(b, 0)
		return dst[:at+4]
	}

	limit, ties := uint32(0), 0
	few := c.candidates(src, k)
	if few {
		limit, ties = kth(c.values, k)
	} else {
		limit, ties = kth(src, k)
	}
	if limit == 0 { // fewer than k are not zero
		limit, ties = 1, n
	}
	if !few {
		c.collect(src, limit)
	}

	sent := 0
	for j, v := range c.values {
		a := math.Float32bits(v) & absMask
		if a < limit {
			continue
		}
		if a == limit {
			if ties == 0 {
				continue
			}
			ties--
		}
		c.found[sent] = c.found[j]
		binary.LittleEndian.PutUint32(b[4+4*sent:], math.Float32bits(v))
		sent++
	}
	binary.LittleEndian.PutUint32(b, uint32(sent))
	end, next := 4+4*sent, uint32(0)
	for _, i := range c.found[:sent] {
		d := i + 1 - next
		next = i + 1
		for ; d >= 0x80; d >>= 7 {
			b[end] = byte(d) | 0x80
			end++
		}
		b[end] = byte(d)
		end++
	}
	return dst[:at+end]
}

// candidates collects values of src that include the k largest, or reports that
// all of them may be.
func (c *TopK) candidates(src []float32, k int) bool {
	n := len(src)
	if n < fewest || k > n/8 {
		return false
	}
	// One position in each of m stretches, so that the sample is spread evenly, at
	// a random place in it, so that no period of the vector meets it.
	m := min(maxSample, n/64)
	for j := range m {
		lo, hi := n/m*j, n/m*(j+1)
		c.sampled[j] = src[lo+int(uint64(uint32(mix64(uint64(j))))*uint64(hi-lo)>>32)]
	}
	// k/n·m of the sample are expected among the k largest. Four standard
	// deviations more than that, and some for small numbers, are nearly sure to
	// reach below the k-th.
	r := float64(k) / float64(n) * float64(m)
	limit, _ := kth(c.sampled[:m], min(m, int(r+4*math.Sqrt(r)+8)))
	if limit == 0 {
		return false
	}
	c.collect(src, limit)
	return len(c.found) >= k
}

// collect finds the values with a magnitude of at least limit > 0, in bits.
func (c *TopK) collect(src []float32, limit uint32) {
	const stretch = 4096
	c.found, c.values = c.found[:0], c.values[:0]
	for lo := 0; lo < len(src); lo += stretch {
		x := src[lo:min(lo+stretch, len(src))]
		at := len(c.found)
		c.found = slices.Grow(c.found, stretch)
		m := above(c.found[at:at+stretch], x, limit, uint32(lo))
		c.found = c.found[:at+m]
		for _, i := range c.found[at:] {
			c.values = append(c.values, src[i])
		}
	}
}

// kth is the bits of the k-th largest magnitude of x, 1 ≤ k ≤ len(x), and how
// many of those that equal it are among the k. Radix selection: 11, 10 and 10
// bits.
func kth(x []float32, k int) (limit uint32, ties int) {
	var count [1 << 11]uint32
	for _, v := range x {
		count[math.Float32bits(v)&absMask>>20]++
	}
	prefix, k := pick(count[:], k)
	for _, shift := range [2]uint32{10, 0} {
		clear(count[:1<<10])
		for _, v := range x {
			if a := math.Float32bits(v) & absMask; a>>(shift+10) == prefix {
				count[a>>shift&1023]++
			}
		}
		var digit uint32
		digit, k = pick(count[:1<<10], k)
		prefix = prefix<<10 | digit
	}
	return prefix, k
}

// pick is the digit in which the k-th from above is, and its place within.
func pick(count []uint32, k int) (digit uint32, rest int) {
	for d := len(count) - 1; d > 0; d-- {
		if k <= int(count[d]) {
			return uint32(d), k
		}
		k -= int(count[d])
	}
	return 0, k
}

// parts checks src and gives its number of values and its distances.
func (c *TopK) parts(n int, src []byte) (k int, distances []byte, err error) {
	if len(src) < 4 {
		return 0, nil, fmt.Errorf("compress: %s: %d bytes, too few for the number of values; the message is cut short", c.Name(), len(src))
	}
	sent := binary.LittleEndian.Uint32(src)
	if uint64(sent) > uint64(n) {
		return 0, nil, fmt.Errorf("compress: %s: %d values sent of a vector of %d; sender and receiver do not mean the same slice", c.Name(), sent, n)
	}
	k = int(sent)
	if len(src) < 4+5*k {
		return 0, nil, fmt.Errorf("compress: %s: %d bytes for %d values sent, at least %d expected; the message is cut short", c.Name(), len(src), k, 4+5*k)
	}
	distances = src[4+4*k:]
	next, at := uint64(0), 0
	for j := range k {
		d, m := distance(distances[at:])
		if m == 0 {
			return 0, nil, fmt.Errorf("compress: %s: distance of value %d of %d at byte %d is invalid; the bytes are corrupt", c.Name(), j, k, 4+4*k+at)
		}
		at += m
		if next += uint64(d); next > uint64(n) {
			return 0, nil, fmt.Errorf("compress: %s: value %d of %d is for position %d of a vector of %d; sender and receiver do not mean the same slice", c.Name(), j, k, next-1, n)
		}
	}
	if at != len(distances) {
		return 0, nil, fmt.Errorf("compress: %s: %d bytes left after %d values; the bytes are corrupt", c.Name(), len(distances)-at, k)
	}
	return k, distances, nil
}

// distance reads one distance and returns its number of bytes; 0 for invalid
// input: a distance of 0 (a position twice), one that is longer than necessary,
// that does not fit, or that is truncated.
func distance(b []byte) (d uint32, taken int) {
	for i, v := range b {
		if i == 4 && v > 0x0f {
			return 0, 0
		}
		d |= uint32(v&0x7f) << (7 * i)
		if v < 0x80 {
			if v == 0 {
				return 0, 0
			}
			return d, i + 1
		}
	}
	return 0, 0
}

// Decode implements Codec.
func (c *TopK) Decode(dst []float32, src []byte) error {
	k, distances, err := c.parts(len(dst), src)
	if err != nil {
		return err
	}
	clear(dst)
	at := -1
	for j := range k {
		d, m := distance(distances)
		distances = distances[m:]
		at += int(d)
		dst[at] = math.Float32frombits(binary.LittleEndian.Uint32(src[4+4*j:]))
	}
	return nil
}

// DecodeAdd implements Codec.
func (c *TopK) DecodeAdd(dst []float32, scale float32, src []byte) error {
	k, distances, err := c.parts(len(dst), src)
	if err != nil {
		return err
	}
	at := -1
	for j := range k {
		d, m := distance(distances)
		distances = distances[m:]
		at += int(d)
		dst[at] += float32(scale * math.Float32frombits(binary.LittleEndian.Uint32(src[4+4*j:])))
	}
	return nil
}

// aboveGo writes first + i for each value of x with a magnitude, in bits, of at
// least limit and returns their number. found has room for all of x.
func aboveGo(found []uint32, x []float32, limit, first uint32) int {
	m := 0
	for i, v := range x {
		if math.Float32bits(v)&absMask >= limit {
			found[m] = first + uint32(i)
			m++
		}
	}
	return m
}
