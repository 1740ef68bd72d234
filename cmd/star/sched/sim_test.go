package sched

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"star/sched"
	"star/sched/schedsim"
	"star/sched/workload"
)

// Jobs come as far apart as --every says.
func TestSchedGenEvery(t *testing.T) {
	var out bytes.Buffer
	cmd := schedGenCommand()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--jobs", "2000", "--every", "2m"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	jobs, err := workload.StarTrace(&out)
	if err != nil || len(jobs) != 2000 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	if every := jobs[1999].Submit / 2000; math.Abs(every/120-1) > .1 {
		t.Errorf("%v s apart, want 120", every)
	}
}

// Each user of jobs for two kinds of machines needs a queue.
func TestUsers(t *testing.T) {
	p := schedSim{Input: schedsim.Input{Queues: filepath.Join(t.TempDir(), "queues")}}
	if err := os.WriteFile(p.Queues, []byte("# 0\nb 0.0\n1.0\n# 1\na 0.0\n1.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	job := func(user string) *sched.Job { return &sched.Job{ID: "7", User: user, Either: new(sched.Either)} }
	if names, err := p.Users([]*sched.Job{job("a"), job("b"), {User: "other"}}); err != nil || !slices.Equal(names, []string{"b", "a"}) {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := p.Users([]*sched.Job{job("a"), job("c")}); !errors.Is(err, workload.ErrInput) || !strings.Contains(err.Error(), `no queue "c", which job 7 is in`) {
		t.Errorf("%v", err)
	}
}
