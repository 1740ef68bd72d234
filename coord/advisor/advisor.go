package advisor

import "time"

// Advisor is the coordinator's state about the choice of the mode. The zero value is that of a job without a pilot.
type Advisor struct {
	Given  string  // the mode in the words of the user; empty: not given, or a pilot chooses
	Manual bool    // set with star ctl mode: the pilot is ignored
	Pilot  *Runner // nil without a pilot; a nil Runner does nothing

	Permits    Permits
	Verdicts   Verdicts
	Thresholds Thresholds
	Deadlines  []time.Duration // of iterations, by rank (advice.Remark)
}
