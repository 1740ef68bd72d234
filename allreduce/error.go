package allreduce

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// Error is why a group has failed. Every rank of the group returns one, and they
// name the same rank wherever the ranks could still talk about it.
type Error struct {
	Rank      int    // whose fault it is, or None
	Operation string // kind, number, type and size
	Step      int    // where the transfers with Rank were, of Steps
	Steps     int
	Done      int64 // bytes exchanged with Rank, of Total
	Total     int64
	Err       error
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

// Timeout: waiting had no end.
func (e *Error) Timeout() bool {
	var late net.Error
	return errors.Is(e.Err, errTimeout) || errors.Is(e.Err, errSilent) || errors.As(e.Err, &late) && late.Timeout()
}

var (
	errGone    = errors.New("its connection has ended")
	errClosed  = errors.New("the group was closed during the operation")
	errTimeout = errors.New("no byte has moved")
	errSilent  = errors.New("nothing comes back from its host: the way to it is cut, or the host is off")
	errSpoilt  = errors.New("the group has failed before and cannot be used any more; form another one with the next generation")
	errBusy    = errors.New("another operation of this group is running; a Group is for one goroutine at a time")
)

func timedOut(d time.Duration) error { return fmt.Errorf("%w for %v", errTimeout, d) }
