package coord

import (
	"fmt"
	"math"
	"testing"
)

// Numbers that are printed are rounded to the same number, however large; values that are not finite stay so.
func TestRound4(t *testing.T) {
	for x, want := range map[float64]string{
		0.123449: "0.1234", 0.12345001: "0.1235", -0.12345001: "-0.1235", -0.00001: "-0", 2: "2", 123456789.12346: "1.234567891235e+08",
		1e11: "1e+11", 9.3e14: "9.3e+14", -9.3e14: "-9.3e+14", 3951246992692450816: "3.951246992692451e+18", 1e308: "1e+308", -math.MaxFloat64: "-1.7976931348623157e+308",
		math.Inf(1): "+Inf", math.Inf(-1): "-Inf", math.NaN(): "NaN",
	} {
		if got := fmt.Sprint(round4(x)); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}
