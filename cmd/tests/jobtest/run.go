package jobtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

	"star/internal/ports"
	"star/job/process"
	"star/runlog"
	"star/train/checkpoint"
)

// Pushed is the mean number of bytes that the workers of a job sent to shards per step.
func Pushed(t *testing.T, dir string) float64 {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, process.RunLogName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var sum float64
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r struct {
			Type   string  `json:"type"`
			Step   int     `json:"step"`
			NetOut float64 `json:"net_out"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			// The first and the last line are long and not records.
			continue
		}
		if r.Type == "record" && r.Step > 0 { // step 0 includes the hello and the initial parameters
			sum += r.NetOut
			n++
		}
	}
	if n == 0 {
		t.Fatal("the run log has no records")
	}
	return sum / float64(n)
}

// AboutNumbers skips a test of a job's results in the race run (-short): the race detector gains nothing from it, and
// other tests start the same processes.
func AboutNumbers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("about numbers, not about races: go test without -short has it")
	}
}

// Run runs star run with small defaults and returns its result and folder.
func Run(t *testing.T, args ...string) (runlog.Result, string) {
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
	cmd := exec.CommandContext(ctx, Star(t), args...)
	var out, errs Output
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

// Background starts star run without an end: only star ctl stop (Stopped) ends it, so a test can wait on a busy
// machine, too.
func Background(t *testing.T, args ...string) (cmd *exec.Cmd, addr, dir string, out, errs *Output) {
	t.Helper()
	addr, dir = FreeAddr(t), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, Star(t), append([]string{"run", "--listen", addr, "--out", dir, "--json", "--progress", "off", "--dataset", "digits:n=400,test=100",
		"--epochs", "1e6", "--log-format", "text"}, args...)...)
	out, errs = new(Output), new(Output)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, addr, dir, out, errs
}

// Writer writes files to a folder and returns their paths.
func Writer(t *testing.T, dir string) func(name, text string) string {
	return func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// Parameters returns the parameters in a job's last checkpoint.
func Parameters(t *testing.T, r runlog.Result) []float32 {
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

// Buffers returns the buffers in a job's last checkpoint: what models keep besides parameters.
func Buffers(t *testing.T, r runlog.Result) []float32 {
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

// WriteCIFAR makes the six files of CIFAR-10's binary version, with n images each.
func WriteCIFAR(dir string, n int) error {
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

// StartServer starts star ps and returns its command, the coordinator's address and its standard error.
func StartServer(t *testing.T, args ...string) (cmd *exec.Cmd, addr string, errs *Output) {
	t.Helper()
	addr = FreeAddr(t)
	cmd = exec.Command(Star(t), append([]string{"ps", "--listen", addr, "--http", "off", "--out", t.TempDir(),
		"--log-format", "text", "--join-timeout", "3m", "--json"}, args...)...)
	errs = new(Output)
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, addr, errs
}

// FreeAddr is an address without a listener.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := ports.Reserve("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// ExitCode is the exit code in a program's error.
func ExitCode(err error) int {
	if x, ok := err.(*exec.ExitError); ok {
		return x.ExitCode()
	}
	return 0
}

// Daemon starts a process that ends with the test, and appends its output to a file.
func Daemon(t *testing.T, cmd *exec.Cmd, log string) {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		hard := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		hard.Stop()
		out.Close()
	})
}

// Stderr is the standard error in a program's error.
func Stderr(err error) string {
	if x, ok := err.(*exec.ExitError); ok {
		return string(x.Stderr)
	}
	return ""
}

// WaitFor returns once a process listens at addr.
func WaitFor(t *testing.T, addr string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no listener at %s after 20 s", addr)
}

// ChildOf is the process ID of a job's process with that output folder; 0: not found.
func ChildOf(out, role string, rank int) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, _ := os.ReadFile(filepath.Join(d, "environ"))
		args, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		env = append([]byte{0}, env...)
		if bytes.Contains(env, []byte("\x00STAR_OUT="+out+"\x00")) && bytes.Contains(env, []byte("\x00STAR_RANK="+strconv.Itoa(rank)+"\x00")) &&
			bytes.Contains(args, []byte("\x00"+role+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return pid
		}
	}
	return 0
}

// FreePort finds a port without a listener on it or on the next one, which a second process of a host uses.
func FreePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr, err := ports.Reserve("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		if _, err := ports.Listens(fmt.Sprint(":", n+1)); err == nil {
			return port
		}
	}
	t.Fatal("no two free ports")
	return ""
}
