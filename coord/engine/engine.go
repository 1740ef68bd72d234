// Package engine decides what follows from the reports of a job's members: which gradients make an
// update, which samples each worker gets next, what a checkpoint must contain, which member must
// leave. It is pure: no I/O, no clock, no goroutine, no randomness. A coordinator (package coord)
// reports events to it and carries out its answers; a simulator can do the same in virtual time.
//
// There are two engines. [Shards] is for parameter servers: a gradient has arrived when its worker
// has reported it and every shard holds it, and the job's one modes.Barrier turns arrivals into
// updates. Trees (groups that report once) are decided inside it. [Ring] is for all-reduce: rounds
// are granted one ahead, closed where the plan has members compute in parts, and complete when
// every member has reported that it made the version. [Engine] is what both can do, [ShardEngine]
// and [RingEngine] are what only one of them can, and [View] is what can be read of each.
//
// An engine takes one event at a time and answers with what is ready ([Ready]), in the order in
// which the caller must carry it out. The next call reuses the returned slice, but nothing that its
// elements point to. Only one goroutine may use an engine.
//
// Invariants between two calls, whatever was reported:
//
//   - Each position of the sample stream before the cursor is in exactly one place: applied, dropped,
//     waiting to be handed out again, in the batch of one worker, or in a kept gradient. [Engine.Save]
//     and a [Snapshot] contain the last three as Redo, so a successor neither loses a sample nor
//     applies it twice.
//   - Fires are numbered from 1 without gaps, over all engines of a job. So are the versions of updates,
//     from the version of the beginning.
//   - A Fire names only gradients that every shard holds in full, as far as the engine was told.
//   - The same calls give the same answers: sums and batches go by rank, not by arrival, and nothing
//     depends on the order of a map.
//
// Samples are counted, not bytes; positions of the stream begin at 0; ranks of workers are 0 to
// Config.Workers − 1, and the caller has checked them. Norms are squared, of the gradient as its
// worker has it (before a codec). The engine passes durations of a plan on and does not wait.
//
// A worker that reports a gradient twice, or one that it was not released for, breaks the protocol.
// The error says how; the state is unchanged, and the caller should disconnect the sender. An error
// of the type *LostError ends the job.
package engine

import (
	"slices"
	"time"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/ps/replica"
	"star/transport/wire"
)

// Engine is what both engines can do. docs/architecture.md says what a coordinator makes of it.
type Engine interface {
	// Begin releases every live worker. It is called once, before anything else but View. t is the reports of
	// members to a coordinator that continues from Config.After; nil: the job is new.
	Begin(t *Told) []Ready

	// Arrive takes the record of a worker's gradient. The Batch says over which samples it was
	// computed. coded: it goes through a codec, so shards measure something else than its worker. An
	// error: the worker was not released for that step, reported it before, or computed other samples
	// than it was given.
	Arrive(r star.Record, coded bool) (Batch, []Ready, error)

	// Computed takes how many samples of its batch a worker has computed, where plans have parts or a
	// queue, and that it waits for others in a ring with RingConfig.Tell. The numbers of a round must rise.
	// An error: it was not asked for, or the worker was given fewer samples.
	Computed(m wire.Computed) ([]Ready, error)

	// Fault records that a worker cannot reach another one: its parent in a tree, or a member of its
	// ring. An error: it suspects itself, or names a step or ring that is still to come.
	Fault(m wire.Fault) (Failure, []Ready, error)

	// Flipped records that a worker's gradients point against all others (over: not any more). It returns
	// the worker's step, and whether that is a change.
	Flipped(w star.Worker, over bool) (step int64, news bool)

	// Join takes in a worker that is new or had left. reachable: others can reach it in trees. A new
	// worker's steps start after its predecessor's, so late messages cannot be mistaken for its own.
	Join(w star.Worker, reachable bool) []Ready

	// Leave removes a worker. Its unfinished samples are the next that are handed out, and shards drop
	// what they hold of it.
	Leave(w star.Worker) []Ready

	// Blame records that w died while it was computing. failed: its program failed; else its connection
	// ended. Leave, or End with Abandon, comes next. Samples that have killed two workers are not
	// handed out again (View.Aside).
	Blame(w star.Worker, failed bool, why string)

	// Install changes the plan, which TreePlan or RingPlan has accepted. No waiting worker is
	// stranded: batches that are out are used as they are.
	Install(p modes.Plan) []Ready

	// End takes the training to a stage of its end. still: what arrives from now on changes nothing.
	// Where Freeze is not still, granted rounds are finished, and it is when Drained.
	End(s Stage) (still bool)

	// Save begins a checkpoint. View.Saved is what it must contain, once that is known. A checkpoint
	// that begins before that replaces it. Gradients in the version of the Cut count as applied; all
	// other samples that were handed out are in Progress.Redo.
	Save() Cut

	// View is the present state. It allocates nothing.
	View() View
}

