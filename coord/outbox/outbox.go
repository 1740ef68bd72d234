// Package outbox sends messages over connections without ever waiting for the other side: each connection has a bounded
// queue (Conn), and a Sender writes to many of them at once. It treats messages as bytes.
//
//	Sender.Send ──► queue of Conn ──► Flush: what the socket accepts at once ──► deliver: the rest, in a goroutine
package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Conn is a connection with writes that never wait: WriteFrame appends a message to a queue, and Flush writes as much
// of it as the socket accepts at once. A goroutine (deliver) sends the rest in order until the queue is empty. So a
// peer that does not read delays only itself, and one that does needs no goroutine.
//
// The queue is bounded. If a peer lets it run full, or accepts no message within patience, its connection is closed,
// and its reader returns the error. Any goroutine may write and flush; the owner of the connection reads. Payloads are
// not copied and must not change after the call; headers are copied.
//
// Invariant: messages go out in the order of their WriteFrame calls. While blocked, only deliver writes to
// the connection.
type Conn struct {
	transport.Conn
	patience time.Duration // for one message, and a second for each MiB of its payload
	log      *slog.Logger
	unsent   bool // it is in Sender.unsent

	delivering sync.WaitGroup

	mu       sync.Mutex
	queue    []letter
	heads    []byte // the headers of queue, one behind the other
	waiting  int    // bytes of headers and payloads that have not been sent
	blocked  bool   // deliver alone sends what is in the queue
	closed   bool
	err      error // why it was closed, if not by its owner
	deadline time.Time
}

// letter is a waiting message.
type letter struct {
	kind    wire.Kind
	head    int // bytes of header
	payload []byte
	sum     uint32
}

// queueBytes is the maximum size of the waiting messages when another one is added: thousands of messages of every
// iteration, in addition to what the sockets hold. A single message may be larger.
const queueBytes = 1 << 20

// New is a queue before conn. The connection of a peer that accepts no message within patience is closed.
func New(conn transport.Conn, patience time.Duration, log *slog.Logger) *Conn {
	return &Conn{Conn: conn, patience: patience, log: log}
}

// WriteFrame puts a message into the queue; Flush sends it. header is copied; payload must not
// change any more. The error is the reason why the connection is or should be closed. It does not
// wait, and may be called from several goroutines.
func (o *Conn) WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil && o.waiting > queueBytes {
		o.err = fmt.Errorf("it does not read: %d bytes of messages wait", o.waiting)
	}
	if o.err != nil {
		return o.err
	}
	o.queue = append(o.queue, letter{k, len(header), payload, sum})
	o.heads = append(o.heads, header...)
	o.waiting += len(header) + len(payload)
	return nil
}

// Flush sends the queue as far as the socket accepts it at once, and leaves the rest to deliver. It does not wait.
func (o *Conn) Flush() {
	o.mu.Lock()
	if o.blocked || o.closed {
		o.mu.Unlock()
		return
	}
	head, sent, taken := o.heads, 0, true
	var err error
	for _, l := range o.queue {
		if taken, err = transport.WriteNow(o.Conn, l.kind, head[:l.head], l.payload, l.sum); err != nil || !taken {
			break
		}
		head = head[l.head:]
		o.waiting -= l.head + len(l.payload)
		sent++
	}
	switch {
	case err != nil:
	case !taken:
		o.blocked = true
		queue, heads := o.queue[sent:], head
		o.queue, o.heads = nil, nil
		o.delivering.Go(func() { o.deliver(queue, heads) })
	default:
		o.empty()
	}
	o.mu.Unlock()
	if err != nil {
		o.fail(err)
	}
}

// empty empties the queue. It keeps the memory, except after a burst. The lock is held.
func (o *Conn) empty() {
	clear(o.queue) // payloads
	o.queue, o.heads = o.queue[:0], o.heads[:0]
	if cap(o.heads) > queueBytes/8 {
		o.queue, o.heads = nil, nil
	}
}

// deliver sends queue, with the headers heads, and then the messages that have been added meanwhile, until the queue
// is empty or the connection is closed. Each message has patience, and a second for each MiB of it.
func (o *Conn) deliver(queue []letter, heads []byte) {
	site := flightrecorder.Open("coordinator", "a member to take a message", "", "")
	defer site.Close()
	site.Say(o.Peer())
	for len(queue) > 0 {
		for _, l := range queue {
			limit := o.patience + time.Duration(len(l.payload)>>20)*time.Second
			o.Conn.SetWriteDeadline(time.Now().Add(limit))
			site.Begin(-1, limit)
			err := o.Conn.WriteFrame(l.kind, heads[:l.head], l.payload, l.sum)
			site.End()
			if err != nil {
				o.fail(err)
				return
			}
			heads = heads[l.head:]
			o.mu.Lock()
			o.waiting -= l.head + len(l.payload)
			o.mu.Unlock()
		}
		o.mu.Lock()
		queue, heads = o.queue, o.heads
		o.queue, o.heads = nil, nil
		if len(queue) == 0 {
			o.Conn.SetWriteDeadline(time.Time{}) // WriteNow keeps to it, too
			o.blocked = false
		}
		o.mu.Unlock()
	}
}

// fail closes the connection because a message could not be sent, and logs it once. The reader of the connection then
// gets an error, and asks for the cause. A message that is too large is not sent in part: the peer gets the reason
// instead, because it would reconnect for the same message.
func (o *Conn) fail(err error) {
	o.mu.Lock()
	if o.closed { // that is why
		o.mu.Unlock()
		return
	}
	if o.err == nil {
		o.err = fmt.Errorf("it does not take a message: %w", err)
	}
	o.mu.Unlock()
	if errors.Is(err, transport.ErrTooLarge) {
		o.Conn.SetWriteDeadline(time.Now().Add(time.Second))
		transport.Send(o.Conn, wire.Reject{Exit: exitcode.Failure, Reason: err.Error()}, nil)
	}
	o.log.Warn("send failed, closing the connection", "peer", o.Peer(), "err", err)
	o.Close()
}

// Cause is why the connection was closed on our side; nil: it was not, or on purpose.
func (o *Conn) Cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// SetReadDeadline has no effect after EndReads.
func (o *Conn) SetReadDeadline(t time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.deadline.IsZero() && (t.IsZero() || t.After(o.deadline)) {
		t = o.deadline
	}
	return o.Conn.SetReadDeadline(t)
}

// EndReads sets the last read deadline; later ones have no effect. It is for a peer that must leave: its last messages
// are read until then.
func (o *Conn) EndReads(t time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deadline.IsZero() || t.Before(o.deadline) {
		o.deadline = t
		o.Conn.SetReadDeadline(t)
	}
}

// Close may be called twice, and by any goroutine. What waits is lost.
func (o *Conn) Close() error {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	return o.Conn.Close()
}

// Wait returns when nothing more is sent. It is called after Close.
func (o *Conn) Wait() { o.delivering.Wait() }
