package host

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"

	"star"
)

// counters are monotonic values at one time.
type counters struct {
	at        time.Time // start of the look
	cpu       jiffies
	pressure  total   // some thread of the host waited for a processor
	delay     total   // threads of this process waited for one
	throttled total   // the control group was throttled
	quota     float64 // processors; 0: none
	in, out   uint64  // bytes of all interfaces but loopback

	hasCPU, hasNet bool
}

// total is a cumulative time that the kernel keeps. On a busy host a look may be interrupted for longer than the
// interval between looks, so each total has its own time.
type total struct {
	sum time.Duration
	at  time.Time // zero: it was not read
}

// rate is the increase of a total per second until b; false if unknown.
func (a total) rate(b total) (float64, bool) {
	s := b.at.Sub(a.at).Seconds()
	if a.at.IsZero() || b.at.IsZero() || s <= 0 {
		return 0, false
	}
	return max((b.sum-a.sum).Seconds(), 0) / s, true
}

// rates sets the rates between two looks.
func rates(t *star.Telemetry, a, b *counters) {
	if !b.at.After(a.at) {
		return
	}
	if total := b.cpu.total - a.cpu.total; a.hasCPU && b.hasCPU && total > 0 {
		share := func(from, to float64) float64 { return max(to-from, 0) / total }
		t.Set(star.Steal, share(a.cpu.steal, b.cpu.steal))
		t.Set(star.IOWait, share(a.cpu.iowait, b.cpu.iowait))
		t.Set(star.HostCPU, max(1-share(a.cpu.idle, b.cpu.idle)-share(a.cpu.iowait, b.cpu.iowait), 0))
	}
	if v, ok := a.pressure.rate(b.pressure); ok {
		t.Set(star.CPUPressure, min(v, 1)) // interrupted between reading the total and the clock
	}
	if v, ok := a.delay.rate(b.delay); ok {
		t.Set(star.RunDelay, v)
	}
	if b.quota > 0 {
		t.Set(star.Quota, b.quota)
		if v, ok := a.throttled.rate(b.throttled); ok {
			t.Set(star.Throttled, v)
		}
	}
}

// Config configures the intervals. Zero values mean the defaults.
type Config struct {
	Heartbeat time.Duration // 20 ms
	Looks     int           // heartbeats between two looks: 5
	Slow      int           // looks between two that read gopsutil: 10

	// PID is the measured process. Zero means this one. Another process counts as stalled (Stalled) when a signal has
	// stopped it, or when this process is stalled: the same causes stop both.
	PID int

	// Also adds other measurements, such as a GPU's state. It must not wait. nil: none.
	Also func(*star.Telemetry)
}

// Sampler reads the host's counters until it is closed.
type Sampler struct {
	cfg   Config
	last  atomic.Pointer[star.Telemetry]
	mu    sync.Mutex
	stops []Span
	stop  chan struct{}
	once  sync.Once
	ended sync.WaitGroup
	still atomic.Int64 // total time for which the process was stalled, ns
}

// Start starts a sampler.
func Start(c Config) *Sampler {
	if c.Heartbeat == 0 {
		c.Heartbeat = 20 * time.Millisecond
	}
	if c.Looks == 0 {
		c.Looks = 5
	}
	if c.Slow == 0 {
		c.Slow = 10
	}
	s := &Sampler{cfg: c, stop: make(chan struct{})}
	s.last.Store(new(star.Telemetry))
	s.ended.Go(s.run)
	return s
}

// Stood is the total time for which the measured process was stalled, to within a heartbeat. It costs one atomic load.
func (s *Sampler) Stood() time.Duration { return time.Duration(s.still.Load()) }

// Latest is the result of the last look. It costs one atomic load.
func (s *Sampler) Latest() *star.Telemetry { return s.last.Load() }

// Span is a stretch of time.
type Span struct{ From, To time.Time }

// mostStops bounds the number of stops kept for Stops.
const mostStops = 256

