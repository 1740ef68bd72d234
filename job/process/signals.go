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

// Signals returns a context that SIGINT and SIGTERM end, with a *job.SignalError as its cause. A
// second signal ends the process at once, after last, except in a process of star run: it may be
// signalled both by a manager of the whole host and by star run, which kills it if it takes too
// long. One of the same kind within sameSignal does not count as a second one. SIGQUIT has the
// process print what it waits for.
func Signals(parent context.Context, last ...func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if os.Getenv(LaunchedVariable) != "" {
		signal.Ignore(syscall.SIGPIPE) // star run, which reads our output, may be killed: then a checkpoint has to be saved
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

// sameSignal is the time within which two signals of a kind count as one: a wrapper that forwards a
// signal of its whole group delivers it twice, milliseconds apart; a user takes longer.
const sameSignal = time.Second

// second waits for a signal after the first one, which was just received.
func second(c <-chan os.Signal, first os.Signal) os.Signal {
	for at := time.Now(); ; {
		if s := <-c; s != first || time.Since(at) >= sameSignal {
			return s
		}
	}
}

// LaunchedVariable is set in the processes that star run starts.
const LaunchedVariable = "INSIDE_STAR_RUN"
