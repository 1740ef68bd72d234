package host

import (
	"math"
	"slices"
	"testing"
	"time"

	"star"
)

func TestParseStat(t *testing.T) {
	j, ok := parseStat([]byte("cpu  116819 6210 34004 102837 638 0 2321 153 7 0\ncpu0 1 2 3 4\n"))
	if want := (jiffies{total: 116819 + 6210 + 34004 + 102837 + 638 + 2321 + 153, idle: 102837, iowait: 638, steal: 153}); !ok || j != want {
		t.Errorf("%+v, want %+v", j, want)
	}
	if j, ok := parseStat([]byte("cpu 1 2 3 4")); !ok || j.total != 10 { // kernels of long ago
		t.Errorf("%+v, %v", j, ok)
	}
	for _, bad := range []string{"", "cpu", "cpu0 1 2 3 4", "cpu 1 2 x 4", "cpu -1 2 3 4", "intr 1 2 3 4 5"} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestParseStopped(t *testing.T) {
	for text, want := range map[string]bool{
		"7 (python3) T 1 7": true, "7 (a) T) S 1": false, "7 (python3) S 1 7": false, "7 (T) t 1": true, "7 (T": false, "7 (T) ": false, "": false,
	} {
		if parseStopped([]byte(text)) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}

func TestParsePressure(t *testing.T) {
	d, ok := parsePressure([]byte("some avg10=0.00 avg60=1.50 avg300=0.62 total=3141592\nfull avg10=0 total=1\n"))
	if !ok || d != 3141592*time.Microsecond {
		t.Errorf("%v, %v", d, ok)
	}
	for _, bad := range []string{"", "full total=1", "some avg10=1", "some total=x", "some total=-1", "some total=9223372036854775807"} {
		if _, ok := parsePressure([]byte(bad)); ok {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestParseSchedstat(t *testing.T) {
	if d, ok := parseSchedstat([]byte("81234567 65737 19\n")); !ok || d != 65737 {
		t.Errorf("%v, %v", d, ok)
	}
	for _, bad := range []string{"", "1", "1 x 2", "1 -1 2"} {
		if _, ok := parseSchedstat([]byte(bad)); ok {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestParseCgroup(t *testing.T) {
	for _, c := range []struct {
		text, path, dir string
		v2, ok          bool
	}{
		{"0::/user.slice/a\n", "/user.slice/a", "", true, true},
		{"9:name=systemd:/x\n2:cpuacct:/y\n1:cpu:/star-17\n0::/\n", "/star-17", "cpu", false, true},
		{"0::/u\n4:cpu,cpuacct:/k8s/pod\n", "/k8s/pod", "cpu,cpuacct", false, true},
		{"5:memory:/m\n0::/../../escape\n", "/escape", "", true, true},
		{"5:memory:/m\n", "", "", false, false},
		{"nonsense\n1:2\n", "", "", false, false},
		{"", "", "", false, false},
	} {
		g, ok := parseCgroup([]byte(c.text))
		if ok != c.ok || ok && (g.path != c.path || g.v2 != c.v2 || !slices.Contains(g.dirs, c.dir)) {
			t.Errorf("%q: %+v, %v", c.text, g, ok)
		}
	}
}

func TestParseQuota(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64
	}{{"20000 100000\n", 0.2}, {"400000 100000", 4}, {"max 100000", 0}, {"", 0}, {"1", 0}, {"1 0", 0}, {"x y", 0}, {"-1 100000", 0}} {
		if q, ok := parseMax([]byte(c.text)); q != c.want || ok != (c.want > 0) {
			t.Errorf("%q: %v, %v", c.text, q, ok)
		}
	}
	for text, want := range map[string]time.Duration{
		"usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n": 1500 * time.Microsecond, "nr_periods 0\nthrottled_time 2000\n": 2000, "throttled_usec x": 0, "": 0,
	} {
		if d, ok := parseThrottled([]byte(text)); d != want || ok != (want > 0) {
			t.Errorf("%q: %v, %v", text, d, ok)
		}
	}
}

func TestRates(t *testing.T) {
	at := time.Unix(1e9, 0)
	next := at.Add(500 * time.Millisecond)
	a := counters{at: at, cpu: jiffies{1000, 500, 50, 0}, hasCPU: true, delay: total{time.Second, at}, pressure: total{0, at}}
	b := counters{at: next, cpu: jiffies{1100, 520, 60, 30}, hasCPU: true, delay: total{1100 * time.Millisecond, next},
		pressure: total{50 * time.Millisecond, next}, quota: 0.5, throttled: total{100 * time.Millisecond, next}}
	var tel star.Telemetry
	rates(&tel, &a, &b)
	for m, want := range map[star.Metric]float64{star.Steal: 0.3, star.IOWait: 0.1, star.HostCPU: 0.7, star.RunDelay: 0.2, star.CPUPressure: 0.1, star.Quota: 0.5} {
		if v, ok := tel.Get(m); !ok || math.Abs(v-want) > 1e-6 {
			t.Errorf("%v = %v, %v; want %v", m, v, ok, want)
		}
	}
	if _, ok := tel.Get(star.Throttled); ok {
		t.Error("a rate of one look")
	}
	c := b
	c.at = b.at.Add(time.Second)
	c.throttled = total{350 * time.Millisecond, c.at}
	c.pressure = total{b.pressure.sum + 1100*time.Millisecond, c.at} // a bit more than there was
	c.cpu.total -= 5000                                              // the counters restarted
	c.delay = total{0, c.at}
	tel = star.Telemetry{}
	rates(&tel, &b, &c)
	if v, ok := tel.Get(star.Throttled); !ok || math.Abs(v-0.25) > 1e-6 {
		t.Errorf("throttled %v, %v", v, ok)
	}
	if v, ok := tel.Get(star.CPUPressure); !ok || v != 1 {
		t.Errorf("pressure %v, %v", v, ok)
	}
	if v, ok := tel.Get(star.RunDelay); !ok || v != 0 {
		t.Errorf("a counter that went backwards: %v, %v", v, ok)
	}
	if _, ok := tel.Get(star.Steal); ok {
		t.Error("shares of nothing")
	}
	tel = star.Telemetry{}
	if rates(&tel, &b, &b); tel.Seen != 0 {
		t.Error("rates of no time")
	}
}

func TestPulse(t *testing.T) {
	const ms = time.Millisecond
	p := pulse{period: 20 * ms, last: time.Unix(0, 0)}
	at := p.last
	for _, gap := range []time.Duration{20, 20, 45, 20, 320, 20} {
		at = at.Add(gap * ms)
		p.beat(at, false)
	}
	if p.still != 300*ms {
		t.Errorf("%v, want 300 ms", p.still)
	}
	for _, stopped := range []bool{true, true, false} {
		at = at.Add(20 * ms)
		p.beat(at, stopped)
	}
	if p.still != 340*ms {
		t.Errorf("%v, want two heartbeats more", p.still)
	}
}

// A record has what stood still in its own iteration, whenever anybody looked.
func TestRecordsHaveTheirStops(t *testing.T) {
	s := &Sampler{}
	s.last.Store(new(star.Telemetry))
	m := NewMeter(s)
	for _, c := range []struct {
		took, stood time.Duration
		want        float64
	}{{time.Hour, 0, 0}, {time.Hour, 30 * time.Minute, 0.5}, {time.Hour, 0, 0}, {time.Minute, time.Hour, 1}} {
		m.filled = time.Now().Add(-c.took)
		s.still.Add(int64(c.stood))
		var r star.Record
		m.Fill(&r)
		if v, ok := r.Telemetry.Get(star.Stalled); !ok || math.Abs(v-c.want) > 0.01 {
			t.Errorf("%v of %v: %v, %v; want %v", c.stood, c.took, v, ok, c.want)
		}
	}
}