// Stops are the times since the last call in which a signal had the process stopped, the oldest first, to within a
// heartbeat. A stop that continues is returned in parts.
func (s *Sampler) Stops() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stops
	s.stops = nil
	return out
}

// stopped records that the process was stopped from one heartbeat to the next.
func (s *Sampler) stopped(from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.stops); n > 0 && s.stops[n-1].To.Equal(from) {
		s.stops[n-1].To = to
	} else if n < mostStops {
		s.stops = append(s.stops, Span{from, to})
	}
}

// Close ends the sampler. It may be called twice, and on nil.
func (s *Sampler) Close() {
	if s == nil {
		return
	}
	s.once.Do(func() { close(s.stop) })
	s.ended.Wait()
}

func (s *Sampler) run() {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	p := newProbe(s.cfg.PID)
	before := p.look(time.Now())
	host := slowLook{}
	pulse := pulse{period: s.cfg.Heartbeat, last: before.at}
	for beats := 1; ; beats++ {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		last, now, stopped := pulse.last, time.Now(), p.stopped()
		if stopped {
			s.stopped(last, now)
		}
		pulse.beat(now, stopped)
		s.still.Store(int64(pulse.still))
		if beats%s.cfg.Looks != 0 {
			continue
		}
		found := p.look(time.Now())
		t := new(star.Telemetry)
		if (beats/s.cfg.Looks-1)%s.cfg.Slow == 0 {
			host.look(found.at, !found.hasCPU)
		}
		t.Merge(&host.found)
		rates(t, &before, &found)
		if s.cfg.Also != nil {
			s.cfg.Also(t)
		}
		s.last.Store(t)
		before = found
	}
}

// pulse detects pauses of the whole process.
type pulse struct {
	period time.Duration
	last   time.Time
	still  time.Duration // total
}

// beat records a heartbeat, and whether the process is stopped. A gap counts from 30 ms beyond the period on: shorter
// gaps are due to Go's scheduler (10 ms for a goroutine without a preemption point) and the kernel's.
func (p *pulse) beat(now time.Time, stopped bool) {
	gap := now.Sub(p.last)
	if stopped {
		p.still += gap
	} else if gap -= p.period; gap > 30*time.Millisecond {
		p.still += gap
	}
	p.last = now
}

// slowLook are gopsutil's values; reading them costs some 100 µs.
type slowLook struct {
	found  star.Telemetry
	before counters
	busy   cpu.TimesStat
}

func (h *slowLook) look(now time.Time, cpuToo bool) {
	c := counters{at: now}
	if l, err := load.Avg(); err == nil {
		h.found.Set(star.HostLoad, l.Load1/float64(runtime.NumCPU()))
	}
	if m, err := mem.VirtualMemory(); err == nil && m.Total > 0 {
		h.found.Set(star.MemAvailable, float64(m.Available)/float64(m.Total))
	}
	if is, err := net.IOCounters(true); err == nil {
		for _, i := range is {
			if !strings.HasPrefix(i.Name, "lo") {
				c.in, c.out = c.in+i.BytesRecv, c.out+i.BytesSent
			}
		}
		c.hasNet = true
	}
	if s := now.Sub(h.before.at).Seconds(); h.before.hasNet && c.hasNet && s > 0 && c.in >= h.before.in && c.out >= h.before.out {
		h.found.Set(star.HostNetIn, float64(c.in-h.before.in)/s)
		h.found.Set(star.HostNetOut, float64(c.out-h.before.out)/s)
	}
	h.before = c
	if !cpuToo {
		return
	}
	if ts, err := cpu.Times(false); err == nil && len(ts) == 1 { // not Linux
		all := func(t cpu.TimesStat) float64 { return t.User + t.System + t.Idle + t.Nice }
		if d := all(ts[0]) - all(h.busy); all(h.busy) > 0 && d > 0 {
			h.found.Set(star.HostCPU, max(1-(ts[0].Idle-h.busy.Idle)/d, 0))
		}
		h.busy = ts[0]
	}
}
