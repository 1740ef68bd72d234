package allreduce

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"star/internal/flightrecorder"
)

// Config identifies this rank and says how it reaches the others. Rank, Size
// and Rendezvous (or Listener) must be set; the other fields may be zero.
// Fields marked (all) must be equal on all ranks.
type Config struct {
	Rank int
	// Number of ranks (all).
	Size int

	// Rendezvous is host:port of rank 0, which listens there until all ranks
	// have connected. The other ranks retry until the context of Dial ends.
	Rendezvous string

	// Listener, on rank 0, replaces listening at Rendezvous. Dial closes it.
	Listener net.Listener

	// Dial, if not nil, connects to other ranks instead of a net.Dialer, for
	// example through a proxy.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Host is the address at which this rank listens and the others connect.
	// Empty means the one from which it reaches rank 0. A rank that listens on
	// every interface (0.0.0.0, ::) is reached at that address too or, if that
	// is loopback at rank 0's host, at the address that each of the others
	// knows.
	Host string

	// Job is a name; ranks of other jobs are refused. (all)
	Job string
	// Token is a shared secret, sent in clear text unless TLS is on. (all)
	Token string
	// Generation is that of the group: ranks of another one are refused. (all)
	Generation uint32

	// TLS, if not nil, protects all connections (all). It excludes raw sockets
	// and shared memory, so it is slower.
	TLS *tls.Config

	// Insecure permits listening beyond loopback with neither TLS nor a Token.
	Insecure bool

	// Transport is tcp, unix (ranks on one host) or shm (the same, through
	// shared memory). Empty means the fastest that works, for each pair. (all)
	Transport string

	// Congestion is TCP's congestion control, see transport.Config. SendBuffer
	// and ReceiveBuffer are sizes of socket buffers in bytes; zero means 1 MiB,
	// negative the kernel's choice. Model.TCP has precedence for unset values.
	Congestion                string
	SendBuffer, ReceiveBuffer int

	// HostID is equal for ranks that share a host. Empty means the kernel's:
	// the same boot and network namespace. It decides on AlgorithmHierarchy and
	// on which pairs try shared memory.
	HostID string

	// Checksum selects the TCP connections with a CRC-32, so that damaged bytes
	// are found before they are used: ChecksumFar, ChecksumAll or ChecksumOff.
	// It has no effect with TLS, which detects all damage. (all)
	Checksum string

	// ZeroCopy selects the vectors that other ranks receive from this rank's
	// memory without a copy on this side: ZeroCopyLong, ZeroCopyAll or
	// ZeroCopyOff. Over TCP it needs Linux 5.7, no TLS, no checksum and one
	// connection; through shared memory, processes that may read each other's.
	// An operation then ends when the other ranks have received what this one
	// sends. After a failed operation they do not see later writes to the
	// vector, if it is ordinary memory, as make returns it.
	ZeroCopy string

	// Connections is the number of TCP connections between two ranks. Zero
	// means 1. More help only if a network limits the rate of each connection.
	// (all)
	Connections int

	// Algorithm of AllReduce. Zero means by Model and, if several hosts have
	// several ranks, by the placement of ranks. (all)
	Algorithm Algorithm

	// Segment is after how many received bytes of a block a rank passes them
	// on. Zero means by Model and, without a measurement, 512 KiB for sockets
	// and 256 KiB for shared memory.
	Segment int

	// Model predicts which algorithm is the fastest. Rank 0's counts; it sends
	// it to the others. Nil means DefaultModel. Tune measures one.
	Model *Model

	// Poll waits by polling instead of sleeping: it saves the time to wake up
	// and uses a whole processor. Dial refuses it on a host with more ranks
	// than processors.
	Poll bool

	// Timeout is how long an operation may go without moving a byte. Zero means
	// 30 s.
	Timeout time.Duration

	// DialTimeout bounds Dial if its context has no deadline. Zero means 1
	// minute.
	DialTimeout time.Duration

	// ReachTimeout is how long rank 0 may be unreachable before Dial gives up,
	// for a rank 0 that is known to listen already. Zero: DialTimeout.
	ReachTimeout time.Duration

	// Log receives what was chosen. Nil means slog.Default().
	Log *slog.Logger
}

func (c *Config) log() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	return slog.Default()
}

