package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"star"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Evaluations and checkpoints. Both are begun by how many samples are applied, or by time (due), go on
// beside the training, and end with a line of the run log. At the end of the job a last evaluation
// comes, then a last checkpoint; what was under way before is brought to its end first.

// round is one evaluation, spread over the workers: each takes a part of the test
// set. Models with buffers (batch normalisation) first send theirs and get the
// average back. A round without test only collects buffers, for a checkpoint.
//
// In an asynchronous mode workers evaluate different versions; the log line says
// from which to which.
//
// A worker hears of it with its next release, evaluates before it computes, and answers with sums
// over its part. Who leaves meanwhile is not waited for, and its part of the test set is missing:
// results say how many predictions they are of.
type round struct {
	id       int64
	test     bool
	final    bool
	expect   map[star.Worker]bool // still to send their result
	buffered map[star.Worker]bool // have sent their buffers and wait for the average
	unsent   int                  // members that have not sent buffers yet
	averaged bool                 // the average was sent
	mean     *bufferMean          // nil: the model has no buffers
	parts    map[star.Worker][2]int64
	results  map[star.Worker]wire.EvalResult
}

// tenThousand is the whole test set in Release.From and To.
const tenThousand = 10_000

// missing are the ranks that have not answered, in order.
func (r *round) missing() []int {
	var out []int
	for w := range 4096 {
		if r.expect[star.Worker(w)] {
			out = append(out, w)
		}
	}
	return out
}

// milestones starts what is due after so many samples. A checkpoint of a model with buffers begins
// with a round that collects them.
func (c *Coordinator) milestones() {
	eval, save := c.due()
	if eval {
		c.nextEval = nextMultiple(c.engine.State().Used, c.evalStep)
	}
	if save {
		c.saveNow = false
		c.nextSave = time.Now().Add(c.cfg.SaveEvery)
		save = !c.savedAlready()
	}
	if eval || (save && c.hello.Buffers > 0) {
		c.startRound(eval, false)
	}
	if save {
		c.startSave()
	}
}

// due says what begins now. Nothing begins while something of the kind is under way, a shard moves,
// workers are too few, or the job ends.
func (c *Coordinator) due() (eval, save bool) {
	if c.round != nil || c.final || c.save != nil || c.mover.Holds() || c.short() || c.stopping.cause != nil {
		return false, false
	}
	if !c.engine.Settled() {
		return false, false // which version the ring has is not known yet
	}
	now := c.engine.State()
	used := now.Used
	if used >= now.Limit || c.engine.Drained() { // drained sooner where gradients were dropped
		return false, false // the end evaluates and saves anyway
	}
	return c.nextEval > 0 && used >= c.nextEval, c.cfg.Save != nil && !now.Midway && (c.saveNow || c.cfg.SaveEvery > 0 && time.Now().After(c.nextSave))
}

// savedAlready reports whether a checkpoint made now would be one that is complete: no
// update was made since. It is not written over, so the earlier one counts.
func (c *Coordinator) savedAlready() bool {
	v := c.engine.State().Next
	if c.complete == "" || c.cfg.Name(v, c.cfg.Generation) != c.complete {
		return false
	}
	c.log.Debug("no update since the last checkpoint", "path", c.result.Checkpoint, "version", v)
	return true
}

// startRound begins an evaluation by everybody who may: each takes an equal part of the test set,
// in ten- thousandths, if there is a test at all; else it is a round for the average of the
// buffers. They hear of it with their next release.
func (c *Coordinator) startRound(test, final bool) {
	c.rounds++
	r := &round{id: c.rounds, test: test, final: final, results: map[star.Worker]wire.EvalResult{},
		expect: map[star.Worker]bool{}, buffered: map[star.Worker]bool{}, parts: map[star.Worker][2]int64{}}
	var ws []star.Worker
	for _, w := range c.live() {
		if c.evaluates(w, final) {
			ws = append(ws, w)
		}
	}
	for i, w := range ws {
		r.expect[w] = true
		if test {
			r.parts[w] = [2]int64{int64(i) * tenThousand / int64(len(ws)), int64(i+1) * tenThousand / int64(len(ws))}
		}
		c.workers[w].evals = true
	}
	r.unsent = len(ws)
	if c.hello.Buffers > 0 {
		r.mean = &bufferMean{layout: c.enrolled.Buffers}
	}
	c.round = r
}

