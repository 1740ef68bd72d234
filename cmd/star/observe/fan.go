package observe

import (
	"errors"
	"sync"
	"sync/atomic"

	"star/observe/export"
	"star/runlog"
)

// fan hands lines to several sinks, each with its own goroutine, so that a slow sink does not block the reader.
type fan struct {
	outs   []chan []runlog.Line
	gather []runlog.Line
	failed atomic.Bool
	wait   sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

// Lines that are handed on in one go, and how often that may be ahead of a sink.
const (
	linesAtOnce = 512
	goesAhead   = 8
)

// add adds a sink, before the first line.
func (f *fan) add(k export.Sink) {
	lines := make(chan []runlog.Line, goesAhead)
	f.outs = append(f.outs, lines)
	f.wait.Go(func() {
		var err error
		for of := range lines {
			for i := range of {
				if err == nil {
					err = k.Line(of[i])
				}
			}
			if err != nil {
				f.failed.Store(true)
			}
		}
		if err == nil {
			err = k.Close()
		}
		f.mu.Lock()
		f.errs = append(f.errs, err)
		f.mu.Unlock()
	})
}

// errSink means that Line accepts no more lines; Close returns the cause.
var errSink = errors.New("a file cannot be written")

// Line implements [export.Sink].
func (f *fan) Line(l runlog.Line) error {
	if f.gather = append(f.gather, l); len(f.gather) == linesAtOnce {
		f.send()
	}
	if f.failed.Load() {
		return errSink
	}
	return nil
}

func (f *fan) send() {
	for _, out := range f.outs {
		out <- f.gather
	}
	f.gather = make([]runlog.Line, 0, linesAtOnce)
}

// Close implements [export.Sink]. It is to be called also after an error.
func (f *fan) Close() error {
	f.send()
	for _, out := range f.outs {
		close(out)
	}
	f.wait.Wait()
	return errors.Join(f.errs...)
}
