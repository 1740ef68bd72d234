// Package replica decides which servers hold the copies of a shard, which of them answers workers,
// when an update is acknowledged, and what follows from the loss of a server. It is pure: no I/O,
// no clock, no goroutine. Table is the coordinator's half, Copy the half of a server that holds a
// copy; docs/decisions/0013-copies-of-a-shard.md has the reasons.
//
// Every copy gets every gradient from its worker, and every firing from the coordinator, in the one
// order that the coordinator chooses (the state machine approach: Schneider, ACM Computing Surveys
// 22(4), 1990). Updates are deterministic, so copies are equal bit for bit.
//
//	worker ──gradient──► every copy ──Stored──► Table: whole when every copy has it
//	firing ──► followers ──Held──► Table.Ready ──► primary ──Held──► Table.Acked ──► the workers are released
//
// A primary gets a firing after all its followers hold it, like the tail of a chain (van Renesse
// and Schneider, OSDI 2004). So what it shows to a worker cannot be lost with it. The coordinator
// alone decides which servers hold copies, under a term that increases with each change (Lin et
// al., PacificA, MSR-TR-2008-25). A copy that learns of a higher term than its own is outdated and
// answers no worker.
//
// Invariants:
//
//   - One copy answers workers in a term, and terms only increase.
//   - An acknowledged firing is held by every copy of the view.
//   - A gradient is whole, and may be fired, only when every copy has its slice.
package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"star"
)

// View lists the servers that hold a copy of a shard, by rank, under a term that increases with
// each change. Followers are in order of succession.
type View struct {
	Term      int64
	Primary   int
	Followers []int
}

// Has reports whether a server is in the view.
func (v View) Has(server int) bool {
	return v.Primary == server || slices.Contains(v.Followers, server)
}

// Copies is how many there are.
func (v View) Copies() int { return 1 + len(v.Followers) }

func (v View) clone() View {
	v.Followers = slices.Clone(v.Followers)
	return v
}

// Gradient names what a worker has pushed.
type Gradient struct {
	Worker star.Worker
	Step   int64
}

// Whole is a gradient with a slice at every copy of a shard, and what each reports of its slice,
// the primary first.
type Whole struct {
	Gradient
	Sums []Sum
}

// Sum is what a server reports of a slice: the sum of its squares, as in wire.Stored.
type Sum struct {
	Server int
	Sum2   float64
}

// Table is the coordinator's record of all copies.
type Table struct {
	want   int
	shards []entry
	// offered is the last firing sent to followers.
	offered int64
}

type entry struct {
	view View
	// joining is a server that is getting a copy; -1: none.
	joining int
	// since is by server: the term in which it joined.
	since map[int]int64
	// held is by server: the last firing that it holds.
	held  map[int]int64
	grads map[Gradient]*record
}

// record lists the servers that have a gradient that is not whole yet.
type record struct{ said []Sum }

// of is by server: what it has reported; nil: nothing.

func (r *record) of(server int) *Sum {
	if i := slices.IndexFunc(r.said, func(s Sum) bool { return s.Server == server }); i >= 0 {
		return &r.said[i]
	}
	return nil
}

// NewTable begins with a view for each shard. want is how many copies each should have.
func NewTable(want int, views []View) *Table {
	t := &Table{want: want, shards: make([]entry, len(views))}
	for i, v := range views {
		e := &t.shards[i]
		*e = entry{view: v.clone(), joining: -1, since: map[int]int64{}, held: map[int]int64{}, grads: map[Gradient]*record{}}
		e.view.Term = max(e.view.Term, 1)
		for _, s := range e.members() {
			e.since[s] = e.view.Term
		}
	}
	return t
}

func (e *entry) members() []int { return append([]int{e.view.Primary}, e.view.Followers...) }

// View returns the view of a shard.
func (t *Table) View(shard int) View { return t.shards[shard].view.clone() }

// Want is how many copies each shard should have.
func (t *Table) Want() int { return t.want }

