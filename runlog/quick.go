package runlog

import (
	"bytes"
	"math"
	"strconv"

	"star"
)

// The lines that are encoded by hand (line.go) are read back here in the very form that they are written in, which takes a twentieth of the time of
// encoding/json. A line in any other form, of another program, of a later version or damaged, is left to encoding/json, and so is everything that is wrong:
// there is one place that says what.

// quick reads one line from left to right. It begins to fail with the first byte that is not as expected, and goes on failing.
type quick struct {
	b      []byte // what is left of the line
	failed bool
}

// parseQuick reads a line of type record, fire or noise. It is not ok if the line is of another type, or not in the form of this package.
func parseQuick(b []byte) (e Entry, t Seconds, ok bool) {
	q := quick{b: b}
	if !q.skip(`{"type":"`) {
		return nil, 0, false
	}
	switch {
	case q.skip(`record","t":`):
		t = Seconds(q.float())
		e = q.record()
	case q.skip(`fire","t":`):
		t = Seconds(q.float())
		e = q.fire()
	case q.skip(`noise","t":`):
		t = Seconds(q.float())
		e = q.noise()
	default:
		return nil, 0, false
	}
	q.want("}")
	return e, t, !q.failed && len(q.b) == 0
}

func (q *quick) record() Record {
	var r Record
	q.want(`,"worker":`)
	r.Worker = star.Worker(q.whole(0, star.MaxWorkers-1))
	q.want(`,"step":`)
	r.Step = q.whole(0, math.MaxInt64)
	q.want(`,"basis":`)
	r.Basis = q.whole(math.MinInt64, math.MaxInt64)
	var l recordLine
	for _, f := range l.times(&r.Record) {
		if f.name == "injected" && !bytes.HasPrefix(q.b, []byte(`,"injected":`)) {
			continue
		}
		q.want(`,"`)
		q.want(f.name)
		q.want(`":`)
		s, least := Seconds(q.float()), Seconds(0)
		if f.name == "at" {
			least = -longest
		}
		if !(s >= least && s <= longest) {
			q.failed = true
		}
		*f.record = s.Duration()
	}
	r.Start = -1
	if q.skip(`,"start":`) {
		r.Start = q.whole(math.MinInt64, math.MaxInt64)
	}
	q.want(`,"samples":`)
	r.Samples = int(q.whole(0, math.MaxInt))
	if q.skip(`,"more":`) {
		r.More = wholes[int64](q)
		q.failed = q.failed || len(r.More)%2 != 0
	}
	for _, n := range [...]struct {
		name string
		to   *float64
	}{{`,"loss":`, &r.Loss}, {`,"norm2":`, &r.Norm2}, {`,"cpu":`, &r.CPU}, {`,"net_in":`, &r.NetIn}, {`,"net_out":`, &r.NetOut}} {
		q.want(n.name)
		*n.to = q.number()
	}
	if q.skip(`,"telemetry":{`) {
		q.telemetry(&r.Telemetry)
	}
	return r
}

// telemetry reads an object behind its brace, metrics in their order.
func (q *quick) telemetry(t *star.Telemetry) {
	next := star.Metric(0)
	for first := true; !q.skip("}"); first = false {
		if !first {
			q.want(",")
		}
		for next < star.NumMetrics && !q.skip(metrics[next]) { // few are left out
			next++
		}
		if q.failed || next == star.NumMetrics {
			q.failed = true
			return
		}
		t.Set(next, q.float())
		next++
	}
}

// metrics are the names of fields of telemetry, as lines have them.
var metrics = func() (names [star.NumMetrics]string) {
	for k := range names {
		names[k] = `"` + star.Metric(k).String() + `":`
	}
	return names
}()

// fire reads a Fire, whose ranks are to be checked by those that the job has.
func (q *quick) fire() Fire {
	var f Fire
	q.want(`,"seq":`)
	f.Seq = q.whole(1, math.MaxInt64)
	q.want(`,"version":`)
	f.Version = q.whole(0, math.MaxInt64)
	q.want(`,"workers":`)
	f.Workers = wholes[star.Worker](q)
	q.want(`,"staleness":`)
	f.Staleness = wholes[int64](q)
	if q.skip(`,"reports":`) {
		f.Reports = wholes[star.Worker](q)
	}
	if q.skip(`,"dropped":`) {
		f.Dropped = wholes[star.Worker](q)
	}
	if q.skip(`,"pieces":`) {
		f.Pieces = wholes[int64](q)
	}
	if q.skip(`,"more":`) {
		f.More = wholes[int64](q)
	}
	q.want(`,"samples":`)
	f.Samples = q.whole(0, math.MaxInt64)
	if q.skip(`,"round":`) {
		f.Round = int(q.whole(math.MinInt, math.MaxInt))
	}
	return f
}

