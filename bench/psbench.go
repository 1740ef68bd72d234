// Package bench measures the program's hot paths against bare ones in the same
// run, because machines differ and ratios travel better than seconds.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"star/internal/vector"
	"star/ps"
	"star/ps/rule"
	"star/train/optim"
	"star/transport"
	"star/transport/wire"
)

// PSConfig configures PS. The zero value measures the project's goals: 1, 16 and 100 MB by 1, 2 and 4 workers.
type PSConfig struct {
	Sizes   []int64 // bytes of the parameters. Empty means 1, 16 and 100 MB
	Workers []int   // empty means 1, 2, 4
	Shards  int     // zero means 1
	Runs    int     // blocks of operations of each side, taken in turns. Zero means 7

	// Congestion lists the settings of transport.Config to measure under: ""
	// (ours) or "kernel". Empty means both. Both sides always have the same.
	Congestion []string
}

// Algorithms of PSResult.
const (
	StarPS     = "star-ps"      // as in a job: a coordinator over TCP, an update of all gradients, the barrier of SSGD
	StarPSData = "star-ps-data" // the shard's data path: push and pull only
	BareTCP    = "bare-tcp"     // net.Conn, io.ReadFull and Write, with the same socket options
	PlainTCP   = "plain-tcp"    // the same with the default options of net.Conn
)

// PSResult is one row. An operation is: every worker pushes Bytes, all at the
// same time, and every worker receives Bytes.
//
// Ranks are workers. Transport is tcp with our congestion control, tcp-kernel with the
// kernel's. Runs are operations. BusBW counts the bytes through the server's sockets,
// 2·Ranks·Bytes; CPU is that of both ends for each 1e9 of them, and Allocs are of both ends.
type PSResult struct {
	Row

	// Ratio is the median of bare-tcp over this one: 1 is as fast as bare. Plain
	// is the same for plain-tcp; zero where the row's options are the kernel's.
	Ratio float64 `json:"-"`
	Plain float64 `json:"-"`
}

// PS measures push and pull through a real ps.Server over loopback TCP, and the same bytes over bare net.Conns with
// preallocated buffers. Server and workers are goroutines of this process, so they share its processors, on both sides.
// both sides alike.
//
// Both star rows include headers, a checksum of every byte at both ends, and the shard's check of every gradient for
// poison, as by default. In star-ps-data a firing sends each worker the parameters as soon as its gradient is stored,
// and drops the gradient. Firings stay in the process: no message of a coordinator passes through a socket, and no
// worker waits for others, as in the bare exchange. Without updates the checksum of the parameters, which a shard
// computes once per version and for all receivers, is cached. star-ps includes all of that: messages to and from a
// coordinator over TCP, an update, its checksum, and the barrier of SSGD, after which no worker pushes while another
// one pulls.
//
// The bare exchange moves the same bytes between the same places: a gradient from one vector of the worker to one of
// the server, parameters from another one of the server to another one of the worker. Rows of one size, number of
// workers and transport are measured in turns, each in its own memory: star-ps, star-ps-data, bare-tcp, and plain-tcp
// where the options of the others differ from the kernel's.
func PS(ctx context.Context, cfg PSConfig) ([]PSResult, error) {
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = []int64{1e6, 16e6, 100e6}
	}
	if len(cfg.Workers) == 0 {
		cfg.Workers = []int{1, 2, 4}
	}
	if len(cfg.Congestion) == 0 {
		cfg.Congestion = []string{"", "kernel"}
	}
	if cfg.Shards == 0 {
		cfg.Shards = 1
	}
	if cfg.Runs == 0 {
		cfg.Runs = 7
	}
	var out []PSResult
	for _, size := range cfg.Sizes {
		if size < 4*int64(cfg.Shards) || size%4 != 0 || size > 4<<30 {
			return out, fmt.Errorf("bench: size of %d bytes: want a multiple of 4 (float32), at least 4 for each of %d shards, at most 4 GiB", size, cfg.Shards)
		}
		for _, workers := range cfg.Workers {
			if workers < 1 || workers > wire.MaxWorkers {
				return out, fmt.Errorf("bench: %d workers: want 1 to %d", workers, wire.MaxWorkers)
			}
			for _, congestion := range cfg.Congestion {
				rows, err := psPair(ctx, size, workers, congestion, cfg)
				if err != nil {
					return out, fmt.Errorf("bench: %d bytes, %d workers: %w", size, workers, err)
				}
				out = append(out, rows...)
			}
		}
	}
	return out, nil
}

