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

// Evaluations and checkpoints: what package evaluate decides is carried out here (perform), and here is decided when
// one may begin. They are begun by how many samples are applied, or by time (due), go on beside the training, and end
// with a line of the run log. At the end of the job a last evaluation comes, then a last checkpoint; what was under
// way before is brought to its end first.

// facts are what package evaluate must know of workers.
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
			if p := c.peers.workers[e.Worker]; p != nil {
				c.peers.send(p, func() error {
					return transport.Send(p.conn, wire.Buffers{Worker: e.Worker, Eval: e.Eval}, transport.Floats(e.Buffers))
				})
			}
		case evaluate.Omitted:
			c.log.Warn("buffers of some workers are not finite, and were left out of the mean", "tensor", e.Tensor)
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
			p := c.peers.workers[e.Worker]
			c.peers.send(p, func() error { return transport.Send(p.conn, e.Save, nil) })
		case evaluate.AskServers:
			for rank, p := range c.peers.servers {
				if e.Server == rank || e.Server < 0 && p.hello.Shards > 0 {
					c.peers.send(p, func() error { return transport.Send(p.conn, e.Save, nil) })
				}
			}
		case evaluate.Without:
			c.log.Warn("a checkpoint is without what a worker's codec has left out", "worker", e.Worker, "id", e.ID, "reason", e.Reason)
		case evaluate.Late:
			c.log.Warn("a checkpoint is without what the codecs of workers have left out, who have not answered",
				"workers", e.Workers, "id", e.ID, "for", e.For.Round(time.Second))
		case evaluate.Write:
			c.write(e)
		case evaluate.Wrote:
			c.wrote(e)
		}
	}
}

// milestones starts what is due after so many samples. A checkpoint of a model with buffers begins
// with a round that collects them.
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

// due reports what begins now. Nothing begins while something of the kind is under way, a shard moves,
// workers are too few, or the job ends.
func (c *Coordinator) due() (eval, save bool) {
	if c.rounds.Open() || c.rounds.Final() || c.saves.Open() || c.placing.mover.Holds() || c.members.Shortage.On() || c.stopping.Cause() != nil {
		return false, false
	}
	now := c.engine.View()
	switch {
	case !c.engine.View().Settled: // which version the ring has is not known yet
		return false, false
	case now.Used >= now.Limit || c.engine.View().Drained(): // drained sooner where gradients were dropped
		return false, false // the end evaluates and saves anyway
	}
	return c.rounds.Due(now.Used), !now.Midway && c.saves.Due(time.Now())
}

