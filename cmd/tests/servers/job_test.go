package servers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/internal/chaos"
	"star/runlog"

	"star/cmd/tests/jobtest"
)

// Four workers in SSGD do what one does with the whole batch: docs/theory.md, the
// update rule. The sums are taken in another order, so the bits differ a little; at twice the
// rate that turns a ReLU within 50 steps, with Nesterov's momentum alone, too.
func TestSSGDIsOneProcessOnTheWholeBatch(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	one, _ := jobtest.Run(t, "--model", "lenet", "--workers", "1", "--shards", "1", "--batch", "64", "--steps", "50", "--lr", "0.005")
	four, _ := jobtest.Run(t, "--model", "lenet", "--workers", "4", "--shards", "3", "--batch", "16", "--steps", "50", "--lr", "0.005")
	if one.Updates != 50 || four.Updates != 50 || four.Steps != 200 || one.Samples != 3200 || four.Samples != 3200 {
		t.Fatalf("updates %d and %d, gradients %d, samples %d and %d", one.Updates, four.Updates, four.Steps, one.Samples, four.Samples)
	}
	a, b := jobtest.Parameters(t, one), jobtest.Parameters(t, four)
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
	jobtest.AboutNumbers(t)
	t.Parallel()
	for optimizer, counts := range map[string][]string{"nesterov": {"2", "5"}, "dana": {"3"}} {
		args := []string{"--model", "mlp", "--workers", "2", "--batch", "16", "--steps", "12", "--optimizer", optimizer,
			"--clip", "0.5", "--weight-decay", "1e-4", "--schedule", "warmup=100,cosine=384"}
		one, _ := jobtest.Run(t, append(args, "--shards", "1")...)
		for _, k := range counts {
			many, _ := jobtest.Run(t, append(args, "--shards", k)...)
			a, b := jobtest.Parameters(t, one), jobtest.Parameters(t, many)
			for i := range a {
				if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
					t.Fatalf("%s, %s shards: parameter %d is %v, with one shard %v", optimizer, k, i, b[i], a[i])
				}
			}
		}
	}
}

// Nor do three servers with cuts between tensors in place of one, where the optimiser needs whole tensors.
func TestMuonOnServers(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "lenet:width=0.5", "--workers", "2", "--batch", "8", "--steps", "10", "--optimizer", "muon", "--lr", "0.004", "--weight-decay", "0.01"}
	one, _ := jobtest.Run(t, append(args, "--shards", "1")...)
	for _, more := range [][]string{{"--shards", "3"}, {"--shards", "7"}, {"--replicas", "2"}} {
		many, _ := jobtest.Run(t, append(args, more...)...)
		jobtest.SameBits(t, fmt.Sprint(more), jobtest.Parameters(t, one), jobtest.Parameters(t, many))
	}
	ring, _ := jobtest.Run(t, append(args, "--arch", "allreduce")...)
	jobtest.Near(t, "in a ring", jobtest.Parameters(t, one), jobtest.Parameters(t, ring))
	for _, mode := range []string{"asgd", "ssgd local=2 outer=nesterov"} {
		if r, _ := jobtest.Run(t, append(args, "--mode", mode)...); !(r.TrainLoss < one.TrainLoss*4) {
			t.Errorf("%s: loss %v, in ssgd %v", mode, r.TrainLoss, one.TrainLoss)
		}
	}
}

// A job that resumes goes on as if it had not stopped.
func TestResume(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, optimizer := range []string{"adam", "dana", "muon"} {
		args := []string{"--model", "mlp", "--workers", "2", "--batch", "16", "--optimizer", optimizer, "--lr", "0.001"}
		whole, _ := jobtest.Run(t, append(args, "--steps", "20")...)
		half, dir := jobtest.Run(t, append(args, "--steps", "10", "--shards", "3")...)
		rest, _ := jobtest.Run(t, append(args, "--steps", "20", "--shards", "2", "--resume", dir)...)
		if half.Updates != 10 || rest.Updates != 10 {
			t.Fatalf("%d and %d updates", half.Updates, rest.Updates)
		}
		a, b := jobtest.Parameters(t, whole), jobtest.Parameters(t, rest)
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				t.Fatalf("%s: parameter %d is %v after resuming, %v without a stop", optimizer, i, b[i], a[i])
			}
		}
	}
}

// A job that resumes has the optimiser of its checkpoint, unless a setting names one: also what was made when another
// one was the default.
func TestResumeKeepsTheOptimiser(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, arch := range []string{"ps", "allreduce"} {
		args, heavy := []string{"--model", "softmax", "--workers", "2", "--batch", "16", "--arch", arch}, []string{"--optimizer", "momentum"}
		whole, _ := jobtest.Run(t, append(append(args, heavy...), "--steps", "20")...)
		_, dir := jobtest.Run(t, append(append(args, heavy...), "--steps", "10")...)
		rest, _ := jobtest.Run(t, append(args, "--steps", "20", "--resume", dir)...)
		jobtest.SameBits(t, arch+": with and without a stop", jobtest.Parameters(t, whole), jobtest.Parameters(t, rest))
	}
}

// Every mode trains; the update rule counts every gradient.
func TestModes(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		mode     string
		maxStale bool // staleness is possible
	}{{"ssgd", false}, {"asgd", true}, {"x=2", true}, {"groups=0,1/2", true}, {"backup=1", false}, {"ssgd queue=4", false}} {
		t.Run(c.mode, func(t *testing.T) {
			r, _ := jobtest.Run(t, "--model", "mlp", "--workers", "3", "--batch", "8", "--epochs", "9", "--lr", "0.05", "--mode", c.mode, "--slow", "2:2x")
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

// With a queue a slow worker has less of each round, and a job that is resumed makes what is left of the stream, each
// sample once.
func TestQueue(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) { testQueue(t, arch) })
	}
}

