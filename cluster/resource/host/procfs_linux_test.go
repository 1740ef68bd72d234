//go:build linux

package host

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"star"
)

// tree writes files below a folder.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func fake(t *testing.T, files map[string]string) (*probe, string) {
	dir := t.TempDir()
	tree(t, dir, files)
	p := newProbe(0)
	p.proc, p.cgroup = dir+"/proc", dir+"/cgroup"
	return p, dir
}

// A group of version 2 with a quota, below one with a larger one, and a sibling that
// does not concern us.
func TestVersion2(t *testing.T) {
	p, dir := fake(t, map[string]string{
		"proc/self/cgroup": "0::/pod/job\n", "proc/stat": "cpu 1 0 0 9 0 0 0 0\n",
		"cgroup/cpu.stat":         "usage_usec 1\n",
		"cgroup/pod/cpu.max":      "400000 100000\n",
		"cgroup/pod/cpu.stat":     "throttled_usec 1000\n",
		"cgroup/pod/job/cpu.max":  "50000 100000\n",
		"cgroup/pod/job/cpu.stat": "throttled_usec 500\n",
		"cgroup/other/cpu.max":    "1 100000\n",
	})
	at := time.Unix(1e9, 0)
	c := p.look(at)
	if c.quota != 0.5 || c.throttled.sum != 1500*time.Microsecond || !c.hasCPU || c.throttled.at.IsZero() || !c.pressure.at.IsZero() || !c.delay.at.IsZero() {
		t.Errorf("%+v", c)
	}
	// Moved while it runs.
	tree(t, dir, map[string]string{"proc/self/cgroup": "0::/free\n", "cgroup/free/cpu.max": "max 100000\n", "cgroup/free/cpu.stat": "throttled_usec 9\n"})
	if c := p.look(at.Add(time.Millisecond)); c.quota != 0.5 {
		t.Errorf("looked up again after a millisecond: %+v", c)
	}
	if c := p.look(at.Add(time.Second)); c.quota != 0 || !c.throttled.at.IsZero() {
		t.Errorf("moved: %+v", c)
	}
}

func TestVersion1(t *testing.T) {
	p, _ := fake(t, map[string]string{
		"proc/self/cgroup":                             "3:cpu,cpuacct:/star-17\n0::/\n",
		"cgroup/cpu,cpuacct/cpu.stat":                  "throttled_time 0\n",
		"cgroup/cpu,cpuacct/star-17/cpu.stat":          "nr_periods 10\nthrottled_time 123\n",
		"cgroup/cpu,cpuacct/star-17/cpu.cfs_quota_us":  "33333\n",
		"cgroup/cpu,cpuacct/star-17/cpu.cfs_period_us": "100000\n",
		"cgroup/cpu.max":                               "1 1\n",
	})
	if c := p.look(time.Unix(1e9, 0)); c.quota != 0.33333 || c.throttled.sum != 123 {
		t.Errorf("%+v", c)
	}
}

// In a container the path is often the host's, and the mount is the container's own group.
func TestContainer(t *testing.T) {
	p, _ := fake(t, map[string]string{
		"proc/self/cgroup": "0::/kubepods/pod1/abc\n",
		"cgroup/cpu.max":   "200000 100000\n", "cgroup/cpu.stat": "throttled_usec 7\n",
	})
	if c := p.look(time.Unix(1e9, 0)); c.quota != 2 || c.throttled.sum != 7*time.Microsecond {
		t.Errorf("%+v", c)
	}
}

// Threads come and go, and their numbers are used again.
func TestRunDelay(t *testing.T) {
	p, dir := fake(t, map[string]string{"proc/self/task/1/schedstat": "0 100 1", "proc/self/task/2/schedstat": "0 50 1"})
	look := func() time.Duration { return p.look(time.Unix(1e9, 0)).delay.sum }
	if d := look(); d != 150 {
		t.Errorf("%v, want 150", d)
	}
	os.RemoveAll(dir + "/proc/self/task/2")
	tree(t, dir, map[string]string{"proc/self/task/1/schedstat": "0 130 1", "proc/self/task/3/schedstat": "0 7 1"})
	if d := look(); d != 187 {
		t.Errorf("%v, want 187", d)
	}
	tree(t, dir, map[string]string{"proc/self/task/3/schedstat": "0 2 1"})
	if d := look(); d != 187 {
		t.Errorf("another thread 3: %v, want 187", d)
	}
	tree(t, dir, map[string]string{"proc/self/task/3/schedstat": "0 5 1"})
	if d := look(); d != 190 {
		t.Errorf("%v, want 190", d)
	}
	tree(t, dir, map[string]string{"proc/self/task/4/schedstat": "0 900 1", "proc/self/task/4/comm": "gloo_tcp_loop\n", "proc/self/task/3/comm": "python\n",
		"proc/self/task/3/schedstat": "0 6 1"})
	if d := look(); d != 191 {
		t.Errorf("with a thread of Gloo: %v, want 191", d)
	}
}

