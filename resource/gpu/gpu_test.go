package gpu

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"star"
)

func TestParse(t *testing.T) {
	tel, ok := parse("37, 1024, 81559, 118.50, 700.00, 1005, 1980, 2619, 84, 0x0000000000000024, 5, 8, 16")
	if !ok {
		t.Fatal("refused")
	}
	for m, want := range map[star.Metric]float64{
		star.GPUUse: 0.37, star.GPUMemory: 1024.0 / 81559, star.GPUPower: 118.5, star.GPUPowerCap: 700, star.GPUClock: 1005, star.GPUClockMax: 1980,
		star.GPUMemClock: 2619, star.GPUTemp: 84, star.GPUThrottle: 0x24, star.GPULinkShare: 0.5,
	} {
		if v, ok := tel.Get(m); !ok || math.Abs(v-want) > 1e-6*want {
			t.Errorf("%v = %v, %v; want %v", m, v, ok, want)
		}
	}
	tel, ok = parse("[N/A], 1, 2, [Not Supported], -5, NaN, 1980, 1, 30, Active, 1, 0, 0")
	if !ok || tel.Seen != 1<<star.GPUMemory|1<<star.GPUClockMax|1<<star.GPUMemClock|1<<star.GPUTemp {
		t.Errorf("seen %b, %v", tel.Seen, ok)
	}
	for _, bad := range []string{"", "No devices were found", "1, 2, 3", "a, b, c, d, e, f, g, h, i, j, k, l, m"} {
		if _, ok := parse(bad); ok {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestVisible(t *testing.T) {
	for list, want := range map[string]string{"": "0", "3,1": "3", " 2 ": "2", "GPU-8a56,0": "GPU-8a56", "MIG-1": "0", "none": "0", "-1": "0"} {
		if got := visible(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// fake is a program that plays nvidia-smi.
func fake(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs sh")
	}
	path := filepath.Join(t.TempDir(), "smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s not yet: %s", what)
		}
	}
}

// A child that crashes is started again; what it printed before is no longer believed.
func TestChildCrashes(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	r := Start(Config{Program: fake(t, "echo x >> "+count+"\necho noise\necho '37, 1, 2, 1, 1, 1, 1, 1, 1, 0x0, 1, 1, 1'\nkill -SEGV $$"), Every: time.Millisecond, Retry: 50 * time.Millisecond})
	defer r.Close()
	use := func() bool {
		var tel star.Telemetry
		r.AddTo(&tel)
		_, ok := tel.Get(star.GPUUse)
		return ok
	}
	waitFor(t, "a measurement", use)
	waitFor(t, "its end", func() bool { return !use() })
	waitFor(t, "three children", func() bool { b, _ := os.ReadFile(count); return len(b) >= 6 })
}

// A child that hangs does not keep the worker from ending.
func TestChildHangs(t *testing.T) {
	r := Start(Config{Program: fake(t, "exec sleep 1000")})
	var tel star.Telemetry
	if r.AddTo(&tel); tel.Seen != 0 {
		t.Error("measured nothing, and says something")
	}
	r.Close()
	r.Close()
}

func TestNoProgram(t *testing.T) {
	r := Start(Config{Program: "no-such-smi"})
	if r != nil {
		t.Fatal("found")
	}
	var tel star.Telemetry
	r.AddTo(&tel)
	r.Close()
}

// On a host with a GPU: the real program understands what it is asked.
func TestRealGPU(t *testing.T) {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		t.Skip("no nvidia-smi here")
	}
	r := Start(Config{Every: 200 * time.Millisecond})
	defer r.Close()
	var tel star.Telemetry
	waitFor(t, "a measurement", func() bool { r.AddTo(&tel); return tel.Seen != 0 })
	for m := range star.NumMetrics {
		if v, ok := tel.Get(m); ok {
			t.Logf("%v %g", m, v)
		}
	}
	for _, m := range []star.Metric{star.GPUMemory, star.GPUClock, star.GPUClockMax, star.GPUTemp, star.GPUPower, star.GPUThrottle} {
		if _, ok := tel.Get(m); !ok {
			t.Errorf("no %v", m)
		}
	}
}
