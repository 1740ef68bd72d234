package moves

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Server is a server as star ctl move names it.
type Server struct {
	Host, Addr string
	Gone       bool
}

// Parse reads SHARD and the rank, the host or the address of a server, of a job with that many shards and these servers
// by rank. A host must have exactly one server. Errors list the choices.
func Parse(args []string, shards int, servers []Server) (shard, to int, err error) {
	if len(args) != 2 {
		return 0, 0, errors.New("want SHARD SERVER: a shard's number, and the rank, the host or the address of a star-ps")
	}
	shard, err = strconv.Atoi(args[0])
	if err != nil || shard < 0 || shard >= shards {
		return 0, 0, fmt.Errorf("shard %q is not one of 0 to %d", args[0], shards-1)
	}
	if to, err = strconv.Atoi(args[1]); err != nil {
		var at []int
		for i, s := range servers {
			host, _, _ := net.SplitHostPort(s.Addr)
			if args[1] == s.Host || args[1] == host || args[1] == s.Addr {
				at = append(at, i)
			}
		}
		if len(at) != 1 {
			return 0, 0, fmt.Errorf("%d servers are at %q (%v): give the rank of one", len(at), args[1], at)
		}
		to = at[0]
	}
	if to < 0 || to >= len(servers) {
		return 0, 0, fmt.Errorf("server %d is not one of 0 to %d", to, len(servers)-1)
	}
	if servers[to].Gone {
		return 0, 0, fmt.Errorf("server %d is gone", to)
	}
	return shard, to, nil
}

// Asked is the state of a job in which a user asks for the move of a shard.
type Asked struct {
	Sharded, Replaceable, Copies, Ends bool

	Short  string // why the job waits for workers
	Coming int    // the rank of a worker that is coming; negative: none is
	Owner  func(shard int) int
}

// Refuse returns why a shard does not move to a server now; nil: it may.
func (m *Mover) Refuse(shard, to int, a *Asked) error {
	moving, busy := m.Busy()
	switch {
	case !a.Sharded:
		return errors.New("an all-reduce has no shards")
	case a.Replaceable:
		return errors.New("shards cannot move in a job with --coordinators")
	case a.Copies:
		return errors.New("shards with copies (--replicas) cannot move")
	case busy:
		return fmt.Errorf("shard %d is moving: one at a time", moving)
	case a.Ends:
		return errors.New("the job is about to end")
	case a.Short != "":
		return fmt.Errorf("the job waits for workers: %s", a.Short)
	case a.Coming >= 0:
		return fmt.Errorf("worker %d is coming to the job: try again in a moment", a.Coming)
	case a.Owner(shard) == to:
		return fmt.Errorf("shard %d is at server %d already", shard, to)
	}
	return nil
}
