package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"star"
)

// childVariable makes the test binary the process that reads a GPU.
const childVariable = "GPU_TEST_CHILD"

// children are what it then does.
var children = map[string]func(){
	"nvml": func() { // what the program does
		if err := Sample(context.Background(), os.Stdout, "0", time.Millisecond); err != nil {
			os.Exit(1)
		}
	},
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if f := children[name]; f != nil {
			f()
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a Config with the test binary as its sampler.
func child(t *testing.T, name string) Config {
	t.Helper()
	if children[name] == nil {
		t.Skip("built without NVML")
	}
	t.Setenv(childVariable, name)
	return Config{Sampler: []string{os.Args[0]}, Program: "no-such-smi", Drivers: []string{os.Args[0]}, Every: time.Millisecond, Retry: time.Millisecond}
}

// journal is a log that a test reads.
type journal struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) count(s string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.b.String(), s)
}

func (j *journal) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestParseSMI(t *testing.T) {
	l, err := parseSMI([]byte("37, 1024, 81559, 118.50, 700.00, 1005, 1980, 2619, 84, 0x0000000000000024, 5, 8, 16"))
	if err != nil {
		t.Fatal(err)
	}
	wants(t, &l.Metrics, map[star.Metric]float64{
		star.GPUUse: 0.37, star.GPUMemory: 1024.0 / 81559, star.GPUPower: 118.5, star.GPUPowerCap: 700, star.GPUClock: 1005, star.GPUClockMax: 1980,
		star.GPUMemClock: 2619, star.GPUTemp: 84, star.GPUThrottle: 0x24, star.GPULinkShare: 0.5,
	})
	l, err = parseSMI([]byte("[N/A], 1, 2, [Not Supported], -5, NaN, 1980, 1, 30, Active, 1, 0, 0"))
	if err != nil {
		t.Fatal(err)
	}
	wants(t, &l.Metrics, map[star.Metric]float64{star.GPUMemory: 0.5, star.GPUClockMax: 1980, star.GPUMemClock: 1, star.GPUTemp: 30})
	for _, bad := range []string{"", "No devices were found", "1, 2, 3", "a, b, c, d, e, f, g, h, i, j, k, l, m"} {
		if _, err := parseSMI([]byte(bad)); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

// wants checks that t has these metrics, to float32, and no others.
func wants(t *testing.T, have *star.Telemetry, want map[star.Metric]float64) {
	t.Helper()
	for m := range star.NumMetrics {
		v, ok := have.Get(m)
		w, wanted := want[m]
		if ok != wanted || ok && math.Abs(v-w) > 1e-6*math.Abs(w) {
			t.Errorf("%v is %g (%v), want %g (%v)", m, v, ok, w, wanted)
		}
	}
}

func TestSMICommand(t *testing.T) {
	for device, want := range map[string]string{"3": "--id=3", "GPU-8a56": "--id=GPU-8a56", "MIG-12": "--id=0"} {
		got := smiCommand("smi", device, 1500*time.Millisecond)
		if got[0] != "smi" || got[1] != want || got[4] != "--loop-ms=1500" {
			t.Errorf("%s: %q", device, got)
		}
	}
}

func TestVisible(t *testing.T) {
	for list, want := range map[string]string{"": "0", "3,1": "3", " 2 ": "2", "GPU-8a56,0": "GPU-8a56", "MIG-1": "MIG-1", "none": "0", "-1": "0"} {
		if got := visible(list); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

func TestReasons(t *testing.T) {
	for bits, want := range map[uint64][]string{
		0: nil, 1: {"idle"}, 0x24: {"power cap", "too hot"}, 0x1d8: {"hardware slowdown", "sync boost", "much too hot", "power brake", "clocks of the display"},
		0x202: {"clocks chosen for applications", "reason 0x200"}, 1 << 63: {"reason 0x8000000000000000"},
	} {
		if got := Reasons(bits); !slices.Equal(got, want) {
			t.Errorf("%#x: %q, want %q", bits, got, want)
		}
	}
}

// A line that is written is read as it was.
func TestLineTravels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Line{GPU: rapid.String().Draw(t, "gpu"), UUID: rapid.StringMatching(`GPU-[0-9a-f]{8}`).Draw(t, "uuid"), Error: rapid.StringMatching(`[a-z ]{0,9}`).Draw(t, "error")}
		if rapid.Bool().Draw(t, "can slice") {
			on := rapid.Bool().Draw(t, "mig")
			l.MIG = &on
		}
		l.Final = l.Error != "" && rapid.Bool().Draw(t, "final")
		for m := star.GPUUse; m <= star.GPULinkShare; m++ {
			if rapid.Bool().Draw(t, m.String()) {
				l.Metrics.Set(m, float64(rapid.Float32Range(0, 1e12).Draw(t, "value")))
			}
		}
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseLine(b)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := json.Marshal(got)
		if string(again) != string(b) || got.Metrics != l.Metrics {
			t.Fatalf("%s became %s", b, again)
		}
	})
}

func TestParseLine(t *testing.T) {
	l, err := ParseLine([]byte(`{"gpu":"A","new":7,"metrics":{"gpu_use":0.5,"gpu_power":-1,"steal":1,"gpu_soul":2},"reasons":["sad"]}`))
	if err != nil || l.Metrics.Seen != 1<<star.GPUUse {
		t.Errorf("seen %b, %v", l.Metrics.Seen, err)
	}
	for _, bad := range []string{"", " ", "[]", "null", "7", `{"gpu":7}`, `{"metrics":{"gpu_use":"1"}}`, `{"metrics":{"gpu_use":1e99}}`, `{"final":true}`, `{} {}`, `{"gpu":"` + strings.Repeat("x", maxLine) + `"}`} {
		if _, err := ParseLine([]byte(bad)); err == nil {
			t.Errorf("%.20q passes", bad)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"gpu":"A100","uuid":"GPU-1","driver":"550","mig":false,"metrics":{"gpu_use":0.37,"gpu_throttle":36}}`))
	f.Add([]byte(`{"error":"no NVML here","final":true}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLine(b)
		if err != nil {
			return
		}
		for m := range star.NumMetrics {
			if v, ok := l.Metrics.Get(m); ok && (!isGPU(m) || v < 0 || v-v != 0) {
				t.Errorf("%v = %g of %q", m, v, b)
			}
		}
		if l.Final && l.Error == "" {
			t.Errorf("final without an error: %q", b)
		}
	})
}

