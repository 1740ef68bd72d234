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

// Config configures a worker: what it trains, on which data, and in which job. Model and Data are
// required. Every other field has a default, stated at the field, which complete fills in; Run works
// on a copy. Addresses, names and secrets are in Job.
type Config struct {
	// Job says which job, and how this process takes part in it.
	job.Job

	// Model is what is trained. The worker uses it from one goroutine and does not close it. It may
	// be a [train.Streamer], so that gradients are sent while they are computed, and
	// [train.Measured]. All workers of a ring must start with the same parameters; with servers the
	// first worker's are used.
	Model train.Model

	// Data are the training samples, the same on every worker. Test are the samples of evaluations;
	// nil: no evaluation.
	Data, Test train.Data

	// Name describes the model in logs, tables and checkpoints; empty: its type and size.
	Name string

	// Hash identifies the model: members with a different hash are rejected. Empty: a hash of the
	// name, the layout and the initial parameters.
	Hash string

	// DataName describes Data; empty: the result of its method Name if it has one, or its type.
	DataName string

	// Digest distinguishes data of the same name and size; empty: data.Digest.
	Digest string

	// Told is what this process was configured to train, in the words of settings: a star-ps that
	// was configured otherwise rejects the worker. Nil: Name, DataName and Seed.
	Told *session.Told

	// Optimizer is the caller's update rule as JSON of star/train/optim.Config, used if the job does
	// not set one. Nil: the job's own.
	Optimizer []byte

	// PreferredBatch and PreferredEpochs are the caller's batch size in samples and number of
	// epochs, used if the job does not set them. Zero: the job's own.
	PreferredBatch  int
	PreferredEpochs float64

	// WholeBatches: Model computes correct gradients only for whole batches, because it normalises,
	// compares or sums over a batch. Plans then neither split nor resize batches, unless the job's
	// settings say otherwise.
	WholeBatches bool

	// DropLast drops the last batch of the job if it is smaller than the others.
	DropLast bool

	// Exchange: the model only has its gradients exchanged (session.Enrolment.Exchange). Its
	// train.Updater's State also updates the parameters and buffers.
	Exchange bool

	// Turns is the number of updates that the model, a train.Turned, makes of each batch
	// (session.Enrolment.Turns). 0: one.
	Turns int

	// Slow makes this worker slower on purpose once its rank is known; nil: no injection. undo is
	// called at the end.
	Slow func(rank, workers int, log *slog.Logger) (s Slowdown, undo func() error, err error)

	// Joined, if not nil, is called before the first batch with this worker's rank and the number of
	// workers.
	Joined func(rank, workers int)

	// Gone is closed when Model stops computing; Why then returns the reason. Halts receives the reason
	// for which Model wants the job to end for all workers. Nil: the errors of Model are all there is.
	Gone  <-chan struct{}
	Why   func() error
	Halts <-chan string

	// Over returns where the end of the job was reported, and empty if the job has not ended. It is
	// called while no coordinator is connected. Nil: only the coordinator knows.
	Over func() string

	// Outside connects the worker with services outside its job. Nil: no gossip and no cluster, and
	// a Job that asks for one (Gossip, GossipJoin, Cluster) is an error. Package launch has an
	// implementation.
	Outside Outside

	// Telemetry configures measurements beside the times of steps.
	Telemetry Telemetry

	// Log receives the worker's log; nil: no log.
	Log *slog.Logger
}

// Telemetry configures the measurements that explain why a worker is slow (package straggler):
// contention for CPUs, throttling, swapping, network, GPU. It is on unless Off. What cannot be read,
// without a driver or permission, is not reported. Times of steps are always measured.
type Telemetry struct {
	Off bool
	// Sampler is the command that reads the GPU (gpu.Sample); nil: nvidia-smi.
	Sampler []string
	// Process is the PID of the process that computes; 0: this one.
	Process int
}

// Slowdown injects stragglers by sleeping.
//
// Only the worker's goroutine calls it. The result of Delay is reported as Record.Injected, so that
// straggler detection can be compared with what was injected. Package worker/inject implements star
// run --slow.
type Slowdown interface {
	// Active reports whether anything is injected.
	Active() bool

	// Data returns how much later the data of a mini-batch come.
	Data() time.Duration

	// Delay returns how long to sleep in a step that began at time at of the job, after a
	// computation of that many mini-batches that took took. share is the number of its samples in
	// equal shares.
	Delay(step int64, at, took time.Duration, batches int, share float64) time.Duration
}

// steady injects nothing. A worker without Config.Slow has it, so that the loop needs no nil checks.
type steady struct{}

func (steady) Active() bool                                                          { return false }
func (steady) Data() time.Duration                                                   { return 0 }
func (steady) Delay(int64, time.Duration, time.Duration, int, float64) time.Duration { return 0 }

// nothing is an empty data set.
type nothing struct{}

func (nothing) Len() int                       { return 0 }
func (nothing) Fill(*train.Batch, []int) error { return fmt.Errorf("worker: the test set is empty") }

// complete fills in the defaults.
//
// Errors: Model or Data is nil; Optimizer is not valid; the data cannot be read (the error names the
// file). It reads Data for the digest, which takes a while for large data without Digest.
func (c *Config) complete() error {
	if c.Model == nil || c.Data == nil {
		return fmt.Errorf("worker: Model and Data of Config must not be nil")
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

// hashOf returns the hash of a model without Config.Hash: 32 hexadecimal digits over name, layouts
// and initial parameters. Because the parameters count, two workers with different seeds cannot
// train together: in a ring their parameters would differ from the first step on.
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

// toldWorkers returns the number of workers that this process was configured with; 0: none. join
// compares it with the job's, which detects a process that was started for another job of the same
// name.
func toldWorkers(job *job.Job) int {
	switch {
	case job.IsSet("workers"):
		return job.Ranks()
	case job.IsSet("max-workers"):
		return job.MaxWorkers
	}
	return 0
}