// mark tells a released worker to evaluate, if it is to. Its part of the test set goes into the
// release.
func (c *Coordinator) mark(p *peer, r *wire.Release) {
	if !p.evals || c.round == nil {
		return
	}
	p.evals = false
	if r.Action == wire.Continue {
		r.Action = wire.Evaluate
	}
	part := c.round.parts[r.Worker]
	r.Eval, r.From, r.To = c.round.id, part[0], part[1]
}

// gather adds a worker's buffers; the last one sends the average to everybody.
func (c *Coordinator) gather(p *peer, e event) error {
	r := c.round
	w := star.Worker(p.rank)
	if r == nil || e.buffers.Eval != r.id || !r.expect[w] || r.buffered[w] {
		return nil
	}
	if len(e.payload) == 0 || int64(len(e.payload)) != c.hello.Buffers*4 {
		return c.drop(p, fmt.Errorf("buffers of %d bytes, expected %d", len(e.payload), c.hello.Buffers*4))
	}
	r.buffered[w] = true
	r.unsent--
	if r.averaged { // it was left out, and takes what the others had
		c.sendAverage(p, r)
		return nil
	}
	r.mean.add(w, e.payload)
	c.average()
	return nil
}

// average sends the mean of all buffers (bufferMean) to those who have sent theirs, once nobody else
// can. It is what a checkpoint has, too.
func (c *Coordinator) average() {
	r := c.round
	if r == nil || r.mean == nil || r.mean.n == 0 || r.unsent > 0 && !c.stalled() {
		return
	}
	c.buffers = r.mean.result()
	if r.mean.omitted != "" {
		c.log.Warn("buffers of some workers are not finite, and were left out of the mean", "tensor", r.mean.omitted)
	}
	r.mean.n, r.averaged = 0, true
	for w := range c.workers {
		if p := c.workers[w]; p != nil && r.buffered[star.Worker(w)] {
			c.sendAverage(p, r)
		}
	}
	c.trySaved()
}

// sendAverage tells a worker the average of all buffers, with which it evaluates.
func (c *Coordinator) sendAverage(p *peer, r *round) {
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Buffers{Worker: star.Worker(p.rank), Eval: r.id}, transport.Floats(c.buffers))
	})
}

// stalled says whether nobody can send buffers any more before there is an average: who has not
// sent them waits for an update that the others' gradients are to make, and they wait for the
// average. It happens where an update takes fewer gradients than there are workers (x=2 of three).
// At the end everybody is asked, whatever he waits for.
func (c *Coordinator) stalled() bool {
	if c.round.final {
		return false
	}
	for _, w := range c.live() {
		if c.round.buffered[w] {
			continue
		}
		if a := c.engine.Worker(w); !a.Waiting && !a.Parked && !a.Stopped {
			return false
		}
	}
	return true
}

// evaluated takes the result of one worker. One of another round, or of somebody who was not asked,
// is passed over. A result before the buffers costs the worker its place: others cannot evaluate
// without the average.
func (c *Coordinator) evaluated(p *peer, e wire.EvalResult) error {
	r := c.round
	w := star.Worker(p.rank)
	if r == nil || e.Eval != r.id || !r.expect[w] {
		return nil
	}
	if c.hello.Buffers > 0 && !r.buffered[w] {
		return c.drop(p, fmt.Errorf("the result of evaluation %d before the buffers, for which others wait", r.id))
	}
	delete(r.expect, w)
	r.results[w] = e
	c.progress = time.Now()
	c.tryRound()
	return c.tryFinish()
}

