package pilot

import (
	"fmt"
	"math"

	"star"
	"star/runlog"
	"star/straggler"
)

// When a predictor is trained while the job runs, and with which data.
const (
	firstLesson = 150  // iterations of each worker before the first training; then whenever there are twice as many
	lessonRows  = 8192 // iterations, of all workers together, in a training: the newest
	pupils      = 32   // maximum number of workers in a training: of more, every second, third, …
	warmUp      = 32   // iterations of each worker that a new predictor observes before it predicts
)

// The network is smaller than the artefact's (50 hidden units, a head of 256 and 128), and learns faster (1e-3). For a
// worker with a periodic time it predicts as well after as many iterations, and trains in a fifth of the time, in steps
// of 1 ms.
const (
	hidden = 24
	head   = 64
	rate   = 3e-3
)

// online trains an LSTM on the job's own records, and enters each finished one in the contest:
//
//	collecting ── enough records ──► study: trained beside the job ── runlog.Predictor ──► install ──► collecting
//
// Invariants: at most one study is open. The data and the time of a training depend only on the reported events, so a
// replay of the log has the same predictors.
type online struct {
	workers int
	timer   straggler.Timer
	random  func(lesson int) straggler.Source

	history *straggler.History
	every   int // records of every such worker are collected
	seen    int // records so far
	due     int // records at which the next training begins
	lessons int

	recent []star.Record // the last of all workers, the oldest at next
	next   int
	study  *study          // begun and not installed; nil: none
	lstm   *straggler.LSTM // nil: none yet
}

// newOnline begins to collect records.
func newOnline(workers int, timer straggler.Timer, random func(lesson int) straggler.Source) *online {
	every := (workers + pupils - 1) / pupils
	rows := lessonRows / (workers / every)
	o := &online{workers: workers, timer: timer, random: random, every: every, due: firstLesson * workers,
		history: straggler.NewHistory(timer, straggler.Resources, rows)}
	o.history.Begin(workers)
	return o
}

// observe takes a record. It returns a training that is due, or nil. On full processors a training would take their
// time from the workers, so that it waits.
func (o *online) observe(r star.Record, full func() bool) *study {
	if int(r.Worker) < 0 || int(r.Worker) >= o.workers {
		return nil
	}
	o.seen++
	if int(r.Worker)%o.every == 0 {
		o.history.Observe(r)
	}
	if len(o.recent) < warmUp*o.workers {
		o.recent = append(o.recent, r)
	} else {
		o.recent[o.next] = r
		o.next = (o.next + 1) % len(o.recent)
	}
	if o.seen < o.due || o.study != nil || full() {
		return nil
	}
	o.due = 2 * o.seen
	o.study = &study{records: int64(o.seen), history: o.history.Clone(), random: o.random(o.lessons)}
	o.lessons++
	return o.study
}

// install enters the predictor of a line in the contest, and returns a message about it. If the training was not done
// beside the job (in a replay), it is done now.
func (o *online) install(contest *straggler.Contest, line runlog.Predictor) string {
	s := o.study
	o.study = nil
	if s == nil || s.records != line.Records {
		return fmt.Sprintf("a predictor of %d records was not asked for: it is ignored", line.Records)
	}
	for s.Step() {
	}
	if got := s.Result(); got.Error != line.Error && !(got.Error.IsZero() && line.Error.IsZero()) {
		return o.enter(contest, s, fmt.Sprintf("the predictor of %d records has an error of %v here, but had %v: another build or processor",
			line.Records, got.Error, line.Error))
	}
	return o.enter(contest, s, "")
}

func (o *online) enter(contest *straggler.Contest, s *study, say string) string {
	switch {
	case s.model == nil:
		if say == "" {
			say = fmt.Sprintf("no predictor was trained on %d records: %v", s.records, s.err)
		}
	case o.lstm == nil:
		o.lstm = straggler.NewLSTM(o.workers, o.timer, s.model)
		for i := range o.recent {
			o.lstm.Observe(o.recent[(o.next+i)%len(o.recent)])
		}
		contest.Add(straggler.Entrant{Name: "lstm", Forecaster: o.lstm})
	default:
		o.lstm.SetModel(s.model)
		contest.Reset("lstm")
	}
	return say
}

// study is one training. It implements advice.Study.
type study struct {
	records int64
	history *straggler.History
	random  straggler.Source

	trainer *straggler.Trainer
	rows    int
	done    bool
	model   *straggler.Model
	err     error // why there is no model
}

// Step implements advice.Study.
func (s *study) Step() (more bool) {
	switch {
	case s.done:
		return false
	case s.trainer == nil:
		s.rows = s.history.Rows()
		s.trainer, s.err = straggler.NewTrainer(s.history, straggler.TrainConfig{Hidden: hidden, Head: []int{head}, Rate: rate, Random: s.random})
		s.done = s.err != nil
	case !s.trainer.Step():
		s.done = true
		if m := s.trainer.Best(); m != nil && !math.IsNaN(m.Error) && !math.IsInf(m.Error, 0) {
			s.model = m
		} else {
			s.err = fmt.Errorf("the training has diverged")
		}
	}
	if s.done {
		s.history = nil
	}
	return !s.done
}

// Result implements advice.Study.
func (s *study) Result() runlog.Predictor {
	r := runlog.Predictor{Records: s.records, Rows: s.rows, Error: runlog.Number(math.NaN())}
	if s.trainer != nil {
		r.Epochs = s.trainer.Epochs()
	}
	if s.model != nil {
		r.Error = runlog.Number(s.model.Error)
	}
	return r
}
