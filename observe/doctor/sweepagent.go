package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"star/cluster/resource/gpu"
	"star/internal/durable"
	"star/transport"
	"star/transport/wire"
)

// order is what the head of a sweep asks of a host.
type order struct {
	Do     string        `json:"do"` // hello, clock, health, measure, link, verdict, late
	Name   string        `json:"name,omitempty"`
	Dir    string        `json:"dir,omitempty"`
	State  string        `json:"state,omitempty"`
	Token  string        `json:"token,omitempty"`  // hello: that of links, when the host has none
	Links  bool          `json:"links,omitempty"`  // hello: other hosts measure the way to this one
	Listen string        `json:"listen,omitempty"` // hello: the address at which they reach it, without a port; empty: all
	What   string        `json:"what,omitempty"`   // measure: compute, memory, write, read, files
	Window time.Duration `json:"window,omitempty"`
	Peer   string        `json:"peer,omitempty"` // link: host:port

	Report *SweepReport       `json:"report,omitempty"` // verdict
	Keep   map[string]float64 `json:"keep,omitempty"`   // verdict: the numbers to remember
}

// reply is the answer to an order.
type reply struct {
	Error  string       `json:"error,omitempty"`
	Now    int64        `json:"now"` // the host's clock, Unix nanoseconds
	About  *about       `json:"about,omitempty"`
	Health *healthReply `json:"health,omitempty"`
	Values tried        `json:"values,omitempty"`
}

// about describes a host.
type about struct {
	Host      string             `json:"host"`
	Kernel    string             `json:"kernel"` // hosts with the same one are measured in turns
	Place     string             `json:"place"`  // distinguishes them
	System    string             `json:"system"`
	Processor string             `json:"processor"`
	Cores     int                `json:"cores"`
	Quota     float64            `json:"quota"` // cores; 0: none
	Port      string             `json:"port"`  // for links
	Version   string             `json:"version"`
	LastTime  time.Time          `json:"last_time"`
	Last      map[string]float64 `json:"last,omitempty"`
	State     string             `json:"state,omitempty"` // the file of Last
	Notes     []string           `json:"notes,omitempty"`
}

type healthReply struct {
	Findings []Finding    `json:"findings,omitempty"`
	GPUs     []gpu.Health `json:"gpus,omitempty"`
	Notes    []string     `json:"notes,omitempty"`
}

// SweepAgent is the part of a sweep on each host: it measures what the head orders.
type SweepAgent struct {
	Dir     string // for the disk; empty: the head's choice, or the working folder
	State   string // folder for the file of the last time; empty: in the user's cache folder; off: none
	Version string
	Network *transport.TCP                                 // for links
	GPUs    func(context.Context) ([]gpu.Health, error)    // nil: they are not examined
	Verdict func(host string, r *SweepReport, failed bool) // called at the end; may be nil

	name   string
	state  string
	about  *about
	disk   *disk
	copies buffers
	ended  bool
	late   bool // the sweep had begun
	stop   context.CancelFunc
}

// Close removes what the agent has made.
func (a *SweepAgent) Close() error {
	if a.stop != nil {
		a.stop()
	}
	a.copies = nil
	err := a.disk.remove()
	a.disk = nil
	return err
}

// off is the value of settings that switches something off.
const off = "off"

// do carries out an order.
func (a *SweepAgent) do(ctx context.Context, o order) (r reply) {
	var err error
	switch o.Do {
	case "hello":
		r.About, err = a.hello(ctx, o)
	case "clock": // every reply has it
	case "health":
		r.Health = a.health(ctx)
	case "measure":
		r.Values, err = a.measure(o.What, o.Window)
	case "link":
		r.Values, err = a.link(ctx, o.Peer, o.Window)
	case "verdict":
		err = a.verdict(o)
	case "late":
		a.ended, a.late = true, true
	default:
		err = fmt.Errorf("unknown order %q: use one version of star on all hosts", o.Do)
	}
	if err != nil {
		r.Error = err.Error()
	}
	r.Now = time.Now().UnixNano()
	return r
}

func (a *SweepAgent) hello(ctx context.Context, o order) (*about, error) {
	host := self("").Host
	a.name = o.Name
	if a.name == "" {
		a.name = host
	}
	b := &about{Host: host, Kernel: kernelName(), Place: placeName(), System: runtime.GOOS + "/" + runtime.GOARCH, Processor: processor(), Cores: len(allowed()), Version: a.Version}
	if q := quota("/"); q < 1e9 {
		b.Quota = q
	}
	if a.Dir == "" {
		a.Dir = o.Dir
	}
	if a.Dir == "" {
		a.Dir = "."
	}
	note := func(format string, args ...any) { b.Notes = append(b.Notes, fmt.Sprintf(format, args...)) }
	var err error
	if a.disk, err = newDisk(a.Dir); err != nil {
		note("the disk was not measured: %v", err)
	} else if !a.disk.direct {
		note("the file system of %s has no direct input and output: its cache may be measured, too", a.Dir)
	}
	if err := a.recall(o, b); err != nil {
		note("no comparison with the last time: %v", err)
	}
	if a.Network == nil {
		a.Network = transport.NewTCP(transport.Config{Token: o.Token})
	}
	if a.about = b; !o.Links {
		return b, nil
	}
	a.Network.Log = slog.New(slog.DiscardHandler)
	l, err := a.Network.Listen(net.JoinHostPort(o.Listen, "0"))
	if err != nil {
		note("links were not measured: %v", err)
	} else {
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		a.stop = stop
		go Serve(serving, l, a.Network.Config, a.Version) // it ends with stop
		b.Port = portOf(l.Addr())
	}
	return b, nil
}