func FuzzParseSMI(f *testing.F) {
	f.Add([]byte("37, 1024, 81559, 118.50, 700.00, 1005, 1980, 2619, 84, 0x0000000000000024, 5, 8, 16"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseSMI(b)
		for m := range star.NumMetrics {
			if v, ok := l.Metrics.Get(m); ok && (err != nil || v < 0 || v-v != 0) {
				t.Errorf("%v = %g of %q, %v", m, v, b, err)
			}
		}
	})
}

// player is a prober that plays lines.
type player struct {
	lines  int
	err    error
	closed *bool
}

func (p *player) read() (Line, error) {
	if p.lines--; p.lines < 0 {
		return Line{}, p.err
	}
	var l Line
	l.Metrics.Set(star.GPUTemp, float64(p.lines))
	return l, nil
}

func (p *player) close() { *p.closed = true }

// The sampler prints each period, says why it gives up, and closes what it opened.
func TestSample(t *testing.T) {
	for name, c := range map[string]struct {
		open, read error
		want       string
	}{
		"lost":      {nil, errors.New("lost"), `{"metrics":{"gpu_temp":1}}|{"metrics":{"gpu_temp":0}}|{"error":"lost"}|`},
		"not there": {&FinalError{"no library"}, nil, `{"error":"no library","final":true}|`},
		"not now":   {errors.New("no driver"), nil, `{"error":"no driver"}|`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				closed := false
				begun := time.Now()
				err := sample(t.Context(), &out, time.Minute, func() (prober, error) { return &player{2, c.read, &closed}, c.open })
				if got := strings.ReplaceAll(out.String(), "\n", "|"); got != c.want || err == nil {
					t.Errorf("%s, error %v", got, err)
				}
				if c.open == nil && (!closed || time.Since(begun) != 2*time.Minute) {
					t.Errorf("closed %v, after %v", closed, time.Since(begun))
				}
			})
		})
	}
	t.Run("until it is told", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		closed := false
		if err := sample(ctx, io.Discard, time.Hour, func() (prober, error) { return &player{lines: 9, closed: &closed}, nil }); err != nil || !closed {
			t.Errorf("%v, closed %v", err, closed)
		}
	})
	t.Run("nobody reads", func(t *testing.T) {
		r, w := io.Pipe()
		r.CloseWithError(io.ErrClosedPipe)
		closed := false
		if err := sample(t.Context(), w, time.Hour, func() (prober, error) { return &player{lines: 9, closed: &closed}, nil }); !errors.Is(err, io.ErrClosedPipe) || !closed {
			t.Errorf("%v, closed %v", err, closed)
		}
	})
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

