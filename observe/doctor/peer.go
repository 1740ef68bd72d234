package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

const (
	pings    = 32      // exchanges without payload
	probe    = 8 << 20 // bytes of one exchange with payload
	probes   = 8       // of these, at most, in each direction
	enough   = 500 * time.Millisecond
	slowLink = 12.5e6 // bytes per second: 100 Mbit/s
)

// Self is a peer's description of itself in the payload of its Welcome to a tool,
// as JSON. Fields may be missing or unknown.
type Self struct {
	Version  string `json:"version"`
	Protocol int    `json:"protocol"`
	Host     string `json:"host"`
	System   string `json:"system"` // linux/amd64
}

// self is this process.
func self(version string) Self {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return Self{Version: version, Protocol: transport.Protocol, Host: host, System: runtime.GOOS + "/" + runtime.GOARCH}
}

// peer examines the way to another host and back.
func peer(ctx context.Context, c *Config, addr string) []Result {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// A peer with another protocol may wait for the rest of a line until the timeout: it is probed
	// with other protocols meanwhile.
	speaks := sync.OnceValue(func() string { return identify(addr) })
	opening, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	asks := time.AfterFunc(silence, func() {
		if s := speaks(); s != "" {
			giveUp(errors.New("it answers in " + s))
		}
	})
	conn, _, text, err := transport.Open(opening, c.Network, addr, wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1,
		Job: c.Job, Token: c.Token, Version: c.Version, Host: self("").Host,
	}, nil)
	asks.Stop()
	if err != nil {
		var other string
		if mute(err) {
			other = speaks()
		}
		return []Result{judgeOpen(addr, err, other)}
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetReadDeadline(deadline)
	conn.SetWriteDeadline(deadline)
	// A deadline does not see that the user is tired of waiting.
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	results := []Result{judgeVersion(addr, c.Version, text)}
	trips, err := latency(conn)
	if err != nil {
		return append(results, broken(addr, "latency", err))
	}
	results = append(results, judgeLatency(addr, trips), judgeClock(addr, trips))
	up, down, err := bandwidth(conn, shortest(trips).rtt())
	if err != nil {
		return append(results, broken(addr, "bandwidth", err))
	}
	return append(results, judgeBandwidth(addr, up, down))
}

func broken(addr, what string, err error) Result {
	return Result{Check: "peer " + addr + ": " + what, Status: Fail, Detail: err.Error(),
		Fix: "the connection broke or stalled: look at the peer's log, at firewalls that end connections, and at the MTU (ping -M do -s 1472 " + hostOf(addr) + ")"}
}

func hostOf(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return h
}

const (
	silence  = time.Second     // after which a peer that has not answered is asked in another language
	patience = 2 * time.Second // how long it may take to answer in that
)

// mute reports whether a connection was made, and then received nothing but its end.
func mute(err error) bool {
	var e *transport.Error
	var coded interface{ ExitCode() int }
	return errors.As(err, &e) && e.Op != "dial" && !errors.As(err, &coded) && !errors.Is(err, transport.ErrNotSTAR)
}

// identify sends an HTTP request to an address and classifies the answer: "HTTP", "TLS", or empty
// without an answer. Most HTTP servers wait for the end of a line, which a frame of ours may not
// contain.
func identify(addr string) string {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return ""
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "HEAD / HTTP/1.0\r\n\r\n")
	b := make([]byte, 5)
	n, _ := io.ReadFull(conn, b)
	switch {
	case strings.HasPrefix(string(b[:n]), "HTTP"):
		return "HTTP"
	case n >= 2 && (b[0] == 21 || b[0] == 22) && b[1] == 3: // an alert or a handshake (RFC 8446, 5.1)
		return "TLS"
	}
	return ""
}