// ShardEngine is what only an engine of parameter servers can do.
type ShardEngine interface {
	Engine

	// Stored records that a shard holds the gradient of worker w's step. sums is the measurements of its
	// copies of the slice.
	Stored(shard int, w star.Worker, step int64, sums ...replica.Sum) ([]Ready, error)

	// Reported takes the content of a tree's report, before the Arrive of its top. An error: the
	// worker is not the top of a tree, or names a gradient that is not in its group.
	Reported(m wire.Bundle) ([]Ready, error)

	// Lapse says that a grace (Ready.Grace) has passed: its group fires with the members that have
	// arrived. A grace that is over does nothing.
	Lapse(grace int64) []Ready

	// Refer has shards use what a member that is not a worker has pushed, from this place in the
	// history on.
	Refer(w star.Worker, step int64) []Ready

	// Owes lists the shards that lack a gradient that its worker has reported as pushed.
	Owes(w star.Worker) []int
}

// RingEngine is what only an engine of all-reduce can do.
type RingEngine interface {
	Engine

	// Formed records that a member has formed a new ring, and Tally that it has made a version. A Tally
	// with a hash has no other content. Reports of an abandoned ring or round change nothing and are
	// no error. An error: an unknown ring, round or batch; a *LostError of Formed: no member has the
	// newest complete version.
	Formed(m wire.Formed) ([]Ready, error)
	Tally(m wire.Tally) ([]Ready, error)

	// Late records that a member of the round in hand has missed a deadline. A plan without it is installed at once.
	Late(w star.Worker)

	// Tick is called from time to time, so that connections of dead members have had time to end
	// before a failed ring is formed again. A *LostError: a ring has failed too often.
	Tick() ([]Ready, error)

	// Metadata is a Snapshot in bytes. Workers keep it for a coordinator of a later term, as shards
	// keep Ready.Metadata.
	Metadata(term int64) []byte

	// Carries reports whether a member adds the gradients of a rider.
	Carries(member, rider star.Worker) bool
}

// Stage is a stage of the end of a job.
type Stage int

const (
	Stop   Stage = iota // hand out no new samples: View.Limit is where the stream ends. Redo still is.
	Freeze              // begin nothing
	// Drop what is under way: all samples that are handed out become Redo. Members stay. View.Settled must hold.
	Abandon
	Finish // nothing is under way, and nothing begins; a worker that leaves is only forgotten
)

// View is what can be read of an engine, as it was when View was called. Its slices and its map are
// the engine's own: read them before the next call, and do not change them.
type View struct {
	State
	Plan modes.Plan // in force

	// It is known which version the parameters have.
	Settled bool

	// Of the ring in force: they have equal parameters.
	Members []star.Worker

	// What the last checkpoint must contain; nil: not known yet.
	Saved *Progress

	// Samples that are not handed out again, newest last, once it is known that they are not applied; part of
	// State.Waste.
	Aside []Aside

	// Number of applied gradients by updates between read and applied.
	Staleness map[int64]int64

	Reader

	// Samples wait to be handed out again.
	again bool
}

