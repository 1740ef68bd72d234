package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"star/observe/export"
	"star/runlog"
	"star/runlog/parts"
)

// scalars writes what TensorBoard shows of a job while it runs (--tensorboard): an event file for each run log that
// this process writes.
type scalars struct {
	dir, out string // the folder of event files, "" if none are wanted; that of run logs
	log      *slog.Logger

	mu   sync.Mutex
	stop func()
}

// Live event files have scalars of updates and iterations this often, so that a fast job makes no file that is too
// large to look at.
const scalarsEvery = 500 * time.Millisecond

// begin follows the run log that is begun now. What has gone before is over.
func (s *scalars) begin() {
	if s.dir == "" {
		return
	}
	s.end()
	ctx, cancel := context.WithCancel(context.Background())
	done, began := make(chan struct{}), time.Now().Add(-time.Second) // file systems have coarser clocks
	go func() {
		defer close(done)
		if err := s.follow(ctx, began); err != nil {
			s.log.Warn("no more scalars for TensorBoard; star export --tensorboard makes them of the run log", "err", err)
		}
	}()
	s.mu.Lock()
	s.stop = func() { cancel(); <-done }
	s.mu.Unlock()
}

// end processes the rest of the file, and closes it.
func (s *scalars) end() {
	s.mu.Lock()
	stop := s.stop
	s.stop = nil
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (s *scalars) follow(ctx context.Context, began time.Time) (err error) {
	var tail *runlog.Tail
	var out *export.Events
	var in, file io.Closer
	defer func() {
		for _, c := range []io.Closer{out, file, in} {
			if c != nil && c != (*export.Events)(nil) {
				err = errors.Join(err, c.Close())
			}
		}
	}()
	tick := time.NewTicker(scalarsEvery)
	defer tick.Stop()
	for {
		if tail == nil {
			if name := newest(s.out, began); name != "" {
				f, err := parts.Follow(name)
				if err != nil {
					return err
				}
				in, tail = f, runlog.NewTail(f, name)
			}
		}
		if tail != nil {
			err := tail.Next(func(l runlog.Line) error {
				if e, ok := l.Entry.(runlog.Start); ok {
					f, err := s.create(e.Time)
					if err != nil {
						return err
					}
					file, out = f, export.NewEvents(f, scalarsEvery)
				}
				if out == nil {
					return nil
				}
				return out.Line(l)
			})
			if err == nil && out != nil {
				err = out.Flush()
			}
			if err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done(): // what was written until then is processed, too
		case <-tick.C:
		}
	}
}

// create makes an event file that is not there yet.
func (s *scalars) create(began time.Time) (*os.File, error) {
	if err := os.MkdirAll(s.dir, 0o777); err != nil {
		return nil, err
	}
	name := filepath.Join(s.dir, export.EventFile(began))
	for i := 1; ; i++ {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, os.ErrExist) || i == 100 {
			return f, err
		}
		name = filepath.Join(s.dir, fmt.Sprintf("%s.%d", export.EventFile(began), i))
	}
}
