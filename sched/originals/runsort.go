package originals

// runSort sorts as Java sorts lists, because AlloX's simulator is written in Java. The result of an order with cycles,
// such as one that treats nearly equal values as equal, depends on which pairs are compared. Sorted runs are extended
// to at least half of least by binary insertion, and merged; a list shorter than least is one run.
//
// Source: T. Peters' description of Python's list sort, with the limits of Java's: there, least is 32, in Python 64.
func runSort[T any](a []T, cmp func(a, b T) int, least int) {
	r := &runs[T]{a: a, cmp: cmp, gallop: often}
	shortest, odd := len(a), 0
	for shortest >= least {
		odd |= shortest & 1
		shortest /= 2
	}
	shortest += odd
	for low := 0; low < len(a); {
		n := r.ordered(a[low:])
		if want := min(shortest, len(a)-low); n < want {
			r.insert(a[low:low+want], n)
			n = want
		}
		r.stack = append(r.stack, [2]int{low, low + n})
		low += n
		for i := r.unbalanced(); i >= 0; i = r.unbalanced() {
			r.merge(i)
		}
	}
	for len(r.stack) > 1 { // each run is longer than all behind it
		r.merge(len(r.stack) - 2)
	}
}

// javaRuns is how long a list is that Java sorts in more than one run.
const javaRuns = 32

// often is how many elements of one run must come before the next one of the other for it to be looked for by
// galloping.
const often = 7

type runs[T any] struct {
	a      []T
	cmp    func(a, b T) int
	stack  [][2]int // begin and end of runs
	gallop int      // often, more where it did not help
}

func (r *runs[T]) len(i int) int { return r.stack[i][1] - r.stack[i][0] }

// unbalanced is which run is to be merged with the next one; -1: none.
func (r *runs[T]) unbalanced() int {
	i := len(r.stack) - 2
	switch {
	case i < 0:
		return -1
	case i > 0 && r.len(i-1) <= r.len(i)+r.len(i+1), i > 1 && r.len(i-2) <= r.len(i-1)+r.len(i):
		if r.len(i-1) < r.len(i+1) {
			i--
		}
	case r.len(i) > r.len(i+1):
		return -1
	}
	return i
}

// ordered is how long a's first run is. One that falls is turned round.
func (r *runs[T]) ordered(a []T) int {
	n := 1
	if n == len(a) {
		return n
	}
	falls := r.cmp(a[1], a[0]) < 0
	for n++; n < len(a) && (r.cmp(a[n], a[n-1]) < 0) == falls; n++ {
	}
	for i, j := 0, n-1; falls && i < j; i, j = i+1, j-1 {
		a[i], a[j] = a[j], a[i]
	}
	return n
}

// insert sorts a; the first n elements are in order.
func (r *runs[T]) insert(a []T, n int) {
	for ; n < len(a); n++ {
		x, low, high := a[n], 0, n
		for low < high {
			if m := (low + high) / 2; r.cmp(x, a[m]) < 0 {
				high = m
			} else {
				low = m + 1
			}
		}
		copy(a[low+1:n+1], a[low:n])
		a[low] = x
	}
}

// before is how many of a are before key, and with equal also those that are as much. It is looked for in steps that
// double, from the first or the last of a.
func (r *runs[T]) before(key T, a []T, equal, fromEnd bool) int {
	is := func(x T) bool {
		c := r.cmp(key, x)
		return c > 0 || equal && c == 0
	}
	hint := 0
	if fromEnd {
		hint = len(a) - 1
	}
	last, at := 0, 1
	var low, high int
	if is(a[hint]) {
		most := len(a) - hint
		for at < most && is(a[hint+at]) {
			last, at = at, 2*at+1
		}
		low, high = hint+last+1, hint+min(at, most)
	} else {
		most := hint + 1
		for at < most && !is(a[hint-at]) {
			last, at = at, 2*at+1
		}
		low, high = hint-min(at, most)+1, hint-last
	}
	for low < high {
		if m := (low + high) / 2; is(a[m]) {
			low = m + 1
		} else {
			high = m
		}
	}
	return high
}

