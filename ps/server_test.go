package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/internal/compress"
	"star/internal/flightrecorder"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// wave is a gradient that depends on everything.
func wave(w, step int, params, grad []float32) {
	for i := range grad {
		grad[i] = float32(math.Sin(float64(i+7*w+13*step))) + params[i]/2
	}
}

// Workers over links of different speed, shards, coordinator: SSGD gives the
// bits of one shard in one goroutine, with and without clipping.
func TestSSGD(t *testing.T) {
	for _, c := range []struct {
		shards, workers int
		clip            float64
	}{{1, 1, 0}, {1, 3, 0}, {3, 4, 0}, {2, 3, 0.7}, {5, 2, 0.01}} {
		t.Run(fmt.Sprintf("shards=%d,workers=%d,clip=%v", c.shards, c.workers, c.clip), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, steps = 5003, 12
				pipe := &transport.Pipe{}
				j := start(t, jobConfig{
					net: pipe, addr: "ps", params: n, shards: c.shards, workers: c.workers, quorum: c.workers,
					norm: c.clip > 0, server: ServerConfig{NewRule: plain(0.1, c.clip)},
				})
				var mu sync.Mutex
				last := map[int][]float32{}
				j.all(n, steps, func(w int) transport.Network {
					link := transport.Link{Delay: time.Duration(w+1) * time.Millisecond, Bandwidth: 10e6 / int64(w+1)}
					return pipe.Via(link, link)
				}, wave, func(w int, version int64, params []float32) {
					mu.Lock()
					last[w] = slices.Clone(params)
					mu.Unlock()
				})
				if err := j.stop(); err != nil {
					t.Error(err)
				}
				want := one(t, n, c.workers, steps, 0.1, c.clip, wave)
				for w, got := range last {
					if !slices.Equal(got, want) {
						t.Errorf("worker %d has other parameters than one shard makes", w)
					}
				}
			})
		})
	}
}

// A slow reader receives one version while others update: no vector may be a
// mixture. Every update adds exactly one to every parameter.
func TestNoTornReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, workers = 40_000, 4
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{
			net: pipe, addr: "ps", params: n, shards: 2, workers: workers, quorum: 1,
			server: ServerConfig{NewRule: plain(-workers, 0)}, // weight 1/workers
		})
		torn := func(w int, version int64, params []float32) {
			for i, v := range params {
				if v != float32(version) {
					t.Fatalf("worker %d: element %d of version %d is %v", w, i, version, v)
				}
			}
		}
		var wg sync.WaitGroup
		for w := range workers {
			steps := 60
			link := transport.Link{Delay: time.Duration(w+1) * 100 * time.Microsecond}
			if w == workers-1 {
				steps, link.Bandwidth = 5, 200_000 // 0.8 s for one vector
			}
			wg.Go(func() {
				err := j.work(pipe.Via(transport.Link{}, link), w, n, steps, func(step int, params, grad []float32) {
					time.Sleep(time.Duration(w*7+step%5+1) * 10 * time.Millisecond)
					for i := range grad {
						grad[i] = 1
					}
				}, func(version int64, params []float32) { torn(w, version, params) })
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
			})
		}
		wg.Wait()
		for _, h := range j.server.hosted() {
			if h.mem.made > workers+2 {
				t.Errorf("shard %d made %d vectors, at most %d are allowed", h.info.Shard, h.mem.made, workers+2)
			}
		}
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A worker that asks for parameters while others update gets those of the version in the reply, and that version is not
// older than the requested one. Every update adds exactly one to every parameter.
func TestPulledParametersAreOfTheirVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, workers = 4000, 3
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{
			net: pipe, addr: "ps", params: n, shards: 1, workers: workers, quorum: 1,
			server: ServerConfig{NewRule: plain(-workers, 0)},
		})
		var latest atomic.Int64
		var wg sync.WaitGroup
		for w := range workers - 1 {
			wg.Go(func() {
				err := j.work(pipe, w, n, 80, func(step int, params, grad []float32) {
					time.Sleep(time.Duration(w*3+step%4+1) * time.Millisecond)
					for i := range grad {
						grad[i] = 1
					}
				}, func(version int64, _ []float32) { latest.Store(max(latest.Load(), version)) })
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
			})
		}
		<-j.ready
		params := make([]float32, n)
		l, err := j.dial(pipe.Via(transport.Link{}, transport.Link{Delay: 300 * time.Microsecond}), workers-1, params)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 100 {
			time.Sleep(1700 * time.Microsecond)
			want := latest.Load()
			version, err := l.Pull(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}
			if version < want {
				t.Fatalf("asked for version %d, it got version %d", want, version)
			}
			for i, v := range params {
				if v != float32(version) {
					t.Fatalf("element %d of version %d is %v", i, version, v)
				}
			}
		}
		wg.Wait()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// rogue is a worker's connection to shard 0 without a Link around it.
