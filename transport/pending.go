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

var errCrowded = errors.New("no hello had come, and newer connections replaced it: too many without a hello (Config.MaxPending)")

// pendingGrace is how long a connection may be pending before another one may replace it. A healthy
// handshake ends much sooner; a process that is disconnected retries.
const pendingGrace = 100 * time.Millisecond

// pendingConns holds connections until they have sent a Hello. It has room for most of them; a
// further one replaces another.
type pendingConns struct {
	most int
	// room has a token when a connection has left.
	room chan struct{}

	mu      sync.Mutex
	conns   []*pendingConn // in order of arrival
	perHost map[string]int
}

// pendingConn is a pending connection. Its fields are guarded by pendingConns.mu.
type pendingConn struct {
	conn   io.Closer
	host   string
	since  time.Time
	thrown bool
}

// newPendingConns has room for a number of connections without a Hello.
func newPendingConns(most int) *pendingConns {
	return &pendingConns{most: most, room: make(chan struct{}, 1), perHost: map[string]int{}}
}

// enter adds a connection. If there is no room it evicts another one: the oldest of the host that
// has the most, after pendingGrace. So a flooding host closes its own connections first; if all are
// from one host, the oldest are closed.
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

// makeRoom evicts a connection if no more may be pending, or returns how long to wait until that is
// allowed. The caller holds the lock.
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

// leave removes a connection, and reports whether it was evicted.
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

// remove forgets g, which is pending. The caller holds the lock.
func (h *pendingConns) remove(g *pendingConn) {
	i := slices.Index(h.conns, g)
	h.conns = slices.Delete(h.conns, i, i+1)
	if h.perHost[g.host]--; h.perHost[g.host] == 0 {
		delete(h.perHost, g.host)
	}
}

// hostOf returns the address without the port; all of it if it has none.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// Limit returns l with room for that many connections at once. A further one replaces another, by
// the rule for connections without a Hello: the oldest of the host that has the most.
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

// Accept returns the next connection, and evicts another one if there is no room for it.
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

// Admit exempts a connection of a Limit from its count, once it has proved to be a member's, so
// that it cannot be evicted.
func Admit(c net.Conn) {
	if v, ok := c.(*visitor); ok {
		v.left()
	}
}

// Portion returns a part of the files and connections that this process may have open, at most the
// given number: unauthenticated connections must leave enough for members of a job and for
// checkpoints.
func Portion(part, most int) int {
	if n := descriptors(); n > 0 {
		most = min(most, max(n/part, 8))
	}
	return most
}

// limitedLog logs refused connections, but only a few in a second: a flood must not fill the disk.
type limitedLog struct {
	log    *slog.Logger
	budget Budget
}

// say logs a refused connection if the budget allows it; else the next line counts it.
func (g *limitedLog) say(from string, err error) {
	switch may, silent := g.budget.Spend(); {
	case may && silent > 0:
		g.log.Warn("refused a connection", "peer", from, "err", err, "others", silent)
	case may:
		g.log.Warn("refused a connection", "peer", from, "err", err)
	}
}

// Budget limits lines about refused peers. The zero value is full.
type Budget struct {
	mu     sync.Mutex
	left   float64
	last   time.Time
	silent int // since the last line
}

// At most logBurst lines at once, and after that one each second.
const logBurst = 20

// Spend reports whether a line may be written now, from logBurst that refill by one each second,
// and how many were suppressed since the last one.
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
