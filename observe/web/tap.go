package web

import (
	"slices"
	"sync"
	"sync/atomic"

	"star/runlog"
)

// Tap hands the lines of a run log from its writer to a [Live] in the same process, which then need
// not read them. It never blocks the writer: when too many lines are queued it drops them, and they
// are read from the file.
type Tap struct {
	wanted atomic.Bool
	many   chan struct{} // there is much to take

	mu      sync.Mutex
	next    int // the number of the first of lines, or of the next line; 0: unknown
	lines   []runlog.Line
	records []runlog.Record // those of lines
}

// Limits of queued lines: from the first one on they are taken at once, beyond the second one they
// are dropped.
const (
	manyLines = 1 << 12
	mostLines = 1 << 16
)

// NewTap returns one without a reader.
func NewTap() *Tap { return &Tap{many: make(chan struct{}, 1)} }

// Line processes a line from [runlog.Writer.Beside]. It may be called while other goroutines take lines.
func (p *Tap) Line(l runlog.Line) {
	if !p.wanted.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) == mostLines {
		p.lines, p.records = p.lines[:0], p.records[:0]
	}
	if len(p.lines) == 0 {
		p.next = l.Number
	}
	if r, ok := l.Entry.(*runlog.Record); ok {
		p.records = slices.Grow(p.records, 1)[:len(p.records)+1]
		kept := &p.records[len(p.records)-1]
		*kept = *r
		kept.More, l.Entry = nil, kept
	}
	if p.lines = append(p.lines, l); len(p.lines) == manyLines {
		select {
		case p.many <- struct{}{}:
		default:
		}
	}
}

// batch is lines that were taken, and the room that they need.
type batch struct {
	lines   []runlog.Line
	records []runlog.Record
}

// take swaps b for the lines after the first known ones of the log. It reports false if the next
// line was dropped, which must then be read from the file.
func (p *Tap) take(known int, b *batch) bool {
	p.wanted.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == 0 || p.next > known+1 {
		return false
	}
	p.next += len(p.lines)
	b.lines, p.lines = p.lines, b.lines[:0]
	b.records, p.records = p.records, b.records[:0]
	return true
}

// stop ends that lines are kept.
func (p *Tap) stop() {
	p.wanted.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.lines, p.records = 0, nil, nil
}
