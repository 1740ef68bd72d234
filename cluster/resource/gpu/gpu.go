// Package gpu reads the state of a worker's GPU from the NVIDIA driver, in a separate process: a driver that hangs or
// crashes affects only that process.
//
// That process is this program itself, which reads NVIDIA's management library (NVML) through go-nvml and prints a JSON
// line per second (Sample). If that does not work, because the program was built without cgo or the library is missing,
// it is nvidia-smi, which reports everything except the bytes on the link. Without a driver no process is started, and
// there are no measurements.
//
// Source: NVIDIA, NVML API Reference Guide, version 13.
//
// Limits:
//   - Utilisation is the share of time in which any kernel ran, not how much of the GPU
//     it used.
//   - NVML counts GPUs by their place on the bus, CUDA by speed unless
//     CUDA_DEVICE_ORDER is PCI_BUS_ID. On a host of unequal GPUs name them by UUID.
//   - A GPU in MIG mode shows neither use nor, in part, its link; both are absent.
//   - go-nvml resolves NVML's functions when they are called. A program linked with -z now does not start: link it with
//     -z lazy, or build with the tag nonvml.
package gpu

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star"
)

// Config says which GPU to read, and how. Zero values mean the defaults.
type Config struct {
	Sampler []string      // a command that runs Sample, to which --device and --every are added; empty: NVML is not read
	Program string        // nvidia-smi, from PATH
	Device  string        // index or UUID, also of a MIG slice; empty: the first of CUDA_VISIBLE_DEVICES, else 0
	Every   time.Duration // 1 s
	Silence time.Duration // a child that prints nothing for this time is ended: 10 periods, at least 10 s
	Retry   time.Duration // before the second child; doubles with every child that ends: 1 s
	Most    time.Duration // between two children: 1 min
	Drivers []string      // files of a driver; NVML is read if one exists: those of Linux and of WSL
	Log     *slog.Logger  // nil: no log
}

const (
	old   = 5           // number of periods without a line after which the state is unknown
	few   = 3           // a kind of child that ends this often without a measurement is replaced by another
	grace = time.Second // time for a child to end; one that hangs in the driver may never end
)

// Reader keeps the last state of one GPU.
type Reader struct {
	cfg   Config
	kinds []kind
	last  atomic.Pointer[state]
	stop  context.CancelFunc
	ended sync.WaitGroup
}

type state struct {
	at time.Time
	t  star.Telemetry
}

// kind is a way to read a GPU.
type kind struct {
	name    string
	command []string
	parse   func(line []byte) (Line, error)
}

// Start reads until Close. With neither a driver nor nvidia-smi it returns nil, a Reader without measurements.
func Start(c Config) *Reader {
	if c.Program == "" {
		c.Program = "nvidia-smi"
	}
	if c.Drivers == nil {
		c.Drivers = []string{"/dev/nvidiactl", "/dev/dxg"}
	}
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.Silence == 0 {
		c.Silence = max(10*c.Every, 10*time.Second)
	}
	if c.Retry == 0 {
		c.Retry = time.Second
	}
	if c.Most == 0 {
		c.Most = max(time.Minute, c.Retry)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	device := c.Device
	if device == "" {
		device = visible(os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	r := &Reader{cfg: c}
	smi, err := exec.LookPath(c.Program)
	if len(c.Sampler) > 0 && (err == nil || anyFile(c.Drivers)) {
		r.kinds = append(r.kinds, kind{"NVML", append(c.Sampler[:len(c.Sampler):len(c.Sampler)], "--device="+device, "--every="+c.Every.String()), ParseLine})
	}
	if err == nil {
		r.kinds = append(r.kinds, kind{"nvidia-smi", smiCommand(smi, device, c.Every), parseSMI})
	}
	if len(r.kinds) == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.ended.Go(func() { r.run(ctx) })
	return r
}

func anyFile(paths []string) bool {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return false
}

// visible is the first element of CUDA_VISIBLE_DEVICES, if it names a GPU: an index, a UUID or a prefix of one.
func visible(list string) string {
	first, _, _ := strings.Cut(list, ",")
	first = strings.TrimSpace(first)
	if _, err := strconv.ParseUint(first, 10, 16); err == nil || strings.HasPrefix(first, "GPU-") || strings.HasPrefix(first, "MIG-") {
		return first
	}
	return "0"
}

// run keeps a child of the first kind that works. It logs each reason once.
func (r *Reader) run(ctx context.Context) {
	said := map[string]bool{}
	say := func(level slog.Level, msg string, args ...any) {
		key := msg
		for _, a := range args {
			if s, ok := a.(string); ok {
				key += "\x00" + s
			}
		}
		if !said[key] && len(said) < 16 {
			said[key] = true
			r.cfg.Log.Log(ctx, level, msg, args...)
		}
	}
	at, failed := 0, 0
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier, pause.RandomizationFactor = r.cfg.Retry, r.cfg.Most, 2, 0
	for {
		k := &r.kinds[at]
		begun := time.Now()
		measured := false
		err := watch(ctx, k, r.cfg.Silence, func(l Line) {
			if l.Metrics.Seen == 0 {
				return
			}
			if !measured {
				say(slog.LevelDebug, "reading the GPU", "by", k.name, "gpu", l.GPU, "uuid", l.UUID, "driver", l.Driver)
				if l.MIG != nil && *l.MIG {
					say(slog.LevelInfo, "the GPU is in MIG mode: what all slices share is measured, its use is not", "gpu", l.GPU)
				}
			}
			measured = true
			r.last.Store(&state{time.Now(), l.Metrics})
		})
		if ctx.Err() != nil {
			return
		}
		if measured {
			failed = 0
		} else {
			failed++
		}
		final, _ := errors.AsType[*FinalError](err)
		switch {
		case (final != nil || failed == few) && at+1 < len(r.kinds):
			say(slog.LevelInfo, "the GPU is read by another way", "not", k.name, "because", err.Error(), "by", r.kinds[at+1].name)
			at, failed = at+1, 0
			pause.Reset()
			continue
		case final != nil:
			say(slog.LevelInfo, "the GPU is not measured", "by", k.name, "because", err.Error())
			return
		}
		if time.Since(begun) > r.cfg.Most { // it worked for a while
			pause.Reset()
		}
		wait := pause.NextBackOff()
		say(slog.LevelWarn, "the process that reads the GPU ended; training goes on, it is started again", "by", k.name, "because", err.Error(), "in", wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// AddTo adds the current state of the GPU. It does not wait.
func (r *Reader) AddTo(t *star.Telemetry) {
	if r == nil {
		return
	}
	if s := r.last.Load(); s != nil && time.Since(s.at) < old*r.cfg.Every {
		t.Merge(&s.t)
	}
}

// Close ends the child and waits for it, but not long: a driver that hangs does not keep a worker from ending. It may
// be called twice, and on nil.
func (r *Reader) Close() {
	if r != nil {
		r.stop()
		r.ended.Wait()
	}
}
