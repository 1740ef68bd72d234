// Package copies decides what a coordinator does about the copies of shards: which servers hold them, when members
// learn of an update, which measurements count, and what follows when a server is lost. It is pure: no I/O, no clock,
// no goroutine. Package replica has the rules and [engine.Copies] the queue of orders; this package joins them. The
// coordinator reports each event to [Copies] and carries out the [Effect] values that it returns, in their order.
//
// An order is in one of three places until every copy holds its firing:
//
//	Offer ──► followers ──Held──► Fire ──► primaries ──Held──► Follow ──► workers
//
// A server that has a copy, or gets one:
//
//	            Tick: one is missing           Lend               Share
//	without ───────────────────────► asked ───────────► lent ───────────────► follower ───────► primary
//	   ▲                               │ Uncopied         │ Uncopied              │ Unshare, Gone     │ Gone
//	   └───────────────────────────────┴──────────────────┴───────────────────────┴───────────────────┘
//
// The zero value is a job without copies of shards: the report of one server is enough, and nothing waits.
//
// Invariants: workers see an update only when every copy holds it, so no loss of a server undoes it. The holders of a
// copy are agreed on before they are in force ([Persist]), so a process that takes the job over knows every server that
// could still complete an update for the coordinator before it. recover.go is that process's side;
// decision 12 (docs/decisions) explains why it is safe.
package copies

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/ps/replica"
	"star/runlog"
	"star/transport/wire"
)

// Copies is the coordinator's record of the copies of shards.
type Copies struct {
	table  *replica.Table // nil: shards have no copies
	orders engine.Copies
	shards []shard

	lent  int64     // the firing at which the state of the present copy was taken
	retry time.Time // no other copy begins before this time
	short bool      // the run log has it that no server can take a copy

	left   []replica.View   // takeover: by shard, the view of the coordinator before
	claims map[[2]int]int64 // takeover: by server and shard the last firing
}

type shard struct {
	loaded map[int]bool // servers that have the parameters, before the training begins
	norms  map[int]Norm // by server: the last
}

// Effect is one action of the coordinator.
type Effect interface{ effect() }

type (
	// Persist makes views known to a successor. If it fails, this process does not coordinate any more, and leaves out
	// the effects after it.
	Persist struct{}
	// Tell makes the view of a shard known to its holders, then to workers.
	Tell struct{ Shard int }
	// Count is the change in the number of copies of a server.
	Count struct{ Server, More int }
	// Forget makes a server drop a copy that is not in any view.
	Forget struct{ Server, Shard int }
	// Note is a line of the run log. It has the view of that time.
	Note struct{ runlog.Replica }
	// Whole reports to the engine a gradient that has become complete, because a server is not waited for any more:
	// every copy has its slice.
	Whole struct {
		Shard int
		replica.Whole
	}
	// SaveAgain makes the new primary of a shard write its part of a checkpoint.
	SaveAgain struct{ Shard int }
	// Last: a lost server had the last copy of a shard, which ends the job.
	Last struct{ Shard int }

	// Copy begins to copy a shard to a server (package moves).
	Copy struct{ Shard, Source, Target int }
	// Short: no server can take a copy of a shard, which has too few.
	Short struct{ Shard, Copies, Want int }

	// Fire sends primaries a firing that all followers hold.
	Fire struct{ *engine.Ready }
	// Norm is the report of the primary of a shard on a firing that primaries know.
	Norm struct {
		Server int
		wire.Norm
		Payload []byte
	}
	// Follow carries out what follows from a firing that every copy holds.
	Follow struct{ engine.Ready }
)

func (Persist) effect()   {}
func (Tell) effect()      {}
func (Count) effect()     {}
func (Forget) effect()    {}
func (Note) effect()      {}
func (Whole) effect()     {}
func (SaveAgain) effect() {}
func (Last) effect()      {}
func (Copy) effect()      {}
func (Short) effect()     {}
func (Fire) effect()      {}
func (Norm) effect()      {}
func (Follow) effect()    {}

// Place decides which servers hold copies of shards that have primaries. With want < 2 the result is off. An error:
// there are fewer servers than copies.
func Place(want int, servers []replica.Server, primaries []int) (Copies, error) {
	if want < 2 {
		return Copies{}, nil
	}
	views, err := replica.Place(want, servers, primaries)
	if err != nil {
		return Copies{}, err
	}
	return begin(replica.NewTable(want, views), len(views)), nil
}

func begin(t *replica.Table, shards int) Copies {
	k := Copies{table: t, orders: *engine.NewCopies(t, 0), shards: make([]shard, shards)}
	for i := range k.shards {
		k.shards[i] = shard{map[int]bool{}, map[int]Norm{}}
	}
	return k
}

