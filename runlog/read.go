package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"star/internal/exitcode"
	"star/internal/unpack"
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

	// Missing are the lines that the log's bound had no room for, in all.
	Missing Missing

	// Unknown counts lines by types that this program does not know.
	Unknown map[string]int
}

// Missing is what the gaps of a log are in all; its zero value: the log has none.
type Missing struct {
	From    Seconds `json:"from_s"` // of the first line that is missing, since the coordinator began
	To      Seconds `json:"to_s"`   // of the last
	Records int64   `json:"records"`
	Updates int64   `json:"updates"`
}

// Add adds a gap; at is the time of its first line.
func (m *Missing) Add(at time.Duration, g Gap) {
	if *m == (Missing{}) {
		m.From = SecondsOf(at)
	}
	m.To = max(m.To, g.Until)
	m.Records, m.Updates = m.Records+g.Records, m.Updates+g.Fires
}

// Means is the sentence in which a command says what is missing, and what that means for its answer; empty if nothing
// is missing.
func (m Missing) Means(answer string) string {
	if m == (Missing{}) {
		return ""
	}
	return fmt.Sprintf("The log lacks %d records and %d updates, from %.1f s to %.1f s, which --log-max dropped: "+
		"%s.", m.Records, m.Updates, float64(m.From), float64(m.To), answer)
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

// Read reads a run log, plain or gzip, and passes each line on, in the log's order, until each
// returns an error, which Read returns. Unknown fields and types of lines, as newer programs write
// them, are skipped; so is the rest of a last line that was cut. All other damage is an error of
// type *Error: missing, invalid or duplicate data; name is the file's.
func Read(r io.Reader, name string, each func(Line) error) (Contents, error) {
	p := reader{workers: -1}
	s := Contents{Unknown: map[string]int{}}
	var err error
	s.Lines, s.Cut, err = scan(r, name, func(n int, x text) error {
		l, err := p.parse(n, x)
		if err != nil {
			if u := (unknownKind{}); errors.As(err, &u) {
				s.Unknown[u.kind]++
				return nil
			}
			return &Error{name, n, err}
		}
		if g, ok := l.Entry.(Gap); ok {
			s.Missing.Add(l.T, g)
		}
		return each(l)
	})
	return s, err
}

// scan passes every line that is a JSON object with a type on, and says how many lines there were, and whether the
// last one was cut. Lines are decoded in several goroutines, which have ended when scan returns; each is called in
// the caller's.
func scan(r io.Reader, name string, each func(n int, x text) error) (lines int, cut bool, err error) {
	br, err := unpack.Reader(r)
	if err != nil {
		return 0, false, &Error{name, 1, err}
	}
	in := blocks{r: br}
	defer in.stop()
	var o order
	for b := in.next(); b != nil; b = in.next() {
		for i := range b.lines {
			l := &b.lines[i]
			lines++
			if l.blank {
				continue
			}
			if l.err == errLong {
				return lines - 1, false, &Error{name, lines, errLong}
			}
			err := o.check(l.x, l.err)
			if errors.As(err, new(notALine)) && l.open && o.started {
				return lines - 1, true, nil
			}
			if err != nil {
				return lines, false, &Error{name, lines, err}
			}
			if err := each(lines, l.x); err != nil {
				return lines, false, err
			}
		}
	}
	err = in.err
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && o.started: // of gzip
		return lines, true, nil
	case err != nil:
		return lines, false, &Error{name, lines + 1, err}
	case !o.started:
		return lines, false, &Error{name, 1, errors.New("empty: a run log begins with a line of type start")}
	}
	return lines, false, nil
}

// blocks reads a log in blocks of whole lines, and has the next ones decoded while one is used. It is used by one
// goroutine.
type blocks struct {
	r       io.Reader
	err     error    // of reading, after the last block; never io.EOF
	ended   bool     // nothing is left to read
	rest    []byte   // behind the last whole line
	pending []*block // being decoded, the next first
	used    *block   // by the caller
	free    []*block
}

var errLong = fmt.Errorf("a line of more than %d MiB, which no run log has", MaxLine>>20)

// block is some lines.
type block struct {
	b     []byte
	lines []decoded
	done  chan struct{}
}

// decoded is a line, as far as it can be read without those before it.
type decoded struct {
	x     text
	err   error
	blank bool
	open  bool // it has no newline: the last one, which may have been cut
}

const blockSize = 128 << 10

// next returns the next block, until the next call; nil: that was all.
func (in *blocks) next() *block {
	if in.used != nil {
		in.free, in.used = append(in.free, in.used), nil
	}
	for !in.ended && len(in.pending) <= runtime.GOMAXPROCS(0) {
		in.read()
	}
	if len(in.pending) == 0 {
		return nil
	}
	in.used = in.pending[0]
	in.pending = slices.Delete(in.pending, 0, 1)
	<-in.used.done
	return in.used
}

// stop waits for the goroutines that decode.
func (in *blocks) stop() {
	for _, b := range in.pending {
		<-b.done
	}
}

// read reads whole lines, and has them decoded.
func (in *blocks) read() {
	b := &block{b: make([]byte, 0, blockSize)}
	if n := len(in.free); n > 0 {
		b, in.free = in.free[n-1], in.free[:n-1]
	}
	b.b, b.lines, b.done = append(b.b[:0], in.rest...), b.lines[:0], make(chan struct{})
	in.rest = in.rest[:0]
	whole := 0 // bytes of whole lines
	for whole == 0 && !in.ended {
		have := len(b.b)
		if have > MaxLine {
			in.ended, in.err = true, errLong
			return
		}
		b.b = slices.Grow(b.b, blockSize)
		for !in.ended && len(b.b) < have+blockSize {
			n, err := in.r.Read(b.b[len(b.b) : have+blockSize])
			b.b = b.b[:len(b.b)+n]
			if in.ended = err != nil; in.ended && err != io.EOF {
				in.err = err
			}
		}
		if i := bytes.LastIndexByte(b.b[have:], '\n'); i >= 0 {
			whole = have + i + 1
		}
	}
	if in.ended { // the last line may lack its end
		whole = len(b.b)
	}
	if whole == 0 {
		return
	}
	in.rest = append(in.rest, b.b[whole:]...)
	b.b = b.b[:whole]
	in.pending = append(in.pending, b)
	go b.decode()
}

func (b *block) decode() {
	defer close(b.done)
	for line := range bytes.Lines(b.b) {
		d := decoded{open: line[len(line)-1] != '\n'}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			d.blank = true
		} else if len(line) > MaxLine {
			d.err = errLong
		} else {
			d.x, d.err = head(line)
		}
		b.lines = append(b.lines, d)
	}
}

// order sees to it that a log begins with start, once.
type order struct{ started bool }

// head is that of the next line.
func (o *order) head(b []byte) (text, error) {
	x, err := head(b)
	return x, o.check(x, err)
}

// check holds the head of the next line, or why it has none, against those before it.
func (o *order) check(x text, err error) error {
	switch {
	case err != nil:
		return notALine{err}
	case o.started && x.kind == "start":
		return errors.New("a second line of type start: a run log is of one run")
	case !o.started && x.kind != "start":
		return fmt.Errorf("begins with a line of type %q, a run log begins with start", x.kind)
	}
	o.started = true
	return nil
}

// notALine says why something is not a line of a run log.
type notALine struct{ error }

func (e notALine) Error() string { return "not a line of a run log: " + e.error.Error() }
func (e notALine) Unwrap() error { return e.error }

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
