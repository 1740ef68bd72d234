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

// A job may have a gossip of its own, by which its processes find each other: whoever knows one member learns where the coordinator is.
// It says who is there, not who is alive: that is between the coordinator and each of them.

// JobMember is what a process of a job tells the others about itself.
type JobMember struct {
	Role   string `json:"role"` // server or worker
	Rank   int    `json:"rank"` // -1: it has none yet
	Shards int    `json:"shards,omitempty"`
	Addr   string `json:"addr,omitempty"` // where it is reached, host:port; the gossip's own host if there is none before the colon
	Host   string `json:"host,omitempty"` // the host's name
}

// JobGossip is a membership in the gossip of a job.
type JobGossip struct{ *Gossip }

// MeetJob begins a membership in the gossip of the job that cfg.Cluster names; cfg.Place is not used. With seeds it returns when one of
// them has answered; an error says which could not be reached.
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

// encode is what the others are told. memberlist wants at most 512 bytes.
func (m JobMember) encode() ([]byte, error) {
	meta, err := json.Marshal(m)
	if err == nil && len(meta) > memberlist.MetaMaxSize { // memberlist would panic
		err = fmt.Errorf("address %q and host %q are too long to be told to others", m.Addr, m.Host)
	}
	return meta, err
}

// Say tells the others something new about this process. It does not wait until they have heard it, which takes about a second.
func (g *JobGossip) Say(me JobMember) error {
	meta, err := me.encode()
	if err != nil {
		return err
	}
	g.meta.Store(&meta)
	g.list.UpdateNode(time.Millisecond) // the only error is that nobody has heard it yet
	return nil
}

// JobSeedError says that no member of a job's gossip answered.
type JobSeedError struct{ SeedError }

func (e *JobSeedError) Error() string {
	return fmt.Sprintf("none of %v is a member of the gossip of job %q that understands us (%v): check --job, --gossip-join and --gossip-key", e.Seeds, e.Cluster, oneLine(e.Err))
}

// Members are the others that have said who they are: servers by rank, then workers.
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

// parseJobMember reads what a member tells about itself.
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

// Coordinator waits until a member says that it hosts the coordinator, for as long as ctx allows, and returns its address. A member
// that is gone without a word is remembered by the gossip for some seconds, so the address may be of one that was there.
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

// CoordinatorError says that nobody in the gossip of a job hosts its coordinator.
type CoordinatorError struct {
	Job     string
	Members int // that are there
	Err     error
}

func (e *CoordinatorError) Error() string {
	return fmt.Sprintf("%d others are in the gossip of job %q, and none of them hosts the coordinator: does star-ps of rank 0 run with --gossip? (%v)", e.Members, e.Job, e.Err)
}
func (e *CoordinatorError) Unwrap() error { return e.Err }

// ExitCode is that of somebody who is lost for good.
func (e *CoordinatorError) ExitCode() int { return exitcode.Lost }

// maxKeys bounds a keyring.
const maxKeys = 16

// ReadKeyring reads keys of a gossip, one in each line, as [ReadKey] reads one. The first one is spoken with, and all are understood, so
// that a key can be changed one process at a time. Empty lines, and what begins with #, are passed over.
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
