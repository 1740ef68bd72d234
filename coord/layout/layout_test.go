package layout

import (
	"fmt"
	"reflect"
	"testing"

	"star/transport/wire"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		params int64
		wants  []int // shards of each server
		counts []int
		owners []int
		ends   []int64 // of the ranges
	}{
		{10, []int{1, 2}, []int{1, 2}, []int{0, 1, 1}, []int64{3, 6, 10}},
		{10, []int{0, 1, 0}, []int{0, 1, 0}, []int{1}, []int64{10}},
		{2, []int{1, 0, 3}, []int{1, 0, 1}, []int{0, 2}, []int64{1, 2}},
		{10, []int{0, 0}, []int{0, 0}, nil, nil},
		{1 << 40, []int{1, 1}, []int{1, 1}, []int{0, 1}, []int64{1 << 39, 1 << 40}},
	} {
		var l Layout
		var servers []Server
		for i, n := range c.wants {
			servers = append(servers, Server{Addr: fmt.Sprint("s", i), Shards: n})
		}
		counts := l.Cut(c.params, servers)
		if !reflect.DeepEqual(counts, c.counts) || !reflect.DeepEqual(l.Owners(), c.owners) {
			t.Errorf("%+v: counts %v, owners %v", c, counts, l.Owners())
		}
		from := int64(0)
		for i, s := range l.Shards() {
			if s.Shard != i || s.From != from || s.To != c.ends[i] || s.Addr != fmt.Sprint("s", l.Owner(i)) || !l.Hosts()[[2]int{l.Owner(i), i}] {
				t.Errorf("%+v: shard %d is %+v", c, i, s)
			}
			from = s.To
		}
		if l.Len() != len(c.ends) || len(l.Unfilled()) != l.Len() || l.Assigned() {
			t.Errorf("%+v: %d shards, %v without parameters, assigned %v", c, l.Len(), l.Unfilled(), l.Assigned())
		}
	}
}

// A shard that moves changes its primary server; servers that had it are still known.
func TestPut(t *testing.T) {
	var l Layout
	l.Inherit([]wire.ShardInfo{{Shard: 0, To: 6, Addr: "a"}, {Shard: 1, From: 6, To: 10, Addr: "b"}}, []int{0, 1})
	l.Assign()
	l.Fill(1, true)
	l.Host(2, 1)
	l.Put(1, 2, "c")
	if l.Owner(1) != 2 || l.Shard(1).Addr != "c" || len(l.Of(1)) != 0 || len(l.Of(2)) != 1 || !l.Hosts()[[2]int{1, 1}] || !l.Filled(1) {
		t.Errorf("%+v", l)
	}
	if got := l.Inflow(0.5, func(rank int) bool { return rank == 2 }); len(got) != 1 || got[2] != 0.5*4*4 {
		t.Errorf("%v", got)
	}
	l.Clear()
	if l.Assigned() || l.Len() != 0 || !l.Hosts()[[2]int{2, 1}] {
		t.Errorf("%+v after Clear", l)
	}
}
