package process

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"star/job"
	"star/train/checkpoint"
)

// Signals is a context that SIGINT and SIGTERM end, with a *job.SignalError as its
// cause. A second signal ends the process at once, after last; but not one that star run has started: it may be told by whoever tells all processes
// of a host, and by star run, which ends it when it takes too long. One of the same kind within sameSignal is no
// second one. SIGQUIT has the process say what it waits for.
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
			cancel(&job.SignalError{Signal: s})
			if os.Getenv(LaunchedVariable) != "" {
				return
			}
			if s, ok := second(c, s).(syscall.Signal); ok {
				checkpoint.Abandon()
				for _, f := range last {
					f()
				}
				os.Exit(128 + int(s))
			}
		case <-ctx.Done():
		}
	}()
	undo := explainQuits()
	return ctx, func() { signal.Stop(c); undo(); cancel(nil) }
}

// sameSignal is within what time two signals of a kind are one: a wrapper that passes on what its whole group is sent
// has the process get it twice, milliseconds apart, a user who insists takes longer.
const sameSignal = time.Second

// second waits for a signal after the first one, which has just come.
func second(c <-chan os.Signal, first os.Signal) os.Signal {
	for at := time.Now(); ; {
		if s := <-c; s != first || time.Since(at) >= sameSignal {
			return s
		}
	}
}

// LaunchedVariable is set in the processes that star run starts.
const LaunchedVariable = "INSIDE_STAR_RUN"
