package configure

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A worker that comes back knows that the job has ended since it was there first, and nothing of jobs before.
func TestOver(t *testing.T) {
	const ended = `"wall_s":1,"samples":1,"updates":1,"staleness":{"histogram":{"0":1}}`
	const done, failed = `{"type":"start"}` + "\n" + `{"type":"summary","arch":"ps",` + ended + "}\n", `{"type":"summary","error":"a server is lost",` + ended + "}\n"
	for name, c := range map[string]struct {
		launch string // of the process before; empty: there was none
		log    string // the run log; empty: no run log
		after  time.Duration
		want   bool
	}{
		"done":                  {"a", done, time.Second, true},
		"failed":                {"a", failed, time.Second, false},
		"goes on":               {"a", `{"type":"start"}` + "\n" + `{"type":"fi`, time.Second, false},
		"another program's":     {"a", `{"type":"summary"}` + "\n", time.Second, false},
		"begins":                {"a", "", 0, false},
		"of the launch before":  {"a", done, -time.Second, false},
		"submitted again":       {"b", done, time.Second, false},
		"the first of its rank": {"", done, -time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			noted := time.Now().Add(-time.Hour)
			if c.launch != "" {
				over(out, 3, c.launch, slog.Default())
				if err := os.Chtimes(filepath.Join(out, "worker-3.launch"), noted, noted); err != nil {
					t.Fatal(err)
				}
			}
			log := filepath.Join(out, "run.jsonl")
			if c.log != "" {
				if err := os.WriteFile(log, []byte(c.log), 0o600); err != nil {
					t.Fatal(err)
				}
				if at := noted.Add(c.after); os.Chtimes(log, at, at) != nil {
					t.Fatal("no times")
				}
			}
			if got := over(out, 3, "a", slog.Default())(); (got == log) != c.want || got != "" && got != log {
				t.Errorf("%q says that it is over, want %v", got, c.want)
			}
		})
	}
	if over(filepath.Join(t.TempDir(), "none"), 0, "a", slog.Default()) != nil {
		t.Error("it cannot write, and will know")
	}
}
