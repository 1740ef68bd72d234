package allreduce

import (
	"cmp"
	"fmt"
	"slices"
)

// Hierarchy is the all-reduce for hosts with several ranks each: hosts[r] is
// the host of rank r, 0, 1, …. Between hosts a vector travels once per host
// instead of once per rank.
//
// The vector has as many parts as the smallest host has ranks. Part j has a
// leader on every host: its j-th rank. First the ranks of a host send their
// parts to the leaders, which add them up. Then the leaders of each part run a
// ring (Ring), all parts at once. Then the leaders send out the results. With
// one rank on the smallest host that is: reduce to a leader, all-reduce among
// leaders, broadcast.
func Hierarchy(hosts []int, rank int) Schedule { return hierarchy(hosts, rank, Ring) }

// HierarchyDoubling is Hierarchy with RecursiveDoubling between leaders: fewer
// steps, for short vectors.
func HierarchyDoubling(hosts []int, rank int) Schedule {
	return hierarchy(hosts, rank, RecursiveDoubling)
}

func hierarchy(hosts []int, rank int, between func(n, rank int) Schedule) Schedule {
	checkRank("Hierarchy", len(hosts), rank)
	h := groupByHost(hosts)
	parts, most := len(h[0]), 0
	for _, ranks := range h {
		parts, most = min(parts, len(ranks)), max(most, len(ranks))
	}
	mine := h[hosts[rank]]
	k, i := len(mine), slices.Index(mine, rank)
	// The schedule between hosts, in which a host takes the place of a rank.
	// Each part runs its own, on blocks of its own.
	inner := between(len(h), hosts[rank])
	part := func(j int) Span { return Span{j * inner.Blocks, (j + 1) * inner.Blocks} }
	s := Schedule{Blocks: parts * inner.Blocks, Steps: 2*(most-1) + inner.Steps}

	// In step t-1 of a host, its i-th rank sends to the one t places further.
	local := func(step int, up bool) {
		for t := 1; t < k; t++ {
			to, from := (i+t)%k, (i-t+k)%k
			m := Move{Step: step + t - 1, To: None, From: None, Add: up, Last: up && t == k-1 && len(h) == 1}
			// Upwards, a rank sends a leader's part to it; downwards, a leader
			// sends its own.
			if sends := to; up && sends < parts {
				m.To, m.Send = mine[to], part(sends)
			} else if !up && i < parts {
				m.To, m.Send = mine[to], part(i)
			}
			if up && i < parts {
				m.From, m.Recv = mine[from], part(i)
			} else if !up && from < parts {
				m.From, m.Recv = mine[from], part(from)
			}
			if m.To != None || m.From != None {
				s.Moves = append(s.Moves, m)
			}
		}
	}
	// A host with fewer ranks than the largest one leaves steps unused, so that
	// a step has the same number on all hosts.
	local(0, true)
	if i < parts {
		leader := func(host int) int {
			if host == None {
				return None
			}
			return h[host][i]
		}
		for _, m := range inner.Moves {
			m.Step += most - 1
			m.To, m.From = leader(m.To), leader(m.From)
			m.Send = Span{m.Send.Lo + part(i).Lo, m.Send.Hi + part(i).Lo}
			m.Recv = Span{m.Recv.Lo + part(i).Lo, m.Recv.Hi + part(i).Lo}
			s.Moves = append(s.Moves, m)
		}
	}
	local(most-1+inner.Steps, false)
	return s
}

// groupByHost returns the ranks of each host, in order.
func groupByHost(hosts []int) [][]int {
	n := 0
	for _, h := range hosts {
		n = max(n, h+1)
	}
	g := make([][]int, n)
	for r, h := range hosts {
		g[h] = append(g[h], r)
	}
	for h, ranks := range g {
		// Hosts are numbered without gaps by numberHosts; only a caller's own
		// numbers can fail here.
		if h < 0 || len(ranks) == 0 {
			panic("allreduce: Hierarchy: a host without ranks")
		}
	}
	return g
}

// numberHosts numbers hosts in order of appearance. An empty name is a host of
// its own.
func numberHosts(names []string) []int {
	hosts := make([]int, len(names))
	known := map[string]int{}
	next := 0
	for r, name := range names {
		h, ok := known[name]
		if !ok {
			h = next
			next++
			if name != "" {
				known[name] = h
			}
		}
		hosts[r] = h
	}
	return hosts
}

// sharedHosts reports whether there are several hosts, some with several ranks.
func sharedHosts(hosts []int) bool {
	n := 1 + slices.Max(hosts)
	return n > 1 && n < len(hosts)
}

// load is what an all-reduce demands of hosts with ranks that share one network
// link. Steps between hosts take longer than those inside. Bytes of the busiest
// host, and of the busiest rank inside a host, are fractions of the vector.
type load struct {
	remoteSteps, localSteps int
	remote, local, added    float64
}

