package runlog

import (
	"bytes"
	"math"
	"strconv"
	"time"

	"star"
)

// The lines that are encoded by hand (line.go) are read back here in the very form that they are written in, which
// takes a twentieth of the time of encoding/json. A line in any other form, of another program, of a later version
// or damaged, is left to encoding/json, and so is everything that is wrong: there is one place that says what.

// quick reads one line from left to right. It begins to fail with the first byte that is not as expected, and goes
// on failing.
type quick struct {
	b      []byte // what is left of the line
	failed bool
}

// parseQuick reads a line of type record, fire or noise. It is not ok if the line is of another type, or not in
// the form of this package.
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
	r.At = q.seconds(`,"at":`, -longest)
	r.Load = q.seconds(`,"load":`, 0)
	r.Compute = q.seconds(`,"compute":`, 0)
	if bytes.HasPrefix(q.b, []byte(`,"injected":`)) {
		r.Injected = q.seconds(`,"injected":`, 0)
	}
	r.Push = q.seconds(`,"push":`, 0)
	r.Wait = q.seconds(`,"wait":`, 0)
	r.Pull = q.seconds(`,"pull":`, 0)
	r.Transit = q.seconds(`,"transit":`, 0)
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
	r.Loss = q.named(`,"loss":`)
	r.Norm2 = q.named(`,"norm2":`)
	r.CPU = q.named(`,"cpu":`)
	r.NetIn = q.named(`,"net_in":`)
	r.NetOut = q.named(`,"net_out":`)
	if q.skip(`,"telemetry":{`) {
		q.telemetry(&r.Telemetry)
	}
	return r
}

// seconds reads the field of that name: a time, at least so much.
func (q *quick) seconds(name string, least Seconds) time.Duration {
	q.want(name)
	s := Seconds(q.float())
	if !(s >= least && s <= longest) {
		q.failed = true
	}
	return s.Duration()
}

// named reads the field of that name, a number.
func (q *quick) named(name string) float64 {
	q.want(name)
	return q.number()
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

// fire parses a Fire. The caller checks its ranks.
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

// plainFloat reads the JSON number at the beginning of b, n bytes long, if its digits make a mantissa below 2^53
// and its power of ten is at most 22: both are exact then, and so their product or quotient is the nearest number
// (Clinger 1990). n is 0 if it is another number, or not one, or the last of b.
func plainFloat(b []byte) (x float64, n int) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		n++
	}
	from, m, power := n, uint64(0), 0
	for n < len(b) && b[n]-'0' <= 9 {
		m = 10*m + uint64(b[n]-'0')
		n++
	}
	digits := n - from
	if digits == 0 || digits > 1 && b[from] == '0' { // JSON has no zeros in front
		return 0, 0
	}
	if n < len(b) && b[n] == '.' {
		n++
		point := n
		for n < len(b) && b[n]-'0' <= 9 {
			m = 10*m + uint64(b[n]-'0')
			n++
		}
		power = point - n
		digits -= power
		if power == 0 {
			return 0, 0
		}
	}
	if digits > 19 || m >= 1<<53 { // m may have overflowed
		return 0, 0
	}
	if n < len(b) && b[n]|0x20 == 'e' {
		var e, k int
		if e, k = exponent(b[n+1:]); k == 0 {
			return 0, 0
		}
		power, n = power+e, n+1+k
	}
	if n == len(b) || b[n] == '.' || power < -largest || power > largest {
		return 0, 0
	}
	if x = float64(m); power < 0 {
		x /= powers[-power]
	} else {
		x *= powers[power]
	}
	if negative {
		x = -x
	}
	return x, n
}

// exponent reads that of a number, of two digits at most, k bytes long; k is 0 if it is another one, or none.
func exponent(b []byte) (e, k int) {
	negative := len(b) > 0 && b[0] == '-'
	if negative || len(b) > 0 && b[0] == '+' {
		k++
	}
	from := k
	for k < len(b) && b[k]-'0' <= 9 {
		if k == from+2 {
			return 0, 0
		}
		e = 10*e + int(b[k]-'0')
		k++
	}
	if k == from {
		return 0, 0
	}
	if negative {
		e = -e
	}
	return e, k
}

// largest is the greatest power of ten that a float64 holds exactly.
const largest = 22

var powers = [largest + 1]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// digits is where the whole part of the number at i ends: 0, or digits that do not begin with it, behind a minus
// or not.
func (q *quick) digits(i int) int {
	if i < len(q.b) && q.b[i] == '-' {
		i++
	}
	if i < len(q.b) && q.b[i] == '0' {
		return i + 1
	}
	return q.more(i)
}

// more returns the end of the digits at i, the first of them was checked.
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
