package process

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"star/checkpoint"
	"star/member"
)

// Signals is a context that SIGINT and SIGTERM end, with a *member.SignalError as its
// cause. A second signal ends the process at once, after last; but not one that star run has started: it may be told by whoever tells all processes
// of a host, and by star run, which ends it when it takes too long. SIGQUIT has it say what it waits for.
func Signals(parent context.Context, last ...func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if os.Getenv(LaunchedVariable) != "" {
		signal.Ignore(syscall.SIGPIPE) // star run, which reads what we say, may be killed: then there is a checkpoint to save
	}
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-c:
			cancel(&member.SignalError{Signal: s})
		case <-ctx.Done():
			return
		}
		if os.Getenv(LaunchedVariable) != "" {
			return
		}
		if s, ok := (<-c).(syscall.Signal); ok {
			checkpoint.Abandon()
			for _, f := range last {
				f()
			}
			os.Exit(128 + int(s))
		}
	}()
	undo := explainQuits()
	return ctx, func() { signal.Stop(c); undo(); cancel(nil) }
}

// LaunchedVariable is set in the processes that star run starts.
const LaunchedVariable = "INSIDE_STAR_RUN"
