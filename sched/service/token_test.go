package service

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"star/internal/exitcode"
	"star/job"
	"star/sched/live"
	"star/transport"
	"star/transport/wire"
)

// All processes that make a secret at once have the same one, whole, and others may not read it.
func TestMadeSecret(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	var all [8]string
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { all[i], _ = madeSecret(name) })
	}
	wg.Wait()
	for _, s := range all {
		if len(s) < 20 || s != all[0] {
			t.Fatalf("secrets %q", all)
		}
	}
	if i, err := os.Stat(name); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", i, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(name)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	os.Chmod(name, 0o644)
	if _, err := madeSecret(name); job.ExitCode(err) != exitcode.Refused {
		t.Errorf("a secret that all users may read: %v", err)
	}
	os.WriteFile(name, nil, 0o600)
	os.Chmod(name, 0o600)
	if _, err := madeSecret(name); job.ExitCode(err) != exitcode.Corrupt {
		t.Errorf("an empty secret: %v", err)
	}
}

// Without STAR_TOKEN several services have a secret of their own: a caller that knows the group's name alone is
// refused, and a service that asks with the secret is answered.
func TestPeersHaveASecret(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := threeServices(t, ctx, 0)
	addrs, jobs := c.addrs, c.jobs
	text, _ := json.Marshal(question{Path: "/status"})
	asks := func(addr, token string) error {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		conn, _, _, err := transport.Open(limited, transport.NewTCP(transport.Config{}), addr, wire.Hello{
			Service: wire.ServiceElection, Role: wire.RoleTool, Job: "star sched " + strings.Join(addrs, ","), Token: token, Version: job.Program, Rank: -1}, text)
		if err == nil {
			conn.Close()
		}
		return err
	}
	answered := func(token string) bool {
		return slices.ContainsFunc(addrs, func(addr string) bool { return asks(addr, token) == nil })
	}
	var token string
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if token, _ = secret(filepath.Join(jobs, secretName)); token != "" && answered(token) {
			break
		} else if time.Now().After(end) {
			t.Fatal("no service answers one that has the secret")
		}
	}
	for _, addr := range addrs {
		for _, wrong := range []string{"", "guess"} {
			var refused *transport.RejectError
			if err := asks(addr, wrong); !errors.As(err, &refused) || job.ExitCode(err) != exitcode.Refused {
				t.Errorf("%s, asked with the token %q: %v, want a refusal with %d", addr, wrong, err, exitcode.Refused)
			}
		}
	}
}

// alone is a service that is not running, on one host without a place.
func alone(t *testing.T) *Service {
	t.Helper()
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 0}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// Each job has a token of its own, which all of its processes get, whatever its settings say; what the service has is
// not in their environment.
func TestJobsHaveTokens(t *testing.T) {
	s := alone(t)
	var tokens []string
	for _, name := range []string{"a", "b"} {
		e := submitted(name)
		e.Spec.Settings = map[string]string{"Replicas": "2", "min_workers": "9"}
		if err := s.q.Apply(e); err != nil {
			t.Fatal(err)
		}
		j := s.q.Job(name)
		if err := os.MkdirAll(s.dir(name, 1), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := s.environ(j, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a worker before its coordinator: %v", err)
		}
		cmd, _, err := s.coordinates(j)
		if err != nil {
			t.Fatal(err)
		}
		env, err := s.environ(j, nil)
		if err != nil {
			t.Fatal(err)
		}
		token, _ := s.token(name)
		for _, env := range [][]string{cmd.Env, env} {
			if !slices.Contains(env, "STAR_TOKEN="+token) {
				t.Errorf("%s has not its token: %q", name, env)
			}
			if n := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "STAR_MIN_WORKERS=") }); env[n] != "STAR_MIN_WORKERS=1" || slices.Contains(env, "STAR_min_workers=9") {
				t.Errorf("a setting of the service's is the job's: %q", env)
			}
		}
		tokens = append(tokens, token)
	}
	if tokens[0] == tokens[1] || len(tokens[0]) < 20 {
		t.Errorf("tokens %q", tokens)
	}
}
