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

// counters are what only grows, at one moment.
type counters struct {
	at        time.Time
	cpu       jiffies
	pressure  time.Duration // some thread of the host waited for a processor
	delay     time.Duration // threads of this process did
	throttled time.Duration // the control group was held back
	quota     float64       // processors; 0: none
	in, out   uint64        // bytes of all interfaces but loopback

	hasCPU, hasPressure, hasDelay, hasThrottled, hasNet bool
}

// rates sets what two looks say.
func rates(t *star.Telemetry, a, b *counters) {
	s := b.at.Sub(a.at).Seconds()
	if s <= 0 {
		return
	}
	if total := b.cpu.total - a.cpu.total; a.hasCPU && b.hasCPU && total > 0 {
		share := func(from, to float64) float64 { return max(to-from, 0) / total }
		t.Set(star.Steal, share(a.cpu.steal, b.cpu.steal))
		t.Set(star.IOWait, share(a.cpu.iowait, b.cpu.iowait))
		t.Set(star.HostCPU, max(1-share(a.cpu.idle, b.cpu.idle)-share(a.cpu.iowait, b.cpu.iowait), 0))
	}
	per := func(m star.Metric, from, to time.Duration) { t.Set(m, max((to-from).Seconds(), 0)/s) }
	if a.hasPressure && b.hasPressure {
		// The kernel adds up in steps of its own, some of which end in the next look.
		t.Set(star.CPUPressure, min(max((b.pressure-a.pressure).Seconds(), 0)/s, 1))
	}
	if a.hasDelay && b.hasDelay {
		per(star.RunDelay, a.delay, b.delay)
	}
	switch {
	case b.quota > 0 && a.hasThrottled && b.hasThrottled:
		t.Set(star.Quota, b.quota)
		per(star.Throttled, a.throttled, b.throttled)
	case b.quota > 0:
		t.Set(star.Quota, b.quota)
	}
}

// Config says how often to look. Zero values mean the defaults.
type Config struct {
	Heartbeat time.Duration // 20 ms
	Looks     int           // heartbeats between two looks: 5
	Slow      int           // looks between two that ask gopsutil: 10

	// Also adds what else is measured, such as a GPU's state. It must not wait. nil:
	// nothing.
	Also func(*star.Telemetry)
}

// Sampler looks at the host until it is closed.
type Sampler struct {
	cfg   Config
	last  atomic.Pointer[star.Telemetry]
	stop  chan struct{}
	once  sync.Once
	ended sync.WaitGroup
}

// Start begins to look.
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

// Latest is what the last look found. It costs one atomic load.
func (s *Sampler) Latest() *star.Telemetry { return s.last.Load() }

// Close ends it. It may be called twice, and on nil.
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
	p := newProbe()
	before := p.look(time.Now())
	host := slowLook{}
	pulse := pulse{period: s.cfg.Heartbeat, last: before.at}
	for beats := 1; ; beats++ {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		pulse.beat(time.Now())
		if beats%s.cfg.Looks != 0 {
			continue
		}
		now := p.look(time.Now())
		t := new(star.Telemetry)
		if (beats/s.cfg.Looks-1)%s.cfg.Slow == 0 {
			host.look(now.at, !now.hasCPU)
		}
		t.Merge(&host.found)
		rates(t, &before, &now)
		t.Set(star.Stalled, pulse.share(now.at.Sub(before.at)))
		if s.cfg.Also != nil {
			s.cfg.Also(t)
		}
		s.last.Store(t)
		before = now
	}
}

// pulse finds pauses of the whole process.
type pulse struct {
	period time.Duration
	last   time.Time
	still  time.Duration // since the last share
}

// beat notes a heartbeat. A gap counts from 30 ms beyond the period on: less is a matter
// of Go's scheduler (10 ms for a goroutine that does not give way) and the kernel's.
func (p *pulse) beat(now time.Time) {
	if gap := now.Sub(p.last) - p.period; gap > 30*time.Millisecond {
		p.still += gap
	}
	p.last = now
}

// share is the part of the time since the last call in which the process stood still.
func (p *pulse) share(of time.Duration) float64 {
	s := p.still
	p.still = 0
	if of <= 0 {
		return 0
	}
	return min(float64(s)/float64(of), 1)
}

// slowLook is what gopsutil knows; asking costs some 100 µs.
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
