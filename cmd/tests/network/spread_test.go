//go:build linux

package network

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/runlog"

	"star/cmd/tests/jobtest"
)

// onHosts runs star run on the hosts of a file, and returns its result and log.
func onHosts(t *testing.T, file string, args ...string) (r runlog.Result, log string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, jobtest.Star(t), append([]string{"run", "--hosts", path, "--dataset", "digits:n=400,test=100", "--model", "mlp", "--batch", "8",
		"--epochs", "2", "--mode", "ssgd", "--slow", "none", "--json", "--log-format", "text", "--out", filepath.Join(dir, "out")}, args...)...)
	cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
	var out, errs jobtest.Output
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.Bytes())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	return r, errs.String()
}

// Two hosts that are two addresses of this one: processes of the first are started as
// always, those of the second through a command, as ssh would be.
func TestRunOnHosts(t *testing.T) {
	const file = `hosts:
  - {name: one, address: 127.0.0.1, cpu: 2}
  - {name: two, address: 127.0.0.2, cpu: 2, launch: [env, THROUGH=env]}
`
	for _, c := range []struct {
		args   []string
		shards int
	}{{[]string{"--workers", "4", "--shards", "2"}, 2}, {[]string{"--workers", "3", "--arch", "allreduce"}, 0}} {
		r, log := onHosts(t, file, append(c.args, "--listen", "127.0.0.1:"+jobtest.FreePort(t))...)
		if r.Samples != 800 || r.Shards != c.shards {
			t.Errorf("%v: %+v", c.args, r)
		}
		wants := []string{"on one: ", "on two: ", "worker 0 | "}
		if c.shards == 0 {
			wants = append(wants, `hosts="[2 1]"`) // the ring knows them by the file's names
		}
		for _, want := range wants {
			if !strings.Contains(log, want) {
				t.Errorf("%v: the log has no %q:\n%s", c.args, want, log)
			}
		}
	}
}

// Two hosts with network stacks of their own.
func TestRunOnTwoNetworks(t *testing.T) {
	a, b := hosts(t)
	file := fmt.Sprintf(`hosts:
  - {name: a, address: 10.79.0.1, cpu: 2, launch: [%s]}
  - {name: b, address: 10.79.0.2, cpu: 2, launch: [%s]}
`, strings.Join(a, ", "), strings.Join(b, ", "))
	r, log := onHosts(t, file, "--workers", "4", "--shards", "2")
	if r.Samples != 800 || r.Shards != 2 || r.Workers != 4 || r.BytesSent == 0 {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{"on a: ", "on b: ", "10.79.0.1", "10.79.0.2"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
}

// When star run gets a signal to end, or is killed, nothing goes on anywhere, and what was done is saved.
func TestHostsAreLeft(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		dir := t.TempDir()
		path := filepath.Join(dir, "cluster.yaml")
		mark := fmt.Sprintf("MARK=%d.%d", os.Getpid(), sig)
		// setsid and sh: what was started is not the process that runs, as with ssh.
		text := fmt.Sprintf("hosts:\n  - {name: far, address: 127.0.0.1, cpu: 8, launch: [env, %s, setsid, -w, sh, -c, '\"$@\"; exit $?', sh]}\n", mark)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(jobtest.Star(t), "run", "--hosts", path, "--listen", "127.0.0.1:"+jobtest.FreePort(t), "--workers", "2", "--shards", "1", "--dataset", "digits:n=400,test=100", "--model", "mlp",
			"--epochs", "100000", "--slow", "none", "--progress", "plain", "--out", filepath.Join(dir, "out"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		marked := func() (n int) {
			files, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(mark)) {
					n++
				}
			}
			return n
		}
		await := func(what string, ok func() bool) {
			for end := time.Now().Add(40 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%v: waited 40s until %s; %d processes", sig, what, marked())
				}
			}
		}
		await("the job trains", func() bool {
			b, _ := os.ReadFile(filepath.Join(dir, "out", "run.jsonl"))
			return bytes.Contains(b, []byte(`"type":"fire"`))
		})
		cmd.Process.Signal(sig)
		err := cmd.Wait()
		if sig == syscall.SIGINT && jobtest.ExitCode(err) != 130 {
			t.Errorf("%v: %v", sig, err)
		}
		await("no member is left", func() bool { return marked() == 0 })
		if saved, _ := filepath.Glob(filepath.Join(dir, "out", "checkpoints", "*", "manifest.json")); len(saved) != 1 {
			t.Errorf("%v: checkpoints %v", sig, saved)
		}
	}
}

func TestHostsBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := jobtest.Writer(t, dir)
	near := write("near.yaml", "hosts:\n- {name: one, address: 127.0.0.1, cpu: 8}")
	far := write("far.yaml", "hosts:\n- {name: one, address: 10.1.2.3, cpu: 8, launch: [ssh, one]}")
	small := write("small.yaml", "hosts:\n- {name: one, address: 127.0.0.1, cpu: 8, memory: 1KiB}")
	jobs := write("jobs.yaml", "jobs:\n- {name: star, servers: {count: 2, cpu: 1}, workers: {count: 3, cpu: 2}}")
	for _, c := range []struct {
		args []string
		exit int
		want string
	}{
		{[]string{"--hosts", dir + "/none.yaml"}, 66, "none.yaml"},
		{[]string{"--hosts", write("bad.yaml", "hosts:\n- {nam: x}")}, 65, "did you mean name?"},
		{[]string{"--hosts", small}, 1, "the job does not fit: "},
		{[]string{"--hosts", far}, 2, "give STAR_TOKEN"},
		{[]string{"--hosts", far, "--token", "x", "--listen", "127.0.0.1:0"}, 2, "a free port of one cannot be found from here"},
		{[]string{"--hosts", near, "--slow", "1:stop=1s/2s"}, 2, "cannot be stopped from here"},
		{[]string{"--hosts", near, "--demands", jobs}, 2, "job star has 2 servers and 3 workers there, and 2 and 4 here"},
		{[]string{"--hosts", near, "--demands", jobs, "--job", "other"}, 2, "has no job other"},
		{[]string{"--demands", jobs}, 2, "a placement needs a file of hosts"},
		{[]string{"--print-placement"}, 2, "a placement needs a file of hosts"},
	} {
		out, err := exec.Command(jobtest.Star(t), append([]string{"run", "--steps", "1", "--out", dir + "/out"}, c.args...)...).CombinedOutput()
		if jobtest.ExitCode(err) != c.exit || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: exit %d, want %d and %q:\n%s", c.args, jobtest.ExitCode(err), c.exit, c.want, out)
		}
	}
	out, err := exec.Command(jobtest.Star(t), "run", "--hosts", near, "--demands", jobs, "--workers", "3", "--print-placement").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "star  worker 2  one") || !strings.Contains(string(out), "maximum load 100.0 %") {
		t.Errorf("print-placement: %v\n%s", err, out)
	}
	for _, in := range []string{"", "{}\n", "[\"x\"]\n", strings.Repeat("x", 1<<21)} {
		cmd := exec.Command(jobtest.Star(t), "member", "ps")
		cmd.Stdin = strings.NewReader(in)
		if out, err := cmd.CombinedOutput(); jobtest.ExitCode(err) != 2 || !strings.Contains(string(out), "star member") {
			t.Errorf("member with %.10q: %v\n%s", in, err, out)
		}
	}
}

// A process that may coordinate and fails before it has met the others fails the job: there is no coordinator without
// it.
func TestCoordinatorWithoutItsPort(t *testing.T) {
	dir, port := t.TempDir(), jobtest.FreePort(t)
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	path := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(path, []byte("hosts:\n- {name: one, address: 127.0.0.1, cpu: 2}\n- {name: two, address: 127.0.0.2, cpu: 2, launch: [env, THROUGH=env]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second) // they look for each other for two minutes
	defer cancel()
	out, err := exec.CommandContext(ctx, jobtest.Star(t), "run", "--hosts", path, "--listen", "127.0.0.1:"+port, "--coordinators", "3", "--workers", "2", "--shards", "2", "--steps", "10",
		"--dataset", "digits:n=400,test=100", "--model", "softmax", "--token", "secret", "--out", filepath.Join(dir, "out")).CombinedOutput()
	if jobtest.ExitCode(err) != 2 || !bytes.Contains(out, []byte("listen 127.0.0.2:"+port)) || !bytes.Contains(out, []byte("ps 1 ended with exit code 2")) {
		t.Errorf("exit %d, want 2:\n%s", jobtest.ExitCode(err), out)
	}
}

// Processes that may coordinate are on different hosts, as far as there are some, each where the others look for it.
// One of them is lost with its host: another one goes on.
func TestCoordinatorsOnHosts(t *testing.T) {
	const file = `hosts:
  - {name: one, address: 127.0.0.1, cpu: 2}
  - {name: two, address: 127.0.0.2, cpu: 2, launch: [env, THROUGH=env]}
`
	for _, args := range [][]string{{"--workers", "2", "--shards", "2"}, {"--workers", "2", "--arch", "allreduce"}} {
		dir := t.TempDir()
		path, out := filepath.Join(dir, "cluster.yaml"), filepath.Join(dir, "out")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--hosts", path, "--listen", "127.0.0.1:" + jobtest.FreePort(t), "--coordinators", "3", "--dataset", "digits:n=400,test=100", "--model", "softmax",
			"--batch", "8", "--mode", "ssgd", "--steps", "400", "--slow", "0:+5ms", "--eval-every", "0", "--json", "--log-format", "text", "--out", out}, args...)...)
		cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
		var result, errs jobtest.Output
		cmd.Stdout, cmd.Stderr = &result, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(40 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			b, _ := os.ReadFile(filepath.Join(out, "run.jsonl"))
			if bytes.Count(b, []byte(`"type":"fire"`)) > 20 {
				break
			}
			if time.Now().After(end) {
				cmd.Process.Signal(syscall.SIGTERM)
				cmd.Wait()
				t.Fatalf("%v: no training within 40 s:\n%s", args, errs.Bytes())
			}
		}
		if p := jobtest.ChildOf(out, "ps", 0); p == 0 || syscall.Kill(p, syscall.SIGKILL) != nil {
			t.Fatalf("%v: process %d of star-ps 0 could not be killed", args, p)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, errs.Bytes())
		}
		var r runlog.Result
		if err := json.Unmarshal(result.Bytes(), &r); err != nil || r.Samples != 6400 {
			t.Errorf("%v: %+v, %v", args, r, err)
		}
		wants := []string{"on one: ", "on two: ", "ps 0 (may coordinate)", "ps 2 (may coordinate)", "127.0.0.2:", "joined another coordinator"}
		if r.Shards > 0 {
			wants = append(wants, "on one: ps 3, ", "on two: ps 4, ")
		}
		for _, want := range wants {
			if !strings.Contains(errs.String(), want) {
				t.Errorf("%v: the log has no %q:\n%s", args, want, errs.Bytes())
			}
		}
	}
}