// savedAlready reports whether a checkpoint made now would be one that is complete: no
// update was made since. It is not written over, so the earlier one counts.
func (c *Coordinator) savedAlready() bool {
	v := c.engine.View().Next
	if !c.saves.Complete(c.cfg.checkpointID(v)) {
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

// judged drops a worker that broke the protocol of an evaluation, and carries out the effects of what it said. An error
// ends the job.
func (c *Coordinator) judged(p *peer, effects []evaluate.Effect, err error) error {
	if err != nil {
		return c.drop(p, err)
	}
	c.perform(effects)
	return nil
}

// evaluated writes down the result of an evaluation, and goes on with what waited for its end. After the last
// evaluation comes the last checkpoint, and then the end.
func (c *Coordinator) evaluated(e evaluate.Ended) {
	l := e.Line
	if e.Measured {
		c.measured.result.Evaluated, c.measured.result.TestLoss, c.measured.result.TestAccuracy = l.Final, l.Loss, float64(l.Accuracy)
		l.Samples, l.Alike = c.engine.View().Used, c.measured.hashes.Alike(l.To)
		c.journal.write(l)
		c.log.Info("evaluated", "version", l.To, "loss", round4(float64(l.Loss)), "accuracy", round4(float64(l.Accuracy)), "predictions", l.Count)
	}
	if e.Unanswered {
		c.log.Warn("no worker was left to evaluate the result")
	}
	switch {
	case !l.Final:
		c.trySaved() // there will be no buffers but those that it has
		c.milestones()
	case !c.saves.On() || c.savedAlready():
		c.run.ended = true
	default:
		c.startSave()
	}
}

// tryFinish begins the final evaluation when no gradient is on its way any more. Each worker that has parameters is
// asked, whether it waits or not, and a checkpoint follows the answers. An error ends the job.
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

// evaluateLast begins the evaluation after which the last checkpoint comes, or, without a test, asks workers for what
// that checkpoint needs.
func (c *Coordinator) evaluateLast(test bool) {
	c.measured.stats.Stop(time.Now(), c.engine.View().Used)
	c.rounds.Start(test, true, c.evaluators(true))
	c.engine.End(engine.Finish)
	for _, w := range c.evaluators(true) {
		c.release(wire.Release{Worker: w, Version: c.engine.View().Version, Action: wire.Finish, Pull: len(c.placing.shards) > 0})
	}
}

// startSave begins a checkpoint. Its version is the engine's to say: in a ring, rounds of later versions may be under
// way.
func (c *Coordinator) startSave() {
	cut := c.engine.Save()
	c.perform(c.saves.Start(evaluate.Cut{
		ID: c.cfg.checkpointID(cut.Version), Version: cut.Version, Seq: cut.Seq, Writer: cut.Writer, Shards: len(c.placing.shards), Final: c.rounds.Final(),
	}, c.coded(), time.Now()))
	c.trySaved()
}

// freezeFirst tells workers with codecs to save what they have left out before the releases that follow from an
// update, if a checkpoint will follow it. In a ring members are told after the releases.
func (c *Coordinator) freezeFirst() {
	if !c.arch.sharded() {
		return
	}
	if _, save := c.due(); save {
		v := c.engine.View().Version
		c.perform(c.saves.Early(c.cfg.checkpointID(v), v, c.coded()))
	}
}

// coded lists the workers with codecs. The others have left nothing out, and write no files.
func (c *Coordinator) coded() (out []evaluate.Coded) {
	for _, w := range c.peers.live() {
		if p := c.peers.workers[w]; p.codec != "" && c.members.Joined(int(w)) {
			seq, weight := c.engine.View().Residual(w)
			out = append(out, evaluate.Coded{Worker: w, Seq: seq, Weight: weight})
		}
	}
	return out
}

// savedAt notes that a worker has written its part of a checkpoint: the parameters, where it has
// some, or what its codec has left out. Of a codec the part number is above 0, also in a ring. An
// error is a worker without a codec, which was not asked: it is dropped.
func (c *Coordinator) savedAt(p *peer, e event) error {
	w := star.Worker(p.rank)
	switch {
	case c.arch.sharded() || e.Saved.Shard > 0:
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

// trySaved writes a checkpoint when all that belongs to it is there. It may be called at any time.
func (c *Coordinator) trySaved() {
	if !c.saves.Open() {
		return
	}
	made := c.engine.View().Saved != nil // else others are still making this version
	coming, missing := c.rounds.Lacks()
	var err error
	if missing {
		err = errors.New("no worker was left to send its buffers")
	}
	c.perform(c.saves.Look(time.Now(), made && !coming, err))
}

// write writes the manifest of a checkpoint. Disks, and even more so stores on a network, take longer than workers
// should wait for their next batch, so a goroutine of its own does it.
func (c *Coordinator) write(e evaluate.Write) {
	w := &written{id: e.ID, err: e.Err}
	saved := c.cfg.Saved
	if !c.takeover.On() {
		saved = nil
	}
	done := func() {
		c.in.post(inside(kindPilotAction, internal{action: &pilotAction{written: w}}))
	}
	if e.Err != nil {
		go func() {
			if !w.completed(saved) && c.cfg.Discard != nil {
				c.cfg.Discard(w.id)
			}
			done()
		}()
		return
	}
	c.journal.log.Flush() // if this process is killed, its log must have come at least as far as its checkpoints. An error is for tick
	at := *c.engine.View().Saved
	whole := Checkpoint{
		ID: e.ID, Generation: c.cfg.Generation, Progress: at, Enrolment: *c.members.Terms.Enrolled(), Model: c.members.Terms.Hello().Model, ModelHash: c.members.Terms.Hello().ModelHash,
		Params: c.members.Terms.Hello().Params, Buffers: c.rounds.Buffers(), Parts: e.Parts, Residuals: e.Residuals, Records: c.measured.memory.Records(),
	}
	go func() {
		if w.path, w.err = c.cfg.Save(whole); w.err != nil {
			w.completed(saved)
		}
		done()
	}()
}

// written is what has become of a checkpoint.
type written struct {
	id, path string
	err      error
}

// saidWritten ends a checkpoint. A checkpoint that failed is noted, and the next one is tried when
// it is due; only that of the end makes the result an error. An error ends the job.
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

// wrote writes down what has become of a checkpoint.
func (c *Coordinator) wrote(e evaluate.Wrote) {
	at := c.journal.elapsed()
	if e.Err != nil {
		c.log.Error("checkpoint failed", "id", e.Line.ID, "err", e.Err)
		c.measured.result.CheckpointError = e.Line.Err
	} else {
		c.measured.result.Checkpoint = e.Path
		c.log.Info("checkpoint", "path", e.Path, "version", e.Line.Version)
	}
	c.journal.log.Write(at, e.Line)
	c.run.ended = c.run.ended || e.Final
}

// round4 is x to four decimal places, for lines that people read. From 1e11 on a float64 has no more than four, so x
// stays as it is; and so does one that is not finite.
func round4(x float64) float64 {
	if !(math.Abs(x) < 1e11) {
		return x
	}
	return math.Round(x*1e4) / 1e4
}

// completed reports whether the coordinator before has completed the checkpoint that could not be
// written: it is not written over, and one of the same version and life is as good.
func (w *written) completed(saved func(id string) (path string, ok bool)) bool {
	if saved == nil {
		return false
	}
	path, ok := saved(w.id)
	if ok {
		w.path, w.err = path, nil
	}
	return ok
}