func (q *quick) noise() Noise {
	var n Noise
	q.want(`,"version":`)
	n.Version = q.whole(0, math.MaxInt64)
	q.want(`,"grad2":`)
	n.Grad2 = Number(q.number())
	q.want(`,"var":`)
	n.Var = Number(q.number())
	if q.skip(`,"mixed":true`) {
		n.Mixed = true
	}
	q.want(`,"scale":`)
	n.Scale = Number(q.number())
	q.want(`,"drift":`)
	n.Drift = Number(q.number())
	q.want(`,"strength":`)
	n.Strength = Number(q.number())
	return n
}

// skip passes over s, if the line goes on with it.
func (q *quick) skip(s string) bool {
	if len(q.b) < len(s) || string(q.b[:len(s)]) != s {
		return false
	}
	q.b = q.b[len(s):]
	return true
}

// want passes over s.
func (q *quick) want(s string) {
	if !q.skip(s) {
		q.failed = true
	}
}

// whole reads a whole number in JSON, from least to most.
func (q *quick) whole(least, most int64) int64 {
	n := q.digits(0)
	x, err := int64(0), error(nil)
	if n > 0 && n <= 18 && q.b[0] != '-' {
		for _, c := range q.b[:n] {
			x = 10*x + int64(c-'0')
		}
	} else {
		x, err = strconv.ParseInt(string(q.b[:n]), 10, 64)
	}
	if err != nil || x < least || x > most {
		q.failed = true
	}
	q.b = q.b[n:]
	return x
}

// number reads a number in JSON, or null, which is NaN.
func (q *quick) number() float64 {
	if q.skip("null") {
		return math.NaN()
	}
	return q.float()
}

// float reads a number in JSON.
func (q *quick) float() float64 {
	if x, n := plainFloat(q.b); n > 0 {
		q.b = q.b[n:]
		return x
	}
	n := q.digits(0)
	if n < len(q.b) && q.b[n] == '.' {
		n = q.more(n + 1)
	}
	if n < len(q.b) && (q.b[n] == 'e' || q.b[n] == 'E') {
		n++
		if n < len(q.b) && (q.b[n] == '-' || q.b[n] == '+') {
			n++
		}
		n = q.more(n)
	}
	x, err := strconv.ParseFloat(string(q.b[:n]), 64)
	if err != nil {
		q.failed = true
	}
	q.b = q.b[n:]
	return x
}

// plainFloat reads the number at the beginning of b, n bytes long, if it has at most 15 digits and no exponent: mantissa and power of ten are exact
// then, and so their quotient is the nearest number (Clinger 1990). n is 0 if it is another one, or none.
func plainFloat(b []byte) (x float64, n int) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		n++
	}
	from, point, m := n, -1, uint64(0)
	for ; n < len(b) && n <= from+16; n++ {
		c := b[n]
		if c == '.' && point < 0 && n > from {
			point = n
			continue
		}
		if c-'0' > 9 {
			break
		}
		m = 10*m + uint64(c-'0')
	}
	digits, after := n-from, 0
	if point >= 0 {
		digits, after = digits-1, n-point-1
	}
	switch {
	case digits == 0 || digits > 15 || point == n-1 || n == len(b):
		return 0, 0
	case b[n]-'0' <= 9 || b[n] == 'e' || b[n] == 'E' || b[n] == '.':
		return 0, 0
	case b[from] == '0' && digits-after > 1: // JSON has no zeros in front
		return 0, 0
	}
	x = float64(m) / powers[after]
	if negative {
		x = -x
	}
	return x, n
}

var powers = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// digits is where the whole part of the number at i ends: 0, or digits that do not begin with it, behind a minus or not.
func (q *quick) digits(i int) int {
	if i < len(q.b) && q.b[i] == '-' {
		i++
	}
	if i < len(q.b) && q.b[i] == '0' {
		return i + 1
	}
	return q.more(i)
}

// more is where the digits at i end, of which there is one at least.
func (q *quick) more(i int) int {
	from := i
	for i < len(q.b) && q.b[i]-'0' <= 9 {
		i++
	}
	if i == from {
		q.failed = true
	}
	return i
}

// wholes reads an array of whole numbers, or null, which is nil.
func wholes[T ~int | int64](q *quick) []T {
	if q.skip("null") {
		return nil
	}
	q.want("[")
	end := bytes.IndexByte(q.b, ']')
	if q.failed || end < 0 {
		q.failed = true
		return nil
	}
	if end == 0 {
		q.want("]")
		return []T{}
	}
	xs := make([]T, 0, bytes.Count(q.b[:end], []byte{','})+1)
	for {
		xs = append(xs, T(q.whole(math.MinInt64, math.MaxInt64)))
		if q.failed || !q.skip(",") {
			break
		}
	}
	q.want("]")
	return xs
}
