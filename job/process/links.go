package process

import (
	"sync"

	"star/allreduce"
	"star/transport"
)

// Links counts the traffic of connections, but not of those within this host: they do not use its link. Its methods are
// safe for concurrent use.
type Links struct {
	mu        sync.Mutex
	conns     []transport.Conn
	last      []int64 // bytes of each at the last look
	sent, got int64   // of those that are forgotten
	group     *allreduce.Group
}

// Add counts a connection from now on, including its previous traffic.
func (l *Links) Add(c transport.Conn) {
	if !Elsewhere(c.RemoteAddr()) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns, l.last = append(l.conns, c), append(l.last, -1)
}

// Ring counts another group from now on; nil: none.
func (l *Links) Ring(g *allreduce.Group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.group != nil {
		t := l.group.TrafficFar()
		l.sent, l.got = l.sent+t.Sent, l.got+t.Received
	}
	l.group = g
}

// Traffic is of all connections so far. One on which nothing has moved between two looks is added up and
// forgotten when there are many.
func (l *Links) Traffic() (sent, received int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	many := len(l.conns) > 1024
	keep := 0
	for i, c := range l.conns {
		a, b := c.Traffic()
		if many && l.last[i] == a+b {
			l.sent, l.got = l.sent+a, l.got+b
			continue
		}
		l.conns[keep], l.last[keep] = c, a+b
		keep++
		sent, received = sent+a, received+b
	}
	clear(l.conns[keep:])
	l.conns, l.last = l.conns[:keep], l.last[:keep]
	if l.group != nil {
		t := l.group.TrafficFar()
		sent, received = sent+t.Sent, received+t.Received
	}
	return l.sent + sent, l.got + received
}

// Counted counts the traffic of the connections that a listener accepts.
type Counted struct {
	transport.Listener
	*Links
}

// Accept accepts a connection, and counts its traffic from then on. Errors are those of the Listener.
func (l *Counted) Accept() (transport.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.Add(c)
	}
	return c, err
}