// judgeOpen judges why a connection failed. speaks is the protocol of a peer that sent nothing to us.
func judgeOpen(addr string, err error, speaks string) Result {
	r := Result{Check: "peer " + addr, Status: Fail, Detail: err.Error()}
	var dns *net.DNSError
	var version *transport.VersionError
	var coded interface{ ExitCode() int }
	var open *transport.Error
	switch {
	case speaks == "HTTP":
		r.Detail = "an HTTP server listens there, not STAR: " + r.Detail
		r.Fix = "give the port of star-ps (--listen, 7070 by default); 7071 is its /metrics"
	case speaks == "TLS":
		r.Detail = "something that wants TLS listens there: " + r.Detail
		r.Fix = "if it is STAR, give the job's certificates (--tls-cert, --tls-key, --tls-ca); else check the port"
	case errors.As(err, &version):
		r.Check += ": protocol"
		r.Fix = "install the same release of STAR on both hosts"
	case errors.As(err, &coded) && coded.ExitCode() == exitcode.Refused:
		r.Fix = "give the job's STAR_TOKEN, or its certificates (--tls-cert, --tls-key, --tls-ca)"
	case errors.As(err, &coded):
		r.Fix = "the peer answers, and says why it refuses: do what it says"
	case errors.As(err, &dns):
		r.Fix = "correct the name, add it to DNS or /etc/hosts, or give the address as a number"
	case errors.Is(err, syscall.ECONNREFUSED):
		r.Fix = "the host answers, but no process listens on this port: start star-ps on it, or: star doctor --serve :" + portOf(addr)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		r.Fix = "there is no way to this host: check its address and the routes (ip route get " + hostOf(addr) + ")"
	case errors.Is(err, transport.ErrNotSTAR):
		r.Fix = "something else listens there: give the port of star-ps (--listen, 7070 by default)"
	case errors.As(err, &open) && open.Op != "dial" && slow(err):
		r.Detail = "accepts connections, and says nothing: " + r.Detail
		r.Fix = "something else listens there, or a firewall or proxy accepts connections and drops what follows, or the process hangs: look at it on that host (ss -ltnp), and at the MTU"
	case slow(err):
		r.Fix = "nothing answers: most often a firewall drops packets to port " + portOf(addr) + ", or the host is down"
	default:
		r.Fix = "check the address, and that star-ps, or star doctor --serve, runs there"
	}
	return r
}

