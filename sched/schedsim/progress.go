package schedsim

import (
	"fmt"
	"io"
	"time"
)

// Progress prints the progress of a simulation under a policy to w: after 2 s, then at doubling intervals of at most a
// minute. It is for sched.Options.Progress.
func Progress(w io.Writer, policy string, now func() time.Time) func(ended, jobs int) {
	begin := now()
	wait, next := 2*time.Second, begin.Add(2*time.Second)
	return func(ended, jobs int) {
		t := now()
		if t.Before(next) {
			return
		}
		wait = min(2*wait, time.Minute)
		next = t.Add(wait)
		fmt.Fprintf(w, "%s: %d of %d jobs have ended (%.0f %%) after %.0f s\n", policy, ended, jobs, 100*float64(ended)/float64(max(jobs, 1)), t.Sub(begin).Seconds())
	}
}
