package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"star/runlog"
)

//go:embed static
var static embed.FS

// page is the version of what the page is sent. A page of another one says that it is old (app.js).
const page = 1

// Live is the state of a log that may grow, for any number of readers.
type Live struct {
	mu      sync.Mutex
	state   *State
	changed chan struct{} // closed when the state has
	dirty   bool
	sent    []byte // the newest view; nil: not made yet
	streams int
	gone    chan struct{} // closed when another log is shown
}

// mostStreams bounds how many pages are served at once.
const mostStreams = 32

// Step is the time between two looks at a log, and between two views that a page is sent.
const Step = 500 * time.Millisecond

// NewLive is the state before the first line.
func NewLive() *Live {
	return &Live{state: NewState(), changed: make(chan struct{}), gone: make(chan struct{})}
}

// Close ends what is sent to pages, which ask again. It is called once.
func (l *Live) Close() { close(l.gone) }

// Line takes in the next line.
func (l *Live) Line(x runlog.Line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dirty = true
	return l.state.Line(x)
}

// Wake tells readers that the state has changed, if it has.
func (l *Live) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dirty {
		l.dirty, l.sent = false, nil
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// Follow takes in a log that is not packed and grows, until its last line is there or ctx is over. What is wrong with the log is shown, and returned.
func (l *Live) Follow(ctx context.Context, r io.Reader, name string) error {
	t := runlog.NewTail(r, name)
	tick := time.NewTicker(Step)
	defer tick.Stop()
	for {
		if err := t.Next(l.Line); err != nil {
			l.mu.Lock()
			l.state.Wrong(err)
			l.dirty = true
			l.mu.Unlock()
			l.Wake()
			return err
		}
		l.Wake()
		if l.ended() {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done(): // what was written until then is taken in, too
		case <-tick.C:
		}
	}
}

func (l *Live) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Ended()
}

// view is the newest view as JSON, what says that there is a newer one, and whether it is the last one.
func (l *Live) view() (text []byte, changed <-chan struct{}, end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent == nil {
		l.sent = encode(l.state.View())
	}
	return l.sent, l.changed, l.state.Ended()
}

// encode writes a view on one line. encoding/json escapes what could end a script.
func encode(v View) []byte {
	text, err := json.Marshal(struct {
		Page int `json:"page"`
		View
	}{page, v})
	if err != nil { // a view always has a form
		text, _ = json.Marshal(map[string]any{"page": 0, "headline": err.Error()})
	}
	return text
}

// Downloads are files that are made when they are asked for, by name.
type Downloads map[string]func(w io.Writer) error

// Handler serves the page at the paths below it: the page and its parts, events (the views), view.json, and files.
func (l *Live) Handler(files Downloads) http.Handler {
	mux := http.NewServeMux()
	parts, err := fs.Sub(static, "static")
	if err != nil {
		panic(err)
	}
	mux.Handle("GET /", http.FileServerFS(parts))
	mux.HandleFunc("GET /events", l.events)
	mux.HandleFunc("GET /view.json", func(w http.ResponseWriter, _ *http.Request) {
		text, _, _ := l.view()
		w.Header().Set("Content-Type", "application/json")
		w.Write(text)
	})
	for name, write := range files {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
			write(&patient{w, http.NewResponseController(w)})
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		mux.ServeHTTP(w, r)
	})
}

// answerTime is how long a reader may take for one write.
const answerTime = 10 * time.Second

// patient writes for as long as the reader takes something.
type patient struct {
	w  io.Writer
	to *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	p.to.SetWriteDeadline(time.Now().Add(answerTime))
	return p.w.Write(b)
}

// heartbeat is how often something is sent where nothing changes, so that both ends notice when the other one is gone.
const heartbeat = 10 * time.Second

// events sends views as server-sent events (WHATWG HTML, section 9.2).
func (l *Live) events(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	full := l.streams >= mostStreams
	if !full {
		l.streams++
	}
	l.mu.Unlock()
	if full {
		http.Error(w, fmt.Sprintf("%d pages are open already; view.json has the same", mostStreams), http.StatusServiceUnavailable)
		return
	}
	defer func() {
		l.mu.Lock()
		l.streams--
		l.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	to := http.NewResponseController(w)
	to.SetReadDeadline(time.Time{})
	out := &patient{w, to}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		text, changed, end := l.view()
		if _, err := fmt.Fprintf(out, "data: %s\n\n", text); err != nil {
			return
		}
		if end {
			fmt.Fprint(out, "event: end\ndata: {}\n\n")
		}
		if to.Flush() != nil || end {
			return
		}
		pause.Reset(Step)
		select {
		case <-r.Context().Done():
			return
		case <-l.gone:
		case <-pause.C:
		}
		for waiting := true; waiting; {
			pause.Reset(heartbeat)
			select {
			case <-r.Context().Done():
				return
			case <-changed:
				waiting = false
			case <-l.gone:
				if newer, _, _ := l.view(); !bytes.Equal(newer, text) { // what has come last
					fmt.Fprintf(out, "data: %s\n\n", newer)
				}
				return
			case <-pause.C:
				if _, err := fmt.Fprint(out, ": still here\n\n"); err != nil || to.Flush() != nil {
					return
				}
			}
		}
	}
}

// Report writes the page of a state as one file that needs no server and no network.
func Report(w io.Writer, s *State) error {
	part := func(name string) string {
		b, err := static.ReadFile("static/" + name)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	html := part("index.html")
	for _, r := range [...]struct{ old, with string }{
		{`<link rel="stylesheet" href="uplot.css">`, "<style>" + part("uplot.css") + "</style>"},
		{`<link rel="stylesheet" href="style.css">`, "<style>" + part("style.css") + "</style>"},
		{`<script src="uplot.js"></script>`, `<script type="application/json" id="view">` + string(encode(s.View())) + "</script>\n<script>" + part("uplot.js") + "</script>"},
		{`<script src="app.js"></script>`, "<script>" + part("app.js") + "</script>"},
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
