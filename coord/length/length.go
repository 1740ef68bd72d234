// Package length says how long a job is, in samples, and what is worth a note about that. It is pure: its caller says
// what the configuration and the programs of the workers want.
//
//	Samples, Epochs, Steps ──► End: the first of them ──► Limit: where the engine ends the job
//	                                                      (nowhere, where programs end it themselves)
package length

import (
	"fmt"
	"math"

	"star/coord/engine"
	"star/coord/session"
	"star/modes"
)

// Job is what the length of a job depends on.
type Job struct {
	// The job ends at the first of these. Zero: unset.
	Samples int64
	Epochs  float64
	Steps   int64

	By string // what says so; empty: nothing does, and the end is a default

	Batch      int // samples of one worker in one iteration
	MaxWorkers int // ranks
	Workers    int // workers that the job should begin with
	Plan       modes.Plan

	Enrolled *session.Enrolment // of the first worker
	Programs bool               // workers run programs of their own, with loops that may end sooner or later
}

// End is the end of the job. It is rounded up to a whole sample, or down to a whole batch where programs leave out an
// incomplete one. round is the samples of one iteration of all workers that the job should begin with.
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

// Limit is the samples at which the engine ends the job under a plan. Programs whose gradients are exchanged end it
// themselves.
func (j *Job) Limit(p modes.Plan) int64 {
	if j.Enrolled.Exchange {
		return math.MaxInt64
	}
	return j.End(engine.Round(p, j.Batch, j.Workers))
}

// Expected is the samples of the whole job: the limit of the engine, or, of a job without one, the configured end.
func (j *Job) Expected(limit int64) int64 {
	if limit < math.MaxInt64 {
		return limit
	}
	return j.End(engine.Round(j.Plan, j.Batch, j.Workers))
}

// few is a number of rounds in which next to nothing is learned. With --steps the user has asked for them.
const few = 10

// Loops says what becomes of loops of programs that are longer or shorter than the job.
const Loops = "then the loops over star.loader get no more batches; if all loops end before, the job ends with them"

// Notes says what the numbers of the result of a job will not say: that little or nothing is left to train, and why.
// used and limit are those of the engine when the training begins, and p is its plan.
func (j *Job) Notes(used, limit int64, p modes.Plan) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if used >= limit {
		note("nothing is left to train: %d samples are applied, and the job ends at %d (--epochs, --samples, --steps); what is there is evaluated", used, limit)
		return notes
	}
	switch {
	case !j.limits(limit):
	case j.By == "":
		note("the job makes %.4g epochs, a default: neither star.loader(epochs=…) nor --epochs, --steps or --samples says how many; %s", j.epochs(limit), Loops)
	case !j.agree(limit):
		note("the job makes %.4g epochs (%s), and the program says %.4g (star.loader); %s", j.epochs(limit), j.By, j.Enrolled.Epochs, Loops)
	}
	if int64(j.Batch) > j.Enrolled.Samples {
		note("a mini-batch of %d samples (--batch) is more than the data set has, %d: samples are in it several times", j.Batch, j.Enrolled.Samples)
	}
	round, how := engine.Round(p, j.Batch, j.Workers), "--batch"
	if k := p.Local; k > 1 {
		round, how = round*int64(k), fmt.Sprintf("%d steps of each worker by itself, as --baseline says, and --batch", k)
	}
	if n := limit / round; n < few && (j.Steps == 0 || n != j.Steps) {
		note("the job is over after %.2g rounds: in a round the workers take %d samples (%s), and the job ends at %d (--epochs, --samples, --steps)", float64(limit)/float64(round), round, how, limit)
	}
	return notes
}

// Set is how many epochs a job of programs makes, where they and the configuration agree. A loop that counts for
// itself does not know.
func (j *Job) Set(used, limit int64) (epochs float64, ok bool) {
	return j.epochs(limit), used < limit && j.limits(limit) && j.By != "" && j.agree(limit)
}

// agree says whether the program says as many epochs as the job makes, or nothing.
func (j *Job) agree(limit int64) bool {
	near := float64(j.Batch*j.MaxWorkers) / float64(j.Enrolled.Samples)
	return j.Enrolled.Epochs <= 0 || math.Abs(j.epochs(limit)-j.Enrolled.Epochs) <= near
}

func (j *Job) epochs(limit int64) float64 { return float64(limit) / float64(j.Enrolled.Samples) }

// limits says whether the job may end before or after the loops of its programs do. It does not with built-in models,
// and where a program ends the job itself.
func (j *Job) limits(limit int64) bool {
	return j.Programs && j.Enrolled.Batch != 0 && limit != math.MaxInt64
}
