package transport

import "math"

// ReadSquares reads a payload of float32s into dst, as ReadPayload does, and returns the sum of
// their squares, accurate to at least one part in 100,000, and not finite only if an element is
// not. The sum is computed together with the checksum, while the bytes are in the cache, in an
// order that does not depend on how the bytes came. sumSq does it in float64 where the processor
// cannot do both at once, for the remainder, and again for vectors with squares beyond float32.
// Errors are those of ReadPayload.
func ReadSquares(c Conn, dst []float32, sumSq func([]float32) float64) (float64, error) {
	w, ok := c.(*netConn)
	if !ok {
		if err := c.ReadPayload(Floats(dst)); err != nil {
			return 0, err
		}
		return sumSq(dst), nil
	}
	if err := w.fits(4 * len(dst)); err != nil {
		return 0, err
	}
	q := squares{sumSq: sumSq}
	sum, err := w.fullSquares(dst, &q)
	if err := w.ended(sum, err); err != nil {
		return 0, err
	}
	return q.total(dst), nil
}

// fullSquares is full, and passes the elements to q.
func (c *netConn) fullSquares(dst []float32, q *squares) (sum uint32, err error) {
	b := Floats(dst)
	have := copy(b, c.buf[c.r:c.w])
	c.r += have
	for done := 0; ; {
		ready := have / 4
		if have < len(b) {
			ready &^= q.step() - 1
		}
		sum = q.more(sum, dst[done:ready])
		done = ready
		if have == len(b) {
			return sum, nil
		}
		n, err := c.read(b[have:min(len(b), have+chunk)])
		if err != nil {
			return sum, midway(err)
		}
		have += n
	}
}

// plainStep is 64 KiB: small enough for the cache, and large enough that calls cost little.
const plainStep = 16 << 10

// squares accumulates a sum of squares.
type squares struct {
	lanes [16]float64
	quick bool // lanes are in use
	rest  float64
	sumSq func([]float32) float64
}

// plain continues a checksum, and the sum of squares, by v.
func (q *squares) plain(sum uint32, v []float32) uint32 {
	for len(v) > 0 {
		part := v[:min(len(v), plainStep)]
		q.rest += q.sumSq(part)
		sum = more(sum, Floats(part))
		v = v[len(part):]
	}
	return sum
}

// leastSquare is far above the squares that underflow in float32. A vector with a smaller mean square is summed again.
const leastSquare = 1e-30

// total returns the sum of the squares of v, which must be all elements that more got.
func (q *squares) total(v []float32) float64 {
	total := 0.0
	for _, s := range q.lanes {
		total += s
	}
	if q.quick && !(total >= leastSquare*float64(len(v)) && total <= math.MaxFloat64) {
		return q.sumSq(v)
	}
	return total + q.rest
}
