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

// Config says who this rank is and how it reaches the others. Rank, Size and
// Rendezvous (or Listener) must be set; zero works for the rest. Fields marked
// (all) must be the same on all ranks.
type Config struct {
	Rank int
	Size int // number of ranks (all)

	// Rendezvous is host:port of rank 0, which listens there until all ranks have
	// come. The others try until the context of Dial ends.
	Rendezvous string

	// Listener, on rank 0, is used in place of listening at Rendezvous. Dial closes it.
	Listener net.Listener

	// Dial, if not nil, makes connections to other ranks in the place of a net.Dialer: what is to stand between them.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Host is the address at which this rank listens, and the others reach it. Empty means the one
	// from which it reaches rank 0. A rank that listens on every interface (0.0.0.0, ::) is reached
	// there, too, or where that is loopback at rank 0's host, as each of the others knows it.
	Host string

	Job        string // name; ranks of other jobs are refused (all)
	Token      string // shared secret; it travels in the clear unless TLS is on (all)
	Generation uint32 // of the group: ranks of another one are refused (all)

	// TLS, if not nil, protects everything (all). It goes without raw sockets and
	// shared memory, so it is slower.
	TLS *tls.Config

	// Insecure allows to listen beyond loopback with neither TLS nor a Token.
	Insecure bool

	// Transport is tcp, unix (ranks on one host) or shm (the same, through shared
	// memory). Empty means for each pair the fastest that works. (all)
	Transport string

	// Congestion is TCP's congestion control, see transport.Config. SendBuffer and
	// ReceiveBuffer are bytes of sockets' buffers; zero means 1 MiB, negative the
	// kernel's own choice. What is left open is as Model.TCP says, if it does.
	Congestion                string
	SendBuffer, ReceiveBuffer int

	// HostID says which ranks share a host: those with the same one. Empty means what the
	// kernel says: the same boot and network namespace. It decides how AllReduce travels
	// (AlgorithmHierarchy) and between whom shared memory is tried.
	HostID string

	// Checksum says over which TCP connections bytes travel with a CRC-32, so that what was damaged on the way is found before it is used:
	// ChecksumFar, ChecksumAll or ChecksumOff. With TLS it has no effect: that finds all damage. (all)
	Checksum string

	// ZeroCopy says which vectors other ranks take from this one's memory, without a copy on this side: over TCP where the kernel can (Linux 5.7), and nothing stands between: no TLS, no checksum, not more than one
	// connection; through shared memory where processes may read each other. ZeroCopyLong, ZeroCopyAll or ZeroCopyOff. An operation then ends when the other ranks have received what this one sends. What
	// is written to a vector after an operation that has failed stays unseen by them if it is ordinary memory, as make returns it.
	ZeroCopy string

	// Connections is the TCP connections between two ranks. Zero means 1: more help only where a
	// network gives each connection a part of what it carries. (all)
	Connections int

	// Algorithm of AllReduce. Zero means by Model and, where several hosts have several ranks, by
	// where ranks are. (all)
	Algorithm Algorithm

	// Segment is the bytes after which a rank passes on what it has received
	// of a block. Zero means by Model, and what that has not measured 512 KiB for
	// sockets and 256 KiB for shared memory.
	Segment int

	// Model says which algorithm is the fastest. Rank 0's counts, the others get
	// it from there. Nil means DefaultModel. Tune measures one.
	Model *Model

	// Poll waits by asking again and again instead of sleeping: it saves
	// the time of waking up and costs a whole processor. Dial refuses it where
	// a host has more ranks than processors.
	Poll bool

	// Timeout is how long no byte may move in an operation. Zero means 30 s.
	Timeout time.Duration

	// DialTimeout bounds Dial if its context has no end. Zero means 1 minute.
	DialTimeout time.Duration

	// ReachTimeout is how long rank 0 may be out of reach before Dial gives up, for where it is known to listen
	// already. Zero: no longer than DialTimeout.
	ReachTimeout time.Duration

	// Log receives what has been chosen. Nil means slog.Default().
	Log *slog.Logger
}

func (c *Config) log() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	return slog.Default()
}

