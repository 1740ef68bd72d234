package server

import (
	"encoding/json"
	"fmt"
	"strings"

	"star/coord/session"
	"star/job"
	"star/train/data"
	"star/train/net"
	"star/transport/wire"
)

// What a job trains is what its workers have. Servers hold them to what they were told of it; what
// they were not told, the first worker says. A worker in another language may not say what it was
// told: then what it says of its model and data counts, as far as it can be compared.

// modelOf is the model of a worker with all its settings; empty: it is none that we know. "lenet"
// and "lenet:width=1" are one model: both become the latter.
func modelOf(h wire.Hello, e session.Enrolment) string {
	if e.Told != nil {
		if full, err := net.Full(e.Told.Model); err == nil {
			return full
		}
		return e.Told.Model
	}
	name, _, _ := strings.Cut(h.Model, ", ") // net.Describe
	full, _ := net.Full(name)
	return full
}

// dataOf is the kind of a worker's data, and whether that is all of it that can be known; empty: it
// is none that we know. Where files lie is no part of it: every host may have them elsewhere.
func dataOf(e session.Enrolment) (kind string, roughly bool) {
	if e.Told != nil {
		if kind, err := data.Kind(e.Told.Dataset); err == nil {
			return kind, false
		}
		return e.Told.Dataset, false
	}
	name, _, _ := strings.Cut(e.Data, "/") // data.Dataset.Name
	if _, err := data.Kind(name); err != nil {
		return "", true
	}
	return name, true
}

// sameData says whether a worker's data are of the kind that the job's are. known is false where
// the worker's data are none that this program knows: then nothing can be held against them.
func sameData(job *Config, e session.Enrolment) (same, known bool) {
	theirs, roughly := dataOf(e)
	if theirs == "" {
		return false, false
	}
	ours, err := data.Kind(job.Dataset)
	if err != nil { // what this program does not know others do not, either
		ours = job.Dataset
	}
	if roughly {
		ours, _, _ = strings.Cut(ours, ":")
	}
	return ours == theirs, true
}

// sameModel says whether a worker's model is the job's. The hash of the model, which the
// coordinator compares among workers, is not looked at: servers need not be able to make the model.
func sameModel(job *Config, h wire.Hello, e session.Enrolment) (same, known bool) {
	theirs := modelOf(h, e)
	ours, err := net.Full(job.Model)
	if err != nil {
		ours = job.Model
	}
	return ours == theirs, theirs != ""
}

// fits says what is wrong with a worker, by what this star-ps was told. vouched: it was told
// something of what is trained, and the worker the same.
//
// Only what somebody has given counts, not defaults. The error is for people at the worker: it
// names the setting, both values and where the job's is from; the worker ends with exit code 78.
func (s *server) fits(h wire.Hello, e session.Enrolment) (vouched bool, err error) {
	job := s.job
	no := func(name, theirs, ours string) error {
		return fmt.Errorf("this worker was told --%s %s, the job %s (%s of star-ps): give every member the same", name, theirs, ours, job.Origin(name))
	}
	told := e.Told
	said := func(is func(t *session.Told) string, otherwise string) string {
		if told != nil {
			return is(told)
		}
		return otherwise
	}
	if job.IsSet("model") {
		if same, known := sameModel(job, h, e); known && !same {
			return false, no("model", said(func(t *session.Told) string { return t.Model }, h.Model), job.Model)
		}
		vouched = told != nil
	}
	if job.IsSet("dataset") {
		if same, known := sameData(job, e); known && !same {
			return false, no("dataset", said(func(t *session.Told) string { return t.Dataset }, e.Data), job.Dataset)
		}
		vouched = told != nil
	}
	if told == nil {
		return false, nil
	}
	if job.IsSet("seed") {
		if told.Seed != job.Seed {
			return false, no("seed", fmt.Sprint(told.Seed), fmt.Sprint(job.Seed))
		}
		vouched = true
	}
	if told.Batch > 0 && told.Batch != job.Batch && job.Shares == nil {
		return false, no("batch", fmt.Sprint(told.Batch), fmt.Sprint(job.Batch))
	}
	return vouched, nil
}

// trains is what a job trains whose workers have enrolled so, in the words of this star-ps where it
// was told the same. It is what run log, checkpoints and result say, so the words of the settings
// are kept wherever they mean what the workers have.
func (s *server) trains(h wire.Hello, e session.Enrolment) session.Told {
	job := s.job
	t := session.Told{Model: job.Model, Dataset: job.Dataset, Seed: job.Seed, Batch: job.Batch}
	if same, _ := sameModel(job, h, e); !same {
		if t.Model = h.Model; e.Told != nil {
			t.Model = e.Told.Model
		}
	}
	if same, _ := sameData(job, e); !same {
		if t.Dataset = e.Data; e.Told != nil {
			t.Dataset = e.Told.Dataset
		}
	}
	if e.Told != nil {
		t.Seed = e.Told.Seed
	}
	if by, err := s.by(e); err == nil {
		t.Batch = by.Batch
	}
	return t
}

// words are the mode as it was given; empty: somebody else chooses it.
func (s *server) words() string {
	if s.job.Baseline != "" || s.job.Mode == job.Auto {
		return ""
	}
	return s.job.Mode
}

// trained is the configuration of a job that trains t. It is JSON, as Config.Settings makes it,
// with what workers have said of optimiser, batch and end in it (by). Errors are those of by and of
// Settings.
func (s *server) trained(t session.Told, e session.Enrolment) (json.RawMessage, error) {
	job, err := s.by(e)
	if err != nil {
		return nil, err
	}
	return s.job.Settings(job, t)
}
