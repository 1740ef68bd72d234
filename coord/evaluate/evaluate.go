// Package evaluate has what a job does beside its updates: evaluations ([Rounds]), checkpoints ([Saves]), and checks
// of updates: norms ([Norms]), validation gradients ([Validator]), hashes of parameters ([Hashes]). It is pure:
// no I/O, no goroutine, no clock; the time is an argument. A coordinator (package coord) reports events to it,
// and carries out what each call returns, in that order.
//
// At most one evaluation and one checkpoint are under way at a time; both may be. An evaluation:
//
//	       Start                  of each worker                                         of all
//	idle ─────────► open: announced with its release ─► buffers ─► average ─► result ─────────────► Ended, idle
//	                 │      (buffers and average only where the model has some)
//	                 ├─ Leave, Parked, Curtail: the part of one worker is dropped
//	                 └─ Restart, Drop: the evaluation is dropped
//
// A checkpoint:
//
//	       Start              all parts, files, buffers             Written
//	idle ─────────► collecting ────────────────────────► writing ───────────► Wrote, idle
//	  ▲ │             │  ▲ Part, Residual, Leave, Tick: what it waits for
//	  │ └─ Early: files of workers, of a checkpoint that Start names later
//	  └─ Restart, Drop: the checkpoint is dropped (not while it is written)
//
// Invariants:
//
//   - The zero values are a job that evaluates only at the end, and writes no checkpoints.
//   - A worker that leaves is taken out of everything that waited for it, so each wait ends.
//   - The order of effects, and every sum, is by rank, and never by the order of a map or of arrivals.
//
// An error of a method means that a worker broke the protocol, and should be disconnected; the state is unchanged then.
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
	// Progress: the reported event has advanced the job.
	Progress struct{}

	// Average sends a worker the mean of all buffers, with which it evaluates.
	Average struct {
		Worker  star.Worker
		Eval    int64
		Buffers []float32
	}

	// Omitted: values that are not finite were left out of the mean. Tensor is the first of them.
	Omitted struct{ Tensor string }

	// Collected: the mean of all buffers is known. A checkpoint may have waited for it.
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

	// AskWorker asks a worker to write its part of a checkpoint: the parameters, or the residual of its codec.
	AskWorker struct {
		Worker star.Worker
		Save   wire.Save
	}

	// AskServers asks servers to write their shards' parts of a checkpoint. Server is the only one to ask; -1:
	// all servers with shards.
	AskServers struct {
		Server int
		Save   wire.Save
	}

	// Without: a checkpoint lacks the residual of a worker's codec, because the worker could not write it.
	Without struct {
		Worker     star.Worker
		ID, Reason string
	}

	// Late is Without of workers that have not answered for the time For.
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
