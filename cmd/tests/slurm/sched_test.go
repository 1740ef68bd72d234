package slurm

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// star sched serve on the nodes of Slurm: workers are jobs of Slurm by the service's names, half of them leave when a
// second job comes, the service is killed and finds the others again, they get the places back, all end, and no sample
// is used twice.
func (c *cluster) schedules(t *testing.T) {
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Env, s.More = c.env, "mode: ssgd, "+jobtest.Slowed(8)
	serve := func() {
		// two places on each of four nodes
		s.Start("--engine", "slurm", "--cpus", "4", "--policy", "elasticflow", "--slot", "1s")
	}
	t.Cleanup(func() {
		s.Kill()
		if me, err := user.Current(); err == nil {
			c.try("scancel", "--user="+me.Username)
		}
	})
	serve()
	s.Until("the service answers", func(st service.Status) bool { return len(st.Hosts) == nodes && st.Hosts[0].Places == 2 })
	s.Submit("long", 100_000_000, 8, "")
	s.Trains("long", 8)
	c.runs(t, "long", 8)
	s.Submit("other", 100_000_000, 8, "")
	s.Trains("other", 4)
	s.Trains("long", 4)
	s.Kill()
	serve()
	defer c.try("scontrol", "update", "nodename=127.0.0.2", "state=resume")
	for _, name := range []string{"other", "long"} {
		if name == "long" {
			c.drains(t, s)
		}
		if name == "other" {
			s.Trains(name, 4)
		}
		if j := jobtest.JobOf(s.Until("it answers", func(st service.Status) bool { return true }), name); j.Lives != 1 || j.Preemptions != 0 {
			t.Errorf("%s has had %d lives: %s", name, j.Lives, j.Why)
		}
		s.Ask("is cancelled already", "cancel", name)
		s.Until(name+" has ended", func(st service.Status) bool {
			j := jobtest.JobOf(st, name)
			return j.State == live.Cancelled && j.Workers == 0
		})
		if name == "other" {
			s.Trains("long", 8) // it has the places
		}
	}
	c.until(t, "Slurm has none of them", func() bool {
		out, err := c.try("squeue", "--noheader", "--format=%j")
		return err == nil && !strings.Contains(out, "star-")
	})
	for _, name := range []string{"long", "other"} {
		s.UsedOnce(name, -1)
	}
}

// drains drains a node: what runs there goes on, but a worker that is lost there comes back when the node is resumed,
// and no sooner: its place stays empty until then.
func (c *cluster) drains(t *testing.T, s *jobtest.Scheduler) {
	const node = "127.0.0.2"
	closed := func(st service.Status) string {
		return st.Hosts[slices.IndexFunc(st.Hosts, func(h service.HostStatus) bool { return h.Host == node })].Closed
	}
	c.run(t, "scontrol", "update", "nodename="+node, "state=drain", "reason=new disk")
	st := s.Until("it knows", func(st service.Status) bool { return strings.HasSuffix(closed(st), "new disk") })
	if j := jobtest.JobOf(st, "long"); j.Workers != 8 {
		t.Errorf("on a node that drains long has lost workers: it has %d", j.Workers)
	}
	id := strings.Fields(c.run(t, "squeue", "--noheader", "--nodelist="+node, "--format=%A"))[0]
	c.run(t, "scancel", id)
	s.Trains("long", 4) // there are seven places, and the policy gives powers of two
	st = s.Until("the others have left", func(st service.Status) bool { return jobtest.JobOf(st, "long").Workers == 4 })
	if h := st.Hosts[slices.IndexFunc(st.Hosts, func(h service.HostStatus) bool { return h.Host == node })]; h.Workers != 1 {
		t.Errorf("the other worker on the node that drains was to go on, and there are %d", h.Workers)
	}
	c.run(t, "scontrol", "update", "nodename="+node, "state=resume")
	s.Trains("long", 8)
}

