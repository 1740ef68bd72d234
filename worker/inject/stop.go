package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Stopper stops a process for the Pause at the end of every Period, until ctx is done or the process
// has ended. It always leaves the process running. It blocks.
func Stopper(ctx context.Context, p *os.Process, s Slow) error {
	if s.Kind != Stop || s.Period <= s.Pause {
		return fmt.Errorf("inject: %v is not a valid stop", s)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := func(d time.Duration) bool {
		timer.Reset(d)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	<-timer.C
	for wait(s.Period - s.Pause) {
		if err := signalStop(p); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return fmt.Errorf("slow %q: stop process %d: %w", s, p.Pid, err)
		}
		wait(s.Pause)
		if err := signalContinue(p); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return fmt.Errorf("slow %q: continue process %d: %w; do it by hand: kill -CONT %d", s, p.Pid, err, p.Pid)
		}
	}
	return nil
}
