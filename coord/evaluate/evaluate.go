// Package evaluate holds what a job does beside its updates: evaluations ([Rounds]), checkpoints ([Saves]), and checks
// of what is updated: norms ([Norms]), validation gradients ([Validator]), hashes of parameters ([Hashes]). It is pure:
// no I/O, no goroutine, no clock; the time is an argument. A coordinator (package coord) tells it what has happened,
// and carries out what each call returns, in that order.
//
// At most one evaluation and one checkpoint are under way at a time; both may be. An evaluation:
//
//	       Start                  of each worker                                    of all
//	idle ─────────► open: told with its release ─► buffers ─► average ─► result ─────────────► Ended, idle
//	                 │      (buffers and average only where the model has some)
//	                 ├─ Leave, Parked, Curtail: the part of one worker is given up
//	                 └─ Restart, Drop: the evaluation is given up
//
// A checkpoint:
//
//	       Start              all parts, files, buffers             Written
//	idle ─────────► collecting ────────────────────────► writing ───────────► Wrote, idle
//	  ▲ │             │  ▲ Part, Residual, Leave, Tick: what it waits for
//	  │ └─ Early: files of workers, of a checkpoint that Start names later
//	  └─ Restart, Drop: the checkpoint is given up (not while it is written)
//
// What holds:
//
//   - The zero values are a job that evaluates only at the end, and writes no checkpoints.
//   - A worker that leaves is taken out of everything that waited for it, so each wait ends.
//   - The order of effects, and every sum, goes by rank, and never by the order of a map or of arrivals.
//
// An error of a method says that a worker broke the protocol, and should go; the state is unchanged then.
package evaluate

import (
	"encoding/json"
	"time"

	"star"
	"star/runlog"
	"star/transport/wire"
)

// Effect is one consequence: [Average], [Omitted], [Collected], [Exclude], [Ended], [AskWorker], [AskServers],
// [Without], [Late], [Write], [Wrote] or [Progress].
type Effect interface{ effect() }

type (
	// Progress says that what the call reported has brought the job on.
	Progress struct{}

	// Average tells a worker the mean of all buffers, with which it evaluates.
	Average struct {
		Worker  star.Worker
		Eval    int64
		Buffers []float32
	}

	// Omitted says that values that are not finite were left out of the mean. Tensor is the first of them.
	Omitted struct{ Tensor string }

	// Collected says that the mean of all buffers is there. A checkpoint may have waited for it.
	Collected struct{}

	// Exclude drops a worker that contradicts most others.
	Exclude struct {
		Worker star.Worker
		Err    error
	}

	// Ended is the end of an evaluation. Line lacks Samples and Alike.
	Ended struct {
		Line       runlog.Eval
		Measured   bool // Line holds a result
		Unanswered bool // the final evaluation of a job with a test set has no result
	}

	// AskWorker tells a worker to write its part of a checkpoint: the parameters, or what its codec has left out.
	AskWorker struct {
		Worker star.Worker
		Save   wire.Save
	}

	// AskServers tells servers to write their shards' parts of a checkpoint. Server is the only one that is told; -1:
	// all servers with shards are.
	AskServers struct {
		Server int
		Save   wire.Save
	}

	// Without says that a checkpoint lacks what a worker's codec has left out, because the worker could not write it.
	Without struct {
		Worker     star.Worker
		ID, Reason string
	}

	// Late says so of workers that have not answered for so long.
	Late struct {
		Workers []int
		ID      string
		For     time.Duration
	}

	// Write writes the manifest of a checkpoint, or removes its parts where Err says why it has failed. Written is
	// called when that is done.
	Write struct {
		ID        string
		Parts     []json.RawMessage
		Residuals []Residual
		Err       error
	}

	// Wrote is the end of a checkpoint: it is complete and at Path, or has failed with Err.
	Wrote struct {
		Line  runlog.Checkpoint
		Path  string
		Err   error
		Final bool
	}
)

func (Progress) effect()   {}
func (Average) effect()    {}
func (Omitted) effect()    {}
func (Collected) effect()  {}
func (Exclude) effect()    {}
func (Ended) effect()      {}
func (AskWorker) effect()  {}
func (AskServers) effect() {}
func (Without) effect()    {}
func (Late) effect()       {}
func (Write) effect()      {}
func (Wrote) effect()      {}
