package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/coord"
	"star/runlog"
)

// distance is the relative Euclidean distance of two vectors.
func distance(a, b []float32) float64 {
	var diff, norm float64
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		diff += d * d
		norm += float64(a[i]) * float64(a[i])
	}
	return math.Sqrt(diff / norm)
}

func near(t *testing.T, what string, a, b []float32) {
	t.Helper()
	if d := distance(a, b); !(d <= 1e-5) {
		t.Errorf("%s: the parameters differ by %.2g relative, want at most 1e-5", what, d)
	}
}

func sameBits(t *testing.T, what string, a, b []float32) {
	t.Helper()
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: parameter %d is %v and %v", what, i, a[i], b[i])
		}
	}
}

// All-reduce, parameter servers and one process on the whole batch train alike.
// That the members have the same bits the coordinator checks itself, at every evaluation.
func TestAllReduceIsSSGD(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "lenet", "--steps", "50", "--lr", "0.01", "--clip", "1", "--schedule", "warmup=500", "--weight-decay", "1e-4"}
	one, _ := job(t, append(args, "--workers", "1", "--shards", "1", "--batch", "64")...)
	ps, _ := job(t, append(args, "--workers", "4", "--shards", "2", "--batch", "16")...)
	ring, _ := job(t, append(args, "--workers", "4", "--arch", "allreduce", "--batch", "16")...)
	if ring.Arch != "allreduce" || ring.Shards != 0 || ring.Updates != 50 || ring.Steps != 200 || ring.Samples != 3200 || !ring.Evaluated {
		t.Errorf("result %+v", ring)
	}
	near(t, "all-reduce and one process", parameters(t, one), parameters(t, ring))
	near(t, "all-reduce and parameter servers", parameters(t, ps), parameters(t, ring))
	if ps.TestAccuracy != ring.TestAccuracy {
		t.Errorf("test accuracy %v with servers, %v with all-reduce", ps.TestAccuracy, ring.TestAccuracy)
	}
	alone, _ := job(t, append(args, "--workers", "1", "--arch", "allreduce", "--batch", "64")...)
	near(t, "a ring of one and one process", parameters(t, one), parameters(t, alone))
}

// Buckets that are exchanged while the rest is computed make the same sum, with and
// without the overlap.
func TestBuckets(t *testing.T) {
	t.Parallel()
	args := []string{"--model", "mlp", "--workers", "3", "--steps", "30", "--batch", "8", "--lr", "0.05", "--arch", "allreduce", "--clip", "1"}
	whole, _ := job(t, args...)
	overlap, dir := job(t, append(args, "--bucket", "0.1")...)
	after, _ := job(t, append(args, "--bucket", "0.1", "--slow", "1:+1ms")...)
	near(t, "in one piece and in buckets", parameters(t, whole), parameters(t, overlap))
	sameBits(t, "buckets with and without overlap", parameters(t, overlap), parameters(t, after))
	type record struct {
		Norm2, Loss float64
		NetIn       float64 `json:"net_in"`
		NetOut      float64 `json:"net_out"`
	}
	// What members move is counted at their links: a gradient to three of them, depending on
	// the algorithm, and little beside it.
	gradient := 4 * float64(len(parameters(t, whole)))
	for _, r := range runLog[record](t, dir, "record") {
		if !(r.Norm2 > 0) {
			t.Fatalf("record %+v: no norm", r)
		}
		for _, n := range []float64{r.NetIn, r.NetOut} {
			if n < gradient || n > 3*gradient+1e4 {
				t.Fatalf("record %+v: %v bytes moved, want about %v", r, n, gradient)
			}
		}
	}
}

// Checkpoints of both architectures are the same, and either goes on with the other's.
func TestAllReduceResumes(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	for _, optimizer := range []string{"adam", "dana"} {
		resumes(t, optimizer)
	}
}

func resumes(t *testing.T, optimizer string) {
	t.Helper()
	args := []string{"--model", "mlp", "--workers", "3", "--batch", "8", "--optimizer", optimizer, "--lr", "0.001"}
	ring := append(args, "--arch", "allreduce")
	whole, _ := job(t, append(ring, "--steps", "20")...)
	_, half := job(t, append(ring, "--steps", "10")...)
	rest, _ := job(t, append(ring, "--steps", "20", "--resume", half)...)
	if rest.Updates != 10 {
		t.Errorf("%d updates after resuming, want 10", rest.Updates)
	}
	sameBits(t, "with and without a stop", parameters(t, whole), parameters(t, rest))
	ps, _ := job(t, append(args, "--shards", "2", "--steps", "20", "--resume", half)...)
	near(t, "resumed by parameter servers", parameters(t, whole), parameters(t, ps))
	_, half = job(t, append(args, "--shards", "2", "--steps", "10")...)
	back, _ := job(t, append(ring, "--steps", "20", "--resume", half)...)
	near(t, "resumed from parameter servers", parameters(t, whole), parameters(t, back))
}

