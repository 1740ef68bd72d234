package coord

import (
	"context"
	"star/transport/wire"
	"sync/atomic"
)

// inbox is the part of the coordinator that other goroutines use. events has room for a few messages of every member,
// so that readers do not wait for the loop in an ordinary iteration. done is closed when the loop has ended; from then
// on no goroutine posts.
type inbox struct {
	events  chan event
	done    chan struct{}
	notices chan notice
	conns   atomic.Int64 // open connections of members (Connected)

	life   context.Context // of the connections: it ends a little after Run
	hangUp context.CancelFunc
}

// post sends an event to Run. It returns false when the job is over. It blocks while the loop is behind, which slows
// down members that send too much.
func (in *inbox) post(e event) bool {
	select {
	case in.events <- e:
		return true
	case <-in.done:
		return false
	}
}

// question lets the event loop carry out a command, and waits for the answer.
func (in *inbox) question(ctx context.Context, args []string) (reply, error) {
	answer := make(chan reply, 1)
	select {
	case in.events <- inside(wire.KindControl, internal{control: args, reply: answer}):
	case <-in.done:
		return reply{}, errOver
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
	select {
	case r := <-answer:
		return r, nil
	case <-in.done:
		return reply{}, errOver
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// notify sends a notice to the event loop. It does nothing after the loop has ended.
func (in *inbox) notify(n notice) {
	select {
	case in.notices <- n:
	case <-in.done:
	}
}
