package clusters

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/internal/chaos"
	"star/cmd/internal/schedule"
	"star/cmd/tests/jobtest"
	"star/sched/live"
)

// scheduler is a star sched serve with its folder.
type scheduler struct {
	t    *testing.T
	dir  string
	jobs string // folder of the jobs
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// schedulerOf starts a service, which is ended with the test, and all that it has started.
func schedulerOf(t *testing.T, args ...string) *scheduler {
	s := schedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.start(args...)
	s.until("the service answers", func(schedule.Status) bool { return true })
	return s
}

// schedulerAt is a service that is not started yet; without a folder of jobs it has its own.
func schedulerAt(t *testing.T, dir, jobs string) *scheduler {
	s := &scheduler{t: t, dir: dir, jobs: cmp.Or(jobs, filepath.Join(dir, "jobs"))}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("the service of %s said:\n%s", s.dir, s.log.String())
		}
		pids, _ := filepath.Glob(filepath.Join(s.jobs, "*", "worker-*.pid"))
		more, _ := filepath.Glob(filepath.Join(s.jobs, "*", "life-*", "ps.pid"))
		for _, name := range append(pids, more...) {
			lock, err := os.Open(strings.TrimSuffix(name, ".pid") + ".lock")
			if err != nil {
				continue
			}
			text, _ := os.ReadFile(name)
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			lock.Close()
		}
	})
	return s
}

func (s *scheduler) start(args ...string) {
	s.t.Helper()
	s.cmd = exec.Command(jobtest.Star(s.t), append([]string{"sched", "serve", "--dir", s.dir, "--log-format", "text"}, args...)...)
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill is kill -9.
func (s *scheduler) kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// submit hands a job in.
func (s *scheduler) submit(name string, samples int64, max int, more string, flags ...string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), name+".yaml")
	text := fmt.Sprintf("name: %s\nsettings: {model: softmax, dataset: digits, slow: [%s]}\nsamples: %d\nmax-workers: %d\nrates: {1: 1300}\n%s", name, `"0:+20ms", "1:+20ms"`, samples, max, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.ask("there is such a job already", append([]string{"submit", "--dir", s.dir, file}, flags...)...)
}

// ask asks the service for something, again while nobody decides; already is what it says if it was done the time before.
func (s *scheduler) ask(already string, args ...string) {
	s.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command(jobtest.Star(s.t), append([]string{"sched"}, args...)...).CombinedOutput()
		switch {
		case err == nil, strings.Contains(string(out), already):
			return
		case exitCode(err) != 69 || time.Now().After(end):
			s.t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
}

// until waits for the service to say something.
func (s *scheduler) until(what string, f func(schedule.Status) bool) (st schedule.Status) {
	s.t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command(jobtest.Star(s.t), "sched", "status", "--dir", s.dir, "--json").Output()
		if st = (schedule.Status{}); err == nil && json.Unmarshal(out, &st) == nil && f(st) {
			return st
		}
	}
	s.t.Fatalf("not in 3 minutes: %s\n%+v", what, st)
	return st
}

func job(st schedule.Status, name string) (j schedule.JobStatus) {
	if i := slices.IndexFunc(st.Jobs, func(j schedule.JobStatus) bool { return j.Job == name }); i >= 0 {
		j = st.Jobs[i]
	}
	return j
}

// trains waits until a job has so many workers, and makes updates.
func (s *scheduler) trains(name string, workers int) {
	s.t.Helper()
	var before int64 = -1
	s.until(fmt.Sprintf("%s trains with %d workers", name, workers), func(st schedule.Status) bool {
		j := job(st, name)
		if j.State != live.Running || j.Workers != workers {
			before = -1
			return false
		}
		if before < 0 {
			before = j.Samples
		}
		return j.Samples > before
	})
}

// usedOnce says that all lives of a job together have used every sample once, or, of an unknown number (-1), none twice.
func (s *scheduler) usedOnce(name string, samples int64) (lives int) {
	s.t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.jobs, name, "life-*", "run.jsonl"))
	if err != nil || len(logs) == 0 {
		s.t.Fatalf("%s has no logs: %v", name, err)
	}
	attempts, err := chaos.ReadAll(logs, os.ReadFile)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range chaos.Judge(attempts, nil, nil, 0, time.Minute) {
		if (v.Name == "one lineage of versions" || v.Name == "every sample once") && !v.OK {
			s.t.Errorf("%s: %s: %s", name, v.Name, v.Detail)
		}
	}
	var at int64
	for _, a := range attempts {
		if a.Before != at {
			s.t.Errorf("%s goes on at sample %d, and %d were applied before", a.Name, a.Before, at)
		}
		at = a.Samples
	}
	if samples >= 0 && at != samples {
		s.t.Errorf("%s used %d samples of %d", name, at, samples)
	}
	return len(attempts)
}

// Three jobs under a service that is killed: one is made smaller, one stopped and resumed, and each sample is used once.
func TestSched(t *testing.T) {
	t.Parallel()
	s := schedulerOf(t, "--policy", "elasticflow", "--places", "2", "--slot", "1s")
	s.submit("long", 40000, 2, "")
	s.trains("long", 2)
	s.submit("other", 6000, 2, "")
	s.trains("other", 1)
	s.trains("long", 1)

	second := exec.Command(jobtest.Star(t), "sched", "serve", "--dir", s.dir)
	if out, err := second.CombinedOutput(); second.ProcessState.ExitCode() != 78 || !strings.Contains(string(out), "another star sched serve has this folder, at 127.0.0.1:") {
		t.Errorf("a second service: %v\n%s", err, out)
	}

	s.kill()
	s.start("--policy", "srtf", "--places", "2") // which gives both places to one
	s.trains("other", 2)
	if st := s.until("long waits", func(st schedule.Status) bool { return job(st, "long").State == live.Waiting }); job(st, "long").Samples == 0 {
		t.Error("long waits, and is not known to have used samples")
	}
	s.submit("gone", 6000, 2, "", "--deadline", "1h")
	if out, err := exec.Command(jobtest.Star(t), "sched", "cancel", "--dir", s.dir, "gone").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	st := s.until("all jobs have ended", func(st schedule.Status) bool {
		return len(st.Jobs) == 3 && !slices.ContainsFunc(st.Jobs, func(j schedule.JobStatus) bool { return j.Ended == nil || j.Workers > 0 })
	})
	for name, want := range map[string]live.State{"long": live.Done, "other": live.Done, "gone": live.Cancelled} {
		if j := job(st, name); j.State != want {
			t.Errorf("%s is %s, want %s: %s", name, j.State, want, j.Why)
		}
	}
	s.usedOnce("other", 6000)
	if lives := s.usedOnce("long", 40000); lives < 2 {
		t.Errorf("long had %d lives", lives)
	}
}
