package measure

import (
	"time"

	"star"
)

// Flight measures how long a worker's gradient is on its way after the worker has
// handed it to its connections: buffers of sockets and networks swallow megabytes in
// no time, and a slow link shows in nothing that the worker can measure. It is the
// time between a release and the moment in which the gradient has arrived, by the
// coordinator's clock, less what the worker says that it took itself: no two clocks
// are compared.
type Flight struct {
	released time.Time // zero: the next record says nothing
	arrived  time.Time // the last of the Arrive and the Storeds since then
	busy     time.Duration
	last     time.Duration // of the gradient before
	pushing  time.Duration // part of busy
	delay    time.Duration // of the push, told with the release

	// From and To are when the push before began and when it had arrived; zero: unknown.
	From, To time.Time
}

// Release notes that the worker may go on, and that its next push waits for delay. With plain, it has
// nothing to do but the next gradient. What was measured of the gradient before stays, for the record
// of the next one.
func (f *Flight) Release(now time.Time, plain bool, delay time.Duration) {
	f.last, f.From, f.To = 0, time.Time{}, time.Time{}
	if f.busy > 0 && !f.released.IsZero() {
		f.last = max(f.arrived.Sub(f.released)-f.busy, 0)
		f.From, f.To = f.released.Add(f.busy-f.pushing), f.arrived
	}
	*f = Flight{last: f.last, From: f.From, To: f.To, delay: delay}
	if plain {
		f.released = now
	}
}

// Stored notes that a shard holds its part.
func (f *Flight) Stored(now time.Time) { f.arrived = now }

// Arrive notes a record, and returns its Transit.
func (f *Flight) Arrive(now time.Time, r *star.Record) time.Duration {
	f.arrived, f.busy, f.pushing = now, r.Pull+r.Load+r.Compute+f.delay+r.Push, r.Push
	return f.last
}