func slow(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// judgeVersion: the protocol agreed already, or there would be no Welcome.
func judgeVersion(addr, ours string, text []byte) Result {
	r := Result{Check: "peer " + addr + ": version", Status: OK}
	var theirs Self
	if err := json.Unmarshal(text, &theirs); err != nil || theirs.Version == "" {
		r.Detail = fmt.Sprintf("protocol %d on both; the peer does not tell its release", transport.Protocol)
		return r
	}
	r.Detail = fmt.Sprintf("%.40q %.40s, protocol %d on both", theirs.Version, theirs.System, transport.Protocol)
	if theirs.Version != ours {
		r.Status = Warn
		r.Detail = fmt.Sprintf("%.40q here, %.40q there; protocol %d on both", ours, theirs.Version, transport.Protocol)
		r.Fix = "install the same release of STAR on both hosts"
	}
	return r
}

// trip is one exchange: sent and received by our clock, and the peer's clock in
// between, all in Unix nanoseconds.
type trip struct{ sent, there, received int64 }

func (t trip) rtt() time.Duration { return time.Duration(t.received - t.sent) }

// offset is how far the peer's clock is ahead, if both ways take equally long.
func (t trip) offset() time.Duration {
	return time.Duration(t.there - t.sent - (t.received-t.sent)/2)
}

func shortest(trips []trip) trip {
	return slices.MinFunc(trips, func(a, b trip) int { return int(a.rtt() - b.rtt()) })
}

// ping makes one exchange with payloads of send and want bytes.
func ping(conn transport.Conn, seq int64, send []byte, want int64, into []byte) (trip, error) {
	begin := time.Now()
	t := trip{sent: begin.UnixNano()}
	if err := transport.Send(conn, wire.Ping{Seq: seq, Sent: t.sent, Want: want}, send); err != nil {
		return t, err
	}
	f, err := conn.Recv()
	if err != nil {
		return t, err
	}
	if f.Kind != wire.KindPong {
		return t, fmt.Errorf("%s: %v where pong must come", conn.Peer(), f.Kind)
	}
	m, err := wire.ParsePong(f.Header)
	if err != nil {
		return t, err
	}
	if m.Seq != seq || f.Size != want {
		return t, fmt.Errorf("%s: pong %d with %d bytes, want pong %d with %d", conn.Peer(), m.Seq, f.Size, seq, want)
	}
	if want > 0 {
		err = conn.ReadPayload(into[:want])
	} else {
		err = conn.Discard()
	}
	// Since uses the monotonic clock: a step of the wall clock in between does no harm.
	t.there, t.received = m.Now, t.sent+int64(time.Since(begin))
	return t, err
}

func latency(conn transport.Conn) ([]trip, error) {
	trips := make([]trip, 0, pings)
	for i := range pings {
		t, err := ping(conn, int64(i), nil, 0, nil)
		if err != nil {
			return nil, err
		}
		trips = append(trips, t)
	}
	return trips, nil
}

// bandwidth is the best of some exchanges in each direction, in bytes per second:
// the first ones only open TCP's window.
func bandwidth(conn transport.Conn, rtt time.Duration) (up, down float64, err error) {
	buf := make([]byte, probe)
	best := func(send []byte, want int64) (rate float64, err error) {
		begin := time.Now()
		for i := range probes {
			t, err := ping(conn, int64(pings+i), send, want, buf)
			if err != nil {
				return 0, err
			}
			if took := t.rtt() - rtt; took > 0 {
				rate = max(rate, probe/took.Seconds())
			}
			if time.Since(begin) > enough && i > 0 {
				break
			}
		}
		return rate, nil
	}
	if up, err = best(buf, 0); err == nil {
		down, err = best(nil, probe)
	}
	return up, down, err
}

func judgeLatency(addr string, trips []trip) Result {
	rtts := make([]time.Duration, len(trips))
	for i, t := range trips {
		rtts[i] = t.rtt()
	}
	slices.Sort(rtts)
	least, median, most := rtts[0], rtts[len(rtts)/2], rtts[len(rtts)-1]
	r := Result{Check: "peer " + addr + ": latency", Status: OK,
		Detail: fmt.Sprintf("round trip %v (%v to %v)", round(median), round(least), round(most)),
		Values: map[string]float64{"rtt_s": median.Seconds(), "rtt_min_s": least.Seconds(), "rtt_max_s": most.Seconds()}}
	// Each iteration of a worker has two round trips that nothing hides.
	if median > 10*time.Millisecond {
		r.Status = Warn
		r.Detail += ": every iteration waits for two of these"
		r.Fix = "put the members nearer together, or use larger batches"
	}
	return r
}

func judgeClock(addr string, trips []trip) Result {
	t := shortest(trips)
	offset, doubt := t.offset(), t.rtt()/2
	way := "ahead"
	if offset < 0 {
		way = "behind"
	}
	r := Result{Check: "peer " + addr + ": clock", Status: OK,
		Detail: fmt.Sprintf("%v %s, give or take %v", round(offset.Abs()), way, round(doubt)),
		Values: map[string]float64{"offset_s": offset.Seconds(), "error_s": doubt.Seconds()}}
	switch far := offset.Abs() - doubt; {
	case far > 5*time.Minute:
		r.Status = Fail
		r.Detail += ": certificates and tokens of other systems fail with that, and logs cannot be compared"
	case far > 100*time.Millisecond:
		r.Status = Warn
		r.Detail += ": logs of the two hosts cannot be compared (training itself does not use the wall clock)"
	default:
		return r
	}
	r.Fix = "synchronise both hosts: systemctl enable --now chrony (or systemd-timesyncd)"
	return r
}

func judgeBandwidth(addr string, up, down float64) Result {
	r := Result{Check: "peer " + addr + ": bandwidth", Status: OK,
		Detail: fmt.Sprintf("%s/s there, %s/s back", size(up), size(down)),
		Values: map[string]float64{"up_Bps": up, "down_Bps": down}}
	low, high := math.Min(up, down), math.Max(up, down)
	switch {
	case low < slowLink:
		r.Status = Warn
		r.Detail += ": 100 MB of parameters take " + round(time.Duration(1e8/max(low, 1)*1e9)).String()
		r.Fix = "check the link's speed (ethtool) and other traffic; fewer, larger iterations need less of it"
	case high > 4*low:
		r.Status = Warn
		r.Detail += ": one direction is much slower"
		r.Fix = "look for a limit (tc qdisc show), a duplex mismatch (ethtool) or other traffic in that direction"
	}
	return r
}

// round keeps three digits.
func round(d time.Duration) time.Duration {
	for unit := 100 * time.Second; unit > time.Nanosecond; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit)
		}
	}
	return d
}
