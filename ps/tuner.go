package ps

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"star/internal/compress"
)

// tuner chooses the codec of a worker's gradients from the measured speed of
// its link (policy auto). It is pure; the Link measures.
//
//	push   0 1 | 2 3 4 5 6 | 7 …          200 … 204 | 205 …
//	       cold  measured    choice         measured    choice
//
// The first choice is [compress.Choose]'s. Later the codec is changed only if
// it would be chosen neither at the measured speed nor at a quarter more or a
// fifth less. Without that margin it would flip near a threshold.
type tuner struct {
	// n is the length of a gradient; workers share a receiver's decoding.
	n, workers int
	candidates []compress.Candidate
	// current is nil without a codec.
	current compress.Codec

	// pushes counts all pushes; decided: a first choice was made.
	pushes  int
	decided bool
	// speeds are those of this round of measurements, in bytes per second.
	speeds []float64
}

const (
	// The first pushes are not measured: TCP has not reached its speed.
	coldPushes = 2
	// The median of these counts.
	measuredPushes = 5
	// This many pushes lie between the starts of two rounds.
	tunePeriod = 200
)

// newTuner makes the tuner of a gradient of n values that workers processes
// send at the same time.
func newTuner(n, workers int, candidates []compress.Candidate) *tuner {
	return &tuner{n: n, workers: max(workers, 1), candidates: candidates}
}

// measure counts a push and reports whether it is to be measured.
func (t *tuner) measure() bool {
	at := t.pushes % tunePeriod
	t.pushes++
	first := 0
	if t.pushes <= tunePeriod {
		first = coldPushes
	}
	return at >= first && at < first+measuredPushes
}

// sample adds a measurement: bytes took passed, including at most decoded for
// decoding by shards.
func (t *tuner) sample(bytes int64, passed, decoded time.Duration) {
	s := max(passed-decoded, passed/2).Seconds()
	// +Inf if the clock did not advance
	t.speeds = append(t.speeds, float64(bytes)/s)
}

// choose ends a round of measurements. ok: the codec changed, or this was the
// first choice.
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

// decoding returns how long a receiver decodes n values of the current codec.
func (t *tuner) decoding(n int) time.Duration {
	for _, c := range t.candidates {
		if c.Codec == t.current && c.Decode > 0 {
			return time.Duration(4 * float64(n) / c.Decode * 1e9)
		}
	}
	return 0
}

// since returns a clock in seconds for [compress.Gauge].
func since(begun time.Time) func() float64 {
	return func() float64 { return time.Since(begun).Seconds() }
}

// isLocal reports whether an address is one of this host.
func isLocal(addr string) bool {
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
