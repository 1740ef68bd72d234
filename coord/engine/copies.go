package engine

import (
	"slices"

	"star"
	"star/ps/replica"
	"star/transport/wire"
)

// Copies delays what is ready until the copies of shards hold it. A Fire goes to followers at once, and
// to primaries when all followers hold it. The messages that follow from it go out when every copy
// holds it (package replica). So a server's failure cannot lose parameters that a worker has seen.
//
//	Offer ──► followers ──Held──► Ripe ──► primaries ──Held──► Due ──► workers
//
// The order is kept: a Ready without a Fire waits for the one before it.
type Copies struct {
	Table *replica.Table

	queue []behind

	// The last Fire that was sent to primaries.
	told int64
}

// behind is a Ready that waits.
type behind struct {
	Ready
	told bool // it was sent to primaries
}

// NewCopies begins with a history that primaries know up to Fire told.
func NewCopies(t *replica.Table, told int64) *Copies { return &Copies{Table: t, told: told} }

// Offer appends o to the queue. The caller sends its Fire, if it has one, to followers now.
func (k *Copies) Offer(o *Ready) {
	if o.Fire.Seq > 0 {
		k.Table.Offer(o.Fire.Seq)
	}
	k.queue = append(k.queue, behind{Ready: *o})
}

// Keep has a Release wait for the entries before it. It reports false if the queue is empty.
func (k *Copies) Keep(r wire.Release) bool {
	if len(k.queue) == 0 {
		return false
	}
	k.queue = append(k.queue, behind{Ready: Ready{Releases: []wire.Release{r}}})
	return true
}

// Strike removes messages to w, which has left, from all entries; the entries stay.
func (k *Copies) Strike(w star.Worker) {
	for i := range k.queue {
		k.queue[i].Strike(w)
	}
}

// Ripe is the next entry to send to primaries, because all followers hold it; nil if there is no such
// entry. It is valid until the next call of Offer or Due.
func (k *Copies) Ripe() *Ready {
	ready := k.Table.Ready()
	for i := range k.queue {
		w := &k.queue[i]
		switch {
		case w.told:
			continue
		case w.Fire.Seq > ready:
			return nil
		}
		// An entry without a Fire has nothing for primaries.
		if w.told = true; w.Fire.Seq > 0 {
			k.told = w.Fire.Seq
			return &w.Ready
		}
	}
	return nil
}

// Due removes the first entry from the queue when every copy holds it: its other messages are to go out.
// It reports false when there is no such entry.
func (k *Copies) Due() (Ready, bool) {
	// Only the first entry can be due: later messages must not overtake its own.
	if len(k.queue) == 0 || !k.queue[0].told || k.queue[0].Fire.Seq > k.Table.Acked() {
		return Ready{}, false
	}
	o := k.queue[0].Ready
	k.queue = slices.Delete(k.queue, 0, 1)
	return o, true
}

// Told is the last Fire that was sent to primaries. Their acknowledgements of later ones count once these are sent.
func (k *Copies) Told() int64 { return k.told }

// Waits is the Fire that the first entry waits for. It reports false if the queue is empty.
func (k *Copies) Waits() (seq int64, ok bool) {
	if len(k.queue) == 0 {
		return 0, false
	}
	return k.queue[0].Fire.Seq, true
}
