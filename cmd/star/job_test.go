package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/checkpoint"
	"star/cmd/internal/chaos"
	"star/cmd/internal/ports"
	"star/runlog"
)

// aboutNumbers leaves out, in the race run (-short), a test of what comes out of a job: the detector has nothing to say about it, and other
// tests start the same processes.
func aboutNumbers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("about numbers, not about races: go test without -short has it")
	}
}

// job runs star run with small defaults and returns its result and folder.
func job(t *testing.T, args ...string) (runlog.Result, string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args = append([]string{"run", "--listen", "127.0.0.1:0", "--out", dir, "--json", "--progress", "off",
		"--log-level", "warn", "--dataset", "digits:n=400,test=100"}, args...)
	if !slices.Contains(args, "--baseline") && !slices.Contains(args, "--mode") {
		args = append(args, "--mode", "ssgd")
	}
	if !slices.Contains(args, "--slow") {
		args = append(args, "--slow", "none")
	}
	cmd := exec.CommandContext(ctx, star(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("star %s: %v\n%s", strings.Join(args, " "), err, errs.Bytes())
	}
	var r runlog.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("star run --json printed %q: %v", out.Bytes(), err)
	}
	return r, dir
}

// writer makes files in a folder, and says where they are.
func writer(t *testing.T, dir string) func(name, text string) string {
	return func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// parameters of a job's last checkpoint.
func parameters(t *testing.T, r runlog.Result) []float32 {
	t.Helper()
	c, err := checkpoint.Open(r.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, c.Manifest().Params)
	if err := c.Params(v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Four workers in SSGD do what one does with the whole batch: docs/modes.md, the
// update rule. The sums are taken in another order, so the bits differ a little; at twice the
// rate that turns a ReLU within 50 steps, with Nesterov's momentum alone, too.
func TestSSGDIsOneProcessOnTheWholeBatch(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	one, _ := job(t, "--model", "lenet", "--workers", "1", "--shards", "1", "--batch", "64", "--steps", "50", "--lr", "0.005")
	four, _ := job(t, "--model", "lenet", "--workers", "4", "--shards", "3", "--batch", "16", "--steps", "50", "--lr", "0.005")
	if one.Updates != 50 || four.Updates != 50 || four.Steps != 200 || one.Samples != 3200 || four.Samples != 3200 {
		t.Fatalf("updates %d and %d, gradients %d, samples %d and %d", one.Updates, four.Updates, four.Steps, one.Samples, four.Samples)
	}
	a, b := parameters(t, one), parameters(t, four)
	var diff, norm float64
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		diff += d * d
		norm += float64(a[i]) * float64(a[i])
	}
	if rel := math.Sqrt(diff / norm); rel > 1e-5 || math.IsNaN(rel) {
		t.Errorf("after 50 steps the parameters differ by %.2g relative, want at most 1e-5", rel)
	}
}

// The number of shards changes no bit, with clipping, momentum and a schedule.
func TestShardsChangeNoBit(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	for optimizer, counts := range map[string][]string{"nesterov": {"2", "5"}, "dana": {"3"}} {
		args := []string{"--model", "mlp", "--workers", "2", "--batch", "16", "--steps", "12", "--optimizer", optimizer,
			"--clip", "0.5", "--weight-decay", "1e-4", "--schedule", "warmup=100,cosine=384"}
		one, _ := job(t, append(args, "--shards", "1")...)
		for _, k := range counts {
			many, _ := job(t, append(args, "--shards", k)...)
			a, b := parameters(t, one), parameters(t, many)
			for i := range a {
				if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
					t.Fatalf("%s, %s shards: parameter %d is %v, with one shard %v", optimizer, k, i, b[i], a[i])
				}
			}
		}
	}
}

// A job that resumes goes on as if it had not stopped.
func TestResume(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	for _, optimizer := range []string{"adam", "dana"} {
		args := []string{"--model", "mlp", "--workers", "2", "--batch", "16", "--optimizer", optimizer, "--lr", "0.001"}
		whole, _ := job(t, append(args, "--steps", "20")...)
		half, dir := job(t, append(args, "--steps", "10", "--shards", "3")...)
		rest, _ := job(t, append(args, "--steps", "20", "--shards", "2", "--resume", dir)...)
		if half.Updates != 10 || rest.Updates != 10 {
			t.Fatalf("%d and %d updates", half.Updates, rest.Updates)
		}
		a, b := parameters(t, whole), parameters(t, rest)
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				t.Fatalf("%s: parameter %d is %v after resuming, %v without a stop", optimizer, i, b[i], a[i])
			}
		}
	}
}

