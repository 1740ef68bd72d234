package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"star/coord/ending"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/transport/wire"
)

// In a job with several coordinators these agree on how the job has ended before any member learns it. So if one
// process is lost afterwards, another one knows the result and tells the members that have not received it: these have
// lost their coordinator and look for the next one.

// codeOf returns the exit code for an error: 0 for nil, 1 for an error without a code.
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

// conclusion ends a job after its loop has ended with err: it completes the result, passes it to successors, and tells
// the members. It returns what Run returns. ErrLeaseLost means that the processes could not agree on the end: another
// one continues the job, and nothing is sent to members here.
func (c *Coordinator) conclusion(ctx context.Context, err error) error {
	c.summarise(err)
	exit, reason := codeOf(err), "finished"
	if err != nil {
		reason = err.Error()
	} else if failed := c.saves.Err(); failed != nil {
		err = &Error{exitcode.Failure,
			fmt.Sprintf("the job is done, but its last checkpoint could not be written: %v", failed)}
	}
	if c.lease.Replaceable() {
		c.journal.Flush() // a successor does not write these lines; Close reports an error
		end := &Ending{Exit: exit, Reason: reason, Result: c.measured.result, Code: codeOf(err)}
		if err != nil {
			end.Error = err.Error()
		}
		// A process that was told to end the job ends it, even without an agreement.
		if !c.lease.Persist(func(e *Handover) { e.End = end }) && ctx.Err() == nil {
			return c.lease.Lost()
		}
	}
	c.finish(exit, reason)
	return err
}

// conclude ends a job after the previous coordinator has recorded its end. Members that do not know the end yet connect
// and get it; the others are gone.
//
// It waits for the members that took part in the job as long as it takes to notice that a coordinator is lost. Servers
// that may coordinate are only welcomed, because the agreement itself tells them. conclude returns the error of the
// previous coordinator.
func (c *Coordinator) conclude(ctx context.Context) error {
	e := c.takeover.Left()
	end := e.End
	c.measured.result = end.Result
	c.log.Info("the job was over when its coordinator was lost", "term", c.lease.Term(), "exit", end.Exit, "reason", end.Reason)
	rest := ending.NewFarewell(time.Now(), e.Workers, e.Counts, c.cfg.Unreachable, takeover.AbsentWorkers)
	for !rest.Over(time.Now()) {
		select {
		case <-c.lease.Over():
			return ErrLeaseLost
		case ev := <-c.in.events:
			p := ev.peer
			switch {
			case ev.Kind == wire.KindControl:
				ev.reply <- reply{err: "the job is over"}
			case p == nil || p.gone || ev.Kind != wire.KindHello || ev.Hello.Job != c.cfg.Job:
			case p.role == wire.RoleServer && p.rank < c.cfg.Coordinators: // the agreement tells it the end of the job
				rest.Noticed(time.Now())
				c.welcomeServer(p)
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
