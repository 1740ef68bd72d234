package coord

import (
	"context"
	"encoding/json"
	"errors"

	"star/transport/wire"
)

// Ask carries out a command of star ctl from within the process: the same as over a connection. v,
// if not nil, receives the answer. The error is what the coordinator says against it, that the job
// is over, or the cause of ctx.
//
// It is for callers in this process; star ctl's questions come over connections and are answered by
// the same code. It may be called from any goroutine but that of Run.
func (c *Coordinator) Ask(ctx context.Context, v any, args ...string) error {
	answer := make(chan reply, 1)
	select {
	case c.events <- event{kind: wire.KindControl, seldom: &seldom{control: args, reply: answer}}:
	case <-c.done:
		return errors.New("the job is over")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case r := <-answer:
		switch {
		case r.err != "":
			return errors.New(r.err)
		case v == nil:
			return nil
		}
		return json.Unmarshal(r.json, v)
	case <-c.done:
		return errors.New("the job is over")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
