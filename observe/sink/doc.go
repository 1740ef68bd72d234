// Package sink sends what happens in a job to tools of others while the job runs: OpenTelemetry (OTLP over HTTP),
// Weights & Biases, MLflow, Kubeflow Trainer and webhooks.
//
// A [Sink] takes rows: scalars and events of a run log. A [Follower] reads the log in a process of its own, so that a
// sink that is slow or down costs the job nothing: the log is the buffer. What was delivered is kept in a file beside
// the log, so that the next process continues there. Rows that a sink rejects, or that could not be delivered before
// the deadline, are counted as lost.
package sink

import (
	"context"
	"fmt"
	"time"

	"star/observe/export"
	"star/observe/web"
	"star/runlog"
)

// Row is a scalar or an event.
type Row struct {
	Time   time.Time // by the clock of the coordinator's host
	Scalar *export.Scalar
	Event  *web.Event
}

// Batch is what a sink is sent at once.
type Batch struct {
	Start runlog.Start
	Run   string // identifies the run: the same in every process that reads this log
	Rows  []Row
	View  web.View // the job after these rows
	Over  bool     // the last one of this log
	Lost  int64    // rows so far
}

// Sink is a tool of others. It is used by one goroutine.
type Sink interface {
	// Takes says whether a row is sent to this sink.
	Takes(r Row) bool

	// Send delivers a batch before ctx ends. An error means that none of it was delivered, and that it may be sent
	// again, unless it is a [Rejected] or a [Fatal]. The rows of a batch are all scalars or all events; there may be
	// none, when only the state has changed.
	Send(ctx context.Context, b Batch) error

	// Close ends what Send needs.
	Close() error
}

// Rejected is an error of rows that will not be taken when they are sent again. The other rows of the batch were
// delivered.
type Rejected struct {
	Rows int
	Why  string
}

// Error implements error.
func (e *Rejected) Error() string { return fmt.Sprintf("it rejects %d rows: %s", e.Rows, e.Why) }

// Fatal is an error that trying again cannot mend, such as a wrong key.
type Fatal struct {
	Err  error
	Exit int // code of internal/exitcode
}

// Error implements error.
func (e *Fatal) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *Fatal) Unwrap() error { return e.Err }

// ExitCode is that of the process.
func (e *Fatal) ExitCode() int { return e.Exit }