// Three services with one queue; each may have started a worker's srun. The one that decides is killed: another one
// decides, the job goes on in its life, and its workers leave when that says so. A worker with a lost srun, as with the
// machine that it ran on, is gone from Slurm, too, and another one comes.
func (c *cluster) severalSchedule(t *testing.T) {
	v := jobtest.SchedulersAt(t, 3, "--engine", "slurm", "--cpus", "4", "--policy", "elasticflow", "--slot", "1s")
	t.Cleanup(func() {
		for _, s := range v.All {
			s.Kill()
		}
		if me, err := user.Current(); err == nil {
			c.try("scancel", "--user="+me.Username)
		}
	})
	for r, s := range v.All {
		s.Env, s.More = c.env, "mode: ssgd, "+jobtest.Slowed(8)
		v.Start(r)
	}
	first := v.Decider(v.All[0])
	s := v.All[(first+1)%3]
	s.Submit("long", 100_000_000, 8, "")
	s.Trains("long", 8)
	before := c.runs(t, "long", 8)

	v.All[first].Kill()
	s.Trains("long", 8)
	if now := v.Decider(s); now == first {
		t.Fatalf("service %d was killed, and decides", first)
	}
	if now := c.runs(t, "long", 8); now != before {
		t.Errorf("Slurm had\n%s\nand has\n%s", before, now)
	}
	lost, job, pid := c.kept(t, s.Jobs, "long")
	for _, p := range []int{parent(t, pid), pid} {
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	c.until(t, lost+" is cancelled", func() bool { return !strings.Contains(c.running(t), lost+" "+job) })
	s.Trains("long", 8)
	if j := jobtest.JobOf(s.Until("it answers", func(st service.Status) bool { return true }), "long"); j.Lives != 1 || j.Preemptions != 0 {
		t.Errorf("long has had %d lives: %s", j.Lives, j.Why)
	}

	s.Submit("other", 100_000_000, 8, "")
	s.Trains("other", 4)
	s.Trains("long", 4)
	for _, name := range []string{"other", "long"} {
		s.Ask("is cancelled already", "cancel", name)
	}
	s.Until("both have ended", func(st service.Status) bool {
		return !slices.ContainsFunc(st.Jobs, func(j service.JobStatus) bool { return j.State != live.Cancelled || j.Workers > 0 })
	})
	c.until(t, "Slurm has none of them", func() bool {
		out, err := c.try("squeue", "--noheader", "--format=%j")
		return err == nil && !strings.Contains(out, "star-")
	})
	s.UsedOnce("long", -1)
	s.UsedOnce("other", -1)
}

// running lists what Slurm runs: name and number of each job.
func (c *cluster) running(t *testing.T) string {
	return c.run(t, "squeue", "--noheader", "--states=RUNNING", "--sort=i", "--format=%j %i")
}

// runs waits until Slurm lists the given number of workers of a job as running, which may be later than the job does,
// and returns what it lists.
func (c *cluster) runs(t *testing.T, name string, workers int) (all string) {
	c.until(t, fmt.Sprintf("Slurm runs %d workers of %s", workers, name), func() bool {
		all = c.running(t)
		return strings.Count(all, "star-"+name+"-worker-") == workers
	})
	return all
}

// kept is a worker of a job that Slurm runs: its name there, Slurm's number of it, and the process of its srun.
func (c *cluster) kept(t *testing.T, jobs, name string) (worker, id string, pid int) {
	t.Helper()
	c.until(t, "a worker of "+name+" has an srun", func() bool {
		out, err := c.try("squeue", "--noheader", "--states=RUNNING", "--format=%j %i")
		for line := range strings.Lines(out) {
			n := 0
			if _, e := fmt.Sscanf(line, "star-"+name+"-worker-%d %s", &n, &id); err != nil || e != nil {
				continue
			}
			text, e := os.ReadFile(filepath.Join(jobs, name, fmt.Sprintf("worker-%d.pid", n)))
			if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); e == nil && err == nil && program(pid) == "srun" {
				worker = fmt.Sprintf("star-%s-worker-%d", name, n)
				return true
			}
		}
		return false
	})
	return worker, id, pid
}

// program is what a process runs; "" if there is no such process.
func program(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

// parent is the process that has started another one.
func parent(t *testing.T, pid int) (of int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		_, rest, _ := strings.Cut(string(text), ") ")
		_, err = fmt.Sscanf(rest, "%s %d", new(string), &of)
	}
	if err != nil || of < 2 {
		t.Fatalf("who has started %d? %d, %v", pid, of, err)
	}
	return of
}
