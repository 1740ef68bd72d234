package service

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/sched/live"
)

// A queue that was written while the clock was ahead goes on at once, with a warning: its begin, and its newest event,
// may be later than now.
func TestClockWasAhead(t *testing.T) {
	for _, c := range []struct {
		name   string
		began  time.Duration // from now
		newest float64       // s since then
		warns  bool
		least  float64 // that the queue's time is
	}{
		{"the begin is ahead", time.Hour, 0, true, 1},
		{"an event is ahead", -time.Minute, 3600, true, 3600},
		{"both are", time.Hour, 30, true, 30},
		{"nothing is", -time.Minute, 30, false, 60},
	} {
		dir := t.TempDir()
		var said strings.Builder
		o := Options{Dir: dir, Policy: "ef-admission", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 0}}, Log: slog.New(slog.NewTextHandler(&said, nil))}
		text, err := json.Marshal(head{Format: queueFormat, Time: time.Now().Add(c.began)})
		if err != nil {
			t.Fatal(err)
		}
		if c.newest > 0 {
			e := submitted("a")
			e.At = c.newest
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, '\n'), line...)
		}
		if err := os.WriteFile(filepath.Join(dir, queueName), append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Start(o)
		if err != nil {
			t.Fatal(err)
		}
		before := s.now()
		time.Sleep(2 * time.Millisecond)
		if now := s.now(); now <= before || now < c.newest || now > max(c.least, c.newest)+30 {
			t.Errorf("%s: the queue's time was %v s, and is %v s", c.name, before, now)
		}
		if warned := strings.Contains(said.String(), "ahead of this one"); warned != c.warns {
			t.Errorf("%s: warned %v: %s", c.name, warned, said.String())
		}
		s.close()
	}
}
