package ps

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"star"
	"star/internal/compress"
	"star/internal/exactsum"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// fakeJob is a server with its shards, and a coordinator that fires whenever quorum
// gradients are stored on every shard.
type fakeJob struct {
	t       testing.TB
	net     transport.Network
	server  *Server
	shards  []wire.ShardInfo
	workers int
	quorum  int
	norm    bool
	unheard map[star.Worker]bool
	codec   func(w int) string
	rounds  map[int]bool
	tensors []compress.Tensor
	linkLog *slog.Logger
	key     string

	cancel   context.CancelFunc
	over     chan struct{} // closed when the server has ended, with err
	err      error
	wg       sync.WaitGroup
	coord    transport.Conn // the coordinator's end
	lock     chan struct{}  // for writing to it
	ready    chan struct{}  // closed when all shards are
	saved    chan wire.Saved
	released []chan int64 // by worker: the version it is released with

	seq, version int64 // of the coordinator's goroutine
}

type jobConfig struct {
	net      transport.Network
	addr     string
	params   int
	shards   int
	workers  int
	quorum   int
	norm     bool
	server   ServerConfig
	noReader bool                 // the test plays the coordinator itself
	key      string               // of passes
	empty    bool                 // the server has no shard yet
	unheard  map[star.Worker]bool // their gradients are never fired
	codec    func(w int) string   // nil: none
	rounds   map[int]bool         // workers that want parameters in bfloat16
	tensors  []compress.Tensor
	linkLog  *slog.Logger
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func plain(lr, clip float64) func(wire.ShardInfo) (rule.Rule, error) {
	return func(wire.ShardInfo) (rule.Rule, error) {
		return &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(lr), Clip: clip}, nil
	}
}

// start starts a job. stop must be called.
func start(t testing.TB, cfg jobConfig) *fakeJob {
	t.Helper()
	j := &fakeJob{
		t: t, net: cfg.net, workers: cfg.workers, quorum: cfg.quorum, norm: cfg.norm, unheard: cfg.unheard,
		codec: cfg.codec, rounds: cfg.rounds, tensors: cfg.tensors, linkLog: cfg.linkLog, key: cfg.key,
		over: make(chan struct{}), lock: make(chan struct{}, 1), ready: make(chan struct{}),
		saved: make(chan wire.Saved, 16),
	}
	for range cfg.workers {
		j.released = append(j.released, make(chan int64, 1))
	}
	if cfg.server.NewRule == nil {
		cfg.server.NewRule = plain(0.1, 0)
	}
	if cfg.server.Log == nil {
		cfg.server.Log = quiet
	}
	cfg.server.Job = "test"
	l, err := cfg.net.Listen(cfg.addr)
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := Split(int64(cfg.params), cfg.shards)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ranges {
		j.shards = append(j.shards, wire.ShardInfo{Shard: i, Addr: l.Addr(), From: r.From, To: r.To})
	}
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	j.server = NewServer(cfg.server)
	j.server.Describe(cfg.tensors)
	accepted := make(chan transport.Conn, 1)
	j.wg.Go(func() {
		transport.Serve(ctx, l, transport.Config{Log: quiet}, func(c transport.Conn, h wire.Hello, _ []byte) {
			if h.Service == wire.ServiceCoord {
				accepted <- c
				return
			}
			j.server.Accept(ctx, c, h)
		})
	})
	// The server's connection to the coordinator goes over the same network; here the coordinator dials.
	c, err := cfg.net.Dial(ctx, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := transport.Send(c, wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "test"}, nil); err != nil {
		t.Fatal(err)
	}
	j.coord = c
	theirs := <-accepted
	assign := wire.Assign{Shards: j.shards, Of: cfg.shards, Params: int64(cfg.params), Workers: cfg.workers, Generation: 1, Key: cfg.key}
	if cfg.empty {
		assign.Shards = nil
	}
	j.wg.Go(func() {
		j.err = j.server.Run(ctx, theirs, assign)
		close(j.over)
	})
	if !cfg.noReader {
		j.wg.Go(j.coordinate)
	}
	return j
}

// stop ends the job and returns what Run returned.
func (j *fakeJob) stop() error {
	j.tell(wire.Leave{})
	<-j.over
	j.cancel()
	j.coord.Close()
	j.wg.Wait()
	return j.err
}

func (j *fakeJob) tell(m wire.Message) {
	j.lock <- struct{}{}
	defer func() { <-j.lock }()
	transport.Send(j.coord, m, nil) // an error shows as a job that does not advance, or in Run's
}

