// Package copies decides what a coordinator does about the copies of shards: which servers hold them, when members are
// told of an update, what a copy said, and what follows when a server is lost. It is pure: no I/O, no clock, no
// goroutine. Package replica has the rules and [engine.Copies] the queue of orders; here is what joins them. The
// coordinator tells [Copies] of each event and carries out the [Effect] values that it returns, in their order.
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
// Which servers hold a copy is agreed on before it is in force ([Persist]), so a process that takes the job over knows
// every server that could still complete an update for the coordinator before it. recover.go has that process's side;
// docs/decisions/0012-who-coordinates.md says why it is safe.
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

// Copies is the coordinator's account of the copies of shards.
type Copies struct {
	table  *replica.Table // nil: shards have no copies
	orders engine.Copies
	shards []shard

	lent  int64     // the firing up to which the copy that is being sent goes
	retry time.Time // no other copy is begun before
	short bool      // the log says that there is no server for a copy

	left   []replica.View   // takeover: by shard, as the coordinator before left them
	claims map[[2]int]int64 // takeover: by server and shard the last firing
}

type shard struct {
	loaded map[int]bool // servers that have the parameters, before the training begins
	norms  map[int]Norm // by server: the last
}

// Effect is one thing that the coordinator has to do.
type Effect interface{ effect() }

type (
	// Persist makes views known to a successor. Where it fails, this process coordinates no more, and the effects
	// behind it are left out.
	Persist struct{}
	// Tell makes the view of a shard known to its holders, then to workers.
	Tell struct{ Shard int }
	// Seats says how many more copies a server has.
	Seats struct{ Server, More int }
	// Forget makes a server drop a copy that is in no view any more.
	Forget struct{ Server, Shard int }
	// Note is a line of the run log. Its view is that of the moment.
	Note struct{ runlog.Replica }
	// Whole tells the engine of a gradient of which every copy has its slice, since a server is not waited for any
	// more.
	Whole struct {
		Shard int
		replica.Whole
	}
	// SaveAgain makes the new primary of a shard write its part of a checkpoint.
	SaveAgain struct{ Shard int }
	// Last says that a lost server had the last copy of a shard, which ends the job.
	Last struct{ Shard int }

	// Copy begins to copy a shard to a server (package moves).
	Copy struct{ Shard, Source, Target int }
	// Short says that no server can take a copy of a shard, which has too few.
	Short struct{ Shard, Copies, Want int }

	// Fire tells primaries of a firing that all followers hold.
	Fire struct{ *engine.Ready }
	// Norm is what the primary of a shard said of a firing that primaries know.
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
func (Seats) effect()     {}
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

// Place decides which servers hold copies of shards that have primaries. With want < 2 there are none. An error: there
// are fewer servers than copies.
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

// On says whether shards have copies.
func (k *Copies) On() bool { return k.table != nil }

// Has says whether a shard has copies.
func (k *Copies) Has(shard int) bool { return shard >= 0 && shard < len(k.shards) }

// View names the servers that hold a shard, and Want is how many are to. Both need copies (On).
func (k *Copies) View(shard int) replica.View { return k.table.View(shard) }
func (k *Copies) Want() int                   { return k.table.Want() }

// Holders are the servers of a view, the primary first.
func Holders(v replica.View) []int { return append([]int{v.Primary}, v.Followers...) }

// Without returns a shard all of whose holders are gone or leave, and false if each shard has a holder.
func (k *Copies) Without(going func(server int) bool) (shard int, without bool) {
	shard = slices.IndexFunc(k.Views(), func(v replica.View) bool {
		return !slices.ContainsFunc(Holders(v), func(s int) bool { return !going(s) })
	})
	return shard, shard >= 0
}

// Loaded notes whether a server has the parameters of a shard.
func (k *Copies) Loaded(server, shard int, has bool) {
	if k.On() {
		k.shards[shard].loaded[server] = has
	}
}

// Ready says whether every copy of a shard has its parameters, as far as they said so. Without copies the one server
// that says so is enough.
func (k *Copies) Ready(shard int) bool {
	return !k.On() || !slices.ContainsFunc(Holders(k.View(shard)), func(s int) bool { return !k.shards[shard].loaded[s] })
}

// Spares says whether another server that is there has the parameters of each shard that a server holds.
func (k *Copies) Spares(server int, gone func(server int) bool) bool {
	for i, v := range k.Views() {
		if v.Has(server) && !slices.ContainsFunc(Holders(v), func(s int) bool { return s != server && k.shards[i].loaded[s] && !gone(s) }) {
			return false
		}
	}
	return k.On()
}

// Answers says whether the reports of a server count for a shard.
func (k *Copies) Answers(server, shard int) bool {
	return !k.On() || k.Has(shard) && k.View(shard).Primary == server
}

// Stored takes that a server holds its slice of a gradient. When every copy does, it returns what they say of it, else
// nil.
func (k *Copies) Stored(server int, m wire.Stored) []replica.Sum {
	if !k.Has(m.Shard) { // the engine says what is wrong with it, if anything
		return []replica.Sum{{Server: server, Sum2: m.Sum2}}
	}
	return k.table.Stored(m.Shard, server, replica.Gradient{Worker: m.Worker, Step: m.Step}, m.Sum2)
}

// Held takes that a copy holds firings. Next says what follows.
func (k *Copies) Held(server int, m wire.Held) { k.table.Held(m.Shard, server, m.Term, m.Seq) }

// Said takes what a copy says of a firing. Next passes it on when the copy is the primary and primaries know of the
// firing: after a change of primary the new one says it again.
func (k *Copies) Said(n Norm) { k.shards[n.Shard].norms[n.Server] = n }

// Offer puts an order behind those that wait. It returns the servers that are followers of any shard, which are to be
// told of its firing now; none if it has no firing.
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

// Keep makes a release wait for what is before it. It reports false when nothing is.
func (k *Copies) Keep(r wire.Release) bool { return k.orders.Keep(r) }

// Strike removes a worker that is gone from what waits.
func (k *Copies) Strike(w star.Worker) { k.orders.Strike(w) }

// Next is what copies hold now and is to be done: a firing for primaries, else a norm, else an order for workers. nil:
// nothing. It is asked again, until there is nothing, whenever a copy has said something or is gone.
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

// Waiting says whether an order waits.
func (k *Copies) Waiting() bool {
	_, waits := k.orders.Waits()
	return waits
}

// Waits names the servers that have not reported to hold the first order that waits; empty: none.
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
	return fmt.Sprintf("the word of servers %v that they hold firing %d", slices.Compact(behind), seq)
}

