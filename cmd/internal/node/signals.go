package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"star/checkpoint"
	"star/coord"
)

// SignalError says that a signal ended the process.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return fmt.Sprintf("ended by %v", e.Signal) }

// ExitCode is 128 plus the number of the signal.
func (e *SignalError) ExitCode() int {
	if s, ok := e.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return ExitFailure
}

// Signals is a context that SIGINT and SIGTERM end, with a *SignalError as its
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
			cancel(&SignalError{s})
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

// settles is how long a process may take to end when its grace is over.
const settles = 2 * time.Second

// linger is a context for what goes on for a while when a process was told to end: until the job is saved, which is for the coordinator to say. It ends with
// the cause of told, so much later at the latest, or at once where there is no grace.
func linger(told context.Context, grace time.Duration) (ctx context.Context, end context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(told))
	stop := context.AfterFunc(told, func() {
		if grace > 0 {
			t := time.NewTimer(grace + settles)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
		cancel(context.Cause(told))
	})
	return ctx, func() { stop(); cancel(context.Cause(told)) }
}

// endsWith is what a process ends with whose work ended with err: if it was told to end, that is why. What else went wrong is logged.
func endsWith(told context.Context, err error, log *slog.Logger) error {
	why := context.Cause(told)
	if why == nil {
		return err
	}
	if err != nil && ExitCode(err) != ExitCode(why) {
		log.Warn("ended", "reason", err)
	}
	return why
}

// farewell has the coordinator know of a signal, or of the end of the caller, until stop. It lets the process go when the job is saved, or at once if it goes
// on without it. If it cannot be told, or there is no grace, over ends every wait.
func farewell(told context.Context, m *coord.Member, grace time.Duration, over func()) (stop func() bool) {
	return context.AfterFunc(told, func() {
		why := context.Cause(told)
		if err := m.Leave(ExitCode(why), why.Error()); err != nil || grace <= 0 {
			over()
			m.Close()
		}
	})
}
