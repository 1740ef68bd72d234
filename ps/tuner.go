package ps

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"star/internal/compress"
)

// tuner chooses the codec of a worker's gradients by the measured speed of its
// link: the policy auto. It is pure; the Link measures.
//
//	push   0 1 | 2 3 4 5 6 | 7 …          200 … 204 | 205 …
//	       cold  measured    choice         measured    choice
//
// The first choice is [compress.Choose]'s. After that a codec is changed when the
// one in use would not be chosen at the measured speed, nor at a quarter more or
// a fifth less: near a threshold it would come and go.
type tuner struct {
	n, workers int
	candidates []compress.Candidate
	current    compress.Codec // nil: none

	pushes  int
	decided bool
	speeds  []float64 // of this round of measurements, bytes per second
}

const (
	coldPushes     = 2   // not measured: TCP has not found its speed
	measuredPushes = 5   // of which the median counts
	tunePeriod     = 200 // pushes from one round of measurements to the next
)

func newTuner(n, workers int, candidates []compress.Candidate) *tuner {
	return &tuner{n: n, workers: max(workers, 1), candidates: candidates}
}

// measure says whether the next push is to be measured. It counts the pushes.
func (t *tuner) measure() bool {
	at := t.pushes % tunePeriod
	t.pushes++
	first := 0
	if t.pushes <= tunePeriod {
		first = coldPushes
	}
	return at >= first && at < first+measuredPushes
}

// sample adds a measurement. decoded is the time of passed that shards may have
// spent decoding.
func (t *tuner) sample(bytes int64, passed, decoded time.Duration) {
	s := max(passed-decoded, passed/2).Seconds()
	t.speeds = append(t.speeds, float64(bytes)/s) // +Inf where the clock did not move
}

// choose ends a round of measurements; ok: the codec is another one than before,
// or this was the first choice.
func (t *tuner) choose() (c compress.Choice, ok bool) {
	if len(t.speeds) == 0 {
		return c, false
	}
	slices.Sort(t.speeds)
	bps := t.speeds[len(t.speeds)/2]
	t.speeds = t.speeds[:0]
	at := func(bps float64) compress.Choice {
		return compress.Choose(compress.Link{Bps: bps, Decodes: float64(t.workers)}, t.n, t.candidates)
	}
	c = at(bps)
	if t.decided && (c.Codec == t.current || at(bps*1.25).Codec == t.current || at(bps/1.25).Codec == t.current) {
		return c, false
	}
	t.decided, t.current = true, c.Codec
	return c, true
}

// decoding is how long a receiver takes for n values of the codec in use.
func (t *tuner) decoding(n int) time.Duration {
	for _, c := range t.candidates {
		if c.Codec == t.current && c.Decode > 0 {
			return time.Duration(4 * float64(n) / c.Decode * 1e9)
		}
	}
	return 0
}

// since is a clock for [compress.Gauge].
func since(begun time.Time) func() float64 {
	return func() float64 { return time.Since(begun).Seconds() }
}

// here says whether an address is one of this host.
func here(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	ip := ap.Addr().Unmap()
	if ip.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == ip
	})
}
