// Package advisor is the coordinator's side of a pilot. The pilot gets lines of the run log in their order, through a
// queue that never blocks the coordinator; its decisions come back with the number of lines that it had read
// ([Runner]). [Verdicts] keeps its verdicts on slow workers, [Permits] which of its plans are permitted, and
// [Thresholds] the thresholds of the pilot and the job; these three are pure.
package advisor

import (
	"sync"
	"time"

	"star/coord/advice"
	"star/runlog"
)

// studyShare is the part of one processor's time that a Study may use.
const studyShare = 0.02

// studyRest is the shortest pause between two steps of a Study, studyLongest the longest.
const (
	studyRest    = time.Millisecond
	studyLongest = 5 * time.Second
)

// Word is a remark of the pilot after After lines, or the result of its Study (Learned).
type Word struct {
	advice.Remark
	After   int64
	Learned *runlog.Predictor
}

// Runner runs a pilot in its own goroutine; lines are queued for it. A replay of the log needs After and Heard: a
// decision after line n, in a job that had handled the pilot's decisions up to line m, was in time if n is at most m.
//
// A nil Runner is that of a job without a pilot: it accepts lines and does nothing.
type Runner struct {
	pilot advice.Pilot
	done  <-chan struct{}
	say   func(Word) bool

	mu    sync.Mutex
	queue []runlog.Line
	wake  chan struct{}
	heard int64 // lines for which all remarks of the pilot were passed on
}

// Start starts the goroutine, which ends when done is closed. It and the goroutines of studies call say with each
// remark of the pilot; say returns false when no more remarks are accepted. The queue of lines is not bounded: a slow
// pilot decides late and delays nothing else.
func Start(pilot advice.Pilot, done <-chan struct{}, say func(Word) bool) *Runner {
	r := &Runner{pilot: pilot, done: done, say: say, wake: make(chan struct{}, 1)}
	go r.run()
	return r
}

// run passes queued lines to the pilot and its remarks to say.
func (r *Runner) run() {
	var told int64
	var batch []runlog.Line
	for {
		select {
		case <-r.wake:
		case <-r.done:
			return
		}
		r.mu.Lock()
		batch, r.queue = r.queue, batch[:0]
		r.mu.Unlock()
		for _, l := range batch {
			told++
			for _, s := range r.pilot.Tell(l) {
				if s.Study != nil {
					go r.work(s.Study, told)
					continue
				}
				if !r.say(Word{Remark: s, After: told}) {
					return
				}
			}
			r.mu.Lock()
			r.heard = told
			r.mu.Unlock()
		}
	}
}

// Running reports whether there is a pilot.
func (r *Runner) Running() bool { return r != nil }

// Tell queues a line for the pilot, if there is one, and does not block. The caller copies slices in it. The lines are
// the run log's lines of the kinds that Pilot names; decisions refer to their number (After).
func (r *Runner) Tell(at time.Duration, entry runlog.Entry) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.queue = append(r.queue, runlog.Line{T: at, Entry: entry})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Heard is the number of lines for which all remarks of the pilot were passed on.
func (r *Runner) Heard() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard
}

// work runs a Study that the pilot started after line after. It ends when done is closed. After each step it pauses, so
// that it uses no more than studyShare of one processor.
func (r *Runner) work(s advice.Study, after int64) {
	began := time.Now()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for more := true; more; {
		select {
		case <-rest.C:
		case <-r.done:
			return
		}
		at := time.Now()
		if more = s.Step(); more {
			rest.Reset(min(max(time.Duration(float64(time.Since(at))*(1/studyShare-1)), studyRest), studyLongest))
		}
	}
	p := s.Result()
	p.Took, p.After = runlog.SecondsOf(time.Since(began)), after
	r.say(Word{Learned: &p})
}