// forgetInRound lets a round end without a worker that is gone.
func (c *Coordinator) forgetInRound(p *peer) {
	r, w := c.round, star.Worker(p.rank)
	if r == nil || !r.expect[w] {
		return
	}
	delete(r.expect, w)
	if !r.buffered[w] {
		r.unsent--
		c.average()
	}
	c.tryRound()
}

// parkedInRound lets a round end without workers that have no batch any more:
// the final evaluation will ask them.
func (c *Coordinator) parkedInRound() {
	if c.round == nil || c.round.final {
		return
	}
	for w, p := range c.workers {
		if p != nil && p.evals && c.parkedForGood(star.Worker(w)) {
			p.evals = false
			c.forgetInRound(p)
		}
	}
}

// parkedForGood says whether a worker has no batch, and will have none.
func (c *Coordinator) parkedForGood(w star.Worker) bool {
	k := c.engine.Worker(w)
	return k.Parked && !k.Stopped
}

// tryRound ends a round when all results are in. Loss and accuracy are means over predictions, not
// over parts. Behind the last round comes the last checkpoint, and then the end.
func (c *Coordinator) tryRound() {
	r := c.round
	if r == nil || len(r.expect) > 0 {
		return
	}
	c.round = nil
	c.exclude(r)
	from, to, sum, correct, count := int64(-1), int64(-1), 0., int64(0), int64(0)
	for _, w := range slices.Sorted(maps.Keys(r.results)) {
		e := r.results[w]
		if from < 0 || e.Version < from {
			from = e.Version
		}
		to = max(to, e.Version)
		sum += e.LossSum
		correct += e.Correct
		count += e.Count
	}
	if r.test && count > 0 {
		c.result.Evaluated = r.final
		loss, acc := sum/float64(count), float64(correct)/float64(count)
		c.result.TestLoss, c.result.TestAccuracy = runlog.Number(loss), acc
		c.cfg.RunLog.Write(c.elapsed(), runlog.Eval{Eval: r.id, From: from, To: to,
			Samples: c.engine.State().Used, Loss: runlog.Number(loss), Accuracy: runlog.Number(acc), Count: count, Final: r.final, Alike: c.compared(to)})
		c.log.Info("evaluated", "version", to, "loss", round4(loss), "accuracy", round4(acc), "predictions", count)
	}
	if r.final && r.test && count == 0 && c.enrolled.Tests > 0 {
		c.log.Warn("no worker was left to evaluate the result")
	}
	if !r.final {
		c.trySaved() // there will be no buffers but those that it has
		c.milestones()
		return
	}
	if c.cfg.Save == nil || c.savedAlready() {
		c.ended = true
		return
	}
	c.startSave()
}

// strange is how many times the loss of a part of the test set must be that of most others before
// nothing but a broken worker explains it.
const strange = 1e6

// exclude leaves parts of an evaluation out that have nothing to do with those of most others, and
// takes leave of who has sent them. It needs three parts at least, and more than half of them with
// a finite loss: otherwise nobody can tell who is right.
func (c *Coordinator) exclude(r *round) {
	var losses []float64
	mean := func(e wire.EvalResult) float64 { return math.Abs(e.LossSum) / float64(max(e.Count, 1)) }
	for _, e := range r.results {
		if l := mean(e); l-l == 0 {
			losses = append(losses, l)
		}
	}
	slices.Sort(losses)
	if len(r.results) < 3 || 2*len(losses) <= len(r.results) {
		return
	}
	median := losses[len(losses)/2]
	for w, e := range r.results {
		l := mean(e)
		if l <= strange*(1+median) {
			continue
		}
		delete(r.results, w)
		if p := c.workers[w]; p != nil && !p.gone {
			if err := c.drop(p, fmt.Errorf("its part of the test set has a loss of %g, and those of others of %.3g", l, median)); err != nil && c.sick == nil {
				c.sick = err
			}
		}
	}
}

