package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"star/internal/exitcode"
	"star/internal/flightrecorder"
)

// A job may have a gossip of its own, by which its processes find each other: a process that knows one member learns
// where the coordinator is. The gossip shows which processes exist, not which are alive: that is between the
// coordinator and each of them.

// JobMember is what a process of a job publishes about itself.
type JobMember struct {
	Role   string `json:"role"` // server or worker
	Rank   int    `json:"rank"` // -1: it has none yet
	Shards int    `json:"shards,omitempty"`
	// Addr is where the process is reached, host:port; an empty host means the gossip's own.
	Addr string `json:"addr,omitempty"`
	Host string `json:"host,omitempty"` // the host's name
}

// JobGossip is a membership in the gossip of a job.
type JobGossip struct{ *Gossip }

// MeetJob joins the gossip of the job that cfg.Cluster names; cfg.Place is ignored. With seeds it returns when one of
// them has answered; the error names those that could not be reached.
func MeetJob(ctx context.Context, cfg GossipConfig, me JobMember) (*JobGossip, error) {
	meta, err := me.encode()
	if err != nil {
		return nil, err
	}
	g, err := convene(ctx, cfg, "star-job "+cfg.Cluster, fmt.Sprintf("%s-%d", me.Role, me.Rank), meta)
	if seeds, ok := errors.AsType[*SeedError](err); ok {
		return nil, &JobSeedError{*seeds}
	}
	if err != nil {
		return nil, err
	}
	return &JobGossip{g}, nil
}

// encode returns what is published. memberlist allows at most 512 bytes.
func (m JobMember) encode() ([]byte, error) {
	meta, err := json.Marshal(m)
	if err == nil && len(meta) > memberlist.MetaMaxSize { // memberlist would panic
		err = fmt.Errorf("cannot publish address %q and host %q: they are too long", m.Addr, m.Host)
	}
	return meta, err
}

// Say publishes a change of this process. It does not wait until the others have received it, which takes about a
// second.
func (g *JobGossip) Say(me JobMember) error {
	meta, err := me.encode()
	if err != nil {
		return err
	}
	g.meta.Store(&meta)
	g.list.UpdateNode(time.Millisecond) // the only error is a timeout of the broadcast
	return nil
}

// JobSeedError means that no member of a job's gossip answered.
type JobSeedError struct{ SeedError }

func (e *JobSeedError) Error() string {
	return fmt.Sprintf("none of %v is a member of the gossip of job %q with our key (%v): check --job, --gossip-join and --gossip-key", e.Seeds, e.Cluster, oneLine(e.Err))
}

// Members returns the other members that have published their identity: servers by rank, then workers.
func (g *JobGossip) Members() []JobMember {
	var ms []JobMember
	for _, n := range g.list.Members() {
		if m, ok := parseJobMember(n.Meta); ok && n.Name != g.list.LocalNode().Name {
			if host, port, _ := net.SplitHostPort(m.Addr); host == "" && port != "" {
				m.Addr = net.JoinHostPort(n.Addr.String(), port)
			}
			ms = append(ms, m)
		}
	}
	slices.SortFunc(ms, func(a, b JobMember) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Addr, b.Addr))
	})
	return ms
}

// parseJobMember parses what a member publishes.
func parseJobMember(b []byte) (m JobMember, ok bool) {
	if len(b) > memberlist.MetaMaxSize || json.Unmarshal(b, &m) != nil || m.Rank < -1 || m.Shards < 0 {
		return JobMember{}, false
	}
	switch m.Role {
	case "server":
		_, _, err := net.SplitHostPort(m.Addr)
		return m, err == nil && m.Rank >= 0
	case "worker":
		return m, true
	}
	return JobMember{}, false
}

// Coordinator waits, until ctx ends, for a member that hosts the coordinator, and returns its address. The gossip
// remembers a member that disappeared for some seconds, so the address may be of a process that has ended.
func (g *JobGossip) Coordinator(ctx context.Context, job string) (string, error) {
	site := flightrecorder.Open("gossip of job "+job, "a star-ps that hosts the coordinator", "", "")
	defer site.Close()
	if end, ok := ctx.Deadline(); ok {
		site.Begin(-1, time.Until(end))
	}
	for {
		ms := g.Members()
		for _, m := range ms {
			if m.Role == "server" && m.Rank == 0 {
				return m.Addr, nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", &CoordinatorError{job, len(ms), ctx.Err()}
		}
	}
}

// CoordinatorError means that no member of a job's gossip hosts its coordinator.
type CoordinatorError struct {
	Job     string
	Members int // number of other members
	Err     error
}

func (e *CoordinatorError) Error() string {
	return fmt.Sprintf("%d others are in the gossip of job %q, and none of them hosts the coordinator: does star-ps of rank 0 run with --gossip? (%v)", e.Members, e.Job, e.Err)
}
func (e *CoordinatorError) Unwrap() error { return e.Err }

// ExitCode returns exitcode.Lost.
func (e *CoordinatorError) ExitCode() int { return exitcode.Lost }

// maxKeys bounds a keyring.
const maxKeys = 16

// ReadKeyring reads gossip keys, one per line, as [ReadKey] does. The first one encrypts, and all are accepted, so that
// a key can be replaced one process at a time. Empty lines and lines that begin with # are skipped.
func ReadKeyring(r io.Reader) (keys [][]byte, err error) {
	sc := bufio.NewScanner(io.LimitReader(r, 4<<10))
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := ReadKey(bytes.NewReader(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("line %d: more than %d keys", n, maxKeys)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("no key: want lines of base64, such as %s", base64.StdEncoding.EncodeToString(make([]byte, 16))[:8]+"…")
	}
	return keys, nil
}
