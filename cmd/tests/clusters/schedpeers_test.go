package clusters

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/coord/election"
	"star/job"
	"star/sched/live"
	"star/sched/service"
)

// Three services with one queue. The one that decides is killed while a job runs: another one decides, and the job goes
// on in the same life, with the same processes, which the service that decides now can tell to leave and to come. One
// alone decides nothing. All are started again, and no sample is used twice.
func TestSchedPeers(t *testing.T) {
	t.Parallel()
	v := jobtest.SchedulersOf(t, 3, "--policy", "elasticflow", "--places", "2", "--slot", "1s")
	first := v.Decider(v.All[2])
	second := v.All[(first+1)%3]
	second.Submit("long", 4_000_000, 2, "") // through one that passes it on
	second.Trains("long", 2)

	third := exec.Command(jobtest.Star(t), append([]string{"sched", "serve", "--dir", filepath.Join(t.TempDir(), "q")}, v.Args(first)...)...)
	if out, err := third.CombinedOutput(); jobtest.ExitCode(err) != 78 || !strings.Contains(string(out), "cannot listen on this service's own address") {
		t.Errorf("two of one rank: %v\n%s", err, out)
	}

	before := jobtest.JobOf(second.Until("it answers", func(service.Status) bool { return true }), "long")
	v.All[first].Kill()
	second.Trains("long", 2)
	now := v.Decider(second)
	if now == first {
		t.Fatalf("service %d was killed, and decides", first)
	}
	second.Submit("other", 40000, 2, "")
	second.Trains("other", 1) // a worker of the first job, which another service has started, has left
	st := second.Until("long has one worker", func(st service.Status) bool { return jobtest.JobOf(st, "long").Workers == 1 })
	if j := jobtest.JobOf(st, "long"); j.Lives != before.Lives || j.Preemptions != 0 {
		t.Errorf("long has had %d lives, %d before, and %d preemptions: %s", j.Lives, before.Lives, j.Preemptions, j.Why)
	}
	if p := st.Peers[first]; !p.Missing {
		t.Errorf("service %d is said to be there: %+v", first, st.Peers)
	}

	v.All[now].Kill()
	last := v.All[3-first-now]
	out, err := last.Command("cancel", "long").CombinedOutput()
	if code := jobtest.ExitCode(err); code != 69 || !strings.Contains(string(out), "no service decides: 1 of 3 are there, missing service") {
		t.Errorf("one of three: exit code %d\n%s", code, out)
	}

	v.Start(now)
	v.Start(first)
	v.Decider(last)
	last.Ask("is cancelled already", "cancel", "long")
	st = last.Until("all jobs have ended", func(st service.Status) bool {
		return len(st.Jobs) == 2 && !slices.ContainsFunc(st.Jobs, func(j service.JobStatus) bool { return j.Ended == nil || j.Workers > 0 })
	})
	for name, want := range map[string]live.State{"long": live.Cancelled, "other": live.Done} {
		if j := jobtest.JobOf(st, name); j.State != want {
			t.Errorf("%s is %s, want %s: %s", name, j.State, want, j.Why)
		}
	}
	last.UsedOnce("long", -1)
	last.UsedOnce("other", 40000)
}

// A service is away for longer than the others keep their log, and in the meantime the queue takes the place of its
// events. When it is back it is as good as another one: it decides, or has agreed to each decision, when one of the
// others is gone; the job that trains all the while has one life.
func TestSchedPeersAway(t *testing.T) {
	t.Parallel()
	v := jobtest.SchedulersOf(t, 3, "--policy", "fifo", "--places", "1")
	first := v.Decider(v.All[0])
	away, other := v.All[(first+1)%3], v.All[(first+2)%3]
	other.Submit("long", 4_000_000, 1, "")
	other.Trains("long", 1)
	away.Kill()

	const jobs = 300 // with two events each more than the log keeps, 512, and more than 64 KiB
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range jobs {
		spec := live.Spec{Name: fmt.Sprint("job-", i), Samples: 1000, Settings: map[string]string{"model": "softmax", "dataset": "digits", "note": strings.Repeat("x", 100)}}
		for _, do := range []func() error{
			func() error { _, err := service.Submit(ctx, other.Dir, spec); return err },
			func() error { return service.Cancel(ctx, other.Dir, spec.Name) },
		} {
			// for a moment there may be no service that decides
			for err := do(); err != nil && !strings.Contains(err.Error(), " already"); err = do() {
				if ctx.Err() != nil || job.ExitCode(err) != 69 {
					t.Fatal(err)
				}
			}
		}
	}
	if _, added, err := election.ReadDir(filepath.Join(other.Dir, "peers")); err != nil || len(added) >= 2*jobs {
		t.Errorf("after %d jobs %d events are kept, %v", jobs, len(added), err)
	}

	v.Start((first + 1) % 3)
	last := fmt.Sprint("job-", jobs-1)
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command(jobtest.Star(t), "report", away.Dir).CombinedOutput() // what it knows itself
		if err == nil && strings.Contains(string(out), last) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("who was away does not know %s after 3 minutes: %v\n%s", last, err, out[:min(len(out), 2000)])
		}
	}
	other.Kill()
	away.Ask("there is such a job already", "submit", "--name", "more", file(t))
	v.All[first].Kill()
	v.Start((first + 2) % 3)
	v.Decider(away)
	st := away.Until("all jobs are known", func(st service.Status) bool { return len(st.Jobs) == jobs+2 })
	cancelled := 0
	for _, j := range st.Jobs {
		if j.State == live.Cancelled {
			cancelled++
		}
	}
	if j := jobtest.JobOf(st, "long"); cancelled != jobs || j.Lives != 1 || j.Workers != 1 || jobtest.JobOf(st, "more").State != live.Waiting {
		t.Errorf("%d of %d jobs are cancelled; long: %+v; more: %+v", cancelled, jobs, j, jobtest.JobOf(st, "more"))
	}
	away.Trains("long", 1)
	away.Ask("is cancelled already", "cancel", "long")
	away.Ask("is cancelled already", "cancel", "more")
	away.Until("long has ended", func(st service.Status) bool { j := jobtest.JobOf(st, "long"); return j.Ended != nil && j.Workers == 0 })
	away.UsedOnce("long", -1)
}

// file is that of a job.
func file(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("name: job\nsettings: {model: softmax, dataset: digits}\nsamples: 1000\nrates: {1: 1300}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