// Stored records that a server has its slice of a gradient. If every copy has it now, it returns
// what they reported: once, unless a server reports the same again. Otherwise nil.
func (t *Table) Stored(shard, server int, g Gradient, sum2 float64) []Sum {
	e := &t.shards[shard]
	if !e.view.Has(server) && e.joining != server {
		return nil
	}
	r := e.grads[g]
	if r == nil {
		// From a worker that was gone when it came.
		for old := range e.grads {
			if old.Worker == g.Worker && old.Step+64 < g.Step {
				delete(e.grads, old)
			}
		}
		r = new(record)
		e.grads[g] = r
	}
	if s := r.of(server); s != nil {
		s.Sum2 = sum2
	} else {
		r.said = append(r.said, Sum{server, sum2})
	}
	sums := e.whole(r)
	if sums != nil {
		delete(e.grads, g)
	}
	return sums
}

// whole returns what the copies, and the one that is joining, report of a gradient; nil if one is
// missing.
func (e *entry) whole(r *record) (sums []Sum) {
	all := e.members()
	if e.joining >= 0 {
		all = append(all, e.joining)
	}
	for _, server := range all {
		s := r.of(server)
		if s == nil {
			return nil
		}
		sums = append(sums, *s)
	}
	return sums
}

// collect removes and returns, in order, the gradients that became whole because a server is no
// longer waited for.
func (e *entry) collect() (ws []Whole) {
	for g, r := range e.grads {
		if sums := e.whole(r); sums != nil {
			ws = append(ws, Whole{g, sums})
			delete(e.grads, g)
		}
	}
	slices.SortFunc(ws, func(a, b Whole) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Worker, b.Worker))
	})
	return ws
}

// Offer records that a firing is sent to followers. Firings count from 1.
func (t *Table) Offer(seq int64) { t.offered = max(t.offered, seq) }

// Held records that a copy of that term holds all firings up to one.
func (t *Table) Held(shard, server int, term, seq int64) {
	e := &t.shards[shard]
	if !e.view.Has(server) || term < e.since[server] {
		// From before it was removed and added again.
		return
	}
	e.held[server] = max(e.held[server], min(seq, t.offered))
}

// Ready is the last firing that all followers hold: it and those before may be sent to primaries.
func (t *Table) Ready() int64 {
	seq := t.offered
	for i := range t.shards {
		for _, s := range t.shards[i].view.Followers {
			seq = min(seq, t.shards[i].held[s])
		}
	}
	return seq
}

// Acked is the last firing that all copies hold: its workers may continue.
func (t *Table) Acked() int64 {
	seq := t.Ready()
	for i := range t.shards {
		seq = min(seq, t.shards[i].held[t.shards[i].view.Primary])
	}
	return seq
}

// Change is the effect of a server's loss on a shard.
type Change struct {
	Shard int
	View  View // the new one
	// Promoted: the shard has another primary.
	Promoted bool
	// Gave: the lost server was getting a copy; the view is unchanged.
	Gave bool
	// Gone: no copy is left.
	Gone bool
	// Whole has gradients that all remaining copies hold.
	Whole []Whole
}

// Lost removes a server from every view: it has crashed or is silent.
func (t *Table) Lost(server int) (cs []Change) {
	for i := range t.shards {
		e := &t.shards[i]
		c := Change{Shard: i}
		switch {
		case e.joining == server:
			e.joining, c.Gave = -1, true
		case !e.view.Has(server):
			continue
		case e.view.Copies() == 1:
			c.Gone = true
		case e.view.Primary == server:
			// Any follower will do, since each holds whatever the primary was sent. Take the first.
			e.view.Primary, e.view.Followers = e.view.Followers[0], e.view.Followers[1:]
			e.view.Term++
			c.Promoted = true
		default:
			e.view.Followers = slices.DeleteFunc(slices.Clone(e.view.Followers), func(s int) bool { return s == server })
			e.view.Term++
		}
		delete(e.held, server)
		delete(e.since, server)
		c.View = e.view.clone()
		if !c.Gone {
			c.Whole = e.collect()
		}
		cs = append(cs, c)
	}
	return cs
}

