package outbox

import "runtime"

// Sender sends messages to connections, one at a time or together. It is used by one goroutine. The
// zero value is ready.
type Sender struct {
	gathers bool    // messages wait in their queues
	unsent  []*Conn // that have such messages, each once
}

// Send sends what write writes to conn, behind what waits in its queue. An error of write closes
// conn: its reader returns the cause.
func (s *Sender) Send(conn *Conn, write func() error) {
	switch err := write(); {
	case err != nil:
		conn.fail(err)
	case !s.gathers:
		conn.Flush()
	case !conn.unsent:
		conn.unsent = true
		s.unsent = append(s.unsent, conn)
	}
}

// Together calls send and then sends at once what that has given to Send, so that many connections
// are written to on several processors.
func (s *Sender) Together(send func()) {
	s.gathers = true
	send()
	s.gathers = false
	for _, c := range s.unsent {
		c.unsent = false
	}
	flushAll(s.unsent)
	clear(s.unsent)
	s.unsent = s.unsent[:0]
}

// flushAll flushes several connections, on as many processors as it is worth.
func flushAll(boxes []*Conn) {
	const each = 32 // some 200 µs of system calls
	parts := min(runtime.GOMAXPROCS(0), len(boxes)/each)
	for ; parts > 1; parts-- {
		n := len(boxes) / parts
		part := append([]*Conn(nil), boxes[:n]...)
		boxes = boxes[n:]
		go func() {
			for _, o := range part {
				o.Flush()
			}
		}()
	}
	for _, o := range boxes {
		o.Flush()
	}
}