// A look is held up between its beginning and what it reads: on a busy host that may be longer
// than the time between two looks. What the kernel counted meanwhile is of that time, too.
func TestHeldUp(t *testing.T) {
	p, dir := fake(t, map[string]string{
		"proc/self/cgroup": "0::/\n", "cgroup/cpu.max": "50000 100000\n", "cgroup/cpu.stat": "throttled_usec 0\n",
		"proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "proc/self/task/1/schedstat": "0 0 1",
	})
	at := time.Unix(1e9, 0)
	clock := at
	p.now = func() time.Time { return clock }
	a := p.look(at)
	at = at.Add(100 * time.Millisecond)
	clock = at.Add(160 * time.Millisecond)
	tree(t, dir, map[string]string{
		"cgroup/cpu.stat": "throttled_usec 52000\n", "proc/pressure/cpu": "some avg10=9.00 avg60=9.00 avg300=9.00 total=208000\n", "proc/self/task/1/schedstat": "0 156000000 1",
	})
	b := p.look(at)
	var tel star.Telemetry
	rates(&tel, &a, &b)
	for m, want := range map[star.Metric]float64{star.CPUPressure: 0.8, star.RunDelay: 0.6, star.Throttled: 0.2} {
		if v, ok := tel.Get(m); !ok || math.Abs(v-want) > 1e-6 {
			t.Errorf("%v = %v, %v; want %v", m, v, ok, want)
		}
	}
}

func TestNothingThere(t *testing.T) {
	p, _ := fake(t, nil)
	a := p.look(time.Unix(1e9, 0))
	b := p.look(time.Unix(1e9+1, 0))
	var tel star.Telemetry
	if rates(&tel, &a, &b); tel.Seen != 0 {
		t.Errorf("%+v", tel)
	}
}

// On a real host: the required values are present and plausible.
func TestSampler(t *testing.T) {
	also := make(chan struct{}, 100)
	s := Start(Config{Heartbeat: time.Millisecond, Looks: 2, Slow: 1, Also: func(tel *star.Telemetry) {
		tel.Set(star.GPUPower, 250)
		select {
		case also <- struct{}{}:
		default:
		}
	}})
	defer s.Close()
	for range 50 { // jiffies have 10 ms: some look sees one
		<-also
	}
	m := NewMeter(s)
	m.Begin()
	sum := 0.0
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; {
		sum++
	}
	m.End()
	var r star.Record
	m.Fill(&r)
	for m, most := range map[star.Metric]float64{star.ComputeCPU: 64, star.MajorFaults: 1e6, star.Preempted: 1e6, star.Stalled: 1, star.HostLoad: 1e5, star.MemAvailable: 1, star.GPUPower: 250} {
		if v, ok := r.Telemetry.Get(m); !ok || v < 0 || v > most {
			t.Errorf("%v = %v, %v", m, v, ok)
		}
	}
	if v, _ := r.Telemetry.Get(star.ComputeCPU); v < 0.01 {
		t.Errorf("computed %v of the time", v)
	}
	s.Close()
	s.Close()
	(*Sampler)(nil).Close()
	var none *Meter
	none.Begin()
	none.End()
	none.Fill(&r)
}

func BenchmarkLook(b *testing.B) {
	p := newProbe(0)
	b.ReportAllocs()
	for b.Loop() {
		p.look(time.Now())
	}
}

func BenchmarkSlowLook(b *testing.B) {
	var h slowLook
	for b.Loop() {
		h.look(time.Now(), false)
	}
}

func BenchmarkMeter(b *testing.B) {
	s := Start(Config{})
	defer s.Close()
	m := NewMeter(s)
	var r star.Record
	for b.Loop() {
		m.Begin()
		m.End()
		m.Fill(&r)
	}
}
