package engine

import (
	"fmt"
	"star"
	"star/modes"
	"star/transport/wire"
	"testing"
)

// newShards is an engine of parameter servers, and newRing one of all-reduce, of a job with no more to it.
func newShards(plan modes.Plan, workers, shards, batch int, limit int64) *Shards {
	return NewShards(Config{Plan: plan, Workers: workers, Shards: shards, Batch: batch, Limit: limit})
}

func newRing(l *Shards, of wire.Ring) *Ring {
	r := NewRing(Config{Plan: l.plan, Workers: len(l.states), Batch: l.batch, Limit: l.limit, MaxParams: 1 << 30,
		Ring: &RingConfig{Wait: of.Wait, MaxStale: of.MaxStale}})
	r.scheduler, r.version = l.scheduler, l.barrier.Version()
	return r
}

// arrive is Arrive of a gradient about which nothing else is known.
func (l *Shards) arrive(w star.Worker, step int64, samples int) ([]Ready, error) {
	a := &l.states[w]
	r := star.Record{Worker: w, Step: step, Samples: samples, Norm2: a.norm2}
	r.Telemetry.Set(star.GradChange, a.change)
	_, os, err := l.Arrive(r, a.coded)
	return os, err
}

// absent takes a worker out that is not there when the job begins. Before Begin.
func (l *Shards) absent(w star.Worker) {
	a := &l.states[w]
	a.live, a.counted, a.step = false, false, -1
	l.barrier.Leave(w)
}

// resume goes on where a checkpoint left off. Before Begin.
func (l *Shards) resume(p Progress) {
	l.cursor, l.used, l.redo = p.Cursor, p.Samples, append([]Span(nil), p.Redo...)
	l.barrier = modes.NewBarrier(l.plan, len(l.states), p.Version)
}

// liars returns the processes that orders evict for a false report (s: a server, w: a worker), and the other orders.
func liars(os []Ready) (who []string, rest []Ready) {
	for _, o := range os {
		if e := o.Evict; e != nil {
			who = append(who, fmt.Sprint(map[bool]string{true: "s", false: "w"}[e.Server], e.Rank))
			continue
		}
		rest = append(rest, o)
	}
	return who, rest
}

// told is Arrive of a ring's record.
func (r *Ring) arrive(rec star.Record) error {
	_, _, err := r.Arrive(rec, false)
	return err
}

// form is Formed.
func (r *Ring) form(w star.Worker, generation, version int64) ([]Ready, error) {
	return r.Formed(wire.Formed{Worker: w, Generation: generation, Version: version})
}

// exactly checks that every sample was used once.
func exactly(t *testing.T, limit int64, lists ...[]Span) {
	t.Helper()
	seen := make([]int, limit)
	for _, spans := range lists {
		for _, s := range spans {
			for q := s.Start; q < s.Start+int64(s.Count); q++ {
				seen[q]++
			}
		}
	}
	for q, n := range seen {
		if n != 1 {
			t.Errorf("sample %d was used %d times", q, n)
			return
		}
	}
}

// absent takes a worker out that is not there when the job begins. Before Begin.
func (r *Ring) absent(w star.Worker) { r.states[w].live, r.states[w].step = false, -1 }

// counted fails unless the engine's counts equal those of a new count.
func counted(t interface{ Fatalf(string, ...any) }, l *Shards) {
	if have, want := l.round(), l.scheduler.round(); have != want {
		t.Fatalf("a round has %d samples, the engine says %d", want, have)
	}
	for w := range l.states {
		if a := &l.states[w]; a.parked && a.counted && !a.stopped {
			t.Fatalf("everybody waits for worker %d, which has nothing to do", w)
		}
	}
}
