package inject

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/sim/trace"
)

const ms = time.Millisecond

func TestParse(t *testing.T) {
	for text, want := range map[string]Slow{
		"2:3x":             {Worker: 2, Kind: Factor, Times: 3},
		"0:1.5x":           {Worker: 0, Kind: Factor, Times: 1.5},
		"2:+50ms":          {Worker: 2, Kind: Add, Pause: 50 * ms},
		"1:burst=40ms/1s":  {Worker: 1, Kind: Burst, Pause: 40 * ms, Period: time.Second},
		"1:stop=800ms/1s":  {Worker: 1, Kind: Stop, Pause: 800 * ms, Period: time.Second},
		"1:data=40ms":      {Worker: 1, Kind: Data, Pause: 40 * ms},
		"12:100mbit":       {Worker: 12, Kind: Rate, Bits: 100e6},
		"12:2.5gbit":       {Worker: 12, Kind: Rate, Bits: 25e8},
		"12:64kbit":        {Worker: 12, Kind: Rate, Bits: 64000},
		"65535:999.9999x":  {Worker: 65535, Kind: Factor, Times: 999.9999},
		"3:burst=1ms/1h0s": {Worker: 3, Kind: Burst, Pause: ms, Period: time.Hour},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "2", "2:", ":3x", "-1:3x", "65536:3x", "+2:3x", "2:3", "2:x", "2:0.5x", "2:nanx", "2:infx", "2:1001x",
		"2:+0s", "2:+-5ms", "2:+50", "2:++50ms", "2:+2h", "1:burst=40ms", "1:burst=1s/1s", "1:burst=2s/1s", "1:burst=0s/1s",
		"1:burst=999.5ms/1s", "1:stop=/", "1:data=", "1:data=0s", "2:1bit", "2:9999gbit", "2:nanbit", "2:-5mbit", "2:mbit", "2: 3x", "2:3x "} {
		if s, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, s)
		} else if !strings.Contains(err.Error(), "RANK:3x") {
			t.Errorf("Parse(%q): %v does not say what to write", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"2:3x", "2:+50ms", "1:burst=40ms/1s", "1:stop=800ms/1s", "0:100mbit", "0:1e300gbit"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || again != s {
			t.Fatalf("%q is %+v, and %q is %+v, %v", text, s, s, again, err)
		}
	})
}

// injector makes the injector of worker 1 of 4.
func injector(t *testing.T, by By, recorded *trace.Trace, slows ...string) *Injector {
	t.Helper()
	c := Config{Worker: 1, Workers: 4, Trace: recorded, By: by}
	for _, text := range slows {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		c.Slows = append(c.Slows, s)
	}
	in, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestData(t *testing.T) {
	if got := injector(t, Sleeping, nil, "1:data=40ms", "1:data=2ms", "2:data=1h").Data(); got != 42*ms {
		t.Errorf("waits %v longer for its data, want 42ms", got)
	}
	if got := (*Injector)(nil).Data(); got != 0 {
		t.Errorf("a nil injector waits %v", got)
	}
}

// With the time of the median an iteration takes what the trace says, however long computing took; one that took longer
// is not held up.
func TestDelayOfTheTrace(t *testing.T) {
	recorded, err := trace.Read(strings.NewReader("step,worker,duration,slowdown,rel\n0,0,1,9,0.5\n0,1,1,9,2\n1,0,1,1,1\n1,1,1,1,0.25\n"), "t")
	if err != nil {
		t.Fatal(err)
	}
	in, err := New(Config{Worker: 1, Workers: 2, Trace: recorded, Median: 100 * ms})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step    int64
		compute time.Duration
		share   float64
		want    time.Duration
	}{{0, 30 * ms, 1, 170 * ms}, {0, 0, 1, 200 * ms}, {0, 250 * ms, 1, 0}, {1, 10 * ms, 1, 15 * ms}, {3, 10 * ms, 1, 15 * ms}, {0, 30 * ms, 0.5, 70 * ms}, {0, 30 * ms, 1.5, 270 * ms}, {0, 30 * ms, 0.1, 0}} {
		if got := in.Delay(c.step, 0, c.compute, 1, c.share); got < c.want-ms/1000 || got > c.want {
			t.Errorf("step %d, %v of a share: sleeps %v after %v of computing, want %v", c.step, c.share, got, c.compute, c.want)
		}
	}
}

