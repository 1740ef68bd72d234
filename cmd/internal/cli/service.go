package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"star/internal/settings"
	"star/sched/service"
)

// SchedDir is the default of --dir of star sched serve, submit, status and cancel.
const SchedDir = "star-sched"

// ScheduledJob returns the address of a job's coordinator and the token that it takes. A job of star sched serve has a
// token of its own, which the service gives to its owner; STAR_TOKEN may be that of the services. addr is the address
// that the caller was given, or empty.
func ScheduledJob(ctx context.Context, s *settings.Set, dir, job, addr, token string, timeout time.Duration) (string, string, error) {
	name, in := cmp.Or(addr, job), cmp.Or(dir, SchedDir)
	if dir == "" {
		if _, err := service.ReadAddress(in); err != nil || name == "" || s.Origin("token") == settings.Origin("--token") {
			return addr, token, nil
		}
	} else if name == "" {
		return "", "", s.Invalid("dir", errors.New("which job of the service? give --job"))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	at, secret, err := service.Reach(ctx, in, name)
	switch {
	case err == nil:
		return at, secret, nil
	case dir == "": // it may be any other job
		return addr, token, nil
	}
	return "", "", err
}
