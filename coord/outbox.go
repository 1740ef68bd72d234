package coord

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"star/flightrecorder"
	"star/transport"
)

// outbox is a member's connection on which nobody waits to write: WriteFrame puts the message into
// a queue, and a goroutine of its own (deliver) sends what is there, in order. So a member that
// does not read holds up nobody but itself.
//
// The queue is bounded. Who lets it run full, or takes no message within patience, is taken for one
// that does not read, and its connection is closed; its reader says so.
// One goroutine delivers; any may write; whoever owns the connection reads it, as before. Payloads are
// not copied, so they must not change once they were handed over; headers are.
type outbox struct {
	transport.Conn
	patience time.Duration // for one message, and a second for each MiB of its payload
	log      *slog.Logger

	news chan struct{} // holds one token when the queue is not empty
	over chan struct{} // closed by Close
	once sync.Once

	mu       sync.Mutex
	queue    []letter
	heads    []byte // the headers of queue, one behind the other
	waiting  int    // bytes of headers and payloads that have not been sent
	err      error  // why it was closed, if not by whoever owns it
	deadline time.Time
}

// letter is a message that waits.
type letter struct {
	kind    transport.Kind
	head    int // bytes of header
	payload []byte
	sum     uint32
}

// outboxBytes is how much may wait before another message does not: thousands of messages of every
// iteration, behind what the sockets hold. One message may be larger.
const outboxBytes = 1 << 20

// newOutbox is a queue before conn. Who takes no message within patience is taken for gone.
func newOutbox(conn transport.Conn, patience time.Duration, log *slog.Logger) *outbox {
	return &outbox{Conn: conn, patience: patience, log: log, news: make(chan struct{}, 1), over: make(chan struct{})}
}

// WriteFrame puts a message into the queue. header is copied; payload must not change any more. The
// error is the reason why the connection is or should be closed. It does not wait, and may be
// called from several goroutines.
func (o *outbox) WriteFrame(k transport.Kind, header, payload []byte, sum uint32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && o.waiting > outboxBytes {
		o.err = fmt.Errorf("it does not read: %d bytes of messages wait", o.waiting)
	}
	if o.err != nil {
		return o.err
	}
	o.queue = append(o.queue, letter{k, len(header), payload, sum})
	o.heads = append(o.heads, header...)
	o.waiting += len(header) + len(payload)
	select {
	case o.news <- struct{}{}:
	default:
	}
	return nil
}

// deliver sends what is in the queue until the connection is closed. Each message has patience, and
// a second for each MiB of it. The queue and the headers are taken as a whole, so that writers wait
// for the lock only, and memory is used again but after a burst.
func (o *outbox) deliver() {
	site := flightrecorder.Open("coordinator", "a member to take a message", "", "")
	defer site.Close()
	var queue []letter
	var heads []byte
	named := ""
	for {
		select {
		case <-o.news:
		case <-o.over:
			return
		}
		o.mu.Lock()
		queue, o.queue = o.queue, queue[:0]
		heads, o.heads = o.heads, heads[:0]
		o.mu.Unlock()
		if name := o.Peer(); name != named {
			named = name
			site.Say(name)
		}
		head := heads
		for _, l := range queue {
			limit := o.patience + time.Duration(len(l.payload)>>20)*time.Second
			o.Conn.SetWriteDeadline(time.Now().Add(limit))
			site.Begin(-1, limit)
			err := o.Conn.WriteFrame(l.kind, head[:l.head], l.payload, l.sum)
			site.End()
			if err != nil {
				o.fail(err)
				return
			}
			head = head[l.head:]
			o.mu.Lock()
			o.waiting -= l.head + len(l.payload)
			o.mu.Unlock()
		}
		clear(queue) // payloads
		if cap(heads) > outboxBytes/8 {
			queue, heads = nil, nil // that was a burst
		}
	}
}

// fail closes the connection because a message could not be sent, and says so once. The reader of
// the connection gets an error by that, and asks for the cause.
func (o *outbox) fail(err error) {
	select {
	case <-o.over: // that is why
		return
	default:
	}
	o.mu.Lock()
	if o.err == nil {
		o.err = fmt.Errorf("it does not take a message: %w", err)
	}
	o.mu.Unlock()
	o.log.Warn("send failed, closing the connection", "peer", o.Peer(), "err", err)
	o.Close()
}

// cause is why the connection was closed on our side; nil: it was not, or on purpose.
func (o *outbox) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// SetReadDeadline keeps to what endReads has said.
func (o *outbox) SetReadDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.deadline.IsZero() && (t.IsZero() || t.After(o.deadline)) {
		t = o.deadline
	}
	return o.Conn.SetReadDeadline(t)
}

// endReads sets the last read deadline: no later one counts. The peer is told why it must go, and
// its last words are read until then.
func (o *outbox) endReads(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deadline.IsZero() || t.Before(o.deadline) {
		o.deadline = t
		o.Conn.SetReadDeadline(t)
	}
}

// Close may be called twice, and by anybody. What waits is lost.
func (o *outbox) Close() error {
	o.once.Do(func() { close(o.over) })
	return o.Conn.Close()
}
