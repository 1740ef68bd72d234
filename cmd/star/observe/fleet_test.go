package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"star/internal/settings"
	"star/observe/fleet"
)

// logIn writes the run log of a job on two hosts.
func logIn(t *testing.T, dir string, slow bool) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	log := `{"type":"start","format":1,"program":"star 0.1.0","time":"2026-01-01T00:00:00Z","job":"j","config":{"mode":"auto"}}
{"type":"join","t":1,"worker":0,"peer":"node-a:1"}
{"type":"join","t":1,"worker":1,"peer":"node-b:1"}
{"type":"train","t":1,"workers":2,"shards":1,"model":"m","data":"d","limit":4000,"version":0,"plan":"ssgd"}
`
	if slow {
		log += `{"type":"verdict","t":9,"worker":1,"event":"slow","step":9,"since":5,"slowdown":2,"cause":"quota"}` + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "run.jsonl"), []byte(log), 0o666); err != nil {
		t.Fatal(err)
	}
}

// star top --all finds the logs of jobs, those of star sched serve with all their lives, and new ones while it serves
// its page.
func TestTopAll(t *testing.T) {
	dir := t.TempDir()
	for i := range 6 {
		logIn(t, filepath.Join(dir, "jobs", fmt.Sprintf("job-%d", i), "life-1"), true)
	}
	logIn(t, filepath.Join(dir, "jobs", "job-0", "life-2"), true)
	logIn(t, filepath.Join(dir, "checkpoints", "old"), true)
	if err := os.MkdirAll(filepath.Join(dir, "broken"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken", "run.jsonl"), []byte("what\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := topAll(t.Context(), new(settings.Set), []string{dir}, "", time.Hour, &out, true); err != nil {
		t.Fatal(err)
	}
	var f fleet.Fleet
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Jobs) != 7 || f.Hosts[0].Host != "node-b" || f.Hosts[0].Kind != "chronic" || f.Hosts[0].Jobs != 6 || f.Hosts[0].Slow != 6 {
		t.Errorf("%+v", f)
	}
	if states := fmt.Sprint(f.Jobs); strings.Count(states, "running") != 6 || strings.Count(states, "unreadable") != 1 {
		t.Error(states)
	}

	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- topAll(ctx, new(settings.Set), []string{dir}, "127.0.0.1:0", 10*time.Millisecond, w, false)
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`http://[^/]+/`).FindString(string(line[:n]))
	page := func(want string) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			resp, err := http.Get(address + "view.json")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if strings.Contains(string(text), want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("no %q in %s", want, text)
			}
		}
	}
	page("7 jobs, 6 running, on 2 hosts. Slow more often than the others: node-b (slow in 6 of 6 jobs).")
	logIn(t, filepath.Join(dir, "another"), false)
	page("8 jobs, 7 running")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := topAll(t.Context(), new(settings.Set), []string{filepath.Join(dir, "none")}, "", time.Hour, &out, false); err == nil || !strings.Contains(err.Error(), "give folders of jobs") {
		t.Error(err)
	}
}
