// Package engine decides what becomes of what the members of a job report: which gradients make an
// update, who goes on with which samples, what a checkpoint must remember, who is to leave. It is
// pure: no I/O, no clock, no goroutine, no randomness. A coordinator (package coord) tells it what
// has happened and does what it says; a simulator may do the same in virtual time.
//
// There are two engines. [Shards] is for parameter servers: a gradient has arrived when its worker
// has said so and every shard holds it, and the job's one modes.Barrier turns arrivals into
// updates. Trees (groups that report once) are decisions inside it. [Ring] is for all-reduce:
// rounds are granted one ahead, closed where the plan has members compute in parts, and complete
// when every member has told that it made the version.
//
// An engine is told of one thing at a time, and answers with what is ready ([Ready]), in the order
// in which it is to be done. The slice that it returns, and nothing else of it, is used again by
// the next call. Only one goroutine may use an engine.
//
// What holds between two calls, whatever was reported:
//
//   - Each position of the sample stream before the cursor is in one place: applied, dropped, to be handed out again, in the batch of one worker, or in a gradient that is
//     kept. [Engine.Save] and [Engine.Snapshot] have the last three as Redo, so nothing is lost or applied twice by who goes on from there.
//   - Fires are numbered from 1 on without gaps, over all engines of a job. The versions of updates are, too, from that of the beginning on.
//   - A Fire names only gradients that every shard holds in full, as far as the engine was told.
//   - The same calls give the same answers: sums and batches go by rank, not by who came first, and nothing goes by the order of a map.
//
// Samples are counted, not bytes; positions of the stream begin at 0; ranks of workers are 0 to
// Config.Workers − 1, and a caller has checked them. Norms are squared, of the gradient as its
// worker has it (before a codec). Durations that a plan has are handed on and not waited for.
//
// What will bite: who reports a gradient twice, or one that it was not released for, has broken the
// protocol. The error says how; nothing has changed then, and who said it should go. An error of
// the type *LostError ends the job.
package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/ps/replica"
	"star/transport/wire"
)