// On reports whether shards have copies.
func (k *Copies) On() bool { return k.table != nil }

// Has reports whether a shard has copies.
func (k *Copies) Has(shard int) bool { return shard >= 0 && shard < len(k.shards) }

// View names the servers that hold a shard. It needs copies (On).
func (k *Copies) View(shard int) replica.View { return k.table.View(shard) }

// Want is the number of copies that each shard should have. It needs copies (On).
func (k *Copies) Want() int { return k.table.Want() }

// Holders are the servers of a view, the primary first.
func Holders(v replica.View) []int { return append([]int{v.Primary}, v.Followers...) }

// Without returns a shard if all its holders have left or are leaving, and false if each shard has a holder.
func (k *Copies) Without(going func(server int) bool) (shard int, without bool) {
	shard = slices.IndexFunc(k.Views(), func(v replica.View) bool {
		return !slices.ContainsFunc(Holders(v), func(s int) bool { return !going(s) })
	})
	return shard, shard >= 0
}

// Loaded records whether a server has the parameters of a shard.
func (k *Copies) Loaded(server, shard int, has bool) {
	if k.On() {
		k.shards[shard].loaded[server] = has
	}
}

// Ready reports whether every copy of a shard has reported that it has its parameters. Without copies the report of the
// one server is enough.
func (k *Copies) Ready(shard int) bool {
	return !k.On() || !slices.ContainsFunc(Holders(k.View(shard)), func(s int) bool { return !k.shards[shard].loaded[s] })
}

// Spares reports whether, for each shard of a server, another live server has its parameters.
func (k *Copies) Spares(server int, gone func(server int) bool) bool {
	for i, v := range k.Views() {
		if v.Has(server) && !slices.ContainsFunc(Holders(v), func(s int) bool { return s != server && k.shards[i].loaded[s] && !gone(s) }) {
			return false
		}
	}
	return k.On()
}

// Answers reports whether the reports of a server count for a shard.
func (k *Copies) Answers(server, shard int) bool {
	return !k.On() || k.Has(shard) && k.View(shard).Primary == server
}

// Stored records that a server holds its slice of a gradient. When every copy does, it returns their measurements, else
// nil.
func (k *Copies) Stored(server int, m wire.Stored) []replica.Sum {
	if !k.Has(m.Shard) { // the engine checks it
		return []replica.Sum{{Server: server, Sum2: m.Sum2}}
	}
	return k.table.Stored(m.Shard, server, replica.Gradient{Worker: m.Worker, Step: m.Step}, m.Sum2)
}

// Held records that a copy holds firings. Next returns what follows.
func (k *Copies) Held(server int, m wire.Held) { k.table.Held(m.Shard, server, m.Term, m.Seq) }

// Said records a copy's report on a firing. Next returns it when the copy is the primary and primaries know of the
// firing. After a change of primary the new one reports again.
func (k *Copies) Said(n Norm) { k.shards[n.Shard].norms[n.Server] = n }

// Offer appends an order to the queue. It returns the servers that are followers of any shard, to which the caller
// sends its firing now; none if it has no firing.
func (k *Copies) Offer(o *engine.Ready) (followers []int) {
	k.orders.Offer(o)
	if o.Fire.Seq == 0 {
		return nil
	}
	for _, v := range k.Views() {
		followers = append(followers, v.Followers...)
	}
	slices.Sort(followers)
	return slices.Compact(followers)
}

// Keep makes a release wait for the orders before it. It reports false if there is no such order.
func (k *Copies) Keep(r wire.Release) bool { return k.orders.Keep(r) }

// Strike removes a worker that has left from waiting orders.
func (k *Copies) Strike(w star.Worker) { k.orders.Strike(w) }

// Next is the next effect of the reports of copies: a firing for primaries, else a norm, else an order for workers.
// nil: nothing. The caller repeats it until it is nil, after each report and each loss of a copy.
func (k *Copies) Next() Effect {
	if !k.On() {
		return nil
	}
	if o := k.orders.Ripe(); o != nil {
		return Fire{o}
	}
	for i := range k.shards {
		if len(k.shards[i].norms) == 0 {
			continue
		}
		primary := k.View(i).Primary
		if n, said := k.shards[i].norms[primary]; said && n.Seq <= k.orders.Told() {
			delete(k.shards[i].norms, primary)
			return n
		}
	}
	if o, due := k.orders.Due(); due {
		return Follow{o}
	}
	return nil
}

// Waiting reports whether an order waits.
func (k *Copies) Waiting() bool {
	_, waits := k.orders.Waits()
	return waits
}

