package coord

import (
	"errors"
	"math"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/transport"
	"star/transport/wire"
)

// Evaluations and checkpoints. This file decides when one begins and carries out what package evaluate decides
// (perform). They begin after a number of samples or a time (due), run beside the training, and end with a line of the
// run log. At the end of the job follow a last evaluation and then a last checkpoint, after those that were in
// progress.

// facts is the state of workers for package evaluate.
type facts struct{ *Coordinator }

func (f facts) Live() []star.Worker { return f.peers.live() }

func (f facts) Idle(w star.Worker) bool {
	a := f.engine.View().Worker(w)
	return a.Waiting || a.Parked || a.Stopped
}

func (f facts) Parked(w star.Worker) bool {
	a := f.engine.View().Worker(w)
	return a.Parked && !a.Stopped
}

// perform carries out the effects of evaluations and checkpoints, in their order. The loss of a worker that is
// excluded may end the job (Coordinator.sick).
func (c *Coordinator) perform(effects []evaluate.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case evaluate.Progress:
			c.run.progress = time.Now()
		case evaluate.Average:
			c.measured.stats.Exchanged(4 * len(e.Buffers))
			tell(&c.peers, c.peers.workers[e.Worker], wire.Buffers{Worker: e.Worker, Eval: e.Eval}, transport.Floats(e.Buffers))
		case evaluate.Omitted:
			c.log.Warn("excluded buffers that are not finite from the mean", "tensor", e.Tensor)
		case evaluate.Collected:
			c.trySaved()
		case evaluate.Exclude:
			if p := c.peers.workers[e.Worker]; p != nil && !p.gone {
				if err := c.drop(p, e.Err); err != nil && c.run.sick == nil {
					c.run.sick = err
				}
			}
		case evaluate.Ended:
			c.evaluated(e)
		case evaluate.AskWorker:
			tell(&c.peers, c.peers.workers[e.Worker], e.Save, nil)
		case evaluate.AskServers:
			for rank, p := range c.peers.servers {
				if e.Server == rank || e.Server < 0 && p.hello.Shards > 0 {
					tell(&c.peers, p, e.Save, nil)
				}
			}
		case evaluate.Without:
			c.log.Warn("checkpoint lacks the residual of a worker's codec", "worker", e.Worker, "id", e.ID, "reason", e.Reason)
		case evaluate.Late:
			c.log.Warn("checkpoint lacks residuals of codecs; their workers did not answer",
				"workers", e.Workers, "id", e.ID, "for", e.For.Round(time.Second))
		case evaluate.Write:
			c.write(e)
		case evaluate.Wrote:
			c.wrote(e)
		}
	}
}

// milestones starts the evaluation or checkpoint that is due. A checkpoint of a model with buffers begins with a round
// that collects them.
func (c *Coordinator) milestones() {
	eval, save := c.due()
	if eval {
		c.rounds.Advance(c.engine.View().Used)
	}
	if save {
		c.saves.Advance(time.Now())
		save = !c.savedAlready()
	}
	if eval || save && c.members.Terms.Hello().Buffers > 0 {
		c.rounds.Start(eval, false, c.evaluators(false))
	}
	if save {
		c.startSave()
	}
}

// due reports what begins now. Nothing begins while an evaluation or checkpoint is in progress, a shard moves, there
// are too few workers, or the job ends.
func (c *Coordinator) due() (eval, save bool) {
	if c.rounds.Open() || c.rounds.Final() || c.saves.Open() || c.placing.mover.Holds() || c.members.Shortage.On() || c.stopping.Cause() != nil {
		return false, false
	}
	now := c.engine.View()
	switch {
	case !c.engine.View().Settled: // the version of the ring is not known yet
		return false, false
	case now.Used >= now.Limit || c.engine.View().Drained(): // Drained may come first if gradients were dropped
		return false, false // the end evaluates and saves anyway
	}
	return c.rounds.Due(now.Used), !now.Midway && c.saves.Due(time.Now())
}

// savedAlready reports whether the present version has a complete checkpoint, because no update was made since. That
// checkpoint is kept and not written again.
func (c *Coordinator) savedAlready() bool {
	v := c.engine.View().Next
	if !c.saves.Complete(c.cfg.CheckpointID(v)) {
		return false
	}
	c.log.Debug("no update since the last checkpoint", "path", c.measured.result.Checkpoint, "version", v)
	return true
}