// Engine decides what becomes of what members report. docs/architecture.md says what a coordinator makes of it.
type Engine interface {
	// Begin releases every worker that is there. It is called once, before anything else but
	// Snapshot; a job that is taken over begins with Resume instead.
	Begin() []Ready

	// Resume goes on from Config.After, with what members have told of what happened behind it.
	// Instead of Begin.
	Resume(t Told) []Ready

	// Arrive is told of a worker's gradient. The Batch says over which samples it was computed. An
	// error: the worker was not released for that step, has said so before, or has computed other
	// samples than it was given; it has broken the protocol, and should go. coded: it goes through
	// a codec, so that shards measure something else than its worker.
	Arrive(r star.Record, coded bool) (Batch, []Ready, error)

	// Stored is told that a shard holds the gradient of worker w's step. sums is what its copies
	// say of the slice.
	Stored(shard int, w star.Worker, step int64, sums ...replica.Sum) ([]Ready, error)

	// Computed is told how much of its batch a worker has, in samples, where plans have parts or a
	// queue. Each word of a round must be of more than the one before. An error: nobody asked for
	// it, or it is more than the worker was given.
	Computed(m wire.Computed) ([]Ready, error)

	// Reported is told what is in the report of a tree, before its top's Arrive. An error: the
	// worker is not at the top of one, or names a gradient that is none of its own.
	Reported(m wire.Bundle) ([]Ready, error)

	// Formed is told that a member stands in a new ring, and Tally that it has made a version. A
	// Tally with a hash says nothing else. What is said of a ring or round that was given up
	// changes nothing and is no error. An error: a ring, round or batch that there was none of; a
	// *LostError of Formed: nobody is left who has the newest complete version.
	Formed(m wire.Formed) ([]Ready, error)
	Tally(m wire.Tally) ([]Ready, error)

	// Fault is told that a worker cannot reach another one: its parent in a tree, or somebody in
	// its ring. An error: it suspects itself, or is of what is still to come.
	Fault(m wire.Fault) (Failure, []Ready, error)

	// Flipped is told that a worker's gradients point against all others, or do no more. It says in
	// which step, and whether that is news.
	Flipped(w star.Worker, over bool) (step int64, news bool)

	// Join has a worker in that was not there, or had left. reachable: others can reach it in
	// trees. Leave forgets one.
	// Who comes has steps from behind those of whoever had the rank before, so that what is still said
	// of the one is not taken for the other. What somebody who leaves has not finished is the next
	// that is handed out, and shards throw away what they hold of it.
	Join(w star.Worker, reachable bool) []Ready
	Leave(w star.Worker) []Ready

	// Blame is told that w died while it was computing: failed, its program did; else its connection ended.
	// Leave or Abandon comes next. What has killed two workers is not handed out again: Aside lists it,
	// the newest last, as soon as it is known that it is not applied. It counts as State.Waste.
	Blame(w star.Worker, failed bool, why string)
	Aside() []Aside

	// Install changes the plan. Nobody who waits is stranded: batches that are out are used as they
	// are. Fits says what is wrong with one; Install must not be told of such.
	Install(p modes.Plan) []Ready
	Fits(p modes.Plan) error

	// Tick is told now and then that time has passed: what has failed has had a moment to show
	// itself. A *LostError: a ring has failed again and again and cannot be mended.
	Tick() ([]Ready, error)

	// Refer has shards use what a member that is no worker has pushed, from this place in the history on.
	Refer(w star.Worker, step int64) []Ready

	// Stop hands out no more of the stream than it has, and returns where that ends, in samples.
	// What is to be done again still is.
	Stop() (limit int64)

	// Freeze has nothing begun any more. It reports whether nothing is finished, either: what comes
	// in from now on changes nothing.
	// Where it does not, rounds that were granted are still made, and it is frozen when Drained.
	Freeze() bool

	// Abandon gives up what is under way: batches that are out count as not done (Progress.Redo), and
	// nothing is handed out any more. Those who are members stay, and wait for the end. It is Settled
	// before, and Drained afterwards.
	Abandon()

	// Finish ends the training: nothing is under way, and nobody begins anything.
	// Who leaves afterwards is only forgotten.
	Finish()

	// Save begins a checkpoint. Saved is what it must remember, once that is known: ok.
	// One that begins before another is known takes its place. What is in the version of the Cut counts
	// as applied, everything else that was handed out is in Progress.Redo.
	Save() Cut
	Saved() (p Progress, ok bool)

	// Residual is what goes with the file of what a worker's codec has left out: the number for its
	// Save, and c of the update rule for its gradients.
	Residual(w star.Worker) (seq int64, weight float64)

	// Snapshot is from what another engine of this kind can go on (Config.After). Metadata is it in
	// bytes, where workers are to keep it for a coordinator of a later term; nil where shards do,
	// with Ready.Metadata.
	Snapshot() Snapshot
	Metadata(term int64) []byte

	// Plan is in force; State and Worker say what is so.
	Plan() modes.Plan
	State() State
	Worker(w star.Worker) Worker
	Steps() []int64             // by worker; -1: nobody has had the rank
	Staleness() map[int64]int64 // how many gradients were applied how many updates late

	// Live counts the members.
	Live() int

	// Drained reports whether nothing is on its way; Unfinished, whether there is, or may again be,
	// something to compute.
	Drained() bool
	Unfinished() bool

	// Settled reports whether it is known which version the parameters have.
	Settled() bool

	// Survives reports whether the parameters are somewhere even if no worker is.
	Survives() bool

	// Lacking lists the workers that everybody waits for, HoldsUp says what is missing of one.
	Lacking() []star.Worker
	HoldsUp(w star.Worker) string

	// Owes lists the shards that lack a gradient of which its worker has said that it got it there.
	Owes(w star.Worker) []int

	// Lingers says whether something of an earlier attempt of w is still on its way, for which who
	// comes in its place must wait.
	Lingers(w star.Worker) bool

	// Evaluates says whether w takes part in evaluations; Members lists those whose parameters must
	// be alike; Carries, whether one of them speaks for a rider.
	Evaluates(w star.Worker) bool
	Members() []star.Worker
	Carries(member, rider star.Worker) bool
}

