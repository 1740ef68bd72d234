package runlog

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// However a log grows, its tail is what Read makes of the whole.
func TestTail(t *testing.T) {
	text, err := os.ReadFile("testdata/lines.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var want []Line
	if _, err := Read(bytes.NewReader(text), "", func(l Line) error { want = append(want, l); return nil }); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var log bytes.Buffer // as a file: at its end a reader hears EOF, and may come again
		tail := NewTail(&log, "")
		var got []Line
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, min(5000, len(rest))).Draw(t, "bytes")
			log.Write(rest[:n])
			rest = rest[n:]
			if err := tail.Next(func(l Line) error { got = append(got, l); return nil }); err != nil {
				t.Fatal(err)
			}
			if done := len(got); bytes.Count(text[:len(text)-len(rest)], []byte("\n")) != done {
				t.Fatalf("%d lines", done)
			}
		}
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmp.Comparer(func(a, b Number) bool { return a == b || a.IsZero() && b.IsZero() })); d != "" {
			t.Fatal(d)
		}
	})
}

// The end of a log says what the job came to.
func TestReadSummary(t *testing.T) {
	const last = `{"type":"summary","mode":"asgd","wall_s":1,"samples":1,"updates":7,"staleness":{"histogram":{"0":1}}}`
	for _, c := range []struct {
		name, log string
		ok        bool
	}{
		{"whole", startLine + trainLine + last + "\n", true},
		{"not yet written to its end", startLine + last, true},
		{"long", startLine + strings.Repeat(`{"type":"join","t":1,"worker":0,"peer":"10.0.0.1:5"}`+"\n", 1<<12) + last, true},
		{"goes on", startLine + trainLine, false},
		{"cut", startLine + last[:50], false},
		{"empty", "", false},
		{"too long", startLine + last[:1] + strings.Repeat(" ", 64<<10) + last[1:], false},
	} {
		s, ok, err := ReadSummary(strings.NewReader(c.log), "run.jsonl")
		if err != nil || ok != c.ok || ok && (s.Mode != "asgd" || s.Updates != 7) {
			t.Errorf("%s: %v, %+v, %v", c.name, ok, s, err)
		}
	}
	if _, _, err := ReadSummary(strings.NewReader(startLine+`{"type":"summary","wall_s":-1}`), "run.jsonl"); err == nil || !strings.Contains(err.Error(), "run.jsonl: the last line: summary: ") {
		t.Error(err)
	}
}

// A callback that gets lines as they are written gets what a reader reads.
func TestBeside(t *testing.T) {
	text, err := os.ReadFile("testdata/lines.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []Line
	var log bytes.Buffer
	w := NewWriter(nopCloser{&log})
	w.Beside(func(l Line) {
		if r, ok := l.Entry.(*Record); ok {
			l.Entry = *r
		}
		got = append(got, l)
	})
	if _, err := Read(bytes.NewReader(text), "", func(l Line) error {
		want = append(want, l)
		if r, ok := l.Entry.(Record); ok {
			w.Record(l.T, &r)
		} else {
			w.Write(l.T, l.Entry)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmp.Comparer(func(a, b Number) bool { return a == b || a.IsZero() && b.IsZero() })); d != "" {
		t.Error(d)
	}
}

// What is wrong with a log is said as Read says it, and again.
func TestTailRefuses(t *testing.T) {
	for _, text := range []string{"{}\n", "\n\nno\n", startLine + startLine, startLine + trainLine + `{"type":"fire","t":1,"seq":0}` + "\n"} {
		_, want := Read(bytes.NewReader([]byte(text)), "f", func(Line) error { return nil })
		tail := NewTail(bytes.NewBufferString(text), "f")
		for range 2 {
			if got := tail.Next(func(Line) error { return nil }); got == nil || got.Error() != want.Error() {
				t.Errorf("%q: %v, want %v", text, got, want)
			}
		}
	}
}