// recall reads the file of the last time.
func (a *SweepAgent) recall(o order, b *about) error {
	dir := a.State
	if dir == "" {
		dir = o.State
	}
	switch dir {
	case off:
		return nil
	case "":
		cache, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("%w; name a folder with --state", err)
		}
		dir = filepath.Join(cache, "star")
	}
	path := filepath.Join(dir, "sweep-"+strings.Map(plain, a.name)+".json")
	a.state, b.State = path, path
	l, err := readLast(path)
	b.Last, b.LastTime = l.Values, l.Time
	return err
}

// plain replaces what a file name should not have.
func plain(r rune) rune {
	if r == '/' || r == '\\' || r < ' ' {
		return '_'
	}
	return r
}

func (a *SweepAgent) health(ctx context.Context) *healthReply {
	h := &healthReply{}
	records, now, err := kernelLog()
	if err != nil {
		h.Notes = append(h.Notes, err.Error())
	}
	h.Findings = kernelFaults(records, now)
	if share, _ := clockLimit("/"); share > 0 && share < 0.95 {
		h.Findings = append(h.Findings, Finding{Check: "frequency", Status: Warn, Value: share, Unit: "share of the largest frequency",
			Detail: fmt.Sprintf("a processor is limited to %.0f %% of its largest frequency", 100*share),
			Fix:    "look at power and thermal limits (cpupower frequency-info, ipmitool dcmi power reading)"})
	}
	if a.GPUs != nil {
		if h.GPUs, err = a.GPUs(ctx); err != nil {
			h.Notes = append(h.Notes, "the GPUs could not be examined: "+err.Error())
		}
	}
	return h
}

func (a *SweepAgent) measure(what string, window time.Duration) (tried, error) {
	window = min(window, maxWindow)
	switch what {
	case "compute":
		return computes(window), nil
	case "memory":
		return memories(window, &a.copies), nil
	}
	if a.disk == nil {
		return nil, errors.New("the disk cannot be measured")
	}
	switch what {
	case "write":
		return a.disk.writes(window)
	case "read":
		return a.disk.reads(window)
	case "files":
		return a.disk.smallReads(window)
	}
	return nil, fmt.Errorf("unknown measurement %q: use one version of star on all hosts", what)
}

// maxWindow bounds what a head may order.
const maxWindow = 10 * time.Second

// linkPings is how many exchanges without payload a link gets; the shortest one counts.
const linkPings = 16

// link measures the way to a peer and back.
func (a *SweepAgent) link(ctx context.Context, addr string, window time.Duration) (tried, error) {
	window = min(window, maxWindow)
	ctx, cancel := context.WithTimeout(ctx, window+linkTimeout)
	defer cancel()
	conn, _, _, err := transport.Open(ctx, a.Network, addr, wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1, Token: a.Network.Token, Version: a.Version, Host: a.name}, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetReadDeadline(deadline)
	conn.SetWriteDeadline(deadline)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var trips []trip
	for i := range linkPings {
		t, err := ping(conn, int64(i), nil, 0, nil)
		if err != nil {
			return nil, err
		}
		trips = append(trips, t)
	}
	rtt := shortest(trips).rtt()
	out, err := rate(conn, rtt, window/2, true)
	if err != nil {
		return nil, err
	}
	in, err := rate(conn, rtt, window/2, false)
	if err != nil {
		return nil, err
	}
	return tried{"out_Bps": out, "in_Bps": in, "rtt_s": rtt.Seconds()}, nil
}

// linkTimeout is what a link may take beyond its window: 64 KiB in each direction, at 50 kB/s.
const linkTimeout = 3 * time.Second

