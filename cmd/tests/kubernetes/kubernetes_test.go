package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	name string
	args []string // of star submit
}

// job has a token, and a volume for its folder, as its manifests want them.
func (c *cluster) job(t *testing.T, name string, args ...string) *job {
	t.Helper()
	j := &job{c, name, append([]string{"submit", "--engine", "k8s", "--name", name, "--image", "star:test"}, args...)}
	c.run(t, "create", "secret", "generic", name, "--from-literal=STAR_TOKEN=of-a-test")
	c.sh(t, "mkdir -p "+j.out()+"; chown 65532:65532 "+j.out())
	c.run(t, "apply", "-f", c.write(t, name+"-volume.yaml", fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec: {capacity: {storage: 10Gi}, accessModes: [ReadWriteMany], claimRef: {namespace: default, name: %[1]s}, hostPath: {path: %[2]s}}
`, name, j.out())))
	return j
}

func (j *job) out() string { return filepath.Join(j.dir, "out", j.name) }

// submit submits the job with more settings. The processors of this host are enough for it: less of them is asked for
// than star submit asks for.
func (j *job) submit(t *testing.T, settings ...string) time.Time {
	t.Helper()
	text, err := j.try(jobtest.Star(t), append(j.args, settings...)...)
	if err != nil {
		t.Fatal(err)
	}
	path := j.write(t, j.name+".yaml", strings.ReplaceAll(text, `cpu: "1"`, "cpu: 500m"))
	t.Cleanup(func() { // also of a subtest that has failed: the next ones need its place
		if _, err := j.kubectl("delete", "-f", path, "--ignore-not-found", "--timeout=2m"); err != nil {
			t.Logf("cannot delete %s: %v", j.name, err)
		}
	})
	at := time.Now()
	j.run(t, "apply", "-f", path)
	return at
}

// log is the run log so far, without a line that is being written.
func (j *job) log() (began time.Time, lines []map[string]any) {
	b, _ := os.ReadFile(filepath.Join(j.out(), "run.jsonl"))
	for line := range strings.Lines(string(b)) {
		var v map[string]any
		if json.Unmarshal([]byte(line), &v) != nil {
			break
		}
		if v["type"] == "start" {
			began, _ = time.Parse(time.RFC3339Nano, v["time"].(string))
		}
		lines = append(lines, v)
	}
	return began, lines
}

// since returns the times of lines of a type, and of a worker (-1: any), from at on.
func (j *job) since(at time.Time, kind string, worker int) (times []time.Time) {
	began, lines := j.log()
	for _, v := range lines {
		w, of := v["worker"].(float64)
		if v["type"] != kind || worker >= 0 && (!of || int(w) != worker) {
			continue
		}
		if when := began.Add(time.Duration(v["t"].(float64) * float64(time.Second))); when.After(at) {
			times = append(times, when)
		}
	}
	return times
}

// comes waits for lines of a type that are later than at.
func (j *job) comes(t *testing.T, at time.Time, kind string, worker, n int) time.Time {
	t.Helper()
	j.until(t, fmt.Sprintf("%s: %d %s of worker %d", j.name, n, kind, worker), func() bool { return len(j.since(at, kind, worker)) >= n })
	return j.since(at, kind, worker)[n-1]
}

// pause is the longest time between two updates behind at, until there have been n more than when it was asked for.
func (j *job) pause(t *testing.T, at time.Time, n int) time.Duration {
	t.Helper()
	j.comes(t, time.Now(), "fire", -1, n)
	last, longest := time.Time{}, time.Duration(0)
	for _, f := range j.since(at.Add(-2*time.Second), "fire", -1) {
		if !last.IsZero() && f.After(at) {
			longest = max(longest, f.Sub(last))
		}
		last = f
	}
	return longest
}

// pod is the pod of a host's name that has not ended.
func (j *job) pod(t *testing.T, host string) (name, node string) {
	t.Helper()
	j.until(t, "a pod "+host+" runs", func() bool {
		out, _ := j.kubectl("get", "pods", "--field-selector=status.phase=Running", "-o", `jsonpath={range .items[?(@.spec.hostname=="`+host+`")]}{.metadata.name} {.spec.nodeName}{"\n"}{end}`)
		fields := strings.Fields(out)
		if len(fields) < 2 {
			return false
		}
		name, node = fields[0], fields[1]
		return true
	})
	return name, node
}

// process is that of STAR in a pod.
func (j *job) process(host string) (pid int, began time.Time) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		env, _ := os.ReadFile(name)
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		words := strings.Split(string(args), "\x00")
		if len(words) > 1 && filepath.Base(words[0]) == "star" && (words[1] == "worker" || words[1] == "ps") && strings.Contains("\x00"+string(env), "\x00HOSTNAME="+host+"\x00") {
			info, err := os.Stat(filepath.Dir(name))
			if err != nil {
				continue
			}
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid, info.ModTime()
		}
	}
	return 0, time.Time{}
}

// running waits for the process of a host.
func (j *job) running(t *testing.T, host string) (pid int) {
	t.Helper()
	j.until(t, "the process of "+host, func() bool { pid, _ = j.process(host); return pid != 0 })
	return pid
}

// started waits for the processes of hosts, and returns when the last of them began, within 50 ms.
func (j *job) started(t *testing.T, hosts ...string) (last time.Time) {
	t.Helper()
	for _, h := range hosts {
		j.running(t, h)
		if _, began := j.process(h); began.After(last) {
			last = began
		}
	}
	return last
}

func hosts(format string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf(format, i))
	}
	return names
}

// trained fails the test unless a job has reached its end, with each of the given number of samples applied once.
func (j *job) trained(t *testing.T, samples int64) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(j.out(), "run.*.jsonl"))
	lives, err := chaos.ReadAll(append(logs, filepath.Join(j.out(), "run.jsonl")), os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	end := lives[len(lives)-1]
	if samples > 0 && (end.Samples != samples || end.Limit != samples) {
		t.Errorf("%d samples of %d, want %d", end.Samples, end.Limit, samples)
	}
	for i, l := range lives {
		if i > 0 && l.From != lives[i-1].Version {
			t.Errorf("a life begins with version %d, and the one before has saved version %d", l.From, lives[i-1].Version)
		}
	}
	for _, v := range chaos.Judge(lives, []int64{end.Version}, nil, 0, time.Hour) {
		if !v.OK {
			t.Errorf("%s: %s", v.Name, v.Detail)
		}
	}
}

// saved is the number of samples of the newest checkpoint.
func (j *job) saved(t *testing.T) int64 {
	t.Helper()
	var all []struct{ Samples int64 }
	out, err := exec.Command(jobtest.Star(t), "checkpoint", "ls", j.out(), "--json").Output()
	if err != nil || json.Unmarshal(out, &all) != nil || len(all) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	return all[len(all)-1].Samples
}

func (j *job) condition(t *testing.T, object, want string) {
	t.Helper()
	if _, err := j.kubectl("wait", "--for=condition="+want, object, "--timeout=5m"); err != nil {
		t.Fatalf("%v\n%s", err, j.said())
	}
}

// settings of a small job with updates of some 20 ms each. That a pod has no time between looks at it would be a
// kubelet's fault, not the job's.
var small = []string{"model=softmax", "dataset=digits:n=2000,test=100", "mode=ssgd", "batch=10", "eval-every=0", "slow=0:+20ms", "dead-after=3s", "epochs=0"}

const forever = "samples=1000000000"

func TestKubernetes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	if !isolate(t) {
		return
	}
	c := start(t)
	t.Run("manifests", c.testManifests)
	t.Run("jobset", c.testJobSet)
	t.Run("TLS", c.testTLS)
	t.Run("scaled", c.testScaled)
	t.Run("drain", c.testDrain)
	t.Run("lost", c.testLost)
	t.Run("refused", c.testRefused)
	t.Run("sched", c.testSched)
	t.Run("torch", c.testTorch)
	t.Run("late", c.testLate)
	t.Run("trainer", c.testTrainer)
}

// A JobSet of two servers and four workers: a worker that must restart comes back, also one with an evicted pod, the
// job grows and shrinks, and ends where it should.
func (c *cluster) testJobSet(t *testing.T) {
	j := c.job(t, "digits", append([]string{"--kind", "jobset", "--servers", "2", "--workers", "4"}, small...)...)
	at := j.submit(t, forever, "max-workers=6")
	began := j.started(t, append(hosts("digits-ps-0-%d", 2), hosts("digits-worker-0-%d", 4)...)...)
	first := j.comes(t, at, "fire", -1, 1)
	t.Logf("submission to the first update: %v, of which %v until all processes had begun, and %v behind that", first.Sub(at).Round(10*time.Millisecond), began.Sub(at).Round(10*time.Millisecond), first.Sub(began).Round(10*time.Millisecond))
	t.Logf("undisturbed: the longest pause is %v", j.pause(t, first, 100).Round(time.Millisecond))

	for _, host := range []string{"digits-ps-0-0", "digits-worker-0-0"} {
		pod, _ := j.pod(t, host)
		if out, err := j.kubectl("exec", pod, "--", "star", "doctor", "--engine"); err != nil {
			t.Errorf("star doctor --engine in %s: %v\n%s", host, err, out)
		}
	}
	if out, err := exec.Command(jobtest.Star(t), "doctor", "--engine").Output(); jobtest.ExitCode(err) != 1 || !strings.Contains(string(out), "kubectl exec POD") {
		t.Errorf("star doctor --engine outside: %v\n%s", err, out)
	}

	// The pod is stopped until the job goes on without it, and learns that when it continues.
	at = time.Now()
	pid := j.running(t, "digits-worker-0-1")
	pod, _ := j.pod(t, "digits-worker-0-1")
	syscall.Kill(pid, syscall.SIGSTOP)
	gone := j.comes(t, at, "leave", 1, 1)
	syscall.Kill(pid, syscall.SIGCONT)
	back := j.comes(t, gone, "join", 1, 1)
	j.exited(t, pod, "75")
	t.Logf("a worker exits with 75: %v until its place is taken", back.Sub(gone).Round(10*time.Millisecond))

	pod, _ = j.pod(t, "digits-worker-0-2")
	at = time.Now()
	j.run(t, "create", "--raw", "/api/v1/namespaces/default/pods/"+pod+"/eviction", "-f",
		j.write(t, "eviction.json", `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "`+pod+`", "namespace": "default"}}`))
	gone = j.comes(t, at, "leave", 2, 1)
	back = j.comes(t, gone, "join", 2, 1)
	t.Logf("a worker's pod is evicted: the longest pause is %v, and its place is taken %v later", j.pause(t, at, 50).Round(time.Millisecond), back.Sub(gone).Round(10*time.Millisecond))

	at = time.Now()
	j.scale(t, 6)
	for _, w := range []int{4, 5} {
		j.comes(t, at, "join", w, 1)
	}
	at = time.Now()
	j.scale(t, 4)
	for _, w := range []int{4, 5} {
		j.comes(t, at, "leave", w, 1)
	}
	j.pause(t, at, 50)

	j.run(t, "delete", "jobset", j.name, "--cascade=foreground", "--timeout=5m")
	end := j.saved(t) + 3000
	j.submit(t, fmt.Sprintf("samples=%d", end))
	j.condition(t, "jobset/"+j.name, "Completed")
	j.trained(t, end)
	j.run(t, "delete", "jobset", j.name)
}

// exited waits until the pod that arguments of kubectl name has ended, with a code.
func (j *job) exited(t *testing.T, pod, code string) {
	t.Helper()
	if _, err := j.kubectl("wait", "pod", pod, "--for=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}="+code, "--timeout=5m"); err != nil {
		t.Errorf("has not ended with %s: %v", code, err)
	}
}

// Two Jobs, of three servers, with copies of shards, and four workers: a node with a server is drained, and the job
// goes on.
func (c *cluster) testDrain(t *testing.T) {
	j := c.job(t, "copies", append([]string{"--servers", "3", "--workers", "4", "replicas=2"}, small...)...)
	at := j.submit(t, forever)
	j.comes(t, at, "fire", -1, 100)
	_, coordinator := j.pod(t, "copies-ps-0")
	_, node := j.pod(t, "copies-ps-1")
	if node == coordinator { // nodes are chosen as they were free
		_, node = j.pod(t, "copies-ps-2")
	}
	if node == coordinator {
		t.Fatalf("all servers are on %s", node)
	}
	at = time.Now()
	j.run(t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
	t.Logf("a node with a server is drained: the longest pause is %v", j.pause(t, at, 50).Round(time.Millisecond))
	j.run(t, "uncordon", node)
	pod, _ := j.pod(t, "copies-ps-0")
	j.run(t, "exec", pod, "--", "star", "ctl", "stop")
	j.condition(t, "job/copies-ps", "Complete")
	j.condition(t, "job/copies-worker", "Complete")
	j.trained(t, 0)
}

// Two Jobs without copies of shards: a server is killed, all processes end, and the job goes on from its last
// checkpoint.
func (c *cluster) testLost(t *testing.T) {
	j := c.job(t, "lost", append([]string{"--servers", "2", "--workers", "4"}, small...)...)
	at := j.submit(t, forever, "checkpoint-every=2s")
	j.comes(t, at, "checkpoint", -1, 1)
	saved := j.saved(t)
	at = time.Now()
	syscall.Kill(j.running(t, "lost-ps-1"), syscall.SIGKILL)
	j.until(t, "the job begins again", func() bool { _, err := os.Stat(filepath.Join(j.out(), "run.1.jsonl")); return err == nil })
	first := j.comes(t, at, "fire", -1, 1)
	t.Logf("a server without copies is killed: %v until the first update from the checkpoint on", first.Sub(at).Round(10*time.Millisecond))
	_, lines := j.log()
	for _, v := range lines {
		if v["type"] == "fire" {
			if samples := v["samples"].(float64); samples <= float64(saved) {
				t.Errorf("it goes on at %v samples, and the checkpoint had %d", samples, saved)
			}
			break
		}
	}
	pod, _ := j.pod(t, "lost-ps-0")
	j.run(t, "exec", pod, "--", "star", "ctl", "stop")
	j.condition(t, "job/lost-ps", "Complete")
	j.condition(t, "job/lost-worker", "Complete")
}

// A TrainJob that grows and shrinks: its number of nodes cannot be changed, and that of its JobSet can.
func (c *cluster) testScaled(t *testing.T) {
	c.trainer(t)
	j := c.job(t, "scaled", append([]string{"--kind", "trainjob", "--workers", "2"}, small...)...)
	at := j.submit(t, forever, "max-workers=3")
	j.comes(t, at, "fire", -1, 20)
	if _, err := j.kubectl("patch", "trainjob", j.name, "--type=merge", "-p", `{"spec": {"trainer": {"numNodes": 3}}}`); err == nil || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("the number of nodes of a TrainJob is changed: %v", err)
	}
	at = time.Now()
	j.scale(t, 3)
	j.comes(t, at, "join", 2, 1)
	at = time.Now()
	j.scale(t, 2)
	j.comes(t, at, "leave", 2, 1)
	j.pause(t, at, 50)
	pod, _ := j.pod(t, "scaled-ps-0-0")
	j.run(t, "exec", pod, "--", "star", "ctl", "stop")
	j.condition(t, "trainjob/scaled", "Complete")
	j.trained(t, 0)
	j.run(t, "delete", "trainjob", j.name)
}

// scale sets the number of workers in the JobSet of a job.
func (j *job) scale(t *testing.T, n int) {
	t.Helper()
	j.run(t, "patch", "jobset", j.name, "--type=json", "-p", fmt.Sprintf(`[{"op": "replace", "path": "/spec/replicatedJobs/1/template/spec/completions", "value": %[1]d},
 {"op": "replace", "path": "/spec/replicatedJobs/1/template/spec/parallelism", "value": %[1]d}]`, n))
}

// A job with missing data, submitted with --apply: a pod ends with 66, and nothing is tried again.
func (c *cluster) testRefused(t *testing.T) {
	j := c.job(t, "refused", "--kind", "jobset", "--workers", "1", "dataset=cifar10:/nowhere", "model=resnet20", "--apply")
	out, err := j.try(jobtest.Star(t), j.args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
	j.condition(t, "jobset/refused", "Failed")
	j.exited(t, "--selector=batch.kubernetes.io/job-completion-index=0,app.kubernetes.io/component=worker,app.kubernetes.io/instance=refused", "66")
	if restarts := j.run(t, "get", "jobset", j.name, "-o", "jsonpath={.status.restarts}"); restarts != "0" && restarts != "" {
		t.Errorf("the JobSet was begun again %s times", restarts)
	}
}
