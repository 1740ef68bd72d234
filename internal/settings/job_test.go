package settings

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// load runs the command line of one of the programs as far as its settings.
func load(t *testing.T, role Role, env string, args ...string) (*Job, []string, error) {
	t.Helper()
	var j Job
	cmd := &cobra.Command{Use: "star-test", Args: NoArgs, RunE: func(*cobra.Command, []string) error { return nil },
		SilenceErrors: true, SilenceUsage: true}
	j.Bind(cmd, role)
	cmd.SetOut(io.Discard)
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		return &j, nil, err
	}
	warnings, err := j.Load(strings.Fields(env))
	if err != nil {
		return &j, warnings, err
	}
	return &j, warnings, j.Validate()
}

// Every program starts with its defaults, except that a server on all addresses needs a token or --insecure.
func TestDefaultsAreValid(t *testing.T) {
	for _, c := range []struct {
		role Role
		args []string
	}{{ForRun, nil}, {ForServer, []string{"--insecure"}}, {ForServer, []string{"--listen=127.0.0.1:7070"}},
		{ForWorker, nil}} {
		if _, warnings, err := load(t, c.role, "", c.args...); err != nil || len(warnings) > 0 {
			t.Errorf("role %d %v: %v %v", c.role, c.args, err, warnings)
		}
	}
	if _, warnings, err := load(t, ForServer, "STAR_TOKEN=x"); err != nil || len(warnings) > 0 {
		t.Errorf("with a token in the environment: %v %v", err, warnings)
	}
	if _, warnings, err := load(t, ForServer, "", "--token=x"); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "STAR_TOKEN") {
		t.Errorf("with a token on the command line: %v %v", err, warnings)
	}
}

func TestRoles(t *testing.T) {
	run, _, _ := load(t, ForRun, "RANK=3 WORLD_SIZE=8")
	if run.Workers != 4 || run.Rank != -1 || run.Listen != "127.0.0.1:7070" || run.HTTP != Off || run.Shards != 2 {
		t.Errorf("star run listens to launchers, or has other defaults: %+v", run)
	}
	worker, _, err := load(t, ForWorker, "RANK=3 WORLD_SIZE=8 MASTER_ADDR=m MASTER_PORT=7000")
	if err != nil || worker.Rank != 3 || worker.Workers != 8 || worker.Coordinator != "m:7000" {
		t.Errorf("rank %d of %d, coordinator %s, %v", worker.Rank, worker.Workers, worker.Coordinator, err)
	}
	server, _, err := load(t, ForServer, "JOB_COMPLETION_INDEX=1", "--servers=2", "--insecure")
	if err != nil || server.Rank != 1 || server.Workers != 4 || server.Listen != ":7070" {
		t.Errorf("rank %d, workers %d, listen %s, %v", server.Rank, server.Workers, server.Listen, err)
	}
	if server, _, err := load(t, ForServer, "RANK=1 WORLD_SIZE=3", "--insecure"); err != nil || server.Servers != 3 || server.Workers != 4 {
		t.Errorf("servers %d, workers %d, %v", server.Servers, server.Workers, err)
	}
	if o := server.Origin("rank"); o != "Kubernetes (JOB_COMPLETION_INDEX)" {
		t.Errorf("origin %q", o)
	}
}

// A star-ps without shards coordinates an all-reduce.
func TestArch(t *testing.T) {
	for _, c := range []struct {
		role   Role
		args   []string
		arch   string
		shards int
	}{
		{ForServer, []string{"--shards=0", "--insecure"}, AllReduce, 0},
		{ForServer, []string{"--shards=0", "--servers=2", "--insecure"}, "ps", 0},
		{ForServer, []string{"--arch=allreduce", "--insecure"}, AllReduce, 0},
		{ForRun, []string{"--arch=allreduce"}, AllReduce, 0},
		{ForRun, nil, "ps", 2},
	} {
		j, _, err := load(t, c.role, "", c.args...)
		if err != nil || j.Arch != c.arch || j.Shards != c.shards {
			t.Errorf("%v: arch %s with %d shards, %v; want %s with %d", c.args, j.Arch, j.Shards, err, c.arch, c.shards)
		}
	}
}

