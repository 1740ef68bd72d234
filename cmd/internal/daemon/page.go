package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"star/coord"
	"star/observe/export"
	"star/observe/web"
	"star/runlog"
	"star/runlog/parts"
)

// Downloads are the files that the page of a run log offers.
func Downloads(path string) web.Downloads {
	return web.Downloads{
		"run.jsonl": func(w io.Writer) error {
			f, err := parts.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(w, f)
			return err
		},
		"trace.json.gz": web.Packed(func(w io.Writer) error {
			f, err := parts.Open(path)
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

// follower follows the run log that is written in a folder: the newest one, if another process has taken the job over.
// It starts at the first request, so that a job without viewers is not read.
type follower struct {
	dir   string
	began time.Time
	ctx   context.Context
	once  sync.Once
	shown atomic.Pointer[shown]
	fed   atomic.Pointer[fed]
}

// fed is the log that this process writes, and the source of its lines.
type fed struct {
	path string
	tap  *web.Tap
}

// coordinates tells the page that c is about to begin a log; nil: this process no longer coordinates.
func (f *follower) coordinates(c *coord.Coordinator) {
	if f == nil || c == nil {
		return
	}
	tap := web.NewTap()
	f.fed.Store(&fed{c.Beside(tap.Line), tap})
}

// shown is a log that is followed.
type shown struct {
	live    *web.Live
	handler http.Handler
}

// follow makes a follower, until ctx is over.
func follow(ctx context.Context, dir string) *follower {
	return &follower{dir: dir, began: time.Now().Add(-time.Second), ctx: ctx} // file systems have coarser clocks
}

// now returns the log as far as it has been read; nil: none yet.
func (f *follower) now() *shown {
	f.once.Do(func() {
		over := f.step("", func() {})
		go func() {
			tick := time.NewTicker(web.Step)
			defer tick.Stop()
			for {
				select {
				case <-f.ctx.Done():
					over.end()
					return
				case <-tick.C:
					over = f.step(over.name, over.end)
				}
			}
		}()
	})
	return f.shown.Load()
}

// following is a log that is followed, and what ends that.
type following struct {
	name string
	end  func()
}

// step looks whether there is a newer log than the one of that name.
func (f *follower) step(name string, end func()) following {
	found := newest(f.dir, f.began)
	if found == name {
		return following{name, end}
	}
	file, err := parts.Follow(found)
	if err != nil {
		return following{name, end}
	}
	end()
	live := web.NewLive()
	var tap *web.Tap
	if own := f.fed.Load(); own != nil && own.path == found && !file.Thinned() {
		tap = own.tap
	}
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer file.Close()
		live.Follow(ctx, file, found, tap) // the page shows its errors
	}()
	live.AwaitRead(ctx)
	f.shown.Store(&shown{live, live.Handler(Downloads(found))})
	return following{found, func() { cancel(); <-done; live.Close() }}
}

// ServeHTTP serves the page.
func (f *follower) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := f.now()
	if s == nil {
		http.Error(w, fmt.Sprintf("there is no run log in %s yet: the star-ps that coordinates the job writes it, and shows this page", f.dir), http.StatusNotFound)
		return
	}
	s.handler.ServeHTTP(w, r)
}

// newest returns the run log that was started last, of those written since; "": none.
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
