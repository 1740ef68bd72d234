package transport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

var errCrowded = errors.New("it had not said hello, and others came: too many connections say nothing (Config.MaxPending)")

// pendingGrace is how long a connection may stand among the pending before another one may take its
// place. Ends of a healthy handshake come much sooner; who is thrown out comes again.
const pendingGrace = 100 * time.Millisecond

// pendingConns is where connections are until they have said Hello. It has room for most of
// them; a further one takes the place of another.
type pendingConns struct {
	most int
	room chan struct{} // a token when somebody has left

	mu      sync.Mutex
	conns   []*pendingConn // in order of arrival
	perHost map[string]int
}

// pendingConn is a connection among the pending. Its fields are guarded by pendingConns.mu.
type pendingConn struct {
	conn   io.Closer
	host   string
	since  time.Time
	thrown bool
}

// newPendingConns has room for so many connections that have not said Hello.
func newPendingConns(most int) *pendingConns {
	return &pendingConns{most: most, room: make(chan struct{}, 1), perHost: map[string]int{}}
}

// enter takes in a connection, and throws another one out if there is no room: the oldest
// of the host that has the most, when it has had pendingGrace. So a host that floods us closes its own
// connections first, and where all come from one, those that have had the most time.
func (h *pendingConns) enter(ctx context.Context, c io.Closer, addr string) *pendingConn {
	g := &pendingConn{conn: c, host: hostOf(addr)}
	for {
		h.mu.Lock()
		left := h.makeRoom(time.Now())
		if left <= 0 {
			g.since = time.Now()
			h.conns = append(h.conns, g)
			h.perHost[g.host]++
			h.mu.Unlock()
			return g
		}
		h.mu.Unlock()
		nap := time.NewTimer(left)
		select {
		case <-h.room:
		case <-nap.C:
		case <-ctx.Done(): // it is refused
			left = 0
		}
		nap.Stop()
		if left == 0 {
			g.thrown = true
			c.Close()
			return g
		}
	}
}

// makeRoom throws somebody out if no more connections may be pending, or says how long to wait
// until that may be. The lock is held.
func (h *pendingConns) makeRoom(now time.Time) (wait time.Duration) {
	if len(h.conns) < h.most {
		return 0
	}
	worst := h.conns[0]
	for _, o := range h.conns {
		if h.perHost[o.host] > h.perHost[worst.host] {
			worst = o
		}
	}
	if wait = pendingGrace - now.Sub(worst.since); wait > 0 {
		return wait
	}
	worst.thrown = true
	worst.conn.Close()
	h.remove(worst)
	return 0
}

// leave takes a connection out, and says whether it was thrown out.
func (h *pendingConns) leave(g *pendingConn) (thrown bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !g.thrown {
		h.remove(g)
		select {
		case h.room <- struct{}{}:
		default:
		}
	}
	return g.thrown
}

// remove forgets g, which is there. The lock is held.
func (h *pendingConns) remove(g *pendingConn) {
	i := slices.Index(h.conns, g)
	h.conns = slices.Delete(h.conns, i, i+1)
	if h.perHost[g.host]--; h.perHost[g.host] == 0 {
		delete(h.perHost, g.host)
	}
}

// hostOf is the address without the port; all of it where there is none.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// Limit is l with room for that many connections at once. A further one takes the place of another,
// by the rule of those that have not said Hello: the oldest of the host that has the most.
func Limit(l net.Listener, most int) net.Listener {
	ctx, stop := context.WithCancel(context.Background())
	return &limited{l, newPendingConns(most), ctx, stop}
}

type limited struct {
	net.Listener
	pending *pendingConns
	ctx     context.Context
	stop    context.CancelFunc
}

// Accept is the next connection for which there is room, which is made at the cost of another one.
func (l *limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := l.pending.enter(l.ctx, c, c.RemoteAddr().String())
	return &visitor{Conn: c, left: sync.OnceFunc(func() { l.pending.leave(g) })}, nil
}

func (l *limited) Close() error {
	l.stop()
	return l.Listener.Close()
}

// visitor is a connection of a Limit.
type visitor struct {
	net.Conn
	left func()
}

func (v *visitor) Close() error {
	v.left()
	return v.Conn.Close()
}

// Admit has a connection of a Limit that is one of ours count no more, so that no stranger takes its place.
func Admit(c net.Conn) {
	if v, ok := c.(*visitor); ok {
		v.left()
	}
}

// Portion is a part of the files and connections that this process may have open, at most so many:
// what is taken by those who are nobody yet must not be missing for members of a job and for
// checkpoints.
func Portion(part, most int) int {
	if n := descriptors(); n > 0 {
		most = min(most, max(n/part, 8))
	}
	return most
}

// limitedLog logs refused connections, but no more than a few in a second: who floods us
// shall not fill the disk.
type limitedLog struct {
	log    *slog.Logger
	budget Budget
}

// say logs a refused connection if the budget allows it; else it counts for the next line.
func (g *limitedLog) say(from string, err error) {
	switch may, silent := g.budget.Spend(); {
	case may && silent > 0:
		g.log.Warn("refused a connection", "peer", from, "err", err, "others", silent)
	case may:
		g.log.Warn("refused a connection", "peer", from, "err", err)
	}
}

// Budget is of lines about strangers. The zero value is a full one.
type Budget struct {
	mu     sync.Mutex
	left   float64
	last   time.Time
	silent int // since the last line
}

// At most logBurst lines at once, and after that one each second.
const logBurst = 20

// Spend says whether a line may be written now, of logBurst that are refilled by one each second, and how many were
// not since the last one.
func (b *Budget) Spend() (may bool, silent int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.last.IsZero() {
		b.left = logBurst
	} else {
		b.left = min(b.left+now.Sub(b.last).Seconds(), logBurst)
	}
	b.last = now
	if b.left < 1 {
		b.silent++
		return false, 0
	}
	b.left--
	silent, b.silent = b.silent, 0
	return true, silent
}
