// Package config says what a job is, and checks it.
package config

import (
	"encoding/json"
	"log/slog"
	"time"

	"star"
	"star/coord/advice"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/layout"
	"star/coord/lease"
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

	// Replicas is how many servers hold each shard. An update counts when all of them hold it; then the loss of one
	// server loses nothing. Zero means 1.
	Replicas int

	Plan  modes.Plan   // zero means SSGD
	Words string       // Plan in the words of the user; empty means Plan.String()
	Pilot advice.Pilot // changes the plan while the job runs; nil means that the plan stays

	// Admission is asked before the Pilot leaves SSGD. nil permits everything.
	Admission advice.Admission

	Ring *RingConfig    // all-reduce; nil means parameter servers
	Tree modes.TreeRule // for plans that want an automatic tree

	// Pace delays pushes that would collide at the servers' link, if that delays no update.
	Pace bool

	Batch int // samples of one worker in one iteration

	// WholeBatches says that no plan may cut or resize a worker's batch ([modes.Plan.WithWholeBatches]).
	WholeBatches bool

	Scale engine.Scale // zero means ScaleRound
	Norm  bool         // shards need the global norm before an update (clipping)

	// Strides says that workers can make several local steps between two releases (modes.Plan.Local) and send their sum
	// in units of a gradient, and that shards or ring members can apply it (rule.Strider), in a job that otherwise
	// sends gradients.
	Strides bool

	// Outward says that workers can make local steps for outer steps (modes.Plan.Outer), and that shards or ring members
	// can apply them (rule.Descent.Outward).
	Outward bool

	// Optimizer is the optimiser of the workers' local steps, as JSON of star/train/optim.Config; each worker gets it
	// in its Welcome. Empty means the worker's own settings.
	Optimizer string

	// Validation compares every update with a validation gradient before it is applied (Zeno++).
	// nil means no validation.
	Validation *Validation

	// Cancel tells workers to stop computing a gradient once its update was made without it, if they compute in parts
	// (LGC, K-sync).
	Cancel bool

	// Lossy says that compression changes gradients, so that the shards receive something else than what workers take
	// the norm of. Then only updates of one gradient measure the noise scale; the worker compares the gradient with
	// its last one.
	Lossy bool

	// Poison is the policy for invalid gradients: poison.Skip, poison.Fatal or poison.Off.
	// Empty means poison.Skip.
	Poison string

	// Shift measures the traffic that each server receives and shows it in the status, for a caller that moves shards
	// and reports it (Note).
	Shift bool

	// StopOnFailure ends the job when a worker is lost after the start.
	StopOnFailure bool

	// LeaveAtOnce lets a worker or server leave at once when it must end. Otherwise the coordinator waits 2 s for
	// others that may also have been told, to save the job with them. A launcher of all processes ends the job with Stop.
	LeaveAtOnce bool

	// The run ends at the first of these; zero means no limit.
	Samples int64   // of the stream
	Epochs  float64 // passes over the data
	Steps   int64   // iterations of all workers

	EvalEvery       float64       // epochs between evaluations; zero: only at the end
	CheckpointEvery time.Duration // between checkpoints; zero: only at the end

	// Resume is the progress in a checkpoint, ResumeHash the hash of its model, and ResumePlain that hash without the
	// names that wrappers of its program added (empty means ResumeHash). Buffers are the Model.Buffers in the
	// checkpoint, with which workers begin, and BufferLayout their layout (empty means the workers' own).
	Resume engine.Progress
	ResumeHash,
	ResumePlain string

	// ResumeData is the data set of the checkpoint (Data, Samples and Digest); nil if it is unknown, or the job uses
	// another one.
	ResumeData   *session.Enrolment
	Buffers      []float32
	BufferLayout []session.Tensor

	// Remember has the workers' last iterations, from the checkpoint.
	Remember []star.Record

	// Grace is how long the job may take to save itself when it must end (Stop), or when too many members are.
	// Zero ends it at once.
	Grace time.Duration

	JoinTimeout time.Duration // zero means 2 min

	// Attended says that the process that started the members ends the job when one of them ends too early. Then
	// JoinTimeout does not limit the wait for the training.
	Attended bool

	SendTimeout time.Duration // limit for sending a small message to a member; zero means 10 s
	DeadAfter   time.Duration // silence after which a member is gone; zero means 60 s

	// Unreachable is how long a member's host may fail to answer before the member is gone (transport.Unreachable).
	// Zero means 7 s.
	Unreachable time.Duration

	StallAfter time.Duration // time without progress after which the log names what is missing; zero means 15 s

	// StoreTimeout is how long the shards may take to hold a gradient after its worker reported that it had pushed it.
	// Then the worker is gone. Zero means 60 s and a second for each MiB of the parameters: twice what a worker itself
	// waits.
	StoreTimeout time.Duration

	// MaxParams limits the model of the first worker, which determines the size of the shards. Zero means the
	// protocol's limit.
	MaxParams int64

	// Save writes the manifest of a checkpoint after its parts are on disk, and returns its path. It is
	// called in its own goroutine, one at a time. nil means no checkpoints.
	Save func(Checkpoint) (path string, err error)

	// Discard removes what a failed checkpoint has left; it is called like Save. nil leaves it.
	Discard func(id string)

	// Saved reports whether a checkpoint with this ID is complete, and its path. A successor asks when it cannot
	// write one. nil means that none is complete.
	Saved func(id string) (path string, ok bool)

	// Name makes the ID of a checkpoint.
	Name func(version, generation int64) string

	Generation int64 // attempts of this job: one more than that of the checkpoint it resumes from

	// Lease is the right to coordinate, in a job that several processes can coordinate; nil if only this one can.
	// Handover is what the previous coordinator left, in a job that is taken over; nil if the job begins here.
	Lease    lease.Leader
	Handover *lease.Handover

	// Coordinators is how many servers may coordinate: those of the lowest ranks. They are not told that the job is
	// over: the holder of the lease has them agree on that once the result is complete.
	Coordinators int

	Settings json.RawMessage // the effective configuration: line 1 of the run log

	// Fits returns why a worker does not fit what the servers of this job were told to train. vouched: they were told
	// what to train, and the worker was told the same. nil accepts the first worker.
	Fits func(h wire.Hello, e session.Enrolment) (vouched bool, err error)

	// Trains returns what a job with such workers trains, and its Settings. nil means the values in Result and
	// Settings.
	Trains func(h wire.Hello, e session.Enrolment) (session.Told, json.RawMessage)

	// Adopt is called when shards are about to be assigned. It returns the settings that the job takes from its workers
	// because they are not configured. nil means none.
	Adopt func(e session.Enrolment) (Adopted, error)

	// The run log has Notes, Program and the fields of Result unchanged. Run closes RunLog and does not close Log.
	Notes   []string      // injections and the like, for the run log
	Program string        // name and version
	Commit  string        // that Program was built from
	Result  runlog.Result // fields that only the caller knows are copied into the result
	RunLog  *runlog.Writer
	Log     *slog.Logger
}

