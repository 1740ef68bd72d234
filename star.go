package star

import "time"

// Worker is a worker's rank: dense, 0..N-1, stable for the life of a job.
type Worker int

// MaxWorkers is how many workers a job has at most.
const MaxWorkers = 4096

// Record is what one worker measured during one iteration. It rides to the
// coordinator in the worker's next arrival and becomes one line of the run log.
type Record struct {
	Worker Worker

	// Step counts the worker's own iterations from 0.
	Step int64

	// Basis is the version of the parameters the gradient was computed on.
	Basis int64

	// At is the end of the iteration's computation, since the run began.
	At time.Duration

	// Compute is forward and backward; Load is the wait for input data; Push is
	// the time to hand the gradient to every shard's connection; Wait is from
	// there to the release; Pull is from the release to the last byte of the
	// parameters. Wait and Pull belong to the iteration before, because they
	// are not over yet when the record is sent. Where the worker computes while
	// fragments travel, Wait is only what it has not computed in, and Pull, in an
	// all-reduce Push, may be longer than that.
	Compute, Load, Push, Wait, Pull time.Duration

	// Transit is from the end of Push until every shard held the gradient, also of
	// the iteration before. The coordinator measures it, not the worker; it is zero
	// where there are no shards, and where the worker evaluated in between.
	Transit time.Duration

	// Injected is the part of Compute that a straggler injection added.
	Injected time.Duration

	// Samples is the size of the mini-batch.
	Samples int

	// Loss is the mean loss of the mini-batch; Norm2 the squared Euclidean norm
	// of its mean gradient.
	Loss, Norm2 float64

	// CPU is the processor time of the process over the iteration, as a share
	// of one processor. NetIn and NetOut are bytes of gradient and parameters.
	CPU, NetIn, NetOut float64

	// Telemetry is what else is known of the worker's process, host and GPU. What
	// is a rate or a share is of the last sampling period before At, which may be
	// longer or shorter than the iteration.
	Telemetry Telemetry
}

// Iteration is the time of the whole iteration.
func (r Record) Iteration() time.Duration {
	return r.Load + r.Compute + r.Push + r.Wait + r.Pull
}

// Busy is the time that the worker itself took for the iteration: all of it but the
// wait for others. In an all-reduce, where no worker can exchange alone, Push is a wait
// for others too; ask Own there.
func (r Record) Busy() time.Duration { return r.Load + r.Compute + r.Push + r.Transit + r.Pull }

// Own is the time before the exchange: Load and Compute.
func (r Record) Own() time.Duration { return r.Load + r.Compute }
