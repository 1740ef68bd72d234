package coord

import (
	"context"
	"star/transport/wire"
	"sync/atomic"
)

// inbox is the part of the coordinator that other goroutines use. events has room for a few messages of
// every member, so that readers do not wait for the loop in an ordinary iteration; done is closed
// when the loop has ended, and then no goroutine posts any more.
type inbox struct {
	events  chan event
	done    chan struct{}
	notices chan notice
	conns   atomic.Int64

	life   context.Context // of the connections: it ends a moment after Run
	hangUp context.CancelFunc
}

// post hands an event to Run. It reports false when the job is over. It waits while the loop is
// behind, which is how a member that says more than is heard is slowed down.
func (in *inbox) post(e event) bool {
	select {
	case in.events <- e:
		return true
	case <-in.done:
		return false
	}
}

// question has the event loop carry out a command, and waits for the answer.
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

// notify hands a notice to the event loop. When that has ended, nobody reads it any more.
func (in *inbox) notify(n notice) {
	select {
	case in.notices <- n:
	case <-in.done:
	}
}