// Join begins to give a server a copy: from now on no gradient is whole without it. It returns the
// term that the shard will have with it.
func (t *Table) Join(shard, server int) (term int64, err error) {
	e := &t.shards[shard]
	switch {
	case e.joining >= 0:
		return 0, fmt.Errorf("replica: cannot add a copy: server %d is getting one of shard %d already", e.joining, shard)
	case e.view.Has(server):
		return 0, fmt.Errorf("replica: cannot add a copy: server %d has one of shard %d already", server, shard)
	}
	e.joining = server
	return e.view.Term + 1, nil
}

// Joined makes the server that was getting a copy a follower. It holds all firings up to seq.
func (t *Table) Joined(shard int, seq int64) (View, error) {
	e := &t.shards[shard]
	if e.joining < 0 {
		return View{}, fmt.Errorf("replica: no server is getting a copy of shard %d", shard)
	}
	e.view.Followers = append(slices.Clone(e.view.Followers), e.joining)
	e.view.Term++
	e.held[e.joining], e.since[e.joining] = min(seq, t.offered), e.view.Term
	e.joining = -1
	return e.view.clone(), nil
}

// Short lists shards that have too few copies and are getting none.
func (t *Table) Short() (shards []int) {
	for i := range t.shards {
		if e := &t.shards[i]; e.joining < 0 && e.view.Copies() < t.want {
			shards = append(shards, i)
		}
	}
	return shards
}

// Claim is what a copy reports to a new coordinator.
type Claim struct {
	Server, Shard int
	View          View
	// The last firing that it holds.
	Seq int64
}

// Recover makes the Table of a new coordinator from what copies report. Firings after the first
// number, up to the second, must be offered again: some copies hold them, others perhaps not. None
// of them was acknowledged. Copies that do not claim are left out.
//
// For each shard the highest term counts, with the servers of its view. A firing was acknowledged
// only if all of them held it, so any of them knows enough; the first that is left becomes the
// primary. The previous coordinator may have issued higher terms that no survivor knows. So terms
// begin with the generation of the new coordinator, which is higher than any before, in their upper
// half.
func Recover(generation int64, want, shards int, claims []Claim) (t *Table, from, to int64, err error) {
	views, held := make([]View, shards), make([]map[int]int64, shards)
	from = -1
	for i := range views {
		best := View{Term: -1}
		for _, c := range claims {
			if c.Shard == i && c.View.Term > best.Term {
				best = c.View
			}
		}
		seq := map[int]int64{}
		for _, c := range claims {
			if c.Shard == i && best.Has(c.Server) {
				seq[c.Server] = max(seq[c.Server], c.Seq)
			}
		}
		var left []int
		for _, s := range append([]int{best.Primary}, best.Followers...) {
			if have, ok := seq[s]; ok {
				left = append(left, s)
				if to = max(to, have); from < 0 || have < from {
					from = have
				}
			}
		}
		if len(left) == 0 {
			return nil, 0, 0, fmt.Errorf("replica: no server that holds shard %d has reported", i)
		}
		views[i] = View{Term: max(best.Term, generation<<32) + 1, Primary: left[0], Followers: left[1:]}
		held[i] = seq
	}
	if shards == 0 {
		return nil, 0, 0, errors.New("replica: the job has no shards")
	}
	t = NewTable(want, views)
	t.offered = from
	for i := range t.shards {
		for _, s := range t.shards[i].members() {
			// A copy does not repeat what it has reported here.
			t.shards[i].held[s] = held[i][s]
		}
	}
	return t, from, to, nil
}

// GiveUp ends a Join that failed. It returns the gradients that are whole without the joining
// server.
func (t *Table) GiveUp(shard int) []Whole {
	e := &t.shards[shard]
	e.joining = -1
	return e.collect()
}

// Drop removes a follower from the view of one shard. It returns the gradients that are whole
// without it.
func (t *Table) Drop(shard, server int) []Whole {
	e := &t.shards[shard]
	e.view.Followers = slices.DeleteFunc(slices.Clone(e.view.Followers), func(s int) bool { return s == server })
	e.view.Term++
	delete(e.held, server)
	delete(e.since, server)
	return e.collect()
}

// Behind lists the copies of a shard that are not known to hold a firing.
func (t *Table) Behind(shard int, seq int64) (servers []int) {
	e := &t.shards[shard]
	for _, s := range e.members() {
		if e.held[s] < seq {
			servers = append(servers, s)
		}
	}
	return servers
}
