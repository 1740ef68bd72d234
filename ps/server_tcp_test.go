package ps

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"star/internal/compress"
	"star/transport"
	"star/transport/wire"
)

func tcp() *transport.TCP { return transport.NewTCP(transport.Config{Log: quiet}) }

// The same over real sockets: k shards, N workers, clipping; bits of one shard.
func TestSSGDOverTCP(t *testing.T) {
	defer goleak.VerifyNone(t)
	const n, workers, steps = 30_011, 4, 20
	j := start(t, jobConfig{
		net: tcp(), addr: "127.0.0.1:0", params: n, shards: 3, workers: workers, quorum: workers, norm: true,
		server: ServerConfig{NewRule: plain(0.1, 2)},
	})
	var mu sync.Mutex
	last := map[int][]float32{}
	j.all(n, steps, same(tcp()), wave, func(w int, _ int64, params []float32) {
		mu.Lock()
		last[w] = slices.Clone(params)
		mu.Unlock()
	})
	if err := j.stop(); err != nil {
		t.Error(err)
	}
	want := one(t, n, workers, steps, 0.1, 2, wave)
	for w, got := range last {
		if !slices.Equal(got, want) {
			t.Errorf("worker %d has other parameters than one shard makes", w)
		}
	}
}

// Updates while others receive, for the race detector and for torn reads: each
// update adds one to every parameter.
func TestASGDOverTCP(t *testing.T) {
	defer goleak.VerifyNone(t)
	const n, workers = 50_000, 4
	j := start(t, jobConfig{
		net: tcp(), addr: "127.0.0.1:0", params: n, shards: 2, workers: workers, quorum: 1,
		server: ServerConfig{NewRule: plain(-workers, 0)}, // weight 1/workers
	})
	j.all(n, 25, same(tcp()), func(w, step int, params, grad []float32) {
		for i := range grad {
			grad[i] = 1
		}
	}, func(w int, version int64, params []float32) {
		for i, v := range params {
			if v != float32(version) {
				t.Errorf("worker %d: element %d of version %d is %v", w, i, version, v)
				return
			}
		}
	})
	for _, h := range j.server.hosted() {
		if h.mem.made > workers+2 {
			t.Errorf("shard %d made %d vectors, at most %d are allowed", h.info.Shard, h.mem.made, workers+2)
		}
	}
	if err := j.stop(); err != nil {
		t.Error(err)
	}
}

// Garbage on the port, before and after a proper Hello, is the sender's problem.
func TestGarbageOverTCP(t *testing.T) {
	defer goleak.VerifyNone(t)
	const n = 1000
	j := start(t, jobConfig{net: tcp(), addr: "127.0.0.1:0", params: n, shards: 1, workers: 2, quorum: 1})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 7))
			for {
				select {
				case <-stop:
					return
				default:
				}
				var c io.WriteCloser
				nc, err := net.Dial("tcp", j.shards[0].Addr)
				if err != nil {
					t.Error(err)
					return
				}
				c = nc
				if seed%2 == 1 { // a worker that says a proper Hello first, then garbage
					conn := transport.NewConn(nc, transport.Limits{})
					h := j.hello(1)
					h.Service, h.Role, h.Params = wire.ServiceShard, wire.RoleWorker, n
					if transport.Send(conn, h, nil) != nil {
						t.Error("cannot say hello")
					}
				}
				b := make([]byte, rnd.IntN(200)+1)
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				if rnd.IntN(2) == 0 {
					copy(b, "STAR\x01\x0d\x00\x00")
				}
				nc.SetDeadline(time.Now().Add(50 * time.Millisecond)) // it may wait for the rest of a frame
				c.Write(b)                                            // may fail: the server may have hung up already
				io.Copy(io.Discard, io.LimitReader(nc, 100))
				c.Close()
			}
		})
	}
	if err := j.work(tcp(), 0, n, 200, func(step int, params, grad []float32) { wave(0, step, params, grad) }, nil); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	if err := j.stop(); err != nil {
		t.Error(err)
	}
}

// The end of the coordinator is the end of the server, and of the links.
func TestCoordinatorLost(t *testing.T) {
	defer goleak.VerifyNone(t)
	j := start(t, jobConfig{net: tcp(), addr: "127.0.0.1:0", params: 10, shards: 2, workers: 1, quorum: 1})
	params := make([]float32, 10)
	l, err := j.dial(tcp(), 0, params)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-j.ready
	j.coord.Close()
	<-j.over
	if j.err == nil {
		t.Error("Run returned nil although the coordinator is gone")
	}
	if _, err := l.Wait(t.Context(), 1); err == nil {
		t.Error("Wait returned nil although the server is gone")
	}
	l.Close()
	j.stop()
}

// A canceled ctx ends a Wait and a Push into a connection without a reader.
func TestCancel(t *testing.T) {
	defer goleak.VerifyNone(t)
	const n = 16 << 20 // more than sockets hold
	network := tcp()
	lis, err := network.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		transport.Serve(ctx, lis, transport.Config{Log: quiet}, func(c transport.Conn, h wire.Hello, _ []byte) {
			defer c.Close()
			transport.Send(c, wire.Welcome{}, nil)
			<-ctx.Done()
		})
	})
	params := make([]float32, n)
	l, err := Dial(ctx, LinkConfig{Network: network, Shards: []wire.ShardInfo{{Addr: lis.Addr(), To: n}}, Params: params})
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := l.Push(short, 0, 0, 1, params); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Push: %v", err)
	}
	if err := l.Push(ctx, 0, 0, 1, params); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Push on a dead link: %v, want the reason of its death", err)
	}
	l.Close()
	l.Close()
	cancel()
	wg.Wait()
}

// A step of a worker, with all that it causes in the server, allocates nothing
// in steady state.
func TestNoAllocations(t *testing.T) {
	for _, codec := range []string{"none", "fp16", "int8", "topk=0.01", "powersgd=2"} {
		t.Run(codec, func(t *testing.T) { noAllocations(t, codec) })
	}
}

func noAllocations(t *testing.T, codec string) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	defer goleak.VerifyNone(t)
	const n, steps = 20_000, 400
	j := start(t, jobConfig{
		net: tcp(), addr: "127.0.0.1:0", params: n, shards: 2, workers: 1, quorum: 1,
		codec: func(int) string { return codec }, tensors: []compress.Tensor{{Shape: []int{100, 200}}},
	})
	var before, after runtime.MemStats
	err := j.work(tcp(), 0, n, steps, func(step int, params, grad []float32) {
		for i := range grad {
			grad[i] = float32(i%101+step) - 50
		}
		if step == steps/2 {
			runtime.ReadMemStats(&before)
		}
	}, func(version int64, _ []float32) {
		if version == steps {
			runtime.ReadMemStats(&after)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.stop(); err != nil {
		t.Error(err)
	}
	// Two shards make two pushes, two Stored, a Fire and two Params: seven messages.
	// The runtime itself allocates something now and then.
	if per := float64(after.Mallocs-before.Mallocs) / (steps / 2); per > 0.5 {
		t.Errorf("%v allocations per step of seven messages", per)
	}
}
