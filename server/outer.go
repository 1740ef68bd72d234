package server

import (
	"fmt"

	"star/job"
	"star/ps/rule"
)

// sameOuter checks that a job that resumes makes the outer steps of its checkpoint: another rule would continue with a
// velocity that is not its own. A *job.DisagreeError otherwise. A plan without outer steps drops the velocity.
func (s *server) sameOuter() error {
	if s.resume == nil {
		return nil
	}
	for _, name := range s.resume.Slots() {
		was, ok, err := rule.OuterSlot(name)
		if err != nil {
			return &job.DisagreeError{Err: fmt.Errorf("cannot resume from %s: %w", s.resume.Dir(), err)}
		}
		switch {
		case !ok || was == s.plan.Outer:
		case s.plan.Outer.Kind == rule.OuterMean:
			s.log.Warn("dropped the velocity of outer steps: the mode makes none", "checkpoint", s.resume.Dir(), "outer", was)
			return nil
		default:
			return &job.DisagreeError{Err: fmt.Errorf("cannot resume from %s with outer=%v: its outer steps have the velocity of %v; resume with outer=%v, and change it with star ctl mode while the job runs",
				s.resume.Dir(), s.plan.Outer, was, was)}
		}
	}
	return nil
}
