// Package lease has the right of a process to coordinate a job, and what a successor must know.
package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"star/coord/session"
	"star/coord/takeover"
)

// Leader is the right to coordinate the job. The goroutine of Run calls its methods; Hold and SetNote may wait for
// other processes. Package election has the lease of a group of processes.
type Leader interface {
	// Term is the term of this leadership: higher than that of any earlier one.
	Term() int64

	// Hold returns nil when no other process can hold the lease now, or an error when it is lost.
	Hold() error

	// Over is closed when the lease is lost.
	Over() <-chan struct{}

	// Clock is the time by a clock that continues from one coordinator to the next.
	Clock() time.Duration

	// SetNote has the processes that may coordinate agree on what a successor must know. After an error the lease is
	// given up.
	SetNote(note []byte) error
}

// alone is the lease of a process that no other one can replace: an election with one member. It has no successor and
// ignores notes.
type alone struct{}

func (alone) Term() int64           { return 0 }
func (alone) Hold() error           { return nil }
func (alone) Over() <-chan struct{} { return nil }
func (alone) Clock() time.Duration  { return 0 }
func (alone) SetNote([]byte) error  { return nil }

// ErrLost means that Run ended because another process coordinates the job now. The job continues there.
var ErrLost = errors.New("another process coordinates the job now")

// Handover is what a successor must know beyond the Fires (package takeover), and the enrolment of the workers.
type Handover struct {
	takeover.Handover
	Enrolment session.Enrolment
}

// ParseHandover reads a coordinator's note. It is an error if the note is not JSON, or names neither shards nor an end.
// Unknown fields, of later versions, are ignored.
func ParseHandover(note []byte) (*Handover, error) {
	e := new(Handover)
	if err := json.Unmarshal(note, e); err != nil {
		return nil, fmt.Errorf("coord: handover of the previous coordinator: %w", err)
	}
	if e.End == nil && len(e.Shards) == 0 && !e.Ring || len(e.Shards) != len(e.Owner) {
		return nil, fmt.Errorf("coord: handover of the previous coordinator has %d shards and owners of %d", len(e.Shards), len(e.Owner))
	}
	return e, nil
}

// Lease is this process's lease, and the handover for a successor. In a job that no other process can coordinate
// the lease is always held (alone) and no handover is recorded. Once it is lost, no order may be sent.
type Lease struct {
	of       Leader
	handover Handover
	lost     error
}

// New returns the lease of a coordinator; nil: no other process can coordinate.
func New(of Leader) Lease {
	if of == nil {
		of = alone{}
	}
	return Lease{of: of}
}

// Clock is that of the Leader.
func (l *Lease) Clock() time.Duration { return l.of.Clock() }

// Lost returns why the lease is lost; nil: it is not.
func (l *Lease) Lost() error { return l.lost }

// Lose records why the lease is lost.
func (l *Lease) Lose(why error) { l.lost = why }

// Replaceable reports whether other processes may coordinate the job, too.
func (l *Lease) Replaceable() bool { return l.of != Leader(alone{}) }

// Term is the term of this leadership; 0 if no other process can coordinate.
func (l *Lease) Term() int64 { return l.of.Term() }

// When converts a time that another coordinator recorded by the lease's clock.
func (l *Lease) When(noted time.Duration) time.Time {
	return time.Now().Add(-max(0, l.of.Clock()-noted))
}

// Persist passes a change of the handover to the successors before the change takes effect. If it returns false, the
// lease is lost (Lost), and the caller does nothing more. In a job that no other process can coordinate
// it records nothing and returns true.
func (l *Lease) Persist(change func(e *Handover)) bool {
	if !l.Replaceable() {
		return true
	}
	if l.lost != nil {
		return false
	}
	change(&l.handover)
	text, err := json.Marshal(&l.handover)
	if err == nil {
		err = l.of.SetNote(text)
	}
	if err != nil {
		l.lost = fmt.Errorf("%w: %w", ErrLost, err)
		return false
	}
	return true
}

// May reports whether an order may be sent: it waits until no other process holds the lease. It asks for each order,
// because the lease may have been lost since the previous one.
func (l *Lease) May() bool {
	if l.lost == nil {
		if err := l.of.Hold(); err != nil {
			l.lost = fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
	return l.lost == nil
}

// Over is closed when another process coordinates.
func (l *Lease) Over() <-chan struct{} { return l.of.Over() }
