package coord

import (
	"log/slog"
	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
	"time"
)

// journal has the run log, and the pilot, which gets some of its lines. Times are of this process's clock, except
// started. Lines have the time since begun, which a successor sets to the begin of the first coordinator.
type journal struct {
	log      *runlog.Writer
	text     *slog.Logger
	pilot    *advisor.Runner // nil without a pilot
	begun    time.Time
	started  time.Time     // of this process, by the wall clock
	opened   bool          // the run log has its first line
	unopened []runlog.Line // lines about copies from before that, during a takeover
}

// write appends a line with the present time.
func (j *journal) write(e runlog.Entry) { j.log.Write(j.elapsed(), e) }

// note appends a line with the present time, and passes it to the pilot.
func (j *journal) note(e runlog.Entry) {
	at := j.elapsed()
	j.log.Write(at, e)
	j.tell(at, e)
}

// elapsed is the time for lines of the run log: since the begin of the job, by the monotonic clock. In a job that was
// taken over it counts from the begin of the first coordinator.
func (j *journal) elapsed() time.Duration { return time.Since(j.begun) }

// tell passes a line to the pilot, if there is one.
func (j *journal) tell(at time.Duration, entry runlog.Entry) { j.pilot.Tell(at, entry) }

// notApplied records a plan of the pilot that is not installed.
func (j *journal) notApplied(ch *advice.Change, after int64, because string) {
	p := ch.Plan.String()
	j.write(runlog.Unheeded{Plan: p, Why: ch.Why, Because: because, After: after})
	j.text.Info("pilot's plan not installed", "mode", p, "because", because)
}
