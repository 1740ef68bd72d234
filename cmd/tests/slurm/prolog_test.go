package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// deploy/slurm/prolog.sh: the nodes of a job find each other and are measured, the job starts; a node that is an
// outlier is drained, and the job is queued again.
func TestProlog(t *testing.T) {
	if os.Getenv("TEST_MUST_RUN") == "" {
		t.Skip("starts a cluster: make e2e-slurm")
	}
	script, err := filepath.Abs("../../../deploy/slurm/prolog.sh")
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, "Prolog="+script, "PrologFlags=Alloc")
	star := c.write(t, "star", fmt.Sprintf("#!/bin/sh\n%s \"$@\"\ncode=$?\n[ -e %s/sick ] && [ \"$SLURMD_NODENAME\" = 127.0.0.3 ] && code=1\necho \"$SLURMD_NODENAME $code $@\" >>%[2]s/prologs\nexit $code\n", jobtest.Star(t), c.dir))
	if err := os.Chmod(star, 0o700); err != nil {
		t.Fatal(err)
	}
	c.write(t, "star.token", "secret\n")
	c.write(t, "star.env", fmt.Sprintf("STAR=%s SWEEP_DIR=%[2]s SWEEP_STATE=%[2]s/state SWEEP_WAIT=60s\n", star, c.dir))
	submit := func() (id string) {
		return c.run(t, "sbatch", "--parsable", "--nodes=2", "--ntasks=2", "--nodelist=127.0.0.2,127.0.0.3", "--output="+c.dir+"/jobs/%j", "--wrap=srun true")
	}
	state := func(id string) string {
		out, _ := c.try("scontrol", "show", "job", id)
		_, out, _ = strings.Cut(out, "JobState=")
		out, _, _ = strings.Cut(out, " ")
		return out
	}
	id := submit()
	c.until(t, "the job is completed", func() bool { return state(id) == "COMPLETED" })
	b, err := os.ReadFile(filepath.Join(c.dir, "prologs"))
	if said := string(b); err != nil || strings.Count(said, "\n") != 2 || !strings.Contains(said, "127.0.0.2 0 doctor --sweep") || !strings.Contains(said, "--members 2") ||
		!strings.Contains(said, "127.0.0.3 0 doctor --sweep") || !strings.Contains(said, "--to 127.0.0.2:") {
		t.Errorf("%v: %s", err, said)
	}
	c.write(t, "sick", "")
	id = submit()
	c.until(t, "the node is drained", func() bool {
		out, _ := c.try("sinfo", "-h", "-n", "127.0.0.3", "-o", "%T")
		return strings.HasPrefix(out, "drain")
	})
	if out, _ := c.try("sinfo", "-h", "-n", "127.0.0.2", "-o", "%T"); strings.HasPrefix(out, "drain") {
		t.Errorf("the other node is %s, too", out)
	}
	c.until(t, "the job is queued again", func() bool { return state(id) == "PENDING" })
	c.run(t, "scancel", id)
}