// side is one of the compared sides.
type side struct {
	name    string
	op      func() error // one operation of all workers
	times   []float64    // seconds
	cpu     float64      // seconds
	mallocs uint64
}

func psPair(ctx context.Context, size int64, workers int, congestion string, cfg PSConfig) ([]PSResult, error) {
	tcp := transport.NewTCP(transport.Config{CongestionControl: congestion, Log: slog.New(slog.DiscardHandler)})
	bare, closeBare, err := newBare(ctx, tcp, size, workers)
	if err != nil {
		return nil, err
	}
	defer closeBare()
	full, closeFull, err := newStarPS(ctx, tcp, size, workers, cfg.Shards, true)
	if err != nil {
		return nil, err
	}
	defer closeFull()
	data, closeData, err := newStarPS(ctx, tcp, size, workers, cfg.Shards, false)
	if err != nil {
		return nil, err
	}
	defer closeData()

	// About 64 MB through the server per block, so that clock resolution does not dominate small operations.
	ops := int(max(1, 64e6/(2*size*int64(workers))))
	sides := []*side{{name: StarPS, op: full}, {name: StarPSData, op: data}, {name: BareTCP, op: bare}}
	if congestion == "" {
		kernel := transport.NewTCP(transport.Config{CongestionControl: "kernel"})
		plain, closePlain, err := newBare(ctx, kernel, size, workers)
		if err != nil {
			return nil, err
		}
		defer closePlain()
		sides = append(sides, &side{name: PlainTCP, op: plain})
	}
	for run := range cfg.Runs + 1 {
		for _, s := range sides {
			if err := s.block(ctx, ops, run > 0); err != nil { // the first one warms up
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	name := "tcp"
	if congestion != "" {
		name = "tcp-" + congestion
	}
	var rows []PSResult
	for _, s := range sides {
		slices.Sort(s.times)
		n := len(s.times)
		moved := 2 * float64(size) * float64(workers)
		r := PSResult{Row: Row{
			Ranks: workers, Bytes: size, Transport: name, Algorithm: s.name, Runs: n,
			Median: s.times[n/2], P10: s.times[n/10], P90: s.times[n*9/10],
			CPU:    s.cpu / (moved * float64(n)) * 1e9,
			Allocs: float64(s.mallocs) / float64(n),
		}}
		r.AlgBW, r.BusBW = float64(size)/r.Median, moved/r.Median
		rows = append(rows, r)
	}
	for i := range rows {
		rows[i].Ratio = rows[2].Median / rows[i].Median
		if len(rows) > 3 {
			rows[i].Plain = rows[3].Median / rows[i].Median
		}
	}
	return rows, nil
}

func (s *side) block(ctx context.Context, ops int, count bool) error {
	times := make([]float64, 0, ops)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	for range ops {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin := time.Now()
		if err := s.op(); err != nil {
			return err
		}
		times = append(times, time.Since(begin).Seconds())
	}
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	if count {
		s.times = append(s.times, times...)
		s.cpu += cpu
		s.mallocs += after.Mallocs - before.Mallocs
	}
	return nil
}

// cpuTime is the processor time of this process, zero where the system does not report it.
func cpuTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// team runs one function repeatedly in a goroutine per worker.
type team struct {
	begin []chan struct{}
	end   chan error
	wg    sync.WaitGroup
}

func newTeam(n int, do func(w int) error) *team {
	t := &team{end: make(chan error, n)}
	for w := range n {
		begin := make(chan struct{}, 1)
		t.begin = append(t.begin, begin)
		t.wg.Go(func() {
			for range begin {
				t.end <- do(w)
			}
		})
	}
	return t
}

func (t *team) all() error {
	for _, c := range t.begin {
		c <- struct{}{}
	}
	var first error
	for range t.begin {
		if err := <-t.end; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (t *team) close() {
	for _, c := range t.begin {
		close(c)
	}
	t.wg.Wait()
}

// newBare connects workers to a server that answers size bytes with size other bytes. The sockets have tcp's options.
func newBare(ctx context.Context, tcp *transport.TCP, size int64, workers int) (op func() error, stop func(), err error) {
	lc := net.ListenConfig{Control: tcp.Control}
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	var conns []net.Conn
	var serving sync.WaitGroup
	unwatch := context.AfterFunc(ctx, func() { l.Close() })
	closeAll := func() {
		unwatch()
		l.Close()
		for _, c := range conns {
			c.Close()
		}
		serving.Wait()
	}
	there, back := make([][]byte, workers), make([][]byte, workers)
	for w := range workers {
		d := net.Dialer{Control: tcp.Control}
		c, err := d.DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		far, err := l.Accept()
		if err != nil {
			c.Close()
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, c, far)
		there[w], back[w] = make([]byte, size), make([]byte, size)
		grad, params := vector.Make[byte](int(size)), vector.Make[byte](int(size))
		for _, b := range [][]byte{there[w], back[w], grad, params} { // otherwise all of them map to one page of zeros
			for i := range b {
				b[i] = byte(i)
			}
		}
		serving.Go(func() {
			for {
				if _, err := io.ReadFull(far, grad); err != nil {
					return
				}
				if _, err := far.Write(params); err != nil {
					return
				}
			}
		})
	}
	t := newTeam(workers, func(w int) error {
		c := conns[2*w]
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		if _, err := c.Write(there[w]); err != nil {
			return err
		}
		_, err := io.ReadFull(c, back[w])
		return err
	})
	return t.all, func() { closeAll(); t.close() }, nil
}

// newStarPS starts a server with a driver in the process or, with update, a coordinator over TCP, and connects workers
// to it.
func newStarPS(ctx context.Context, tcp *transport.TCP, size int64, workers, shards int, update bool) (op func() error, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	var links []*ps.Link
	var coord transport.Conn
	closeAll := func() {
		for _, l := range links {
			l.Close()
		}
		if coord != nil {
			coord.Close()
		}
		cancel()
		running.Wait()
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()

	server := ps.NewServer(ps.ServerConfig{
		Job: "bench", Log: tcp.Log, Measure: true,
		NewRule: func(s wire.ShardInfo) (rule.Rule, error) {
			o, err := optim.New(optim.Config{Name: optim.SGD, LR: 0.01}, int(s.To-s.From))
			return &rule.Descent{Optimizer: o, Schedule: rule.Constant(0.01)}, err
		},
	})
	l, err := tcp.Listen("127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	ranges, err := ps.Split(size/4, shards)
	if err != nil {
		return nil, nil, err
	}
	assign := wire.Assign{Of: shards, Params: size / 4, Workers: workers, Generation: 1}
	for i, r := range ranges {
		assign.Shards = append(assign.Shards, wire.ShardInfo{Shard: i, Addr: l.Addr(), From: r.From, To: r.To})
	}
	ended := make(chan error, 1)
	ready := make(chan struct{})
	running.Go(func() {
		transport.Serve(ctx, l, tcp.Config, func(c transport.Conn, h wire.Hello, _ []byte) {
			if h.Service == wire.ServiceCoord { // the coordinator dials the server here
				ended <- server.Run(ctx, c, assign)
				return
			}
			server.Accept(ctx, c, h)
		})
	})
	if update {
		if coord, err = tcp.Dial(ctx, l.Addr()); err != nil {
			return nil, nil, err
		}
		hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "bench"}
		if err := transport.Send(coord, hello, nil); err != nil {
			return nil, nil, err
		}
		running.Go(func() { ssgd(coord, shards, workers, ready) })
	} else {
		d := newDriver(shards, workers, ready)
		coord = d
		running.Go(func() { ended <- server.Run(ctx, d, assign) })
	}

	params, grads := make([][]float32, workers), make([][]float32, workers)
	for w := range workers {
		params[w], grads[w] = vector.Make[float32](int(size/4)), vector.Make[float32](int(size/4))
		for i := range grads[w] {
			grads[w][i] = float32(i%7) * 1e-6
		}
		link, err := ps.Dial(ctx, ps.LinkConfig{
			Network: tcp, Shards: assign.Shards, Params: params[w], Hello: wire.Hello{Job: "bench", Rank: w},
		})
		if err != nil {
			return nil, nil, err
		}
		links = append(links, link)
	}
	if err := links[0].Init(ctx); err != nil {
		return nil, nil, err
	}
	select {
	case <-ready:
	case err := <-ended:
		return nil, nil, fmt.Errorf("the server ended: %w", err)
	case <-time.After(time.Minute):
		return nil, nil, errors.New("the server was not ready after a minute")
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	steps := make([]int64, workers)
	t := newTeam(workers, func(w int) error {
		step := steps[w]
		steps[w]++
		if err := links[w].Push(ctx, step, step, 1, grads[w]); err != nil {
			return err
		}
		want := step + 1
		if !update {
			want = 0
		}
		_, err := links[w].Wait(ctx, want)
		return err
	})
	return t.all, func() { t.close(); closeAll() }, nil
}

// ssgd is a coordinator that fires an update when every worker's gradient is stored on every shard. It ends with its
// connection.
func ssgd(c transport.Conn, shards, workers int, ready chan<- struct{}) {
	fire := wire.Fire{Gradients: make([]wire.Gradient, workers)}
	nready, nstored := 0, 0
	for {
		f, err := c.Recv()
		if err != nil {
			return
		}
		switch f.Kind {
		case wire.KindReady:
			if nready++; nready == shards {
				close(ready)
			}
		case wire.KindStored:
			m, err := wire.ParseStored(f.Header)
			if err != nil {
				return
			}
			fire.Gradients[m.Worker] = wire.Gradient{Worker: m.Worker, Step: m.Step, Weight: 1 / float32(workers)}
			if nstored++; nstored < shards*workers {
				continue
			}
			nstored = 0
			fire.Seq++
			fire.Version++
			if transport.Send(c, fire, nil) != nil {
				return
			}
		}
	}
}

// driver is a server's connection to a minimal coordinator: as soon as a gradient is stored on every shard, a firing
// drops it and sends its worker the parameters. No worker waits for others, as in the bare exchange. Messages pass
// through memory.
type driver struct {
	shards int
	ready  chan<- struct{}
	fires  chan wire.Gradient
	done   chan struct{}
	once   sync.Once

	mu     sync.Mutex
	nready int
	held   []int // shards that hold the worker's gradient

	fire   wire.Fire // Recv's
	header []byte
}

func newDriver(shards, workers int, ready chan<- struct{}) *driver {
	return &driver{
		shards: shards, ready: ready, held: make([]int, workers), fires: make(chan wire.Gradient, workers), done: make(chan struct{}),
	}
}

func (d *driver) WriteFrame(k wire.Kind, header, _ []byte, _ uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch k {
	case wire.KindReady:
		if d.nready++; d.nready == d.shards {
			close(d.ready)
		}
	case wire.KindStored:
		m, err := wire.ParseStored(header)
		if err != nil {
			return err
		}
		if d.held[m.Worker]++; d.held[m.Worker] == d.shards {
			d.held[m.Worker] = 0
			d.fires <- wire.Gradient{Worker: m.Worker, Step: m.Step} // the channel has room for one per worker
		}
	}
	return nil
}

func (d *driver) Recv() (transport.Frame, error) {
	select {
	case g := <-d.fires:
		d.fire.Seq++
		d.fire.Dropped = append(d.fire.Dropped[:0], g)
		d.header = d.fire.AppendTo(d.header[:0])
		return transport.Frame{Kind: wire.KindFire, Header: d.header}, nil
	case <-d.done:
		return transport.Frame{}, net.ErrClosed
	}
}

func (d *driver) ReadPayload([]byte) error         { return transport.ErrSize }
func (d *driver) Discard() error                   { return nil }
func (d *driver) SetReadDeadline(time.Time) error  { return nil }
func (d *driver) SetWriteDeadline(time.Time) error { return nil }
func (d *driver) Peer() string                     { return "driver" }
func (d *driver) SetPeer(string)                   {}
func (d *driver) RemoteAddr() string               { return "memory" }
func (d *driver) Traffic() (sent, received int64)  { return 0, 0 }
func (d *driver) Close() error                     { d.once.Do(func() { close(d.done) }); return nil }
