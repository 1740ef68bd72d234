package engine

import (
	"slices"

	"star"
	"star/ps/replica"
	"star/transport/wire"
)

// Copies has what is ready wait for the copies of shards. A Fire goes to followers at once, to
// primaries when all followers hold it, and what follows from it goes out when every copy holds it;
// package replica says when that is. So what a worker is shown cannot be lost with a server.
//
//	Offer ──► followers ──Held──► Ripe ──► primaries ──Held──► Due ──► workers
//
// What is ready stays in its order: what belongs to no Fire waits for the one before it.
type Copies struct {
	Table *replica.Table

	queue []behind
	told  int64 // the last Fire that primaries know of
}

// behind is something that waits.
type behind struct {
	Ready
	told bool // primaries know of it
}

// NewCopies begins with a history that primaries know up to told.
func NewCopies(t *replica.Table, told int64) *Copies { return &Copies{Table: t, told: told} }

// Offer puts o behind what waits. Followers are to be told of its Fire, if it has one, now.
func (k *Copies) Offer(o *Ready) {
	if o.Fire.Seq > 0 {
		k.Table.Offer(o.Fire.Seq)
	}
	k.queue = append(k.queue, behind{Ready: *o})
}

// Keep has a Release wait for what is before it. It reports false if nothing is.
func (k *Copies) Keep(r wire.Release) bool {
	if len(k.queue) == 0 {
		return false
	}
	k.queue = append(k.queue, behind{Ready: Ready{Releases: []wire.Release{r}}})
	return true
}

// Strike takes out what w is told, which is gone: what waits goes on without it.
func (k *Copies) Strike(w star.Worker) {
	for i := range k.queue {
		k.queue[i].Strike(w)
	}
}

// Ripe is the next that primaries are to be told of, because all followers hold it; nil: there is
// none. It is valid until the next call of Offer or Due.
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
		if w.told = true; w.Fire.Seq > 0 {
			k.told = w.Fire.Seq
			return &w.Ready
		}
	}
	return nil
}

// Due takes the next of which the rest is to go out, because every copy holds it. It reports false
// when there is none.
func (k *Copies) Due() (Ready, bool) {
	if len(k.queue) == 0 || !k.queue[0].told || k.queue[0].Fire.Seq > k.Table.Acked() {
		return Ready{}, false
	}
	o := k.queue[0].Ready
	k.queue = slices.Delete(k.queue, 0, 1)
	return o, true
}

// Told is the last Fire that primaries know of: what they say of a later one counts when they are told of it.
func (k *Copies) Told() int64 { return k.told }

// Waits is the Fire that what is next waits for. It reports false if nothing waits.
func (k *Copies) Waits() (seq int64, ok bool) {
	if len(k.queue) == 0 {
		return 0, false
	}
	return k.queue[0].Fire.Seq, true
}
