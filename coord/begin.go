package coord

import (
	"fmt"
	"math"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/traffic"
	"star/internal/poison"
	"star/modes"
	"star/runlog"
)

// The beginning of the training. Everything before it is in form.go: who is there, and who has which
// shards. Here the engine is made, the log gets its first lines, and workers get their first batches,
// or, in a job that was taken over, go on with what they have.

// tryStart begins the training once everybody is there.
//
// It may be called whenever something has changed; it begins once. A job that begins has all shards
// filled and as many workers as it wants; one that was taken over has everybody there who had a
// part in it, or has waited for them (takeover.Gathered). With a validator the workers begin when its first
// gradient is in use.
func (c *Coordinator) tryStart() {
	if !c.assigned || c.engine != nil {
		return
	}
	for _, ok := range c.ready {
		if !ok {
			return
		}
	}
	if !c.takeover.Trained() && !c.enough() || c.takeover.Trained() && !c.takeover.Gathered(time.Now(), c.cfg.Least, c.present()) {
		return
	}
	if !c.checks.Ready() {
		return
	}
	c.open()
	absent := c.apart()
	if c.cfg.Pilot == nil { // a pilot reads every record, and a replay of its decisions reads them in the log
		c.cfg.RunLog.Sample(c.cfg.Workers)
	}
	if c.allAlike() {
		c.cfg.Pilot = nil // there is nothing to choose (exchanges)
	}
	c.engine = c.newEngine(absent)
	now := c.engine.State()
	if c.cfg.Pace && c.sharded() {
		c.pacer = traffic.NewPacer(c.cfg.Workers)
	}
	c.rounds.Begin(evaluate.Model{Buffers: 4 * c.hello.Buffers, Layout: c.enrolled.Buffers, Tests: c.enrolled.Tests > 0})
	c.saves.Begin(c.hello.Params)
	c.evalFrom(now.Used)
	c.progress = time.Now()
	c.saves.Every(c.cfg.SaveEvery, c.progress)
	c.stats.Begin(c.progress, now.Used)
	c.tune()
	if c.cfg.Pilot != nil {
		c.startPilot()
	}
	at := c.elapsed()
	line := runlog.Train{Workers: c.cfg.Workers, Shards: len(c.shards),
		Model: c.hello.Model, ModelHash: c.hello.ModelHash, Params: c.hello.Params, Data: c.enrolled.Data,
		Epoch: c.enrolled.Samples, Limit: c.expected(), Version: now.Version, Plan: c.cfg.Plan.String(), Absent: absent,
	}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
	c.log.Info("training", "workers", c.engine.Live(), "shards", len(c.shards), "parameters", c.hello.Params,
		"model", c.hello.Model, "data", c.enrolled.Data, "mode", c.words(c.cfg.Plan))
	c.caution()
	c.remember(at)
	if c.takeover.On() {
		c.putThresholds(c.takeover.Left().Set, "star ctl, before another process took the job over")
	}
	if c.checks.On() { // the workers begin when there is something to hold their gradients against
		c.validate()
		return
	}
	if !c.found() {
		return
	}
	if c.takeover.Trained() {
		c.resumeLog()
		c.issue(c.engine.Resume(c.takeover.Told(c.present())))
	} else {
		c.issue(c.engine.Begin())
	}
	c.tryFinish() // a job that resumes may have nothing left to do
}

// newEngine makes the engine of the job, with whoever is there. absent are the ranks that nobody
// has. Of a job that was taken over it goes on from what the servers, or the members of the ring,
// have told.
func (c *Coordinator) newEngine(absent []star.Worker) engine.Engine {
	plan := c.plant(c.cfg.Plan)
	g := engine.Config{
		Workers: c.cfg.Workers, Shards: len(c.shards), Batch: c.cfg.Batch, Turns: c.enrolled.Turns, Limit: c.limit(plan),
		Plan: c.sized(plan), Absent: absent, Scale: c.cfg.Scale, Planned: c.cfg.first(), Norm: c.cfg.Norm, Report: !c.cfg.Lossy, Cancel: c.cfg.Cancel, Whole: c.cfg.WholeBatches, Strides: c.cfg.Strides, Follow: c.cfg.Pilot != nil,
		Guard: c.cfg.Poison != poison.Off, WithMetadata: c.replaceable(), MaxParams: c.hello.Params,
	}
	if c.takeover.Trained() {
		g.After, g.Limit = c.takeover.Resume()
		c.cfg.Resume = g.After.Progress
	}
	g.From = c.cfg.Resume
	return c.arch.engine(c, g)
}