// A job that resumes has the optimiser of its checkpoint, if nobody asks for one: also what was made when another one was the default.
func TestResumeKeepsTheOptimiser(t *testing.T) {
	aboutNumbers(t)
	for _, arch := range []string{"ps", "allreduce"} {
		args, heavy := []string{"--model", "softmax", "--workers", "2", "--batch", "16", "--arch", arch}, []string{"--optimizer", "momentum"}
		whole, _ := job(t, append(append(args, heavy...), "--steps", "20")...)
		_, dir := job(t, append(append(args, heavy...), "--steps", "10")...)
		rest, _ := job(t, append(args, "--steps", "20", "--resume", dir)...)
		sameBits(t, arch+": with and without a stop", parameters(t, whole), parameters(t, rest))
	}
}

// Every mode trains; the update rule counts every gradient.
func TestModes(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		mode     string
		maxStale bool // staleness is possible
	}{{"ssgd", false}, {"asgd", true}, {"x=2", true}, {"groups=0,1/2", true}, {"backup=1", false}, {"ssgd queue=4", false}} {
		t.Run(c.mode, func(t *testing.T) {
			r, _ := job(t, "--model", "mlp", "--workers", "3", "--batch", "8", "--epochs", "9", "--lr", "0.05", "--mode", c.mode, "--slow", "2:2x")
			if r.Samples+r.Wasted != 3600 {
				t.Errorf("%d samples used and %d dropped, want 3600 in all", r.Samples, r.Wasted)
			}
			if !c.maxStale && r.Staleness.Max > 0 {
				t.Errorf("staleness %d in %s", r.Staleness.Max, c.mode)
			}
			if r.TestAccuracy < 0.2 { // 0.1 is chance; on a busy machine gradients are stale
				t.Errorf("accuracy %.2f: it does not learn", r.TestAccuracy)
			}
			if !strings.HasPrefix(r.Mode, c.mode) {
				t.Errorf("mode %s", r.Mode)
			}
		})
	}
}

// With a queue a slow worker has less of each round, and a job that is resumed makes what is left of the stream, each sample once.
func TestQueue(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) { testQueue(t, arch) })
	}
}

func testQueue(t *testing.T, arch string) {
	args := []string{"--arch", arch, "--model", "mlp", "--workers", "3", "--batch", "16", "--lr", "0.05", "--mode", "ssgd queue=8", "--slow", "2:+30ms", "--eval-every", "0"}
	half, dir := job(t, append(args, "--steps", "20")...)
	rest, _ := job(t, append(args, "--steps", "40", "--resume", dir)...)
	for i, r := range []runlog.Result{half, rest} {
		if r.Samples != 20*48 || r.Wasted != 0 || r.Staleness.Max != 0 {
			t.Errorf("job %d: %d samples in %d updates, %d wasted, staleness up to %d; want 960, none and none", i, r.Samples, r.Updates, r.Wasted, r.Staleness.Max)
		}
		text, err := os.ReadFile(r.RunLog)
		if err != nil {
			t.Fatal(err)
		}
		life, err := chaos.Read(bytes.NewReader(text), r.RunLog)
		if err != nil {
			t.Fatal(err)
		}
		var by [3]int
		for _, u := range life.Updates {
			for _, m := range u.Members {
				by[m.Worker] += m.Samples
			}
		}
		if 2*by[2] >= by[0] || 2*by[2] >= by[1] {
			t.Errorf("job %d: samples of the workers: %v; the last one is slow", i, by)
		}
	}
}

// Of a queue whose parts are whole shares nobody takes a second one: the updates of a ring are SSGD's, to the bit.
func TestQueueOfSharesIsSSGD(t *testing.T) {
	aboutNumbers(t)
	args := []string{"--arch", "allreduce", "--model", "mlp", "--workers", "3", "--batch", "16", "--lr", "0.05", "--steps", "30", "--clip", "1"}
	plain, _ := job(t, args...)
	queued, _ := job(t, append(args, "--mode", "ssgd queue=1")...)
	a, b := parameters(t, plain), parameters(t, queued)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("parameter %d is %v with a queue, %v without", i, b[i], a[i])
		}
	}
}