func (j *fakeJob) rogue(t *testing.T, w int) transport.Conn {
	t.Helper()
	c, err := j.open(j.hello(w))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open says a worker's hello to shard 0.
func (j *fakeJob) open(h wire.Hello) (transport.Conn, error) {
	h.Service, h.Params = wire.ServiceShard, j.shards[len(j.shards)-1].To
	if h.Role == "" {
		h.Role = wire.RoleWorker
	}
	c, _, _, err := transport.Open(context.Background(), j.net, j.shards[0].Addr, h, nil)
	return c, err
}

// What one worker does wrong ends its connection and nothing else.
func TestRogueWorker(t *testing.T) {
	const n = 100
	vec := func(n int) []byte { return transport.Floats(make([]float32, n)) }
	push := wire.Push{Worker: 1, Step: 0}
	with := func(codec string) wire.Push { return wire.Push{Worker: 1, Codec: codec} }
	for _, c := range []struct {
		name string
		do   func(c transport.Conn) error
	}{
		{"too short", func(c transport.Conn) error { return transport.Send(c, push, vec(n-1)) }},
		{"too long", func(c transport.Conn) error { return transport.Send(c, push, vec(n+1)) }},
		{"empty", func(c transport.Conn) error { return transport.Send(c, push, nil) }},
		{"wrong checksum", func(c transport.Conn) error { return transport.SendSummed(c, push, vec(n), 12345) }},
		{"another's rank", func(c transport.Conn) error { return transport.Send(c, wire.Push{Worker: 0}, vec(n)) }},
		{"another shard", func(c transport.Conn) error { return transport.Send(c, wire.Push{Worker: 1, Shard: 1}, vec(n)) }},
		{"a message that is not for shards", func(c transport.Conn) error { return transport.Send(c, wire.Joined{Worker: 1}, nil) }},
		{"a header of garbage", func(c transport.Conn) error {
			return c.WriteFrame(wire.KindPush, []byte{0xdd, 0xff, 0xff, 0xff, 0xff}, nil, 0)
		}},
		{"twice", func(c transport.Conn) error {
			if err := transport.Send(c, push, vec(n)); err != nil {
				return err
			}
			return transport.Send(c, wire.Push{Worker: 1, Step: 1}, vec(n))
		}},
		{"an unknown codec", func(c transport.Conn) error { return transport.Send(c, with("zip"), vec(n)) }},
		{"the codec auto", func(c transport.Conn) error { return transport.Send(c, with("auto"), vec(n)) }},
		{"the codec none, too long", func(c transport.Conn) error { return transport.Send(c, with("none"), vec(n+1)) }},
		{"fp16 too long", func(c transport.Conn) error { return transport.Send(c, with("fp16"), make([]byte, 2*n+2)) }},
		{"fp16 too short", func(c transport.Conn) error { return transport.Send(c, with("fp16"), make([]byte, 2*n-1)) }},
		{"fp16 of nothing", func(c transport.Conn) error { return transport.Send(c, with("fp16"), nil) }},
		{"int8 with a scale that no encoder writes", func(c transport.Conn) error {
			b := make([]byte, n+4)
			b[3] = 0xbf // negative
			return transport.Send(c, with("int8"), b)
		}},
		{"topk with a position behind the end", func(c transport.Conn) error {
			return transport.Send(c, with("topk=2"), []byte{1, 0, 0, 0, 0, 0, 0x80, 0x3f, n + 1})
		}},
		{"topk with one position twice", func(c transport.Conn) error {
			return transport.Send(c, with("topk=2"), []byte{2, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 5, 0})
		}},
		{"topk with more values than it may have", func(c transport.Conn) error {
			return transport.Send(c, with("topk=1"), []byte{2, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 5, 1})
		}},
		{"powersgd of a rank that is none", func(c transport.Conn) error { return transport.Send(c, with("powersgd=0"), vec(n)) }},
		{"powersgd too short", func(c transport.Conn) error { return transport.Send(c, with("powersgd=1"), vec(2)) }},
		{"more than a codec can make", func(c transport.Conn) error {
			return transport.Send(c, with("topk=0.99"), vec(2*n))
		}},
		{"a ping with a payload", func(c transport.Conn) error { return transport.Send(c, wire.Ping{}, vec(1)) }},
		{"pings without end", func(c transport.Conn) error {
			for range 40_000 {
				if err := transport.Send(c, wire.Ping{}, nil); err != nil {
					return nil
				}
			}
			return nil
		}},
		{"hangs up", func(c transport.Conn) error { return c.Close() }},
		{"pulls without end", func(c transport.Conn) error {
			// It reads nothing; the pipe holds 4 MiB.
			for range 12000 {
				if err := transport.Send(c, wire.Pull{Worker: 1}, nil); err != nil {
					return nil
				}
			}
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pipe := &transport.Pipe{}
				j := start(t, jobConfig{
					net: pipe, addr: "ps", params: n, shards: 1, workers: 2, quorum: 1,
					unheard: map[star.Worker]bool{1: true}, // a gradient that was fired makes room for another
					server:  ServerConfig{Measure: true}, tensors: []compress.Tensor{{Shape: []int{10, 10}}},
				})
				bad := func() {
					conn := j.rogue(t, 1)
					defer conn.Close()
					if err := c.do(conn); err != nil {
						t.Errorf("could not even misbehave: %v", err)
					}
					if c.name == "hangs up" {
						return
					}
					conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
					for {
						f, err := conn.Recv()
						if errors.Is(err, os.ErrDeadlineExceeded) {
							t.Error("the server did not close the connection")
						}
						if err != nil {
							return
						}
						if f.Kind == wire.KindParams {
							conn.Discard()
						}
					}
				}
				// The good worker works on, before, during and after.
				if err := j.work(pipe, 0, n, 10, func(step int, params, grad []float32) {
					if step == 3 {
						bad()
					}
					wave(0, step, params, grad)
				}, nil); err != nil {
					t.Error(err)
				}
				if err := j.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What cannot be decoded gives its memory back: it may come more often than there
// are vectors.
func TestBadPayloadsLeaveRoom(t *testing.T) {
	for codec, payload := range map[string][]byte{"int8": {3: 0xbf, 103: 0}, "topk=1": {1, 0, 0, 0, 0, 0, 0x80, 0x3f, 101}} {
		synctest.Test(t, func(t *testing.T) {
			const n = 100
			pipe := &transport.Pipe{}
			j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: 1, workers: 2, quorum: 1})
			for range 10 {
				c := j.rogue(t, 1)
				if err := transport.Send(c, wire.Push{Worker: 1, Codec: codec}, payload); err != nil {
					t.Fatal(err)
				}
				c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := c.Recv(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("%s: the server did not close the connection: %v", codec, err)
				}
				c.Close()
			}
			if err := j.work(pipe, 0, n, 5, func(step int, params, grad []float32) { wave(0, step, params, grad) }, nil); err != nil {
				t.Error(err)
			}
			if err := j.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: 10, shards: 1, workers: 2, quorum: 2})
		good := j.hello(0)
		good.Service, good.Role, good.Params = wire.ServiceShard, wire.RoleWorker, 10
		for _, c := range []struct {
			name, want string
			change     func(*wire.Hello)
		}{
			{"job", `job "test"`, func(h *wire.Hello) { h.Job = "other" }},
			{"rank", "rank 2", func(h *wire.Hello) { h.Rank = 2 }},
			{"no rank", "rank -1", func(h *wire.Hello) { h.Rank = -1 }},
			{"params", "11 parameters", func(h *wire.Hello) { h.Params = 11 }},
			{"shard", "shard 1 is not here", func(h *wire.Hello) { h.Shard = 1 }},
			{"service", "service", func(h *wire.Hello) { h.Service = wire.ServiceCoord + "x" }},
			{"role", "a tool asked", func(h *wire.Hello) { h.Role = wire.RoleTool }},
		} {
			h := good
			c.change(&h)
			_, _, _, err := transport.Open(t.Context(), pipe, "ps", h, nil)
			var refusal *transport.RejectError
			if !errors.As(err, &refusal) || refusal.Exit != 78 || !strings.Contains(refusal.Reason, c.want) {
				t.Errorf("%s: %v, want a refusal with %q", c.name, err, c.want)
			}
		}
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A worker that dies with a gradient stored comes back and works on; the firing
// that was on its way when it died is made.
func TestWorkerDiesAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 50
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: n, shards: 2, workers: 2, quorum: 2, noReader: true})
		ctx := context.Background()
		params := make([]float32, n)
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Pull(ctx, 0); err != nil {
			t.Fatal(err)
		}
		grad := make([]float32, n)
		for i := range grad {
			grad[i] = 1
		}
		if err := l.Push(ctx, 0, 0, 1, grad); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.Close() // dead, with its gradient stored everywhere
		synctest.Wait()
		j.tell(wire.Fire{Seq: 1, Version: 1, Gradients: []wire.Gradient{{Worker: 0, Step: 0, Weight: 1}}})
		synctest.Wait()

		if l, err = j.dial(pipe, 0, params); err != nil {
			t.Fatal(err)
		}
		if v, err := l.Pull(ctx, 1); err != nil || v != 1 || params[0] != -0.1 {
			t.Errorf("after its return: version %d, parameter %v, error %v; want version 1, -0.1", v, params[0], err)
		}
		// It dies again with a gradient that is never fired, and pushes another one in its third life.
		if err := l.Push(ctx, 1, 1, 1, grad); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.Close()
		if l, err = j.dial(pipe, 0, params); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Pull(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if err := l.Push(ctx, 0, 1, 1, grad); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		j.tell(wire.Fire{Seq: 2, Version: 2, Gradients: []wire.Gradient{{Worker: 0, Step: 0, Weight: 1}}})
		if v, err := l.Wait(ctx, 2); err != nil || v != 2 {
			t.Errorf("third life: version %d, %v", v, err)
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A firing of a gradient that is not there cannot be made right by waiting.
func TestCoordinatorContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := start(t, jobConfig{
			net: &transport.Pipe{}, addr: "ps", params: 4, shards: 1, workers: 1, quorum: 1, noReader: true,
			server: ServerConfig{Load: func(s wire.ShardInfo) ([]float32, int64, error) { return make([]float32, 4), 9, nil }},
		})
		j.tell(wire.Fire{Seq: 1, Version: 10, Gradients: []wire.Gradient{{Worker: 0, Step: 5, Weight: 1}}})
		<-j.over
		if err := j.stop(); err == nil || !strings.Contains(err.Error(), "step 5 of worker 0") {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A shard that resumed has its version and ignores Init.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 7
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{
			net: pipe, addr: "ps", params: n, shards: 2, workers: 1, quorum: 1,
			server: ServerConfig{Load: func(s wire.ShardInfo) ([]float32, int64, error) {
				v := make([]float32, s.To-s.From)
				for i := range v {
					v[i] = float32(s.From) + float32(i)
				}
				return v, 42, nil
			}},
		})
		<-j.ready
		params := make([]float32, n)
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		if v, err := l.Pull(t.Context(), 42); err != nil || v != 42 || !slices.Equal(params, []float32{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("version %d, %v, %v", v, params, err)
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A checkpoint is of one version although updates go on while it is written, and the rule's state does not change until
// RuleDone.
func TestSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 64
		pipe := &transport.Pipe{}
		var mu sync.Mutex
		got := map[int]float32{}
		j := start(t, jobConfig{
			net: pipe, addr: "ps", params: n, shards: 2, workers: 1, quorum: 1000, noReader: true,
			server: ServerConfig{NewRule: plain(-1, 0), Save: func(r SaveRequest) ([]byte, error) {
				before := slices.Clone(r.Params)
				time.Sleep(time.Second)
				r.RuleDone()
				time.Sleep(time.Second)
				if !slices.Equal(before, r.Params) {
					t.Error("the snapshot changed while it was saved")
				}
				mu.Lock()
				got[r.Shard.Shard] = r.Params[0]
				mu.Unlock()
				if r.Shard.Shard == 1 {
					return nil, errors.New("disk full")
				}
				return []byte("{}"), nil
			}},
		})
		ctx := context.Background()
		params, grad := make([]float32, n), make([]float32, n)
		for i := range grad {
			grad[i] = 1
		}
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Init(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Pull(ctx, 0); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for step := range int64(6) {
			if err := l.Push(ctx, step, step, 1, grad); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			j.tell(wire.Fire{Seq: step + 1, Version: step + 1, Gradients: []wire.Gradient{{Worker: 0, Step: step, Weight: 1}}})
			if step == 2 {
				j.tell(wire.Save{Seq: 3, Version: 3, ID: "a"})
			}
			if v, err := l.Wait(ctx, step+1); err != nil || v != step+1 || params[n-1] != float32(step+1) {
				t.Fatalf("step %d: version %d, parameter %v, %v", step, v, params[n-1], err)
			}
			if waited := time.Since(begin); step == 3 && waited != time.Second {
				t.Errorf("the update after the checkpoint came after %v; it should wait for RuleDone and no longer", waited)
			}
		}
		time.Sleep(3 * time.Second)
		mu.Lock()
		if got[0] != 3 || got[1] != 3 {
			t.Errorf("saved %v, want version 3 of both shards", got)
		}
		mu.Unlock()
		go j.coordinate()
		for range 2 {
			m := <-j.saved
			if want := map[int]string{0: "", 1: "disk full"}[m.Shard]; m.Err != want || m.ID != "a" {
				t.Errorf("%+v, want error %q", m, want)
			}
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A wait that ends names the shard that it waited for.
func TestWaitNamesTheShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: 10, shards: 2, workers: 2, quorum: 2})
		params := make([]float32, 10)
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		l.Init(t.Context())
		<-j.ready
		if _, err := l.Pull(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := l.Push(t.Context(), 0, 0, 1, params); err != nil {
			t.Fatal(err)
		}
		_, err = l.Wait(t.Context(), 1) // the other worker never comes
		if err == nil || !strings.Contains(err.Error(), "version 1 from shard 1 (ps)") || !strings.Contains(err.Error(), "30s") ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Unrequested parameters must not be written over a model that computes.
func TestUnaskedParams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		lis, err := pipe.Listen("ps")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			transport.Serve(ctx, lis, transport.Config{}, func(c transport.Conn, h wire.Hello, _ []byte) {
				defer c.Close()
				transport.Send(c, wire.Welcome{}, nil)
				transport.Send(c, wire.Params{Version: 3}, transport.Floats([]float32{1, 2}))
				<-ctx.Done()
			})
		})
		params := make([]float32, 2)
		l, err := Dial(ctx, LinkConfig{Network: pipe, Shards: []wire.ShardInfo{{Addr: "ps", To: 2}}, Params: params})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Push(ctx, 0, 0, 1, params); err == nil || !strings.Contains(err.Error(), "without being asked") {
			t.Errorf("Push after unasked parameters: %v", err)
		}
		if params[0] != 0 {
			t.Error("they were written")
		}
		l.Close()
		cancel()
		wg.Wait()
	})
}

func TestDialChecksRanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		shards []wire.ShardInfo
	}{
		{"gap", []wire.ShardInfo{{Shard: 0, From: 0, To: 4}, {Shard: 1, From: 5, To: 10}}},
		{"overlap", []wire.ShardInfo{{Shard: 0, From: 0, To: 6}, {Shard: 1, From: 5, To: 10}}},
		{"short", []wire.ShardInfo{{Shard: 0, From: 0, To: 9}}},
		{"long", []wire.ShardInfo{{Shard: 0, From: 0, To: 11}}},
		{"empty", []wire.ShardInfo{{Shard: 0, From: 0, To: 0}, {Shard: 1, From: 0, To: 10}}},
		{"none", nil},
	} {
		if _, err := Dial(t.Context(), LinkConfig{Network: &transport.Pipe{}, Shards: c.shards, Params: make([]float32, 10)}); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
	}
}

// Dial tries again until the shard is reachable, but gives up at some point.
func TestDialRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		shards := []wire.ShardInfo{{Addr: "late", To: 2}, {Shard: 1, Addr: "late", From: 2, To: 4}}
		cfg := LinkConfig{Network: pipe, Shards: shards, Params: make([]float32, 4), JoinTimeout: 20 * time.Second}
		begin := time.Now()
		_, err := Dial(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), "not reached within 20s") || !strings.Contains(err.Error(), "refused") {
			t.Errorf("nobody listens: %v", err)
		}
		if d := time.Since(begin); d < 20*time.Second || d > 25*time.Second {
			t.Errorf("gave up after %v", d)
		}
		go func() {
			time.Sleep(5 * time.Second)
			lis, err := pipe.Listen("late")
			if err != nil {
				t.Error(err)
				return
			}
			for range shards {
				c, err := lis.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				transport.ReadHello(c, time.Second)
				transport.Send(c, wire.Welcome{}, nil)
			}
			lis.Close()
		}()
		l, err := Dial(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
}