// Group is this rank's end of the connections between all ranks. Except for
// Close, one goroutine at a time may use it.
type Group struct {
	cfg  Config
	rank int
	// peers is by rank; this rank's own has no link.
	peers []peer
	// control is by rank on rank 0; the others have the link to rank 0 only.
	control []*controlLink
	waiter  waiter
	model   *Model
	// prices is the part of model that applies to this group.
	prices *Model
	// kind is that of all links, as all ranks know it; tcp if they differ.
	kind string
	// Of the operation; 0: each link's own.
	segment int
	timeout time.Duration
	// Host numbers, by rank.
	hosts []int
	// placed is nil unless several hosts have several ranks.
	placed   *placed
	patience patience
	// More ranks than processors.
	crowded bool

	// closing is why the group closes; nil: it does not.
	closing atomic.Pointer[error]
	// busy is full while an operation is running.
	busy chan struct{}
	// err is why the group is unusable.
	err    error
	closed bool

	site *flightrecorder.Site
	// In the running operation.
	sleeps bool

	// Of the last operation.
	number uint64
	now    run
	// moved is when bytes moved last, or a little before.
	moved time.Time
	// breath is when the goroutine last went through Go's scheduler, or later.
	breath   time.Time
	done     []bool // by lane
	asks     []ask  // by lane
	programs map[programKey]programSteps
	// arranged is the program of the delivery, collection or exchange that begins.
	arranged programSteps
	// chosen is for the size of the last AllReduce.
	chosen sizedAlgorithm
	late   lateness // for AlgorithmLate
	// token is what barriers send.
	token [8]byte

	sent, received       atomic.Int64 // see Traffic
	sentFar, receivedFar atomic.Int64 // see TrafficFar
}

// programKey is what a program depends on.
type programKey struct {
	call      call
	algorithm Algorithm
	root      int
	count     int
	size      int
}

type programSteps struct {
	*program
	steps int
}

// maxPrograms bounds the cached programs: a training job has a few sizes.
const maxPrograms = 256

// newGroup makes a group of connected links.
func newGroup(cfg Config, peers []peer, control []*controlLink, w waiter) *Group {
	g := &Group{
		cfg: cfg, rank: cfg.Rank, peers: peers, control: control, waiter: w,
		model: cfg.Model, timeout: cfg.Timeout,
		done: make([]bool, len(peers)), asks: make([]ask, len(peers), 2*len(peers)+1),
		hosts: make([]int, len(peers)),
		busy:  make(chan struct{}, 1), programs: map[programKey]programSteps{}, late: lateness{rank: None},
	}
	if g.timeout == 0 {
		g.timeout = 30 * time.Second
	}
	g.site = flightrecorder.Open(fmt.Sprintf("rank %d of a ring of %d", cfg.Rank, cfg.Size), "bytes, in its operation", "rank", "")
	if g.model == nil {
		g.model = DefaultModel()
	}
	g.over(cfg.Transport)
	for i := range g.peers {
		p := &g.peers[i]
		p.stage = make([]byte, 0, vectorAlign+headerSize+stageSize)
		p.segment = segmentFor(&cfg, "")
		if p.link != nil {
			p.segment = segmentFor(&cfg, p.link.kind())
		}
	}
	return g
}

// Measured on four cores of an AMD EPYC: a socket takes less time per byte the
// more is moved at once, until the second-level cache is full. Shared memory
// does not, and what was just received is passed on while it is in the cache.
const (
	socketSegment = 512 << 10
	sharedSegment = 256 << 10
)

// segmentFor returns the segment of links of a kind. A setting has precedence.
func segmentFor(c *Config, kind string) int {
	switch {
	case c.Segment > 0:
		return c.Segment
	case kind == "shm":
		return sharedSegment
	}
	return socketSegment
}

// Rank returns this rank.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.peers) }

// Hosts returns the number of ranks on each host, in order of their first
// ranks.
func (g *Group) Hosts() []int {
	var counts []int
	for _, ranks := range groupByHost(g.hosts) {
		counts = append(counts, len(ranks))
	}
	return counts
}

// Transports counts the links by kind: tcp, unix, shm, stream.
func (g *Group) Transports() map[string]int {
	m := map[string]int{}
	for _, p := range g.peers {
		if p.link != nil {
			m[p.link.kind()]++
		}
	}
	return m
}

// Traffic is the bytes of vectors that this rank has sent and received since
// Dial, over links of all kinds. It does not count headers, nor messages outside
// operations.
type Traffic struct{ Sent, Received int64 }

// Traffic may be called from any goroutine, also during an operation.
func (g *Group) Traffic() Traffic { return Traffic{g.sent.Load(), g.received.Load()} }

