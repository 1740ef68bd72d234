package data

import (
	"errors"
	"fmt"
	"strings"
)

// The three ways in which opening a data set fails, for errors.Is.
var (
	// ErrSpec: the specification itself is wrong: unknown format, option or
	// value (exit status 2).
	ErrSpec = errors.New("bad data set specification")

	// ErrMissing: a file is not there or cannot be read (exit status 66).
	ErrMissing = errors.New("data file missing or unreadable")

	// ErrCorrupt: a file is not what it should be: truncated, damaged, of
	// another format or over the size limit (exit status 65).
	ErrCorrupt = errors.New("data file corrupt")
)

// Error says what is wrong with a file.
type Error struct {
	// Path is the file; for an archive, archive and member.
	Path string

	// Offset is the byte, after decompression, at which what was found differs
	// from what was expected; -1 if there is no such place.
	Offset int64

	// Expected and Found describe the two.
	Expected, Found string

	// Err is or wraps ErrMissing or ErrCorrupt.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.Offset >= 0 {
		fmt.Fprintf(&b, ": byte %d", e.Offset)
	}
	fmt.Fprintf(&b, ": expected %s, found %s", e.Expected, e.Found)
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// corrupt returns the Error of a file with wrong bytes.
func corrupt(path string, offset int64, expected, found string, args ...any) error {
	return &Error{Path: path, Offset: offset, Expected: expected, Found: fmt.Sprintf(found, args...), Err: ErrCorrupt}
}

// missing is the Error of a file that cannot be opened or read.
func missing(path, expected string, cause error) error {
	found := cause.Error()
	if _, after, ok := strings.Cut(found, path+": "); ok { // "open PATH: reason"
		found = after
	}
	return &Error{Path: path, Offset: -1, Expected: expected, Found: found, Err: fmt.Errorf("%w: %w", ErrMissing, cause)}
}

// badSpec is the error of a specification, with what to write instead.
func badSpec(spec, format string, args ...any) error {
	return fmt.Errorf("%w %q: %s", ErrSpec, spec, fmt.Sprintf(format, args...))
}
