package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"star"
	"star/ps/replica"
	"star/transport/wire"
)

// TestCopiesScripts runs testdata/copies. Commands:
//
//	new copies=2            views below, one for a shard: the primary and its followers
//	offer seq=1 release=0   a Fire, if seq is given, from which a release follows
//	keep release=1          a release without a Fire
//	held server=1 seq=1     the server's copies of all shards hold the Fires up to seq
//	lost server=1
//
// The answers are the messages that the coordinator must send.
//
// go test ./coord/engine -run CopiesScripts -rewrite rewrites the answers: read the diff.
func TestCopiesScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/copies", func(t *testing.T, path string) {
		var k *Copies
		shards := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string, def int64) int64 {
				d.MaybeScanArgs(t, key, &def)
				return def
			}
			var out strings.Builder
			release := func() (rs []wire.Release) {
				if w := number("release", -1); w >= 0 {
					rs = append(rs, wire.Release{Worker: star.Worker(w)})
				}
				return rs
			}
			switch d.Cmd {
			case "new":
				var views []replica.View
				for line := range strings.Lines(d.Input) {
					v := replica.View{Term: 1}
					for i, f := range strings.Fields(line) {
						var s int
						fmt.Sscan(f, &s)
						if i == 0 {
							v.Primary = s
						} else {
							v.Followers = append(v.Followers, s)
						}
					}
					views = append(views, v)
				}
				shards = len(views)
				k = NewCopies(replica.NewTable(int(number("copies", 2)), views), 0)
			case "offer":
				k.Offer(&Ready{Fire: wire.Fire{Seq: number("seq", 0)}, Releases: release()})
			case "keep":
				if !k.Keep(release()[0]) {
					out.WriteString("nothing is before it: it goes out\n")
				}
			case "held":
				s := int(number("server", 0))
				for shard := range shards {
					if v := k.Table.View(shard); v.Has(s) {
						k.Table.Held(shard, s, v.Term, number("seq", 0))
					}
				}
			case "lost":
				for _, c := range k.Table.Lost(int(number("server", 0))) {
					if c.Gone {
						fmt.Fprintf(&out, "shard %d is gone\n", c.Shard)
					} else {
						fmt.Fprintf(&out, "shard %d: promoted %v, %+v\n", c.Shard, c.Promoted, k.Table.View(c.Shard))
					}
				}
			}
			for o := k.Ripe(); o != nil; o = k.Ripe() {
				fmt.Fprintf(&out, "primaries: fire %d\n", o.Fire.Seq)
			}
			for o, ok := k.Due(); ok; o, ok = k.Due() {
				for _, r := range o.Releases {
					fmt.Fprintf(&out, "release %d\n", r.Worker)
				}
			}
			if seq, ok := k.Waits(); ok {
				fmt.Fprintf(&out, "the rest waits for fire %d, primaries know %d\n", seq, k.Told())
			}
			return out.String()
		})
	})
}

// What goes to primaries and to workers, and when, is what a naive model says that looks at all copies every time:
// primaries learn of the longest prefix of the Fires that all followers hold, workers of what every copy holds.
func TestCopiesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, shards := rapid.IntRange(2, 4).Draw(t, "servers"), rapid.IntRange(1, 3).Draw(t, "shards")
		var views []replica.View
		for s := range shards {
			ranks := rapid.Permutation(ranks(servers)).Draw(t, "holders")
			n := rapid.IntRange(1, servers).Draw(t, "copies")
			views = append(views, replica.View{Term: int64(s + 1), Primary: ranks[0], Followers: ranks[1:n]})
		}
		k := NewCopies(replica.NewTable(2, views), 0)
		held := map[[2]int]int64{} // by shard and server
		var all []int64            // what was offered: the Fire, 0 for none
		toPrimaries, toWorkers := 0, 0
		seq := int64(0)
		lost := map[int]bool{}
		hold := func(followers, primaries bool) (least int64) { // the last Fire that all of these hold
			least = seq
			for shard := range shards {
				v := k.Table.View(shard)
				if primaries {
					least = min(least, held[[2]int{shard, v.Primary}])
				}
				for _, s := range v.Followers {
					if followers {
						least = min(least, held[[2]int{shard, s}])
					}
				}
			}
			return least
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0, 1:
				o := Ready{}
				if rapid.Bool().Draw(t, "a fire") {
					seq++
					o.Fire.Seq = seq
				}
				k.Offer(&o)
				all = append(all, o.Fire.Seq)
			case 2:
				s := rapid.IntRange(0, servers-1).Draw(t, "lost")
				last := lost[s]
				for shard := range shards {
					v := k.Table.View(shard)
					last = last || v.Has(s) && v.Copies() == 1
				}
				if !last {
					lost[s] = true
					k.Table.Lost(s)
				}
			default:
				shard, s := rapid.IntRange(0, shards-1).Draw(t, "shard"), rapid.IntRange(0, servers-1).Draw(t, "server")
				v := k.Table.View(shard)
				if !v.Has(s) {
					continue
				}
				most := seq
				if v.Primary == s { // it holds nothing that it was not told of
					most = max(k.Told(), held[[2]int{shard, s}])
				}
				at := rapid.Int64Range(held[[2]int{shard, s}], most).Draw(t, "up to")
				held[[2]int{shard, s}] = at
				k.Table.Held(shard, s, v.Term, at)
			}
			var ripe []int64
			for o := k.Ripe(); o != nil; o = k.Ripe() {
				ripe = append(ripe, o.Fire.Seq)
			}
			var want []int64
			for ready := hold(true, false); toPrimaries < len(all); toPrimaries++ {
				if last := slices.Max(append([]int64{0}, all[:toPrimaries+1]...)); last > ready {
					break
				}
				if f := all[toPrimaries]; f > 0 {
					want = append(want, f)
				}
			}
			if !slices.Equal(ripe, want) {
				t.Fatalf("primaries are told of %v, want %v", ripe, want)
			}
			due, free := 0, 0
			for _, ok := k.Due(); ok; _, ok = k.Due() {
				due++
			}
			acked := hold(true, true)
			for toWorkers < toPrimaries {
				last := int64(0)
				for i := toWorkers; i >= 0 && last == 0; i-- {
					last = all[i]
				}
				if last > acked {
					break
				}
				toWorkers++
				free++
			}
			if due != free {
				t.Fatalf("%d go out, want %d", due, free)
			}
		}
	})
}
