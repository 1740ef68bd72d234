package jobtest

import (
	"bytes"
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

// Near fails the test unless two vectors are equal up to rounding.
func Near(t *testing.T, what string, a, b []float32) {
	t.Helper()
	if d := distance(a, b); !(d <= 1e-5) {
		t.Errorf("%s: the parameters differ by %.2g relative, want at most 1e-5", what, d)
	}
}

// SameBits fails the test unless two vectors are bitwise equal.
func SameBits(t *testing.T, what string, a, b []float32) {
	t.Helper()
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: parameter %d is %v and %v", what, i, a[i], b[i])
		}
	}
}

// RunLog reads the lines of a type. A running job may be in the middle of its last line, which is left out.
func RunLog[T any](t testing.TB, dir, kind string) []T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	for line := range bytes.Lines(b) {
		if bytes.HasSuffix(line, []byte("\n")) && bytes.Contains(line, []byte(`"type":"`+kind+`"`)) {
			var v T
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			out = append(out, v)
		}
	}
	return out
}

// EverySampleOnce checks that the versions of updates are consecutive and that their samples add up to want.
// The coordinator's own tests check that no range of the stream is in two updates.
func EverySampleOnce(t *testing.T, dir string, want int64) {
	t.Helper()
	type fire struct {
		Seq, Version, Samples int64
		Dropped               []int
	}
	var version, samples int64
	for _, f := range RunLog[fire](t, dir, "fire") {
		if f.Version == version && f.Samples == samples && len(f.Dropped) > 0 { // only gradients of workers that have left
			continue
		}
		if f.Version != version+1 || f.Samples < samples {
			t.Fatalf("version %d of %d samples follows version %d of %d", f.Version, f.Samples, version, samples)
		}
		version, samples = f.Version, f.Samples
	}
	if samples != want {
		t.Errorf("the updates are of %d samples, want %d", samples, want)
	}
}

// AtVersion waits until a job has reached a version.
func AtVersion(t *testing.T, addr string, version int64, errs *Output) coord.Status {
	t.Helper()
	var s coord.Status
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, err := exec.Command(Star(t), "ctl", "status", "--coordinator", addr, "--json").Output()
		if err == nil && json.Unmarshal(b, &s) == nil && s.Version >= version {
			return s
		}
	}
	t.Fatalf("version %d was not reached within 2 minutes; %+v\n%s", version, s, errs)
	return s
}

// Ctl runs star ctl.
func Ctl(t *testing.T, addr string, args ...string) {
	t.Helper()
	args = append([]string{"ctl"}, args...)
	if b, err := exec.Command(Star(t), append(args, "--coordinator", addr)...).CombinedOutput(); err != nil {
		t.Fatalf("star %v: %v\n%s", args, err, b)
	}
}

// Stopped ends a job with star ctl stop and returns its result, which must be complete.
func Stopped(t *testing.T, cmd *exec.Cmd, addr, dir string, out, errs *Output) runlog.Result {
	t.Helper()
	Ctl(t, addr, "stop")
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
	EverySampleOnce(t, dir, r.Samples)
	Parameters(t, r) // whole
	return r
}

// KillWorker sends a signal to a worker of a job once star run knows that the training has begun: otherwise it would
// treat the worker as one that never joined.
func KillWorker(t *testing.T, parent *exec.Cmd, rank int, sig syscall.Signal) {
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

// Certificates makes a self-signed certificate for 127.0.0.1 and returns the settings that name it.
func Certificates(t *testing.T) []string {
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