func (j *fakeJob) coordinate() {
	type key struct {
		w    star.Worker
		step int64
	}
	stored := map[key]int{}
	var waiting []wire.Gradient
	var sum exactsum.Squares
	ready, norms := 0, 0
	buf := make([]byte, exactsum.SquaresLen)
	for {
		f, err := j.coord.Recv()
		if err != nil {
			return
		}
		payload := buf[:min(int(f.Size), len(buf))]
		if f.Kind == wire.KindSaved {
			if j.coord.Discard() != nil {
				return
			}
		} else if err := j.coord.ReadPayload(payload); err != nil {
			return
		}
		switch f.Kind {
		case wire.KindReady:
			if ready++; ready == len(j.shards) {
				close(j.ready)
			}
		case wire.KindSaved:
			m, _ := wire.ParseSaved(f.Header)
			j.saved <- m
		case wire.KindNorm:
			m, _ := wire.ParseNorm(f.Header)
			part, err := exactsum.ParseSquares(payload)
			if err != nil {
				j.t.Error(err)
			}
			sum.Merge(&part)
			if norms++; norms == len(j.shards) {
				j.tell(wire.Apply{Seq: m.Seq, Norm: math.Sqrt(sum.Float64()), Factor: 1})
				norms, sum = 0, exactsum.Squares{}
			}
		case wire.KindStored:
			m, _ := wire.ParseStored(f.Header)
			if j.unheard[m.Worker] {
				continue
			}
			k := key{m.Worker, m.Step}
			if stored[k]++; stored[k] < len(j.shards) {
				continue
			}
			delete(stored, k)
			waiting = append(waiting, wire.Gradient{Worker: m.Worker, Step: m.Step, Weight: 1 / float32(j.workers)})
			if len(waiting) < j.quorum {
				continue
			}
			j.seq++
			j.version++
			j.lock <- struct{}{} // not tell, which would put the Fire on the heap
			transport.Send(j.coord, wire.Fire{Seq: j.seq, Version: j.version, Gradients: waiting, NormFirst: j.norm}, nil)
			<-j.lock
			for _, g := range waiting {
				j.released[g.Worker] <- j.version
			}
			waiting = waiting[:0]
		}
	}
}

// hello is worker w's.
func (j *fakeJob) hello(w int) wire.Hello { return j.helloOf(w, transport.Attempt{Number: 1}) }

// helloOf is that of one of its lives.
func (j *fakeJob) helloOf(w int, attempt transport.Attempt) wire.Hello {
	return wire.Hello{Job: "test", Rank: w, Pass: transport.Pass(j.key, wire.RoleWorker, w, attempt)}
}

// dial connects worker w over net.
func (j *fakeJob) dial(net transport.Network, w int, params []float32) (*Link, error) {
	cfg := LinkConfig{Network: net, Shards: j.shards, Hello: j.hello(w), Params: params, Tensors: j.tensors, Workers: j.workers, Log: j.linkLog}
	if j.codec != nil {
		cfg.Compress = j.codec(w)
	}
	if j.rounds[w] {
		cfg.Rounded = compress.BF16.Name()
	}
	return Dial(context.Background(), cfg)
}

// work runs worker w for some steps: gradient computes into grad on params, of
// the version basis; seen, if not nil, is called with every version received.
func (j *fakeJob) work(net transport.Network, w, n, steps int, gradient func(step int, params, grad []float32), seen func(version int64, params []float32)) error {
	ctx := context.Background()
	params, grad := make([]float32, n), make([]float32, n)
	l, err := j.dial(net, w, params)
	if err != nil {
		return err
	}
	defer l.Close()
	if w == 0 {
		if err := l.Init(ctx); err != nil {
			return err
		}
	}
	<-j.ready
	version, err := l.Pull(ctx, 0)
	if err != nil {
		return err
	}
	patience := time.NewTimer(0)
	defer patience.Stop()
	for step := range steps {
		gradient(step, params, grad)
		if err := l.Push(ctx, int64(step), version, 1, grad); err != nil {
			return err
		}
		var want int64
		patience.Reset(30 * time.Second)
		select {
		case want = <-j.released[w]:
		case <-j.over:
			return fmt.Errorf("the server is gone: %v", j.err)
		case <-patience.C:
			return fmt.Errorf("step %d: not released for 30 s", step)
		}
		if version, err = l.Wait(ctx, want); err != nil {
			return err
		}
		if version != want {
			return fmt.Errorf("released with version %d, received %d", want, version)
		}
		if seen != nil {
			seen(version, params)
		}
	}
	return nil
}

// all runs every worker and reports their errors.
func (j *fakeJob) all(n, steps int, via func(w int) transport.Network, gradient func(w, step int, params, grad []float32), seen func(w int, version int64, params []float32)) {
	j.t.Helper()
	var wg sync.WaitGroup
	for w := range j.workers {
		wg.Go(func() {
			err := j.work(via(w), w, n, steps,
				func(step int, params, grad []float32) { gradient(w, step, params, grad) },
				func(version int64, params []float32) {
					if seen != nil {
						seen(w, version, params)
					}
				})
			if err != nil {
				j.t.Errorf("worker %d: %v", w, err)
			}
		})
	}
	wg.Wait()
}

func same(n transport.Network) func(int) transport.Network {
	return func(int) transport.Network { return n }
}

// one is what a single shard makes of the same gradients in the same order.
func one(t testing.TB, n, workers, steps int, lr, clip float64, gradient func(w, step int, params, grad []float32)) []float32 {
	s := NewShard(n, &rule.Descent{Optimizer: sgd{}, Schedule: rule.Constant(lr), Clip: clip}, &heap{})
	s.Load(make([]float32, n), 0)
	for step := range int64(steps) {
		f := wire.Fire{Seq: step + 1, Version: step + 1, NormFirst: clip > 0}
		for w := range workers {
			g := make([]float32, n)
			gradient(w, int(step), slices.Clone(s.Params()), g)
			if err := s.Push(rule.Gradient{Worker: star.Worker(w), Step: step, Vec: g}); err != nil {
				t.Fatal(err)
			}
			f.Gradients = append(f.Gradients, wire.Gradient{Worker: star.Worker(w), Step: step, Weight: 1 / float32(workers)})
		}
		if err := s.Fire(&f); err != nil {
			t.Fatal(err)
		}
		ev, _ := s.Next()
		if ev.Kind == Summed {
			if err := s.Apply(step+1, math.Sqrt(ev.Squares.Float64()), 1); err != nil {
				t.Fatal(err)
			}
			s.Next()
		}
	}
	return s.Params()
}