// Models with buffers evaluate and save their average.
func TestAllReduceAveragesBuffers(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	if err := writeCIFAR(dir, 60); err != nil {
		t.Fatal(err)
	}
	args := []string{"--dataset", "cifar10:" + dir, "--model", "resnet20:width=0.25", "--workers", "2", "--batch", "8", "--steps", "3"}
	ps, _ := job(t, args...)
	ring, _ := job(t, append(args, "--arch", "allreduce")...)
	near(t, "running statistics", buffers(t, ps), buffers(t, ring))
}

// A ring that waits for its riders is a tree, and trains as SSGD does.
func TestRidersThatAreWaitedFor(t *testing.T) {
	for _, optimizer := range []string{"momentum", "dana"} {
		args := []string{"--model", "lenet", "--workers", "4", "--steps", "30", "--batch", "8", "--lr", "0.01", "--arch", "allreduce", "--optimizer", optimizer}
		full, _ := job(t, args...)
		tree, dir := job(t, append(args, "--mode", "ring-minus=1,3", "--rider-wait", "10s", "--slow", "3:2x")...)
		if tree.Updates != 30 || tree.Samples != full.Samples || tree.Staleness.Max != 0 {
			t.Errorf("%d updates of %d samples, staleness up to %d; want 30 of %d without", tree.Updates, tree.Samples, tree.Staleness.Max, full.Samples)
		}
		near(t, optimizer+": riders that are waited for and a full ring", parameters(t, full), parameters(t, tree))
		everySampleOnce(t, dir, full.Samples)
	}
}

// Riders that are not waited for are carried when they are there, and every sample is
// used once.
func TestRiders(t *testing.T) {
	r, dir := job(t, "--model", "mlp", "--workers", "4", "--epochs", "9", "--batch", "8", "--arch", "allreduce",
		"--mode", "ring-minus=2,3", "--slow", "3:20x")
	if r.Samples != 3600 {
		t.Errorf("%d samples were used, want 3600", r.Samples)
	}
	if r.Staleness.Max == 0 {
		t.Error("nobody was carried later than in its own round")
	}
	everySampleOnce(t, dir, 3600)
	asStaleAsSaid(t, dir, 2, 3)
	if r, _ := job(t, "--model", "mlp", "--workers", "3", "--epochs", "9", "--batch", "8", "--arch", "allreduce",
		"--mode", "ring-minus=2", "--slow", "2:20x", "--max-staleness", "1"); r.Staleness.Max > 1 || r.Wasted == 0 || r.Samples+r.Wasted != 3600 {
		t.Errorf("staleness up to %d, %d samples used and %d dropped; want 1 at most, and 3600 in all", r.Staleness.Max, r.Samples, r.Wasted)
	}
}

// asStaleAsSaid: an update says of which version of the parameters the gradients of riders are, as their records do. A rider has one batch at a time.
func asStaleAsSaid(t *testing.T, dir string, riders ...int64) {
	t.Helper()
	type record struct{ Worker, Basis int64 }
	said := map[int64][]int64{}
	for _, m := range runLog[record](t, dir, "record") {
		said[m.Worker] = append(said[m.Worker], m.Basis)
	}
	type fire struct {
		Version            int64
		Workers, Staleness []int64
	}
	wrong, all := 0, 0
	for _, f := range runLog[fire](t, dir, "fire") {
		for i, w := range f.Workers {
			if !slices.Contains(riders, w) || len(said[w]) == 0 {
				continue
			}
			if basis := said[w][0]; basis != f.Version-1-f.Staleness[i] {
				wrong++
				t.Logf("the gradient of worker %d in version %d is of version %d by its record, and %d behind by the update", w, f.Version, basis, f.Staleness[i])
			}
			all++
			said[w] = said[w][1:]
		}
	}
	if wrong > 0 || all == 0 {
		t.Errorf("%d of %d gradients are not as stale as it is said", wrong, all)
	}
}

// runLog reads the lines of a type.
func runLog[T any](t testing.TB, dir, kind string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte(`"type":"`+kind+`"`)) {
			var v T
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			out = append(out, v)
		}
	}
	return out
}

