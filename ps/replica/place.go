package replica

import (
	"fmt"
	"slices"
)

// Server is where a copy could be.
type Server struct {
	Host   string
	Spare  bool // it is there for what may happen: it gets a copy when no other will do
	Gone   bool
	Copies int // that it has
}

// Place gives each shard, whose primary is known, as many followers as it takes to have want copies. A server holds one copy of a shard at
// most. Copies of a shard are on different hosts where that can be; apart from that, servers get as many as each other.
func Place(want int, servers []Server, primaries []int) ([]View, error) {
	servers = slices.Clone(servers)
	views := make([]View, len(primaries))
	for i, p := range primaries {
		views[i] = View{Term: 1, Primary: p}
		servers[p].Copies++
	}
	for range want - 1 {
		for i := range views {
			s, ok := Next(views[i], servers)
			if !ok {
				return nil, fmt.Errorf("replica: %d copies of every shard (--replicas) need as many star-ps, but there are %d: give --servers %d", want, len(servers), want)
			}
			views[i].Followers = append(views[i].Followers, s)
			servers[s].Copies++
		}
	}
	return views, nil
}

// Next is the server that gets the next copy of a shard; false: every one has it.
func Next(v View, servers []Server) (server int, ok bool) {
	n := len(servers)
	key := func(s int) []int {
		near := slices.ContainsFunc(append([]int{v.Primary}, v.Followers...), func(o int) bool { return servers[o].Host == servers[s].Host })
		// The neighbour last: not everybody's copies in one place.
		return []int{one(near), one(servers[s].Spare), servers[s].Copies, (s - v.Primary + n) % n}
	}
	server = -1
	for s := range servers {
		if servers[s].Gone || v.Has(s) {
			continue
		}
		if server < 0 || slices.Compare(key(s), key(server)) < 0 {
			server = s
		}
	}
	return server, server >= 0
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