// Unfinished reports whether there is, or may again be, something to compute.
func (v View) Unfinished() bool { return v.again || v.Cursor < v.Limit || !v.Drained() }

// Reader answers questions that need an argument or a look at all workers. It reads the engine as
// it is when it is asked.
type Reader interface {
	Worker(w star.Worker) Worker
	Steps() []int64 // by worker; -1: the rank was never used
	Live() int      // number of members

	// Drained reports whether nothing is on its way.
	Drained() bool

	// Survives reports whether the parameters exist outside the workers that have left.
	Survives() bool

	// Lacking lists the workers that the others wait for, and HoldsUp says what is missing of one.
	Lacking() []star.Worker
	HoldsUp(w star.Worker) string

	// Lingers reports whether something of an earlier attempt of w is still on its way. A successor
	// can join only when it is settled.
	Lingers(w star.Worker) bool

	// Residual is what the file of a worker's codec is written with: the number for its Save, and the
	// weight of its gradients in the update rule.
	Residual(w star.Worker) (seq int64, weight float64)
}

// Config is the settings and the start of an engine.
type Config struct {
	Plan    modes.Plan
	Workers int // ranks
	Shards  int

	// Samples of one worker in one iteration, where the plan has no shares.
	Batch int

	// For a [Ring]: number of updates of each batch, one after the other (turns.go); 0: one.
	Turns int

	// End of the stream, in samples: no position from it on is handed out.
	Limit int64

	// The settings of rings; [NewRing] needs them, [NewShards] ignores them.
	Ring *RingConfig

	From Progress // where a checkpoint ended

	// Where another engine ended; nil: the job is new, or begins with a checkpoint.
	After  *Snapshot
	Absent []star.Worker // ranks without a worker

	Scale   Scale // zero means ScaleRound
	Planned int   // workers that ScaleWorkers counts

	// Shards report the norm of the sum before they apply it.
	Norm bool

	// Shards report the norm of the sum after they applied it.
	Report bool

	// A worker that misses an update gets a Cancel: it stops computing for it.
	Cancel bool

	// A program computes whole batches: a remainder of one sample joins the batch before it.
	Whole bool

	// The rule can apply what workers push after local steps (rule.Strider).
	Strides bool

	// With Strides: a plan with local steps may come at any time, so workers keep the parameters that such steps
	// start from.
	Follow bool

	// Poisoned gradients are left out (package poison), and the norms that workers report are checked.
	Guard bool

	// Fires carry Ready.Metadata for a successor.
	WithMetadata bool

	// By worker: others can reach it in trees; nil: no worker can be reached.
	Reachable []bool

	// MaxParams is the number of elements of a gradient. It bounds the norms that members may report.
	MaxParams int64
}

// RingConfig is the settings of rings.
type RingConfig struct {
	Wait time.Duration // for riders

	// Riders' gradients that are older are dropped; 0: none.
	MaxStale   int64
	Generation int64         // before that of the first ring
	Tell       time.Duration // see wire.Ring
}

// Ready is one consequence: a Fire for every shard (if it has a Seq), then the messages and
// Releases that follow from it.
//
// Messages to one worker must reach it in this order: Detached, Rings, Branches, Closes, Cancels,
// Releases; those of one Ready before those of the next. With copies of shards all of them wait for the
// Fire ([Copies]).
type Ready struct {
	Fire wire.Fire

	// The Fire's gradients one by one, by rank: with a tree the Fire names reports instead.
	Members []wire.Gradient
	Dropped []wire.Gradient // likewise

	// By member: gradients that are left out.
	Poison []Poisoned

	// Of members, in updates.
	Stale []int64

	// By member: its piece of the stream, with all-reduce and in updates with reports of a tree.
	Pieces []Span

	// Samples of a round of all workers, where the run log needs it.
	Round int

	// Of members, but for Sum2.
	Noise pgns.Update

	// An update made of the only member's last two gradients, for the noise; empty: there are no two to compare.
	Pair pgns.Update

	// Samples applied, after the Fire.
	Used int64

	// The Fire makes no update and concerns no worker.
	Silent bool

	// It is in the run log: the caller sets it.
	Recorded bool

	// For a successor, sent with the Fire.
	Metadata []byte

	// More lists, in a ring with a queue, the samples that do not follow on the member's piece: three
	// numbers each, the index in Pieces, the position, the number of samples.
	More []int64

	Detached []To[wire.Detach]
	Rings    []To[wire.Ring] // before the releases
	Branches []wire.Branch   // before the releases
	Cancels  []wire.Cancel
	Closes   []To[wire.Close]
	Releases []wire.Release

	// Grace is a time after which the caller calls Lapse with its Number; 0: none. A Ready with it has
	// no other content.
	Grace Grace

	// Evict names the member that must leave. A Ready with it has no other content.
	Evict *Eviction
}

