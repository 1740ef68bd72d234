package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/service"
)

// A job has a worker on a host where everything takes 0.4 s longer. The service avoids that host, says why, and the job
// has both workers on the other one. A service that is killed, and started again, knows it still.
func TestSchedSlowHost(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts.yaml")
	if err := os.WriteFile(file, []byte("hosts:\n  - {name: good, cpu: 3}\n  - {name: bad, cpu: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.More = "batch: 32"
	s.Start("--policy", "fifo", "--hosts", file)
	s.Until("the service answers", func(service.Status) bool { return true })
	const worker = `more=20; test "$STAR_HOST_ID" = bad && more=400; export STAR_SLOW="0:+${more}ms,1:+${more}ms,2:+${more}ms"; exec "$0" worker`
	s.Submit("job", 4_000_000, 2, fmt.Sprintf("command: [sh, -c, %q, %q]\n", worker, jobtest.Star(t)))
	s.Until("it has a worker on each host", func(st service.Status) bool {
		hosts := jobtest.JobOf(st, "job").Hosts
		return slices.Contains(hosts, "good") && slices.Contains(hosts, "bad")
	})
	why := func(st service.Status) string {
		return st.Hosts[slices.IndexFunc(st.Hosts, func(h service.HostStatus) bool { return h.Host == "bad" })].Slow
	}
	st := s.Until("both workers are on the other host", func(st service.Status) bool {
		j := jobtest.JobOf(st, "job")
		return why(st) != "" && j.Workers == 2 && slices.Equal(j.Hosts, []string{"good"})
	})
	if j := jobtest.JobOf(st, "job"); j.Preemptions != 0 {
		t.Errorf("%+v", j)
	}
	s.Trains("job", 2)
	s.Kill()
	s.Start("--policy", "fifo", "--hosts", file)
	if st := s.Until("it answers again", func(service.Status) bool { return true }); why(st) == "" {
		t.Errorf("after a restart %+v", st.Hosts)
	}
	s.Ask("is cancelled already", "cancel", "job")
	s.Until("the job has ended", func(st service.Status) bool {
		j := jobtest.JobOf(st, "job")
		return j.Ended != nil && j.Workers == 0
	})
}