// Waits names the servers that have not reported that they hold the first waiting order; empty: no order waits.
func (k *Copies) Waits() string {
	seq, waits := k.orders.Waits()
	if !waits {
		return ""
	}
	var behind []int
	for i := range k.shards {
		behind = append(behind, k.table.Behind(i, seq)...)
	}
	slices.Sort(behind)
	return fmt.Sprintf("servers %v to report that they hold firing %d", slices.Compact(behind), seq)
}

// Gone records the loss of a server. A follower becomes the primary of each shard that it was the primary of, under a
// higher term. Gradients that lacked only its slice are complete then.
func (k *Copies) Gone(server int, why string) (effects []Effect) {
	changes := k.table.Lost(server)
	if i := slices.IndexFunc(changes, func(c replica.Change) bool { return c.Gone }); i >= 0 {
		return []Effect{Last{changes[i].Shard}}
	}
	var wholes []Effect
	for _, c := range changes {
		wholes = append(wholes, whole(c.Shard, c.Whole)...)
		if c.Gave {
			continue
		}
		line := runlog.Replica{Shard: c.Shard, Event: "lost", Server: server, Why: why}
		if c.Promoted {
			line.Event = "promoted"
		}
		if effects == nil {
			effects = append(effects, Persist{})
		}
		effects = append(effects, k.note(line), Tell{c.Shard})
		if c.Promoted {
			effects = append(effects, SaveAgain{c.Shard})
		}
	}
	return append(effects, wholes...)
}

func whole(shard int, ws []replica.Whole) (effects []Effect) {
	for _, w := range ws {
		effects = append(effects, Whole{shard, w})
	}
	return effects
}

func (k *Copies) note(l runlog.Replica) Effect {
	v := k.View(l.Shard)
	l.Term, l.Primary, l.Followers, l.Of = v.Term, v.Primary, append([]int{}, v.Followers...), k.Want()
	return Note{l}
}

// pause is the time without copies after one has failed.
const pause = 2 * time.Second

// Tick begins a missing copy, if a server can take it. It is called while no copy is under way.
func (k *Copies) Tick(now time.Time, servers []replica.Server) (effects []Effect) {
	if !k.On() || now.Before(k.retry) {
		return nil
	}
	missing := k.table.Short()
	if len(missing) == 0 {
		k.short = false
	}
	for _, shard := range missing {
		v := k.View(shard)
		if to, ok := replica.Next(v, servers); ok {
			return append(effects, Copy{shard, v.Primary, to})
		}
		if !k.short {
			effects = append(effects, Short{shard, v.Copies(), k.Want()})
		}
		k.short = true
	}
	return effects
}

// Lend records that a copy is being sent: from now on no gradient is complete without it. The copy is of the state
// after firing seq; the server receives every later firing itself.
func (k *Copies) Lend(shard, server int, seq int64) error {
	k.lent = seq
	_, err := k.table.Join(shard, server)
	return err
}

// Share makes the lent copy one that counts.
func (k *Copies) Share(shard, server int, took time.Duration) ([]Effect, error) {
	if _, err := k.table.Joined(shard, k.lent); err != nil {
		return nil, err
	}
	line := runlog.Replica{Shard: shard, Event: "copied", Server: server, Took: runlog.SecondsOf(took)}
	return []Effect{Persist{}, Count{server, 1}, k.note(line), Tell{shard}}, nil
}

// Uncopied records that a copy was abandoned before it counted. Another one begins after a pause.
func (k *Copies) Uncopied(now time.Time, shard, server int, why string) []Effect {
	return append([]Effect{k.uncopied(now, shard, server, why)}, whole(shard, k.table.GiveUp(shard))...)
}

func (k *Copies) uncopied(now time.Time, shard, server int, why string) Effect {
	k.retry = now.Add(pause)
	return k.note(runlog.Replica{Shard: shard, Event: "uncopied", Server: server, Why: why})
}

// Unshare withdraws a copy that counts and may lack gradients that its source still had to pass on. lost: the source is
// lost too, and Gone follows, which sends the new view.
func (k *Copies) Unshare(now time.Time, shard, server int, why string, lost bool) []Effect {
	if !k.View(shard).Has(server) {
		return nil
	}
	wholes := whole(shard, k.table.Drop(shard, server))
	effects := []Effect{Persist{}, Count{server, -1}, Forget{server, shard}, k.uncopied(now, shard, server, why)}
	if !lost {
		effects = append(effects, Tell{shard})
	}
	return append(effects, wholes...)
}

// Views are the views of all shards, for a successor; nil without copies.
func (k *Copies) Views() (views []replica.View) {
	for i := range k.shards {
		views = append(views, k.View(i))
	}
	return views
}
