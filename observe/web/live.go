package web

import (
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"star/runlog"
)

//go:embed static
var static embed.FS

// page is the version of the data for the page. A page of another version reports that it is old (app.js).
const page = 1

// Live is the state of a log that may grow, for any number of readers.
type Live struct {
	feed
	state *State

	read    chan struct{} // closed when a log that is followed was read as far as it was there
	wasRead func()        // closes it
}

// Step is the time between two looks at a log, and between two views that a page is sent.
const Step = 500 * time.Millisecond

// NewLive is the state before the first line.
func NewLive() *Live {
	l := &Live{state: NewState(), read: make(chan struct{})}
	l.wasRead = sync.OnceFunc(func() { close(l.read) })
	l.feed = newFeed(func() ([]byte, bool) { return encode(l.state.View()), l.state.Ended() })
	return l
}

// AwaitRead waits until a log that is followed was read as far as it was there, so that the first view is not that of
// a job that has not begun; at most as long as a reader waits for an answer.
func (l *Live) AwaitRead(ctx context.Context) {
	limit := time.NewTimer(answerTime / 2)
	defer limit.Stop()
	select {
	case <-l.read:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// Line processes the next line.
func (l *Live) Line(x runlog.Line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty = true
	return l.state.Line(x)
}

// Follow reads a log that is not packed and grows, until its last line or the end of ctx: from tap,
// once tap continues where reading stopped; a nil tap has nothing. An error of the log is shown, and
// returned.
func (l *Live) Follow(ctx context.Context, r io.Reader, name string, tap *Tap) error {
	t := runlog.NewTail(r, name)
	var many chan struct{}
	if tap != nil {
		defer tap.stop()
		many = tap.many
	}
	known, b := 0, new(batch)
	next := func(x runlog.Line) error {
		if x.Number <= known {
			return nil
		}
		known = x.Number
		return l.Line(x)
	}
	news := func() error {
		if tap == nil || !tap.take(known, b) {
			t.Skip(known)
			return t.Next(next)
		}
		for _, x := range b.lines {
			if err := next(x); err != nil {
				return err
			}
		}
		return nil
	}
	tick := time.NewTicker(Step)
	defer tick.Stop()
	defer l.wasRead()
	for {
		if err := news(); err != nil {
			l.mu.Lock()
			l.state.Wrong(err)
			l.dirty = true
			l.mu.Unlock()
			l.Wake()
			return err
		}
		l.Wake()
		l.wasRead()
		if l.ended() {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done(): // what was written until then is processed, too
		case <-many:
		case <-tick.C:
		}
	}
}

func (l *Live) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Ended()
}

// encode writes a view on one line. encoding/json escapes what could end a script.
func encode(v View) []byte {
	return numbered(struct {
		Page int `json:"page"`
		View
	}{page, v})
}

// numbered writes what a page is sent.
func numbered(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil { // a view always has a form
		text, _ = json.Marshal(map[string]any{"page": 0, "headline": err.Error()})
	}
	return text
}

// Downloads are files that are made when they are asked for, by name.
type Downloads map[string]func(w io.Writer) error

// Handler serves the page at the paths below it: the page and its parts, events (the views), view.json, and files.
func (l *Live) Handler(files Downloads) http.Handler { return l.handler("index.html", files) }

// Report writes the page of a state as one file that needs no server and no network.
func Report(w io.Writer, s *State) error { return report(w, "index.html", "app.js", encode(s.View())) }

// report writes a page of static, with its parts and its data.
func report(w io.Writer, page, script string, view []byte) error {
	part := func(name string) string {
		b, err := static.ReadFile("static/" + name)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	html := part(page)
	for _, r := range [...]struct{ old, with string }{
		{`<link rel="stylesheet" href="uplot.css">`, "<style>" + part("uplot.css") + "</style>"},
		{`<link rel="stylesheet" href="style.css">`, "<style>" + part("style.css") + "</style>"},
		{`<script src="uplot.js"></script>`, `<script type="application/json" id="view">` + string(view) + "</script>\n<script>" + part("uplot.js") + "</script>"},
		{`<script src="parts.js"></script>`, "<script>" + part("parts.js") + "</script>"},
		{`<script src="` + script + `"></script>`, "<script>" + part(script) + "</script>"},
	} {
		if !strings.Contains(html, r.old) {
			return errors.New("web: the page has no " + r.old)
		}
		html = strings.Replace(html, r.old, r.with, 1)
	}
	_, err := io.WriteString(w, html)
	return err
}

// Packed makes a download of what write writes, packed by gzip.
func Packed(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		if err := write(z); err != nil {
			return err
		}
		return z.Close()
	}
}
