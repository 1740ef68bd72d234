package allreduce

import (
	"net"
	"time"

	"star/transport"
)

// A rank that computes reads nothing, and may do so for minutes; its host still acknowledges what comes. So silence is told apart from
// slowness by what the kernel knows: bytes that were sent again and again, and not even once acknowledged. TCP's own end of such a
// connection (user timeout) would also count a full window, which is what a rank that computes has.
const (
	// silentAfter is when a rank that waits asks the kernel. A lost packet is sent again after 0.2, 0.6, 1.4, 3 and 6.2 s.
	silentAfter = 5 * time.Second

	// silentTries is how often bytes were sent in vain by then.
	silentTries = 5

	// unreachable is how long a connection with small messages may be without an answer of the other host.
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

// tries is how often what is on a link has been sent without an answer; 0 where that is not known.
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

// tries is that of the connection below.
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

// watched has a connection with small messages end when the other host does not answer.
func watched(nc net.Conn) { _ = transport.UnreachableConn(nc, unreachable) } // without it, it is noticed later
