// Package advice is how a [Pilot], which chooses the plan of a job, speaks with the coordinator.
package advice

import (
	"time"

	"star/modes"
	"star/runlog"
)

// Pilot watches a job and changes its plan (--mode auto). It gets the lines of the run log, in the same order and with the
// same times, so that a log replays to the same decisions. It is used by one goroutine, which is not the coordinator's: an
// update never waits for it.
type Pilot interface {
	// Tell passes on a line: RunTrain, RunRecord, RunFire, RunNoise, RunPlan, RunLate,
	// RunAdmission, RunPredictor or RunMember. The remarks are valid until the next call.
	Tell(l runlog.Line) []Remark
}

// Remark is what a Pilot has to say. One of its fields is set.
type Remark struct {
	Verdict *runlog.Verdict // about a worker
	Text    string          // the same in words; or a notice, where nothing else is set
	Gain    *runlog.Gain    // what the last change of plan brought
	Change  *Change
	Study   Study

	// Deadlines is how long an iteration of each worker may take before it is out of the ordinary; 0: not known.
	Deadlines []time.Duration
}

// Study is long work that a Pilot wants done beside the job, such as training a predictor. It is done a little at a time by a
// goroutine that rests in between, and used by nobody else meanwhile. When it is finished the run log has a line that says so,
// and the Pilot is told: there, and not before, it may use what has come out. Where nobody does it, as in a replay, the Pilot
// does it at that line.
type Study interface {
	// Step does some milliseconds of it and reports whether there is more.
	Step() (more bool)

	// Result is what has come out of it, after the last Step; Took and After are not set.
	Result() runlog.Predictor
}

// Change is a plan that is to be installed.
type Change struct {
	Plan      modes.Plan
	Why       string
	Predicted float64 // part of the cost that it saves; NaN: nobody said
}
