package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"star/internal/build"
	"star/internal/exitcode"
	"star/train/checkpoint"
	"star/train/data"
)

// Program is the name and version that members tell each other and the run log.
const Program = build.Program

// ExitCode is the exit code that fits err.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return exitcode.OK
	case errors.As(err, &coded):
		return coded.ExitCode()
	case errors.Is(err, data.ErrMissing), errors.Is(err, checkpoint.ErrMissing):
		return exitcode.Missing
	case errors.Is(err, data.ErrCorrupt), errors.Is(err, checkpoint.ErrCorrupt):
		return exitcode.Corrupt
	case errors.Is(err, checkpoint.ErrRefused):
		return exitcode.Refused
	case errors.Is(err, checkpoint.ErrUnreachable):
		return exitcode.Lost
	}
	return exitcode.Failure
}

// FileError gives err the exit code of a file that is missing or, where corrupt is in it,
// not what it should be.
func FileError(err, corrupt error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fileError{err, exitcode.Missing}
	case errors.Is(err, corrupt):
		return &fileError{err, exitcode.Corrupt}
	}
	return err
}

// WriteError gives an error of a file that cannot be created or written its exit code.
func WriteError(err error) error {
	if err == nil {
		return nil
	}
	return &fileError{err, exitcode.Unwritable}
}

type fileError struct {
	error
	code int
}

func (e *fileError) Unwrap() error { return e.error }

// ExitCode is that of a file that is missing or corrupt, or cannot be written.
func (e *fileError) ExitCode() int { return e.code }

// DisagreeError: settings do not fit the job as it exists.
type DisagreeError struct{ Err error }

func (e *DisagreeError) Error() string { return e.Err.Error() }
func (e *DisagreeError) Unwrap() error { return e.Err }

// ExitCode is that of members that disagree.
func (e *DisagreeError) ExitCode() int { return exitcode.Disagree }

// LostError says that a shard is gone.
type LostError struct{ Err error }

func (e *LostError) Error() string { return "lost: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// ExitCode is that of a member that has lost its shard for good.
func (e *LostError) ExitCode() int { return exitcode.Lost }

// NaNError says that a gradient was not finite.
type NaNError struct {
	Worker int
	Step   int64
	Loss   float64
	Tensor string // where the first such element lies; empty: only the loss
	Index  int
	Value  float32
}

func (e *NaNError) Error() string {
	if e.Tensor == "" {
		return fmt.Sprintf("the loss of worker %d is %v at step %d: lower --lr, or --on-nan=skip", e.Worker, e.Loss, e.Step)
	}
	return fmt.Sprintf("the gradient of worker %d is %v at step %d, in element %d of %s: lower --lr, give --clip, or --on-nan=skip",
		e.Worker, e.Value, e.Step, e.Index, e.Tensor)
}

// ExitCode is that of a job that diverged.
func (e *NaNError) ExitCode() int { return exitcode.Diverged }

// SignalError says that a signal ended the process.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return fmt.Sprintf("ended by a signal: %v", e.Signal) }

// ExitCode is 128 plus the number of the signal.
func (e *SignalError) ExitCode() int {
	if s, ok := e.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitcode.Failure
}