// Config is what an engine begins with.
type Config struct {
	Plan    modes.Plan
	Workers int // ranks
	Shards  int
	Batch   int   // samples of one worker in one iteration, where the plan has no shares
	Turns   int   // of [Ring]: updates of each batch, one after the other (turns.go); 0: one
	Limit   int64 // end of the stream, in samples: no position from it on is handed out

	Ring *RingConfig // for [NewRing], which needs it; [NewShards] has no use for it

	From   Progress      // where a checkpoint left off
	After  *Snapshot     // where another engine left off; nil: none did
	Absent []star.Worker // ranks that nobody has

	Scale        Scale  // zero means ScaleRound
	Planned      int    // workers that ScaleWorkers goes by
	Norm         bool   // Fires ask for the norm first
	Report       bool   // Fires ask how long the sum was
	Cancel       bool   // who is too late for an update is to stop computing for it
	Whole        bool   // a program computes with whole batches: a rest of one sample goes with the batch before it
	Strides      bool   // what workers hand over after steps of their own is for a rule that can go on from there (rule.Strider)
	Follow       bool   // with Strides: such plans may come at any time, and workers are told to keep the parameters that their own steps go on from
	Guard        bool   // gradients that do not belong are left out (package poison), and what workers say of lengths is checked
	WithMetadata bool   // Fires go with what a successor must know
	Reachable    []bool // by worker: others can reach it in trees; nil: nobody can be reached

	// MaxParams is the elements of a gradient. What members say of lengths can be no more than that
	// many of the largest float32.
	MaxParams int64
}

// RingConfig is what there is to say of rings.
type RingConfig struct {
	Wait       time.Duration // for riders
	MaxStale   int64         // riders' gradients that are older are dropped; 0: none
	Generation int64         // before that of the first ring
}

// Ready is one consequence: a Fire for every shard (if it has a Seq), then the messages and
// Releases that follow from it.
//
// What is said to one worker must come to it in this order: Detached, Rings, Branches, Closes, Cancels,
// Releases. What is said in one Ready comes before what is said in the next. With copies of shards all of
// that waits for the Fire ([Copies]).
type Ready struct {
	Fire     wire.Fire
	Members  []wire.Gradient // the Fire's Gradients one by one, by rank: with a tree it names reports
	Dropped  []wire.Gradient // likewise
	Poison   []Poisoned      // of members: left out
	Stale    []int64         // of members, in updates
	Pieces   []Span          // of members, of the stream of samples: with all-reduce, and in updates with reports of a tree
	More     []int64         // of members of a ring, with a queue: what they have in other places: whose of pieces, where it begins, how many samples
	Round    int             // samples of a round of all workers, where the run log is to have it
	Noise    pgns.Update     // of members, but for Sum2
	Pair     pgns.Update     // of the only member's last two gradients; none: no Gradients
	Used     int64           // samples applied, after the Fire
	Silent   bool            // the Fire is of no update, and of no worker
	Recorded bool            // it is in the run log: for whoever does what is said here
	Metadata []byte          // for who takes the job over, with the Fire

	Detached []To[wire.Detach]
	Rings    []To[wire.Ring] // before the releases
	Branches []wire.Branch   // before the releases
	Cancels  []wire.Cancel
	Closes   []To[wire.Close]
	Releases []wire.Release

	// Evict names who is to leave. A Ready that has it has nothing else.
	Evict *Eviction
}

// Strike takes what w is told out: it is gone, and who comes in its place must not be taken for it.
func (o *Ready) Strike(w star.Worker) {
	o.Releases = without(o.Releases, func(r wire.Release) bool { return r.Worker == w })
	o.Cancels = without(o.Cancels, func(m wire.Cancel) bool { return m.Worker == w })
	o.Branches = without(o.Branches, func(b wire.Branch) bool { return b.Worker == w })
	o.Detached = without(o.Detached, func(d To[wire.Detach]) bool { return d.Worker == w })
	o.Closes = without(o.Closes, func(m To[wire.Close]) bool { return m.Worker == w })
	o.Rings = without(o.Rings, func(r To[wire.Ring]) bool { return r.Worker == w })
}

// without is s without those of which f says so. s stays as it is: others may have it.
func without[T any](s []T, f func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(s), f)
}

// To is a message and whom to tell.
type To[M any] struct {
	Worker star.Worker
	Msg    M
}

// Eviction is a member that is to leave.
type Eviction struct {
	Server bool // else a worker
	Rank   int
	Why    error

	// Again says that it may come again; else what it said was not so.
	Again bool
}

// Poisoned is a gradient that does not belong.
type Poisoned struct {
	Worker star.Worker
	Step   int64
	Cause  poison.Cause
	Factor float64 // exploding: how many times the median its norm is
	Shards []int   // not finite: where
}

