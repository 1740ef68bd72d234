package web

import (
	"maps"
	"math"
	"slices"
	"time"

	"star"
	"star/runlog"
)

// Totals are what monitoring asks of a job, from its run log: counts since its beginning, and what holds now.
type Totals struct {
	Program, Job, Model, Arch, Mode string

	Updates    int64
	LastUpdate time.Time                // by the clock of the coordinator's host; zero: there was none
	Intervals  [len(Bounds) + 1]uint64  // number of updates within Bounds after the previous one; the last one: later
	Between    time.Duration            // all of these intervals
	Dropped    map[string]int64         // gradients that were thrown away: late, or poison (they do not belong)
	Episodes   map[Episode]int64        // times that a worker became slow, by the first reported cause
	Slowdowns  map[string]int64         // times that all workers together became slower than before, by the first cause
	JobSlow    float64                  // by how many times they are now; 1: they are not
	Slow       map[star.Worker]string   // slow workers, and why
	Hangs      int64                    // times that ranks waited for one that did nothing to end the wait
	Missing    map[star.Worker]string   // ranks that others wait for in a hang that lasts, and what they do
	Lost       map[star.Worker]float64  // seconds that others waited while this worker was the slowest
	Slowdown   map[star.Worker]float64  // a worker's own time over the median of all; of a slow worker as in the verdict
	Gain       map[string]runlog.Number // of the last change of mode that was on trial: predicted, seen
	LastSave   time.Time                // of a checkpoint that was written; zero: there was none
	Failures   int64                    // checkpoints that were not written
	Copies     map[int]Copies           // of each shard with copies that something has happened to
	Term       int64                    // of the coordinator
}

// Copies are how many copies of a shard there are, and are to be.
type Copies struct{ Are, Of int }

// Episode is a slow time of a worker, and its cause.
type Episode struct {
	Worker star.Worker
	Cause  string
}

// Bounds of the histogram of intervals between updates: 1 ms to 65.5 s, by twos.
var Bounds = func() (b [17]time.Duration) {
	for i := range b {
		b[i] = time.Millisecond << i
	}
	return b
}()

// counted is what a State counts for Totals.
type counted struct {
	updates   int64
	last      time.Duration // update
	intervals [len(Bounds) + 1]uint64
	between   time.Duration
	dropped   map[string]int64
	poisoned  map[star.Worker]bool // since its last gradient
	episodes  map[Episode]int64
	slowdowns map[string]int64
	lost      map[star.Worker]float64
	hangs     int64
	missing   map[star.Worker]string
	gain      map[string]runlog.Number
	saved     time.Duration
	failures  int64
}

func (c *counted) fire(at time.Duration, f runlog.Fire) {
	for _, w := range f.Dropped {
		reason := "late"
		if c.poisoned[w] {
			reason = "poison"
		}
		c.dropped[reason]++
		delete(c.poisoned, w)
	}
	if len(f.Workers) == 0 {
		return
	}
	for _, w := range f.Workers {
		delete(c.poisoned, w)
	}
	if c.updates++; c.updates > 1 {
		d := at - c.last
		i, _ := slices.BinarySearch(Bounds[:], d)
		c.intervals[i]++
		c.between += d
	}
	c.last = at
}

// Totals are those of now.
func (l *Live) Totals() Totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Totals()
}

// Totals are those of now.
func (s *State) Totals() Totals {
	c := &s.counted
	t := Totals{
		Program: s.start.Program, Job: s.start.Job, Arch: "ps", Updates: c.updates, Intervals: c.intervals, Between: c.between, Failures: c.failures, Term: s.term,
		Dropped: maps.Clone(c.dropped), Episodes: maps.Clone(c.episodes), Slowdowns: maps.Clone(c.slowdowns), JobSlow: 1, Lost: maps.Clone(c.lost), Hangs: c.hangs, Missing: maps.Clone(c.missing), Gain: maps.Clone(c.gain),
		Slow: map[star.Worker]string{}, Slowdown: map[star.Worker]float64{}, Copies: map[int]Copies{},
	}
	if s.ring {
		t.Arch = "allreduce"
	}
	if x := s.slowJob(); x != nil {
		t.JobSlow = x.factor.Value()
	}
	if s.train != nil {
		t.Model = s.train.Model
	}
	if n := len(s.modes); n > 0 {
		t.Mode = s.modes[n-1].plan
	}
	if c.updates > 0 {
		t.LastUpdate = s.start.Time.Add(c.last)
	}
	if c.saved > 0 {
		t.LastSave = s.start.Time.Add(c.saved)
	}
	for shard, r := range s.copies {
		t.Copies[shard] = Copies{1 + len(r.Followers), r.Of}
	}
	own := func(w *worker) float64 { return w.load.value + w.compute.value + w.net.value }
	var all []float64
	for i := range s.workers {
		if w := &s.workers[i]; w.compute.known && !w.left {
			all = append(all, own(w))
		}
	}
	slices.Sort(all)
	for i := range s.workers {
		if w := &s.workers[i]; w.compute.known && !w.left {
			if middle := all[len(all)/2]; middle > 0 {
				t.Slowdown[star.Worker(i)] = own(w) / middle
			}
		}
	}
	for w, i := range s.open {
		e := &s.episodes[i]
		t.Slow[w] = e.cause
		if !math.IsNaN(e.slowdown) {
			t.Slowdown[w] = e.slowdown
		}
	}
	return t
}