// loadOf returns the load of the schedules of all ranks, by rank.
func loadOf(all []Schedule, hosts []int) load {
	var l load
	remote := make([]bool, all[0].Steps)
	local := make([]bool, all[0].Steps)
	out, in := make([]float64, 1+slices.Max(hosts)), make([]float64, 1+slices.Max(hosts))
	for r, s := range all {
		inside, added := 0.0, 0.0
		for _, m := range s.Moves {
			part := func(sp Span) float64 { return float64(sp.Hi-sp.Lo) / float64(s.Blocks) }
			if m.To != None {
				if hosts[m.To] == hosts[r] {
					local[m.Step] = true
					inside += part(m.Send)
				} else {
					remote[m.Step] = true
					out[hosts[r]] += part(m.Send)
					in[hosts[m.To]] += part(m.Send)
				}
			}
			if m.From != None && m.Add {
				added += part(m.Recv)
			}
		}
		l.local, l.added = max(l.local, inside), max(l.added, added)
	}
	// A step with a transfer between hosts takes as long as that one, whatever
	// happens inside hosts meanwhile.
	for t := range remote {
		switch {
		case remote[t]:
			l.remoteSteps++
		case local[t]:
			l.localSteps++
		}
	}
	// A host's link carries both directions at once, so the busier direction
	// counts.
	l.remote = max(slices.Max(out), slices.Max(in))
	return l
}

// Between ranks of one host, through shared memory, a message costs an eighth
// of one through TCP and a byte a quarter (docs/allreduce.md).
const (
	localAlpha = 1.0 / 8
	localBeta  = 1.0 / 4
)

// seconds predicts the time of l with m, for size bytes.
func (l load) seconds(m *Model, size int64) float64 {
	s := float64(size)
	return m.Alpha*(float64(l.remoteSteps)+localAlpha*float64(l.localSteps)) +
		s*(m.Beta*(2*l.remote+2*localBeta*l.local)+m.Gamma*l.added)
}

// placed predicts the cost of algorithms for ranks on several hosts, some of
// them on the same. It is made once for a group.
type placed struct {
	hosts []int
	loads map[Algorithm]load
}

// mostPlaced bounds the ranks for which schedules are counted. Beyond it only
// bytes are compared, which favours the hierarchy.
const mostPlaced = 256

func newPlaced(hosts []int) *placed {
	p := &placed{hosts: hosts, loads: map[Algorithm]load{}}
	for _, a := range append(slices.Clone(allReduceAlgorithms), AlgorithmHierarchy, AlgorithmHierarchyDoubling) {
		if len(hosts) > mostPlaced && a != AlgorithmHierarchy && a != AlgorithmHierarchyDoubling {
			continue
		}
		all := make([]Schedule, len(hosts))
		for r := range all {
			all[r] = allReduceSchedule(a, hosts, r)
		}
		p.loads[a] = loadOf(all, hosts)
	}
	return p
}

// choose returns the fastest algorithm for size bytes. Measurements of m with
// this number of ranks have precedence for the algorithms that they cover.
func (p *placed) choose(m *Model, size int64) Algorithm {
	best, price := AlgorithmHierarchy, 0.0
	first := true
	// Samples of this number of ranks may be from another placement, unless
	// they have the hierarchy.
	_, sampled := m.measured(AlgorithmHierarchy, len(p.hosts), size)
	// In one order on all ranks, so that all choose the same.
	as := make([]Algorithm, 0, len(p.loads))
	for a := range p.loads {
		as = append(as, a)
	}
	slices.SortFunc(as, func(a, b Algorithm) int { return cmp.Compare(b, a) })
	for _, a := range as {
		t, ok := m.measured(a, len(p.hosts), size)
		if !ok || !sampled {
			t = p.loads[a].seconds(m, size)
		}
		if first || t < price {
			best, price, first = a, t, false
		}
	}
	return best
}

// setHosts records where ranks are.
func (g *Group) setHosts(places []place) {
	names := make([]string, len(places))
	for r, p := range places {
		names[r] = p.Host
	}
	g.hosts = numberHosts(names)
	if sharedHosts(g.hosts) {
		g.placed = newPlaced(g.hosts)
	}
	g.chosen = sizedAlgorithm{}
}

// algorithms describes, for the log, what AllReduce uses for short and long
// vectors.
func (g *Group) algorithms() string {
	if len(g.peers) == 1 {
		return "none"
	}
	return fmt.Sprintf("4 KiB %v, 1 MiB %v, 64 MiB %v", g.Algorithm(4<<10), g.Algorithm(1<<20), g.Algorithm(64<<20))
}
