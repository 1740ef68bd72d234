package export

import (
	"encoding/json"
	"math"
	"strconv"
)

// appendDecimal writes n divided by 10 to the power of places, without zeros at the end.
func appendDecimal(b []byte, n int64, places int) []byte {
	if n < 0 {
		b, n = append(b, '-'), -n
	}
	whole, part := n, int64(1)
	for range places {
		part *= 10
	}
	whole, n = n/part, n%part
	b = strconv.AppendInt(b, whole, 10)
	if n == 0 {
		return b
	}
	b = append(b, '.')
	for ; n > 0; n %= part {
		part /= 10
		b = append(b, byte('0'+n/part))
	}
	return b
}

// appendNumber writes x so that it reads back as x: what has nine places or fewer, as all times have, in a third
// of strconv's time.
func appendNumber(b []byte, x float64) []byte {
	if n := math.Round(x * 1e9); math.Abs(n) < 1e15 && n/1e9 == x && (n != 0 || !math.Signbit(x)) {
		return appendDecimal(b, int64(n), 9)
	}
	return strconv.AppendFloat(b, x, 'g', -1, 64)
}

// appendQuoted writes a text as JSON. Texts of a run log may come from anywhere: a sequence that could end a script in
// a page is escaped.
func appendQuoted(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			plain = false
			break
		}
	}
	if plain {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil { // a string always has a form
		return strconv.AppendQuote(b, s)
	}
	return append(b, text...)
}
