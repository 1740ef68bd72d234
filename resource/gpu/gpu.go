// Package gpu reads what the NVIDIA driver says of a worker's GPU, in a process of its
// own: nvidia-smi, which comes with every driver, prints a line a second, and a driver
// that hangs or crashes takes that process with it and nothing else. It needs neither
// cgo nor a library at run time; without a GPU or without nvidia-smi there are no
// measurements, and that is all.
//
// What bites:
//   - Utilisation is the share of time in which any kernel ran, not how much of the GPU
//     it used.
//   - nvidia-smi does not print PCIe throughput in this mode; those metrics are absent.
package gpu

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"star"
)

// fields are what nvidia-smi is asked for, in this order.
var fields = []string{
	"utilization.gpu", "memory.used", "memory.total", "power.draw", "enforced.power.limit",
	"clocks.current.sm", "clocks.max.sm", "clocks.current.memory", "temperature.gpu", "clocks_throttle_reasons.active",
	"pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
}

// parse reads one line of nvidia-smi. What it does not know ("[N/A]") is absent.
func parse(line string) (t star.Telemetry, ok bool) {
	parts := strings.Split(line, ",")
	if len(parts) != len(fields) {
		return t, false
	}
	v := map[string]float64{}
	for i, name := range fields {
		text := strings.TrimSpace(parts[i])
		if x, err := strconv.ParseUint(text, 0, 53); err == nil { // also 0x0000000000000004
			v[name] = float64(x)
		} else if x, err := strconv.ParseFloat(text, 64); err == nil && x >= 0 {
			v[name] = x
		}
	}
	set := func(m star.Metric, name string, unit float64) {
		if x, ok := v[name]; ok {
			t.Set(m, x*unit)
		}
	}
	share := func(m star.Metric, part, whole string) {
		p, ok := v[part]
		if w := v[whole]; ok && w > 0 {
			t.Set(m, p/w)
		}
	}
	set(star.GPUUse, "utilization.gpu", 0.01)
	share(star.GPUMemory, "memory.used", "memory.total")
	set(star.GPUPower, "power.draw", 1)
	set(star.GPUPowerCap, "enforced.power.limit", 1)
	set(star.GPUClock, "clocks.current.sm", 1)
	set(star.GPUClockMax, "clocks.max.sm", 1)
	set(star.GPUMemClock, "clocks.current.memory", 1)
	set(star.GPUTemp, "temperature.gpu", 1)
	set(star.GPUThrottle, "clocks_throttle_reasons.active", 1)
	share(star.GPULinkShare, "pcie.link.width.current", "pcie.link.width.max")
	return t, t.Seen != 0
}

// Config says which GPU to read, and how. Zero values mean the defaults.
type Config struct {
	Program string        // nvidia-smi, from PATH
	Device  string        // index or UUID; empty: the first of CUDA_VISIBLE_DEVICES, else 0
	Every   time.Duration // 1 s
	Retry   time.Duration // between a child that has ended and the next: 30 s
}

// old is after how many periods without a line nothing is known any more.
const old = 5

// Reader keeps the last state of one GPU.
type Reader struct {
	cfg   Config
	last  atomic.Pointer[state]
	stop  context.CancelFunc
	ended sync.WaitGroup
}

type state struct {
	at time.Time
	t  star.Telemetry
}

// Start reads until Close. Where there is no nvidia-smi it returns nil, which is a
// Reader that knows nothing.
func Start(c Config) *Reader {
	if c.Program == "" {
		c.Program = "nvidia-smi"
	}
	path, err := exec.LookPath(c.Program)
	if err != nil {
		return nil
	}
	c.Program = path
	if c.Device == "" {
		c.Device = visible(os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.Retry == 0 {
		c.Retry = 30 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Reader{cfg: c, stop: stop}
	r.ended.Go(func() {
		for {
			r.watch(ctx)
			select {
			case <-ctx.Done():
				return
			case <-time.After(c.Retry):
			}
		}
	})
	return r
}

// visible is the first of CUDA_VISIBLE_DEVICES, if nvidia-smi would know it.
func visible(list string) string {
	first, _, _ := strings.Cut(list, ",")
	first = strings.TrimSpace(first)
	if _, err := strconv.ParseUint(first, 10, 16); err == nil || strings.HasPrefix(first, "GPU-") {
		return first
	}
	return "0"
}

// watch lives as long as one child.
func (r *Reader) watch(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, r.cfg.Program, "--id="+r.cfg.Device, "--query-gpu="+strings.Join(fields, ","),
		"--format=csv,noheader,nounits", "--loop-ms="+strconv.FormatInt(r.cfg.Every.Milliseconds(), 10))
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 0, 4096), 4096)
	for sc.Scan() {
		if t, ok := parse(sc.Text()); ok {
			r.last.Store(&state{time.Now(), t})
		}
	}
	if sc.Err() != nil {
		cmd.Process.Kill() // it prints what no nvidia-smi prints
	}
	return errors.Join(sc.Err(), cmd.Wait())
}

// AddTo adds what is known of the GPU now. It does not wait.
func (r *Reader) AddTo(t *star.Telemetry) {
	if r == nil {
		return
	}
	if s := r.last.Load(); s != nil && time.Since(s.at) < old*r.cfg.Every {
		t.Merge(&s.t)
	}
}

// Close ends the child. It may be called twice, and on nil.
func (r *Reader) Close() {
	if r != nil {
		r.stop()
		r.ended.Wait()
	}
}