// Gone takes the loss of a server. Of each shard of which it was the primary a follower becomes one, under a higher
// term; gradients that only it lacked are whole by that.
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

// pause is how long nothing is copied after it has failed.
const pause = 2 * time.Second

// Tick begins a copy where one is missing, if a server can take it. It is called while nothing is copied.
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

// Lend takes that a copy is being sent: from now on no gradient is whole without it. The copy is of the state behind
// the firing seq; every later one it gets itself.
func (k *Copies) Lend(shard, server int, seq int64) error {
	k.lent = seq
	_, err := k.table.Join(shard, server)
	return err
}

// Share makes the copy that was lent one that counts.
func (k *Copies) Share(shard, server int, took time.Duration) ([]Effect, error) {
	if _, err := k.table.Joined(shard, k.lent); err != nil {
		return nil, err
	}
	line := runlog.Replica{Shard: shard, Event: "copied", Server: server, Took: runlog.SecondsOf(took)}
	return []Effect{Persist{}, Seats{server, 1}, k.note(line), Tell{shard}}, nil
}

// Uncopied takes that a copy was given up before it counted. Another one is tried after a pause.
func (k *Copies) Uncopied(now time.Time, shard, server int, why string) []Effect {
	return append([]Effect{k.uncopied(now, shard, server, why)}, whole(shard, k.table.GiveUp(shard))...)
}

func (k *Copies) uncopied(now time.Time, shard, server int, why string) Effect {
	k.retry = now.Add(pause)
	return k.note(runlog.Replica{Shard: shard, Event: "uncopied", Server: server, Why: why})
}

// Unshare takes back a copy that counts and may lack what its source had still to pass on. A source that is lost, too,
// is yet to be taken out of the view (Gone), which is told then.
func (k *Copies) Unshare(now time.Time, shard, server int, why string, lost bool) []Effect {
	if !k.View(shard).Has(server) {
		return nil
	}
	wholes := whole(shard, k.table.Drop(shard, server))
	effects := []Effect{Persist{}, Seats{server, -1}, Forget{server, shard}, k.uncopied(now, shard, server, why)}
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
