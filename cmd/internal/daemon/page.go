package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"star/cmd/internal/export"
	"star/runlog"
	"star/web"
)

// Downloads are the files that the page of a run log offers.
func Downloads(path string) web.Downloads {
	return web.Downloads{
		"run.jsonl": func(w io.Writer) error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(w, f)
			return err
		},
		"trace.json.gz": web.Packed(func(w io.Writer) error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			t := export.NewTrace(w)
			if _, err := runlog.Read(f, path, t.Line); err != nil {
				return err
			}
			return t.Close()
		}),
	}
}

// page serves the page of the run log that is written in dir: where another process has taken the job over, the newest. Until ctx is over.
func page(ctx context.Context, dir string) http.Handler {
	var shown atomic.Pointer[http.Handler]
	began := time.Now().Add(-time.Second) // file systems have coarser clocks
	go func() {
		name, over := "", func() {}
		defer func() { over() }()
		for tick := time.NewTicker(web.Step); ; {
			if found := newest(dir, began); found != name {
				if f, err := os.Open(found); err == nil {
					over()
					name = found
					live := web.NewLive()
					h := live.Handler(Downloads(found))
					shown.Store(&h)
					following, cancel := context.WithCancel(ctx)
					followed := make(chan struct{})
					over = func() { cancel(); <-followed; live.Close() }
					go func() {
						defer close(followed)
						defer f.Close()
						live.Follow(following, f, found) // what is wrong with it is on the page
					}()
				}
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := shown.Load()
		if h == nil {
			http.Error(w, fmt.Sprintf("there is no run log in %s yet: the star-ps that coordinates the job writes it, and shows this page", dir), http.StatusNotFound)
			return
		}
		(*h).ServeHTTP(w, r)
	})
}

// newest is the run log that was begun last, of those that have been written since; "" if there is none.
func newest(dir string, since time.Time) (name string) {
	names, _ := filepath.Glob(filepath.Join(dir, "run*.jsonl"))
	var last time.Time
	for _, n := range names {
		if info, err := os.Stat(n); err == nil && info.Mode().IsRegular() && info.ModTime().After(since) && (name == "" || info.ModTime().After(last)) {
			name, last = n, info.ModTime()
		}
	}
	return name
}
