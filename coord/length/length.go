// Package length determines the length of a job in samples, and warnings about it. It is pure: its caller passes the
// configuration and what the workers' programs need.
//
//	Samples, Epochs, Steps ──► End: the first of them ──► Limit: where the engine ends the job
//	                                                      (none if programs end it themselves)
package length

import (
	"fmt"
	"math"

	"star"
	"star/coord/engine"
	"star/coord/session"
	"star/internal/outer"
	"star/modes"
	"star/transport/wire"
)

// Job has what the length of a job depends on.
type Job struct {
	// The job ends at the first of these. Zero: unset.
	Samples int64
	Epochs  float64
	Steps   int64

	By string // the setting that determines the end; empty if it is a default

	Batch      int // samples of one worker in one iteration
	MaxWorkers int // ranks
	Workers    int // workers that the job should begin with
	Plan       modes.Plan

	Enrolled *session.Enrolment // of the first worker
	Programs bool               // workers run their own programs, with loops that may end earlier or later
}

// End is the end of the job in samples. It is rounded up to a whole sample, or down to a whole batch if programs drop
// an incomplete one. round is the samples of one iteration of all workers with which the job should begin.
func (j *Job) End(round int64) int64 {
	end := int64(math.MaxInt64)
	for _, e := range []float64{float64(j.Samples), j.Epochs * float64(j.Enrolled.Samples), float64(j.Steps) * float64(round)} {
		if e > 0 && e < math.MaxInt64 {
			end = min(end, int64(math.Ceil(e)))
		}
	}
	if j.Enrolled.DropLast && j.Plan.Shares == nil && end < math.MaxInt64 {
		end -= end % int64(j.Batch)
	}
	return end
}

// Limit is the number of samples at which the engine ends the job under a plan. Programs that exchange gradients
// themselves end it themselves.
func (j *Job) Limit(p modes.Plan) int64 {
	if j.Enrolled.Exchange {
		return math.MaxInt64
	}
	return j.End(engine.Round(p, j.Batch, j.Workers))
}

// Expected is the number of samples of the whole job: the limit of the engine or, without one, the configured end.
func (j *Job) Expected(limit int64) int64 {
	if limit < math.MaxInt64 {
		return limit
	}
	return j.End(engine.Round(j.Plan, j.Batch, j.Workers))
}

// Outward returns an error if a worker would train on more than an epoch of that many samples between two outer
// steps of p. 0: the epoch is not known.
func Outward(p modes.Plan, batch int, epoch int64) error {
	for w := range p.Workers() {
		each := int64(p.Share(star.Worker(w), batch))
		if n := each * int64(p.Steps(star.Worker(w), batch)); p.Outer.Kind != outer.Mean && epoch > 0 && n > epoch {
			most := fmt.Sprint(max(1, epoch/each))
			if p.LocalSamples {
				most = fmt.Sprintf("%dsamples", epoch)
			}
			return fmt.Errorf("mode %v: local=%d needs %d samples of each worker between two outer steps, more than the epoch of %d: use local=%s or less",
				p, p.Local, n, epoch, most)
		}
	}
	return nil
}

// Fragments returns an error if a shard has fewer parameters than p has fragments, or without shards, in a ring, the
// model has.
func Fragments(p modes.Plan, params int64, shards []wire.ShardInfo) error {
	if len(shards) == 0 && params < int64(p.Fragments) {
		return fmt.Errorf("mode %v: the model has %d parameters, which cannot be cut into %d fragments: use fewer fragments", p, params, p.Fragments)
	}
	for _, s := range shards {
		if n := s.To - s.From; n < int64(p.Fragments) {
			return fmt.Errorf("mode %v: shard %d has %d parameters, which cannot be cut into %d fragments: use fewer fragments, or fewer shards (--shards)", p, s.Shard, n, p.Fragments)
		}
	}
	return nil
}

// few is a number of rounds that train next to nothing. With --steps the user has chosen it.
const few = 10

// Loops describes the end of program loops that are longer or shorter than the job.
const Loops = "then the loops over star.loader get no more batches; if all loops end earlier, the job ends with them"

// Notes returns warnings that the numbers in the job's result do not show: that little or nothing is left to train,
// and why. used and limit are those of the engine when the training begins, and p is its plan.
func (j *Job) Notes(used, limit int64, p modes.Plan) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if used >= limit {
		note("nothing is left to train: %d samples are applied, and the job ends at %d (--epochs, --samples, --steps); the present parameters are evaluated", used, limit)
		return notes
	}
	switch {
	case !j.limits(limit):
	case j.By == "":
		note("the job makes %.4g epochs, a default: none of star.loader(epochs=…), --epochs, --steps and --samples is set; %s", j.epochs(limit), Loops)
	case !j.agree(limit):
		note("the job makes %.4g epochs (%s), but the program has %.4g (star.loader); %s", j.epochs(limit), j.By, j.Enrolled.Epochs, Loops)
	}
	if int64(j.Batch) > j.Enrolled.Samples {
		note("a mini-batch of %d samples (--batch) is larger than the data set of %d samples: it contains samples several times", j.Batch, j.Enrolled.Samples)
	}
	round, how := engine.Round(p, j.Batch, j.Workers), "--batch"
	if k := p.Steps(0, j.Batch); k > 1 {
		round, how = engine.LocalRound(p, j.Batch, j.Workers), fmt.Sprintf("%d local steps of each worker, and --batch", k)
	}
	if n := limit / round; n < few && (j.Steps == 0 || n != j.Steps) {
		note("the job is over after %.2g rounds: in a round the workers take %d samples (%s), and the job ends at %d (--epochs, --samples, --steps)", float64(limit)/float64(round), round, how, limit)
	}
	return notes
}

// Set returns the number of epochs of a job of programs, if they and the configuration agree. A loop that counts by
// itself has no number.
func (j *Job) Set(used, limit int64) (epochs float64, ok bool) {
	return j.epochs(limit), used < limit && j.limits(limit) && j.By != "" && j.agree(limit)
}

// agree reports whether the program has the number of epochs that the job makes, or none.
func (j *Job) agree(limit int64) bool {
	near := float64(j.Batch*j.MaxWorkers) / float64(j.Enrolled.Samples)
	return j.Enrolled.Epochs <= 0 || math.Abs(j.epochs(limit)-j.Enrolled.Epochs) <= near
}

func (j *Job) epochs(limit int64) float64 { return float64(limit) / float64(j.Enrolled.Samples) }

// limits reports whether the job may end before or after its programs' loops. It may not with built-in models, and
// if a program ends the job itself.
func (j *Job) limits(limit int64) bool {
	return j.Programs && j.Enrolled.Batch != 0 && limit != math.MaxInt64
}
