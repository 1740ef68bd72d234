package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"star/coord/session"
	"star/coord/takeover"
	"time"
)

// LeaderLease is the right to coordinate the job. The goroutine of Run calls its methods; Hold and SetNote may wait for
// other processes. Package election has the lease of a group of processes.
type LeaderLease interface {
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

// ErrLeaseLost means that Run ended because another process coordinates the job now. The job continues there.
var ErrLeaseLost = errors.New("another process coordinates the job now")

// Handover is what a successor must know beyond the Fires (package takeover), and the enrolment of the workers.
type Handover struct {
	takeover.Handover
	Enrolment session.Enrolment
}

// Ending describes how a job has ended.
type Ending = takeover.Ending

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

// leadership is this process's lease, and the handover for a successor. In a job that no other process can coordinate
// the lease is always held (alone) and no handover is recorded. Once lost is set, no order may be sent.
type leadership struct {
	of       LeaderLease
	handover Handover
	metadata []byte // sent with the releases of a ring
	lost     error  // why the lease is lost
}

// replaceable reports whether other processes may coordinate the job, too.
func (l *leadership) replaceable() bool { return l.of != LeaderLease(alone{}) }

// term is the term of this leadership; 0 if no other process can coordinate.
func (l *leadership) term() int64 { return l.of.Term() }

// when converts a time that another coordinator recorded by the lease's clock.
func (l *leadership) when(noted time.Duration) time.Time {
	return time.Now().Add(-max(0, l.of.Clock()-noted))
}

// persist passes a change of the handover to the successors before the change takes effect. If it returns false, the
// lease is lost, lost has the reason, and the caller does nothing more. In a job that no other process can coordinate
// it records nothing and returns true.
func (l *leadership) persist(change func(e *Handover)) bool {
	if !l.replaceable() {
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
		l.lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		return false
	}
	return true
}

// may reports whether an order may be sent: it waits until no other process holds the lease. It asks for each order,
// because the lease may have been lost since the previous one.
func (l *leadership) may() bool {
	if l.lost == nil {
		if err := l.of.Hold(); err != nil {
			l.lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		}
	}
	return l.lost == nil
}

// over is closed when another process coordinates.
func (l *leadership) over() <-chan struct{} { return l.of.Over() }