// An indexed job of Kubernetes knows its rank and not how many there are.
func TestRankWithoutSize(t *testing.T) {
	j, _, err := load(t, ForWorker, "JOB_COMPLETION_INDEX=7 KUBERNETES_SERVICE_HOST=10.0.0.1")
	if err != nil || j.Rank != 7 {
		t.Errorf("rank %d, %v", j.Rank, err)
	}
}

func TestAssumedCoordinatorIsReported(t *testing.T) {
	const env = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2"
	if _, warnings, err := load(t, ForWorker, env); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "127.0.0.1:7070") {
		t.Error(warnings, err)
	}
	if _, warnings, err := load(t, ForWorker, env, "--coordinator=a:1"); err != nil || len(warnings) != 0 {
		t.Error(warnings, err)
	}
}

func TestOtherEndReplacesEpochs(t *testing.T) {
	j, _, err := load(t, ForRun, "", "--steps=10")
	if err != nil || j.Epochs != 0 || j.Steps != 10 {
		t.Errorf("epochs %v, steps %d, %v", j.Epochs, j.Steps, err)
	}
	j, _, err = load(t, ForRun, "", "--steps=10", "--epochs=2")
	if err != nil || j.Epochs != 2 {
		t.Errorf("epochs %v, %v", j.Epochs, err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		role Role
		args string
		want string // in the error, besides the first flag
	}{
		{ForWorker, "--rank=4 --workers=4", "ranks are 0 to 3"},
		{ForWorker, "--rank=-2", "at least -1"},
		{ForServer, "--rank=1 --insecure", "--servers 1"},
		{ForServer, "--rank=-1 --insecure", "coordinator"},
		{ForServer, "--shards=0 --arch=ps --insecure", "no server would hold"},
		{ForRun, "--shards=2 --arch=allreduce", "has no shards"},
		{ForServer, "--servers=2 --arch=allreduce --insecure", "one star-ps"},
		{ForRun, "--workers=1025 --arch=allreduce", "at most 1024"},
		{ForRun, "--update-scale=firing --arch=allreduce", "only n"},
		{ForRun, "--arch=tree", "allreduce"},
		{ForRun, "--rider-wait=-1s", "at least 0s"},
		{ForRun, "--max-staleness=-1", "at least 0"},
		{ForRun, "--bucket=0", "0.001"},
		{ForRun, "--on-failure=retry", "shrink"},
		{ForServer, "--listen=:7070", "--insecure"},
		{ForServer, "--listen=10.0.0.1:7070", "--insecure"},
		{ForRun, "--listen=0.0.0.0:7070", "--insecure"},
		{ForRun, "--workers=0", "at least 1"},
		{ForRun, "--workers=5000", "at most 4096"},
		{ForServer, "--servers=4097 --insecure", "at most 4096"},
		{ForWorker, "--rank=4096", "ranks are 0 to 4095"},
		{ForRun, "--shards=0", "at least 1"},
		{ForRun, "--batch=0", "at least 1"},
		{ForRun, "--epochs=0", "never end"},
		{ForRun, "--epochs=-1", "at least 0"},
		{ForRun, "--lr=-0.1", "at least 0"},
		{ForRun, "--momentum=1", "less than 1"},
		{ForRun, "--shares=1,2", "--workers 4"},
		{ForRun, "--shares=1,2,3,4 --max-workers=6", "--max-workers 6"},
		{ForRun, "--max-workers=3", "--workers 4"},
		{ForRun, "--min-workers=5", "--workers 4"},
		{ForRun, "--min-workers=-1", "at least 0"},
		{ForRun, "--max-workers=4097", "at most 4096"},
		{ForRun, "--baseline=ssp:slack=1 --max-workers=6", "fixed number of workers"},
		{ForWorker, "--rank=6 --max-workers=6", "ranks are 0 to 5"},
		{ForRun, "--shares=1,2,0,3", "worker 2"},
		{ForRun, "--join-timeout=0s", "at least 1s"},
		{ForRun, "--dead-after=10ms", "at least 1s"},
		{ForRun, "--listen=7070", "host:port"},
		{ForRun, "--listen=127.0.0.1:http7", "port"},
		{ForRun, "--coordinator=:7070", "host"},
		{ForRun, "--advertise=0.0.0.0:7070", "reach"},
		{ForRun, "--advertise=a:0", "port 0"},
		{ForRun, "--http=8080", "host:port"},
		{ForWorker, "--http=unix:", "unix: wants the path of a socket, of at most 103 bytes"},
		{ForWorker, "--http=unix:/" + strings.Repeat("x", 103), "of at most 103 bytes"},
		{ForWorker, "--listen=unix:/tmp/star", "port"},
		{ForRun, "--tls-cert=a.pem", "--tls-key is missing"},
		{ForRun, "--out=", "folder"},
		{ForRun, "--job=", "name"},
		{ForRun, "--straggler-by=quota --straggler-trace=a.csv", "sleep"},
		{ForRun, "--update-scale=m", "firing"},
		{ForRun, "--on-nan=ignore", "skip"},
	} {
		_, _, err := load(t, c.role, "", strings.Fields(c.args)...)
		if _, ok := errors.AsType[*UsageError](err); !ok {
			t.Errorf("%s: %v, want a UsageError", c.args, err)
			continue
		}
		flag, _, _ := strings.Cut(c.args, "=")
		if !strings.Contains(err.Error(), flag) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q does not say %q and %q", c.args, err, flag, c.want)
		}
	}
}