// everySampleOnce: the updates follow each other without a gap, and their samples are
// all that there were. That no piece of the stream is in two of them, the coordinator's own
// tests show.
func everySampleOnce(t *testing.T, dir string, want int64) {
	t.Helper()
	type fire struct{ Seq, Version, Samples int64 }
	var version, samples int64
	for _, f := range runLog[fire](t, dir, "fire") {
		if f.Version != version+1 || f.Samples < samples {
			t.Fatalf("version %d of %d samples follows version %d of %d", f.Version, f.Samples, version, samples)
		}
		version, samples = f.Version, f.Samples
	}
	if samples != want {
		t.Errorf("the updates are of %d samples, want %d", samples, want)
	}
}

// ringJob starts a job of all-reduce that can be talked to.
func ringJob(t *testing.T, args ...string) (cmd *exec.Cmd, addr, dir string, out, errs *bytes.Buffer) {
	t.Helper()
	addr, dir = freeAddr(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, star(t), append([]string{"run", "--listen", addr, "--out", dir, "--json", "--progress", "off", "--mode", "ssgd",
		"--dataset", "digits:n=400,test=100", "--arch", "allreduce", "--log-format", "text"}, args...)...)
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, addr, dir, out, errs
}

// atVersion waits until a job has made so many versions.
func atVersion(t *testing.T, addr string, version int64, errs *bytes.Buffer) coord.Status {
	t.Helper()
	var s coord.Status
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, err := exec.Command(star(t), "ctl", "status", "--coordinator", addr, "--json").Output()
		if err == nil && json.Unmarshal(b, &s) == nil && s.Version >= version {
			return s
		}
	}
	t.Fatalf("version %d was not reached within a minute; %+v\n%s", version, s, errs)
	return s
}

func ctl(t *testing.T, addr string, args ...string) {
	t.Helper()
	args = append([]string{"ctl"}, args...)
	if b, err := exec.Command(star(t), append(args, "--coordinator", addr)...).CombinedOutput(); err != nil {
		t.Fatalf("star %v: %v\n%s", args, err, b)
	}
}

// A straggler is taken out of the ring while the job runs, and comes back.
func TestRingChangesWhileRunning(t *testing.T) {
	t.Parallel()
	cmd, addr, dir, out, errs := ringJob(t, "--model", "mlp", "--workers", "4", "--epochs", "1e6", "--eval-every", "2", "--batch", "8", "--slow", "0:3x")
	atVersion(t, addr, 20, errs)
	ctl(t, addr, "mode", "ring-minus=0")
	v := atVersion(t, addr, 40, errs).Version
	ctl(t, addr, "mode", "ring-minus=0,2")
	atVersion(t, addr, v+40, errs)
	ctl(t, addr, "checkpoint")
	ctl(t, addr, "mode", "ssgd")
	v = atVersion(t, addr, v+60, errs).Version
	ctl(t, addr, "mode", "ring-minus=3")
	atVersion(t, addr, v+20, errs)
	if b, err := exec.Command(star(t), "ctl", "mode", "asgd", "--coordinator", addr).CombinedOutput(); err == nil || !strings.Contains(string(b), "--arch ps") {
		t.Errorf("star ctl mode asgd: %v, %s; want a refusal that names --arch ps", err, b)
	}
	ctl(t, addr, "mode", "ssgd")
	atVersion(t, addr, v+60, errs)
	if r := stopped(t, cmd, addr, dir, out, errs); r.Switches != 5 || r.Staleness.Max == 0 {
		t.Errorf("%d switches, staleness up to %d; want 5, more than 0", r.Switches, r.Staleness.Max)
	}
}

// stopped ends a job by star ctl stop and returns its result, which must be whole.
func stopped(t *testing.T, cmd *exec.Cmd, addr, dir string, out, errs *bytes.Buffer) runlog.Result {
	t.Helper()
	ctl(t, addr, "stop")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	var r runlog.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Evaluated || r.CheckpointError != "" {
		t.Errorf("evaluated: %v; checkpoint error: %s\n%s", r.Evaluated, r.CheckpointError, errs)
	}
	everySampleOnce(t, dir, r.Samples)
	parameters(t, r) // whole
	return r
}

