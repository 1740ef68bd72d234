package allreduce

import (
	"net"
	"time"

	"star/transport"
)

// A rank that computes reads nothing, possibly for minutes, but its host still
// acknowledges bytes. So a lost host is distinguished from a slow rank by the
// kernel's counts: bytes that were retransmitted repeatedly and never
// acknowledged. TCP's own limit (user timeout) would also count a full window,
// which a computing rank has.
const (
	// silentAfter is when a waiting rank asks the kernel. A lost packet is sent
	// again after 0.2, 0.6, 1.4, 3 and 6.2 s.
	silentAfter = 5 * time.Second

	// silentTries is how often bytes were sent in vain by then.
	silentTries = 5

	// unreachable is how long a connection with small messages may be without
	// an answer of the other host.
	unreachable = 7 * time.Second
)

// silence looks for a link on which bytes are sent in vain.
func (g *Group) silence() error {
	for i := range g.now.prog.lanes {
		l := &g.now.prog.lanes[i]
		if !g.done[i] && tries(g.peers[l.peer].link) >= silentTries {
			return g.fault(l, errSilent)
		}
	}
	return nil
}

// tries returns how often the bytes of a link were sent without an answer; 0 if
// unknown.
func tries(l link) int {
	switch l := l.(type) {
	case *checked:
		return tries(l.link)
	case *stream:
		return l.tries()
	case interface{ tries() int }:
		return l.tries()
	}
	return 0
}

// tries returns that of the connection below.
func (s *stream) tries() int {
	nc := s.conn
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = t.NetConn()
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if rc, err := tcp.SyscallConn(); err == nil {
			n := 0
			_ = rc.Control(func(fd uintptr) { n = unanswered(int(fd)) })
			return n
		}
	}
	return 0
}

// watched ends a connection with small messages when the other host does not
// answer.
// Best effort: without it, the failure is noticed later.
func watched(nc net.Conn) { _ = transport.UnreachableConn(nc, unreachable) }
