package inject

import (
	"bytes"
	"compress/gzip"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"star"
)

const ms = time.Millisecond

func TestParse(t *testing.T) {
	for text, want := range map[string]Slow{
		"2:3x":             {Worker: 2, Kind: Factor, Times: 3},
		"0:1.5x":           {Worker: 0, Kind: Factor, Times: 1.5},
		"2:+50ms":          {Worker: 2, Kind: Add, Pause: 50 * ms},
		"1:burst=40ms/1s":  {Worker: 1, Kind: Burst, Pause: 40 * ms, Period: time.Second},
		"1:stop=800ms/1s":  {Worker: 1, Kind: Stop, Pause: 800 * ms, Period: time.Second},
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
		"1:burst=999.5ms/1s", "1:stop=/", "2:1bit", "2:9999gbit", "2:nanbit", "2:-5mbit", "2:mbit", "2: 3x", "2:3x "} {
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
func injector(t *testing.T, by By, trace *Trace, slows ...string) *Injector {
	t.Helper()
	c := Config{Worker: 1, Workers: 4, Trace: trace, By: by}
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

func TestDelay(t *testing.T) {
	trace, err := ReadTrace(strings.NewReader(header+`
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
		trace       *Trace
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

		{"trace", "", trace, Sleeping, 0, 0, 100 * ms, 100 * ms},
		{"trace and factor", "1:2x", trace, Sleeping, 0, 0, 100 * ms, 300 * ms},
		{"trace, faster than the median", "", trace, Sleeping, 1, 0, 100 * ms, 0},
		{"trace, faster than the median, and later", "1:+50ms", trace, Sleeping, 1, 0, 100 * ms, 50 * ms},
		{"trace, again from the start", "", trace, Sleeping, 2, 0, 100 * ms, 100 * ms},

		{"negative times", "1:3x", nil, Sleeping, -1, -ms, -ms, 0},
		{"as long as it may be", "1:1000x 1:1000x 1:burst=999ms/1s", nil, Sleeping, 0, 0, time.Hour, maxDelay - time.Hour},
		{"too long anyway", "1:3x", nil, Sleeping, 0, 0, math.MaxInt64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := injector(t, c.by, c.trace, strings.Fields(c.slows)...)
			if got := in.Delay(c.step, c.at, c.compute); got != c.want {
				t.Errorf("delay %v, want %v", got, c.want)
			}
		})
	}
	if got := (*Injector)(nil).Delay(0, 0, ms); got != 0 {
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
	small := &Trace{Name: "small.csv", Workers: 2, Steps: 1, slowdown: []float32{1, 1}}
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
	trace := &Trace{Name: "a.csv", Workers: 4, Steps: 9, slowdown: make([]float32, 36)}
	for _, c := range []struct {
		in   *Injector
		want string
	}{
		{nil, "none"},
		{injector(t, Sleeping, nil, "2:3x"), "none"},
		{injector(t, Sleeping, trace, "1:3x", "1:stop=1ms/1s"), "1:3x by sleeping, 1:stop=1ms/1s by signals, 1:trace a.csv (4 workers, 9 steps) by sleeping"},
		{injector(t, ByQuota, nil, "1:3x", "1:+1ms"), "1:3x by CPU quota, 1:+1ms by sleeping"},
		{injector(t, ByTC, nil, "1:8mbit"), "1:8000000bit by tc"},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestReadTrace(t *testing.T) {
	const good = "# from somewhere\n" + header + "\n0,1,5,1.5,1\n0,0,4,1,1\n\n# half-way\n1,0,4,0.9,1\n1,1,9,2.25,2\r\n"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte(good))
	z.Close()
	for name, text := range map[string]string{"plain": good, "gzip": zipped.String()} {
		tr, err := ReadTrace(strings.NewReader(text), "/some/where/"+name)
		if err != nil {
			t.Fatal(err)
		}
		got := []float64{tr.Slowdown(0, 0), tr.Slowdown(1, 0), tr.Slowdown(0, 1), tr.Slowdown(1, 1), tr.Slowdown(1, 3)}
		want := []float64{1, 1.5, float64(float32(0.9)), 2.25, 2.25}
		if tr.Workers != 2 || tr.Steps != 2 || tr.Name != name || !cmp.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", tr, got, want)
		}
	}

	rows := func(lines ...string) string { return header + "\n" + strings.Join(lines, "\n") }
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "t.csv:0: want the header"},
		{"only comments", "# a\n# b\n", "t.csv:2: want the header"},
		{"other header", "a,b\n", "t.csv:1: want the header"},
		{"no steps", header, "t.csv:1: no steps"},
		{"columns", rows("0,0,1,1"), "t.csv:2: 4 columns"},
		{"NaN", rows("0,0,1,NaN,1"), `t.csv:2: slowdown "NaN"`},
		{"Inf", rows("0,0,Inf,1,1"), `t.csv:2: duration "Inf"`},
		{"word", rows("0,0,1,1,x"), `t.csv:2: rel "x"`},
		{"zero", rows("0,0,1,0,1"), "t.csv:2: slowdown 0"},
		{"huge", rows("0,0,1,2000,1"), "t.csv:2: slowdown 2000"},
		{"negative step", rows("-1,0,1,1,1"), `t.csv:2: step "-1"`},
		{"huge worker", rows("0,70000,1,1,1"), `t.csv:2: worker "70000"`},
		{"starts late", rows("2,0,1,1,1"), "t.csv:2: step 2 after step 0: a step is missing"},
		{"gap", rows("0,0,1,1,1", "2,0,1,1,1"), "t.csv:3: step 2 after step 0: a step is missing"},
		{"backwards", rows("0,0,1,1,1", "1,0,1,1,1", "0,0,1,1,1"), "t.csv:4: step 0 after step 1"},
		{"twice in the first step", rows("0,0,1,1,1", "0,0,1,1,1"), "t.csv:3: worker 0 twice in step 0"},
		{"twice", rows("0,0,1,1,1", "1,0,1,1,1", "1,0,1,1,1"), "t.csv:4: worker 0 twice in step 1"},
		{"hole in the first step", rows("0,1,1,1,1", "1,0,1,1,1"), "t.csv:3: step 1 begins, but step 0 has no worker 0"},
		{"missing", rows("0,0,1,1,1", "0,1,1,1,1", "1,1,1,1,1", "2,0,1,1,1"), "t.csv:5: step 2 begins, but step 1 has no worker 0"},
		{"missing at the end", rows("0,0,1,1,1", "0,1,1,1,1", "1,0,1,1,1"), "t.csv:4: the file ends, but step 1 has no worker 1"},
		{"new worker", rows("0,0,1,1,1", "1,1,1,1,1"), "t.csv:3: worker 1 in step 1, but step 0 has only workers 0 to 0"},
		{"long line", header + "\n" + strings.Repeat("1", 5000), "t.csv:2: a line of more than"},
		{"cut gzip", zipped.String()[:zipped.Len()-12], "unexpected EOF"},
		{"bad gzip", "\x1f\x8bxxxxxxxxxxxxxxx", "t.csv: gzip"},
	} {
		if tr, err := ReadTrace(strings.NewReader(c.text), "t.csv"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", c.name, tr, err, c.want)
		}
	}
	if _, err := OpenTrace("/no/such/trace.csv"); err == nil || !strings.Contains(err.Error(), "/no/such/trace.csv") {
		t.Error(err)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte(header + "\n0,0,1,1,1\n0,1,1,2,1\n1,1,1,1,1\n1,0,1,3,1\n"))
	f.Add([]byte(header + "\n0,65535,1,1,1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := ReadTrace(bytes.NewReader(b), "t")
		if err != nil {
			return
		}
		if len(tr.slowdown) != tr.Workers*tr.Steps {
			t.Fatalf("%d slowdowns, %d workers, %d steps", len(tr.slowdown), tr.Workers, tr.Steps)
		}
		for i, s := range tr.slowdown {
			if !(s > 0 && s <= maxTimes) {
				t.Fatalf("slowdown %d is %v", i, s)
			}
		}
	})
}

// The recorded traces that this is made for, if they are there: STAR_DATA, or a folder shared/data
// beside the repository or above it.
func TestRecordedTraces(t *testing.T) {
	dir := os.Getenv("STAR_DATA")
	for up := ".."; dir == "" && len(up) < 40; up += "/.." {
		if d := filepath.Join(up, "shared", "data"); exists(d) {
			dir = d
		}
	}
	if dir == "" || !exists(filepath.Join(dir, "straggler-traces")) {
		t.Skip("no recorded traces: neither STAR_DATA nor shared/data has straggler-traces")
	}
	for name, want := range map[string][2]int{ // workers, steps: as their first line says
		"alibaba-job1.csv.gz":          {10, 300},
		"alibaba-job4.csv.gz":          {10, 2182},
		"bytedance-AR-allranks.csv.gz": {16, 44},
	} {
		tr, err := OpenTrace(filepath.Join(dir, "straggler-traces", name))
		if err != nil {
			t.Error(err)
		} else if got := [2]int{tr.Workers, tr.Steps}; got != want {
			t.Errorf("%s: workers, steps %v, want %v", name, got, want)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
