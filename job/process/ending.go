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

// Linger is a context for work that continues for a while after a process was asked to end: until the coordinator has
// saved the job. It ends with the cause of told, after grace at the latest, or at once without grace.
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

// Farewell reports a signal, or the end of the caller, to the coordinator, until stop. It releases the process when the
// job is saved, or at once if the job continues without it. If the coordinator cannot be reached, or grace is 0, over
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
