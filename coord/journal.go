package coord

import (
	"log/slog"
	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
	"time"
)

// journal is the run log, and the pilot, which gets some of its lines. Times are of this process's clock, except
// started. Lines have the time since begun, which a coordinator that takes over sets to that of its predecessor.
type journal struct {
	log      *runlog.Writer
	text     *slog.Logger
	pilot    *advisor.Runner // nil: no pilot
	begun    time.Time
	started  time.Time     // of this coordinator, by the wall clock
	opened   bool          // the run log has its first line
	unopened []runlog.Line // what happened to copies before that, while this process took over
}

// write appends a line with the time of now.
func (j *journal) write(e runlog.Entry) { j.log.Write(j.elapsed(), e) }

// note appends a line with the time of now, which the pilot gets, too.
func (j *journal) note(e runlog.Entry) {
	at := j.elapsed()
	j.log.Write(at, e)
	j.tell(at, e)
}

// elapsed is the time of lines of the run log: since the job began, by the monotonic clock. In a
// job that was taken over, since its first coordinator began.
func (j *journal) elapsed() time.Duration { return time.Since(j.begun) }

// tell passes a line on to the pilot, if there is one.
func (j *journal) tell(at time.Duration, entry runlog.Entry) { j.pilot.Tell(at, entry) }

// notApplied notes a plan of the pilot that is not installed.
func (j *journal) notApplied(ch *advice.Change, after int64, because string) {
	p := ch.Plan.String()
	j.write(runlog.Unheeded{Plan: p, Why: ch.Why, Because: because, After: after})
	j.text.Info("a plan of the pilot is not installed", "mode", p, "because", because)
}
