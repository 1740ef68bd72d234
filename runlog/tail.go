package runlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Tail reads a run log that grows. It is used by one goroutine.
type Tail struct {
	r    io.Reader
	name string
	buf  []byte // what is left of the last line
	p    reader
	o    order
	n    int
	skip int // lines
	err  error
}

// NewTail reads a log that is not packed; name is the file's.
func NewTail(r io.Reader, name string) *Tail {
	return &Tail{r: r, name: name, p: reader{workers: -1}}
}

// Skip has Next pass over the first n lines of the log, which are known already.
func (t *Tail) Skip(n int) { t.skip = n }

// Next passes on what has been written since the last call, up to the last whole line. Lines of a type that this
// program does not know are passed over. Errors are those of [Read], those of each, and those of reading; the
// first one stays.
func (t *Tail) Next(each func(Line) error) error {
	for t.err == nil {
		have := len(t.buf)
		t.buf = append(t.buf, make([]byte, 64<<10)...)
		n, err := t.r.Read(t.buf[have:])
		t.buf = t.buf[:have+n]
		t.lines(each)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			break
		}
		if err != nil && t.err == nil {
			t.err = &Error{t.name, t.n + 1, err}
		}
	}
	return t.err
}

// lines passes on the whole lines of buf.
func (t *Tail) lines(each func(Line) error) {
	rest := t.buf
	for t.err == nil {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		b := bytes.TrimSpace(rest[:i])
		rest = rest[i+1:]
		if t.n++; len(b) == 0 || t.n <= t.skip {
			continue
		}
		x, err := t.o.head(b)
		var l Line
		if err == nil {
			if l, err = t.p.parse(t.n, x); errors.As(err, new(unknownKind)) {
				continue
			}
		}
		if err != nil {
			t.err = &Error{t.name, t.n, err}
			return
		}
		t.err = each(l)
	}
	if len(rest) > MaxLine && t.err == nil {
		t.err = &Error{t.name, t.n + 1, errLong}
	}
	t.buf = t.buf[:copy(t.buf, rest)]
}

// ReadSummary reads the last line of a log that is not packed: what the job came to. ok is false where that is no
// Summary, because the job goes on, or its coordinator was killed, and where it has more than 64 KiB. Errors are
// those of reading, and of a Summary that is damaged; name is the file's.
func ReadSummary(r io.ReadSeeker, name string) (s Summary, ok bool, err error) {
	const most = 64 << 10
	size, err := r.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = r.Seek(max(0, size-most), io.SeekStart)
	}
	if err != nil {
		return s, false, err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return s, false, err
	}
	b = bytes.TrimSpace(b)
	x, err := head(b[bytes.LastIndexByte(b, '\n')+1:])
	if err != nil || x.kind != (Summary{}).kind() {
		return s, false, nil
	}
	p := reader{workers: -1}
	l, err := p.parse(0, x)
	if err != nil {
		return s, false, fmt.Errorf("%s: the last line: %w", name, err)
	}
	return l.Entry.(Summary), true, nil
}
