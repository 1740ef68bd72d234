package checkpoint

import (
	"errors"
	"fmt"
)

// The ways in which a checkpoint can be unusable.
var (
	// ErrMissing: a file or a whole checkpoint is not there, or, where there is a cause, cannot be read.
	ErrMissing = errors.New("missing")
	// ErrCorrupt: a file exists, but it is not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrRefused: the object store rejects the credentials, so its contents are not known.
	ErrRefused = errors.New("refused")
	// ErrUnreachable: the object store does not answer, or with an error of its own.
	ErrUnreachable = errors.New("out of reach")
)

// Error says what is wrong with which file. It matches its kind under errors.Is.
type Error struct {
	Kind   error // ErrMissing, ErrCorrupt, ErrRefused or ErrUnreachable
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

// None says whether err is that a place has no checkpoint, or is not there, and not that it cannot be looked at.
func None(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == ErrMissing && e.Err == nil
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
