package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"star/coord/ending"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Where others may coordinate, they agree on how a job has ended before anybody is told. So whoever
// is lost afterwards, another one knows the result, and tells those who have not heard of it: they
// have lost their coordinator, and look for the next one.

// codeOf is the exit code that fits an error. 0 without an error, and exit code 1 for one that says
// nothing of it.
func codeOf(err error) int {
	var e interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.ExitCode()
	}
	return exitcode.Failure
}

// conclusion ends a job whose loop has ended with err: it completes the result, has successors know
// of it, and says good-bye. It returns with what Run ends. ErrLeaseLost: nobody could agree on the
// end, so somebody else goes on with the job, and nobody is told anything here.
func (c *Coordinator) conclusion(ctx context.Context, err error) error {
	c.summarise(err)
	exit, reason := codeOf(err), "finished"
	if err != nil {
		reason = err.Error()
	} else if failed := c.saves.Err(); failed != nil {
		err = &Error{exitcode.Failure,
			fmt.Sprintf("the job is done, but its last checkpoint could not be written: %v", failed)}
	}
	if c.lease.replaceable() {
		c.journal.log.Flush() // a successor writes nothing of what was before; close says what is wrong
		end := &Ending{Exit: exit, Reason: reason, Result: c.measured.result, Code: codeOf(err)}
		if err != nil {
			end.Error = err.Error()
		}
		// Who was told to end the job has it end, whoever agrees.
		if !c.lease.persist(func(e *Handover) { e.End = end }) && ctx.Err() == nil {
			return c.lease.lost
		}
	}
	c.finish(exit, reason)
	return err
}

// conclude ends a job whose end the coordinator before has noted. Who was not told before it was
// lost comes, and is told; the others are gone.
//
// It waits for those that had a part in the job, as long as it takes to notice that a coordinator
// is lost; those that may coordinate are welcomed, because the agreement itself tells them. It
// returns what the coordinator before ended with.
func (c *Coordinator) conclude(ctx context.Context) error {
	e := c.takeover.Left()
	end := e.End
	c.measured.result = end.Result
	c.log.Info("the job was over when its coordinator was lost", "term", c.lease.term(), "exit", end.Exit, "reason", end.Reason)
	rest := ending.NewFarewell(time.Now(), e.Workers, e.Seats, c.cfg.Unreachable, takeover.AbsentWorkers)
	for !rest.Over(time.Now()) {
		select {
		case <-c.lease.over():
			return ErrLeaseLost
		case ev := <-c.in.events:
			p := ev.peer
			switch {
			case ev.Kind == wire.KindControl:
				ev.reply <- reply{err: "the job is over"}
			case p == nil || p.gone || ev.Kind != wire.KindHello || ev.Hello.Job != c.cfg.Job:
			case p.role == wire.RoleServer && p.rank < c.cfg.Coordinators: // the agreement tells it how the job has ended
				rest.Noticed(time.Now())
				c.peers.send(p, func() error {
					return transport.Send(p.conn, wire.Welcome{Rank: p.rank, Workers: c.cfg.MaxWorkers, Elapsed: c.journal.elapsed(), Term: c.lease.term()}, nil)
				})
			default:
				rest.Came(p.role == wire.RoleServer, p.rank)
				c.peers.part(p, end.Exit, end.Reason)
				p.gone = true
			}
		case <-time.After(time.Until(rest.Until())):
		case <-ctx.Done():
			rest = ending.Farewell{}
		}
	}
	if end.Error != "" {
		return &Error{end.Code, end.Error}
	}
	return nil
}
