package coord

import (
	"time"

	"star"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/length"
	"star/coord/measure"
	"star/coord/traffic"
	"star/internal/poison"
	"star/runlog"
)

// The start of the training. form.go has what comes before it: the members and the assignment of shards. Here the
// engine is made, the log gets its first lines, and workers get their first batches or, in a job that was taken over,
// continue with those they have.

// tryStart begins the training once all required members are present.
//
// It may be called after any change and begins the training once. A new job needs all shards filled and the number of
// workers it was configured with. A job that was taken over needs all members that took part in it, or has waited long
// enough for them (takeover.Gathered). With a validator the workers begin when its first gradient is in use.
func (c *Coordinator) tryStart() {
	if !c.placing.Assigned() || c.engine != nil {
		return
	}
	if len(c.placing.Unfilled()) > 0 {
		return
	}
	if !c.takeover.Trained() && !c.members.Enough() || c.takeover.Trained() && !c.takeover.Gathered(time.Now(), c.cfg.MinWorkers, c.peers.present(&c.members)) {
		return
	}
	if !c.judging.checks.Ready() {
		return
	}
	c.open()
	absent := c.members.Begin()
	c.peers.apart(absent)
	if c.cfg.Pilot == nil { // a pilot reads every record, and a replay of its decisions reads them in the log
		c.journal.Sample(c.cfg.MaxWorkers)
	}
	if c.members.Terms.AllAlike() {
		c.cfg.Pilot = nil // all workers exchange alike: there is no mode to choose
	}
	c.engine = c.newEngine(absent)
	now := c.engine.View()
	if c.cfg.Pace && c.arch.Sharded() {
		c.flow.pacer = traffic.NewPacer(c.cfg.MaxWorkers)
	}
	c.rounds.Begin(evaluate.Model{Buffers: 4 * c.members.Terms.Hello().Buffers, Layout: c.members.Terms.Enrolled().Buffers, Tests: c.members.Terms.Enrolled().Tests > 0})
	c.saves.Begin(c.members.Terms.Hello().Params)
	c.evalFrom(now.Used)
	c.run.progress = time.Now()
	c.saves.Every(c.cfg.CheckpointEvery, c.run.progress)
	c.measured.stats.Begin(c.run.progress, now.Used)
	c.tune()
	if c.cfg.Pilot != nil {
		c.startPilot()
	}
	at := c.journal.Elapsed()
	line := runlog.Train{Workers: c.cfg.MaxWorkers, Shards: c.placing.Len(),
		Model: c.members.Terms.Hello().Model, ModelHash: c.members.Terms.Hello().ModelHash, Params: c.members.Terms.Hello().Params, Data: c.members.Terms.Enrolled().Data,
		Epoch: c.members.Terms.Enrolled().Samples, Limit: c.expected(), Version: now.Version, Plan: c.cfg.Plan.String(), Absent: absent,
	}
	c.journal.Note(line)
	c.log.Info("training started", "workers", c.engine.View().Live(), "shards", c.placing.Len(), "parameters", c.members.Terms.Hello().Params,
		"model", c.members.Terms.Hello().Model, "data", c.members.Terms.Enrolled().Data, "mode", c.words(c.cfg.Plan))
	c.measured.pace = measure.NewPace(c.cfg.MaxWorkers, !c.arch.Sharded())
	c.measured.pace.Plan(pacePlan(now.Plan))
	for w, p := range c.peers.workers {
		if p != nil {
			c.measured.pace.Join(star.Worker(w), p.conn.RemoteAddr())
		}
	}
	c.caution()
	c.measured.remember(&c.journal, at, c.cfg.Remember, c.cfg.MaxWorkers)
	if c.takeover.On() {
		c.putThresholds(c.takeover.Left().Set, "star ctl, before another process took the job over")
	}
	if c.judging.checks.On() { // the workers begin when there is a validation gradient
		c.validate()
		return
	}
	if !c.found() {
		return
	}
	var told *engine.Told
	if c.takeover.Trained() {
		c.resumeLog()
		t := c.takeover.Told(c.peers.present(&c.members))
		told = &t
	}
	c.issue(c.engine.Begin(told))
	c.tryFinish() // a job that resumes may have nothing left to do
}

// newEngine makes the engine of the job with the present workers. absent are the ranks without a worker. In a job that
// was taken over the engine continues from what the servers, or the members of the ring, have reported.
func (c *Coordinator) newEngine(absent []star.Worker) engine.Engine {
	plan := c.plant(c.cfg.Plan)
	g := engine.Config{
		Workers: c.cfg.MaxWorkers, Shards: c.placing.Len(), Batch: c.cfg.Batch, Turns: c.members.Terms.Enrolled().Turns, Limit: c.job().Limit(plan),
		Plan: c.members.Quorum.Set(plan, c.cfg.Size().Grows(), c.lives), Absent: absent, Scale: c.cfg.Scale, Planned: c.cfg.First(), Norm: c.cfg.Norm, Report: !c.cfg.Lossy, Cancel: c.cfg.Cancel, Whole: c.cfg.WholeBatches, Strides: c.cfg.Strides, Follow: c.cfg.Pilot != nil,
		Guard: c.cfg.Poison != poison.Off, WithMetadata: c.lease.Replaceable(), MaxParams: c.members.Terms.Hello().Params,
	}
	if c.takeover.Trained() {
		g.After, g.Limit = c.takeover.Resume()
		c.cfg.Resume = g.After.Progress
	}
	g.From = c.cfg.Resume
	return c.arch.Engine(g, func(w star.Worker) bool { p := c.peers.workers[w]; return p != nil && c.peers.takesOthers(p) }, c.lease.Term())
}

// caution adds warnings about a job that begins to the log and the result: facts that the numbers in the result do not
// show.
func (c *Coordinator) caution() {
	if c.takeover.Trained() {
		return // already reported when the job began
	}
	j, now := c.job(), c.engine.View()
	if epochs, ok := j.Set(now.Used, now.Limit); ok {
		c.log.Info("job length set", "epochs", epochs, "by", j.By, "at_the_end", length.Loops)
	}
	for _, text := range j.Notes(now.Used, now.Limit, c.engine.View().Plan) {
		c.log.Warn(text)
		c.measured.result.Notes = append(c.measured.result.Notes, text)
	}
}

// job has what determines the length of the job.
func (c *Coordinator) job() *length.Job {
	return &length.Job{
		Samples: c.cfg.Samples, Epochs: c.cfg.Epochs, Steps: c.cfg.Steps, By: c.run.endBy, Batch: c.cfg.Batch, MaxWorkers: c.cfg.MaxWorkers,
		Workers: c.cfg.First(), Plan: c.cfg.Plan, Enrolled: c.members.Terms.Enrolled(), Programs: c.cfg.Adopt != nil,
	}
}

// expected is the number of samples of the whole job, as far as it is known.
func (c *Coordinator) expected() int64 { return c.job().Expected(c.engine.View().Limit) }
