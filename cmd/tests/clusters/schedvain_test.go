package clusters

import (
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// A job does not keep its places for ever if all its workers end by themselves, and its error is the workers' output.
func TestSchedVain(t *testing.T) {
	t.Parallel()
	s := jobtest.SchedulerOf(t, "--policy", "fifo", "--places", "1")
	s.Submit("broken", 6000, 1, "command: [sh, -c, 'echo there is no such module >&2; exit 1']\nworkers: 1\n")
	s.Submit("sound", 2000, 1, "workers: 1\n")
	st := s.Until("both have ended", func(st service.Status) bool {
		return jobtest.JobOf(st, "broken").Ended != nil && jobtest.JobOf(st, "sound").Ended != nil
	})
	if j := jobtest.JobOf(st, "broken"); j.State != live.Failed || !strings.Contains(j.Why, "it ended with exit code 1, and its job is not over: there is no such module") {
		t.Errorf("broken is %s: %s", j.State, j.Why)
	}
	if j := jobtest.JobOf(st, "sound"); j.State != live.Done {
		t.Errorf("sound is %s: %s", j.State, j.Why)
	}
}
