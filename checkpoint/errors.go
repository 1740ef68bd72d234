package checkpoint

import (
	"errors"
	"fmt"
)

// The two ways in which a checkpoint can be unusable.
var (
	// ErrMissing: a file or a whole checkpoint is not there.
	ErrMissing = errors.New("missing")
	// ErrCorrupt: something is there, but it is not what was written.
	ErrCorrupt = errors.New("corrupt")
)

// Error says what is wrong with which file. It matches ErrMissing or ErrCorrupt
// under errors.Is.
type Error struct {
	Kind   error // ErrMissing or ErrCorrupt
	Path   string
	Offset int64 // in bytes; -1: of the whole file

	// Expected and Found say what should be at Offset and what is.
	Expected, Found string

	// Err is the cause, if there is one.
	Err error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("checkpoint: %s is %v", e.Path, e.Kind)
	if e.Offset >= 0 {
		s += fmt.Sprintf(" at byte %d", e.Offset)
	}
	if e.Expected != "" {
		s += fmt.Sprintf(": expected %s, found %s", e.Expected, e.Found)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

func corrupt(path string, offset int64, expected string, format string, args ...any) error {
	return &Error{Kind: ErrCorrupt, Path: path, Offset: offset, Expected: expected, Found: fmt.Sprintf(format, args...)}
}
