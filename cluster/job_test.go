package cluster

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"star/internal/exitcode"
)

func meetJob(t *testing.T, cfg GossipConfig, me JobMember) *JobGossip {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cfg.Bind = "127.0.0.1:0"
	g, err := MeetJob(ctx, cfg, me)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// A process that knows any member of a job's gossip learns where the coordinator is, and which other members exist.
func TestJobGossip(t *testing.T) {
	t.Parallel()
	key, old := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 16)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	worker := meetJob(t, GossipConfig{Cluster: "a", Key: key}, JobMember{Role: "worker", Rank: -1})
	server := meetJob(t, GossipConfig{Cluster: "a", Key: key, Old: [][]byte{old}, Seeds: []string{worker.Addr()}}, JobMember{Role: "server", Rank: 0, Shards: 2, Addr: ":7070", Host: "h"})
	if addr, err := worker.Coordinator(ctx, "a"); err != nil || addr != "127.0.0.1:7070" {
		t.Fatalf("the coordinator is at %q, %v", addr, err)
	}
	if err := worker.Say(JobMember{Role: "worker", Rank: 3}); err != nil {
		t.Fatal(err)
	}
	third := meetJob(t, GossipConfig{Cluster: "a", Key: key, Seeds: []string{server.Addr()}}, JobMember{Role: "server", Rank: 1, Addr: "10.0.0.3:7070"})
	for {
		ms := third.Members()
		if len(ms) == 2 && ms[0] == (JobMember{"server", 0, 2, "127.0.0.1:7070", "h"}) && ms[1].Rank == 3 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the third one sees %+v", ms)
		case <-time.After(10 * time.Millisecond):
		}
	}
	// A key that is being replaced is still accepted by members that have it in the ring, and only by those.
	if _, err := MeetJob(ctx, GossipConfig{Cluster: "a", Bind: "127.0.0.1:0", Key: old, Old: [][]byte{key}, Seeds: []string{server.Addr()}}, JobMember{Role: "worker"}); err != nil {
		t.Errorf("with the key before: %v", err)
	}
	for name, cfg := range map[string]GossipConfig{
		"another job": {Cluster: "b", Key: key},
		"another key": {Cluster: "a", Key: bytes.Repeat([]byte{9}, 32)},
		"no key":      {Cluster: "a"},
	} {
		cfg.Bind, cfg.Seeds = "127.0.0.1:0", []string{worker.Addr()}
		var seeds *JobSeedError
		if _, err := MeetJob(ctx, cfg, JobMember{Role: "worker"}); !errors.As(err, &seeds) || !strings.Contains(err.Error(), "--gossip-key") || seeds.ExitCode() != exitcode.Lost {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The gossip of a cluster of that name is another one.
	if g, err := Meet(ctx, GossipConfig{Cluster: "a", Bind: "127.0.0.1:0", Key: key, Seeds: []string{worker.Addr()}}); err == nil {
		g.Close()
		t.Error("the gossip of a cluster met that of a job")
	}
}

// Without a coordinator the wait ends with how many others there were.
func TestJobWithoutCoordinator(t *testing.T) {
	t.Parallel()
	a := meetJob(t, GossipConfig{Cluster: "a"}, JobMember{Role: "worker", Rank: 0})
	// it hosts shards only
	meetJob(t, GossipConfig{Cluster: "a", Seeds: []string{a.Addr()}}, JobMember{Role: "server", Rank: 1, Addr: ":1"})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var e *CoordinatorError
	if _, err := a.Coordinator(ctx, "a"); !errors.As(err, &e) || e.Members != 1 || e.ExitCode() != exitcode.Lost {
		t.Errorf("%v", err)
	}
}

// What members cannot be is passed over; what is too long is refused before memberlist panics.
func TestJobMembersThatCannotBe(t *testing.T) {
	for _, text := range []string{``, `{}`, `[]`, `{"role":"server","rank":-1,"addr":"h:1"}`, `{"role":"server","rank":0,"addr":"h"}`, `{"role":"server","rank":0}`,
		`{"role":"worker","rank":-2}`, `{"role":"worker","shards":-1}`, `{"role":"look"}`, strings.Repeat(" ", 600) + `{"role":"worker"}`} {
		if m, ok := parseJobMember([]byte(text)); ok {
			t.Errorf("%q is taken for %+v", text, m)
		}
	}
	if _, err := MeetJob(t.Context(), GossipConfig{Cluster: "a", Bind: "127.0.0.1:0"}, JobMember{Role: "worker", Host: strings.Repeat("h", 600)}); err == nil {
		t.Error("a name of 600 characters is accepted")
	}
}

func TestReadKeyring(t *testing.T) {
	const a, b = "AAECAwQFBgcICQoLDA0ODw==", "AQECAwQFBgcICQoLDA0ODw=="
	keys, err := ReadKeyring(strings.NewReader("# of May\n" + a + "\n\n  " + b + "\n"))
	if err != nil || len(keys) != 2 || keys[0][0] != 0 || keys[1][0] != 1 {
		t.Errorf("%v, %v", keys, err)
	}
	for text, want := range map[string]string{"": "no key", "# none\n": "no key", a + "\nAAEC\n": "line 2", "!\n": "line 1", strings.Repeat(a+"\n", 17): "more than 16"} {
		if _, err := ReadKeyring(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
