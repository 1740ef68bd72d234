package server

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"star/coord"
	"star/coord/session"
	"star/job"
	"star/job/process"
	"star/ps/rule"
	"star/train"
	"star/train/optim"
)

// takeOptimizer has the shards of this process make the updates that the workers want.
//
// text is coord.Config.Optimizer as the coordinator sends it: JSON of optim.Config; empty changes
// nothing. An error: this program does not have that optimizer. It must be called before shards are
// created, in every process that hosts some, so that all make the same updates.
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

// by returns the configuration, with what the workers have enrolled where the servers were not
// configured. A setting of the servers takes precedence. An error: this program does not have the
// workers' optimizer.
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

// adopt returns what the job takes from its workers. It is called when shards are about to be
// assigned. The pilot is created again if it was created for another batch or optimizer, because it
// prices plans by both; it has seen nothing of the job yet.
func (s *server) adopt(e session.Enrolment) (a coord.Adopted, err error) {
	was := s.job
	job, err := s.by(e)
	if err != nil {
		return a, err
	}
	strides, outward := process.MayStride(&job.Job) == nil, s.mayOuter(&job.Job) == nil
	a.Batch, a.Epochs, a.Strides, a.Outward, a.Optimizer = job.Batch, job.Epochs, &strides, &outward, s.ownSteps(&job.Job)
	a.EndBy = endBy(s.job, e)
	if a.Uncut, err = s.uncut(&job.Job, e.Layout); err != nil {
		return a, err
	}
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

// uncut returns the ranges that the optimizer of the shards needs whole, of parameters with that layout. An error: it
// needs them, and the workers have sent no layout.
func (s *server) uncut(j *job.Job, layout []session.Tensor) (whole []coord.Range, err error) {
	c := process.Optimizer(j)
	if s.made.Local != nil || c.Name != optim.Muon { // made.Local: the shards make plain steps
		return nil, nil
	}
	c = shaped(c, layout)
	if err := c.Fits(math.MaxInt); err != nil {
		return nil, j.Invalid("optimizer", err)
	}
	for _, m := range c.Matrices {
		whole = append(whole, coord.Range{From: int64(m.From), To: int64(m.To())})
	}
	return whole, nil
}

// shaped is [process.Shaped] for a layout as workers send it.
func shaped(c optim.Config, layout []session.Tensor) optim.Config {
	specs := make([]train.TensorSpec, len(layout))
	for i, t := range layout {
		specs[i] = train.TensorSpec(t)
	}
	return process.Shaped(c, specs)
}

// endBy names what determines the length of the job: settings of the servers, or else the program
// (star.loader); empty: nothing.
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

// wholeBatches changes the initial plan to one that neither splits nor resizes mini-batches. Shares
// that were given (Config.Shares) stay. Errors, with exit code 2: the mode or the baseline requires
// it.
func (s *server) wholeBatches(job *Config) error {
	const advice = "the program does not allow its batches to be split or resized; set star.loader(divisible=True) in it, or --whole-batches=false"
	if s.made.Resizes {
		return job.Invalid("baseline", fmt.Errorf("%s resizes batches, and %s", job.Baseline, advice))
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
		s.log.Warn("queue changed to whole batches, as in mode ssgd", "mode", job.Mode, "reason", advice)
	}
	s.plan = p
	s.plan.Shares = shares
	return nil
}

// mayOuter returns why the job cannot make outer steps, by its plan or by one that a user sets; nil: it can.
func (s *server) mayOuter(j *job.Job) error {
	if s.plan.Outer.Kind != rule.OuterMean && j.Optimizer != optim.Own {
		return nil // of a baseline, or checked
	}
	return process.MayOuter(j)
}

// ownSteps returns the optimizer of the workers' local steps as JSON (coord.Config.Optimizer). It is
// empty in a ring, where members have the optimizer themselves, and if this optimizer's local steps
// cannot be combined and no baseline replaces it.
func (s *server) ownSteps(j *job.Job) string {
	if j.Arch == job.AllReduce || s.made.Local == nil && process.MayStride(j) != nil && s.mayOuter(j) != nil {
		return ""
	}
	text, err := json.Marshal(process.LocalSteps{Config: process.Optimizer(j), Clip: j.Clip})
	if err != nil { // not a valid optimizer: reported where it is created
		return ""
	}
	return string(text)
}

// ruleOf returns the update rule of a ring in which the first worker enrolled with e.
func (s *server) ruleOf(e session.Enrolment) string {
	job, err := s.by(e)
	if err != nil { // invalid: the worker will fail with it, too
		job = s.job
	}
	return process.RuleText(&job.Job)
}
