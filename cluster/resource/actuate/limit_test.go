package actuate

import (
	"math"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestParse(t *testing.T) {
	for text, want := range map[string]Limit{
		"":                                     {},
		"none":                                 {},
		"delay=50ms":                           {Delay: 50 * ms},
		"cpu=1.5":                              {Cores: 1.5},
		"out=100mbit":                          {NetOut: 12.5e6},
		"in=2.5gbit":                           {NetIn: 312.5e6},
		"out=64kbit,in=8000bit":                {NetOut: 8000, NetIn: 1000},
		"delay=1m,cpu=0.01,out=1gbit,in=1gbit": {Delay: time.Minute, Cores: 0.01, NetOut: 125e6, NetIn: 125e6},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"delay":                 "delay",
		"delay=0s":              "no delay",
		"delay=-5ms":            "between 0 and 1m0s",
		"delay=61s":             "between 0 and 1m0s",
		"delay=5":               "missing unit",
		"cpu=0":                 "positive",
		"cpu=-1":                "positive",
		"cpu=nan":               "positive",
		"cpu=inf":               "positive",
		"cpu=0.001":             "between 0.01 and 4096",
		"cpu=1,cpu=2":           "cpu comes twice",
		"out=100":               "no unit",
		"out=bit":               "positive",
		"out=7999bit":           "between 1000",
		"in=1001gbit":           "between 1000",
		"in=nanbit":             "positive",
		"speed=3":               `"speed=3" is no limit`,
		"cpu=1,":                `"" is no limit`,
		"none,cpu=1":            `"none" is no limit`,
		"delay=50ms , cpu=1":    "unknown unit",
		"out=100mbit,in=5 mbit": "positive",
	} {
		if l, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), limitUse) {
			t.Errorf("Parse(%q) = %+v, %v; want an error with %q", text, l, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"delay=50ms,cpu=1.5,out=100mbit,in=64kbit", "none", "cpu=4096", "out=1000gbit", "in=8001bit"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(l.String())
		close := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }
		if err != nil || again.Delay != l.Delay || again.Cores != l.Cores || !close(again.NetOut, l.NetOut) || !close(again.NetIn, l.NetIn) {
			t.Fatalf("%q is %+v, and %q is %+v, %v", text, l, l, again, err)
		}
	})
}

func TestAnd(t *testing.T) {
	for _, c := range []struct{ a, b, want Limit }{
		{Limit{}, Limit{}, Limit{}},
		{Limit{Delay: ms, Cores: 2, NetOut: 3e6}, Limit{}, Limit{Delay: ms, Cores: 2, NetOut: 3e6}},
		{Limit{Delay: ms, Cores: 2, NetOut: 3e6}, Limit{Delay: ms, Cores: 1, NetIn: 5e6}, Limit{Delay: 2 * ms, Cores: 1, NetOut: 3e6, NetIn: 5e6}},
		{Limit{Delay: MaxDelay, NetIn: 7e6}, Limit{Delay: ms, NetIn: 5e6}, Limit{Delay: MaxDelay, NetIn: 5e6}},
	} {
		if got := c.a.And(c.b); got != c.want {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
		if got := c.b.And(c.a); got != c.want {
			t.Errorf("%v and %v: %v, want %v", c.b, c.a, got, c.want)
		}
	}
}

// With the limit, the same work takes as much longer as was ordered.
func TestKindLimit(t *testing.T) {
	w := Work{Busy: 100 * ms, Cores: 1.5, Send: 20 * ms, Out: 1e6}
	for _, c := range []struct {
		kind Kind
		d    time.Duration
		w    Work
		want Limit
		err  string
	}{
		{Pace, 50 * ms, Work{}, Limit{Delay: 50 * ms}, ""},
		{"", 50 * ms, Work{}, Limit{Delay: 50 * ms}, ""},
		{ByCgroup, 50 * ms, w, Limit{Cores: 1}, ""}, // 150 ms of processor time in 150 ms
		{ByTC, 80 * ms, w, Limit{NetOut: 1e7}, ""},  // 1 MB in 100 ms
		{ByTC, time.Nanosecond, Work{Out: 1e9}, Limit{NetOut: MaxRate}, ""},
		{ByCgroup, 50 * ms, Work{}, Limit{}, "not known yet how many processors"},
		{ByTC, 50 * ms, Work{}, Limit{}, "not known yet how much"},
		{ByCgroup, time.Minute, Work{Busy: ms, Cores: 1}, Limit{}, "between 0.01"},
		{ByTC, time.Minute, Work{Out: 1}, Limit{}, "out:"},
		{None, ms, w, Limit{}, `"none" delays nothing`},
	} {
		got, err := c.kind.Limit(c.d, c.w)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s, %v of %+v: %v, %v; want an error with %q", c.kind, c.d, c.w, got, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s, %v of %+v: %v, %v; want %v", c.kind, c.d, c.w, got, err, c.want)
		}
	}
}
