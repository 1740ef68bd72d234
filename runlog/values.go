package runlog

import (
	"encoding/json"
	"math"
	"time"
)

// Number is a float64 that may be NaN or infinite, which JSON cannot say: then it is
// null.
type Number float64

// IsZero reports that it has no value: omitzero then leaves it out.
func (n Number) IsZero() bool { return math.IsNaN(float64(n)) }

// MarshalJSON writes null for what is not finite.
func (n Number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON reads null as NaN.
func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// Seconds is a time as logs have it.
type Seconds float64

// SecondsOf is d as logs have it.
func SecondsOf(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// Duration is s to the nanosecond.
func (s Seconds) Duration() time.Duration { return time.Duration(math.Round(float64(s) * 1e9)) }
