package server

import (
	"fmt"
	"log/slog"

	"star/cluster/resource"
	"star/coord"
	"star/internal/compress"
	"star/job"
	"star/job/combinations"
	"star/job/process"
	"star/modes"
	"star/ps/rule"
	"star/train/checkpoint"
)

// Check checks a configuration as far as possible without other processes; errors are those of Run.
// It opens the checkpoint to resume from and the files of predictor and decider, and changes nothing
// on disk. It does not check folders (CheckFolders), addresses and certificates.
func Check(c Config) error {
	c.complete()
	c.Log = slog.New(slog.DiscardHandler)
	return (&server{job: &c, log: c.Log}).prepare()
}

// features returns the features of the job. Some cannot be combined. The table is
// docs/combinations.md; prepare returns an error with an alternative for a set that it rejects. It
// needs the plan and the baseline.
func (s *server) features() combinations.Set {
	j, p := s.job, s.plan
	set := process.Features(&j.Job).
		With(combinations.LGC, is[rule.LiveSpec](s.made.Rule)).
		With(combinations.ADPSGD, is[rule.GossipSpec](s.made.Rule)).
		With(combinations.Tree, p.AutoTree || p.Parents != nil).
		With(combinations.Parts, p.Micro > 0 || p.Local > 0).
		With(combinations.Strides, p.Local > 0 && s.made.Local == nil && p.Outer.Kind == rule.OuterMean).
		With(combinations.Outward, p.Outer.Kind != rule.OuterMean).
		With(combinations.Slack, p.MaxLead > 0).
		With(combinations.Shares, j.Shares != nil).
		With(combinations.Moving, j.MoveShards == job.Auto)
	switch {
	case j.Baseline == "":
		return set
	case s.made.Rule != nil:
		return set.With(combinations.OwnRule, true)
	case s.made.Local != nil:
		return set.With(combinations.OwnSteps, true)
	}
	return set.With(combinations.Deciding, s.made.Scheme != nil).With(combinations.Fixed, s.made.Scheme == nil)
}

// is reports whether a baseline's rule is of type S.
func is[S rule.Spec](s rule.Spec) bool { _, ok := s.(S); return ok }

// prepare checks everything that can be checked before the process listens.
//
// It sets resume, plan, made, scheme, pilot, opt and rate. An error is a *job.SettingError that
// names the setting (exit code 2), one of a file that is damaged or missing (65, 66), or of a
// checkpoint's storage. The order follows the dependencies: a checkpoint determines the optimizer,
// the baseline may choose the plan, and shares are part of the plan when it is validated.
func (s *server) prepare() (err error) {
	j := s.job
	if err := j.connected(); err != nil {
		return err
	}
	if j.Resume != "" {
		if s.resume, err = process.OpenCheckpoint(j.Resume, s.log); err != nil {
			return err
		}
		process.KeepOptimizer(&j.Job, s.resume.Manifest())
	}
	if j.Baseline != "" {
		if err := s.baseline(); err != nil {
			return err
		}
	} else if j.Mode == job.Auto {
		s.plan = modes.SSGD(j.Ranks())
	} else if s.plan, err = modes.Parse(j.Mode, j.Ranks()); err != nil {
		return j.Invalid("mode", err)
	}
	if r := combinations.Check(s.features()); r != nil {
		return j.Invalid(r.Setting, r)
	}
	if j.Shares != nil {
		s.plan.Shares = j.Shares
	}
	if err := s.plan.Validate(j.Ranks()); err != nil {
		return j.Invalid("shares", err)
	}
	if j.Whole {
		if err := s.wholeBatches(j); err != nil {
			return err
		}
	}
	if err := compress.Check(j.Compress); err != nil {
		return j.Invalid("compress", err)
	}
	if j.Arch == job.AllReduce {
		if err := coord.RingPlan(s.plan); err != nil {
			return j.Invalid("mode", err)
		}
	}
	if j.Baseline == "" && j.Mode == job.Auto {
		if s.pilot, err = newPilot(j); err != nil {
			return err
		}
	}
	if _, ok := resource.PublishedModel(j.ModelPrior); j.ModelPrior != "" && !ok {
		return j.Invalid("model-prior", fmt.Errorf("unknown model %q; want one of %s", j.ModelPrior, resource.PublishedNames()))
	}
	if err := s.sameOuter(); err != nil {
		return err
	}
	if s.opt, s.rate, err = process.UpdateRule(&j.Job); err != nil {
		return err
	}
	if s.made.Rule != nil {
		s.opt = s.opt.Shared() // the baseline's rule combines gradients to one direction
	}
	if s.made.Local != nil { // the job's own optimizer is the workers'
		s.opt = process.Outer(s.made.Local.Outer)
		if s.rate, err = s.opt.Rate(); err != nil {
			return err
		}
	}
	if err := checkpoint.Check(process.CheckpointsOf(&j.Job)); err != nil {
		return j.Invalid("checkpoint", err)
	}
	return nil
}
