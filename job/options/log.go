package options

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/term"

	"star/internal/settings"
	"star/job/process"
)

// told has the reasons that this process has printed. All its loggers write to one log.
var told Reasons

// LastLine is the last line of a process: without the reason, if its log has that already. star run shows the last line
// of a process that it has started as the reason of the job: that line is complete.
func LastLine(text string) string {
	if os.Getenv(process.LaunchedVariable) != "" {
		return text
	}
	return told.Once(text)
}

// Logger writes to w as the settings describe: text on a terminal, JSON otherwise. In text, lines of star run's
// children omit the prefix that star run adds. A long reason is printed in full once.
func Logger(job *settings.Job, w *os.File, attrs ...any) *slog.Logger {
	var level slog.Level
	level.UnmarshalText([]byte(job.LogLevel)) // Validate has checked it
	if job.LogFormat == "text" || job.LogFormat == "auto" && term.IsTerminal(int(w.Fd())) {
		child := os.Getenv(process.LaunchedVariable) != ""
		h := &lines{w: w, mu: new(sync.Mutex), level: level, clock: !child}
		if child {
			return slog.New(h)
		}
		return slog.New(h).With(attrs...)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: plainJSON})).With(attrs...)
}

// plainJSON writes durations as all that STAR writes in JSON has them, in seconds: slog would write bare nanoseconds.
// Numbers that are not finite, which JSON lacks, are words: NaN, +Inf and -Inf, as in text; slog would write an error
// in their place.
func plainJSON(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	case slog.KindFloat64:
		if x := a.Value.Float64(); math.IsNaN(x) || math.IsInf(x, 0) {
			a.Value = slog.StringValue(strconv.FormatFloat(x, 'g', -1, 64))
		}
	case slog.KindString:
		a.Value = slog.StringValue(told.Once(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(told.Once(err.Error()))
		}
	}
	return a
}

// lines is a slog.Handler for people: the time of day, the level if it is not
// INFO, the message, then key=value.
type lines struct {
	w     io.Writer
	mu    *sync.Mutex
	level slog.Level
	clock bool
	attrs string
}

func (h *lines) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	if h.clock {
		b.WriteString(r.Time.Format("15:04:05 "))
	}
	if r.Level != slog.LevelInfo {
		b.WriteString(r.Level.String() + " ")
	}
	b.WriteString(strings.ReplaceAll(Printable(told.Once(r.Message)), "\n", " "))
	b.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		appendAttr(&b, "", a)
		return true
	})
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.w, b.String())
	return err
}

func (h *lines) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	var b strings.Builder
	for _, a := range attrs {
		if h.clock || a.Key != "rank" { // star run adds it
			appendAttr(&b, "", a)
		}
	}
	c.attrs += b.String()
	return &c
}

// Printable is a text without what would move a terminal's cursor or change its state: programs and peers choose
// some of its words. Line breaks and tabs stay.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// WithGroup is not used in this program; the names stay as they are.
func (h *lines) WithGroup(string) slog.Handler { return h }

func appendAttr(b *strings.Builder, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, x := range v.Group() {
			appendAttr(b, prefix+a.Key+".", x)
		}
		return
	}
	text := told.Once(v.String())
	if v.Kind() == slog.KindFloat64 {
		text = strconv.FormatFloat(v.Float64(), 'g', 5, 64)
	}
	if text == "" || strings.ContainsFunc(text, func(r rune) bool {
		return r == ' ' || r == '"' || r == '=' || !strconv.IsPrint(r)
	}) {
		text = strconv.Quote(text) // also what would move the cursor: peers choose some of these words
	}
	fmt.Fprintf(b, " %s%s=%s", prefix, a.Key, text)
}