func value(r *Reader, m star.Metric) (float64, bool) {
	var tel star.Telemetry
	r.AddTo(&tel)
	return tel.Get(m)
}

// lines counts what a script has written.
func lines(path string) int {
	b, _ := os.ReadFile(path)
	return strings.Count(string(b), "\n")
}

const smiLine = "echo '37, 1, 2, 1, 1, 1, 1, 1, 1, 0x0, 1, 1, 1'\n"

// A child that crashes is started again; what it printed before is no longer believed, and
// it is said once.
func TestChildCrashes(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	var j journal
	r := Start(Config{
		Program: fake(t, "echo x >> "+count+"\necho noise\n"+smiLine+"kill -SEGV $$"), Every: time.Millisecond, Retry: 50 * time.Millisecond,
		Most: 60 * time.Millisecond, Log: j.log(),
	})
	defer r.Close()
	use := func() bool { _, ok := value(r, star.GPUUse); return ok }
	waitFor(t, "a measurement", use)
	waitFor(t, "its end", func() bool { return !use() })
	waitFor(t, "five children", func() bool { return lines(count) >= 5 })
	if n := j.count("segmentation fault"); n < 1 || n > 2 { // after 50 and after 60 ms
		t.Errorf("said %d times", n)
	}
}

// A child that hangs is ended and replaced, also one that has closed its output, and
// does not keep the worker from ending.
func TestChildHangs(t *testing.T) {
	for name, script := range map[string]string{"silent": "exec sleep 1000", "shut": "exec sleep 1000 >&- 2>&-", "a word": smiLine + "exec sleep 1000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := filepath.Join(t.TempDir(), "count")
			r := Start(Config{Program: fake(t, "echo x >> "+count+"\n"+script), Silence: 20 * time.Millisecond, Retry: time.Millisecond})
			waitFor(t, "two children", func() bool { return lines(count) >= 2 })
			r.Close()
			r.Close()
		})
	}
}

// A child that holds its pipe open through a process of its own does not keep the worker.
func TestGrandchild(t *testing.T) {
	r := Start(Config{Program: fake(t, "sleep 15 &\n"+smiLine+"wait")})
	waitFor(t, "a measurement", func() bool { _, ok := value(r, star.GPUUse); return ok })
	done := make(chan struct{})
	go func() { r.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for a child of the child")
	}
}

// A child that prints without end is ended.
func TestChildRaves(t *testing.T) {
	var j journal
	r := Start(Config{Program: fake(t, "while :; do printf '%1000d' 1; done"), Log: j.log()})
	defer r.Close()
	waitFor(t, "an end", func() bool { return j.count("a line of more than 8192 bytes") == 1 })
}

// Where NVML is not there, it is said once and nvidia-smi is asked; without nvidia-smi
// nothing is, and nothing is tried again.
func TestNoLibrary(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	sampler := fake(t, "echo $1 $2 >> "+count+"\necho libnvidia: oops\necho '{\"error\":\"no NVML here\",\"final\":true}'\nexit 1")
	for name, c := range map[string]struct{ program, says string }{
		"with nvidia-smi": {fake(t, smiLine+"exec sleep 1000"), "the GPU is read by another way"},
		"without":         {"no-such-smi", "the GPU is not measured"},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(count)
			var j journal
			r := Start(Config{Sampler: []string{sampler}, Program: c.program, Device: "GPU-7", Every: 20 * time.Second, Drivers: []string{sampler}, Retry: time.Millisecond, Log: j.log()})
			defer r.Close()
			waitFor(t, "a word", func() bool { return j.count(c.says) == 1 })
			if c.program == "no-such-smi" {
				r.ended.Wait()
			} else {
				waitFor(t, "a measurement", func() bool { v, _ := value(r, star.GPUUse); return v > 0.36 })
			}
			if b, _ := os.ReadFile(count); string(b) != "--device=GPU-7 --every=20s\n" {
				t.Errorf("started as %q", b)
			}
			if n := j.count("no NVML here"); n != 1 {
				t.Errorf("said %d times", n)
			}
		})
	}
}

