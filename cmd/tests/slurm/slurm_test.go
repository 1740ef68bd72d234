package slurm

import (
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
	"star/cmd/tests/jobtest"
)

// job is a job of the cluster.
type job struct {
	*cluster
	id, dir string
}

// submit submits star.sbatch in a folder of its own, with a file of settings, and returns the job. Arguments before --
// are sbatch's.
func (c *cluster) submit(t *testing.T, settings string, env []string, args ...string) *job {
	t.Helper()
	script, err := filepath.Abs("../../../deploy/slurm/star.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	j := &job{cluster: c, dir: filepath.Join(c.dir, "jobs", t.Name())}
	if err := os.MkdirAll(j.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	j.settings(t, settings)
	options, command := args, []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		options, command = args[:i], args[i+1:]
	}
	cmd := exec.Command("sbatch", append(append(append([]string{"--parsable"}, options...), script), command...)...)
	cmd.Env, cmd.Dir = append(append(c.env, "STAR_OUT=out", "STAR_CONFIG=job.yaml"), env...), j.dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sbatch: %v\n%s", err, jobtest.Stderr(err))
	}
	j.id = strings.TrimSpace(string(out))
	return j
}

func (j *job) settings(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, "job.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// is waits for a state of the job.
func (j *job) is(t *testing.T, want string) {
	t.Helper()
	state := ""
	j.until(t, "job "+j.id+" is "+want, func() bool {
		out, _ := j.try("scontrol", "show", "job", "-o", j.id)
		for line := range strings.Lines(out) { // one for each task of an array, and each component
			_, rest, _ := strings.Cut(line, "JobState=")
			state, _, _ = strings.Cut(rest, " ")
			if state != want && slices.Contains([]string{"FAILED", "COMPLETED", "TIMEOUT", "CANCELLED"}, state) {
				b, _ := exec.Command("sh", "-c", "tail -n 40 "+j.dir+"/slurm-* "+j.cluster.dir+"/slurmctld.out").Output()
				t.Fatalf("the job is %s\n%s", line, b)
			}
			if state != want {
				return false
			}
		}
		return out != ""
	})
}

// updates waits until the run log has n updates.
func (j *job) updates(t *testing.T, n int) {
	t.Helper()
	j.until(t, fmt.Sprintf("%d updates", n), func() bool {
		b, _ := os.ReadFile(filepath.Join(j.dir, "out", "run.jsonl"))
		return strings.Count(string(b), `"type":"fire"`) >= n
	})
}

// worker is the process of a worker.
func (j *job) worker(t *testing.T, rank int) (pid int) {
	t.Helper()
	j.until(t, fmt.Sprintf("a process of worker %d", rank), func() bool { pid = j.process(rank); return pid != 0 })
	return pid
}

func (j *job) process(rank int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		env, _ := os.ReadFile(name)
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		vars := strings.Split(string(env), "\x00")
		if strings.Contains(string(args), "star\x00worker\x00") && slices.Contains(vars, "SLURM_JOB_ID="+j.id) && slices.Contains(vars, "SLURM_PROCID="+strconv.Itoa(rank)) &&
			slices.Contains(vars, "SLURM_CONF="+j.cluster.dir+"/slurm.conf") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			// neither srun nor one that is about to become star
			if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(stat), "(star)") {
				return pid
			}
		}
	}
	return 0
}

// trained fails the test unless a job has reached its end, with each of the given number of samples applied once.
func trained(t *testing.T, out string, samples, deaths int64) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(out, "run.*.jsonl"))
	lives, err := chaos.ReadAll(append(logs, filepath.Join(out, "run.jsonl")), os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	end := lives[len(lives)-1]
	if end.Samples != samples || end.Limit != samples {
		t.Errorf("%d samples of %d, want %d", end.Samples, end.Limit, samples)
	}
	died := int64(0)
	for i, l := range lives {
		died += int64(l.Deaths)
		if i > 0 && l.From != lives[i-1].Version {
			t.Errorf("a life begins with version %d, and the one before has saved version %d", l.From, lives[i-1].Version)
		}
	}
	if died != deaths {
		t.Errorf("%d workers died, want %d", died, deaths)
	}
	for _, v := range chaos.Judge(lives, []int64{end.Version}, nil, 0, time.Hour) {
		if !v.OK {
			t.Errorf("%s: %s", v.Name, v.Detail)
		}
	}
}