// evaluators lists the workers that take part in an evaluation. Between updates these are the workers that are released
// again soon: one that is parked would be told too late. At the end all are parked.
func (c *Coordinator) evaluators(final bool) (ws []star.Worker) {
	for _, w := range c.peers.live() {
		if a := c.engine.View().Worker(w); a.Evaluates && (final || !a.Parked) {
			ws = append(ws, w)
		}
	}
	return ws
}

// judged drops a worker that violated the protocol of an evaluation, or carries out the effects of its message. An
// error ends the job.
func (c *Coordinator) judged(p *peer, effects []evaluate.Effect, err error) error {
	if err != nil {
		return c.drop(p, err)
	}
	c.perform(effects)
	return nil
}

// evaluated records the result of an evaluation, and continues what waited for it. After the last evaluation follows
// the last checkpoint, and then the end.
func (c *Coordinator) evaluated(e evaluate.Ended) {
	l := e.Line
	if e.Measured {
		c.measured.result.Evaluated, c.measured.result.TestLoss, c.measured.result.TestAccuracy = l.Final, l.Loss, float64(l.Accuracy)
		l.Samples, l.Alike = c.engine.View().Used, c.measured.hashes.Alike(l.To)
		c.journal.Write(l)
		c.log.Info("evaluated", "version", l.To, "loss", round4(float64(l.Loss)), "accuracy", round4(float64(l.Accuracy)), "predictions", l.Count)
	}
	if e.Unanswered {
		c.log.Warn("no worker was left to evaluate the result")
	}
	switch {
	case !l.Final:
		c.trySaved() // no further buffers will arrive for it
		c.milestones()
	case !c.saves.On() || c.savedAlready():
		c.run.ended = true
	default:
		c.startSave()
	}
}

// tryFinish begins the final evaluation once no gradient is in flight. It asks every worker that has parameters,
// whether it waits or not; a checkpoint follows the answers. An error ends the job.
func (c *Coordinator) tryFinish() error {
	if c.stopping.Cause() != nil && !c.rounds.Final() {
		return c.halt()
	}
	if c.stopping.Wound() {
		return c.windOn()
	}
	if c.engine == nil || c.rounds.Final() || !c.judging.checks.Begun() {
		return nil
	}
	c.perform(c.rounds.Parked(facts{c})) // may end the round
	if !c.engine.View().Drained() || c.rounds.Open() || c.saves.Open() || c.placing.mover.Holds() || c.members.Shortage.On() {
		return nil
	}
	if err := c.move(c.placing.mover.Drop("the job ends")); err != nil {
		return err
	}
	c.evaluateLast(true)
	return nil
}

// evaluateLast begins the last evaluation, which the last checkpoint follows; without test it only collects from
// workers what that checkpoint needs.
func (c *Coordinator) evaluateLast(test bool) {
	c.measured.stats.Stop(time.Now(), c.engine.View().Used)
	c.rounds.Start(test, true, c.evaluators(true))
	c.engine.End(engine.Finish)
	for _, w := range c.evaluators(true) {
		c.release(wire.Release{Worker: w, Version: c.engine.View().Version, Action: wire.Finish, Pull: c.placing.Len() > 0})
	}
}

// startSave begins a checkpoint. The engine determines its version: a ring may already compute rounds of later
// versions.
func (c *Coordinator) startSave() {
	cut := c.engine.Save()
	c.perform(c.saves.Start(evaluate.Cut{
		ID: c.cfg.CheckpointID(cut.Version), Version: cut.Version, Seq: cut.Seq, Writer: cut.Writer, Shards: c.placing.Len(), Final: c.rounds.Final(),
	}, c.coded(), time.Now()))
	c.trySaved()
}

// freezeFirst makes workers with codecs save their residuals before the releases that follow an update, if a checkpoint
// will follow it. In a ring members are asked after the releases.
func (c *Coordinator) freezeFirst() {
	if !c.arch.Sharded() {
		return
	}
	if _, save := c.due(); save {
		v := c.engine.View().Version
		c.perform(c.saves.Early(c.cfg.CheckpointID(v), v, c.coded()))
	}
}