// Models with buffers average them for evaluation and checkpoint.
func TestBuffersAreAveraged(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	if err := writeCIFAR(dir, 60); err != nil {
		t.Fatal(err)
	}
	r, _ := job(t, "--dataset", "cifar10:"+dir, "--model", "resnet20:width=0.25", "--workers", "2", "--batch", "8", "--steps", "3")
	v := buffers(t, r)
	moved := 0
	for _, x := range v {
		if x != 0 && x != 1 {
			moved++
		}
	}
	if moved < len(v)/2 {
		t.Errorf("%d of %d running statistics have moved", moved, len(v))
	}
}

// … and a job that resumes begins with them.
func TestBuffersAreResumed(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	data := t.TempDir()
	if err := writeCIFAR(data, 60); err != nil {
		t.Fatal(err)
	}
	args := []string{"--dataset", "cifar10:" + data, "--model", "resnet20:width=0.25", "--workers", "1", "--batch", "8"}
	whole, _ := job(t, append(args, "--steps", "4")...)
	_, dir := job(t, append(args, "--steps", "2")...)
	rest, _ := job(t, append(args, "--steps", "4", "--resume", dir)...)
	a, b := buffers(t, whole), buffers(t, rest)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("running statistic %d is %v after resuming, %v without a stop", i, b[i], a[i])
		}
	}
}

func buffers(t *testing.T, r runlog.Result) []float32 {
	t.Helper()
	c, err := checkpoint.Open(r.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, c.BufferLen())
	if err := c.Buffers(v); err != nil || len(v) == 0 {
		t.Fatalf("%d buffers: %v", len(v), err)
	}
	return v
}

