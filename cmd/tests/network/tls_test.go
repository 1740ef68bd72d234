package network

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// madeCerts makes some with star certs. The files of one are HOST.pem and HOST.key.
func madeCerts(t *testing.T, hosts ...string) (dir string, flags func(host string) []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "certs")
	if out, err := exec.Command(jobtest.Star(t), append([]string{"certs", dir}, hosts...)...).CombinedOutput(); err != nil {
		t.Fatalf("star certs: %v\n%s", err, out)
	}
	return dir, func(host string) []string {
		return []string{"--tls-cert", filepath.Join(dir, host+".pem"), "--tls-key", filepath.Join(dir, host+".key"), "--tls-ca", filepath.Join(dir, "ca.pem")}
	}
}

func TestCerts(t *testing.T) {
	dir, _ := madeCerts(t, "node0,127.0.0.1", "fd00::1")
	for name, mode := range map[string]os.FileMode{"ca.key": 0o600, "node0.key": 0o600, "fd00__1.key": 0o600, "ca.pem": 0o644, "node0.pem": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
	pool := x509.NewCertPool()
	ca, _ := os.ReadFile(filepath.Join(dir, "ca.pem"))
	pool.AppendCertsFromPEM(ca)
	check := func(name, host string) {
		t.Helper()
		text, _ := os.ReadFile(filepath.Join(dir, name))
		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatalf("%s holds no certificate: %s", name, text)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := c.Verify(x509.VerifyOptions{DNSName: host, Roots: pool, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s for %s, use %v: %v", name, host, use, err)
			}
		}
	}
	check("node0.pem", "node0")
	check("node0.pem", "127.0.0.1")
	check("fd00__1.pem", "fd00::1")
	// Hosts can be added, and no file is written over.
	if out, err := exec.Command(jobtest.Star(t), "certs", dir, "node9").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check("node9.pem", "node9")
	for _, args := range [][]string{{"certs", dir, "node0"}, {"certs", dir}, {"certs"}, {"certs", dir, "../up"}, {"certs", dir, "ca"}, {"certs", "--days", "0", dir, "x"}} {
		out, err := exec.Command(jobtest.Star(t), args...).CombinedOutput()
		if jobtest.ExitCode(err) != 2 {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// A server with a certificate for another address than 127.0.0.1 listens everywhere and reaches itself. Members that
// speak TLS to processes without it, or the other way round, get an error at once, and star doctor says the same.
func TestCertificateOfItsOwnAddress(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil || net.ParseIP(host) != nil {
		t.Skip("needs the name of this host")
	}
	if ips, err := net.LookupIP(host); err != nil || len(ips) == 0 {
		t.Skip("this host does not find itself by its name")
	}
	_, flags := madeCerts(t, host)
	_, port, _ := net.SplitHostPort(jobtest.FreeAddr(t))
	small := []string{"--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "1", "--out", t.TempDir(), "--log-format", "text"}
	start := func(args ...string) (*exec.Cmd, *jobtest.Output) {
		cmd, said := exec.Command(jobtest.Star(t), append(args, small...)...), new(jobtest.Output)
		cmd.Stdout, cmd.Stderr = said, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd, said
	}
	ps, said := start(append([]string{"ps", "--listen", ":" + port, "--http", "off", "--steps", "20", "--mode", "ssgd"}, flags(host)...)...)
	at := net.JoinHostPort(host, port)
	jobtest.WaitFor(t, at)
	fails := func(what string, code int, words string, args ...string) {
		t.Helper()
		begun := time.Now()
		cmd, said := start(args...)
		err := cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(said.String(), words) {
			t.Errorf("%s: %v after %v, want exit code %d and %q:\n%s", what, err, time.Since(begun), code, words, said)
		}
	}
	fails("a plain worker", 77, "the server wants TLS", "worker", "--coordinator", at, "--join-timeout", "10m")
	doctor := func(at, words string, flags ...string) {
		t.Helper()
		out, err := exec.Command(jobtest.Star(t), append([]string{"doctor", "--listen", jobtest.FreeAddr(t), at}, flags...)...).CombinedOutput()
		if jobtest.ExitCode(err) != 1 || !strings.Contains(string(out), words) {
			t.Errorf("star doctor %s: %v, want %q:\n%s", at, err, words, out)
		}
	}
	doctor(at, "the server wants TLS")
	if out, err := exec.Command(jobtest.Star(t), append([]string{"ctl", "status", "--coordinator", at}, flags(host)...)...).CombinedOutput(); err != nil || !strings.Contains(string(out), "joining") {
		t.Errorf("star ctl with a certificate: %v\n%s", err, out)
	}
	w, saidW := start(append([]string{"worker", "--coordinator", at}, flags(host)...)...)
	if err := w.Wait(); err != nil {
		t.Errorf("a worker with a certificate: %v\n%s", err, saidW)
	}
	if err := ps.Wait(); err != nil {
		t.Errorf("star-ps: %v\n%s", err, said)
	}
}

// The way round: and what is no STAR at all.
func TestDoctorTellsWhoListens(t *testing.T) {
	t.Parallel()
	_, flags := madeCerts(t, "127.0.0.1")
	_, plain, errs := jobtest.StartServer(t, "--workers", "1")
	jobtest.WaitFor(t, plain)
	cmd := exec.Command(jobtest.Star(t), append([]string{"worker", "--coordinator", plain, "--join-timeout", "10m", "--model", "softmax", "--dataset", "digits:n=400,test=100"}, flags("127.0.0.1")...)...)
	out, err := cmd.CombinedOutput()
	if jobtest.ExitCode(err) != 77 || !strings.Contains(string(out), "the server does not speak it") {
		t.Errorf("a worker with certificates to a plain server: %v\n%s\nserver: %s", err, out, errs)
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go http.Serve(web, http.NotFoundHandler())
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close() // accepts, by the kernel, and says nothing
	for at, words := range map[string]string{plain: "does not speak it", web.Addr().String(): "HTTP server", hole.Addr().String(): "accepts connections, and says nothing"} {
		for _, own := range [][]string{nil, flags("127.0.0.1")} {
			if own == nil && at == plain {
				continue
			}
			out, err := exec.Command(jobtest.Star(t), append([]string{"doctor", "--listen", jobtest.FreeAddr(t), "--timeout", "3s", at}, own...)...).CombinedOutput()
			if jobtest.ExitCode(err) != 1 || !strings.Contains(string(out), words) {
				t.Errorf("star doctor %s %v: %v, want %q:\n%s", at, own, err, words, out)
			}
		}
	}
}

// One certificate for all processes of a job, of a name that no host has: servers with a tree of workers, and a ring. A
// worker without it, or with another one of the same name, is refused.
func TestCertificateOfTheJob(t *testing.T) {
	t.Parallel()
	_, flags := madeCerts(t, "digits")
	_, others := madeCerts(t, "digits")
	small := []string{"--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "3", "--steps", "20", "--token", "of-a-test"}
	for name, args := range map[string][]string{"tree": {"--servers", "2", "--mode", "tree=0(1(2))"}, "ring": {"--arch", "allreduce"}} {
		args = slices.Concat([]string{"run", "--out", t.TempDir()}, small, args, flags("digits"))
		if out, err := exec.Command(jobtest.Star(t), args...).CombinedOutput(); err != nil || !strings.Contains(string(out), "trained ") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	_, at, said := jobtest.StartServer(t, append([]string{"--workers", "3", "--token", "of-a-test"}, flags("digits")...)...)
	jobtest.WaitFor(t, at)
	for name, c := range map[string]struct {
		flags []string
		words string
	}{"none": {nil, "the server wants TLS"}, "another authority's": {others("digits"), "TLS"}} {
		cmd := exec.Command(jobtest.Star(t), append([]string{"worker", "--coordinator", at, "--token", "of-a-test", "--join-timeout", "10m", "--model", "softmax", "--dataset", "digits:n=400,test=100"}, c.flags...)...)
		if out, err := cmd.CombinedOutput(); jobtest.ExitCode(err) != 77 || !strings.Contains(string(out), c.words) {
			t.Errorf("a worker with %s: %v, want exit code 77 and %q\n%s\nserver: %s", name, err, c.words, out, said)
		}
	}
}
