package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/internal/chaos"
	"star/cmd/internal/schedule"
	"star/cmd/tests/jobtest"
	"star/sched/live"
)

// star sched serve on the nodes of Slurm: workers are jobs of Slurm by the service's names, half of them leave when a second job comes, the service is killed and finds the
// others again, they get the places back, all end, and no sample is used twice.
func (c *cluster) schedules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "q")
	star := func(args ...string) *exec.Cmd {
		cmd := exec.Command(jobtest.Star(t), append([]string{"sched", args[0], "--dir", dir}, args[1:]...)...)
		cmd.Env = c.env
		return cmd
	}
	var service *exec.Cmd
	serve := func() {
		service = star("serve", "--engine", "slurm", "--cpus", "4", "--policy", "elasticflow", "--slot", "1s", "--log-format", "text") // two places on each of four nodes
		service.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		service.Stderr = os.Stderr
		if err := service.Start(); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		service.Process.Kill()
		service.Wait()
	}
	serve()
	t.Cleanup(func() {
		end()
		if me, err := user.Current(); err == nil {
			c.try("scancel", "--user="+me.Username)
		}
		pids, _ := filepath.Glob(filepath.Join(dir, "jobs", "*", "*", "ps.pid"))
		more, _ := filepath.Glob(filepath.Join(dir, "jobs", "*", "worker-*.pid"))
		for _, name := range append(pids, more...) {
			lock, err := os.Open(strings.TrimSuffix(name, ".pid") + ".lock")
			if err != nil {
				continue
			}
			var pid int
			text, _ := os.ReadFile(name)
			if fmt.Sscan(string(text), &pid); pid > 1 && syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
				syscall.Kill(pid, syscall.SIGTERM)
			}
			lock.Close()
		}
	})
	until := func(what string, f func(schedule.Status) bool) (st schedule.Status) {
		c.until(t, what, func() bool {
			out, err := star("status", "--json").Output()
			st = schedule.Status{}
			return err == nil && json.Unmarshal(out, &st) == nil && f(st)
		})
		return st
	}
	job := func(st schedule.Status, name string) (j schedule.JobStatus) {
		for _, o := range st.Jobs {
			if o.Job == name {
				j = o
			}
		}
		return j
	}
	trains := func(name string, workers int) {
		var before int64 = -1
		until(fmt.Sprintf("%s trains with %d workers", name, workers), func(st schedule.Status) bool {
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
	submit := func(name string, samples int64) {
		file := filepath.Join(t.TempDir(), name+".yaml")

		text := fmt.Sprintf("name: %s\nsettings: {model: softmax, dataset: digits, mode: ssgd, slow: [\"0:+20ms\"]}\nsamples: %d\nmax-workers: 8\nrates: {1: 1300}\n", name, samples)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := star("submit", file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	until("the service answers", func(st schedule.Status) bool { return len(st.Hosts) == nodes && st.Hosts[0].Places == 2 })
	submit("long", 100_000_000)
	trains("long", 8)
	if names := c.run(t, "squeue", "--noheader", "--states=RUNNING", "--format=%j"); strings.Count(names, "star-long-worker-") != 8 {
		t.Errorf("Slurm has\n%s", names)
	}
	submit("other", 100_000_000)
	trains("other", 4)
	trains("long", 4)
	end()
	serve()
	for _, name := range []string{"other", "long"} {
		if name == "other" {
			trains(name, 4)
		}
		if j := job(until("it answers", func(st schedule.Status) bool { return true }), name); j.Lives != 1 || j.Preemptions != 0 {
			t.Errorf("%s has had %d lives: %s", name, j.Lives, j.Why)
		}
		if out, err := star("cancel", name).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		until(name+" has ended", func(st schedule.Status) bool { j := job(st, name); return j.State == live.Cancelled && j.Workers == 0 })
		if name == "other" {
			trains("long", 8) // it has the places
		}
	}
	c.until(t, "Slurm has none of them", func() bool {
		out, err := c.try("squeue", "--noheader", "--format=%j")
		return err == nil && !strings.Contains(out, "star-")
	})
	for _, name := range []string{"long", "other"} {
		logs, _ := filepath.Glob(filepath.Join(dir, "jobs", name, "life-*", "run.jsonl"))
		attempts, err := chaos.ReadAll(logs, os.ReadFile)
		if err != nil || len(logs) == 0 {
			t.Fatalf("%s: %d logs, %v", name, len(logs), err)
		}
		for _, v := range chaos.Judge(attempts, nil, nil, 0, time.Minute) {
			if v.Name == "every sample once" && !v.OK {
				t.Errorf("%s: %s", name, v.Detail)
			}
		}
	}
}
