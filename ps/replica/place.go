package replica

import (
	"fmt"
	"slices"
)

// Server is a possible place of a copy.
type Server struct {
	Host string
	// Spare servers get a copy only if no other server can.
	Spare bool
	Gone  bool
	// Copies is how many it has.
	Copies int
}

// Place gives each shard, with its known primary, enough followers for want copies. A server holds
// at most one copy of a shard. Copies of a shard are on different hosts if possible; apart from
// that, servers get equal numbers.
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
				return nil, fmt.Errorf("replica: %d copies of every shard (--replicas) need as many star-ps, but there are %d; set --servers %d", want, len(servers), want)
			}
			views[i].Followers = append(views[i].Followers, s)
			servers[s].Copies++
		}
	}
	return views, nil
}

// Next returns the server that gets the next copy of a shard; false: every server has one.
func Next(v View, servers []Server) (server int, ok bool) {
	n := len(servers)
	key := func(s int) []int {
		near := slices.ContainsFunc(append([]int{v.Primary}, v.Followers...), func(o int) bool { return servers[o].Host == servers[s].Host })
		// The next rank comes last, so that the copies of one server's shards spread over several.
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
