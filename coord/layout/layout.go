// Package layout has the shards of a job: their ranges of the parameters, which server has which, and which are filled.
// It is pure. In an all-reduce there are no shards.
package layout

import (
	"cmp"
	"slices"

	"star/transport/wire"
)

// Layout is empty until Cut or Inherit.
type Layout struct {
	assigned bool
	shards   []wire.ShardInfo
	owner    []int // by shard: the rank of its primary server
	ready    []bool
	hosts    map[[2]int]bool // by server and shard: the server has, had or will get the shard
}

// Server is one to which shards are assigned.
type Server struct {
	Addr   string
	Shards int // how many it takes
}

// Range is the elements From to To, without that one.
type Range struct{ From, To int64 }

// Cut divides n parameters among the servers, by rank, and returns how many shards each gets. Ranges have equal
// numbers of elements, up to rounding. No cut is within one of whole, which are in order and do not overlap: a cut
// there moves to the nearer end, and a range of whole that is larger than a shard's part makes a larger shard. If
// there are more shards than parameters, or than places to cut, the last ones are not assigned.
func (l *Layout) Cut(n int64, servers []Server, whole []Range) (counts []int) {
	k := int64(0)
	for _, s := range servers {
		k += int64(s.Shards)
	}
	ends := cuts(n, min(k, n), whole)
	for rank, s := range servers {
		first := len(l.shards)
		for range s.Shards {
			next := len(l.shards)
			if next == len(ends) {
				break
			}
			from := int64(0)
			if next > 0 {
				from = ends[next-1]
			}
			l.shards = append(l.shards, wire.ShardInfo{Shard: next, Addr: s.Addr, From: from, To: ends[next]})
			l.owner = append(l.owner, rank)
			l.Host(rank, next)
		}
		counts = append(counts, len(l.shards)-first)
	}
	l.ready = make([]bool, len(l.shards))
	return counts
}

// cuts returns the ends of at most k ranges that n parameters are cut into, in order; the last is n.
func cuts(n, k int64, whole []Range) (ends []int64) {
	if len(whole) == 0 {
		for i := range k {
			ends = append(ends, n*(i+1)/k)
		}
		return ends
	}
	at := int64(0)
	for left := k; left > 0 && at < n; left-- {
		end := at + max((n-at)/left, 1)
		if left == 1 {
			end = n
		}
		// The first range that ends behind the cut.
		i, _ := slices.BinarySearchFunc(whole, end, func(r Range, end int64) int { return cmp.Compare(r.To, end+1) })
		if i < len(whole) && whole[i].From < end {
			if r := whole[i]; r.From > at && end-r.From <= r.To-end {
				end = r.From
			} else {
				end = r.To
			}
		}
		ends = append(ends, end)
		at = end
	}
	return ends
}

// Inherit takes the shards of the previous coordinator.
func (l *Layout) Inherit(shards []wire.ShardInfo, owner []int) {
	l.shards, l.owner, l.ready = shards, owner, make([]bool, len(shards))
	for shard, rank := range owner {
		l.Host(rank, shard)
	}
}

// Assign marks the layout as complete: from now on servers and workers may know it.
func (l *Layout) Assign() { l.assigned = true }

// Assigned reports whether it is.
func (l *Layout) Assigned() bool { return l.assigned }

// Clear removes the shards. Servers that had some may still report them.
func (l *Layout) Clear() { *l = Layout{hosts: l.hosts} }

// Len is the number of shards.
func (l *Layout) Len() int { return len(l.shards) }

// Shards returns the shards with the addresses of their primary servers, for a message. The caller must not change it.
func (l *Layout) Shards() []wire.ShardInfo { return l.shards }

// Shard returns one of them.
func (l *Layout) Shard(shard int) wire.ShardInfo { return l.shards[shard] }

// Owner is the rank of a shard's primary server.
func (l *Layout) Owner(shard int) int { return l.owner[shard] }

// Owners is Owner by shard. The caller must not change it.
func (l *Layout) Owners() []int { return l.owner }

// Of returns the shards of the primary server with a rank.
func (l *Layout) Of(rank int) (own []wire.ShardInfo) {
	for shard, owner := range l.owner {
		if owner == rank {
			own = append(own, l.shards[shard])
		}
	}
	return own
}

// Put makes a server the primary of a shard.
func (l *Layout) Put(shard, rank int, addr string) {
	l.owner[shard], l.shards[shard].Addr = rank, addr
}

// Host records that a server has or will get a shard.
func (l *Layout) Host(rank, shard int) {
	if l.hosts == nil {
		l.hosts = map[[2]int]bool{}
	}
	l.hosts[[2]int{rank, shard}] = true
}

// Hosts is by server and shard: the server has, had or will get the shard. The caller must not change it.
func (l *Layout) Hosts() map[[2]int]bool { return l.hosts }

// Fill records whether a shard has its parameters.
func (l *Layout) Fill(shard int, filled bool) { l.ready[shard] = filled }

// Filled reports whether a shard has its parameters.
func (l *Layout) Filled(shard int) bool { return l.ready[shard] }

// Unfilled lists the shards without parameters.
func (l *Layout) Unfilled() (shards []int) {
	for shard, ok := range l.ready {
		if !ok {
			shards = append(shards, shard)
		}
	}
	return shards
}

// Inflow is how many bytes of a push arrive at each server for which far is true. part is the size of the push, as a
// share of that of the parameters.
func (l *Layout) Inflow(part float64, far func(rank int) bool) map[int]float64 {
	bytes := map[int]float64{}
	for shard, owner := range l.owner {
		if s := l.shards[shard]; far(owner) {
			bytes[owner] += part * float64(4*(s.To-s.From))
		}
	}
	return bytes
}
