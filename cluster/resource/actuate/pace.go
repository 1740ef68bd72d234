package actuate

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Pacer is the portable actuator: a pause in each iteration, requested by the loop to be delayed. It is safe for
// concurrent use. A nil Pacer never pauses.
//
// (STAR's artefact sleeps in the same two places: a worker before it computes, a server
// inside an update.)
type Pacer struct {
	mu      sync.Mutex
	delay   time.Duration
	changed chan struct{} // closed when delay changes; nil: no goroutine waits for that
}

// Apply sets the length of all pauses from now on, including a running one. A limit of anything but the delay is an
// error. until is for leases: a pause has none.
func (p *Pacer) Apply(l Limit, until time.Time) error {
	if err := l.Check(); err != nil {
		return err
	}
	if (l != Limit{Delay: l.Delay}) {
		return fmt.Errorf("a pause cannot bring about %v", l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = l.Delay
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return nil
}

// Undo ends every pause.
func (p *Pacer) Undo() error { return p.Apply(Limit{}, time.Time{}) }

// Delay is the pause in force.
func (p *Pacer) Delay() time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

func (p *Pacer) watch() (time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.delay, p.changed
}

// Pause waits for the current delay, and returns how long it waited. When ctx is done it returns at once, with its
// cause.
func (p *Pacer) Pause(ctx context.Context) (paused time.Duration, err error) {
	if p.Delay() == 0 {
		return 0, context.Cause(ctx)
	}
	begun := time.Now()
	for {
		delay, changed := p.watch()
		left := delay - time.Since(begun)
		if left <= 0 {
			return time.Since(begun), context.Cause(ctx)
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return time.Since(begun), context.Cause(ctx)
		}
		timer.Stop()
	}
}