// caution says of a job that begins what the numbers of its result will not say: that little or
// nothing is left to train, and why. It goes to the log and into the notes of the result, because
// the numbers alone would look like those of a good run.
func (c *Coordinator) caution() {
	if c.takeover.Trained() {
		return // it was said when it began
	}
	note := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		c.log.Warn(text)
		c.result.Notes = append(c.result.Notes, text)
	}
	l, plan := c.engine.State(), c.engine.Plan()
	if l.Used >= l.Limit {
		note("nothing is left to train: %d samples are applied, and the job ends at %d (--epochs, --samples, --steps); what is there is evaluated", l.Used, l.Limit)
		return
	}
	c.length(l.Limit, note)
	if int64(c.cfg.Batch) > c.enrolled.Samples {
		note("a mini-batch of %d samples (--batch) is more than the data set has, %d: samples are in it several times", c.cfg.Batch, c.enrolled.Samples)
	}
	round, how := engine.Round(plan, c.cfg.Batch, c.cfg.first()), "--batch"
	if k := plan.Local; k > 1 {
		round, how = round*int64(k), fmt.Sprintf("%d steps of each worker by itself, as --baseline says, and --batch", k)
	}
	if n := l.Limit / round; n < fewRounds && (c.cfg.Steps == 0 || n != c.cfg.Steps) {
		note("the job is over after %.2g rounds: in a round the workers take %d samples (%s), and the job ends at %d (--epochs, --samples, --steps)", float64(l.Limit)/float64(round), round, how, l.Limit)
	}
}

// length says of a job of programs how long it is, what says so, and what becomes of a loop that is
// longer or shorter: a loop that counts for itself does not know. It is a note where nothing says
// how long the job is, or where the program says otherwise.
func (c *Coordinator) length(limit int64, note func(format string, args ...any)) {
	if c.cfg.Adopt == nil || c.enrolled.Batch == 0 || limit == math.MaxInt64 { // a model of ours, or a program that ends the job itself
		return
	}
	const loops = "then the loops over star.loader get no more batches; if all loops end before, the job ends with them"
	epochs, program := float64(limit)/float64(c.enrolled.Samples), c.enrolled.Epochs
	near := float64(c.cfg.Batch*c.cfg.Workers) / float64(c.enrolled.Samples)
	switch {
	case c.endBy == "":
		note("the job makes %.4g epochs, a default: neither star.loader(epochs=…) nor --epochs, --steps or --samples says how many; %s", epochs, loops)
	case program > 0 && math.Abs(epochs-program) > near:
		note("the job makes %.4g epochs (%s), and the program says %.4g (star.loader); %s", epochs, c.endBy, program, loops)
	default:
		c.log.Info("job length set", "epochs", epochs, "by", c.endBy, "at_the_end", loops)
	}
}

// fewRounds are so few that next to nothing is learned in them. Who asks for them by --steps knows.
const fewRounds = 10

// end is the first of the ends that the configuration names, in samples. It is rounded up to a
// whole sample, or down to a whole batch where programs leave out an incomplete one. round is the samples of one iteration of all workers that the job is meant to begin
// with.
func (c *Coordinator) end(round int64) int64 {
	end := int64(math.MaxInt64)
	for _, e := range []float64{float64(c.cfg.Samples), c.cfg.Epochs * float64(c.enrolled.Samples), float64(c.cfg.Steps) * float64(round)} {
		if e > 0 && e < math.MaxInt64 {
			end = min(end, int64(math.Ceil(e)))
		}
	}
	if c.enrolled.DropLast && c.cfg.Plan.Shares == nil && end < math.MaxInt64 {
		end -= end % int64(c.cfg.Batch)
	}
	return end
}

// limit is the samples at which the engine ends a job under a plan. Programs whose gradients are
// exchanged end it themselves.
func (c *Coordinator) limit(p modes.Plan) int64 {
	if c.enrolled.Exchange {
		return math.MaxInt64
	}
	return c.end(engine.Round(p, c.cfg.Batch, c.cfg.first()))
}

// expected is the samples of the whole job, as far as anybody knows: of a job without a limit, what
// the configuration says of its end.
func (c *Coordinator) expected() int64 {
	if limit := c.engine.State().Limit; limit < math.MaxInt64 {
		return limit
	}
	return c.end(engine.Round(c.cfg.Plan, c.cfg.Batch, c.cfg.first()))
}

// live lists the workers that are there.
func (c *Coordinator) live() []star.Worker {
	var ws []star.Worker
	for i, p := range c.workers {
		if p != nil && !p.gone {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}