func TestDelay(t *testing.T) {
	recorded, err := trace.Read(strings.NewReader(`step,worker,duration,slowdown,rel
0,0,1,1,1
0,1,1,2,1
0,2,1,1,1
0,3,1,1,1
1,0,1,1,1
1,1,1,0.5,1
1,2,1,1,1
1,3,1,1,1
`), "t")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		slows       string
		trace       *trace.Trace
		by          By
		step        int64
		at, compute time.Duration
		want        time.Duration
	}{
		{"none", "", nil, Sleeping, 0, 0, 100 * ms, 0},
		{"another worker", "2:3x", nil, Sleeping, 0, 0, 100 * ms, 0},
		{"factor", "1:3x", nil, Sleeping, 0, 0, 100 * ms, 200 * ms},
		{"factors multiply", "1:3x 1:2x", nil, Sleeping, 0, 0, 100 * ms, 500 * ms},
		{"factor by quota", "1:3x", nil, ByQuota, 0, 0, 100 * ms, 0},
		{"factor beside tc", "1:3x 1:100mbit", nil, ByTC, 0, 0, 100 * ms, 200 * ms},
		{"add", "1:+50ms", nil, Sleeping, 0, 0, 100 * ms, 50 * ms},
		{"factor, then add", "1:+50ms 1:2x", nil, Sleeping, 0, 0, 100 * ms, 150 * ms},
		{"stop is not slept", "1:stop=800ms/1s", nil, Sleeping, 0, 0, 100 * ms, 0},

		// Pauses from 960 to 1000, 1960 to 2000, …
		{"ends at a pause", "1:burst=40ms/1s", nil, Sleeping, 0, 860 * ms, 100 * ms, 0},
		{"runs into a pause", "1:burst=40ms/1s", nil, Sleeping, 0, 861 * ms, 100 * ms, 40 * ms},
		{"begins in a pause", "1:burst=40ms/1s", nil, Sleeping, 0, 990 * ms, 100 * ms, 10 * ms},
		{"begins after a pause", "1:burst=40ms/1s", nil, Sleeping, 0, 1000 * ms, 960 * ms, 0},
		{"over three pauses", "1:burst=40ms/1s", nil, Sleeping, 0, 0, 2881 * ms, 120 * ms},
		{"longer through a factor", "1:burst=40ms/1s 1:2x", nil, Sleeping, 0, 900 * ms, 50 * ms, 90 * ms},

		{"trace", "", recorded, Sleeping, 0, 0, 100 * ms, 100 * ms},
		{"trace and factor", "1:2x", recorded, Sleeping, 0, 0, 100 * ms, 300 * ms},
		{"trace, faster than the median", "", recorded, Sleeping, 1, 0, 100 * ms, 0},
		{"trace, faster than the median, and later", "1:+50ms", recorded, Sleeping, 1, 0, 100 * ms, 50 * ms},
		{"trace, again from the start", "", recorded, Sleeping, 2, 0, 100 * ms, 100 * ms},

		{"negative times", "1:3x", nil, Sleeping, -1, -ms, -ms, 0},
		{"as long as it may be", "1:1000x 1:1000x 1:burst=999ms/1s", nil, Sleeping, 0, 0, time.Hour, maxDelay - time.Hour},
		{"too long anyway", "1:3x", nil, Sleeping, 0, 0, math.MaxInt64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := injector(t, c.by, c.trace, strings.Fields(c.slows)...)
			if got := in.Delay(c.step, c.at, c.compute, 1, 1); got != c.want {
				t.Errorf("delay %v, want %v", got, c.want)
			}
		})
	}
	if got := (*Injector)(nil).Delay(0, 0, ms, 1, 1); got != 0 {
		t.Errorf("a nil injector delays by %v", got)
	}
}

// The end of a burst agrees with a clock that is stepped through, nanosecond by
// nanosecond.
func TestBurstAgainstClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		period := time.Duration(rapid.IntRange(2, 40).Draw(t, "period"))
		s := Slow{Kind: Burst, Period: period, Pause: time.Duration(rapid.IntRange(1, int(period)-1).Draw(t, "pause"))}
		at := time.Duration(rapid.IntRange(0, 200).Draw(t, "at"))
		busy := time.Duration(rapid.IntRange(1, 200).Draw(t, "busy"))
		now := at
		for left := busy; left > 0; now++ {
			if now%s.Period < s.Period-s.Pause {
				left--
			}
		}
		if got := s.end(at, busy); got != now {
			t.Errorf("%v: %v of work from %v ends at %v, want %v", s, int64(busy), int64(at), int64(got), int64(now))
		}
	})
}

func TestNewRejects(t *testing.T) {
	small := &trace.Trace{Name: "small.csv", Workers: 2, Steps: 1}
	slow := func(w star.Worker, k Kind) []Slow { return []Slow{{Worker: w, Kind: k, Times: 2, Bits: 1e6}} }
	for _, c := range []struct {
		c    Config
		want string
	}{
		{Config{Worker: 4, Workers: 4}, "worker 4 of 4"},
		{Config{Worker: 0, Workers: 4, Slows: slow(4, Factor)}, "ranks are 0 to 3"},
		{Config{Worker: 0, Workers: 4, Slows: slow(1, Rate)}, "--straggler-by tc"},
		{Config{Worker: 0, Workers: 3, Trace: small}, "small.csv: has 2 workers"},
		{Config{Worker: 0, Workers: 2, Trace: small, By: ByQuota}, "--straggler-by sleep"},
	} {
		if _, err := New(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
}

// The narrowest of several rates counts.
func TestRates(t *testing.T) {
	for _, slows := range [][]string{{"1:1mbit", "1:2mbit"}, {"1:2mbit", "1:1mbit"}} {
		if in := injector(t, ByTC, nil, slows...); in.bits != 1e6 {
			t.Errorf("%v: %d bit/s", slows, in.bits)
		}
	}
}

func TestString(t *testing.T) {
	recorded := &trace.Trace{Name: "a.csv", Workers: 4, Steps: 9}
	for _, c := range []struct {
		in   *Injector
		want string
	}{
		{nil, "none"},
		{injector(t, Sleeping, nil, "2:3x"), "none"},
		{injector(t, Sleeping, recorded, "1:3x", "1:stop=1ms/1s"), "1:3x by sleeping, 1:stop=1ms/1s by signals, 1:trace a.csv (4 workers, 9 steps) by sleeping"},
		{injector(t, ByQuota, nil, "1:3x", "1:+1ms"), "1:3x by CPU quota, 1:+1ms by sleeping"},
		{injector(t, ByTC, nil, "1:8mbit"), "1:8000000bit by tc"},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
