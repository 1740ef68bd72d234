package observe

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"star/observe/export"
	"star/runlog"
)

// Sinks that take lines at once write what they write alone; the error of one ends the reading, and is returned.
func TestFan(t *testing.T) {
	log, err := os.ReadFile("../../../runlog/testdata/ssgd.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	feed := func(k export.Sink) {
		t.Helper()
		if _, err := runlog.Read(bytes.NewReader(log), "ssgd", k.Line); err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var alone, together, events bytes.Buffer
	feed(export.NewTrace(&alone))
	both := new(fan)
	both.add(export.NewTrace(&together))
	both.add(export.NewEvents(&events, 0))
	feed(both)
	if !bytes.Equal(alone.Bytes(), together.Bytes()) || events.Len() == 0 {
		t.Errorf("%d bytes of a trace alone, %d beside %d bytes of events", alone.Len(), together.Len(), events.Len())
	}
	full := errors.New("no space left")
	one := new(fan)
	one.add(fullSink{full})
	for range 100 * linesAtOnce {
		if err := one.Line(runlog.Line{Entry: runlog.Noise{}}); err != nil {
			if !errors.Is(err, errSink) {
				t.Error(err)
			}
			break
		}
	}
	if err := one.Close(); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
}

// fullSink is a sink that takes nothing.
type fullSink struct{ err error }

func (b fullSink) Line(runlog.Line) error { return b.err }
func (b fullSink) Close() error           { return nil }
