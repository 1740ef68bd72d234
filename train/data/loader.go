package data

import (
	"fmt"
	"time"

	"star/train"
)

// Loader makes batches of a sample stream, one of them ahead of time: while a
// worker computes on one batch, the next one, if it was hinted, is filled in
// the background. A Loader is used by one goroutine at a time; Close must be
// called, and may be called twice.
type Loader struct {
	ds     train.Data
	stream Stream

	now, next *slot
	pending   bool // next is being filled, or full; done will say which
	closed    bool
	waited    time.Duration

	work chan *slot
	done chan struct{}
	idle chan struct{} // closed when the goroutine has ended
}

// slot is a batch with the range of positions it was filled from.
type slot struct {
	start   int64
	count   int
	indices []int
	batch   train.Batch
	err     error
}

// NewLoader starts a loader of ds. stream.N must be ds.Len(); zero is taken as
// that.
func NewLoader(ds train.Data, stream Stream) *Loader {
	if stream.N == 0 {
		stream.N = ds.Len()
	}
	if stream.N != ds.Len() {
		panic(fmt.Sprintf("data: stream of %d samples over %s, which has %d", stream.N, NameOf(ds), ds.Len()))
	}
	l := &Loader{
		ds: ds, stream: stream, now: new(slot), next: new(slot),
		work: make(chan *slot), done: make(chan struct{}, 1), idle: make(chan struct{}),
	}
	go func() {
		defer close(l.idle)
		for s := range l.work {
			l.fill(s)
			l.done <- struct{}{}
		}
	}()
	return l
}

// Next is the batch of positions [start, start+count) of the stream. It is
// borrowed until the next call of Next. Where the range is the one last hinted,
// Next waits only for what is left of that work.
func (l *Loader) Next(start int64, count int) (train.Batch, error) {
	if l.closed {
		return train.Batch{}, fmt.Errorf("data: batch asked of a closed loader of %s", NameOf(l.ds))
	}
	if start < 0 || count < 1 {
		return train.Batch{}, fmt.Errorf("data: %s: batch of %d samples at position %d; both must be positive", NameOf(l.ds), count, start)
	}
	began := time.Now()
	l.settle()
	if l.next.start != start || l.next.count != count {
		l.next.start, l.next.count = start, count
		l.fill(l.next)
	}
	l.now, l.next = l.next, l.now
	l.next.count = 0 // its batch was handed out, and may have been changed: never a hit
	l.waited = time.Since(began)
	return l.now.batch, l.now.err
}

// Hint says which range will be asked for next, and has it filled in the
// background. A hint that turns out wrong costs time, nothing else. While an
// earlier hint is still being filled, Hint waits for it.
func (l *Loader) Hint(start int64, count int) {
	if l.closed || start < 0 || count < 1 || (l.next.start == start && l.next.count == count) {
		return
	}
	l.settle()
	l.next.start, l.next.count = start, count
	l.pending = true
	l.work <- l.next
}

// Waited is how long the last Next took: star.Record.Load.
func (l *Loader) Waited() time.Duration { return l.waited }

// Close ends the loader and its goroutine. The last batch stays valid.
func (l *Loader) Close() error {
	if l.closed {
		return nil
	}
	l.settle()
	l.closed = true
	close(l.work)
	<-l.idle
	return nil
}

// settle waits until the goroutine holds no slot.
func (l *Loader) settle() {
	if l.pending {
		<-l.done
		l.pending = false
	}
}

func (l *Loader) fill(s *slot) {
	s.indices = l.stream.Indices(s.indices, s.start, s.count)
	s.err = l.ds.Fill(&s.batch, s.indices)
	s.batch.Start = s.start
}
