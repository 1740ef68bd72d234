package coord

import (
	"math"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/view"
	"star/modes"
	"star/runlog"
)

// The state of the job (Status) and its result (runlog.Result). Both use only what the coordinator knows; members are
// not asked.

// words returns a plan as users write it.
func (c *Coordinator) words(p modes.Plan) string {
	return c.choice.mode.Words(p, c.cfg.MaxWorkers, c.flow.auto.Enabled(), c.arch.Spec(p))
}

// summarise completes the result and writes the last line of the run log. It is called once, also for a job that failed
// before it began. Rates cover the training, without joining and the last evaluation.
func (c *Coordinator) summarise(err error) {
	c.open()
	r := &c.measured.result
	r.Workers, r.Shards, r.Switches = c.members.Count(), c.placing.Len(), c.measured.stats.Switches
	r.Mode = c.words(c.cfg.Plan)
	if err != nil {
		r.Error = err.Error()
	}
	if c.measured.stats.NoLoss() {
		r.TrainLoss = runlog.Number(math.NaN())
	}
	if l := c.engine; l != nil {
		r.Mode = c.words(l.View().Plan)
		c.measured.putAside(&c.journal, c.log, c.engine.View().Aside)
		now := l.View()
		c.measured.stats.Result(r, time.Now(), now.Used, now.Waste, now.Staleness)
	}
	c.journal.Write(runlog.Summary{Result: *r})
}

// status returns the status for star ctl and the metrics. It changes nothing and works in every phase; before the
// training there is no engine.
func (c *Coordinator) status() Status {
	s := Status{
		Job: c.cfg.Job, Phase: "joining", Waiting: c.missing(), Mode: c.words(c.cfg.Plan), Elapsed: c.journal.Elapsed().Seconds(),
		Loss: runlog.Number(c.measured.stats.Loss()), TestLoss: c.measured.result.TestLoss, TestAcc: c.measured.result.TestAccuracy, Switches: c.measured.stats.Switches,
		Auto: c.journal.Followed() && !c.choice.mode.ByHand(), Stragglers: c.choice.verdicts.Texts(), Slowdown: c.measured.pace.Slow(), Refused: c.choice.permits.Refused(),
	}
	s.Servers, s.Shards = c.placed()
	if c.cfg.Shift {
		s.Shift = c.flow.shifts.Clone()
	}
	n := c.measured.noise.Noise()
	s.Noise = NoiseStatus{Scale: n.Scale, Grad2: n.Grad2, Var: n.Var, Mixed: n.Mixed, Observations: n.Observations}
	l := c.engine
	var now engine.View
	if l != nil {
		now = l.View()
		s.Phase = view.Phase(c.run.ended, c.rounds.Final(), c.saves.Open())
		s.Mode, s.Version = c.words(l.View().Plan), now.Version
		s.Samples, s.Limit, s.EpochSize, s.Params = now.Used, c.expected(), c.members.Terms.Enrolled().Samples, c.members.Terms.Hello().Params
		s.Rate = c.measured.stats.Rate(time.Now(), now.Used)
	}
	s.Efficiency = c.peers.scaling().Efficiency()
	if c.members.Shortage.On() {
		s.Short = c.minWorkers()
	}
	for i := range c.peers.workers {
		s.Workers = append(s.Workers, c.workerStatus(i, now.State))
	}
	return s
}

// worthAfter is after how many updates worth is called.
const worthAfter = 50

// worth logs a hint if one worker alone would be as fast as all together.
func (c *Coordinator) worth() {
	if s := c.peers.scaling(); s.Ideal > 0 && !s.Worth() && c.members.Count() > 1 {
		c.log.Info("one worker alone would be as fast", "workers", c.members.Count(), "samples_per_s", int64(s.All), "alone", int64(s.Alone), "scaling_efficiency", round4(s.Efficiency()),
			"hint", "fewer workers, larger batches (--batch), --compress, or a faster link")
	}
}

// workerStatus is the status of the worker of a rank. It has numbers only while a worker has the rank and the job
// trains.
func (c *Coordinator) workerStatus(i int, now engine.State) WorkerStatus {
	p, l := c.peers.workers[i], c.engine
	w := WorkerStatus{Worker: i, State: "absent"}
	switch {
	case p == nil && l != nil:
		if c.members.Seen(i) {
			w.State = "gone"
		}
		for _, q := range c.peers.late {
			if q.rank == i && !q.gone {
				w.Peer, w.State = q.conn.RemoteAddr(), "joining"
			}
		}
	case p != nil:
		w.Peer, w.State = p.conn.RemoteAddr(), "joining"
	}
	if p != nil && l != nil {
		a := l.View().Worker(star.Worker(i))
		t := view.Training{
			Stopped: a.Stopped, Parked: a.Parked, Waiting: a.Waiting, Step: a.Step, Basis: a.Basis, Version: now.Version,
			Measured: &p.measured, Last: &p.last, PushDelay: c.flow.pacer.Delay(i), Poison: c.measured.excluded.Of(i),
		}
		w.Trains(&t)
		w.Slowdown, w.Cause = c.choice.verdicts.Of(star.Worker(i))
		if c.cfg.Shift {
			w.Located(c.peers.site(p), &t)
		}
	}
	return w
}
