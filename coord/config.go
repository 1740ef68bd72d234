package coord

import (
	"encoding/json"
	"log/slog"
	"time"

	"star"
	"star/coord/session"
	"star/modes"
	"star/runlog"
	"star/transport/wire"
)

// Config describes a job. It is flat, with one field per setting and the setting's name.
type Config struct {
	// Job is the name that members must give. MaxWorkers, Batch and an end (Samples, Epochs or Steps) are
	// required; every other field is optional.
	Job string

	MaxWorkers int // ranks: the most workers at one time
	Workers    int // workers that the job should begin with; zero means MaxWorkers

	// MinWorkers is the number of workers with which the job begins without waiting for Workers, and with
	// which it continues: with fewer it waits, for JoinTimeout at most. Zero: it begins with Workers, and
	// ends when the last worker is gone.
	MinWorkers int

	Servers int // star-ps processes; zero means 1

	// Replicas is how many servers hold each shard: an update counts when all of them hold it, and
	// one that is gone takes nothing along. Zero means 1.
	Replicas int

	Plan  modes.Plan // zero means SSGD
	Words string     // Plan as it was given; empty: in no words of its own
	Pilot Pilot      // changes the plan while the job runs; nil: the plan stays

	// Admission is asked before the Pilot leaves SSGD. Nil: nobody is.
	Admission Admission

	Ring *RingConfig    // all-reduce; nil: parameter servers
	Tree modes.TreeRule // for plans that want an automatic tree

	// Pace has pushes that would meet at the servers' link wait for each other, where that
	// delays no update.
	Pace bool

	Batch int // samples of one worker in one iteration

	// WholeBatches says that no plan may cut or resize a worker's batch ([modes.Plan.WithWholeBatches]).
	WholeBatches bool

	Scale Scale // zero means ScaleRound
	Norm  bool  // shards need the global norm before an update (clipping)

	// Strides says that workers can make steps of their own between two releases (modes.Plan.Local)
	// and hand over how far they have come in units of a gradient, and that shards or members of a
	// ring can go on from there (rule.Strider), in a job that otherwise sends gradients.
	Strides bool

	// Optimizer is what steps of the workers' own are by, as JSON of star/train/optim.Config, which
	// each is told when it is welcomed. Empty: by its own settings.
	Optimizer string

	// Validation holds every update against a validation gradient before it is applied (Zeno++).
	// Nil: nothing does.
	Validation *Validation

	// Cancel tells workers without which an update was made to stop computing for it, where they
	// compute in parts (LGC, K-sync).
	Cancel bool

	// Lossy says that what reaches the shards is not what workers take the norm of,
	// because compression has changed it. Then the noise scale is measured only in updates of one gradient,
	// which its worker compares with its last one.
	Lossy bool

	// Poison is the policy for gradients that do not belong: poison.Skip, poison.Fatal or poison.Off.
	// Empty means poison.Skip.
	Poison string

	// Shift has what each server takes in measured, and shown in the status: somebody may move
	// shards by it (Note).
	Shift bool

	// StopOnFailure ends the job when a worker is gone after the start.
	StopOnFailure bool

	// LeaveAtOnce lets a worker or server that is told to end go at once, where 2 s are waited for others that
	// may be told as well, with whom the job would be saved: who starts its processes ends it by Stop.
	LeaveAtOnce bool

	// The run ends at the first of these; zero: not there.
	Samples int64   // of the stream
	Epochs  float64 // passes over the data
	Steps   int64   // iterations of all workers

	EvalEvery       float64       // epochs between evaluations; zero: only at the end
	CheckpointEvery time.Duration // between checkpoints; zero: only at the end

	// Resume is where a checkpoint left off, ResumeHash its model, ResumePlain the same one without what
	// wrappers of its program added to names (empty: as ResumeHash), Buffers the
	// Model.Buffers in it, for workers to begin with, as BufferLayout says; without one, as
	// the workers' own says.
	Resume Progress
	ResumeHash,
	ResumePlain string

	// ResumeData is the data set of the checkpoint, in Data, Samples and Digest; nil: not known, or
	// another one is meant.
	ResumeData   *session.Enrolment
	Buffers      []float32
	BufferLayout []session.Tensor

	// Remember is what the checkpoint knows of the workers' last iterations.
	Remember []star.Record

	// Grace is how long the job may take to save itself when it is told to end (Stop), or when too
	// many of its members are. Zero: it ends at once.
	Grace time.Duration

	JoinTimeout time.Duration // zero means 2 min
	Attended    bool          // the process that started the members ends the job when one of them ends too early: waiting for the training has no limit
	SendTimeout time.Duration // zero means 10 s: how long a member may take for a small message; others do not wait for it
	DeadAfter   time.Duration // zero means 60 s: a member that said nothing for so long is gone
	Unreachable time.Duration // zero means 7 s: a member whose host does not answer for so long is gone (transport.Unreachable)
	StallAfter  time.Duration // zero means 15 s: when to say whom everybody waits for

	// StoreTimeout is how long the shards may take to hold a gradient after its
	// worker said that it had pushed it. Then the worker is gone. Zero means 60 s and a
	// second for each MiB of the parameters: twice what a worker itself waits.
	StoreTimeout time.Duration

	// MaxParams bounds the model of the first worker, whose word the size of every
	// shard follows. Zero means what the protocol allows.
	MaxParams int64

	// Save writes the manifest of a checkpoint whose parts are on disk, and returns its path. It is
	// called in a goroutine of its own, one at a time. Nil: no checkpoints. Name makes the ID of a
	// checkpoint.
	Save func(Checkpoint) (path string, err error)

	// Discard removes what a checkpoint that failed has left, as Save is called. Nil: it stays.
	Discard func(id string)

	// Saved says whether a checkpoint of that ID is complete, and where. A successor asks when it
	// cannot write one. Nil: none is.
	Saved func(id string) (path string, ok bool)

	Name func(version, generation int64) string

	Generation int64 // attempts of this job: one more than that of the checkpoint it resumes from

	// Lease is the right to coordinate, where other processes may take the job over; Handover is
	// what the one before has left, for a job that is taken over (takeover.go). Nil: there are no
	// others; the job begins here.
	Lease    LeaderLease
	Handover *Handover

	// Coordinators is how many servers may coordinate: those of the lowest ranks. They are not told
	// that the job is over: whoever holds the lease has them agree on that once the result is out.
	Coordinators int

	Settings json.RawMessage // the effective configuration: line 1 of the run log

	// Fits says what is wrong with a worker that comes, by what the servers of this job were told;
	// vouched: they were told what it is to train, and it was told the same. Nil: whoever comes
	// first is right.
	Fits func(h wire.Hello, e session.Enrolment) (vouched bool, err error)

	// Trains is what a job trains whose workers have enrolled so, with the Settings that belong to
	// it. Nil: what Result and Settings say.
	Trains func(h wire.Hello, e session.Enrolment) (session.Told, json.RawMessage)

	// Adopt is asked when shards are about to be assigned what the job takes from its workers
	// because nobody has told it. Nil: nothing.
	Adopt func(e session.Enrolment) (Adopted, error)

	// Notes, Program and the fields of Result stand in the run log as they are. Run closes RunLog, and
	// leaves Log as it is.
	Notes   []string      // injections and the like, for the run log
	Program string        // name and version
	Commit  string        // that it was built from
	Result  runlog.Result // fields that only the caller knows are copied into the result
	RunLog  *runlog.Writer
	Log     *slog.Logger
}