// tryFinish begins the final evaluation when no gradient is on the way any more. Everybody who has
// parameters is asked, whether it waits or not, and a checkpoint follows the answers. An error ends
// the job.
func (c *Coordinator) tryFinish() error {
	if c.stopping.cause != nil && !c.final {
		return c.halt()
	}
	if c.winding != nil {
		return c.windOn()
	}
	if c.engine == nil || c.final || c.cfg.Validation != nil && !c.checks.begun {
		return nil
	}
	c.parkedInRound() // may end the round
	if !c.engine.Drained() || c.round != nil || c.save != nil || c.mover.Holds() || c.short() {
		return nil
	}
	if err := c.move(c.mover.Drop("the job ends")); err != nil {
		return err
	}
	c.evaluateLast(true)
	return nil
}

// evaluateLast begins the evaluation behind which the last checkpoint comes, or, without a test, asks
// for what that needs of the workers.
func (c *Coordinator) evaluateLast(test bool) {
	c.final = true
	c.stats.Stop(time.Now(), c.engine.State().Used)
	c.startRound(test, true)
	c.engine.Finish()
	for _, w := range c.live() {
		if !c.evaluates(w, true) {
			continue
		}
		c.release(wire.Release{Worker: w, Version: c.engine.State().Version, Action: wire.Finish, Pull: len(c.shards) > 0})
	}
}

// saving is a checkpoint on its way to the disks.
//
// It goes through three stages: parts are written by shards or by one member of the ring (left),
// what belongs to them becomes known (at, buffers, rest), and the manifest is written by a
// goroutine of its own (writing). Training goes on meanwhile. Only a checkpoint with a manifest
// counts.
type saving struct {
	at      Progress // known when all parts are there
	version int64
	id      string
	left    int
	parts   []json.RawMessage
	begun   time.Time
	err     error
	final   bool
	saver   star.Worker // has the parameters, and writes them; -1: shards do

	writing bool // all parts are there, and its manifest is being written

	rest *leftovers // of workers
}

// startSave has every shard write its part, after the last Fire, or a worker that has the
// parameters. Its version is the engine's to say (Cut): in a ring rounds may be under way behind
// it. Every server with shards hears of it in order with the firings, so all of them save the same
// state.
func (c *Coordinator) startSave() {
	cut := c.engine.Save()
	s := &saving{
		version: cut.Version,
		id:      c.cfg.Name(cut.Version, c.cfg.Generation),
		left:    max(1, len(c.shards)),
		begun:   time.Now(),
		final:   c.final,
		saver:   cut.Writer,
	}
	s.parts = make([]json.RawMessage, s.left)
	c.save = s
	m := wire.Save{Seq: cut.Seq, Version: cut.Version, ID: s.id}
	for _, p := range c.servers {
		if p.hello.Shards > 0 {
			c.send(p, func() error { return transport.Send(p.conn, m, nil) })
		}
	}
	if cut.Writer >= 0 {
		p := c.workers[cut.Writer]
		c.send(p, func() error { return transport.Send(p.conn, m, nil) })
	}
	s.rest = c.frozen(s.id, cut.Version, c.live())
	c.trySaved()
}

// saved takes a shard's part of a checkpoint. Its error, if it had one, fails the checkpoint when
// all are there; parts of another checkpoint, and a part that is there, are passed over.
func (c *Coordinator) saved(e event) {
	s := c.save
	if s == nil || e.saved.ID != s.id || e.saved.Shard < 0 || e.saved.Shard >= len(s.parts) || s.parts[e.saved.Shard] != nil {
		return
	}
	s.parts[e.saved.Shard] = json.RawMessage("null")
	if e.saved.Err != "" {
		s.err = fmt.Errorf("shard %d: %s", e.saved.Shard, e.saved.Err)
	} else if json.Valid(e.payload) {
		s.parts[e.saved.Shard] = e.payload
	}
	s.left--
	c.progress = time.Now()
	c.trySaved()
}

