package export

import (
	"fmt"
	"time"

	"star"
	"star/runlog"
)

// Scalar is a number that other tools draw over time.
type Scalar struct {
	At     time.Duration // since the coordinator began
	Step   int64         // version of the parameters; for a worker's own times its step
	Worker star.Worker   // -1: of the whole job
	Group  string        // train, test, job, gradient, worker
	Name   string        // such as loss, in its group
	Unit   string        // s: seconds; else empty
	Tag    string        // name for tools with one name space, such as "worker 3/load (s)"
	Value  float64       // finite
}

// Scalars makes scalars of the lines of a run log. The same lines make the same scalars.
type Scalars struct {
	grads   gradients
	every   time.Duration
	shown   map[string]time.Duration // when scalars of each kind last were
	rated   time.Duration            // when the rate of samples last was
	samples int64                    // applied then
	tags    map[star.Worker][len(parts)]string
}

// parts are those of a worker's step.
var parts = [...]string{"load", "compute", "push", "wait", "pull"}

// NewScalars passes on at most one scalar of each name in every, but all evaluations; 0: all.
func NewScalars(every time.Duration) *Scalars {
	return &Scalars{every: every, shown: map[string]time.Duration{}, tags: map[star.Worker][len(parts)]string{}}
}

// due reports whether scalars of that kind are to be passed on again.
func (s *Scalars) due(kind string, at time.Duration) bool {
	if s.every == 0 {
		return true
	}
	if last, ok := s.shown[kind]; ok && at-last < s.every {
		return false
	}
	s.shown[kind] = at
	return true
}

// Line passes on what the next line of a log has. A value that is not finite is skipped.
func (s *Scalars) Line(l runlog.Line, each func(Scalar)) {
	put := func(step int64, group, name string, value float64) {
		if value-value == 0 {
			each(Scalar{At: l.T, Step: step, Worker: -1, Group: group, Name: name, Tag: group + "/" + name, Value: value})
		}
	}
	if u, ok := s.grads.take(l); ok {
		if s.due("update", l.T) {
			s.update(u, put)
		}
		return
	}
	switch e := l.Entry.(type) {
	case runlog.Record:
		of, ok := s.tags[e.Worker]
		if !ok {
			for i, name := range parts {
				of[i] = fmt.Sprintf("worker %d/%s (s)", e.Worker, name)
			}
			s.tags[e.Worker] = of
		}
		if !s.due(of[0], l.T) {
			return
		}
		for i, d := range [...]time.Duration{e.Load, e.Compute, e.Push, e.Wait, e.Pull} {
			each(Scalar{At: l.T, Step: e.Step, Worker: e.Worker, Group: "worker", Name: parts[i], Unit: "s", Tag: of[i], Value: d.Seconds()})
		}
	case runlog.Noise:
		if s.due("noise", l.T) {
			put(e.Version, "gradient", "noise scale (samples)", float64(e.Scale))
		}
	case runlog.Eval:
		put(e.To, "test", "loss", float64(e.Loss))
		put(e.To, "test", "accuracy", float64(e.Accuracy))
	}
}

func (s *Scalars) update(u Update, put func(step int64, group, name string, value float64)) {
	version := u.Fire.Version
	if took := u.At - s.rated; s.samples > 0 && took > 0 {
		put(version, "job", "samples per second", float64(u.Fire.Samples-s.samples)/took.Seconds())
	}
	s.rated, s.samples = u.At, u.Fire.Samples
	sum := 0.0
	for _, x := range u.Fire.Staleness {
		sum += float64(x)
	}
	put(version, "train", "loss", u.Loss)
	put(version, "job", "gradients in an update", float64(len(u.Fire.Workers)))
	put(version, "job", "staleness", sum/float64(len(u.Fire.Workers)))
}
