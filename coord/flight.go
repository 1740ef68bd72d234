package coord

import (
	"time"

	"star"
)

// flight measures how long a worker's gradient is on its way after the worker has
// handed it to its connections: buffers of sockets and networks swallow megabytes in
// no time, and a slow link shows in nothing that the worker can measure. It is the
// time between a release and the moment in which the gradient has arrived, by the
// coordinator's clock, less what the worker says that it took itself: no two clocks
// are compared.
type flight struct {
	released time.Time // zero: what comes next says nothing
	arrived  time.Time // the last of the Arrive and the Storeds since then
	busy     time.Duration
	last     time.Duration // of the gradient before
	pushing  time.Duration // part of busy
	delay    time.Duration // told with the release

	from, to time.Time // of the push before: when it began and when it had arrived; zero: not known
}

// release notes that the worker may go on. With plain, it has nothing to do but the next gradient.
// What it has measured of the gradient before stays, for the record that tells of the next one.
func (f *flight) release(now time.Time, plain bool) {
	f.last, f.from, f.to = 0, time.Time{}, time.Time{}
	if f.busy > 0 && !f.released.IsZero() {
		f.last = max(f.arrived.Sub(f.released)-f.busy, 0)
		f.from, f.to = f.released.Add(f.busy-f.pushing), f.arrived
	}
	*f = flight{last: f.last, from: f.from, to: f.to}
	if plain {
		f.released = now
	}
}

// stored notes that a shard holds its part.
func (f *flight) stored(now time.Time) { f.arrived = now }

// arrive notes a record, and returns the Transit that belongs into it.
func (f *flight) arrive(now time.Time, r *star.Record) time.Duration {
	f.arrived, f.busy, f.pushing = now, r.Pull+r.Load+r.Compute+f.delay+r.Push, r.Push
	return f.last
}
