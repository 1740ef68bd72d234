// Package advisor is the coordinator's side of a pilot. Lines of the run log go to the pilot in their
// order, through a queue that the coordinator never waits for; what it says comes back with the number
// of lines that it had been told by then ([Runner]). [Verdicts] keeps what it says of slow workers, [Permits] which of
// its plans are permitted, and [Thresholds] the numbers by which it and the job decide; these three are pure.
package advisor

import (
	"sync"
	"time"

	"star/coord/advice"
	"star/runlog"
)

// studyShare is the part of the time in which a Study is worked at, of one processor.
const studyShare = 0.02

// studyRest is the least time between two steps of a Study, studyLongest the most.
const (
	studyRest    = time.Millisecond
	studyLongest = 5 * time.Second
)

// Word is what a pilot says, after that many lines (After), or what has come of its Study (Learned).
type Word struct {
	advice.Remark
	After   int64
	Learned *runlog.Predictor
}

// Runner runs a pilot in a goroutine of its own; lines wait until it takes them. told and heard are
// what a log needs for a replay: a decision that was made after line n, in a job with a pilot that
// had been heard up to line m, was in time if n is at most m.
//
// A nil Runner is that of a job without a pilot: it takes lines and does nothing.
type Runner struct {
	pilot advice.Pilot
	done  <-chan struct{}
	say   func(Word) bool

	mu    sync.Mutex
	queue []runlog.Line
	wake  chan struct{}
	heard int64 // lines to which all that the pilot has to say has been said
}

// Start starts the goroutine, which ends when done is closed. say is called by it and by those of
// studies, with each word of the pilot; it returns false when nothing more is heard. Lines wait
// without bound: a pilot that is slow decides late, and nothing else is held up by it.
func Start(pilot advice.Pilot, done <-chan struct{}, say func(Word) bool) *Runner {
	r := &Runner{pilot: pilot, done: done, say: say, wake: make(chan struct{}, 1)}
	go r.run()
	return r
}

// run tells the pilot what waits, and says what it says.
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

// Running says that there is a pilot.
func (r *Runner) Running() bool { return r != nil }

// Tell passes a line on to the pilot, if there is one. Slices in it are copied by the caller. It
// does not wait. The lines are those of the run log of the kinds that Pilot names, counted: their
// number is what decisions refer to (After).
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

// Heard is the number of lines to which all that the pilot has to say has been said.
func (r *Runner) Heard() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard
}

// work does a Study, which the pilot wanted after that many lines. It ends when done is closed. It
// rests after each step for as long as keeps it to studyShare of one processor.
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