// Strike removes all messages to w, which has left: its successor must not get them.
func (o *Ready) Strike(w star.Worker) {
	o.Releases = without(o.Releases, func(r wire.Release) bool { return r.Worker == w })
	o.Cancels = without(o.Cancels, func(m wire.Cancel) bool { return m.Worker == w })
	o.Branches = without(o.Branches, func(b wire.Branch) bool { return b.Worker == w })
	o.Detached = without(o.Detached, func(d To[wire.Detach]) bool { return d.Worker == w })
	o.Closes = without(o.Closes, func(m To[wire.Close]) bool { return m.Worker == w })
	o.Rings = without(o.Rings, func(r To[wire.Ring]) bool { return r.Worker == w })
}

// without is s without the elements for which f is true. It does not change s, which may be shared.
func without[T any](s []T, f func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(s), f)
}

// To is a message and its receiver.
type To[M any] struct {
	Worker star.Worker
	Msg    M
}

// Grace is the wait of a group that has its quorum (modes.Plan.Grace).
type Grace struct {
	Number int64
	For    time.Duration
}

// Eviction is a member that must leave.
type Eviction struct {
	Server bool // else a worker
	Rank   int
	Why    error

	// Again says that it may join again; else it reported something false.
	Again bool
}

// Poisoned is a gradient that is left out of its update.
type Poisoned struct {
	Worker star.Worker
	Step   int64
	Cause  poison.Cause

	// Exploding: its norm divided by the median.
	Factor float64
	Shards []int // not finite: where
}

// Batch is the samples of a gradient.
type Batch struct {
	// The position in the stream; -1: known with the update.
	Start int64
	More  []Span // what does not follow on Start
}

// Failure describes a fault in words for the log.
type Failure struct{ What, Unit, Member string }

// Told is the reports of members to the successor of another engine.
type Told struct {
	// By worker: the steps of the last Fire; batches handed out since are to be thrown away.
	Before []int64

	// Workers of a ring that have the parameters.
	With []star.Worker

	// Of the last versions that workers of a ring have made.
	Tallies []wire.Tally
}

// Cut says which version a new checkpoint is of.
type Cut struct {
	Version, Seq int64

	// The worker that writes the parameters; -1: each shard writes its own.
	Writer star.Worker
}

// State is an engine in numbers.
type State struct {
	Version int64 // of the parameters

	// The newest version that a worker may have been given, and that of a checkpoint that begins now.
	Next int64
	Seq  int64 // of the last Fire

	// Next position of the sample stream.
	Cursor int64
	Limit  int64 // end of it
	Used   int64 // samples that were applied
	Waste  int64 // and dropped

	// Midway says that Next is between two updates of the same batches (Config.Turns). A checkpoint
	// of it cannot be resumed.
	Midway bool
}

// Worker is one worker, as an engine has it.
type Worker struct {
	Live   bool // a member of the job
	Parked bool // has no batch

	// Has none only until the slowest has caught up.
	Stopped bool

	// Its gradient is complete and not yet fired.
	Waiting   bool
	Led       bool // its last report was its own
	Reachable bool // it can be in trees

	// It is a member of the ring in force, and has the parameters.
	Holds bool

	// It takes part in evaluations: riders do not, the others would wait for stragglers.
	Evaluates bool

	Step, Basis int64
	Start       int64 // of its batch
	Count       int   // samples of it
}

