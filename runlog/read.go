package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"star/exitcode"
	"star/unpack"
)

// Line is one line of a run log.
type Line struct {
	Number int           // of the line, from 1
	T      time.Duration // since the coordinator began; 0 of Start and Summary
	Entry  Entry         // what it says
}

// Contents is what Read found.
type Contents struct {
	Lines int

	// Cut says that the log ends in the middle of a line: the coordinator was killed, or
	// still writes.
	Cut bool

	// Unknown counts lines by types that this program does not know.
	Unknown map[string]int
}

// Error says where a run log is not one.
type Error struct {
	Name string // of the file
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is that of damaged data.
func (e *Error) ExitCode() int { return exitcode.Corrupt }

// MaxLine is the longest line, in bytes: the first one has the whole configuration.
const MaxLine = 16 << 20

// Read reads a run log, plain or gzip, and passes each line on, in the log's order, until one
// of them is answered with an error, which it returns. Fields and types of lines that it does not know, as newer programs
// write them, are passed over; so is the rest of a last line that was cut. All other
// damage is an error of type *Error: what is missing, cannot be, or is there twice; name is the file's.
func Read(r io.Reader, name string, each func(Line) error) (Contents, error) {
	p := reader{workers: -1}
	s := Contents{Unknown: map[string]int{}}
	var err error
	s.Lines, s.Cut, err = scan(r, name, func(n int, x text) error {
		l, err := p.parse(n, x)
		if u := (unknownKind{}); errors.As(err, &u) {
			s.Unknown[u.kind]++
			return nil
		}
		if err != nil {
			return &Error{name, n, err}
		}
		return each(l)
	})
	return s, err
}

// scan passes every line that is a JSON object with a type on, and says how many lines
// there were, and whether the last one was cut.
func scan(r io.Reader, name string, each func(n int, x text) error) (lines int, cut bool, err error) {
	br, err := unpack.Reader(r)
	if err != nil {
		return 0, false, &Error{name, 1, err}
	}
	sc := bufio.NewScanner(br)
	sc.Buffer(make([]byte, 0, 64<<10), MaxLine)
	sc.Split(wholeLines)
	var o order
	for sc.Scan() {
		lines++
		b := sc.Bytes()
		whole := b[len(b)-1] == '\n'
		if b = bytes.TrimSpace(b); len(b) == 0 {
			continue
		}
		x, err := o.head(b)
		if errors.As(err, new(notALine)) && !whole && o.started {
			return lines - 1, true, nil
		}
		if err != nil {
			return lines, false, &Error{name, lines, err}
		}
		if err := each(lines, x); err != nil {
			return lines, false, err
		}
	}
	err = sc.Err()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && o.started: // of gzip
		return lines, true, nil
	case errors.Is(err, bufio.ErrTooLong):
		return lines, false, &Error{name, lines + 1, fmt.Errorf("a line of more than %d MiB, which no run log has", MaxLine>>20)}
	case err != nil:
		return lines, false, &Error{name, lines + 1, err}
	case !o.started:
		return lines, false, &Error{name, 1, errors.New("empty: a run log begins with a line of type start")}
	}
	return lines, false, nil
}

// order sees to it that a log begins with start, once.
type order struct{ started bool }

// head is that of the next line.
func (o *order) head(b []byte) (text, error) {
	x, err := head(b)
	switch {
	case err != nil:
		return x, notALine{err}
	case o.started && x.kind == "start":
		return x, errors.New("a second line of type start: a run log is of one run")
	case !o.started && x.kind != "start":
		return x, fmt.Errorf("begins with a line of type %q, a run log begins with start", x.kind)
	}
	o.started = true
	return x, nil
}

// notALine says why something is not a line of a run log.
type notALine struct{ error }

func (e notALine) Error() string { return "not a line of a run log: " + e.error.Error() }
func (e notALine) Unwrap() error { return e.error }

// wholeLines splits behind each newline, and keeps it: a last line without one may have been cut.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// text is a line that is JSON and has a type.
type text struct {
	kind  string
	t     Seconds // NaN if it has none
	b     []byte
	entry Entry // what it says; nil: that is to be found out
}

// record is what a line of that type says.
func (x text) record() (Record, error) {
	if r, ok := x.entry.(Record); ok {
		return r, nil
	}
	return parseRecord(x.b)
}

// head finds the type of a line and its t.
func head(b []byte) (text, error) {
	if e, t, ok := parseQuick(b); ok {
		return text{e.kind(), t, b, e}, nil
	}
	if rest, ours := bytes.CutPrefix(b, []byte(`{"type":"`)); ours && json.Valid(b) {
		if i := bytes.IndexByte(rest, '"'); i >= 0 && bytes.IndexByte(rest[:i], '\\') < 0 {
			if number, timed := bytes.CutPrefix(rest[i+1:], []byte(`,"t":`)); timed {
				end := bytes.IndexAny(number, ",}")
				if t, err := strconv.ParseFloat(string(number[:end]), 64); err == nil {
					return text{kind: string(rest[:i]), t: Seconds(t), b: b}, nil
				}
			}
		}
	}
	h := struct {
		Type string `json:"type"`
		T    any    `json:"t"` // a line of another program may mean something else by it
	}{}
	if err := json.Unmarshal(b, &h); err != nil {
		return text{}, err
	}
	if h.Type == "" {
		return text{}, errors.New("it has no type")
	}
	t := none
	if f, ok := h.T.(float64); ok {
		t = Seconds(f)
	}
	return text{kind: h.Type, t: t, b: b}, nil
}
