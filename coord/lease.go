package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"star/coord/session"
	"star/coord/takeover"
	"time"
)

// LeaderLease is the right to coordinate the job. Its methods are called by the goroutine of Run;
// Hold and SetNote may wait for other processes. Package election has the one of several processes.
type LeaderLease interface {
	// Term is that of this leadership: higher than that of any before.
	Term() int64

	// Hold returns when nobody else can hold the lease now, or with an error when it is lost.
	Hold() error

	// Over is closed when the lease is lost.
	Over() <-chan struct{}

	// Clock is the time by a clock that goes on from one coordinator to the next.
	Clock() time.Duration

	// SetNote has those who may coordinate agree on what a successor must know. After an error the
	// lease is given up.
	SetNote(note []byte) error
}

// alone is the lease of a process that no other one can replace: an election of one. There is no
// successor, and nothing to note for one.
type alone struct{}

func (alone) Term() int64           { return 0 }
func (alone) Hold() error           { return nil }
func (alone) Over() <-chan struct{} { return nil }
func (alone) Clock() time.Duration  { return 0 }
func (alone) SetNote([]byte) error  { return nil }

// ErrLeaseLost says that Run ended because another process coordinates the job now. The job goes on.
var ErrLeaseLost = errors.New("another process coordinates the job now")

// Handover is what a successor must know that is not in the Fires (package takeover), and what workers enrolled with.
type Handover struct {
	takeover.Handover
	Enrolment session.Enrolment
}

// Ending is how a job has ended.
type Ending = takeover.Ending

// ParseHandover reads what a coordinator has noted. What is no JSON, or names neither shards nor an end, is an error.
// Fields of later versions are ignored.
func ParseHandover(note []byte) (*Handover, error) {
	e := new(Handover)
	if err := json.Unmarshal(note, e); err != nil {
		return nil, fmt.Errorf("coord: what the coordinator before has left: %w", err)
	}
	if e.End == nil && len(e.Shards) == 0 && !e.Ring || len(e.Shards) != len(e.Owner) {
		return nil, fmt.Errorf("coord: what the coordinator before has left names %d shards and where %d are", len(e.Shards), len(e.Owner))
	}
	return e, nil
}

// leadership is the right to coordinate, and what a successor must know. In a job that no other process can
// coordinate the lease is always held (alone), and nothing is noted.
type leadership struct {
	of       LeaderLease
	handover Handover
	metadata []byte // that goes with releases of a ring
	lost     error  // why the lease is lost
}

// replaceable says whether other processes may coordinate the job, too.
func (l *leadership) replaceable() bool { return l.of != LeaderLease(alone{}) }

// term is that of this leadership; 0 where nobody else can coordinate.
func (l *leadership) term() int64 { return l.of.Term() }

// when is the moment that another coordinator has noted by the lease's clock.
func (l *leadership) when(noted time.Duration) time.Time {
	return time.Now().Add(-max(0, l.of.Clock()-noted))
}

// persist has a successor know of a change before it is in force. It reports false when the
// lease is lost. Where it is lost, lost says why, and the caller does nothing more. In a job
// that nobody else can coordinate nothing is noted, and it is always true.
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

// may says whether an order may be given: it waits until nobody else holds the lease. It asks for
// each order: what was true for the one before need not be for this one.
func (l *leadership) may() bool {
	if l.lost == nil {
		if err := l.of.Hold(); err != nil {
			l.lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		}
	}
	return l.lost == nil
}

// over is closed when somebody else coordinates.
func (l *leadership) over() <-chan struct{} { return l.of.Over() }