// An NVML that crashes before it has measured anything is given up where there is
// nvidia-smi. One that has measured is tried again and again.
func TestCrashesAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		line    string
		givesUp bool
	}{"never measured": {"", true}, "measured": {`echo '{"metrics":{"gpu_use":0.5}}'`, false}} {
		t.Run(name, func(t *testing.T) {
			count := filepath.Join(t.TempDir(), "count")
			sampler := fake(t, "echo x >> "+count+"\n"+c.line+"\necho 'symbol lookup error' >&2\nexit 127")
			r := Start(Config{Sampler: []string{sampler}, Program: fake(t, smiLine+"exec sleep 1000"), Every: 5 * time.Second, Retry: time.Millisecond, Most: time.Millisecond})
			defer r.Close()
			if !c.givesUp {
				waitFor(t, "many children", func() bool { return lines(count) > 2*few })
				return
			}
			waitFor(t, "nvidia-smi", func() bool { v, _ := value(r, star.GPUUse); return v > 0.36 })
			if n := lines(count); n != few {
				t.Errorf("%d children, want %d", n, few)
			}
		})
	}
}

// The last words of a child that crashes are said.
func TestLastWords(t *testing.T) {
	var j journal
	r := Start(Config{Program: fake(t, "echo 'symbol lookup error: nvmlNews' >&2\nexit 127"), Log: j.log()})
	defer r.Close()
	waitFor(t, "a word", func() bool { return j.count("exit status 127: symbol lookup error: nvmlNews") == 1 })
}

// A child learns from its standard input that its parent is gone.
func TestInputStaysOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ended")
	r := Start(Config{Program: fake(t, smiLine+"read x\necho ended > "+path), Every: 10 * time.Second})
	defer r.Close()
	waitFor(t, "a measurement", func() bool { _, ok := value(r, star.GPUUse); return ok })
	time.Sleep(20 * time.Millisecond)
	if _, err := os.Stat(path); err == nil {
		t.Error("the child's input ended while the parent lives")
	}
}

func TestNoDriver(t *testing.T) {
	for _, c := range []Config{{Program: "no-such-smi"}, {Program: "no-such-smi", Sampler: []string{os.Args[0]}, Drivers: []string{"/no/such/device"}}} {
		r := Start(c)
		if r != nil {
			t.Fatal("found")
		}
		var tel star.Telemetry
		r.AddTo(&tel)
		r.Close()
	}
}

// The program reads NVML where it can, and says that it cannot where it cannot.
func TestRealNVML(t *testing.T) {
	if anyFile([]string{"/dev/nvidiactl"}) {
		t.Skip("TestRealGPU does it")
	}
	var out strings.Builder
	err := Sample(t.Context(), &out, "0", time.Millisecond)
	if _, ok := errors.AsType[*FinalError](err); !ok || !strings.HasPrefix(out.String(), `{"error":"`) || !strings.HasSuffix(out.String(), `"final":true}`+"\n") {
		t.Errorf("%v, and prints %q", err, out.String())
	}
}

// On a host with a GPU: both ways measure it, and agree.
func TestRealGPU(t *testing.T) {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		t.Skip("no nvidia-smi here")
	}
	for _, way := range []string{"nvml", "nvidia-smi"} {
		t.Run(way, func(t *testing.T) {
			c := Config{Every: 200 * time.Millisecond}
			if way == "nvml" {
				c = child(t, way)
				c.Every = 200 * time.Millisecond
			}
			r := Start(c)
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
		})
	}
}
