package membership

import (
	"bytes"
	"fmt"
	"star/coord/said"
	"star/coord/session"
	"star/internal/exitcode"
	"star/modes"
	"star/transport/wire"
)

// Rules has the configuration's requirements on the model and the data of every worker.
type Rules struct {
	// ResumeHash is the hash of the model in the checkpoint, and ResumePlain its hash without the names that wrappers
	// added. ResumeHash is empty if the job does not resume, ResumePlain if it is the same.
	ResumeHash, ResumePlain string

	// ResumeData is the data set of the checkpoint; nil if it is unknown, or another one is permitted.
	ResumeData *session.Enrolment

	// MaxParams is the number of parameters that the servers have memory for. Zero: only the protocol's limit.
	MaxParams int64
}

// Terms is what the job trains: the Hello and the enrolment of its first worker. All other workers must agree with
// them. The zero value is a job without an enrolled worker.
type Terms struct {
	hello wire.Hello
	first *session.Enrolment
}

// Set makes h and e the terms.
func (t *Terms) Set(h wire.Hello, e session.Enrolment) { t.hello, t.first = h, &e }

// Known reports whether a worker has enrolled.
func (t *Terms) Known() bool { return t.first != nil }

// Hello is the Hello of the first worker. It is zero while the terms are unknown.
func (t *Terms) Hello() *wire.Hello { return &t.hello }

// Enrolled is the enrolment of the first worker. It is nil while the terms are unknown.
func (t *Terms) Enrolled() *session.Enrolment { return t.first }

// Check decides whether a worker with this Hello and enrolment may take part, whatever its rank.
//
// differs describes how the worker differs from the terms; it is empty if the worker agrees. A worker that differs is
// rejected unless replaces says that the enrolled workers give way to it (Members.Yields). judge is the Hello of the
// validator, nil without one.
func (t *Terms) Check(r *Rules, judge *wire.Hello, h *wire.Hello, e *session.Enrolment, replaces bool) (differs string, no *Refusal) {
	if judge != nil && judge.ModelHash != h.ModelHash {
		return "", refuse(exitcode.Disagree, "star-ps 0, which judges gradients, has another model: %s has hash %s, the job's %s has hash %s (--model, --seed, --dataset)",
			h.Model, h.ModelHash, judge.Model, judge.ModelHash)
	}
	differs = t.differs(h, e)
	if differs != "" && !replaces {
		return differs, &Refusal{exitcode.Disagree, differs}
	}
	if r.ResumeHash != "" && h.ModelHash != r.ResumeHash && (r.ResumePlain == "" || h.ModelHash != r.ResumePlain) {
		return differs, refuse(exitcode.Disagree, "the checkpoint has another model: it has hash %s, the worker's %s has hash %s",
			r.ResumeHash, h.Model, h.ModelHash)
	}
	if r.ResumeData != nil {
		if why := otherData(e, r.ResumeData); why != "" {
			return differs, refuse(exitcode.Disagree, "the checkpoint has another data set: the worker has %s; use --resume-other-data to continue anyway", why)
		}
	}
	switch {
	case h.Params < 1 || e.Samples < 1:
		no = refuse(exitcode.Usage, "a worker with %d parameters and %d samples cannot train", h.Params, e.Samples)
	case r.MaxParams > 0 && h.Params > r.MaxParams:
		no = refuse(exitcode.Usage, "a model of %d parameters is too large for the servers of this job, which have memory for %d: more star-ps (--servers), or a smaller model",
			h.Params, r.MaxParams)
	case h.Buffers < 0 || h.Buffers > said.MaxPayload/4:
		no = refuse(exitcode.Usage, "a model with %d buffers, expected 0 to %d", h.Buffers, said.MaxPayload/4)
	}
	return differs, no
}

// Judge rejects a validator with another model than the job's: a product of gradients of different models would mean
// nothing.
func (t *Terms) Judge(h *wire.Hello) *Refusal {
	if h.ModelHash == t.hello.ModelHash && h.Params == t.hello.Params {
		return nil
	}
	return refuse(exitcode.Disagree, "the validator has another model than the workers: %s with hash %s, the job's %s has hash %s (--model, --seed, --dataset, for star-ps too)",
		h.Model, h.ModelHash, t.hello.Model, t.hello.ModelHash)
}

