package coord

import (
	"math"
	"slices"
	"sync"
	"time"

	"star"
	"star/coord/advice"
	"star/modes"
	"star/runlog"
)

// The pilot's side of the coordinator. Lines of the run log go to it in their order, through a queue
// that the coordinator never waits for; what it says comes back as events, each with the number of
// lines that it had been told by then. So a log has all that is needed to have it decide again.

// Pilot watches a job and changes its plan (--mode auto). It is told what the run log is told, in
// the same order and with the same times, so that a log replays to the same decisions. It is used
// by one goroutine, which is not the coordinator's: an update never waits for it.
type Pilot interface {
	// Tell passes on a line: RunTrain, RunRecord, RunFire, RunNoise, RunPlan, RunLate,
	// RunAdmission, RunPredictor or RunMember. What it says is valid until the next call.
	Tell(l runlog.Line) []advice.Remark
}

// studyShare is the part of the time in which a Study is worked at, of one processor.
const studyShare = 0.02

// studyRest is the least time between two steps of a Study, studyLongest the most.
const (
	studyRest    = time.Millisecond
	studyLongest = 5 * time.Second
)

// pilotRunner is the coordinator's side of a Pilot: lines wait here until its goroutine takes them.
// told and heard are what a log needs for a replay: a decision that was made after line n, in a job
// whose pilot had been heard up to line m, was in time if n is at most m.
type pilotRunner struct {
	mu    sync.Mutex
	queue []runlog.Line
	wake  chan struct{}
	told  int64 // lines so far
	heard int64 // lines to which all that the pilot has to say has been posted
}

// pilotAction is a Remark with the number of lines that were told before it, or what has come of a
// Study, or the answer of the Admission, or the end of a checkpoint.
type pilotAction struct {
	advice.Remark
	after   int64
	learned *runlog.Predictor
	ruling  *ruling
	written *written
}

// startPilot starts the pilot's goroutine, which ends with the coordinator. Lines wait without
// bound: a pilot that is slow decides late, and nothing else is held up by it.
func (c *Coordinator) startPilot() {
	t := &pilotRunner{wake: make(chan struct{}, 1)}
	c.pilot = t
	go func() {
		var told int64
		var batch []runlog.Line
		for {
			select {
			case <-t.wake:
			case <-c.done:
				return
			}
			t.mu.Lock()
			batch, t.queue = t.queue, batch[:0]
			t.mu.Unlock()
			for _, l := range batch {
				told++
				for _, s := range c.cfg.Pilot.Tell(l) {
					if s.Study != nil {
						go c.work(s.Study, told)
						continue
					}
					if !c.post(event{kind: kindPilotAction, seldom: &seldom{action: &pilotAction{Remark: s, after: told}}}) {
						return
					}
				}
				t.mu.Lock()
				t.heard = told
				t.mu.Unlock()
			}
		}
	}()
}

// lastWords notes, when the job is over, what the pilot has decided too late, and how far it was
// heard: where it lags behind, it is not waited for. By that a replay of the log knows which
// decisions of the pilot could not have been heeded.
func (c *Coordinator) lastWords() {
	t := c.pilot
	if t == nil {
		return
	}
	t.mu.Lock()
	heard := t.heard // first: what was said up to there is in events, or done
	t.mu.Unlock()
	c.yield(isOver)
	for {
		select {
		case e := <-c.events:
			if e.kind == kindPilotAction && e.action.Change != nil {
				c.notApplied(e.action.Change, e.action.after, isOver)
			}
		default:
			c.cfg.RunLog.Write(c.elapsed(), runlog.Heard{After: heard})
			return
		}
	}
}

// isOver is why nothing is made of a plan that comes when the job has ended, or is evaluated for
// the last time.
const isOver = "the job is over"

// notApplied notes a plan of the pilot that is not installed.
func (c *Coordinator) notApplied(ch *advice.Change, after int64, because string) {
	p := ch.Plan.String()
	c.cfg.RunLog.Write(c.elapsed(), runlog.Unheeded{Plan: p, Why: ch.Why, Because: because, After: after})
	c.log.Info("a plan of the pilot is not installed", "mode", p, "because", because)
}

