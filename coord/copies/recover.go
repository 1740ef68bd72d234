package copies

import (
	"slices"

	"star/coord/engine"
	"star/ps/replica"
	"star/runlog"
)

// A process that takes the job over begins with the views of the coordinator before it (Inherit), receives the claims
// of servers (Claim), and makes views of the live ones (Recover). An update counts when all servers of a view hold it.
// So as soon as one server of the view has reported to this process, the coordinator before cannot complete any more
// updates, and that server knows all complete ones. A server that does not connect is taken out of the view.

// Inherit begins with the views of the coordinator before.
func Inherit(want int, views []replica.View, term int64) Copies {
	// These terms are not those of the next views, which depend on the servers that connect; but a job that has
	// not begun to train needs all of them.
	own := slices.Clone(views)
	for i := range own {
		own[i].Term = max(own[i].Term, term<<32) + 1
	}
	k := begin(replica.NewTable(want, own), len(own))
	k.left, k.claims = views, map[[2]int]int64{}
	return k
}

// Claim records the last firing that a server reports to hold of a shard.
func (k *Copies) Claim(server, shard int, seq int64) { k.claims[[2]int{server, shard}] = seq }

// Disclaim forgets all claims of a server, because its connection has ended.
func (k *Copies) Disclaim(server int) {
	for shard := range k.shards {
		delete(k.claims, [2]int{server, shard})
	}
}

// Elsewhere reports whether for each shard another live server claims a copy.
func (k *Copies) Elsewhere(server int, here func(server int) bool) bool {
	for shard, v := range k.left {
		if !slices.ContainsFunc(Holders(v), func(s int) bool {
			_, claims := k.claims[[2]int{s, shard}]
			return claims && s != server && here(s)
		}) {
			return false
		}
	}
	return k.On()
}

// Recover makes the views from the claims of live servers. Only servers of an agreed view count. The caller offers the
// firings after from, up to to, again. An error: a shard has no live copy.
func (k *Copies) Recover(term int64, here func(server int) bool) (from, to int64, err error) {
	var claims []replica.Claim
	for at, seq := range k.claims {
		if here(at[0]) {
			claims = append(claims, replica.Claim{Server: at[0], Shard: at[1], View: k.left[at[1]], Seq: seq})
		}
	}
	t, from, to, err := replica.Recover(term, k.Want(), len(k.shards), claims)
	if err != nil {
		return 0, 0, err
	}
	k.table, k.orders = t, *engine.NewCopies(t, from)
	return from, to, nil
}

// Extras are the claims of live servers that are not in any view any more, in order.
func (k *Copies) Extras(here func(server int) bool) (effects []Effect) {
	for at := range k.claims {
		if here(at[0]) && !k.View(at[1]).Has(at[0]) {
			effects = append(effects, Forget{at[0], at[1]})
		}
	}
	slices.SortFunc(effects, func(a, b Effect) int {
		x, y := a.(Forget), b.(Forget)
		return slices.Compare([]int{x.Server, x.Shard}, []int{y.Server, y.Shard})
	})
	return effects
}

// Missed is the lines about a server that held copies and has not connected.
func (k *Copies) Missed(server int) (effects []Effect) {
	for shard, v := range k.left {
		if v.Has(server) {
			event := "lost"
			if v.Primary == server {
				event = "promoted"
			}
			effects = append(effects, k.note(runlog.Replica{Shard: shard, Event: event, Server: server, Why: "it did not connect to the coordinator that took over"}))
		}
	}
	return effects
}

// Counts is the number of copies of each server. Without copies it is the number of shards, from their owners.
func (k *Copies) Counts(owner []int) map[int]int {
	counts := map[int]int{}
	if !k.On() {
		for _, s := range owner {
			counts[s]++
		}
	}
	for _, v := range k.Views() {
		for _, s := range Holders(v) {
			counts[s]++
		}
	}
	return counts
}
