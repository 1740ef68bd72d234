// Package advice is the interface between the coordinator and a [Pilot], which chooses the plan of a job.
package advice

import (
	"time"

	"star/modes"
	"star/runlog"
)

// Pilot watches a job and changes its plan (--mode auto). It reads the lines of the run log, in the same order and with
// the same times, so that a log replays to the same decisions. One goroutine uses it, which is not the coordinator's:
// an update never waits for a pilot.
type Pilot interface {
	// Tell passes on the next line of the run log. The remarks are valid until the next call.
	Tell(l runlog.Line) []Remark
}

// Admission decides about plans of the pilot that make more updates than SSGD, because they use more of hosts that
// other jobs may use too. The coordinator's goroutine calls its methods, which must not block.
type Admission interface {
	// Ask requests permission for a plan. Another goroutine calls answer soon, with false if the decision cannot be
	// made. After a yes it calls answer again when the permission is withdrawn. The next Ask, like Yield, gives back
	// what was granted: answer is not called for it any more.
	Ask(p modes.Plan, answer func(ok bool, why string))

	// Yield gives back what was granted and cancels an open request.
	Yield()
}

// Remark is one output of a Pilot. One of its fields is set; with Verdict, Text may be set as well.
type Remark struct {
	Verdict *runlog.Verdict // about a worker
	Text    string          // the verdict as text; or a notice, if nothing else is set
	Gain    *runlog.Gain    // the gain of the last change of plan
	Change  *Change
	Study   Study

	// Deadlines is, by rank, how long an iteration may take before the worker is late; 0 if unknown.
	Deadlines []time.Duration
}

// Study is long work that a Pilot needs beside the job, such as training a predictor. A goroutine runs it in small
// steps with pauses; no other goroutine uses it meanwhile. When it is finished the run log gets a line, which the Pilot
// reads: only from then on it may use the result. If no goroutine runs the Study, as in a replay, the Pilot runs it at
// that line.
type Study interface {
	// Step works for some milliseconds and reports whether there is more to do.
	Step() (more bool)

	// Result is the result after the last Step; Took and After are not set.
	Result() runlog.Predictor
}

// Change is a plan to install.
type Change struct {
	Plan      modes.Plan
	Why       string
	Predicted float64 // predicted part of the cost that it saves; NaN without a prediction
}