// The list of waits shows for a dialling worker which shards it waits for, where they are, and why they are not
// reachable.
func TestDialIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := func() (lines []string) {
			for _, w := range flightrecorder.List() {
				if strings.HasPrefix(w.Owner, "worker 7") {
					_, line, _ := strings.Cut(w.String(), w.Owner)
					lines = append(lines, line)
				}
			}
			slices.Sort(lines)
			return lines
		}
		cfg := LinkConfig{Network: &transport.Pipe{}, Shards: []wire.ShardInfo{{Addr: "near", To: 2}, {Shard: 1, Addr: "far", From: 2, To: 4}},
			Hello: wire.Hello{Rank: 7}, Params: make([]float32, 4), JoinTimeout: 20 * time.Second}
		done := make(chan error)
		go func() {
			_, err := Dial(t.Context(), cfg)
			done <- err
		}()
		synctest.Wait()
		got := waiting()
		for i, want := range []string{": waits for an answer of shard 0 (near: ", ": waits for an answer of shard 1 (far: "} {
			if len(got) != 2 || !strings.HasPrefix(got[i], want) || !strings.Contains(got[i], "refused") || !strings.HasSuffix(got[i], "at most 20s") {
				t.Fatalf("it says %q, want %q and why, at most 20s", got, want)
			}
		}
		if err := <-done; err == nil {
			t.Error("connected to nobody")
		}
		if got := waiting(); len(got) > 0 {
			t.Errorf("it waits no more, and says %q", got)
		}
	})
}

