package transport

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"star/transport/wire"
)

// tcpPair is both ends of one loopback connection, as streams with the options
// of cfg.
func tcpPair(tb testing.TB, cfg Config) (near, far net.Conn) {
	tb.Helper()
	t := NewTCP(cfg)
	l, err := t.Listen("127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	c, err := t.Dial(tb.Context(), l.Addr())
	if err != nil {
		tb.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	near, far = c.(*netConn).nc, s.(*netConn).nc
	tb.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// exchange is one push and one pull: n bytes there, n bytes back.
type exchange struct {
	name string
	once func() error
	took []time.Duration
}

// bare exchanges over a net.Conn: Write and io.ReadFull, nothing else.
func bare(tb testing.TB, cfg Config, n int) func() error {
	near, far := tcpPair(tb, cfg)
	go func() {
		b := make([]byte, n)
		for {
			if _, err := io.ReadFull(far, b); err != nil {
				return
			}
			if _, err := far.Write(b); err != nil {
				return
			}
		}
	}()
	b := make([]byte, n)
	return func() error {
		if _, err := near.Write(b); err != nil {
			return err
		}
		_, err := io.ReadFull(near, b)
		return err
	}
}

// framed exchanges the same bytes as a Push and a Params, both summed and
// checked.
func framed(tb testing.TB, cfg Config, n int) func() error {
	a, b := tcpPair(tb, cfg)
	near, far := NewConn(a, Limits{}), NewConn(b, Limits{})
	go func() {
		buf := make([]byte, n)
		for {
			f, err := far.Recv()
			if err != nil || far.ReadPayload(buf) != nil {
				return
			}
			m, err := wire.ParsePush(f.Header)
			if err != nil || Send(far, wire.Params{Shard: m.Shard, Version: m.Step}, buf) != nil {
				return
			}
		}
	}()
	buf := make([]byte, n)
	step := int64(0)
	return func() error {
		step++
		if err := Send(near, wire.Push{Shard: 1, Worker: 2, Step: step, Samples: 64}, buf); err != nil {
			return err
		}
		f, err := near.Recv()
		if err != nil {
			return err
		}
		if _, err := wire.ParseParams(f.Header); err != nil {
			return err
		}
		return near.ReadPayload(buf)
	}
}

// BenchmarkExchange compares frames with the bare connection of the same
// options and with that of the kernel's defaults, in turns. Its ratios are the bare
// connection's median time over ours.
func BenchmarkExchange(b *testing.B) {
	for _, n := range []int{64 << 10, 1 << 20, 16 << 20, 100_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			es := []*exchange{
				{name: "framed", once: framed(b, Config{}, n)},
				{name: "bare", once: bare(b, Config{}, n)},
				{name: "kernel", once: bare(b, Config{CongestionControl: "kernel"}, n)},
			}
			for _, e := range es { // warm up
				if err := e.once(); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(2 * int64(n))
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range es {
					start := time.Now()
					if err := e.once(); err != nil {
						b.Fatal(err)
					}
					e.took = append(e.took, time.Since(start))
				}
			}
			framed := median(es[0].took)
			b.ReportMetric(float64(framed.Microseconds()), "framed-µs")
			b.ReportMetric(float64(median(es[1].took))/float64(framed), "of-bare")
			b.ReportMetric(float64(median(es[2].took))/float64(framed), "of-kernel")
		})
	}
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}
