package layout

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

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
		counts := l.Cut(c.params, servers, nil)
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

// A cut moves to the nearer end of a range that has to be whole; one larger than a shard's part is a larger shard.
func TestCutWhole(t *testing.T) {
	for _, c := range []struct {
		params, shards int64
		whole          []Range
		ends           []int64
	}{
		{100, 4, []Range{{90, 95}}, []int64{25, 50, 75, 100}},
		{100, 4, []Range{{20, 30}}, []int64{20, 46, 73, 100}},
		{100, 2, []Range{{10, 60}, {60, 90}}, []int64{60, 100}},
		{100, 2, []Range{{40, 100}}, []int64{40, 100}},
		{100, 3, []Range{{0, 90}}, []int64{90, 95, 100}},
		{100, 3, []Range{{0, 100}}, []int64{100}},
		{100, 4, []Range{{0, 50}, {50, 100}}, []int64{50, 100}},
		{100, 3, []Range{{4, 5}, {10, 96}}, []int64{10, 96, 100}},
	} {
		if ends := cuts(c.params, c.shards, c.whole); !reflect.DeepEqual(ends, c.ends) {
			t.Errorf("%+v: %v", c, ends)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n, k := rapid.Int64Range(1, 200).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "k")
		var whole []Range
		largest := int64(1)
		for at := rapid.Int64Range(0, n).Draw(t, "first"); at < n; at += rapid.Int64Range(0, 20).Draw(t, "between") {
			to := min(n, at+rapid.Int64Range(1, 60).Draw(t, "length"))
			whole = append(whole, Range{at, to})
			largest = max(largest, to-at)
			at = to
		}
		var l Layout
		l.Cut(n, []Server{{"a", k}}, whole)
		at := int64(0)
		for _, s := range l.Shards() {
			if s.From != at || s.To <= s.From || s.To-s.From > n/int64(k)+1+largest {
				t.Fatalf("%+v of %d in %d with %v whole", s, n, k, whole)
			}
			for _, r := range whole {
				if r.From < s.To && s.To < r.To {
					t.Fatalf("shard %+v ends in %v", s, r)
				}
			}
			at = s.To
		}
		if at != n {
			t.Fatalf("%d of %d in shards", at, n)
		}
	})
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
