package session

import (
	"encoding/json"

	"star/internal/dtype"
	"star/transport/wire"
)

// Enrolment is the payload of a worker's Hello: what it is going to train. All workers of a job must agree on what is
// trained; the other fields concern one worker.
type Enrolment struct {
	Layout  []Tensor `json:"layout"`
	Buffers []Tensor `json:"buffers,omitempty"`
	Data    string   `json:"data"`
	Samples int64    `json:"samples"`          // of one epoch
	Digest  string   `json:"digest,omitempty"` // of the contents of the data; empty if unknown
	Tests   int64    `json:"tests"`
	Rule    string   `json:"rule,omitempty"` // all-reduce: coord.RingConfig.Rule

	// Settings of the worker's program, for a job without these settings: the optimiser, for the servers; samples of
	// a batch; and epochs. All workers must agree. Zero means unset.
	Optimizer json.RawMessage `json:"optimizer,omitempty"`
	Batch     int             `json:"batch,omitempty"`
	Epochs    float64         `json:"epochs,omitempty"`

	// Whole says that the program's batches must be neither cut nor resized ([star/modes.Plan.WithWholeBatches]).
	Whole bool `json:"whole,omitempty"`

	// DropLast says that the last batch of the job is left out if it is smaller than the others.
	DropLast bool `json:"drop_last,omitempty"`

	// Exchange says that the worker's program exchanges its gradients, each round whole and over all workers alike, and
	// does everything else itself. The program ends the job; epochs, samples and steps of the configuration only measure
	// its progress.
	Exchange bool `json:"exchange,omitempty"`

	// Turns is how many updates the program makes for each batch, one after the other; 0 means one. A round is one update
	// over all workers, and samples count at the first update of a batch.
	Turns int `json:"turns,omitempty"`

	// Told has the worker's settings of what to train; nil if unknown.
	Told *Told `json:"told,omitempty"`

	// Codec encodes this worker's gradients (--compress); empty without one. Workers may have different codecs.
	Codec string `json:"codec,omitempty"`

	// Stand is the progress of a ring worker that looks for another coordinator; nil if it joins the job for the first
	// time, or again without parameters.
	Stand *Stand `json:"stand,omitempty"`
}

// Tensor names one tensor inside a flat vector.
type Tensor = dtype.Tensor

// Told has a member's settings of what to train. A setting that was not given has its default.
type Told struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Seed    uint64 `json:"seed"`
	Batch   int    `json:"batch,omitempty"` // 0: unset; the coordinator chooses
}

// Stand is the report of a ring worker that has lost its coordinator to the next one.
type Stand struct {
	Version  int64        `json:"version"` // of its parameters; -1: it has none
	Step     int64        `json:"step"`
	Metadata []byte       `json:"memo,omitempty"` // of its last release
	Told     []wire.Tally `json:"told,omitempty"` // of its last versions
}
