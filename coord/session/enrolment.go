package session

import (
	"encoding/json"

	"star/internal/dtype"
	"star/transport/wire"
)

// Enrolment is the payload of a worker's Hello: what it is going to train. All workers of a job
// must agree on what is trained; the other fields are about one worker.
type Enrolment struct {
	Layout  []Tensor `json:"layout"`
	Buffers []Tensor `json:"buffers,omitempty"`
	Data    string   `json:"data"`
	Samples int64    `json:"samples"`          // of one epoch
	Digest  string   `json:"digest,omitempty"` // of the contents of the data; empty: not known
	Tests   int64    `json:"tests"`
	Rule    string   `json:"rule,omitempty"` // all-reduce: coord.RingConfig.Rule

	// What the worker's program has, for a job without these settings: the update that is to be made of
	// gradients, for the servers to read, samples of a batch, and epochs. All workers must agree. Zero: unset.
	Optimizer json.RawMessage `json:"optimizer,omitempty"`
	Batch     int             `json:"batch,omitempty"`
	Epochs    float64         `json:"epochs,omitempty"`

	// Whole says that the program's batches must be neither cut nor resized ([modes.Plan.WithWholeBatches]).
	Whole bool `json:"whole,omitempty"`

	// DropLast says that the last batch of the job is left out if it is smaller than the others.
	DropLast bool `json:"drop_last,omitempty"`

	// Exchange says that the worker's program has its gradients exchanged, each round whole and over
	// all workers alike, and does everything else itself. It says when the job is over; epochs,
	// samples and steps of the configuration count its progress.
	Exchange bool `json:"exchange,omitempty"`

	// Turns is how many updates the program makes of each batch, one after the other; 0: one. A round is an
	// update over all workers, and samples count at the first update of a batch.
	Turns int `json:"turns,omitempty"`

	// Told is what the worker was told to train; nil: unknown.
	Told *Told `json:"told,omitempty"`

	// Codec encodes this worker's gradients (--compress); empty: none. Workers may have different codecs.
	Codec string `json:"codec,omitempty"`

	// Stand is the progress of a worker of a ring that looks for another coordinator; nil: it
	// joins the job for the first time, or again without parameters.
	Stand *Stand `json:"stand,omitempty"`
}

// Tensor names one tensor inside a flat vector.
type Tensor = dtype.Tensor

// Told is what a member was told to train, in the words of its settings. A field that was not given
// has the default of its setting.
type Told struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Seed    uint64 `json:"seed"`
	Batch   int    `json:"batch,omitempty"` // 0: unset; the coordinator chooses
}

// Stand is what a worker of a ring that has lost its coordinator tells the next one.
type Stand struct {
	Version  int64        `json:"version"` // of its parameters; -1: it has none
	Step     int64        `json:"step"`
	Metadata []byte       `json:"memo,omitempty"` // of its last release
	Told     []wire.Tally `json:"told,omitempty"` // of its last versions
}