// killWorker sends a signal to a worker of a job. star run itself may not have heard yet that the
// training has begun; the end of the worker must not seem to it that of one that never joined.
func killWorker(t *testing.T, parent *exec.Cmd, rank int, sig syscall.Signal) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range procs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(p), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) < 2 || f[1] != strconv.Itoa(parent.Process.Pid) {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
		env, _ := os.ReadFile(p)
		if bytes.Contains(args, []byte("\x00worker\x00")) && bytes.Contains(env, []byte("STAR_RANK="+strconv.Itoa(rank)+"\x00")) {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process of worker %d below %d", rank, parent.Process.Pid)
}

// Members and riders are killed; the others go on, and every sample is used once.
func TestRingLosesMembers(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := ringJob(t, "--model", "mlp", "--workers", "6", "--epochs", "1e6", "--eval-every", "2", "--batch", "8",
		"--mode", "ring-minus=4,5", "--slow", "5:2x", "--checkpoint-every", "200ms")
	atVersion(t, addr, 20, errs)
	killWorker(t, cmd, 2, syscall.SIGKILL) // a member
	v := atVersion(t, addr, 60, errs).Version
	killWorker(t, cmd, 0, syscall.SIGKILL) // the first, parent of a rider
	v = atVersion(t, addr, v+30, errs).Version
	killWorker(t, cmd, 4, syscall.SIGKILL) // a rider
	atVersion(t, addr, v+30, errs)
	stopped(t, cmd, addr, dir, out, errs)
}

// A member that stands still is given up after --dead-after, and one that continues later
// does not disturb.
func TestRingLosesASilentMember(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := ringJob(t, "--model", "mlp", "--workers", "3", "--epochs", "1e6", "--eval-every", "2", "--batch", "8", "--slow", "none", "--dead-after", "1s")
	atVersion(t, addr, 20, errs)
	killWorker(t, cmd, 1, syscall.SIGSTOP)
	v := atVersion(t, addr, 20, errs).Version
	v = atVersion(t, addr, v+20, errs).Version
	killWorker(t, cmd, 1, syscall.SIGCONT)
	atVersion(t, addr, v+20, errs)
	stopped(t, cmd, addr, dir, out, errs)
}

// With --on-failure stop the job ends when a worker is gone.
func TestRingStops(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, _, _, errs := ringJob(t, "--model", "mlp", "--workers", "3", "--epochs", "1000", "--slow", "none", "--on-failure", "stop")
	atVersion(t, addr, 10, errs)
	killWorker(t, cmd, 1, syscall.SIGKILL)
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 69 || !strings.Contains(errs.String(), "worker 1 is gone (--on-failure stop)") {
		t.Errorf("exit code %d, want 69 with the reason\n%s", got, errs)
	}
}

// certificates makes one that signs itself and is good for everybody at 127.0.0.1, and
// returns the settings that name it.
func certificates(t *testing.T) []string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "star"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert := write("cert.pem", "CERTIFICATE", der)
	return []string{"--tls-cert", cert, "--tls-key", write("key.pem", "EC PRIVATE KEY", secret), "--tls-ca", cert}
}

// Processes of their own, as on several hosts: star ps without shards coordinates, a
// worker with another update rule is refused, one without --arch too, and TLS protects the
// ring and its riders.
func TestRingOfSeparateProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	common := append([]string{"--batch", "8", "--model", "mlp", "--dataset", "digits:n=400,test=100", "--out", dir, "--log-format", "text"}, certificates(t)...)
	ps, addr, errs := startServer(t, append(common, "--shards", "0", "--workers", "3", "--steps", "40", "--mode", "ring-minus=2")...)
	waitFor(t, addr)
	worker := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, star(t), append(append([]string{"worker", "--coordinator", addr}, common...), args...)...)
		said := new(bytes.Buffer)
		cmd.Stderr = said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, said
	}
	for _, c := range []struct{ args, says string }{
		{"--arch allreduce --lr 0.5", "lr=0.5"},
		{"--arch allreduce --compress int8", "compress=int8"},
		{"--arch ps", "the job's architecture is allreduce, the worker's ps"},
	} {
		cmd, said := worker(strings.Fields(c.args)...)
		cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 78 || !strings.Contains(said.String(), c.says) {
			t.Errorf("star worker %s: exit code %d, want 78 and %q\n%s", c.args, got, c.says, said)
		}
	}
	for rank := range 3 {
		cmd, said := worker("--arch", "allreduce", "--rank", strconv.Itoa(rank))
		defer func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("worker %d: %v\n%s", rank, err, said)
			}
			if rank < 2 && !strings.Contains(said.String(), "stream:1") {
				t.Errorf("worker %d does not say that its link is a stream:\n%s", rank, said)
			}
		}()
	}
	if err := ps.Wait(); err != nil {
		t.Fatalf("star ps: %v\n%s", err, errs)
	}
}
