package process

import (
	"context"
	"log/slog"
	"time"

	"star/coord/session"
	"star/job"
)

// settles is how long a process may take to end when its grace is over.
const settles = 2 * time.Second

// Linger is a context for what goes on for a while when a process was told to end: until the job is saved, which
// is for the coordinator to say. It ends with the cause of told, so much later at the latest, or at once where
// there is no grace.
func Linger(told context.Context, grace time.Duration) (ctx context.Context, end context.CancelFunc) {
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

// EndsWith returns the final error of a process from that of its work: if it was stopped, the reason
// of that; other errors are logged.
func EndsWith(told context.Context, err error, log *slog.Logger) error {
	why := context.Cause(told)
	if why == nil {
		return err
	}
	if err != nil && job.ExitCode(err) != job.ExitCode(why) {
		log.Warn("ended", "reason", err)
	}
	return why
}

// Farewell has the coordinator know of a signal, or of the end of the caller, until stop. It lets the process go
// when the job is saved, or at once if it goes on without it. If it cannot be told, or there is no grace, over
// ends every wait.
func Farewell(told context.Context, m *session.Member, grace time.Duration, over func()) (stop func() bool) {
	return context.AfterFunc(told, func() {
		why := context.Cause(told)
		if err := m.Leave(job.ExitCode(why), why.Error()); err != nil || grace <= 0 {
			over()
			m.Close()
		}
	})
}
