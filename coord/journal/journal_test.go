package journal

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"star/runlog"
)

// file is a run log in memory.
type file struct{ bytes.Buffer }

func (*file) Close() error { return nil }

// Lines before the first one are held back, with their times; a job that was taken over counts from its own begin.
func TestOpen(t *testing.T) {
	var text file
	j := New(runlog.NewWriter(&text), slog.New(slog.DiscardHandler))
	now := time.Now()
	j.Begin(now)
	j.Inherit(now.Add(-time.Hour))
	if got := j.At(now.Add(time.Second)); got != time.Hour+time.Second {
		t.Errorf("%v", got)
	}
	j.Hold(runlog.Replica{Shard: 1, Event: "lost"})
	if j.Opened() || j.Flush() != nil || text.Len() > 0 {
		t.Fatalf("%q before the first line", text.String())
	}
	j.Open(runlog.Start{Format: runlog.MaxFormat}, []runlog.Line{{T: 3 * time.Second, Entry: runlog.Join{Worker: 2}}})
	j.Note(runlog.Heard{After: 7}) // no pilot follows
	if err := j.Close(); err != nil || !j.Opened() || j.Followed() {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	want := []string{`"type":"start"`, `"type":"join","t":3,`, `"type":"replica","t":3600`, `"type":"heard","t":3600`}
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("line %d is %s, want %s", i, lines[i], w)
		}
	}
	if !strings.Contains(lines[0], now.UTC().Format("2006-01-02T15:04:05")) {
		t.Errorf("the begin of this process: %s", lines[0])
	}
}
