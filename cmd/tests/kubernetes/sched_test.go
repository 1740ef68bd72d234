package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// star sched serve beside the cluster, with pods as workers: a job gives one to a second job, the service is killed and
// finds the others again, a pod that a user deletes is replaced, and so is one that is stopped, a job is done in time,
// one without data has failed, and no pod is left.
func (c *cluster) testSched(t *testing.T) {
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Env, s.More = append(os.Environ(), "STAR_TOKEN=of-a-test"), "mode: ssgd, "+jobtest.Slowed(2)
	serve := func() {
		s.Start("--engine", "k8s", "--places", "2", "--image", "star:test", "--address", "10.89.0.1", "--policy", "elasticflow", "--slot", "1s")
	}
	defer func() {
		if t.Failed() {
			t.Log(c.said())
		}
	}()
	pods := func(job string) (names []string) {
		return strings.Fields(c.run(t, "get", "pods", "--selector=app.kubernetes.io/instance=star-"+job, "--field-selector=status.phase=Running", "-o", `jsonpath={range .items[*]}{.metadata.uid} {end}`))
	}
	serve()
	s.Until("the service answers", func(st service.Status) bool { return true })
	const long = "a-job-with-the-longest-name-that-a-service-can-hav" // its pods' names are longer than a label may be
	s.Submit(long, 4_000_000, 2, "", "--deadline", "24h")
	s.Trains(long, 2)
	s.Submit("other", 4_000_000, 2, "", "--deadline", "24h")
	s.Trains("other", 1)
	s.Trains(long, 1)
	before := pods(long)
	if len(before) != 1 {
		t.Errorf("its pods are %q", before)
	}

	s.Kill()
	serve()
	s.Trains(long, 1)
	if now := pods(long); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the service that was started again has pods %q, was %q", now, before)
	}
	c.run(t, "delete", "pod", "--selector=app.kubernetes.io/instance=star-"+long, "--wait=false")
	c.until(t, "another pod has its place", func() bool { now := pods(long); return len(now) > 0 && now[0] != before[0] })
	s.Trains(long, 1)

	// A pod that is stopped, as one on a node that is gone.
	stands := pods("other")
	syscall.Kill((&job{cluster: c}).running(t, "star-other-worker-1"), syscall.SIGSTOP)
	c.until(t, "another pod has the place of one that stands still", func() bool { now := pods("other"); return len(now) > 0 && now[0] != stands[0] })
	s.Trains("other", 1)

	s.Ask("is cancelled already", "cancel", "other")
	s.Trains(long, 2) // it has the place again
	s.Submit("short", 2_000, 2, "", "--deadline", "24h")
	st := s.Until("short has ended", func(st service.Status) bool { return jobtest.JobOf(st, "short").Ended != nil })
	if j := jobtest.JobOf(st, "short"); j.State != live.Done || j.Met == nil || !*j.Met || j.Lives != 1 {
		t.Errorf("short: %+v", j)
	}
	s.Ask("is cancelled already", "cancel", long)
	st = s.Until("all have ended", func(st service.Status) bool {
		return !slices.ContainsFunc(st.Jobs, func(j service.JobStatus) bool { return j.Ended == nil || j.Workers > 0 })
	})
	for _, name := range []string{long, "other"} {
		if j := jobtest.JobOf(st, name); j.State != live.Cancelled || j.Lives != 1 || j.Preemptions != 0 {
			t.Errorf("%s: %+v", name, j)
		}
		s.UsedOnce(name, -1)
	}
	s.UsedOnce("short", 2_000)

	s.Ask("there is such a job already", "submit", c.write(t, "empty.yaml", "name: empty\nsettings: {model: resnet20, dataset: \"cifar10:/nowhere\"}\nsamples: 1000\nrates: {1: 100}\n"))
	st = s.Until("a job without data has failed", func(st service.Status) bool { return jobtest.JobOf(st, "empty").Ended != nil })
	if j := jobtest.JobOf(st, "empty"); j.State != live.Failed || !strings.Contains(j.Why, "66") {
		t.Errorf("%+v", j)
	}
	c.until(t, "no pod and no secret of theirs is left", func() bool {
		return c.run(t, "get", "pods,secrets", "--selector=app.kubernetes.io/component=worker,app.kubernetes.io/instance in (star-"+long+",star-other,star-short,star-empty)", "-o", "name") == ""
	})
}