// Batch is what a gradient was computed over.
type Batch struct {
	Start int64  // of the stream; -1: the update will say
	More  []Span // what does not follow on Start
}

// Failure is a fault in words.
type Failure struct{ What, Unit, Whom string }

// Told is what members have told who goes on in the place of another engine.
type Told struct {
	Before  []int64       // by worker: the steps of the last Fire; batches handed out since are to be thrown away
	With    []star.Worker // have the parameters: a ring
	Tallies []wire.Tally  // of the last versions that workers of a ring have made
}

// Cut is a checkpoint that begins.
type Cut struct {
	Version, Seq int64
	Writer       star.Worker // has the parameters; -1: every shard writes its own
}

// State is an engine in numbers.
type State struct {
	Version int64 // of the parameters
	Next    int64 // the newest version that anybody may have been given; a checkpoint that begins now is of it
	Seq     int64 // of the last Fire

	Cursor int64 // next position of the sample stream
	Limit  int64 // end of it
	Used   int64 // samples that were applied
	Waste  int64 // and dropped
	Round  int64 // samples of one iteration of all live workers: B of the update rule

	// Midway says that Next is between two updates of the same batches (Config.Turns). A checkpoint
	// of it cannot be resumed.
	Midway bool
}

// Worker is one worker, as an engine has it.
type Worker struct {
	Live      bool // a member of the job
	Parked    bool // has no batch
	Stopped   bool // has none only until the slowest has caught up
	Waiting   bool // its gradient is complete and not yet fired
	Led       bool // its last report was its own
	Reachable bool // it can be in trees
	Holds     bool // it is a member of the ring in force, and has the parameters

	Step, Basis int64
	Start       int64 // of its batch
	Count       int   // samples of it
}

// LostError says that the job cannot go on: something is gone that nobody else has. Msg says what to
// resume from. The engine is of no use afterwards.
type LostError struct{ Msg string }

// Error is Msg, which says what is lost and what helps.
func (e *LostError) Error() string { return e.Msg }

// errNot is for what members of this engine's jobs never say.
var errNot = errors.New("nobody in this job says that")

// unexpected is the error for a message that an engine has no use for.
func unexpected(k wire.Kind) error { return fmt.Errorf("unexpected frame %v from a worker", k) }

// Round is the samples of one iteration of the first n ranks under a plan: B of the update rule, if
// these are there.
func Round(p modes.Plan, batch, n int) (b int64) {
	if p.Shares == nil {
		return int64(n) * int64(batch)
	}
	for w := range n {
		b += int64(p.Share(star.Worker(w), batch))
	}
	return b
}

// Plan is the plan in force.
func (l *scheduler) Plan() modes.Plan { return l.plan }

// Staleness counts gradients by how many updates passed between the version that they were computed
// on and theirs.
func (l *scheduler) Staleness() map[int64]int64 { return l.staleness }

// Live counts the members.
func (l *scheduler) Live() int { return l.live() }

// Stop hands out no more of the stream.
func (l *scheduler) Stop() int64 {
	l.limit = min(l.limit, l.cursor)
	return l.limit
}

// Worker is what the engine knows of w.
func (l *scheduler) Worker(w star.Worker) Worker {
	a := &l.states[w]
	return Worker{Live: a.live, Parked: a.parked, Stopped: a.stopped, Waiting: a.waiting, Led: a.led, Step: a.step, Basis: a.basis,
		Start: a.start, Count: a.whole()}
}

// Steps are those of all workers; -1: nobody has had the rank.
func (l *scheduler) Steps() (steps []int64) {
	for i := range l.states {
		steps = append(steps, l.states[i].step)
	}
	return steps
}

// Saved is what the checkpoint that was begun last must remember.
func (l *scheduler) Saved() (Progress, bool) {
	if l.kept == nil {
		return Progress{}, false
	}
	return *l.kept, true
}

// schedulerOf makes what both engines keep.
func schedulerOf(c Config) scheduler {
	l := scheduler{
		plan: c.Plan, batch: c.Batch, limit: c.Limit, halts: c.Cancel, whole: c.Whole, states: make([]workerState, c.Workers), staleness: map[int64]int64{},
	}
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
				a.step++ // what shards say of the step before is not meant
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
