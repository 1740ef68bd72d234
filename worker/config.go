package worker

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"star/coord/session"
	"star/job"
	"star/job/process"
	"star/train"
	"star/train/data"
	"star/transport"
)

// Config is a worker: what it trains, on what, and in which job. Model and Data are needed, all
// else has a default. The zero value of a field means what its comment says, and complete fills it
// in; Run works on a copy. Addresses, names and secrets are in Job.
type Config struct {
	// Job is which job, and how this process takes part in it.
	job.Job

	// Model is what is trained. The worker uses it from one goroutine, and does not close it. It
	// may be a [train.Streamer], so that gradients leave while they are computed, and
	// [train.Measured]. All workers of a ring must begin with the same parameters; with servers the
	// first worker's are taken.
	Model train.Model

	// Data are the samples, the same on every worker; Test, those of evaluations, may be nil: then
	// nothing is evaluated.
	Data, Test train.Data

	// Name says in words what the model is, for logs, tables and checkpoints; empty: its type and size.
	Name string

	// Hash tells models apart: members with another one are refused. Empty: made of the name, the
	// layout and the initial parameters.
	Hash string

	// DataName says what Data is; empty: what its method Name says, if it has one, or its type.
	DataName string

	// Digest tells data of the same name and size apart; empty: data.Digest.
	Digest string

	// Told is what this process was told to train, in the words of settings: a star-ps that was
	// told something else refuses the worker. Nil: Name, DataName and Seed.
	Told *session.Told

	// Optimizer is the update that gradients are to make, as JSON of star/train/optim.Config, where
	// nobody told the job. Nil: the job's own.
	Optimizer []byte

	// PreferredBatch and PreferredEpochs are the samples of a batch and the epochs that the caller
	// wants, where nobody told the job. Zero: the job's own.
	PreferredBatch  int
	PreferredEpochs float64

	// WholeBatches says that Model computes right gradients of whole batches only: it normalises, compares or sums over
	// a batch. Plans of the job then neither cut nor resize one, unless the job was told otherwise.
	WholeBatches bool

	// DropLast leaves out the last batch of the job if it is smaller than the others.
	DropLast bool

	// Exchange says that the model only has its gradients exchanged (session.Enrolment.Exchange). Its
	// train.Updater's State also has the parameters and buffers brought up to date.
	Exchange bool

	// Turns is how many updates the model, a train.Turned, makes of each batch (session.Enrolment.Turns). 0: one.
	Turns int

	// Slow makes this worker slower on purpose, when its rank is known; nil: it is not. undo is
	// called at the end.
	Slow func(rank, workers int, log *slog.Logger) (s Slowdown, undo func() error, err error)

	// Joined is told, before the first batch, which worker of how many this is; nil: nobody is told.
	Joined func(rank, workers int)

	// Gone is closed when Model computes nothing more, and Why is the reason then; Halts has why Model wants
	// the job to end for all workers. Nil: the errors of Model say all.
	Gone  <-chan struct{}
	Why   func() error
	Halts <-chan string

	// Over says where it says that the job has come to its end without this worker, and empty if it
	// has not: it is asked as long as there is no coordinator. Nil: only the coordinator knows.
	Over func() string

	// Outside connects the worker with what lies outside its job. Nil: the worker takes part in no gossip and in no cluster, and a Job that wants
	// one (Gossip, GossipJoin, Cluster) is an error. Package launch has one.
	Outside Outside

	// Telemetry is what is measured beside the times of steps.
	Telemetry Telemetry

	// Log takes what the worker says; nil: nothing.
	Log *slog.Logger
}

// Telemetry is what a worker measures beside the times of its steps, for who is slow and why. It is
// on unless Off; without a driver or without rights what cannot be read is not told.
// It says why a worker is slow (package straggler): processors that others use, throttling, swapping, the
// network, the GPU. Times of steps are measured in any case.
type Telemetry struct {
	Off     bool
	Sampler []string // command that reads the GPU (gpu.Sample); nil: nvidia-smi does
	Process int      // that computes; 0: this one
}

// Slowdown is stragglers on purpose, by sleeping.
//
// It is called by the worker's goroutine only. What Delay adds is told as Record.Injected, so that
// whoever looks for stragglers can be checked against what was done on purpose. Package
// worker/inject has the one of star run --slow.
type Slowdown interface {
	// Active says whether there is anything to inject.
	Active() bool

	// Data is how much later the data of an iteration come.
	Data() time.Duration

	// Delay is how long to sleep in a step that began at a moment of the job, after its computation
	// has taken so long. share is its samples, in equal shares.
	Delay(step int64, at, took time.Duration, share float64) time.Duration
}

// steady slows nobody down. It is what a worker without Config.Slow has.
//
// Its methods cost nothing, so that the loop need not ask whether there is one.
type steady struct{}

func (steady) Active() bool                                                     { return false }
func (steady) Data() time.Duration                                              { return 0 }
func (steady) Delay(int64, time.Duration, time.Duration, float64) time.Duration { return 0 }

// nothing is a set of no samples.
type nothing struct{}

func (nothing) Len() int                       { return 0 }
func (nothing) Fill(*train.Batch, []int) error { return fmt.Errorf("worker: there is no test set") }

// complete fills in what is missing.
//
// Errors: there is no Model or no Data; the optimiser that workers want cannot be read; the data
// cannot be digested (an error of the files, which says which). It reads Data for the digest, so it
// takes a moment where the data are large and have no Digest.
func (c *Config) complete() error {
	if c.Model == nil || c.Data == nil {
		return fmt.Errorf("worker: a Config without a Model or Data")
	}
	c.Job = *c.Job.Clone()
	c.Defaults()
	if err := process.Adopt(&c.Job, c.Optimizer); err != nil {
		return err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Test == nil {
		c.Test = nothing{}
	}
	if c.Name == "" {
		c.Name = fmt.Sprintf("%T, %d parameters in %d tensors", c.Model, len(c.Model.Params()), len(c.Model.Layout()))
	}
	if c.Hash == "" {
		c.Hash = hashOf(c.Name, c.Model)
	}
	if c.DataName == "" {
		c.DataName = data.NameOf(c.Data)
	}
	if c.Digest == "" {
		digest, err := data.Digest(c.Data)
		if err != nil {
			return fmt.Errorf("--dataset: %w", err)
		}
		c.Digest = digest
	}
	if c.Told == nil {
		c.Told = &session.Told{Model: c.Name, Dataset: c.DataName, Seed: c.Seed}
		if c.IsSet("batch") {
			c.Told.Batch = c.Batch
		}
	}
	return nil
}

// hashOf is the hash of a model that says of none: 32 hexadecimal digits of name, layouts and
// initial parameters. Initial parameters are part of it, so two workers of a model with another
// seed do not train together: in a ring their parameters would be different from the beginning.
func hashOf(name string, m train.Model) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", name)
	for _, layout := range [][]train.TensorSpec{m.Layout(), m.BufferLayout()} {
		for _, t := range layout {
			fmt.Fprintf(h, "%q %v %d\n", t.Name, t.Shape, t.Offset)
		}
		binary.Write(h, binary.LittleEndian, int64(len(layout)))
	}
	h.Write(transport.Floats(m.Params()))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// toldWorkers is how many workers the job may have, as this process was told; 0: it was not. Who
// was told is held to it (join): a process that was started for another job of the same name is
// found so.
func toldWorkers(job *job.Job) int {
	switch {
	case job.IsSet("workers"):
		return job.Ranks()
	case job.IsSet("max-workers"):
		return job.MaxWorkers
	}
	return 0
}
