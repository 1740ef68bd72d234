package advice

import (
	"strings"
	"testing"
)

func TestParseThreshold(t *testing.T) {
	for _, c := range []struct {
		in   string
		want float64
		text string
		err  string
	}{
		{"verdict-ratio=0.35", 0.35, "0.35", ""},
		{"verdict-least=5ms", 0.005, "5ms", ""},
		{"mode-dwell=30", 30, "30", ""},
		{"checkpoint-every=0s", 0, "0s", ""},
		{"checkpoint-every=90s", 90, "1m30s", ""},
		{"eval-every=0.5", 0.5, "0.5", ""},
		{"mode-dwell=2.5", 0, "", `mode-dwell: "2.5" is not a whole number from 1 to 10000`},
		{"mode-gain=1", 0, "", `mode-gain: "1" is not a number from 0.01 to 0.9`},
		{"mode-gain=NaN", 0, "", "is not"},
		{"mode-gain=-inf", 0, "", "is not"},
		{"mode-gain=", 0, "", "is not"},
		{"mode-gain", 0, "", "mode-gain: no value; want mode-gain=a number"},
		{"verdict-least=5", 0, "", `verdict-least: "5" is not a time from 0s to 1h0m0s`},
		{"verdict-least=-1ms", 0, "", "is not"},
		{"dead-after=5s", 0, "", `unknown threshold "dead-after"; use one of: verdict-ratio, `},
		{"", 0, "", "unknown threshold"},
	} {
		x, v, err := ParseThreshold(c.in)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want an error with %q", c.in, err, c.err)
		case c.err == "" && (err != nil || v != c.want || x.Text(v) != c.text):
			t.Errorf("%s: %v (%s), %v", c.in, v, x.Text(v), err)
		}
	}
}
