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