// Checkpoint describes a checkpoint with all parts saved. Buffers are empty if the model has none or no worker has
// sent them. An all-reduce has one part with all parameters. Progress describes what the parameters contain: the
// samples that were applied, and the ones before the cursor that must be repeated.
type Checkpoint struct {
	ID         string
	Generation int64
	engine.Progress
	Enrolment session.Enrolment
	Model     string
	ModelHash string
	Params    int64
	Buffers   []float32           // the mean over the workers
	Parts     []json.RawMessage   // by shard: the payload of its Saved
	Residuals []evaluate.Residual // by rank: of the workers with codecs that have answered
	Records   []star.Record       // the workers' last iterations, for Remember
}

// Adopted is the result of Config.Adopt: settings that a job takes from its workers. Zero fields leave the value in
// Config.
type Adopted struct {
	Batch   int
	Epochs  float64
	Plan    *modes.Plan  // replaces Config.Plan; nil leaves it
	Whole   bool         // batches stay whole
	Pilot   advice.Pilot // replaces Config.Pilot; nil leaves it
	Strides *bool
	Outward *bool

	// EndBy names the setting that determines the job's length. Empty: no setting does, and the end is a default.
	EndBy string

	Optimizer string

	// Uncut are the ranges of the parameters that the update rule needs in one shard, in order.
	Uncut []layout.Range
}

// RingConfig makes a job an all-reduce: it has no shards, and each worker updates its own copy of the parameters by the
// same rule from the same sum. The coordinator receives only hashes of the parameters.
type RingConfig struct {
	// Rule is the text of the update rule. A worker with another one is rejected, because its parameters would
	// differ from the others'.
	Rule string

	// RuleOf gives Rule for a job that takes its settings from its workers (Config.Adopt). nil means Rule.
	RuleOf func(e session.Enrolment) string

	// Wait is how long a round waits for riders.
	Wait time.Duration

	// MaxStale drops gradients of riders that are older than this number of updates. Zero means no limit.
	MaxStale int64
}

// Validation has every update compared with a validation gradient (Zeno++). It needs parameter servers.
type Validation struct {
	// Every is how many gradients are received between two of the validator's, which it computes while updates
	// continue. Zero means 1.
	Every int

	// Judge returns the factor of an update.
	Judge func(evaluate.Evidence) evaluate.Verdict
}
