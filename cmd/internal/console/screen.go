package console

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"star/coord"
	"star/internal/settings"
	"star/job/options"
	"star/modes"
)

// Screen shows a job: on a terminal as a live table below the lines of its processes, elsewhere as a plain line
// periodically. Its methods may be called from several goroutines.
type Screen struct {
	w      io.Writer
	source string // in front of plain lines
	fd     int
	live   bool
	color  bool
	plain  bool
	json   bool
	every  time.Duration // between plain lines

	mu     sync.Mutex
	drawn  []string
	phase  string
	begun  bool
	last   time.Time
	closed bool
	waits  string // the reason for waiting in the last plain line

	tracebacks map[string]string // maps each traceback to the process that printed it first
	reasons    options.Reasons   // reasons that were printed already
}

// tracebacksKept bounds the number of remembered tracebacks: programs that continue may print any number.
const tracebacksKept = 100

// reasonLength is the number of bytes that identify a reason: the text after it differs between lines.
const reasonLength = 80

// brief removes a reason that a process has printed before. Processes end one after the other for the reason of the
// first one.
func (s *Screen) brief(line string) string {
	s.reasons.Length = reasonLength
	var fields map[string]json.RawMessage
	if !s.json || json.Unmarshal([]byte(line), &fields) != nil {
		return s.reasons.Once(line)
	}
	for _, key := range []string{"msg", "reason", "why", "error", "err"} {
		var text string
		if json.Unmarshal(fields[key], &text) != nil {
			continue
		}
		if brief := s.reasons.Once(text); brief != text {
			raw, _ := json.Marshal(brief)
			line = strings.Replace(line, string(fields[key]), string(raw), 1)
		}
	}
	return line
}

// NewScreen is a screen on standard error, as set by --progress and --log-format.
func NewScreen(job *settings.Job) *Screen {
	fd := int(os.Stderr.Fd())
	tty := term.IsTerminal(fd) && os.Getenv("TERM") != "dumb"
	return &Screen{
		w: os.Stderr, source: "run", fd: fd, every: 5 * time.Second,
		live:  job.Progress == "auto" && tty,
		color: tty && os.Getenv("NO_COLOR") == "",
		plain: job.Progress == "plain" || job.Progress == "auto" && !tty,
		json:  job.LogFormat == "json",
	}
}

// NewScreenOn is a screen on out: a table if out is a terminal, else plain lines that begin with source.
func NewScreenOn(out io.Writer, source string, every time.Duration) *Screen {
	s := &Screen{w: out, source: source, every: every, plain: true}
	if f, ok := out.(*os.File); ok {
		s.fd = int(f.Fd())
		s.live = term.IsTerminal(s.fd) && os.Getenv("TERM") != "dumb"
	}
	s.color = s.live && os.Getenv("NO_COLOR") == ""
	return s
}

// Format is the log format of the processes.
func (s *Screen) Format() string {
	if s.json {
		return "json"
	}
	return "text"
}

// Say prints a line of a process. JSON lines stay as they are.
func (s *Screen) Say(source, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.line(source, line)
	s.draw()
}

// Relay prints a block of lines of a process. It prints only the last line of a traceback that another process has
// printed before.
func (s *Screen) Relay(source string, block []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	repeated := false
	if key := strings.Join(block, "\n"); len(block) > 1 {
		switch first, ok := s.tracebacks[key]; {
		case ok && first != source:
			block, repeated = []string{fmt.Sprintf("%s (the traceback is that of %s)", s.brief(block[len(block)-1]), first)}, true
		case s.tracebacks == nil:
			s.tracebacks = map[string]string{key: source}
		case len(s.tracebacks) < tracebacksKept:
			s.tracebacks[key] = source
		}
	}
	s.erase()
	last := len(block) - 1
	if text := s.brief(block[last]); last == 0 && (repeated || strings.HasPrefix(source, "ps ") || strings.HasPrefix(text, "star: ") || s.json && lastLine(text)) {
		block[last] = text // other output of a program is unchanged
	}
	for _, text := range block {
		s.line(source, text)
	}
	s.draw()
}

// lastLine reports whether a JSON line is the last one of a process of STAR.
func lastLine(text string) bool {
	var line struct{ Msg string }
	return json.Unmarshal([]byte(text), &line) == nil && strings.HasPrefix(line.Msg, "star: ")
}