// tell passes a line on to the pilot, if there is one. Slices in it are copied by the caller. It
// does not wait. The lines are those of the run log of the kinds that Pilot names, counted: their
// number is what decisions refer to (After).
func (c *Coordinator) tell(at time.Duration, entry runlog.Entry) {
	t := c.pilot
	if t == nil {
		return
	}
	t.mu.Lock()
	t.told++
	t.queue = append(t.queue, runlog.Line{T: at, Entry: entry})
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// work does a Study, which the pilot wanted after so many lines. It ends with the coordinator. It
// rests after each step for as long as keeps it to studyShare of one processor.
func (c *Coordinator) work(s advice.Study, after int64) {
	began := time.Now()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for more := true; more; {
		select {
		case <-rest.C:
		case <-c.done:
			return
		}
		at := time.Now()
		if more = s.Step(); more {
			rest.Reset(min(max(time.Duration(float64(time.Since(at))*(1/studyShare-1)), studyRest), studyLongest))
		}
	}
	r := s.Result()
	r.Took, r.After = runlog.SecondsOf(time.Since(began)), after
	c.post(event{kind: kindPilotAction, seldom: &seldom{action: &pilotAction{learned: &r}}})
}

// apply does what the pilot says. One of its fields is set. An error ends the job.
func (c *Coordinator) apply(s *pilotAction) error {
	at := c.elapsed()
	switch {
	case s.written != nil:
		return c.saidWritten(s.written)
	case s.ruling != nil:
		return c.abide(s.ruling)
	case s.learned != nil:
		r := s.learned
		c.cfg.RunLog.Write(at, *r)
		c.tell(at, *r)
		if e := float64(r.Error); !math.IsNaN(e) { // else the pilot says why
			c.log.Info("predictor trained", "records", r.Records, "error", round4(e), "took", r.Took.Duration().Round(time.Millisecond))
		}
	case s.Verdict != nil:
		v := s.Verdict
		c.cfg.RunLog.Write(at, *v)
		var factor runlog.Factor
		if i := slices.IndexFunc(c.verdicts, func(o workerVerdict) bool { return o.worker == v.Worker }); i >= 0 {
			factor = c.verdicts[i].factor
			c.verdicts = slices.Delete(c.verdicts, i, i+1)
		}
		factor.Add(float64(v.Slowdown))
		if v.Event != "recovered" {
			c.verdicts = append(c.verdicts, workerVerdict{v.Worker, s.Text, v.Cause, factor})
		}
		c.log.Info("straggler", "worker", int(v.Worker), "event", v.Event, "says", s.Text)
	case s.Gain != nil:
		g := s.Gain
		c.cfg.RunLog.Write(at, *g)
		c.log.Info("gain", "mode", g.Plan, "predicted", round4(float64(g.Predicted)), "seen", round4(float64(g.Seen)), "reverted", g.Reverted)
	case s.Change != nil:
		return c.change(s.Change, s.after)
	case s.Deadlines != nil:
		c.deadlines = s.Deadlines
	case s.Text != "":
		c.log.Info("pilot", "says", s.Text)
	}
	return nil
}

// deaf is why nothing is made of a plan that the pilot wants, whatever it is; empty: it is heeded.
func (c *Coordinator) deaf() string {
	switch {
	case c.rounds.Final() || c.ended:
		return isOver
	case c.stopping.frozen:
		return "the job is being saved, and ends"
	case c.manual:
		return "star ctl mode has set another one"
	}
	return ""
}

// uncut is p for a job whose batches stay whole. Errors are those of [modes.Plan.WithWholeBatches].
func (c *Coordinator) uncut(p modes.Plan) (modes.Plan, error) {
	if !c.cfg.WholeBatches {
		return p, nil
	}
	return p.WithWholeBatches(c.cfg.Batch)
}

// change installs the pilot's plan, unless somebody at the keyboard has taken over, or says in the
// run log why not. A plan that does not fit is a mistake of the pilot, and noted as one that was
// not installed; an error ends the job.
func (c *Coordinator) change(ch *advice.Change, after int64) error {
	p := ch.Plan
	because := c.deaf()
	if because == "" {
		err := p.Validate(c.cfg.Workers)
		if err == nil {
			p, err = c.uncut(p)
		}
		if err == nil {
			err = c.engine.Fits(p)
		}
		if err != nil {
			because = err.Error()
		}
	}
	if because != "" {
		c.notApplied(ch, after, because)
		return nil
	}
	if c.cfg.Admission != nil {
		if !InStep(p) {
			c.ask(ch, after)
			return nil
		}
		c.spare()
	}
	if c.graft(p).Equal(c.engine.Plan()) {
		c.notApplied(ch, after, "it is in force")
		return nil
	}
	return c.install(p, runlog.Plan{Why: ch.Why, Predicted: runlog.Number(ch.Predicted), After: after})
}

// workerVerdict is the last word on a worker.
type workerVerdict struct {
	worker star.Worker
	text   string
	cause  string
	factor runlog.Factor // of all its verdicts since it is slow
}

// stragglers is what the pilot says of workers that are slow now, by rank.
func (c *Coordinator) stragglers() []string {
	slices.SortFunc(c.verdicts, func(a, b workerVerdict) int { return int(a.worker - b.worker) })
	var out []string
	for _, v := range c.verdicts {
		out = append(out, v.text)
	}
	return out
}
