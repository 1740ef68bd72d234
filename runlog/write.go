package runlog

import (
	"bufio"
	"encoding/json"
	"io"
	"time"
)

// Writer writes a run log. It is used by one goroutine. The first error stays, and nothing is written after it.
type Writer struct {
	w    *bufio.Writer
	c    io.Closer
	text []byte     // of a line
	rec  recordLine // of Record
	err  error

	lines  int
	beside func(Line)

	sampling sampling
}

// NewWriter writes to w; a nil w makes a log that forgets.
func NewWriter(w io.WriteCloser) *Writer {
	if w == nil {
		return &Writer{}
	}
	return &Writer{w: bufio.NewWriterSize(w, 64<<10), c: w}
}

// Beside has each function called with every line from here on, for readers in this process. A
// record is passed as a *Record that is valid, without More, until each returns.
func (w *Writer) Beside(each func(Line)) { w.beside = each }

// Write writes the line of what happened t after the coordinator began; t of Start and Summary does not count.
// Records have a method of their own.
func (w *Writer) Write(t time.Duration, e Entry) {
	if w.w == nil || w.err != nil {
		return
	}
	if w.text, w.err = appendLine(w.text[:0], t, e); w.err == nil {
		_, w.err = w.w.Write(w.text)
	}
	if !timed(e) {
		t = 0
	}
	w.tell(t, e)
}

// Sample lets the writer leave metrics out of records where there are many (Sampled), in a job of that many workers.
func (w *Writer) Sample(workers int) {
	w.sampling = sampling{on: workers >= sampleFrom, every: 1}
}

// Record writes a record without allocating. More of it is not kept.
func (w *Writer) Record(t time.Duration, r *Record) {
	if w.w == nil || w.err != nil {
		return
	}
	if w.sampling.on {
		if changed, rate := w.sampling.count(t); changed {
			w.Write(t, Sampled{Every: w.sampling.every, Rate: rate})
		}
	}
	w.rec.set(r)
	if !full(w.sampling.every, r.Worker, r.Step) {
		w.rec.Telemetry = telemetry(brief(&r.Telemetry))
	}
	w.text = append(w.rec.appendTo(w.text[:0], t.Seconds()), '\n')
	_, w.err = w.w.Write(w.text)
	w.tell(t, r)
}

// tell counts a line that was written, and passes it on.
func (w *Writer) tell(t time.Duration, e Entry) {
	if w.err != nil {
		return
	}
	if w.lines++; w.beside != nil {
		w.beside(Line{w.lines, t, e})
	}
}

// Flush hands what is buffered to the file.
func (w *Writer) Flush() error {
	if w.w != nil && w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// Close flushes and closes the file, and says the first error of all that was written. It may be called twice.
func (w *Writer) Close() error {
	err := w.Flush()
	if w.c != nil {
		if e := w.c.Close(); err == nil {
			err = e
		}
		w.c = nil
	}
	return err
}

// appendLine appends the line of e.
func appendLine(b []byte, t time.Duration, e Entry) ([]byte, error) {
	switch e := e.(type) {
	case appender:
		return append(e.appendTo(b, t.Seconds()), '\n'), nil
	case Record:
		var l recordLine
		l.set(&e)
		return append(l.appendTo(b, t.Seconds()), '\n'), nil
	}
	fields, err := json.Marshal(e)
	if err != nil {
		return b, err
	}
	if timed(e) {
		b = appendHead(b, e.kind(), t.Seconds())
	} else {
		b = appendText(append(b, `{"type":`...), e.kind())
	}
	if len(fields) > len("{}") {
		b = append(b, ',')
	}
	return append(append(b, fields[1:]...), '\n'), nil
}

// timed says whether lines of e have t.
func timed(e Entry) bool {
	switch e.(type) {
	case Start, Summary:
		return false
	}
	return true
}
