package jobtest

import (
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
	"star/internal/ports"
	"star/sched/live"
	"star/sched/service"
)

// Scheduler is a star sched serve with its folder.
type Scheduler struct {
	Dir  string
	Jobs string   // folder of the jobs
	Env  []string // nil: that of the test
	On   []string // prefix that runs a command on the service's host; nil: none
	More string   // settings of jobs, in YAML's braces

	t   *testing.T
	cmd *exec.Cmd
	log Output
}

// Slowed is the setting that slows all workers of a job down equally, so that its duration is independent of the
// selected workers.
func Slowed(workers int) string {
	slow := make([]string, workers)
	for i := range slow {
		slow[i] = fmt.Sprintf(`"%d:+20ms"`, i)
	}
	return "slow: [" + strings.Join(slow, ", ") + "]"
}

// SchedulerOf starts a service. The test ends it and all processes that it has started.
func SchedulerOf(t *testing.T, args ...string) *Scheduler {
	s := SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Start(args...)
	s.Until("the service answers", func(service.Status) bool { return true })
	return s
}

// SchedulerAt is a service that is not started yet; without a folder of jobs it uses its own.
func SchedulerAt(t *testing.T, dir, jobs string) *Scheduler {
	s := &Scheduler{t: t, Dir: dir, Jobs: cmp.Or(jobs, filepath.Join(dir, "jobs")), More: Slowed(2)}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("the service of %s said:\n%s", s.Dir, s.log.String())
		}
		locks, _ := filepath.Glob(filepath.Join(s.Jobs, "*", "worker-*.lock"))
		more, _ := filepath.Glob(filepath.Join(s.Jobs, "*", "life-*", "ps.lock"))
		for _, name := range append(locks, more...) {
			if err := end(name); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// end kills the process that has a lock, and on Linux those that it has started and that have the lock, too, such as a
// worker's program. It waits until they are gone: they write to the folder, which the test removes.
func end(name string) error {
	lock, err := os.Open(name)
	if err != nil {
		return err
	}
	defer lock.Close()
	for end := time.Now().Add(30 * time.Second); syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(strings.TrimSuffix(name, ".lock") + ".pid") // it may be about to be written
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, f := range files {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
			if to, _ := os.Readlink(f); to == name && pid != os.Getpid() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: process %q still runs 30 s after SIGKILL", name, text)
		}
	}
	return nil
}

// Start starts the service with more flags.
func (s *Scheduler) Start(args ...string) {
	s.t.Helper()
	s.cmd = s.Command("serve", append([]string{"--log-format", "text"}, args...)...)
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill is kill -9.
func (s *Scheduler) Kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// Submit hands a job in.
func (s *Scheduler) Submit(name string, samples int64, max int, more string, flags ...string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), name+".yaml")
	text := fmt.Sprintf("name: %s\nsettings: {model: softmax, dataset: digits, %s}\nsamples: %d\nmax-workers: %d\nrates: {1: 1300}\n%s", name, s.More, samples, max, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.Ask("there is such a job already", "submit", append([]string{file}, flags...)...)
}

// Command is one of star sched, in the folder of the service.
func (s *Scheduler) Command(what string, args ...string) *exec.Cmd {
	words := slices.Concat(s.On, []string{Star(s.t), "sched", what, "--dir", s.Dir}, args)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = s.Env
	return cmd
}

// Ask sends a command to the service and retries while no service decides. already is the answer if an earlier try has
// succeeded.
func (s *Scheduler) Ask(already, what string, args ...string) {
	s.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := s.Command(what, args...).CombinedOutput()
		switch {
		case err == nil, strings.Contains(string(out), already):
			return
		case ExitCode(err) != 69 || time.Now().After(end):
			s.t.Fatalf("%s %v: %v\n%s", what, args, err, out)
		}
	}
}

// Until waits for a status of the service.
func (s *Scheduler) Until(what string, f func(service.Status) bool) (st service.Status) {
	s.t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		out, err := s.Command("status", "--json").Output()
		if st = (service.Status{}); err == nil && json.Unmarshal(out, &st) == nil && f(st) {
			return st
		}
	}
	s.t.Fatalf("not in 3 minutes: %s\n%+v", what, st)
	return st
}

// JobOf is a job in the status of a service.
func JobOf(st service.Status, name string) (j service.JobStatus) {
	if i := slices.IndexFunc(st.Jobs, func(j service.JobStatus) bool { return j.Job == name }); i >= 0 {
		j = st.Jobs[i]
	}
	return j
}

// Trains waits until a job has that number of workers and makes updates.
func (s *Scheduler) Trains(name string, workers int) {
	s.t.Helper()
	var before int64 = -1
	s.Until(fmt.Sprintf("%s trains with %d workers", name, workers), func(st service.Status) bool {
		j := JobOf(st, name)
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

// UsedOnce checks that all lives of a job together used every sample once or, with an unknown number (-1), none twice.
func (s *Scheduler) UsedOnce(name string, samples int64) (lives int) {
	s.t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.Jobs, name, "life-*", "run.jsonl"))
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

// Schedulers are several services with one queue, by rank.
type Schedulers struct {
	All []*Scheduler
	// Args are the arguments of the service of a rank.
	Args func(rank int) []string

	t *testing.T
}

// SchedulersOf starts n services with more flags. The test ends them and all processes that they have started.
func SchedulersOf(t *testing.T, n int, args ...string) *Schedulers {
	v := SchedulersAt(t, n, args...)
	for r := range v.All {
		v.Start(r)
	}
	return v
}

// SchedulersAt are n services that are not started yet.
func SchedulersAt(t *testing.T, n int, args ...string) *Schedulers {
	root, jobs := t.TempDir(), t.TempDir()
	var addrs []string
	for range n {
		addr, err := ports.Reserve("127.0.0.1", addrs...)
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	v := &Schedulers{t: t, Args: func(rank int) []string {
		return append([]string{"--peers", strings.Join(addrs, ","), "--rank", fmt.Sprint(rank), "--jobs", jobs}, args...)
	}}
	for r := range n {
		v.All = append(v.All, SchedulerAt(t, filepath.Join(root, fmt.Sprint("service-", r)), jobs))
	}
	t.Cleanup(func() { // before those of each one: a service starts the processes of another one's jobs again
		for _, s := range v.All {
			s.Kill()
		}
	})
	return v
}

// Start starts the service of a rank.
func (v *Schedulers) Start(rank int) { v.All[rank].Start(v.Args(rank)...) }

// Decider is the rank of the deciding service, according to another one.
func (v *Schedulers) Decider(ask *Scheduler) (rank int) {
	v.t.Helper()
	ask.Until("one decides", func(st service.Status) bool {
		rank = slices.IndexFunc(st.Peers, func(p service.PeerStatus) bool { return p.Decides })
		return rank >= 0
	})
	return rank
}