// differs describes how a worker differs from the terms; it is empty if it does not. The text names both sides and, if
// it can be found, the setting or the tensor that differs, because its reader sees only one process.
func (t *Terms) differs(h *wire.Hello, e *session.Enrolment) string {
	first := t.first
	if first == nil {
		return ""
	}
	told := ""
	if e.Told != nil && first.Told != nil && *e.Told != *first.Told {
		mine, theirs := *e.Told, *first.Told
		mine.Batch, theirs.Batch = 0, 0
		if mine != theirs {
			told = fmt.Sprintf("; it has --model %s --dataset %s --seed %d, the job's workers have --model %s --dataset %s --seed %d: the settings of star-ps apply to all workers, otherwise those of the first worker do",
				mine.Model, mine.Dataset, mine.Seed, theirs.Model, theirs.Dataset, theirs.Seed)
		}
	}
	switch {
	case h.ModelHash != t.hello.ModelHash:
		if told == "" {
			told = otherTensor(e, first)
		}
		if told == "" && h.Model == t.hello.Model {
			told = "; their tensors are alike, so the seed or a setting differs (--seed, --model)"
		}
		return fmt.Sprintf("workers train different models: %s has hash %s, the job's %s has hash %s%s",
			h.Model, h.ModelHash, t.hello.Model, t.hello.ModelHash, told)
	case h.Params != t.hello.Params || h.Buffers != t.hello.Buffers || otherOf(e.Buffers, first.Buffers) != "":
		return fmt.Sprintf("workers disagree on the size of the model: %d parameters and %d words of buffers, the job has %d and %d%s%s",
			h.Params, h.Buffers, t.hello.Params, t.hello.Buffers, otherTensor(e, first), told)
	}
	if why := otherData(e, first); why != "" {
		return "workers disagree on the data: this worker has " + why + told
	}
	switch {
	case e.Batch != first.Batch || e.Epochs != first.Epochs:
		return fmt.Sprintf("workers disagree on the job: the program of this one has batches of %d samples and %v epochs, that of the first one %d and %v (0 means unset)", e.Batch, e.Epochs, first.Batch, first.Epochs)
	case e.Whole != first.Whole:
		return "workers disagree on whether batches may be cut: the programs of this one and of the first one differ in star.loader(divisible=…)"
	case e.DropLast != first.DropLast:
		return "workers disagree on the end of the job: the programs of this one and of the first one differ in star.loader(drop_last=…)"
	case e.Exchange != first.Exchange:
		return "workers disagree on the job: some programs exchange gradients with star.ddp_hook and others do not"
	case e.Turns != first.Turns:
		return fmt.Sprintf("workers disagree on the job: the program of this one makes %d updates for each batch, that of the first one %d (star.attach)", max(e.Turns, 1), max(first.Turns, 1))
	case !bytes.Equal(e.Optimizer, first.Optimizer):
		return fmt.Sprintf("workers disagree on the optimiser: this one says %.300s, the job's first one %.300s", e.Optimizer, first.Optimizer)
	}
	return ""
}

// AllAlike reports whether the program needs each update to be the mean over all workers.
func (t *Terms) AllAlike() bool { return t.first.Exchange || t.first.Turns > 1 }

// Permit returns an error if the updates of p are not those that the program needs, because it exchanges gradients
// (session.Enrolment.Exchange) or makes several updates for each batch (Turns).
func (t *Terms) Permit(p modes.Plan, workers int) error {
	if !t.AllAlike() || p.Equal(modes.SSGD(workers)) {
		return nil
	}
	if !t.first.Exchange {
		return fmt.Errorf("mode %v: the program of the workers makes %d updates for each batch (star.attach with several optimizers), the same on all workers: use --mode ssgd or auto, without --shares", p, t.first.Turns)
	}
	return fmt.Errorf("mode %v: the program of the workers needs the mean of all gradients in each step (star.ddp_hook): use --mode ssgd or auto, without --shares", p)
}

// Turns returns an error if the job cannot make several updates for each batch. sharded says that servers make the
// updates; version is that of the checkpoint.
func (t *Terms) Turns(sharded bool, version int64) error {
	k := int64(t.first.Turns)
	switch {
	case k < 2:
		return nil
	case sharded:
		return fmt.Errorf("the program of the workers makes %d updates for each batch (star.attach with several optimizers), which needs --arch allreduce", k)
	case version%k != 0:
		return fmt.Errorf("the checkpoint has version %d, which is not a multiple of the %d updates that the program makes for each batch: its job made another number, or ended within a batch; resume from another checkpoint", version, k)
	}
	return nil
}
