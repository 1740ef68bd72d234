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

// The coordinator of a job answers callers with the job's token only, also on loopback: the owner of the service, which
// tells it. A caller that stops the job stops it: it is not done.
func TestSchedStopped(t *testing.T) {
	t.Parallel()
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Env = append(os.Environ(), "STAR_TOKEN=of-the-services")
	s.Start("--policy", "fifo", "--places", "1")
	s.Submit("long", 4_000_000, 1, "workers: 1\n", "--deadline", "10h")
	s.Trains("long", 1)
	addr := jobtest.JobOf(s.Until("it answers", func(service.Status) bool { return true }), "long").Addr
	ctl := func(env string, args ...string) (string, int) {
		cmd := exec.Command(jobtest.Star(t), append([]string{"ctl"}, args...)...)
		cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), env)
		out, err := cmd.CombinedOutput()
		return string(out), jobtest.ExitCode(err)
	}
	for _, token := range []string{"", "of-the-services"} {
		if out, code := ctl("STAR_TOKEN="+token, "--coordinator", addr, "stop"); code != 77 {
			t.Errorf("with the token %q: exit code %d\n%s", token, code, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(s.Jobs, "long", "token"))
	if err != nil {
		t.Fatal(err)
	}
	if out, code := ctl("STAR_TOKEN="+strings.TrimSpace(string(text)), "--coordinator", addr, "status"); code != 0 {
		t.Errorf("with the job's token: exit code %d\n%s", code, out)
	}
	if out, code := ctl("STAR_TOKEN=of-the-services", "--dir", s.Dir, "--job", "long", "stop"); code != 0 {
		t.Fatalf("the owner: exit code %d\n%s", code, out)
	}
	st := s.Until("long has ended", func(st service.Status) bool { return jobtest.JobOf(st, "long").Ended != nil })
	if j := jobtest.JobOf(st, "long"); j.State != live.Stopped || j.Met == nil || *j.Met || !strings.Contains(j.Why, "by star ctl, at ") {
		t.Errorf("long is %s: %s", j.State, j.Why)
	}
}

// Several services speak TLS with each other, and jobs do not get what they show, or their secret.
func TestSchedPeersTLS(t *testing.T) {
	t.Parallel()
	v := jobtest.SchedulersOf(t, 3, slices.Concat([]string{"--policy", "fifo", "--places", "1"}, jobtest.Certificates(t))...)
	s := v.All[(v.Decider(v.All[0])+1)%3] // one that passes questions on
	env := filepath.Join(t.TempDir(), "env")
	s.Submit("shows", 6000, 1, "workers: 1\ncommand: [sh, -c, 'env > "+env+".new; mv "+env+".new "+env+"; sleep 60']\n")
	s.Until("its worker has begun", func(service.Status) bool { _, err := os.Stat(env); return err == nil })
	text, err := os.ReadFile(env)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(filepath.Join(s.Jobs, "services.token"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), strings.TrimSpace(string(secret))) || strings.Contains(string(text), "STAR_TLS_KEY=") || !strings.Contains(string(text), "STAR_TOKEN=") {
		t.Errorf("a job has in its environment\n%s", text)
	}
	s.Ask("is cancelled already", "cancel", "shows")
}