// TrafficFar is the part of Traffic with ranks on other hosts, by
// Config.HostID.
func (g *Group) TrafficFar() Traffic { return Traffic{g.sentFar.Load(), g.receivedFar.Load()} }

// far reports whether a rank is on another host.
func (g *Group) far(rank int) bool { return g.hosts == nil || g.hosts[rank] != g.hosts[g.rank] }

// Close ends the connections. It may be called twice and from any goroutine; a
// running operation fails.
func (g *Group) Close() error { return g.close(errClosed) }

// Abort closes the group because of a failure of this rank outside it. The
// others fail with that reason, in the running or next operation.
func (g *Group) Abort(why error) error { return g.close(why) }

func (g *Group) close(why error) error {
	g.closing.CompareAndSwap(nil, &why)
	// A running operation sees closing and fails; then this continues.
	g.busy <- struct{}{}
	defer func() { <-g.busy }()
	if g.closed {
		return nil
	}
	g.closed = true
	g.site.Close()
	if why != errClosed && g.err == nil {
		g.giveUp(why)
	}
	g.tell(notice{kind: noticeBye, fault: Error{Rank: g.rank}})
	for _, p := range g.peers {
		if p.link != nil {
			p.link.close()
		}
	}
	for _, c := range g.control {
		if c != nil {
			c.link.close()
		}
	}
	g.waiter.close()
	return nil
}

// AllReduce combines the vectors v of all ranks and leaves the result in all of
// them, with the same bits everywhere. Mean divides the sum by the number of
// ranks. All vectors must have the same length.
func (g *Group) AllReduce(ctx context.Context, op Op, v []float32) error {
	return AllReduce(ctx, g, op, v)
}

// AllReduce is the method of the same name for all types.
func AllReduce[T Element](ctx context.Context, g *Group, op Op, v []T) error {
	return collective(ctx, g, callAllReduce, op, 0, v)
}

// ReduceScatter combines the vectors v of all ranks and leaves block r of the
// result on rank r. The other blocks are undefined. Block returns the borders
// of blocks.
func ReduceScatter[T Element](ctx context.Context, g *Group, op Op, v []T) error {
	return collective(ctx, g, callReduceScatter, op, 0, v)
}

// AllGather sends block r of rank r's vector to all ranks.
func AllGather[T Element](ctx context.Context, g *Group, v []T) error {
	return collective(ctx, g, callAllGather, Sum, 0, v)
}

// Broadcast sends root's vector to all ranks.
func Broadcast[T Element](ctx context.Context, g *Group, root int, v []T) error {
	return collective(ctx, g, callBroadcast, Sum, root, v)
}

// Reduce combines the vectors of all ranks and leaves the result on root. The
// other vectors are undefined.
func Reduce[T Element](ctx context.Context, g *Group, op Op, root int, v []T) error {
	return collective(ctx, g, callReduce, op, root, v)
}

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context) error {
	return g.run(ctx, operation{call: callBarrier, typ: Int64Type, count: 1}, g.token[:])
}

func collective[T Element](ctx context.Context, g *Group, c call, op Op, root int, v []T) error {
	return g.run(ctx, operation{call: c, op: op, typ: typeOf[T](), root: root, count: len(v)}, bytesOf(v))
}

// run executes one operation on the memory of a vector.
func (g *Group) run(ctx context.Context, o operation, buf []byte) error {
	select {
	case g.busy <- struct{}{}:
	default:
		return fmt.Errorf("allreduce: %v: %w", o.call, errBusy)
	}
	defer func() { <-g.busy }()
	if o.op >= numOps {
		return fmt.Errorf("allreduce: %v: unknown operator %v", o.call, o.op)
	}
	if o.root < 0 || o.root >= len(g.peers) {
		return fmt.Errorf("allreduce: %v: the root %d is not one of the %d ranks", o.call, o.root, len(g.peers))
	}
	if g.closed {
		return fmt.Errorf("allreduce: %v: %w", o.call, net.ErrClosed)
	}
	if g.err != nil {
		return fmt.Errorf("allreduce: %v: %w: %w", o.call, errSpoilt, g.err)
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("allreduce: %v: %w", o.call, err)
	}
	begun := time.Now()
	if err := g.operate(ctx, o, buf); err != nil {
		return err
	}
	if g.cfg.Algorithm == AlgorithmLate && o.call == callAllReduce && len(buf) >= lateSize && len(g.peers) > 2 && g.late.next(time.Since(begun)) {
		return g.compare(ctx)
	}
	return nil
}

