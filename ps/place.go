package ps

import "fmt"

// Range is a part of the flat vector: elements [From, To).
type Range struct{ From, To int64 }

// Split cuts a vector of n elements into k ranges with lengths that differ by
// at most one. It ignores the borders of tensors: whole tensors would leave
// shards unequal (ResNet-20 on 8 shards: 28464 to 36864 elements).
func Split(n int64, k int) ([]Range, error) {
	if k < 1 {
		return nil, fmt.Errorf("ps: %d shards; at least one is needed", k)
	}
	if n < int64(k) {
		return nil, fmt.Errorf("ps: %d parameters cannot be cut into %d shards; use at most %d", n, k, max(n, 1))
	}
	rs := make([]Range, k)
	size, more := n/int64(k), n%int64(k)
	var at int64
	for i := range rs {
		to := at + size
		if int64(i) < more {
			to++
		}
		rs[i] = Range{at, to}
		at = to
	}
	return rs, nil
}