// trySaved completes a checkpoint when all parts, and the buffers, are there. It may be called
// whenever something has come, and begins to write once.
func (c *Coordinator) trySaved() {
	s := c.save
	if s == nil || s.left > 0 || s.lacking() {
		return
	}
	if c.hello.Buffers > 0 && c.round != nil && !c.round.averaged {
		return // they are on their way
	}
	at, ok := c.engine.Saved()
	if !ok {
		return // others are still making this version
	}
	s.at = at
	if s.writing {
		return
	}
	if c.hello.Buffers > 0 && c.buffers == nil && s.err == nil {
		s.err = errors.New("no worker was left to send its buffers")
	}
	// Disks, and stores behind a network even more, take longer than workers should wait for their
	// next batch.
	s.writing = true
	if s.err != nil {
		go func() {
			w := &written{s: s, err: s.err}
			if !c.completed(w) && c.cfg.Discard != nil {
				c.cfg.Discard(s.id)
			}
			c.post(event{kind: kindPilotAction, seldom: &seldom{action: &pilotAction{written: w}}})
		}()
		return
	}
	c.cfg.RunLog.Flush() // if this process is killed, its log must have come at least as far as its checkpoints. An error is for tick
	whole := Checkpoint{
		ID: s.id, Generation: c.cfg.Generation, Progress: s.at, Enrolment: *c.enrolled, Model: c.hello.Model, ModelHash: c.hello.ModelHash,
		Params: c.hello.Params, Buffers: c.buffers, Parts: s.parts, Residuals: s.rest.parts, Records: c.memory.Records(),
	}
	go func() {
		w := &written{s: s}
		if w.path, w.err = c.cfg.Save(whole); w.err != nil {
			c.completed(w)
		}
		c.post(event{kind: kindPilotAction, seldom: &seldom{action: &pilotAction{written: w}}})
	}()
}

// completed says whether the coordinator before has completed the checkpoint that could not be
// written: it is not written over, and one of the same version and life is as good.
func (c *Coordinator) completed(w *written) bool {
	if c.takeover == nil || c.cfg.Saved == nil {
		return false
	}
	path, ok := c.cfg.Saved(w.s.id)
	if ok {
		w.path, w.err = path, nil
	}
	return ok
}

// written is what has become of a checkpoint.
type written struct {
	s    *saving
	path string
	err  error
}

// saidWritten ends a checkpoint. A checkpoint that failed is noted, and the next one is tried when
// it is due; only that of the end makes the result an error (lastSave). An error ends the job.
func (c *Coordinator) saidWritten(w *written) error {
	s := w.s
	c.save = nil
	c.progress = time.Now()
	line := runlog.Checkpoint{ID: s.id, Version: s.at.Version, Took: runlog.SecondsOf(time.Since(s.begun))}
	at := c.elapsed()
	if w.err != nil {
		line.Err = w.err.Error()
		c.log.Error("checkpoint failed", "id", s.id, "err", w.err)
		c.result.CheckpointError = w.err.Error()
	} else {
		c.result.Checkpoint, c.complete = w.path, s.id
		c.log.Info("checkpoint", "path", w.path, "version", s.at.Version)
	}
	c.cfg.RunLog.Write(at, line)
	if s.final {
		c.ended, c.lastSave = true, w.err
		return nil
	}
	if c.stopping.frozen {
		c.stopping.done = true
		return c.halt()
	}
	c.milestones()
	return c.tryFinish()
}

// round4 is x to four decimal places, for lines that people read. From 1e11 on a float64 has no more than four, so x
// stays as it is; and so does one that is not finite.
func round4(x float64) float64 {
	if !(math.Abs(x) < 1e11) {
		return x
	}
	return math.Round(x*1e4) / 1e4
}