// operate executes one operation of a group that is busy with it.
func (g *Group) operate(ctx context.Context, o operation, buf []byte) error {
	g.number++
	o.number, o.generation = g.number, g.cfg.Generation
	o.algorithm = g.choose(o.call, len(buf))
	if o.algorithm == AlgorithmLate {
		// The header has it in place of a root, so ranks that disagree about
		// the late rank find out.
		o.root = g.late.rank
	}
	if o.call == callAllReduce {
		g.cut()
	}
	p := g.program(o)
	g.now = run{operation: o, prog: p.program, steps: p.steps, buf: buf, size: o.typ.Size()}
	err := g.execute(ctx)
	if g.sleeps {
		g.sleeps = false
		g.site.End()
	}
	if err != nil {
		// The caller may change the vector from now on, and no peer may see
		// that.
		if e := g.reclaim(); e != nil {
			err = errors.Join(err, e)
		}
		g.err = err
		return err
	}
	// The group must not keep the caller's vector alive.
	g.now.buf = nil
	return nil
}

// program returns this rank's program for an operation. Programs are cached,
// because a training job repeats the same sizes.
func (g *Group) program(o operation) programSteps {
	if o.call == callDeliver || o.call == callCollect || o.call == callExchange {
		return g.arranged
	}
	key := programKey{o.call, o.algorithm, o.root, o.count, o.typ.Size()}
	if p, ok := g.programs[key]; ok {
		return p
	}
	if len(g.programs) == maxPrograms {
		clear(g.programs)
	}
	s := schedule(o.call, o.algorithm, g.hosts, g.rank, o.root)
	p := programSteps{compile(s, len(g.peers), o.count, key.size), s.Steps}
	g.programs[key] = p
	return p
}

// schedule returns rank's part of an operation.
func schedule(c call, a Algorithm, hosts []int, rank, root int) Schedule {
	n := len(hosts)
	switch c {
	case callReduceScatter:
		return RingReduceScatter(n, rank)
	case callAllGather:
		return RingAllGather(n, rank)
	case callBroadcast:
		if a == AlgorithmLine {
			return LineBroadcast(n, rank, root)
		}
		return TreeBroadcast(n, rank, root)
	case callReduce:
		if a == AlgorithmLine {
			return LineReduce(n, rank, root)
		}
		return TreeReduce(n, rank, root)
	case callBarrier:
		return Dissemination(n, rank)
	}
	if a == AlgorithmLate {
		return Late(n, rank, root)
	}
	return allReduceSchedule(a, hosts, rank)
}

// allReduceSchedule returns rank's part of an all-reduce. Algorithms that
// depend on hosts get them; the others need the number of ranks only.
func allReduceSchedule(a Algorithm, hosts []int, rank int) Schedule {
	n := len(hosts)
	switch a {
	case AlgorithmHierarchy:
		return Hierarchy(hosts, rank)
	case AlgorithmHierarchyDoubling:
		return HierarchyDoubling(hosts, rank)
	case AlgorithmDoubling:
		return RecursiveDoubling(n, rank)
	case AlgorithmHalving:
		return HalvingDoubling(n, rank)
	case AlgorithmTree:
		return BinomialTree(n, rank)
	case AlgorithmDoubleTree:
		return DoubleTree(n, rank)
	}
	return Ring(n, rank)
}

// mostPatience is the longest time that an idle rank polls before it sleeps. It
// must exceed the time to wake up, 10 to 50 µs: otherwise one rank that has
// slept makes its peer sleep, and so on forever. Also, the kernel often puts a
// woken rank on the processor of the rank that woke it, where both wait for
// each other. If processors are free, it pays to stay awake longer.
const mostPatience = 400 * time.Microsecond

// crowdedPatience is that of ranks that share processors, k for each. Each poll
// yields, so a rank has its turn after k-1 others, and what it waits for may
// need as many turns of its own. With 100 µs for every k, ranks mostly slept: 4
// ranks on two processors took 790 µs for 1 MiB over TCP, now 600; 8 ranks 2.1
// ms, now 1.6 (shared memory 1.5 and 1.0). Training steps take as long as
// before.
func crowdedPatience(ranks, processors int) time.Duration {
	k := max(2, (ranks+processors-1)/processors)
	return min(2*time.Millisecond, time.Duration(k*(k-1))*100*time.Microsecond)
}

// processors returns how many this process may use at once.
func processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
