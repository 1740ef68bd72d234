package coord

import (
	"star/coord/advice"
	"star/coord/advisor"
	"star/coord/config"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/layout"
	"star/coord/lease"
	"star/coord/measure"
	"star/coord/moves"
	"star/coord/takeover"
	"star/coord/view"
	"star/modes"
)

// Types and functions of the parts that are this package's API.
type (
	Config     = config.Config
	Adopted    = config.Adopted
	Checkpoint = config.Checkpoint
	RingConfig = config.RingConfig
	Range      = layout.Range
	Validation = config.Validation

	Evidence     = evaluate.Evidence // the argument of Validation.Judge
	Verdict      = evaluate.Verdict  // its result
	ResidualPart = evaluate.Residual // the file with a worker's residual: what its codec has left out

	Admission    = advice.Admission
	Pilot        = advice.Pilot // watches a job and changes its plan (--mode auto)
	ThresholdNow = advisor.ThresholdNow

	LeaderLease = lease.Leader
	Handover    = lease.Handover
	Ending      = takeover.Ending // how a job has ended

	Progress = engine.Progress
	Span     = engine.Span
	Scale    = engine.Scale

	Status       = view.Status
	Refusal      = advisor.Refusal
	NoiseStatus  = view.NoiseStatus
	WorkerStatus = view.WorkerStatus
	ServerStatus = view.ServerStatus
	ShardStatus  = view.ShardStatus
	ServerLoad   = view.ServerLoad
	ShiftStatus  = moves.Shifts
)

// ScaleFiring is a scale of the update rule (docs/theory.md).
const ScaleFiring = engine.ScaleFiring

// Patience is the shortest deadline.
const Patience = measure.Patience

// ErrLeaseLost means that Run ended because another process coordinates the job now. The job continues there.
var ErrLeaseLost = lease.ErrLost

// ParseHandover reads a coordinator's note.
func ParseHandover(note []byte) (*Handover, error) { return lease.ParseHandover(note) }

// RingPlan returns an error if an all-reduce cannot run p. It names what is unsupported, and an alternative.
func RingPlan(p modes.Plan) error { return engine.RingPlan(p) }

// Error is a failure of the whole job, with its exit code. Msg says what happened, to which member, and what helps;
// members that end with the job get it as the reason.
type Error struct {
	Exit int
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// ExitCode returns Exit.
func (e *Error) ExitCode() int { return e.Exit }