// What was given is given to children too, also a zero, and nothing in the place of a name.
func TestGivenNothing(t *testing.T) {
	job, _, err := load(t, ForRun, "", "--lr=0", "--predictor=", "--eval-every=0")
	if err != nil {
		t.Fatal(err)
	}
	child, _, err := load(t, ForServer, strings.Join(job.Config.Environ("listen"), " "), "--insecure")
	if err != nil || child.LR != 0 || child.Predictor != "none" || child.EvalEvery != 0 {
		t.Errorf("learning rate %v, predictor %q, evaluations every %v epochs, %v", child.LR, child.Predictor, child.EvalEvery, err)
	}
}

// Loading again forgets what was loaded before.
func TestLoadTwice(t *testing.T) {
	j, _, err := load(t, ForRun, "STAR_WORKERS=7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Load(nil); err != nil || j.Workers != 4 || j.Origin("workers") != Default {
		t.Errorf("workers %d from %s, %v", j.Workers, j.Origin("workers"), err)
	}
}

// The run log's first line must be readable by programs and keep the secret.
func TestJobJSON(t *testing.T) {
	j, _, err := load(t, ForRun, "STAR_TOKEN=hunter2", "--slow=2:3x", "--join-timeout=30s")
	if err != nil {
		t.Fatal(err)
	}
	copied := *j
	copied.Workers = 9
	b, err := json.Marshal(copied)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "hunter2") {
		t.Errorf("the secret is shown: %s", b)
	}
	var got struct {
		Workers int
		Join    float64 `json:"join-timeout"`
		Slow    []string
		Token   string
		Model   string
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Workers != 9 || got.Join != 30 || len(got.Slow) != 1 || got.Token != redacted || got.Model != j.Model {
		t.Errorf("%s", b)
	}
	if j.JoinTimeout != 30*time.Second || j.Workers != 4 {
		t.Error("marshalling changed the job")
	}
}

// A worker that star run starts with its own settings ends up with the same job.
func TestChildSettings(t *testing.T) {
	parent, _, err := load(t, ForRun, "", "--lr=0.2", "--token=x", "--slow=2:3x", "--workers=3", "--steps=5")
	if err != nil {
		t.Fatal(err)
	}
	env := append(parent.Config.Environ("listen", "advertise", "rank", "http"), "STAR_RANK=2")
	child, warnings, err := load(t, ForWorker, strings.Join(env, " "))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if child.LR != 0.2 || child.Token != "x" || child.Workers != 3 || child.Rank != 2 || child.Epochs != 0 || len(child.Slow) != 1 {
		t.Errorf("%+v", child)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, ":1": false,
		"0.0.0.0:1": false, "10.0.0.1:1": false, "host:1": false, "x": false} {
		if got := Loopback(addr); got != want {
			t.Errorf("Loopback(%q) = %v", addr, got)
		}
	}
}
