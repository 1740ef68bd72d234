package advisor

import "time"

// Advisor is all that a coordinator knows of what chooses the mode. The zero value is that of a job without a pilot.
type Advisor struct {
	Given  string  // the mode in the words of the user; empty: not given, or a pilot chooses
	Manual bool    // star ctl mode has set the mode: the pilot is not heeded
	Pilot  *Runner // nil: none, which does nothing

	Permits    Permits
	Verdicts   Verdicts
	Thresholds Thresholds
	Deadlines  []time.Duration // of iterations, by rank (advice.Remark)
}
