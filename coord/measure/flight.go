package measure

import (
	"time"

	"star"
)

// Flight measures how long a worker's gradient is under way after the worker has passed it to its connections. Buffers
// of sockets and networks accept megabytes at once, so the worker cannot measure a slow link itself. The time is that
// between a release and the arrival of the gradient, by the coordinator's clock, less the durations that the worker
// reports: no two clocks are compared.
//
// A worker that exchanges fragments computes before it is released. It reports before it pushes, so the time is that
// from its record to the arrival.
type Flight struct {
	released time.Time // zero: the next record is not measured
	streams  bool      // the next push is of a fragment
	told     time.Time // the record
	arrived  time.Time // the last of the Arrive and the Storeds since then
	busy     time.Duration
	last     time.Duration // of the gradient before
	pushing  time.Duration // part of busy
	delay    time.Duration // of the push, sent with the release

	// From and To are when the push before began and when it had arrived; zero: unknown.
	From, To time.Time
}

// Release records that the worker may continue, and that its next push waits for delay. With plain, it computes only
// the next gradient. With streams, that push is of a fragment. Measurements of the gradient before stay, for the record
// of the next one.
func (f *Flight) Release(now time.Time, plain, streams bool, delay time.Duration) {
	f.last, f.From, f.To = 0, time.Time{}, time.Time{}
	switch {
	case f.streams && f.busy > 0:
		f.last = f.arrived.Sub(f.told)
		f.From, f.To = f.told, f.arrived
	case f.busy > 0 && !f.released.IsZero():
		f.last = max(f.arrived.Sub(f.released)-f.busy, 0)
		f.From, f.To = f.released.Add(f.busy-f.pushing), f.arrived
	}
	*f = Flight{last: f.last, From: f.From, To: f.To, delay: delay, streams: streams}
	if plain {
		f.released = now
	}
}

// Stored records that a shard holds its part.
func (f *Flight) Stored(now time.Time) { f.arrived = now }

// Arrive records a record, and returns its Transit.
func (f *Flight) Arrive(now time.Time, r *star.Record) time.Duration {
	f.arrived, f.told, f.busy, f.pushing = now, now, r.Pull+r.Load+r.Compute+f.delay+r.Push, r.Push
	return f.last
}