// line writes one line of a process. With --log-format json it writes JSON; lines of processes are JSON already, except
// for their last ones.
func (s *Screen) line(source, text string) {
	switch {
	case !s.json:
		fmt.Fprintf(s.w, "%-8s | %s\n", source, text)
	case strings.HasPrefix(text, "{") && json.Valid([]byte(text)):
		fmt.Fprintln(s.w, text)
	default:
		slog.New(slog.NewJSONHandler(s.w, nil)).Info(text, "from", source)
	}
}

// Show shows the state of the job.
func (s *Screen) Show(st coord.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = st.Phase
	s.begun = s.begun || s.phase != "" && s.phase != "joining"
	if s.closed {
		return
	}
	if s.live {
		width, height := 100, 0
		if w, h, err := term.GetSize(s.fd); err == nil && w > 20 {
			width, height = w, h
		}
		s.erase()
		s.drawn = fit(Table(st, width), height)
		s.draw()
		return
	}
	if !s.plain || time.Since(s.last) < s.every {
		return
	}
	s.last = time.Now()
	if st.Phase == "joining" {
		if st.Waiting != s.waits { // else the coordinator logs periodically how long it has waited
			s.line(s.source, "waiting for "+st.Waiting)
		}
		s.waits = st.Waiting
		return
	}
	text := fmt.Sprintf("%s  mode %s  v%d  %s%s", st.Phase, st.Mode, st.Version, progress(st), extremes(st))
	for _, w := range st.Workers {
		if w.Slowdown > 0 {
			text += fmt.Sprintf("  %s worker %d %.1fx %s", slowMark, w.Worker, w.Slowdown, w.Cause)
		}
	}
	if st.Slowdown != "" {
		text += "  " + cut(marked(st.Slowdown), 105)
	}
	if st.Short > 0 {
		text += fmt.Sprintf("  waits for workers, at least %d are wanted (--min-workers)", st.Short)
	}
	if st.Refused != nil {
		text += "  " + cut(refusal(st), 60)
	}
	s.line(s.source, text)
}

// extremes are the workers with the shortest and the longest compute time. In a queue of samples these do not show
// which worker is slow: rounds take the same time, and a fast worker takes more samples.
func extremes(st coord.Status) string {
	ws := slices.DeleteFunc(slices.Clone(st.Workers), func(w coord.WorkerStatus) bool { return w.Compute <= 0 || w.State == "absent" })
	if p, err := modes.Parse(st.Mode, len(st.Workers)); err == nil && p.Queue > 0 || len(ws) == 0 {
		return ""
	}
	slowest, fastest := ws[0], ws[0]
	for _, w := range ws {
		if w.Compute > slowest.Compute {
			slowest = w
		}
		if w.Compute < fastest.Compute {
			fastest = w
		}
	}
	return fmt.Sprintf("  compute %s (worker %d) to %s (worker %d)", Seconds(fastest.Compute), fastest.Worker, Seconds(slowest.Compute), slowest.Worker)
}

// fit shortens a table to the height of a terminal, with one line above and the cursor below it: lines that have
// scrolled away cannot be erased, and some terminals keep what is erased from the first line. A height of 0 is unknown.
func fit(lines []string, height int) []string {
	room := max(height-2, 2)
	if height <= 0 || len(lines) <= room {
		return lines
	}
	return append(lines[:room-1:room-1], fmt.Sprintf("  … %d more", len(lines)-room+1))
}

// Training reports whether the job has begun. It stays true during a takeover, when members join again.
func (s *Screen) Training() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// Reopen starts the screen again after Close.
func (s *Screen) Reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase, s.begun, s.closed = "", false, false
}

// Close removes the table, because the summary follows.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.drawn, s.closed = nil, true
}

// erase moves the cursor up to the first line drawn and clears everything below.
func (s *Screen) erase() {
	if n := len(s.drawn); n > 0 && s.live {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", n)
	}
}

func (s *Screen) draw() {
	if !s.live || len(s.drawn) == 0 {
		return
	}
	text := strings.Join(s.drawn, "\n") + "\n"
	if s.color {
		for _, mark := range []string{slowMark, hangMark} {
			text = strings.ReplaceAll(text, " "+mark+" ", " \x1b[31;1m"+mark+"\x1b[0m ")
		}
	}
	io.WriteString(s.w, text)
}
