package options

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"star/internal/settings"
)

func TestLines(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(&lines{w: &b, mu: new(sync.Mutex), level: slog.LevelInfo}).With("role", "ps", "rank", 1)
	log.Debug("unseen")
	log.Info("evaluated", "loss", 0.123456789, "of", "two words", slog.Group("at", "version", 3))
	log.Warn("odd", "err", errors.New(`a "quoted" reason`))
	log.Error("program: \x1b[2J\x1b]0;pwn\a\n\u009bwords", "said", "\x1b[2J")
	want := `evaluated role=ps loss=0.12346 of="two words" at.version=3
WARN odd role=ps err="a \"quoted\" reason"
ERROR program: ?[2J?]0;pwn? ?words role=ps said="\x1b[2J"
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// What is not finite is a word, in text and in JSON, which has no number for it.
func TestNotFiniteInLogs(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		f, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		Logger(&settings.Job{LogFormat: format, LogLevel: "info"}, f).Info("evaluated", "loss", math.NaN(), "best", math.Inf(-1), "worst", math.Inf(1))
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		want := " loss=NaN best=-Inf worst=+Inf\n"
		if format == "json" {
			want = `,"loss":"NaN","best":"-Inf","worst":"+Inf"}` + "\n"
		}
		if !bytes.HasSuffix(b, []byte(want)) {
			t.Errorf("%s: %s", format, b)
		}
	}
}

// Durations in JSON are in seconds, also in groups and of loggers that have some of their own.
func TestDurationsInJSON(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log := Logger(&settings.Job{LogFormat: "json", LogLevel: "info"}, f, "every", 1500*time.Millisecond)
	log.Info("waiting", "for", 7*time.Second, slog.Group("at", "most", time.Minute), "version", int64(3))
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	if at, _ := m["at"].(map[string]any); m["every"] != 1.5 || m["for"] != 7. || at["most"] != 60. || m["version"] != 3. {
		t.Errorf("%s", b)
	}
}
