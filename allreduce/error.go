package allreduce

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// Error is why a group has failed. Every rank of the group returns one. They
// name the same rank if the ranks could still communicate.
type Error struct {
	// Rank is the one at fault, or None.
	Rank int
	// Operation has kind, number, type and size.
	Operation string
	// Step is the step, of Steps, of the transfers with Rank.
	Step  int
	Steps int
	// Bytes exchanged with Rank, of Total.
	Done  int64
	Total int64
	Err   error
}

func (e *Error) Error() string {
	s := "allreduce: "
	if e.Rank != None {
		s += fmt.Sprintf("rank %d: ", e.Rank)
	}
	s += e.Operation
	if e.Total > 0 {
		s += fmt.Sprintf(", step %d of %d, %d of %d bytes", e.Step, e.Steps, e.Done, e.Total)
	}
	return s + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Timeout reports that a wait exceeded its limit.
func (e *Error) Timeout() bool {
	var late net.Error
	return errors.Is(e.Err, errTimeout) || errors.Is(e.Err, errSilent) || errors.As(e.Err, &late) && late.Timeout()
}

var (
	errGone    = errors.New("its connection has ended")
	errClosed  = errors.New("the group was closed during the operation")
	errTimeout = errors.New("no byte has moved")
	errSilent  = errors.New("nothing comes back from its host: the way to it is cut, or the host is off")
	errSpoilt  = errors.New("the group has failed before; form another one with the next generation")
	errBusy    = errors.New("another operation of this group is running; a Group is for one goroutine at a time")
)

func timedOut(d time.Duration) error { return fmt.Errorf("%w for %v", errTimeout, d) }