// A worker that got nothing from its firing (its order was to wait) asks for the parameters when it goes on.
func TestPullAfterQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := &transport.Pipe{}
		j := start(t, jobConfig{net: pipe, addr: "ps", params: 4, shards: 2, workers: 1, quorum: 1, noReader: true})
		params := make([]float32, 4)
		l, err := j.dial(pipe, 0, params)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Pull(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := l.Push(t.Context(), 0, 0, 1, []float32{1, 1, 1, 1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		j.tell(wire.Fire{
			Seq: 1, Version: 1, Gradients: []wire.Gradient{{Worker: 0, Step: 0, Weight: 1}}, Quiet: []star.Worker{0},
		})
		if v, err := l.Pull(t.Context(), 1); err != nil || v != 1 || params[3] != -0.1 {
			t.Errorf("version %d, parameter %v, %v; want version 1, -0.1", v, params[3], err)
		}
		l.Close()
		if err := j.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A server with empty shards, because the model has fewer parameters than the job has shards, is a member like any
// other.
func TestServerWithoutShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		l, err := net.Listen("coord")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		over := make(chan error, 1)
		go func() {
			c, err := net.Dial(t.Context(), "coord")
			if err != nil {
				over <- err
				return
			}
			over <- NewServer(ServerConfig{Job: "job"}).Run(t.Context(), c, wire.Assign{Of: 1, Params: 1, Workers: 1})
		}()
		coord, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer coord.Close()
		transport.Send(coord, wire.Ping{Seq: 7}, nil)
		f, err := coord.Recv()
		if err != nil || f.Kind != wire.KindPong {
			t.Fatalf("answered with %v, %v", f.Kind, err)
		}
		transport.Send(coord, wire.Fire{Seq: 1, Version: 1}, nil)
		transport.Send(coord, wire.Leave{Worker: -1}, nil)
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// The state of an optimiser in a worker's program reaches every shard with the first parameters, each shard its part,
// and is returned put together. A rule that has no use for it rejects the worker.
func TestStateOfAProgram(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const n = 7
			pipe := &transport.Pipe{}
			var mu sync.Mutex
			kept := map[rule.Rule]rule.State{}
			j := start(t, jobConfig{
				net: pipe, addr: "ps", params: n, shards: 2, workers: 1, quorum: 1, unheard: map[star.Worker]bool{0: refuse},
				server: ServerConfig{
					Begin: func(r rule.Rule, st rule.State) error {
						if refuse {
							return errors.New("of no use")
						}
						mu.Lock()
						defer mu.Unlock()
						kept[r] = st
						return nil
					},
					Recall: func(r rule.Rule) (rule.State, error) {
						mu.Lock()
						defer mu.Unlock()
						return kept[r], nil
					},
				},
			})
			params := []float32{1, 2, 3, 4, 5, 6, 7}
			l, err := j.dial(pipe, 0, params)
			if err != nil {
				t.Fatal(err)
			}
			st := rule.State{Name: "adam", Steps: 50, Slots: []rule.Slot{{Name: "exp_avg", Data: []float32{10, 20, 30, 40, 50, 60, 70}}, {Name: "exp_avg_sq", Data: []float32{11, 21, 31, 41, 51, 61, 71}}}}
			err = l.InitState(t.Context(), st)
			synctest.Wait() // the reject has arrived
			got, no := l.State(t.Context())
			if refuse {
				var rejected *transport.RejectError
				if err = cmp.Or(err, no); !errors.As(err, &rejected) || rejected.Exit != 2 || !strings.Contains(err.Error(), "of no use") {
					t.Errorf("%v", err)
				}
			} else if err != nil || no != nil || !reflect.DeepEqual(got, st) {
				t.Errorf("%v, %v: %+v, want %+v", err, no, got, st)
			}
			l.Close()
			j.stop()
		})
	}
}