// flat are the spans as the run log has them: where each begins, and how many samples it has.
func flat(spans []Span) (out []int64) {
	for _, s := range spans {
		out = append(out, s.Start, int64(s.Count))
	}
	return out
}

// Checkpoint is what the coordinator knows of a checkpoint whose parts are saved. Buffers are empty
// where the model has none or no worker has sent them. Parts are in an all-reduce one: the whole.
// The Progress in it is what the parameters are made of: samples that are applied, and of those before
// the cursor what is to be done again.
type Checkpoint struct {
	ID         string
	Generation int64
	Progress
	Enrolment session.Enrolment
	Model     string
	ModelHash string
	Params    int64
	Buffers   []float32         // of all workers, as average makes them
	Parts     []json.RawMessage // one for each shard, in order: what its Saved said
	Residuals []ResidualPart    // by rank: of workers with codecs that have answered
	Records   []star.Record     // the workers' last iterations, for Remember
}

// Adopted is what a job takes from its workers. What is zero stays as Config has it. It is the
// answer of Config.Adopt.
type Adopted struct {
	Batch   int
	Epochs  float64
	Plan    *modes.Plan // for batches that stay whole
	Whole   bool        // batches stay whole
	Pilot   Pilot       // for that batch and optimiser
	Strides *bool

	// EndBy is what says how long the job is. Empty: nothing does, and the end is a default.
	EndBy string

	Optimizer string
}

// Error is a failure of the whole job with the exit code that fits. Msg says what has happened, to
// whom and what helps; members that end with the job get it as the reason.
type Error struct {
	Exit int
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// ExitCode is the exit code that fits.
func (e *Error) ExitCode() int { return e.Exit }

// checkpointID is the ID of a checkpoint of a version in this attempt.
func (c *Config) checkpointID(version int64) string { return c.Name(version, c.Generation) }

// uncut returns p for a job whose batches stay whole. Errors are those of [modes.Plan.WithWholeBatches].
func (c *Config) uncut(p modes.Plan) (modes.Plan, error) {
	if !c.WholeBatches {
		return p, nil
	}
	return p.WithWholeBatches(c.Batch)
}

// storeTimeout is how long the shards may take to hold a gradient that its worker says it has sent.
func (c *Config) storeTimeout(params int64) time.Duration {
	if c.StoreTimeout > 0 {
		return c.StoreTimeout
	}
	return time.Minute + time.Duration(params>>18)*time.Second
}
