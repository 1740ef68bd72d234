package clusters

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// Three jobs under a service that is killed: one is made smaller, one stopped and resumed, and each sample is used
// once.
func TestSched(t *testing.T) {
	t.Parallel()
	s := jobtest.SchedulerOf(t, "--policy", "elasticflow", "--places", "2", "--slot", "1s")
	slow := filepath.Join(t.TempDir(), "norates.yaml")
	if err := os.WriteFile(slow, []byte("name: slow\nsettings: {model: softmax, dataset: digits}\nsamples: 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Until("the service answers", func(service.Status) bool { return true })
	if out, err := s.Command("submit", slow).CombinedOutput(); jobtest.ExitCode(err) != 65 || !strings.Contains(string(out), "norates.yaml: rates: this policy must know how fast a job is") {
		t.Errorf("a job of unknown speed: %v\n%s", err, out)
	}
	s.Submit("long", 60000, 2, "")
	s.Trains("long", 2)
	s.Submit("other", 15000, 2, "") // is not done before the next service has begun, on a slow machine either
	s.Trains("other", 1)
	s.Trains("long", 1)

	second := exec.Command(jobtest.Star(t), "sched", "serve", "--dir", s.Dir)
	if out, err := second.CombinedOutput(); second.ProcessState.ExitCode() != 78 || !strings.Contains(string(out), "another star sched serve has this folder, at 127.0.0.1:") {
		t.Errorf("a second service: %v\n%s", err, out)
	}

	s.Kill()
	s.Start("--policy", "srtf", "--places", "2") // which gives both places to one
	s.Trains("other", 2)
	if st := s.Until("long waits", func(st service.Status) bool { return jobtest.JobOf(st, "long").State == live.Waiting }); jobtest.JobOf(st, "long").Samples == 0 {
		t.Error("long waits, and is not known to have used samples")
	}
	s.Submit("gone", 6000, 2, "", "--deadline", "1h")
	if out, err := s.Command("cancel", "gone").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	st := s.Until("all jobs have ended", func(st service.Status) bool {
		return len(st.Jobs) == 3 && !slices.ContainsFunc(st.Jobs, func(j service.JobStatus) bool { return j.Ended == nil || j.Workers > 0 })
	})
	for name, want := range map[string]live.State{"long": live.Done, "other": live.Done, "gone": live.Cancelled} {
		if j := jobtest.JobOf(st, name); j.State != want {
			t.Errorf("%s is %s, want %s: %s", name, j.State, want, j.Why)
		}
	}
	out, err := s.Command("submit", file(t), "--name", "gone").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "gone is over, and keeps its name and folder: this one is gone.2\ngone.2 ") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := s.Command("cancel", "gone").CombinedOutput(); err == nil || !strings.Contains(string(out), "gone is cancelled already; it was submitted again, and gone.2 is ") {
		t.Errorf("%v\n%s", err, out)
	}
	st = s.Until("gone.2 is done", func(st service.Status) bool { return jobtest.JobOf(st, "gone.2").State == live.Done })
	if j := jobtest.JobOf(st, "gone"); j.State != live.Cancelled || j.Samples != 0 {
		t.Errorf("gone is %s with %d samples: %s", j.State, j.Samples, j.Why)
	}
	s.UsedOnce("gone.2", 1000)
	s.UsedOnce("other", 15000)
	if lives := s.UsedOnce("long", 60000); lives < 2 {
		t.Errorf("long had %d lives", lives)
	}
}