// LostError: the job cannot continue, because something is lost that no other member has. Msg says what
// to resume from. The engine must not be used afterwards.
type LostError struct{ Msg string }

// Error is Msg: what is lost, and what to do.
func (e *LostError) Error() string { return e.Msg }

// Round is the samples of one iteration of the first n ranks under a plan: B of the update rule when
// these are the live workers.
func Round(p modes.Plan, batch, n int) (b int64) {
	if p.Shares == nil {
		return int64(n) * int64(batch)
	}
	for w := range n {
		b += int64(p.Share(star.Worker(w), batch))
	}
	return b
}

// LocalRound is Round with all local steps of each worker.
func LocalRound(p modes.Plan, batch, n int) (b int64) {
	if p.Shares == nil {
		return int64(n) * int64(batch) * int64(max(1, p.Steps(0, batch)))
	}
	for w := range star.Worker(n) {
		b += int64(p.Share(w, batch)) * int64(max(1, p.Steps(w, batch)))
	}
	return b
}

// view is the part of a View that both engines have. n is the version of the parameters, and next
// the newest that a worker may have been given.
func (l *scheduler) view(n, next int64) View {
	return View{
		State: State{Version: n, Next: next, Seq: l.seq, Cursor: l.cursor, Limit: l.limit, Used: l.used, Waste: l.waste},
		Plan:  l.plan, Settled: true, Saved: l.kept, Aside: l.aside, Staleness: l.staleness, again: len(l.redo) > 0,
	}
}

// Live counts the members.
func (l *scheduler) Live() int { return l.live() }

// Flipped notes which way a worker's gradients point.
func (l *scheduler) Flipped(w star.Worker, over bool) (step int64, news bool) {
	a := &l.states[w]
	news = a.flipped == over
	a.flipped = !over
	return a.step, news
}

// stop hands out no more of the stream.
func (l *scheduler) stop() { l.limit = min(l.limit, l.cursor) }

// Worker is the state of w.
func (l *scheduler) Worker(w star.Worker) Worker {
	a := &l.states[w]
	return Worker{Live: a.live, Parked: a.parked, Stopped: a.stopped, Waiting: a.waiting, Led: a.led, Step: a.step, Basis: a.basis,
		Start: a.start, Count: a.whole()}
}

// Steps are those of all workers; -1: the rank was never used.
func (l *scheduler) Steps() (steps []int64) {
	for i := range l.states {
		steps = append(steps, l.states[i].step)
	}
	return steps
}

// schedulerOf is the common part of both engines.
func schedulerOf(c Config) scheduler {
	l := scheduler{
		batch: c.Batch, limit: c.Limit, halts: c.Cancel, whole: c.Whole, states: make([]workerState, c.Workers), staleness: map[int64]int64{},
	}
	l.setPlan(c.Plan)
	for i := range l.states {
		l.states[i] = workerState{live: true, counted: true, parked: true, stored: make([]bool, c.Shards)}
	}
	for _, w := range c.Absent {
		l.states[w].live, l.states[w].counted, l.states[w].step = false, false, -1
	}
	from := c.From
	if s := c.After; s != nil {
		from = s.Progress
		l.seq, l.waste = s.Seq, s.Waste
		for w := range l.states {
			a := &l.states[w]
			if a.step = s.Steps[w]; a.live {
				a.step++ // late messages about the step before do not match
			}
		}
	}
	l.cursor, l.used = from.Cursor, from.Samples
	for _, s := range from.Redo { // a job that resumes may end before where it was
		most := int64(s.Count)
		if most = min(most, max(l.limit-s.Start, 0)); l.used >= l.limit {
			most = 0
		}
		if most > 0 {
			l.redo = append(l.redo, Span{s.Start, int(most)})
		}
		if rest := int64(s.Count) - most; rest > 0 {
			l.past = append(l.past, Span{s.Start + most, int(rest)})
		}
	}
	return l
}