func testQueue(t *testing.T, arch string) {
	args := []string{"--arch", arch, "--model", "mlp", "--workers", "3", "--batch", "16", "--lr", "0.05", "--mode", "ssgd queue=8", "--slow", "2:20x", "--eval-every", "0"}
	half, dir := jobtest.Run(t, append(args, "--steps", "20")...)
	rest, _ := jobtest.Run(t, append(args, "--steps", "40", "--resume", dir)...)
	for i, r := range []runlog.Result{half, rest} {
		if r.Samples != 20*48 || r.Wasted != 0 || r.Staleness.Max != 0 {
			t.Errorf("job %d: %d samples in %d updates, %d wasted, staleness up to %d; want 960, none and none", i, r.Samples, r.Updates, r.Wasted, r.Staleness.Max)
		}
		text, err := os.ReadFile(r.RunLog)
		if err != nil {
			t.Fatal(err)
		}
		life := chaos.Read(text, r.RunLog)
		var by [3]int
		for _, u := range life.Updates {
			for _, m := range u.Members {
				by[m.Worker] += m.Samples
			}
		}
		if by[2] >= by[0] || by[2] >= by[1] { // on a busy machine the others are slow, too
			t.Errorf("job %d: samples of the workers: %v; the last one is slow", i, by)
		}
	}
}

// If the parts of a queue are whole shares, no worker takes a second one: the updates of a ring are SSGD's, to the bit.
func TestQueueOfSharesIsSSGD(t *testing.T) {
	jobtest.AboutNumbers(t)
	args := []string{"--arch", "allreduce", "--model", "mlp", "--workers", "3", "--batch", "16", "--lr", "0.05", "--steps", "30", "--clip", "1"}
	plain, _ := jobtest.Run(t, args...)
	queued, _ := jobtest.Run(t, append(args, "--mode", "ssgd queue=1")...)
	a, b := jobtest.Parameters(t, plain), jobtest.Parameters(t, queued)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("parameter %d is %v with a queue, %v without", i, b[i], a[i])
		}
	}
}

// Models with buffers average them for evaluation and checkpoint.
func TestBuffersAreAveraged(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	if err := jobtest.WriteCIFAR(dir, 60); err != nil {
		t.Fatal(err)
	}
	r, _ := jobtest.Run(t, "--dataset", "cifar10:"+dir, "--model", "resnet20:width=0.25", "--workers", "2", "--batch", "8", "--steps", "3")
	v := jobtest.Buffers(t, r)
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
	jobtest.AboutNumbers(t)
	t.Parallel()
	data := t.TempDir()
	if err := jobtest.WriteCIFAR(data, 60); err != nil {
		t.Fatal(err)
	}
	args := []string{"--dataset", "cifar10:" + data, "--model", "resnet20:width=0.25", "--workers", "1", "--batch", "8"}
	whole, _ := jobtest.Run(t, append(args, "--steps", "4")...)
	_, dir := jobtest.Run(t, append(args, "--steps", "2")...)
	rest, _ := jobtest.Run(t, append(args, "--steps", "4", "--resume", dir)...)
	a, b := jobtest.Buffers(t, whole), jobtest.Buffers(t, rest)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("running statistic %d is %v after resuming, %v without a stop", i, b[i], a[i])
		}
	}
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
	ps, addr, errs := jobtest.StartServer(t, "--workers", "1", "--shards", "3", "--batch", "4", "--optimizer", "sgd", "--lr", "0.5", "--steps", "9", "--epochs", "0")
	jobtest.WaitFor(t, addr)
	out, err := exec.Command(py, "testdata/worker.py", addr, "0", "10", "cafe", "2", "none", "100").Output()
	if err != nil {
		t.Fatalf("worker.py: %v\n%s\nstar ps: %s", err, jobtest.Stderr(err), errs)
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
	// It left before the end, in good order, and it was the last.
	err = ps.Wait()
	if err != nil || !strings.Contains(errs.String(), "which have all left") {
		t.Errorf("star ps: %v, want a reason:\n%s", err, errs)
	}
}

// … beside a worker of ours, which goes on when it has left.
func TestPythonWorkerBesideOurs(t *testing.T) {
	t.Parallel()
	py := python(t)
	ps, addr, errs := jobtest.StartServer(t, "--workers", "2", "--shards", "2", "--batch", "8", "--mode", "asgd", "--lr", "1e-6", "--steps", "30", "--epochs", "0")
	jobtest.WaitFor(t, addr)
	ours := exec.Command(jobtest.Star(t), "worker", "--coordinator", addr, "--rank", "0", "--workers", "2", "--model", "softmax",
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
	if jobtest.ExitCode(err) == 1 || len(refused) == 0 {
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
	hash, _, _ = strings.Cut(hash, ";")
	out, err := exec.Command(py, "testdata/worker.py", addr, "1", "7850", strings.TrimSpace(hash), "2", "digits/train", "400").Output()
	if err != nil {
		t.Fatalf("worker.py: %v\n%s%s\nstar ps: %s", err, out, jobtest.Stderr(err), errs)
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

// SIGTERM ends every process of a job, and the exit code says so.
func TestSignal(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		dir := t.TempDir()
		cmd := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", dir, "--epochs", "1000", "--progress", "off")
		var errs jobtest.Output
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
