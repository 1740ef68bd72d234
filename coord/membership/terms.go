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

// Rules is what the configuration asks of the model and the data of every worker.
type Rules struct {
	// ResumeHash is the hash of the model in the checkpoint, and ResumePlain that of the same model without what
	// wrappers added to names. Empty: the job resumes from no checkpoint; there is no other hash.
	ResumeHash, ResumePlain string

	// ResumeData is the data set of the checkpoint. Nil: unknown, or another one is permitted.
	ResumeData *session.Enrolment

	// MaxParams is the most parameters that the servers have memory for. Zero: no limit but the protocol's.
	MaxParams int64
}

// Terms is what the job trains: the Hello and the enrolment of its first worker. All other workers must agree with
// them. The zero value is a job that no worker has enrolled in yet.
type Terms struct {
	hello wire.Hello
	first *session.Enrolment
}

// Set makes h and e the terms.
func (t *Terms) Set(h wire.Hello, e session.Enrolment) { t.hello, t.first = h, &e }

// Known says whether a worker has enrolled.
func (t *Terms) Known() bool { return t.first != nil }

// Hello is that of the first worker. It is zero while the terms are unknown.
func (t *Terms) Hello() *wire.Hello { return &t.hello }

// Enrolled is the enrolment of the first worker. It is nil while the terms are unknown.
func (t *Terms) Enrolled() *session.Enrolment { return t.first }

// Check says whether a worker with this Hello and enrolment may take part, whatever its rank.
//
// differs is how the worker differs from the terms; empty: it agrees. A worker that differs is refused unless
// replaces says that the workers before it make way for it (Roster.Yields). judge is the Hello of the validator; nil:
// there is none.
func (t *Terms) Check(r *Rules, judge *wire.Hello, h *wire.Hello, e *session.Enrolment, replaces bool) (differs string, no *Refusal) {
	if judge != nil && judge.ModelHash != h.ModelHash {
		return "", refuse(exitcode.Disagree, "star-ps 0, which judges gradients, was told another model: %s has hash %s, the job's %s has hash %s (--model, --seed, --dataset)",
			h.Model, h.ModelHash, judge.Model, judge.ModelHash)
	}
	differs = t.differs(h, e)
	if differs != "" && !replaces {
		return differs, &Refusal{exitcode.Disagree, differs}
	}
	if r.ResumeHash != "" && h.ModelHash != r.ResumeHash && (r.ResumePlain == "" || h.ModelHash != r.ResumePlain) {
		return differs, refuse(exitcode.Disagree, "the checkpoint is of another model: it has hash %s, the worker's %s has hash %s",
			r.ResumeHash, h.Model, h.ModelHash)
	}
	if r.ResumeData != nil {
		if why := otherData(e, r.ResumeData); why != "" {
			return differs, refuse(exitcode.Disagree, "the checkpoint is of another data set: the worker has %s; --resume-other-data goes on with it all the same", why)
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

// Judge says whether a validator with this Hello computes gradients of the job's model: a product of gradients of
// different models would mean nothing.
func (t *Terms) Judge(h *wire.Hello) *Refusal {
	if h.ModelHash == t.hello.ModelHash && h.Params == t.hello.Params {
		return nil
	}
	return refuse(exitcode.Disagree, "the validator has another model than the workers: %s with hash %s, the job's %s has hash %s (--model, --seed, --dataset, for star-ps too)",
		h.Model, h.ModelHash, t.hello.Model, t.hello.ModelHash)
}

// differs says how a worker differs from the terms; empty: not at all. The text names both sides and, where it can be
// found, the setting or the tensor that makes the difference, because the reader sees one process only.
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
			told = fmt.Sprintf("; it was told --model %s --dataset %s --seed %d, the job's workers --model %s --dataset %s --seed %d: those that star-ps is told it holds everybody to, else the first worker's count",
				mine.Model, mine.Dataset, mine.Seed, theirs.Model, theirs.Dataset, theirs.Seed)
		}
	}
	switch {
	case h.ModelHash != t.hello.ModelHash:
		if told == "" {
			told = otherTensor(e, first)
		}
		if told == "" && h.Model == t.hello.Model {
			told = "; they look alike, so it is the seed or a setting (--seed, --model)"
		}
		return fmt.Sprintf("workers train different models: %s has hash %s, the job's %s has hash %s%s",
			h.Model, h.ModelHash, t.hello.Model, t.hello.ModelHash, told)
	case h.Params != t.hello.Params || h.Buffers != t.hello.Buffers || otherOf(e.Buffers, first.Buffers) != "":
		return fmt.Sprintf("workers disagree on the size of the model: %d parameters and %d words of buffers, the job has %d and %d%s%s",
			h.Params, h.Buffers, t.hello.Params, t.hello.Buffers, otherTensor(e, first), told)
	}
	if why := otherData(e, first); why != "" {
		return "workers disagree on the data: this one has " + why + told
	}
	switch {
	case e.Batch != first.Batch || e.Epochs != first.Epochs:
		return fmt.Sprintf("workers disagree on the job: the program of this one has batches of %d samples and %v epochs, that of the first one %d and %v; 0 is none", e.Batch, e.Epochs, first.Batch, first.Epochs)
	case e.Whole != first.Whole:
		return "workers disagree on whether batches may be cut: the programs of this one and of the first one differ in star.loader(divisible=…)"
	case e.DropLast != first.DropLast:
		return "workers disagree on the end of the job: the programs of this one and of the first one differ in star.loader(drop_last=…)"
	case e.Exchange != first.Exchange:
		return "workers disagree on the job: the programs of some have their gradients exchanged (star.ddp_hook), those of others have not"
	case e.Turns != first.Turns:
		return fmt.Sprintf("workers disagree on the job: the program of this one makes %d updates of each batch, that of the first one %d (star.attach)", max(e.Turns, 1), max(first.Turns, 1))
	case !bytes.Equal(e.Optimizer, first.Optimizer):
		return fmt.Sprintf("workers disagree on the optimiser: this one says %.300s, the job's first one %.300s", e.Optimizer, first.Optimizer)
	}
	return ""
}

// AllAlike says whether the program wants each update to be the mean over all workers.
func (t *Terms) AllAlike() bool { return t.first.Exchange || t.first.Turns > 1 }

// Permit says why the updates of p are not those that the program wants: one whose gradients are exchanged
// (session.Enrolment.Exchange), or that makes several updates of a batch (Turns).
func (t *Terms) Permit(p modes.Plan, workers int) error {
	if !t.AllAlike() || p.Equal(modes.SSGD(workers)) {
		return nil
	}
	if !t.first.Exchange {
		return fmt.Errorf("mode %v: the program of the workers makes %d updates of each batch (star.attach with several optimizers), all workers the same ones: give --mode ssgd or auto, without --shares", p, t.first.Turns)
	}
	return fmt.Errorf("mode %v: the program of the workers has the mean of all their gradients made in each step (star.ddp_hook): give --mode ssgd or auto, without --shares", p)
}

// Turns says why the job cannot make several updates of a batch. sharded says that servers make the updates, and
// version is that of the checkpoint.
func (t *Terms) Turns(sharded bool, version int64) error {
	k := int64(t.first.Turns)
	switch {
	case k < 2:
		return nil
	case sharded:
		return fmt.Errorf("the program of the workers makes %d updates of each batch (star.attach with several optimizers), which is for --arch allreduce", k)
	case version%k != 0:
		return fmt.Errorf("the checkpoint is of version %d, and the program makes %d updates of each batch: it is of a job that made another number, or that ended within a batch. Resume from another one", version, k)
	}
	return nil
}
