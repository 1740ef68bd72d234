package options

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"star/internal/settings"
	"star/job/process"
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

// A long reason is in a log once, in full, in text and in JSON; the line that ends the process has it where no line
// before did.
func TestReasonOnce(t *testing.T) {
	why := "worker 0: the program failed: the settings of the optimizer were changed after the first batch: " + strings.Repeat("{'lr': 0.1} ", 40)
	other := strings.Replace(why, "the first batch", "the second batch", 1)
	for _, format := range []string{"text", "json"} {
		told = Reasons{}
		f, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		log := Logger(&settings.Job{LogFormat: format, LogLevel: "info"}, f)
		log.Warn("a worker is gone", "reason", strings.Replace(why, "worker 0", "left", 1))
		log.Info("ending the job", "why", why[:400]+" …", "grace", time.Second)
		log.Info("again", "err", errors.New(why))
		log.Warn("a worker is gone", "reason", other)
		if got, want := LastLine("star: "+why), "star: worker 0: … (as above)"; got != want {
			t.Errorf("%s: the last line is %q, want %q", format, got, want)
		}
		t.Setenv(process.LaunchedVariable, "1")
		if got := LastLine("star: " + why); got != "star: "+why {
			t.Errorf("%s: the last line for star run is %q", format, got)
		}
		t.Setenv(process.LaunchedVariable, "")
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]int{"the first batch": 1, "the second batch": 1, "worker 0: … (as above)": 2} {
			if n := bytes.Count(b, []byte(text)); n != want {
				t.Errorf("%s: %q is there %d times, want %d\n%s", format, text, n, want, b)
			}
		}
	}
	told = Reasons{}
	if got := LastLine("star: " + why); got != "star: "+why {
		t.Errorf("the last line, which is the only one, is %q", got)
	}
	short := "a: " + strings.Repeat("x", reasonLeast-1)
	if told.Once(short); told.Once(short) != short {
		t.Errorf("a short reason is left out")
	}
}
