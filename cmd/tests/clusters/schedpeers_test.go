package clusters

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"star/cmd/internal/ports"
	"star/cmd/internal/schedule"
	"star/cmd/tests/jobtest"
	"star/sched/live"
)

// services are several with one queue.
type services struct {
	t    *testing.T
	all  []*scheduler
	args func(rank int) []string
}

func servicesOf(t *testing.T, n int, args ...string) *services {
	root, jobs := t.TempDir(), t.TempDir()
	var addrs []string
	for range n {
		addr, err := ports.Reserve("127.0.0.1", addrs...)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	v := &services{t: t, args: func(rank int) []string {
		return append([]string{"--peers", strings.Join(addrs, ","), "--rank", fmt.Sprint(rank), "--jobs", jobs}, args...)
	}}
	for r := range n {
		v.all = append(v.all, schedulerAt(t, filepath.Join(root, fmt.Sprint("service-", r)), jobs))
		v.start(r)
	}
	return v
}

func (v *services) start(rank int) { v.all[rank].start(v.args(rank)...) }

// decider is who decides, as another one says.
func (v *services) decider(ask *scheduler) (rank int) {
	v.t.Helper()
	ask.until("one decides", func(st schedule.Status) bool {
		rank = slices.IndexFunc(st.Peers, func(p schedule.PeerStatus) bool { return p.Decides })
		return rank >= 0
	})
	return rank
}

// Three services with one queue. The one that decides is killed while a job runs: another one decides, and the job goes on in the same life, with the same processes,
// which whoever decides now can tell to leave and to come. One alone decides nothing. All are started again, and no sample is used twice.
func TestSchedPeers(t *testing.T) {
	t.Parallel()
	v := servicesOf(t, 3, "--policy", "elasticflow", "--places", "2", "--slot", "1s")
	first := v.decider(v.all[2])
	second := v.all[(first+1)%3]
	second.submit("long", 4_000_000, 2, "") // through one that passes it on
	second.trains("long", 2)

	third := exec.Command(jobtest.Star(t), append([]string{"sched", "serve", "--dir", filepath.Join(t.TempDir(), "q")}, v.args(first)...)...)
	if out, err := third.CombinedOutput(); exitCode(err) != 78 || !strings.Contains(string(out), fmt.Sprintf("(--rank %d), cannot be listened on", first)) {
		t.Errorf("two of one rank: %v\n%s", err, out)
	}

	before := job(second.until("it answers", func(schedule.Status) bool { return true }), "long")
	v.all[first].kill()
	second.trains("long", 2)
	now := v.decider(second)
	if now == first {
		t.Fatalf("service %d was killed, and decides", first)
	}
	second.submit("other", 40000, 2, "")
	second.trains("other", 1) // a worker of the first job, which another service has started, has left
	st := second.until("long has one worker", func(st schedule.Status) bool { return job(st, "long").Workers == 1 })
	if j := job(st, "long"); j.Lives != before.Lives || j.Preemptions != 0 {
		t.Errorf("long has had %d lives, %d before, and %d preemptions: %s", j.Lives, before.Lives, j.Preemptions, j.Why)
	}
	if p := st.Peers[first]; !p.Missing {
		t.Errorf("service %d is said to be there: %+v", first, st.Peers)
	}

	v.all[now].kill()
	last := v.all[3-first-now]
	out, err := exec.Command(jobtest.Star(t), "sched", "cancel", "--dir", last.dir, "long").CombinedOutput()
	if code := exitCode(err); code != 69 || !strings.Contains(string(out), "no service decides: 1 of 3 are there, missing service") {
		t.Errorf("one of three: exit code %d\n%s", code, out)
	}

	v.start(now)
	v.start(first)
	v.decider(last)
	last.ask("is cancelled already", "cancel", "--dir", last.dir, "long")
	st = last.until("all jobs have ended", func(st schedule.Status) bool {
		return len(st.Jobs) == 2 && !slices.ContainsFunc(st.Jobs, func(j schedule.JobStatus) bool { return j.Ended == nil || j.Workers > 0 })
	})
	for name, want := range map[string]live.State{"long": live.Cancelled, "other": live.Done} {
		if j := job(st, name); j.State != want {
			t.Errorf("%s is %s, want %s: %s", name, j.State, want, j.Why)
		}
	}
	last.usedOnce("long", -1)
	last.usedOnce("other", 40000)
}

func exitCode(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return 0
}