// rate measures a direction in a window, with exchanges that double from 64 KiB on as long as they are short: a
// slow link gets few bytes, and a fast one long exchanges. The best of the longest ones counts: shorter ones may
// pass a limiter that allows bursts, and what slows one of them down for a moment is no property of the link.
func rate(conn transport.Conn, rtt, window time.Duration, out bool) (float64, error) {
	buf := make([]byte, probe)
	var rates []float64
	n := 64 << 10
	for begin, seq := time.Now(), int64(linkPings); len(rates) == 0 || time.Since(begin) < window; seq++ {
		send, want := buf[:n], int64(0)
		if !out {
			send, want = nil, int64(n)
		}
		t, err := ping(conn, seq, send, want, buf)
		if err != nil {
			return 0, err
		}
		rates = append(rates, float64(n)/max(t.rtt()-rtt, time.Microsecond).Seconds())
		if n < probe && t.rtt() < window/8 {
			n, rates = 2*n, rates[:0]
		}
	}
	return slices.Max(rates), nil
}

// verdict takes the result, and remembers the numbers of a clean sweep.
func (a *SweepAgent) verdict(o order) error {
	a.ended = true
	if a.Verdict != nil {
		a.Verdict(o.Name, o.Report, o.Report != nil && o.Report.Failed(o.Name))
	}
	if a.state == "" || len(o.Keep) == 0 {
		return nil
	}
	b, err := json.Marshal(last{time.Now().UTC().Truncate(time.Second), o.Keep})
	if err == nil {
		if err = os.MkdirAll(filepath.Dir(a.state), 0o777); err == nil {
			err = durable.WriteFile(a.state, append(b, '\n'), 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot keep the numbers for the next time: %w; name another folder with --state", err)
	}
	return nil
}

// SweepOver obeys a head: it reads orders on in, a JSON object per line, and answers on out, until in ends. star
// doctor --sweep --hosts starts it on other hosts.
func SweepOver(ctx context.Context, in io.Reader, out io.Writer, a *SweepAgent) error {
	defer a.Close()
	lines, e := bufio.NewScanner(in), json.NewEncoder(out)
	lines.Buffer(nil, maxOrder)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("cannot read an order: %w; star doctor --sweep --hosts starts this command", err)
		}
		if err := e.Encode(a.do(ctx, o)); err != nil {
			return fmt.Errorf("the head of the sweep is gone: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !a.ended {
		return errors.New("the head of the sweep is gone")
	}
	return nil
}

// maxOrder bounds an order and a reply, in bytes.
const maxOrder = 16 << 20

// sweepWait is how long the hosts of a sweep may take to come together, unless a setting says otherwise.
const sweepWait = time.Minute

// ErrNoHead: no head of a sweep answers at an address.
var ErrNoHead = errors.New("no head of a sweep answers there")

// sweeps marks the Welcome of a head, so that a star-ps is not taken for one.
const sweeps = "star sweep 1"

// SweepTo takes part in the sweep with its head at addr, as rank of several processes (−1: unknown). It waits for
// the head for most (0: one minute). No head until then is ErrNoHead, as is something else of STAR that listens
// there.
func SweepTo(ctx context.Context, addr string, rank int, most time.Duration, a *SweepAgent) error {
	defer a.Close()
	if most == 0 {
		most = sweepWait
	}
	coming, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var conn transport.Conn
	var text []byte
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		var err error
		conn, _, text, err = transport.Open(coming, a.Network, addr, wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: rank, Token: a.Network.Token, Version: a.Version, Host: self("").Host}, nil)
		if err == nil {
			break
		}
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			return err // it refuses
		}
		select {
		case <-coming.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %s: %w", ErrNoHead, addr, err)
		case <-time.After(pause):
		}
	}
	defer conn.Close()
	if string(text) != sweeps {
		return fmt.Errorf("%w: %s is another process of STAR", ErrNoHead, addr)
	}
	for !a.ended {
		conn.SetReadDeadline(time.Now().Add(silentHead))
		f, err := conn.Recv()
		if err != nil {
			return fmt.Errorf("the head of the sweep at %s is gone: %w", addr, err)
		}
		m, err := wire.ParsePing(f.Header)
		if f.Kind != wire.KindPing || err != nil {
			return fmt.Errorf("%s sends %v where an order must come: use one version of star on all hosts", addr, f.Kind)
		}
		b, err := transport.ReadAll(conn, f)
		if err != nil {
			return err
		}
		var o order
		if err := json.Unmarshal(b, &o); err != nil {
			return fmt.Errorf("cannot read an order of %s: %w; use one version of star on all hosts", addr, err)
		}
		o.Dir, o.State = "", "" // this process has its own: a head that is not authenticated names no files
		answer, err := json.Marshal(a.do(ctx, o))
		if err != nil {
			return err
		}
		conn.SetWriteDeadline(time.Now().Add(answerTime))
		if err := transport.Send(conn, wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}, answer); err != nil {
			return fmt.Errorf("the head of the sweep at %s is gone: %w", addr, err)
		}
	}
	if a.late {
		return fmt.Errorf("%w: the sweep at %s had begun already", ErrNoHead, addr)
	}
	return nil
}

// silentHead is how long a head may have no order for a host: it waits for others, or measures them.
const silentHead = 3 * time.Minute

// answerTime is how long a host may take to answer, beyond the window of a measurement.
const answerTime = 8 * time.Second