// patient are settings with which no process is given up because other programs have the processors.
const patient = "join-timeout: 10m\ndead-after: 5m\ngrace: 3m\n"

const small = patient + "dataset: digits:n=2000,test=100\nmodel: softmax\nmode: ssgd\neval-every: 0\nbatch: 10\n"

func TestSlurm(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	c := start(t)
	// A worker is killed, and the others go on. A minute before the end of its time the job saves what it has and is
	// queued again; it goes on with the checkpoint.
	t.Run("requeue", func(t *testing.T) {
		slow := "slow: [\"0:+5ms\", \"2:+5ms\"]\n"
		j := c.submit(t, small+slow+"epochs: 0\nsamples: 1000000000\n", []string{"STAR_SERVERS=2"}, "--nodes=3", "--ntasks=3")
		j.updates(t, 10)
		if err := syscall.Kill(j.worker(t, 1), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		j.until(t, "the worker is gone", func() bool {
			b, _ := os.ReadFile(filepath.Join(j.dir, "out", "run.jsonl"))
			return strings.Contains(string(b), `"type":"leave"`)
		})
		c.run(t, "scontrol", "update", "PartitionName=all", "State=DOWN") // nothing begins until the end of the job is known
		c.run(t, "scancel", "--batch", "--signal=USR1", j.id)
		j.is(t, "PENDING")
		var saved []struct{ Samples int64 }
		out, err := exec.Command(jobtest.Star(t), "checkpoint", "ls", filepath.Join(j.dir, "out"), "--json").Output()
		if err != nil || json.Unmarshal(out, &saved) != nil || len(saved) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		end := saved[0].Samples + 3000
		j.settings(t, fmt.Sprintf("%sepochs: 0\nsamples: %d\n", small, end))
		c.run(t, "scontrol", "update", "PartitionName=all", "State=UP")
		j.is(t, "COMPLETED")
		trained(t, filepath.Join(j.dir, "out"), end, 1)
	})
	t.Run("schedules", c.schedules)
	t.Run("several schedule", c.severalSchedule)
	t.Run("side by side", func(t *testing.T) {
		t.Run("array", func(t *testing.T) {
			t.Parallel()
			j := c.submit(t, "", []string{"STAR_CONFIG=%a.yaml", "STAR_OUT="}, "--array=1-2", "--ntasks=2")
			for a, lr := range map[string]string{"1": "0.1", "2": "0.01"} {
				if err := os.WriteFile(filepath.Join(j.dir, a+".yaml"), []byte(small+"epochs: 1\nlr: "+lr+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			j.is(t, "COMPLETED")
			outs, _ := filepath.Glob(filepath.Join(j.dir, "star-*"))
			if len(outs) != 2 {
				t.Fatalf("folders %v, want 2", outs)
			}
			for _, out := range outs {
				trained(t, out, 2000, 0)
			}
		})
		t.Run("heterogeneous", func(t *testing.T) {
			t.Parallel()
			j := c.submit(t, small+"epochs: 1\n", nil, "--nodes=1", "--ntasks=2", ":", "--nodes=2", "--ntasks=3")
			j.is(t, "COMPLETED")
			trained(t, filepath.Join(j.dir, "out"), 2000, 0)
		})
		t.Run("PyTorch", func(t *testing.T) {
			t.Parallel()
			const python = "/usr/bin/python3"
			if out, err := exec.Command(python, "-c", "import torch").CombinedOutput(); err != nil {
				t.Skipf("needs PyTorch (Debian: python3-torch): %v\n%s", err, out)
			}
			lib, err := filepath.Abs("../../../python")
			if err != nil {
				t.Fatal(err)
			}
			script := c.write(t, "train.py", `import torch, star_train.torch as star
x = torch.randn(320, 6)
model = torch.nn.Linear(6, 3)
opt = star.attach(model, torch.optim.SGD(model.parameters(), lr=0.02))
loader = star.loader(torch.utils.data.TensorDataset(x, x[:, :3].argmax(1)), batch_size=16)
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(a), b).backward()
        opt.step()
`)
			j := c.submit(t, patient+"mode: ssgd\nepochs: 2\n", []string{"PYTHONPATH=" + lib, "OMP_NUM_THREADS=1"}, "--ntasks=2", "--", python, script)
			j.is(t, "COMPLETED")
			trained(t, filepath.Join(j.dir, "out"), 640, 0)
		})
	})
}