// coded lists the workers with codecs. The others have no residual and write no files.
func (c *Coordinator) coded() (out []evaluate.Coded) {
	for _, w := range c.peers.live() {
		if p := c.peers.workers[w]; p.codec != "" && c.members.Joined(int(w)) {
			seq, weight := c.engine.View().Residual(w)
			out = append(out, evaluate.Coded{Worker: w, Seq: seq, Weight: weight})
		}
	}
	return out
}

// savedAt notes that a worker has written its part of a checkpoint: parameters, or the residual of its codec. A
// residual's part number is above 0, also in a ring. A worker without a codec that sends one is dropped.
func (c *Coordinator) savedAt(p *peer, e event) error {
	w := star.Worker(p.rank)
	switch {
	case c.arch.Sharded() || e.Saved.Shard > 0:
		if p.codec == "" {
			return c.drop(p, errors.New("a part of a checkpoint that it was not asked for"))
		}
		c.perform(c.saves.Residual(w, e.Saved, e.Payload))
	case c.saves.Writer(w):
		c.perform(c.saves.Part(e.Saved, e.Payload))
	}
	c.trySaved()
	return nil
}

// trySaved writes a checkpoint once all its parts are there. It may be called at any time.
func (c *Coordinator) trySaved() {
	if !c.saves.Open() {
		return
	}
	made := c.engine.View().Saved != nil // nil: workers are still making this version
	coming, missing := c.rounds.Lacks()
	var err error
	if missing {
		err = errors.New("no worker was left to send its buffers")
	}
	c.perform(c.saves.Look(time.Now(), made && !coming, err))
}

// write writes the manifest of a checkpoint, in its own goroutine: disks, and stores on a network even more, take
// longer than workers should wait for their next batch.
func (c *Coordinator) write(e evaluate.Write) {
	k := &Checkpoint{ID: e.ID}
	if e.Err == nil {
		// a log must reach at least as far as its checkpoints, even if this process is killed; tick handles the error
		c.journal.Flush()
		*k = Checkpoint{
			ID: e.ID, Generation: c.cfg.Generation, Progress: *c.engine.View().Saved, Enrolment: *c.members.Terms.Enrolled(), Model: c.members.Terms.Hello().Model, ModelHash: c.members.Terms.Hello().ModelHash,
			Params: c.members.Terms.Hello().Params, Buffers: c.rounds.Buffers(), Parts: e.Parts, Residuals: e.Residuals, Records: c.measured.memory.Records(),
		}
	}
	successor := c.takeover.On()
	go func() {
		var w written
		w.path, w.err = c.cfg.Finish(k, e.Err, successor)
		c.in.post(inside(kindPilotAction, internal{action: &pilotAction{written: &w}}))
	}()
}

// written is the result of writing a checkpoint.
type written struct {
	path string
	err  error
}

// saidWritten ends a checkpoint. A failed checkpoint is recorded, and the next one is made when it is due; only the
// failure of the last one makes the result an error. An error ends the job.
func (c *Coordinator) saidWritten(w *written) error {
	c.perform(c.saves.Written(w.path, w.err, time.Now()))
	switch {
	case c.run.ended:
		return nil
	case c.stopping.Frozen():
		c.stopping.Saved()
		return c.halt()
	}
	c.milestones()
	return c.tryFinish()
}

// wrote records the result of a checkpoint.
func (c *Coordinator) wrote(e evaluate.Wrote) {
	at := c.journal.Elapsed()
	if e.Err != nil {
		c.log.Error("checkpoint failed", "id", e.Line.ID, "err", e.Err)
		c.measured.result.CheckpointError = e.Line.Err
	} else {
		c.measured.result.Checkpoint = e.Path
		c.log.Info("checkpoint written", "path", e.Path, "version", e.Line.Version)
	}
	c.journal.WriteAt(at, e.Line)
	c.run.ended = c.run.ended || e.Final
}

// round4 rounds x to four decimal places, for lines that people read. It returns x if it is not finite, or from 1e11
// on, where a float64 has no more than four.
func round4(x float64) float64 {
	if !(math.Abs(x) < 1e11) {
		return x
	}
	return math.Round(x*1e4) / 1e4
}
