// Package journal writes the run log of a job. It knows the time since the job began, holds lines back until the log
// has its first one, and passes lines to a pilot that follows.
package journal

import (
	"log/slog"
	"time"

	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
)

// Journal is the run log of one coordinator. One goroutine uses it.
type Journal struct {
	log     *runlog.Writer
	text    *slog.Logger
	pilot   *advisor.Runner // nil: none follows
	begun   time.Time       // of the job, by the monotonic clock of this process
	started time.Time       // of this process, by the wall clock
	opened  bool            // the run log has its first line
	held    []runlog.Line   // for after that
}

// New returns a journal that writes to a run log. text is for people.
func New(log *runlog.Writer, text *slog.Logger) Journal { return Journal{log: log, text: text} }

// Begin sets the time from which lines count.
func (j *Journal) Begin(now time.Time) { j.begun, j.started = now, now.UTC() }

// Inherit sets the begin of the job by an earlier coordinator.
func (j *Journal) Inherit(begun time.Time) { j.begun = begun }

// At is a time as lines have it: since the begin of the job, also in one that was taken over.
func (j *Journal) At(t time.Time) time.Duration { return t.Sub(j.begun) }

// Elapsed is At of now.
func (j *Journal) Elapsed() time.Duration { return time.Since(j.begun) }

// Opened reports whether the run log has its first line.
func (j *Journal) Opened() bool { return j.opened }

// Open writes the first line, lines of members that came earlier, and those that were held back. The time in the first
// line is that of Begin.
func (j *Journal) Open(first runlog.Start, earlier []runlog.Line) {
	j.opened, first.Time = true, j.started
	j.log.Write(0, first)
	for _, l := range append(earlier, j.held...) {
		j.log.Write(l.T, l.Entry)
	}
	j.held = nil
}

// Hold keeps a line with the present time until Open.
func (j *Journal) Hold(e runlog.Entry) {
	j.held = append(j.held, runlog.Line{T: j.Elapsed(), Entry: e})
}

// Write appends a line with the present time.
func (j *Journal) Write(e runlog.Entry) { j.log.Write(j.Elapsed(), e) }

// WriteAt appends a line with a time.
func (j *Journal) WriteAt(at time.Duration, e runlog.Entry) { j.log.Write(at, e) }

// Note appends a line with the present time, and passes it to the pilot.
func (j *Journal) Note(e runlog.Entry) {
	at := j.Elapsed()
	j.log.Write(at, e)
	j.Tell(at, e)
}

// Record appends the line of an iteration with the present time, and passes it to the pilot. The log does not keep r.
func (j *Journal) Record(r *runlog.Record) {
	at := j.Elapsed()
	j.log.Record(at, r)
	if j.pilot.Running() { // the conversion to runlog.Entry allocates
		j.Tell(at, *r)
	}
}

// Tell passes a line to the pilot, if there is one.
func (j *Journal) Tell(at time.Duration, e runlog.Entry) { j.pilot.Tell(at, e) }

// NotApplied records a plan of the pilot that is not installed.
func (j *Journal) NotApplied(ch *advice.Change, after int64, because string) {
	p := ch.Plan.String()
	j.Write(runlog.Unheeded{Plan: p, Why: ch.Why, Because: because, After: after})
	j.text.Info("pilot's plan not installed", "mode", p, "because", because)
}

// Follow passes lines to a pilot from now on.
func (j *Journal) Follow(p *advisor.Runner) { j.pilot = p }

// Followed reports whether a pilot follows.
func (j *Journal) Followed() bool { return j.pilot.Running() }

// Heard is how many lines that pilot has read.
func (j *Journal) Heard() int64 { return j.pilot.Heard() }

// Sample, Beside, Flush and Close are those of the run log.
func (j *Journal) Sample(workers int) { j.log.Sample(workers) }

// Beside: see Sample.
func (j *Journal) Beside(each func(runlog.Line)) { j.log.Beside(each) }

// Flush: see Sample.
func (j *Journal) Flush() error { return j.log.Flush() }

// Close: see Sample.
func (j *Journal) Close() error { return j.log.Close() }