// Group is this rank's end of the connections between all ranks. It is for one
// goroutine at a time, but for Close.
type Group struct {
	cfg      Config
	rank     int
	peers    []peer         // by rank; no link to ourselves
	control  []*controlLink // rank 0: by rank; others: the one to rank 0
	waiter   waiter
	model    *Model
	prices   *Model // the part of model that is for this group
	kind     string // of all links, as all ranks know it; tcp where they differ
	segment  int    // of the operation; 0: each link's own
	timeout  time.Duration
	hosts    []int   // of ranks: numbers
	placed   *placed // nil unless several hosts have several ranks
	patience patience
	crowded  bool // more ranks than processors

	closing atomic.Bool
	busy    chan struct{} // full while an operation is running
	err     error         // why the group is useless
	closed  bool

	site   *flightrecorder.Site
	sleeps bool // in the operation that runs

	number   uint64 // of the last operation
	now      run
	moved    time.Time // when bytes moved last, or a little before
	breath   time.Time // when the goroutine went through Go's scheduler last, at the latest
	done     []bool    // by lane
	asks     []ask     // by lane
	programs map[programKey]programSteps
	arranged programSteps   // of the delivery or collection that begins
	chosen   sizedAlgorithm // for the size of the last AllReduce
	token    [8]byte        // what barriers send

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

// maxPrograms bounds the programs that are kept: a training job has a few sizes.
const maxPrograms = 256

// newGroup makes a group of connected links.
func newGroup(cfg Config, peers []peer, control []*controlLink, w waiter) *Group {
	g := &Group{
		cfg: cfg, rank: cfg.Rank, peers: peers, control: control, waiter: w,
		model: cfg.Model, timeout: cfg.Timeout,
		done: make([]bool, len(peers)), asks: make([]ask, len(peers), 2*len(peers)+1),
		hosts: make([]int, len(peers)),
		busy:  make(chan struct{}, 1), programs: map[programKey]programSteps{},
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

// Measured on four cores of an AMD EPYC: a socket costs less for each byte the more is
// moved at once, until the second-level cache is full. Memory has no such price, and
// what has just been received is passed on while it is warm.
const (
	socketSegment = 512 << 10
	sharedSegment = 256 << 10
)

func segmentFor(c *Config, kind string) int {
	switch {
	case c.Segment > 0:
		return c.Segment
	case kind == "shm":
		return sharedSegment
	}
	return socketSegment
}

// Rank is this rank.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return len(g.peers) }

// Hosts is the number of ranks on each host, in order of their first ranks.
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

// Traffic is bytes of vectors that this rank has sent and received since Dial, over links
// of all kinds. Headers are not counted, and neither is what is outside operations.
type Traffic struct{ Sent, Received int64 }

// Traffic may be called from any goroutine, also during an operation.
func (g *Group) Traffic() Traffic { return Traffic{g.sent.Load(), g.received.Load()} }

// TrafficFar is the part of Traffic with ranks on other hosts, as far as hosts are known (Config.HostID).
func (g *Group) TrafficFar() Traffic { return Traffic{g.sentFar.Load(), g.receivedFar.Load()} }

// far says whether a rank is on another host.
func (g *Group) far(rank int) bool { return g.hosts == nil || g.hosts[rank] != g.hosts[g.rank] }

// Close ends the connections. It may be called twice and from any goroutine; an
// operation that is running fails.
func (g *Group) Close() error {
	g.closing.Store(true)
	g.busy <- struct{}{}
	defer func() { <-g.busy }()
	if g.closed {
		return nil
	}
	g.closed = true
	g.site.Close()
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
// them, the same bits everywhere. Mean divides the sum by the number of ranks. All
// vectors must have the same length.
func (g *Group) AllReduce(ctx context.Context, op Op, v []float32) error {
	return AllReduce(ctx, g, op, v)
}

// AllReduce is the method of the same name for all types.
func AllReduce[T Element](ctx context.Context, g *Group, op Op, v []T) error {
	return collective(ctx, g, callAllReduce, op, 0, v)
}

// ReduceScatter combines the vectors v of all ranks and leaves block r of
// the result on rank r. The other blocks are spoilt. Block says where blocks are.
func ReduceScatter[T Element](ctx context.Context, g *Group, op Op, v []T) error {
	return collective(ctx, g, callReduceScatter, op, 0, v)
}

// AllGather brings block r of rank r's vector to all ranks.
func AllGather[T Element](ctx context.Context, g *Group, v []T) error {
	return collective(ctx, g, callAllGather, Sum, 0, v)
}

// Broadcast brings root's vector to all ranks.
func Broadcast[T Element](ctx context.Context, g *Group, root int, v []T) error {
	return collective(ctx, g, callBroadcast, Sum, root, v)
}

// Reduce combines the vectors of all ranks and leaves the result on root. The
// other vectors are spoilt.
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

// run runs one operation on the memory of a vector.
func (g *Group) run(ctx context.Context, o operation, buf []byte) error {
	select {
	case g.busy <- struct{}{}:
	default:
		return fmt.Errorf("allreduce: %v: %w", o.call, errBusy)
	}
	defer func() { <-g.busy }()
	if o.op >= numOps {
		return fmt.Errorf("allreduce: %v: there is no %v", o.call, o.op)
	}
	if o.root < 0 || o.root >= len(g.peers) {
		return fmt.Errorf("allreduce: %v: no rank %d to be the root: there are %d", o.call, o.root, len(g.peers))
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
	g.number++
	o.number, o.generation = g.number, g.cfg.Generation
	o.algorithm = g.choose(o.call, len(buf))
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
		if e := g.reclaim(); e != nil {
			err = errors.Join(err, e)
		}
		g.err = err
		return err
	}
	g.now.buf = nil
	return nil
}

func (g *Group) program(o operation) programSteps {
	if o.call == callDeliver || o.call == callCollect {
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

// schedule is rank's part of an operation.
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
	return allReduceSchedule(a, hosts, rank)
}

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

// mostPatience is the longest time that an idle rank looks again before it sleeps. It must
// be longer than waking up takes, which is 10 to 50 µs: otherwise one rank that
// has slept makes its peer go to sleep, and so on for ever. And who wakes is often put on the processor
// of the rank that has woken it, where both then wait for each other: it pays to be
// awake a while longer, if processors are free.
const mostPatience = 400 * time.Microsecond

// crowdedPatience is that of a rank which shares its processor, where so many ranks share so many processors: k for each. Each look lets others run, so a rank has its turn after k-1 others, and what it waits for
// may need as many turns of its own. With 100 µs, whatever k was, ranks mostly slept: 4 ranks on two processors took 790 µs for 1 MiB over TCP, now 600; 8 ranks 2.1 ms, now 1.6 (shared memory 1.5 and 1.0).
// Steps of training take as long as before.
func crowdedPatience(ranks, processors int) time.Duration {
	k := max(2, (ranks+processors-1)/processors)
	return min(2*time.Millisecond, time.Duration(k*(k-1))*100*time.Microsecond)
}

// crowd says whether so many ranks must share the processors of a host: who waits
// then lets others run each time that it has looked in vain.
func crowd(ranksHere int) bool {
	return ranksHere > processors()
}

// processors is how many this process may use at once.
func processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