// merge makes one of run i and the next one.
func (r *runs[T]) merge(i int) {
	r.gallop = max(r.gallop, 1)
	begin, middle, end := r.stack[i][0], r.stack[i][1], r.stack[i+1][1]
	r.stack[i][1] = end
	r.stack = append(r.stack[:i+1], r.stack[i+2:]...)
	begin += r.before(r.a[middle], r.a[begin:middle], true, false)
	if begin == middle {
		return
	}
	end = middle + r.before(r.a[middle-1], r.a[middle:end], false, true)
	switch {
	case end == middle:
	case middle-begin <= end-middle:
		r.up(begin, middle, end)
	default:
		r.down(begin, middle, end)
	}
}

// up merges from the first elements on: the first run is put aside.
func (r *runs[T]) up(begin, middle, end int) {
	a, to, second := r.a, begin, r.a[middle:end]
	first := append([]T(nil), a[begin:middle]...)
	take := func(from *[]T, n int) {
		copy(a[to:], (*from)[:n])
		*from, to = (*from)[n:], to+n
	}
	defer func() { // the rest: the last of the first run is after all others
		if len(first) == 1 {
			take(&second, len(second))
		}
		take(&first, len(first))
	}()
	if take(&second, 1); len(second) == 0 || len(first) == 1 {
		return
	}
	for {
		for ones, twos := 0, 0; ones|twos < r.gallop; {
			if r.cmp(second[0], first[0]) < 0 {
				if take(&second, 1); len(second) == 0 {
					return
				}
				ones, twos = 0, twos+1
			} else {
				if take(&first, 1); len(first) == 1 {
					return
				}
				ones, twos = ones+1, 0
			}
		}
		for ones, twos := often, 0; ones >= often || twos >= often; r.gallop-- {
			if ones = r.before(second[0], first, true, false); ones > 0 {
				if take(&first, ones); len(first) <= 1 {
					return
				}
			}
			if take(&second, 1); len(second) == 0 {
				return
			}
			if twos = r.before(first[0], second, false, false); twos > 0 {
				if take(&second, twos); len(second) == 0 {
					return
				}
			}
			if take(&first, 1); len(first) == 1 {
				return
			}
		}
		r.gallop = max(r.gallop, 0) + 2
	}
}

// down merges from the last elements on: the second run is put aside.
func (r *runs[T]) down(begin, middle, end int) {
	a, to, first := r.a, end, r.a[begin:middle]
	second := append([]T(nil), a[middle:end]...)
	take := func(from *[]T, n int) {
		k := len(*from) - n
		copy(a[to-n:to], (*from)[k:])
		*from, to = (*from)[:k], to-n
	}
	defer func() { // the rest: the first of the second run is before all others
		if len(second) == 1 {
			take(&first, len(first))
		}
		take(&second, len(second))
	}()
	if take(&first, 1); len(first) == 0 || len(second) == 1 {
		return
	}
	for {
		for ones, twos := 0, 0; ones|twos < r.gallop; {
			if r.cmp(second[len(second)-1], first[len(first)-1]) < 0 {
				if take(&first, 1); len(first) == 0 {
					return
				}
				ones, twos = ones+1, 0
			} else {
				if take(&second, 1); len(second) == 1 {
					return
				}
				ones, twos = 0, twos+1
			}
		}
		for ones, twos := often, 0; ones >= often || twos >= often; r.gallop-- {
			if ones = len(first) - r.before(second[len(second)-1], first, true, true); ones > 0 {
				if take(&first, ones); len(first) == 0 {
					return
				}
			}
			if take(&second, 1); len(second) == 1 {
				return
			}
			if twos = len(second) - r.before(first[len(first)-1], second, false, true); twos > 0 {
				if take(&second, twos); len(second) <= 1 {
					return
				}
			}
			if take(&first, 1); len(first) == 0 {
				return
			}
		}
		r.gallop = max(r.gallop, 0) + 2
	}
}
