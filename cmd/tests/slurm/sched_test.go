package slurm

import (
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/internal/schedule"
	"star/cmd/tests/jobtest"
	"star/sched/live"
)

// star sched serve on the nodes of Slurm: workers are jobs of Slurm by the service's names, half of them leave when a second job comes, the service is killed and finds the
// others again, they get the places back, all end, and no sample is used twice.
func (c *cluster) schedules(t *testing.T) {
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.Env, s.More = c.env, `mode: ssgd, slow: ["0:+20ms"]`
	serve := func() {
		s.Start("--engine", "slurm", "--cpus", "4", "--policy", "elasticflow", "--slot", "1s") // two places on each of four nodes
	}
	t.Cleanup(func() {
		s.Kill()
		if me, err := user.Current(); err == nil {
			c.try("scancel", "--user="+me.Username)
		}
	})
	serve()
	s.Until("the service answers", func(st schedule.Status) bool { return len(st.Hosts) == nodes && st.Hosts[0].Places == 2 })
	s.Submit("long", 100_000_000, 8, "")
	s.Trains("long", 8)
	if names := c.run(t, "squeue", "--noheader", "--states=RUNNING", "--format=%j"); strings.Count(names, "star-long-worker-") != 8 {
		t.Errorf("Slurm has\n%s", names)
	}
	s.Submit("other", 100_000_000, 8, "")
	s.Trains("other", 4)
	s.Trains("long", 4)
	s.Kill()
	serve()
	for _, name := range []string{"other", "long"} {
		if name == "other" {
			s.Trains(name, 4)
		}
		if j := jobtest.JobOf(s.Until("it answers", func(st schedule.Status) bool { return true }), name); j.Lives != 1 || j.Preemptions != 0 {
			t.Errorf("%s has had %d lives: %s", name, j.Lives, j.Why)
		}
		s.Ask("is cancelled already", "cancel", name)
		s.Until(name+" has ended", func(st schedule.Status) bool {
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
