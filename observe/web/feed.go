package web

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"
)

// feed sends views to any number of readers, newest first.
type feed struct {
	mu      sync.Mutex                     // also of what make reads
	make    func() (text []byte, end bool) // the newest view as JSON, and whether it is the last one
	changed chan struct{}                  // closed when the view has
	dirty   bool
	sent    []byte // the newest view; nil: not made yet
	end     bool
	streams int
	gone    chan struct{} // closed when something else is shown
}

func newFeed(view func() ([]byte, bool)) feed {
	return feed{make: view, changed: make(chan struct{}), gone: make(chan struct{})}
}

// mostStreams bounds how many pages are served at once.
const mostStreams = 32

// Close ends the streams to pages, which reconnect. It is called once.
func (f *feed) Close() { close(f.gone) }

// Wake tells readers that the view has changed, if it has.
func (f *feed) Wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirty {
		f.dirty, f.sent = false, nil
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// view is the newest view as JSON, a channel that is closed when there is a newer one, and whether it is the last one.
func (f *feed) view() (text []byte, changed <-chan struct{}, end bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent == nil {
		f.sent, f.end = f.make()
	}
	return f.sent, f.changed, f.end
}

// handler serves a page of static at the paths below it: the page and its parts, events (the views), view.json,
// and files.
func (f *feed) handler(page string, files Downloads) http.Handler {
	mux := http.NewServeMux()
	parts, err := fs.Sub(static, "static")
	if err != nil {
		panic(err)
	}
	mux.Handle("GET /", http.FileServerFS(parts))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		b, err := static.ReadFile("static/" + page)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(b)
	})
	mux.HandleFunc("GET /events", f.events)
	mux.HandleFunc("GET /view.json", func(w http.ResponseWriter, _ *http.Request) {
		text, _, _ := f.view()
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
func (f *feed) events(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	full := f.streams >= mostStreams
	if !full {
		f.streams++
	}
	f.mu.Unlock()
	if full {
		http.Error(w, fmt.Sprintf("%d pages are open already; view.json has the same", mostStreams), http.StatusServiceUnavailable)
		return
	}
	defer func() {
		f.mu.Lock()
		f.streams--
		f.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	to := http.NewResponseController(w)
	to.SetReadDeadline(time.Time{})
	out := &patient{w, to}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		text, changed, end := f.view()
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
		case <-f.gone:
		case <-pause.C:
		}
		for waiting := true; waiting; {
			pause.Reset(heartbeat)
			select {
			case <-r.Context().Done():
				return
			case <-changed:
				waiting = false
			case <-f.gone:
				if newer, _, _ := f.view(); !bytes.Equal(newer, text) { // the last view
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
