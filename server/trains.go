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

// What a job trains is determined by its workers. Servers compare it with their own settings; what
// they have no settings for, the first worker determines. A worker in another language may not send
// its settings: then its model and data are compared, as far as possible.

// modelOf returns the model of a worker with all its settings; empty: unknown. "lenet" and
// "lenet:width=1" are one model: both become the latter.
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

// dataOf returns the kind of a worker's data, and whether its parameters are not known; empty:
// unknown. The paths of files are not part of it: every host may have different ones.
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

// sameData reports whether a worker's data are of the kind of the job's. known is false if this
// program does not know the worker's data, which then cannot be compared.
func sameData(job *Config, e session.Enrolment) (same, known bool) {
	theirs, roughly := dataOf(e)
	if theirs == "" {
		return false, false
	}
	ours, err := data.Kind(job.Dataset)
	if err != nil { // a kind that this program does not know
		ours = job.Dataset
	}
	if roughly {
		ours, _, _ = strings.Cut(ours, ":")
	}
	return ours == theirs, true
}

// sameModel reports whether a worker's model is the job's. The hash of the model, which the
// coordinator compares among workers, is ignored: servers need not be able to build the model.
func sameModel(job *Config, h wire.Hello, e session.Enrolment) (same, known bool) {
	theirs := modelOf(h, e)
	ours, err := net.Full(job.Model)
	if err != nil {
		ours = job.Model
	}
	return ours == theirs, theirs != ""
}

// The first worker of a job determines what it trains, if fits accepts it. Later workers are compared
// with the first by the coordinator (hash, layout, data), and with the settings by fits.

// fits returns what is wrong with a worker, compared with the settings of this star-ps. vouched:
// both were given some of the settings, and they are the same.
//
// Only settings that were given count, not defaults. The error is for people at the worker: it names
// the setting, both values and the source of the job's; the worker ends with exit code 78.
func (s *server) fits(h wire.Hello, e session.Enrolment) (vouched bool, err error) {
	job := s.job
	no := func(name, theirs, ours string) error {
		return fmt.Errorf("this worker has --%s %s, the job %s (%s of star-ps); give every member the same", name, theirs, ours, job.Origin(name))
	}
	told := e.Told
	said := func(of func(t *session.Told) string, otherwise string) string {
		if told != nil {
			return of(told)
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

// trains returns what a job trains, for the run log, checkpoints and the result. It uses the words
// of this star-ps's settings if they mean what the workers have.
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

// words returns the mode as it was given; empty: the pilot or the baseline chooses it.
func (s *server) words() string {
	if s.job.Baseline != "" || s.job.Mode == job.Auto {
		return ""
	}
	return s.job.Mode
}

// trained returns the configuration of a job that trains t, as JSON by Config.Settings, including
// the optimizer, batch and end from the workers (by). Errors are those of by and of Settings.
func (s *server) trained(t session.Told, e session.Enrolment) (json.RawMessage, error) {
	job, err := s.by(e)
	if err != nil {
		return nil, err
	}
	return s.job.Settings(job, t)
}
