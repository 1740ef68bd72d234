package slurm

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// nodes of the cluster. Their names are addresses of this host, so that nothing needs to resolve them.
const nodes = 4

// cluster is a Slurm of its own on this host: munged, slurmctld and a slurmd for each node.
type cluster struct {
	dir string
	env []string
}

// start starts a cluster, which ends with the test. lines are added to its configuration; %s is its folder.
func start(t *testing.T, lines ...string) *cluster {
	t.Helper()
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for _, name := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		if _, err := exec.LookPath(name); err != nil {
			lacks(t, "needs Slurm (Debian: slurmctld slurmd slurm-client munge): %v", err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "slurm") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &cluster{dir: dir, env: append(os.Environ(), "SLURM_CONF="+filepath.Join(dir, "slurm.conf"), "STAR_TOKEN=of-a-test")}
	for _, sub := range []string{"state", "spool", "jobs"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	key := make([]byte, 1024)
	rand.Read(key)
	c.write(t, "munge.key", string(key))
	var ports []string
	for range nodes + 1 {
		_, port, err := net.SplitHostPort(jobtest.FreeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	var conf strings.Builder
	fmt.Fprintf(&conf, `ClusterName=test
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=%[2]s
SlurmUser=%[3]s
SlurmdUser=%[3]s
StateSaveLocation=%[4]s/state
SlurmdSpoolDir=%[4]s/spool/%%n
SlurmctldPidFile=%[4]s/slurmctld.pid
SlurmdPidFile=%[4]s/slurmd.%%n.pid
AuthType=auth/munge
AuthInfo=socket=%[4]s/munge.sock,cred_expire=20
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=2
ReturnToService=2
SlurmdTimeout=600
SlurmdParameters=config_overrides
FirstJobId=%[5]d
KillWait=30
MessageTimeout=100
TCPTimeout=100
BatchStartTimeout=300
UnkillableStepTimeout=600
`, host, ports[0], me.Username, dir, 1+mathrand.IntN(4000))
	for i := range nodes { // with more processors than there are: jobs run beside each other
		fmt.Fprintf(&conf, "NodeName=127.0.0.%d NodeHostname=localhost Port=%s CPUs=8\n", i+2, ports[i+1])
	}
	conf.WriteString("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
	for _, line := range lines {
		conf.WriteString(strings.ReplaceAll(line, "%s", dir) + "\n")
	}
	c.write(t, "slurm.conf", conf.String())

	c.daemon(t, "munged", "--foreground", "--force", "--key-file", dir+"/munge.key", "--socket", dir+"/munge.sock", "--pid-file", dir+"/munged.pid",
		"--log-file", dir+"/munged.log", "--seed-file", dir+"/munge.seed")
	c.until(t, "munged listens", func() bool { _, err := os.Stat(dir + "/munge.sock"); return err == nil })
	c.daemon(t, "slurmctld", "-D", "-f", dir+"/slurm.conf")
	for i := range nodes {
		c.daemon(t, "slurmd", "-D", "-f", dir+"/slurm.conf", "-N", fmt.Sprintf("127.0.0.%d", i+2))
	}
	c.until(t, "nodes are idle", func() bool { out, _ := c.try("sinfo", "-h", "-t", "idle", "-o", "%D"); return out == fmt.Sprint(nodes) })
	return c
}

func (c *cluster) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// daemon starts a process that ends with the test, and with this process.
func (c *cluster) daemon(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.SysProcAttr = c.env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	jobtest.Daemon(t, cmd, filepath.Join(c.dir, name+".out"))
}

// try runs a command of Slurm.
func (c *cluster) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = c.env
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, jobtest.Stderr(err))
	}
	return strings.TrimSpace(string(out)), err
}

func (c *cluster) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := c.try(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// until waits for something to become true.
func (c *cluster) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			var said strings.Builder
			logs, _ := filepath.Glob(filepath.Join(c.dir, "*.out"))
			jobs, _ := filepath.Glob(filepath.Join(c.dir, "jobs", "*", "slurm*"))
			for _, name := range append(logs, jobs...) {
				b, _ := os.ReadFile(name)
				fmt.Fprintf(&said, "%s:\n%s\n", filepath.Base(name), b[max(0, len(b)-4000):])
			}
			t.Fatalf("not within 5 minutes: %s\n%s", what, said.String())
		}
	}
}

// lacks skips a test for what it needs, or fails it where make e2e-… has asked for it: a target that has run nothing
// has not passed.
func lacks(t *testing.T, format string, a ...any) {
	t.Helper()
	if os.Getenv("TEST_MUST_RUN") != "" {
		t.Fatalf(format, a...)
	}
	t.Skipf(format, a...)
}