// writeCIFAR makes the six files of CIFAR-10's binary version, with n images each.
func writeCIFAR(dir string, n int) error {
	for _, name := range []string{"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"} {
		b := make([]byte, n*3073)
		for i := range b {
			b[i] = byte(i * 7 % 251)
		}
		for i := range n {
			b[i*3073] = byte(i % 10)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".bin"), b, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// startServer starts star ps and returns its command, the coordinator's address and
// what it writes to standard error.
func startServer(t *testing.T, args ...string) (cmd *exec.Cmd, addr string, errs *bytes.Buffer) {
	t.Helper()
	addr = freeAddr(t)
	cmd = exec.Command(star(t), append([]string{"ps", "--listen", addr, "--http", "off", "--out", t.TempDir(),
		"--log-format", "text", "--join-timeout", "60s", "--json"}, args...)...)
	errs = new(bytes.Buffer)
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, addr, errs
}

func freeAddr(t testing.TB) string {
	t.Helper()
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func python(t *testing.T) string {
	t.Helper()
	const path = "/usr/bin/python3"
	if exec.Command(path, "-c", "import msgpack").Run() != nil {
		t.Skip("needs " + path + " with msgpack (Debian: python3-msgpack)")
	}
	return path
}

// line is what worker.py prints for each version.
type line struct {
	Version int64
	Start   int64
	Count   int
	Head    []float64
	Sum     float64
}

// A worker in another language trains: it sends the initial parameters, pushes
// gradients of ones, and sees w ← w − η·g.
func TestPythonWorkerAlone(t *testing.T) {
	t.Parallel()
	py := python(t)
	ps, addr, errs := startServer(t, "--workers", "1", "--shards", "3", "--batch", "4", "--optimizer", "sgd", "--lr", "0.5", "--steps", "9", "--epochs", "0")
	waitFor(t, addr)
	out, err := exec.Command(py, "testdata/worker.py", addr, "0", "10", "cafe", "2", "none", "100").Output()
	if err != nil {
		t.Fatalf("worker.py: %v\n%s\nstar ps: %s", err, stderrOf(err), errs)
	}
	want := []line{
		{0, 0, 4, []float64{0, 1, 2}, 45},
		{1, 4, 4, []float64{-0.5, 0.5, 1.5}, 40},
		{2, 8, 4, []float64{-1, 0, 1}, 35},
	}
	got := lines(t, out)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("worker.py saw\n%v, want\n%v", got, want)
	}
	// It left before the end, and it was the last.
	err = ps.Wait()
	if code := ps.ProcessState.ExitCode(); code != 69 || !strings.Contains(errs.String(), "no worker is left") {
		t.Errorf("star ps: %v, want exit 69 with a reason:\n%s", err, errs)
	}
}

// … beside a worker of ours, who goes on when it has left.
func TestPythonWorkerBesideOurs(t *testing.T) {
	t.Parallel()
	py := python(t)
	ps, addr, errs := startServer(t, "--workers", "2", "--shards", "2", "--batch", "8", "--mode", "asgd", "--lr", "1e-6", "--steps", "30", "--epochs", "0")
	waitFor(t, addr)
	ours := exec.Command(star(t), "worker", "--coordinator", addr, "--rank", "0", "--workers", "2", "--model", "softmax",
		"--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json")
	stderr, err := ours.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ours.Start(); err != nil {
		t.Fatal(err)
	}
	defer ours.Process.Kill()
	// Ours must be the first: the job's model is that of the first worker. It says
	// "joined" when it has been welcomed.
	said := bufio.NewScanner(stderr)
	for said.Scan() && !strings.Contains(said.Text(), "joined") {
	}
	// The hash of the model is in the refusal of one with another.
	refused, err := exec.Command(py, "testdata/worker.py", addr, "1", "7850", "wrong", "1", "digits/train", "400").Output()
	if code(err) == 1 || len(refused) == 0 {
		t.Fatalf("worker.py with another model: %v %s", err, refused)
	}
	var no struct {
		Rejected string
		Exit     int
	}
	if err := json.Unmarshal(refused, &no); err != nil || no.Exit != 78 || !strings.Contains(no.Rejected, "wrong") {
		t.Fatalf("refusal %s (%v): want exit 78 and both hashes", refused, err)
	}
	_, hash, _ := strings.Cut(no.Rejected, "the job's")
	_, hash, _ = strings.Cut(hash, "has hash ")
	out, err := exec.Command(py, "testdata/worker.py", addr, "1", "7850", strings.TrimSpace(hash), "2", "digits/train", "400").Output()
	if err != nil {
		t.Fatalf("worker.py: %v\n%s%s\nstar ps: %s", err, out, stderrOf(err), errs)
	}
	if got := lines(t, out); len(got) != 3 {
		t.Errorf("worker.py saw %v", got)
	}
	var log []string
	for said.Scan() {
		log = append(log, said.Text())
	}
	if err := ours.Wait(); err != nil {
		t.Errorf("our worker: %v\n%s", err, strings.Join(log, "\n"))
	}
	if err := ps.Wait(); err != nil {
		t.Errorf("star ps: %v\n%s", err, errs)
	}
}

func lines(t *testing.T, out []byte) (ls []line) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(out))
	for dec.More() {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatalf("worker.py printed %s: %v", out, err)
		}
		ls = append(ls, l)
	}
	return ls
}

func code(err error) int {
	if x, ok := err.(*exec.ExitError); ok {
		return x.ExitCode()
	}
	return 0
}

func stderrOf(err error) string {
	if x, ok := err.(*exec.ExitError); ok {
		return string(x.Stderr)
	}
	return ""
}

// waitFor returns when somebody listens at addr.
func waitFor(t *testing.T, addr string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nobody listens at %s after 20 s", addr)
}

// SIGTERM ends every process of a job, and the exit code says so.
func TestSignal(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		dir := t.TempDir()
		cmd := exec.Command(star(t), "run", "--listen", "127.0.0.1:0", "--out", dir, "--epochs", "1000", "--progress", "off")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(dir, "run.jsonl")
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if b, _ := os.ReadFile(log); bytes.Contains(b, []byte(`"type":"fire"`)) {
				break
			}
			if time.Now().After(end) {
				cmd.Process.Kill()
				t.Fatalf("no update within 30 s\n%s", errs.Bytes())
			}
		}
		cmd.Process.Signal(sig)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v: exit code %d, want %d\n%s", sig, got, want, errs.Bytes())
		}
		b, err := os.ReadFile(log)
		if err != nil || !bytes.Contains(b, []byte(`"type":"summary"`)) {
			t.Errorf("%v: the run log has no last line (%v)", sig, err)
		}
	}
}
