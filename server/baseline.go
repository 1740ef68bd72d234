package server

import (
	"errors"
	"fmt"

	"star/coord"
	"star/internal/pilot"
	"star/internal/process"
	"star/member"
	"star/modes"
	"star/modes/baseline"
)

// NewBaseline makes what the job's baseline names, and the pilot that decides by its rules: nil where the plan stays. It looks at Baseline, Arch,
// Workers and Batch. Without a baseline the Made is zero.
func NewBaseline(job *member.Job) (baseline.Made, coord.Pilot, error) {
	m, err := process.MakeBaseline(job)
	if err != nil || m.Scheme == nil {
		return m, nil, err
	}
	return m, pilot.NewBaseline(m.Scheme, m.Plan), nil
}

// baseline prepares what --baseline asks for.
func (s *server) baseline() error {
	job := s.job
	made, pilot, err := NewBaseline(&job.Job)
	if err != nil {
		return err
	}
	switch {
	case job.Shares != nil:
		return job.Invalid("shares", errors.New("a baseline says itself how many samples each worker gets: leave --shares away"))
	case made.Local != nil && job.Clip > 0:
		return job.Invalid("clip", fmt.Errorf("%s sends no gradients to the servers: leave --clip away", job.Baseline))
	case made.Local != nil && job.UpdateScale != string(coord.ScaleRound):
		return job.Invalid("update-scale", fmt.Errorf("%s averages parameters: leave --update-scale away", job.Baseline))
	}
	s.made, s.scheme, s.plan = made, pilot, made.Plan
	return nil
}

// keeps is how many gradients a plan's update may be made of, where workers go on before it is made; 0: nobody does.
func keeps(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.Again {
			most = max(most, g.Quorum)
		}
	}
	return most
}
