package server

import (
	"encoding/json"
	"fmt"
	"strings"

	"star/coord"
	"star/coord/session"
	"star/job"
	"star/job/process"
)

// takeOptimizer has the shards of this process make the updates that the workers want.
//
// text is coord.Config.Optimizer as the coordinator passes it on: JSON of optim.Config; empty
// changes nothing. An error: it is no optimiser that this program has. It is called before shards
// are made, in every process that hosts some, so that all make the same updates whichever of them
// the workers have told.
func (s *server) takeOptimizer(text json.RawMessage) error {
	job := s.job.Job.Clone()
	if err := process.Adopt(job, text); err != nil || len(job.Whole) == 0 {
		return err
	}
	opt, rate, err := process.UpdateRule(job)
	if err != nil {
		return err
	}
	s.opt, s.rate = opt, rate
	return nil
}

// by is the configuration with what workers have said of themselves and nobody told the servers.
// What was given to the servers counts more, setting by setting. An error: the workers' optimiser
// is none that this program has.
func (s *server) by(e session.Enrolment) (*Config, error) {
	job := *s.job
	job.Job = *s.job.Job.Clone()
	if err := process.Adopt(&job.Job, e.Optimizer); err != nil {
		return nil, err
	}
	if e.Batch > 0 && !job.IsSet("batch") && job.Shares == nil {
		job.Batch = e.Batch
	}
	if e.Epochs > 0 && !job.IsSet("epochs") && job.Epochs > 0 {
		job.Epochs = e.Epochs
	}
	if e.Whole && !job.IsSet("whole-batches") {
		job.Whole = true
	}
	return &job, nil
}

// adopt is what the job takes from its workers. It is asked when shards are about to be assigned.
// The pilot is made anew where it was made for another batch or optimiser, because it prices plans
// by both; nothing was told to it yet.
func (s *server) adopt(e session.Enrolment) (a coord.Adopted, err error) {
	was := s.job
	job, err := s.by(e)
	if err != nil {
		return a, err
	}
	strides := process.MayStride(&job.Job) == nil
	a.Batch, a.Epochs, a.Strides, a.Optimizer = job.Batch, job.Epochs, &strides, s.ownSteps(&job.Job)
	a.EndBy = endBy(s.job, e)
	if job.Whole {
		if err := s.wholeBatches(job); err != nil {
			return a, err
		}
		a.Whole, a.Plan = true, &s.plan
	}
	if s.pilot != nil && (job.Whole != was.Whole || job.Batch != was.Batch || job.Optimizer != was.Optimizer || job.Momentum != was.Momentum) {
		if s.pilot, err = newPilot(job); err != nil {
			return a, err
		}
		a.Pilot = s.pilot
	}
	return a, nil
}

// endBy is what says how long the job is: settings of the servers, else the program (star.loader).
// Empty: nothing does.
func endBy(job *Config, e session.Enrolment) string {
	var by []string
	for _, name := range []string{"epochs", "samples", "steps"} {
		if job.IsSet(name) {
			by = append(by, "--"+name)
		}
	}
	if e.Epochs > 0 && !job.IsSet("epochs") && job.Epochs > 0 {
		by = append(by, "star.loader(epochs=…)")
	}
	return strings.Join(by, ", ")
}

// wholeBatches makes the plan that the job begins with one that neither cuts nor resizes mini-batches. Shares that were
// given (Config.Shares) stay. Errors: the mode, or the baseline, cannot do without, exit code 2.
func (s *server) wholeBatches(job *Config) error {
	const advice = "the program has not said that its batches may be cut or resized: set star.loader(divisible=True) in it, or --whole-batches=false"
	if s.made.Resizes {
		return job.Invalid("baseline", fmt.Errorf("%s gives workers batches of other sizes, and %s", job.Baseline, advice))
	}
	shares, setting := s.plan.Shares, "mode"
	if job.Baseline != "" {
		setting = "baseline"
	}
	s.plan.Shares = nil
	p, err := s.plan.WithWholeBatches(job.Batch)
	if err != nil {
		return job.Invalid(setting, fmt.Errorf("%w: %s", err, advice))
	}
	if s.plan.Queue > 0 {
		s.log.Warn("a queue hands out whole batches, as mode ssgd does", "mode", job.Mode, "reason", advice)
	}
	s.plan = p
	s.plan.Shares = shares
	return nil
}

// ownSteps is what workers of job make steps of their own by (coord.Config.Optimizer). Empty in a
// ring, whose members have the optimiser themselves, and where the optimiser is none that steps of
// workers can be combined by, and no baseline says otherwise.
func (s *server) ownSteps(j *job.Job) string {
	if j.Arch == job.AllReduce || s.made.Local == nil && process.MayStride(j) != nil {
		return ""
	}
	text, err := json.Marshal(process.Optimizer(j))
	if err != nil { // it is no optimiser, which is said where it is made
		return ""
	}
	return string(text)
}

// ruleOf is the update rule of a ring whose workers enrol so.
func (s *server) ruleOf(e session.Enrolment) string {
	job, err := s.by(e)
	if err != nil { // then it is none that the worker can have, either
		job = s.job
	}
	return process.RuleText(&job.Job)
}
